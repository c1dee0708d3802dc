"""Which runner, and with which options: those that a promise needs are set, those that would break one are refused.

    direct     Beam's own runner in this process, for input that comes to an end
    prism      Beam's Prism, for live streams on a laptop
    flink      an Apache Flink cluster, or one inside this process
    dataflow   Google Cloud Dataflow

Any other name is taken for a runner of Beam's and gets the options as they are.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import create_runner

from tidegate.transforms.problems import SpecError
from tidegate.transforms.releases import SHARDS

# Options of Beam that would undo a promise, and why.
_REFUSED = {
    "allow_unsafe_triggers": "it lets a window fire again, and every firing would be a release of its own",
    "runner": "the runner is named before the --",
}
_CHECKPOINT_MILLISECONDS = 10_000
_BUNDLE_MILLISECONDS = 500


@dataclass(frozen=True)
class Chosen:
    """A runner and its options."""

    runner: Any
    options: PipelineOptions
    here: bool

    @property
    def shards(self) -> int:
        """As many parts as there are workers on this machine; elsewhere the transform's own default."""
        if not self.here:
            return SHARDS
        return self.options.view_as(DirectOptions).direct_num_workers or os.cpu_count() or 1


def choose(name: str, arguments: Sequence[str], endless: bool) -> Chosen:
    """The runner of that name. Raises SpecError with one sentence if it cannot do what is asked."""
    given = _given(arguments)
    for option, why in _REFUSED.items():
        if option in given:
            raise SpecError(f"the Beam option --{option} is refused: {why}; leave it out")
    if name == "direct":
        if endless:
            raise SpecError(
                "--runner must be one that runs live for a stream without an end, not direct; write --runner prism or flink"
            )
        return Chosen(FnApiRunner(), _parse(arguments), here=True)
    presets = {"prism": _prism, "flink": _flink, "dataflow": _dataflow}
    known, added = presets[name](given, endless) if name in presets else (name, [])
    options = _parse([*arguments, *(option for option in added if option.split("=")[0].lstrip("-") not in given)])
    try:
        create_runner(known)
    except (ValueError, ImportError, AttributeError):
        raise SpecError(
            f"--runner must be direct, prism, flink, dataflow or the name of a Beam runner, not {name!r}; write direct"
        ) from None
    return Chosen(known, options, here=False)


def _prism(_: dict[str, str], endless: bool) -> tuple[str, list[str]]:
    built = sorted(cache().glob("prism-*/prism"))
    location = [f"--prism_location={built[-1]}"] if built else []
    return "PrismRunner", ["--environment_type=LOOPBACK", *location, *(["--streaming"] if endless else [])]


def _flink(given: dict[str, str], endless: bool) -> tuple[str, list[str]]:
    if endless and _number(given.get("checkpointing_interval", "1")) <= 0:
        raise SpecError(
            "the Beam option --checkpointing_interval must be above 0 for a stream: without checkpoints a restart would "
            "read everything again; leave it out, or write --checkpointing_interval=10000"
        )
    live = [
        "--streaming",
        f"--checkpointing_interval={_CHECKPOINT_MILLISECONDS}",
        f"--max_bundle_time_mills={_BUNDLE_MILLISECONDS}",
        # Else what a stage puts out while a checkpoint is taken is held back, the watermark passes it, and it is lost.
        "--finish_bundle_before_checkpointing",
    ]
    if "job_endpoint" in given:
        return "PortableRunner", live if endless else []
    return "FlinkRunner", ["--environment_type=LOOPBACK", *(live if endless else [])]


def _dataflow(_: dict[str, str], endless: bool) -> tuple[str, list[str]]:
    return "DataflowRunner", ["--streaming"] if endless else []


def cache() -> Path:
    """Where the parts of engines lie, which deploy/*/get puts there."""
    return Path(os.environ.get("TIDEGATE_CACHE") or Path.home() / ".cache" / "tidegate")


def _given(arguments: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for place, argument in enumerate(arguments):
        if argument.startswith("--"):
            name, sign, value = argument.lstrip("-").partition("=")
            following = arguments[place + 1] if place + 1 < len(arguments) else ""
            found[name.replace("-", "_")] = value if sign else following
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _parse(arguments: Sequence[str]) -> PipelineOptions:
    """Options for Beam, refused if Beam does not know them."""
    known = _OptionParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    for kind in _all_option_classes(PipelineOptions):
        kind._add_argparse_args(known)
    for option in _OF_JOB_SERVERS:
        known.add_argument(option)
    for option in _FLAGS_OF_JOB_SERVERS:
        known.add_argument(option, action="store_true")
    _, unknown = known.parse_known_args(list(arguments))
    if unknown:
        raise SpecError(f"Beam has no option {unknown[0]}; leave it out, or check its spelling")
    return PipelineOptions(list(arguments))


# Options that a job server understands and Beam's Python side passes on without knowing them.
_OF_JOB_SERVERS = (
    "--checkpointing_interval",
    "--checkpointing_mode",
    "--execution_retry_delay",
    "--max_bundle_size",
    "--max_bundle_time_mills",
    "--min_pause_between_checkpoints",
    "--number_of_execution_retries",
    "--savepoint_path",
    "--shutdown_sources_after_idle_ms",
    "--state_backend",
    "--state_backend_storage_path",
)


_FLAGS_OF_JOB_SERVERS = (
    "--externalized_checkpoints_enabled",
    "--fail_on_checkpointing_errors",
    "--finish_bundle_before_checkpointing",
    "--object_reuse",
)


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
