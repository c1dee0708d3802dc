"""A job: a spec assembled into a pipeline, and run.

source → decode → bound → count → gate → then → seal → sink
             ↘ dead letters
"""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import create_runner

from tidegate.pipelines.progress import Counting, ProgressLog
from tidegate.pipelines.sinks import WriteDeadLetters, WriteReleases
from tidegate.pipelines.sources import ReadFiles
from tidegate.pipelines.spec import Spec, check_source, open_secret
from tidegate.transforms.decode import DEAD
from tidegate.transforms.problems import SafeError, SpecError
from tidegate.transforms.releases import SHARDS, PrivateReleases
from tidegate.transforms.secret import Secret

# Options of Beam that would undo a promise, and why.
_REFUSED = {
    "allow_unsafe_triggers": "it lets a window fire again, and every firing would be a release of its own",
    "runner": "the runner is named before the --",
}


class RunError(SafeError):
    """A run that failed, in words that hold nothing of a record."""


def assemble(
    pipeline: Any, spec: Spec, files: Sequence[str], secret: Secret, shards: int, log: ProgressLog | None
) -> Any:
    """The whole pipeline of a spec; gives the names of the windows that are published."""
    read = pipeline | "source" >> ReadFiles(files, spec.source.kind, spec.event_columns)
    batches = read["batches"] | "Count rows read" >> Counting(log, "rows", len) if log else read["batches"]
    keep = WriteDeadLetters(spec.dead_letters) if spec.dead_letters else None
    if keep is not None:
        _ = read[DEAD] | "dead letters" >> keep
    releases = batches | "releases" >> PrivateReleases(spec, secret=secret, dead_letters=keep, shards=shards)
    published = releases | "sink" >> WriteReleases(spec.sink.files, spec.sink.format)
    return published | "Count windows published" >> Counting(log, "windows") if log else published


def run(
    spec: Spec,
    *,
    runner: str = "direct",
    beam_options: Sequence[str] = (),
    shards: int | None = None,
    log: ProgressLog | None = None,
) -> Mapping[str, int]:
    """Release every window of the spec. Returns the operator's counters; raises SpecError or RunError."""
    options = parse_options(runner, beam_options)
    files = check_source(spec)
    secret = open_secret(spec)
    chosen: Any = FnApiRunner() if runner == "direct" else runner
    try:
        pipeline = beam.Pipeline(runner=chosen, options=options)
        assemble(pipeline, spec, files, secret, shards or default_shards(runner, options), log)
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


def parse_options(runner: str, arguments: Sequence[str]) -> PipelineOptions:
    """Options for Beam, refused if Beam does not know them or if they would break a promise."""
    for argument in arguments:
        name = argument.lstrip("-").split("=")[0].replace("-", "_")
        if argument.startswith("--") and name in _REFUSED:
            raise SpecError(f"the Beam option --{name} is refused: {_REFUSED[name]}; leave it out")
    known = _OptionParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    for kind in _all_option_classes(PipelineOptions):
        kind._add_argparse_args(known)
    _, unknown = known.parse_known_args(list(arguments))
    if unknown:
        raise SpecError(f"Beam has no option {unknown[0]}; leave it out, or check its spelling")
    if runner != "direct":
        try:
            create_runner(runner)
        except (ValueError, ImportError, AttributeError):
            raise SpecError(
                f"--runner must be direct or the name of a Beam runner, not {runner!r}; write direct"
            ) from None
    return PipelineOptions(list(arguments))


def default_shards(runner: str, options: PipelineOptions) -> int:
    """As many parts as there are workers on this machine; elsewhere the transform's own default."""
    if runner != "direct":
        return SHARDS
    return options.view_as(DirectOptions).direct_num_workers or os.cpu_count() or 1


class _OptionParser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise SpecError(f"the Beam options cannot be parsed: {message}; check the value")


def _all_option_classes(kind: Any) -> list[Any]:
    found = []
    for inner in kind.__subclasses__():
        if "_add_argparse_args" in vars(inner) and inner.__module__.startswith("apache_beam.options"):
            found.append(inner)
        found.extend(_all_option_classes(inner))
    return found


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
