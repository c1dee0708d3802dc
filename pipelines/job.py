"""A job: a spec assembled into a pipeline, and run.

source → decode → bound → count → gate → then → seal → sink
             ↘ dead letters
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from tidegate.pipelines.amount import estimate_rows, fitting_shards
from tidegate.pipelines.progress import Counting, ProgressLog
from tidegate.pipelines.runners import check_places, choose
from tidegate.pipelines.sinks import FolderOfReleases, Place, PublishInOrder, WriteDeadLetters
from tidegate.pipelines.sources import FollowFiles, ReadFiles
from tidegate.pipelines.spec import Sink, Spec, check_source, open_secret
from tidegate.transforms.decode import DEAD
from tidegate.transforms.problems import SafeError, SpecError
from tidegate.transforms.releases import PrivateReleases
from tidegate.transforms.secret import Secret


class RunError(SafeError):
    """A run that failed, in words that hold nothing of a record."""


def assemble(
    pipeline: Any, spec: Spec, files: Sequence[str], secret: Secret, shards: int, log: ProgressLog | None
) -> Any:
    """The whole pipeline of a spec; gives the names of the windows that are published."""
    read = pipeline | "source" >> _source(spec, files, spread=shards > 1)
    batches = read["batches"] | "Count rows read" >> Counting(log, "rows", len) if log else read["batches"]
    keep = WriteDeadLetters(spec.dead_letters) if spec.dead_letters else None
    if keep is not None:
        _ = read[DEAD] | "dead letters" >> keep
    releases = batches | "releases" >> PrivateReleases(spec, secret=secret, dead_letters=keep, shards=shards)
    published = releases | "sink" >> PublishInOrder(
        [_place(sink) for sink in spec.sink], keep_first=spec.source.endless
    )
    return published | "Count windows published" >> Counting(log, "windows") if log else published


def _source(spec: Spec, files: Sequence[str], spread: bool) -> Any:
    if spec.source.files is not None and spec.source.follow:
        return FollowFiles(spec.source.files, spec.source.kind, spec.event_columns)
    if spec.source.files is not None:
        return ReadFiles(files, spec.source.kind, spec.event_columns, spread=spread)
    if (messages := spec.source.pubsub) is not None:
        _need_gcp("pubsub", "google.cloud.pubsub")
        from tidegate.pipelines.pubsub import ReadPubSub

        return ReadPubSub(
            messages.subscription, spec.event_columns, messages.format, messages.schema_file, messages.time_attribute
        )
    from tidegate.pipelines.kafka.source import ReadKafka

    return ReadKafka(kafka_source(spec), spec.event_columns, spec.columns.time, spec.columns.time_unit)


def _place(sink: Sink) -> Callable[[], Place]:
    """How a worker opens the place that a sink names."""
    if sink.bigquery is not None:
        _need_gcp("bigquery", "google.cloud.bigquery")
        from tidegate.pipelines.bigquery import TableOfReleases, check_table

        check_table(sink.bigquery.table)
        return partial(TableOfReleases, sink.bigquery.table)
    if sink.kafka is None:
        return partial(FolderOfReleases, sink.place, sink.format)
    _need_kafka()
    from tidegate.pipelines.kafka import sink as kafka

    address = sink.kafka.servers, sink.kafka.topic, sink.kafka.security
    kafka.check_topic(*address)
    return partial(kafka.TopicOfReleases, *address)


def kafka_source(spec: Spec) -> Any:
    """The topic of a spec as its reader wants it."""
    _need_kafka()
    from tidegate.pipelines.kafka.settings import KafkaSource

    topic = spec.source.kafka
    assert topic is not None  # noqa: S101  (asked for only where there is one)
    return KafkaSource(
        servers=topic.servers,
        topic=topic.topic,
        format=topic.format,
        schema_file=topic.schema_file,
        schema_id=topic.schema_id,
        group=topic.group,
        out_of_order=topic.out_of_order,
        idle_after=topic.idle_after,
        until_latest=topic.until == "latest",
        security_file=topic.security,
    )


def _need_kafka() -> None:
    if find_spec("confluent_kafka") is None:
        raise SpecError("kafka needs the package confluent-kafka, which is not here; pip install 'tidegate[kafka]'")


def _need_gcp(field: str, module: str) -> None:
    try:
        import_module(module)
    except ImportError:
        raise SpecError(
            f"{field} needs the packages of Google Cloud, and {module} is not here; pip install 'tidegate[gcp]'"
        ) from None


def _refuse_runner(spec: Spec, runner: str) -> None:
    """A subscription is read by the runner itself, and of those with a name here Dataflow alone can."""
    if spec.source.pubsub is not None and runner in ("direct", "prism", "flink"):
        raise SpecError(
            f"--runner must be dataflow for a subscription of Pub/Sub, which no other can read, not {runner}; "
            f"write --runner dataflow"
        )


def run(
    spec: Spec,
    *,
    runner: str = "direct",
    beam_options: Sequence[str] = (),
    shards: int | None = None,
    log: ProgressLog | None = None,
) -> Mapping[str, int]:
    """Release every window of the spec. Returns the operator's counters; raises SpecError or RunError."""
    result = start(spec, runner=runner, beam_options=beam_options, shards=shards, log=log)
    with _explained():
        result.wait_until_finish()
    return counters(result)


def start(
    spec: Spec,
    *,
    runner: str,
    beam_options: Sequence[str] = (),
    shards: int | None = None,
    log: ProgressLog | None = None,
    fetch_secret: Callable[[PipelineOptions], None] | None = None,
) -> Any:
    """Hand the spec to its runner, and give what Beam gives. What can be refused is refused before the secret is touched."""
    _refuse_runner(spec, runner)
    chosen = choose(runner, beam_options, spec.source.endless)
    check_places(runner, spec)
    if not chosen.here:
        spec = spec.with_absolute_paths()  # workers have a working folder of their own
    FileSystems.set_options(chosen.options)  # as a pipeline does, but files are looked for before there is one
    files = check_source(spec)
    if spec.source.endless:
        refuse_other_terms(spec)
    try:
        pipeline = beam.Pipeline(runner=chosen.runner, options=chosen.options)
    except ValueError as problem:  # a heading, and then a line for each option that Beam does not like
        raise SpecError(f"Beam refuses an option: {str(problem).strip().splitlines()[-1]}") from None
    if fetch_secret is not None:
        fetch_secret(chosen.options)
    secret = open_secret(spec)
    rows = estimate_rows(spec.source.files, spec.source.kind) if spec.source.files and not spec.source.follow else None
    if log is not None and rows is not None:
        log.note("expected", rows)
    with _explained():
        parts = shards or fitting_shards(chosen.shards, rows, spec.window.windows)
        assemble(pipeline, spec, files, secret, parts, log)
        return pipeline.run()


@contextmanager
def _explained() -> Iterator[None]:
    """What a runner raises, as a sentence of ours."""
    try:
        yield
    except SpecError:
        raise
    except Exception as problem:
        if _interrupted(problem):
            raise KeyboardInterrupt from None
        raise RunError(explain(problem)) from None


def refuse_other_terms(spec: Spec) -> None:
    """A stream without an end keeps its terms: whoever reads on cannot be expected to notice that they have changed."""
    for sink in spec.sink:
        place = _place(sink)()
        try:
            newest = place.newest()
        finally:
            place.close()
        if newest is None or newest.get("spec_digest") == spec.digest:
            continue
        if newest.get("stream") != spec.stream:
            said, here = f"the stream {newest.get('stream')!r}", spec.stream
            raise SpecError(f"{sink.place} holds {said}, not {here!r}; write another stream's sink")
        raise SpecError(
            f"{sink.place} holds windows of this stream under other terms ({_differences(newest, spec)}); a stream keeps its "
            f"terms: restore the spec, or write another stream and sink"
        )


def _differences(newest: Mapping[str, Any], spec: Spec) -> str:
    """What a manifest says otherwise than a spec, where it says so in plain words."""
    there, here = newest.get("range", {}), spec.window
    pairs = {
        "epsilon": (newest.get("guarantee", {}).get("epsilon"), spec.guarantee.epsilon),
        "delta": (newest.get("guarantee", {}).get("delta"), spec.guarantee.delta),
        "window.size": (there.get("size_seconds"), here.size),
        "window.every": (there.get("every_seconds"), here.every or here.size),
    }
    told = [f"{name} is {old} there and {new} here" for name, (old, new) in pairs.items() if old != new]
    return ", ".join(told) or "its spec_digest differs"


def _interrupted(problem: BaseException | None) -> bool:
    """Whether a runner's error is what came of somebody pressing Ctrl-C."""
    while problem is not None:
        if isinstance(problem, KeyboardInterrupt) or "KeyboardInterrupt" in str(problem):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def explain(problem: BaseException) -> str:
    """The sentence in an error of a runner, which wraps it in its own words and in a traceback."""
    text = str(problem)
    if isinstance(problem, SafeError):
        return re.sub(r" \[while running '[^']*'\].*$", "", text, flags=re.DOTALL)
    told = re.findall(r"^tidegate[\w.]*Error: (.+?)(?: \[while running '[^']*'.*)?$", text, flags=re.MULTILINE)
    if told:
        return str(told[-1])
    if "Rendezvous" in type(problem).__name__ or "RpcError" in type(problem).__name__:
        return (
            "contact with the runner was lost; a job that it has taken on may still be running there, so look before you "
            "start it again (deploy/flink/status for Flink)"
        )
    return f"the run failed with {type(problem).__name__}; run again with --verbose to see Beam's own messages"


def counters(result: Any) -> dict[str, int]:
    """What the operator may know: totals, never per key or unit."""
    found: dict[str, int] = {}
    try:
        known = result.metrics().query()["counters"]
    except NotImplementedError:  # a dry run has none
        return found
    for counter in known:
        if counter.key.metric.namespace == "tidegate":
            name = counter.key.metric.name
            found[name] = found.get(name, 0) + (counter.committed or counter.attempted or 0)
    return dict(sorted(found.items()))


def quiet_logging(verbose: bool) -> None:
    """Beam talks a lot; people asked for releases."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger().setLevel(logging.INFO if verbose else logging.CRITICAL)
