"""A job: a spec assembled into a pipeline, and run.

source → decode → bound → count → gate → then → seal → sink
             ↘ dead letters
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import apache_beam as beam

from tidegate.pipelines.progress import Counting, ProgressLog
from tidegate.pipelines.runners import choose
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
    read = pipeline | "source" >> _source(spec, files)
    batches = read["batches"] | "Count rows read" >> Counting(log, "rows", len) if log else read["batches"]
    keep = WriteDeadLetters(spec.dead_letters) if spec.dead_letters else None
    if keep is not None:
        _ = read[DEAD] | "dead letters" >> keep
    releases = batches | "releases" >> PrivateReleases(spec, secret=secret, dead_letters=keep, shards=shards)
    published = releases | "sink" >> PublishInOrder(
        [_place(sink) for sink in spec.sink], keep_first=spec.source.endless
    )
    return published | "Count windows published" >> Counting(log, "windows") if log else published


def _source(spec: Spec, files: Sequence[str]) -> Any:
    if spec.source.files is not None and spec.source.follow:
        return FollowFiles(spec.source.files, spec.source.kind, spec.event_columns)
    if spec.source.kafka is None:
        return ReadFiles(files, spec.source.kind, spec.event_columns)
    from tidegate.pipelines.kafka.source import ReadKafka

    return ReadKafka(kafka_source(spec), spec.event_columns, spec.columns.time, spec.columns.time_unit)


def _place(sink: Sink) -> Callable[[], Place]:
    """How a worker opens the place that a sink names."""
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
        group=topic.group,
        out_of_order=topic.out_of_order,
        idle_after=topic.idle_after,
        until_latest=topic.until == "latest",
        security_file=topic.security,
    )


def _need_kafka() -> None:
    if find_spec("confluent_kafka") is None:
        raise SpecError("kafka needs the package confluent-kafka, which is not here; pip install 'tidegate[kafka]'")


def run(
    spec: Spec,
    *,
    runner: str = "direct",
    beam_options: Sequence[str] = (),
    shards: int | None = None,
    log: ProgressLog | None = None,
) -> Mapping[str, int]:
    """Release every window of the spec. Returns the operator's counters; raises SpecError or RunError."""
    chosen = choose(runner, beam_options, spec.source.endless)
    files = check_source(spec)
    secret = open_secret(spec)
    try:
        pipeline = beam.Pipeline(runner=chosen.runner, options=chosen.options)
        assemble(pipeline, spec, files, secret, shards or chosen.shards, log)
        result = pipeline.run()
        result.wait_until_finish()
    except SpecError:
        raise
    except Exception as problem:
        if _interrupted(problem):
            raise KeyboardInterrupt from None
        raise RunError(explain(problem)) from None
    return counters(result)


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
    return f"the run failed with {type(problem).__name__}; run again with --verbose to see Beam's own messages"


def counters(result: Any) -> dict[str, int]:
    """What the operator may know: totals, never per key or unit."""
    found: dict[str, int] = {}
    for counter in result.metrics().query()["counters"]:
        if counter.key.metric.namespace == "tidegate":
            name = counter.key.metric.name
            found[name] = found.get(name, 0) + (counter.committed or counter.attempted or 0)
    return dict(sorted(found.items()))


def quiet_logging(verbose: bool) -> None:
    """Beam talks a lot; people asked for releases."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger().setLevel(logging.INFO if verbose else logging.CRITICAL)
