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
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from apache_beam.options.pipeline_options import DebugOptions, DirectOptions, GoogleCloudOptions, PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import create_runner

from tidegate.pipelines.spec import Spec
from tidegate.transforms.problems import SpecError, shown
from tidegate.transforms.releases import SHARDS

# Options of Beam that would undo a promise, and why.
_REFUSED = {
    "allow_unsafe_triggers": "it lets a window fire again, and every firing would be a release of its own",
    "runner": "the runner is named before the --",
}
_SAMPLED = "exact rows would be kept and shown by Dataflow"
_REFUSED_EXPERIMENTS = {
    "streaming_mode_at_least_once": (
        "what a unit did could be counted twice after it was bounded, and neither counts nor the guarantee would hold"
    ),
    "enable_data_sampling": _SAMPLED,
    "enable_always_on_exception_sampling": _SAMPLED,
}
# Unless told not to, Dataflow writes down the row at which an error occurred. Our errors hide it, and so must Dataflow.
_NO_SAMPLES = "disable_always_on_exception_sampling"
FLINK = "1.19"  # as in deploy/flink/versions
_CHECKPOINT_MILLISECONDS = 10_000
_BUNDLE_MILLISECONDS = 200

# What Dataflow cannot do without, why, and how it looks. Beam itself would let a job without a region through.
_DATAFLOW_NEEDS = {
    "project": ("it is who pays", "my-project"),
    "region": ("it is where the workers are", "europe-west1"),
    "temp_location": ("the job is handed over there", "gs://my-bucket/temp"),
    "sdk_container_image": (
        "workers find tidegate and the secret through the image that deploy/dataflow/build makes",
        "europe-west1-docker.pkg.dev/my-project/images/tidegate:1",
    ),
    "tidegate_secret": (
        "workers fetch the secret from Secret Manager",
        "projects/my-project/secrets/tidegate/versions/1",
    ),
}
SECRET_VERSION = r"projects/[a-z0-9.:-]+/secrets/[A-Za-z0-9_-]+/versions/[1-9][0-9]*"  # noqa: S105  (how a name looks)


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


class SecretOptions(PipelineOptions):
    """Where workers find the secret. An option of Beam's, since these reach a worker before anything else does."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--tidegate_secret", help="The name of a secret in Secret Manager, for --runner dataflow.")


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
    _refuse_experiments(options)
    if known == "DataflowRunner":
        options.view_as(DebugOptions).add_experiment(_NO_SAMPLES)
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
    if given.get("checkpointing_mode", "EXACTLY_ONCE").upper() != "EXACTLY_ONCE":
        raise SpecError(
            "the Beam option --checkpointing_mode must be EXACTLY_ONCE: what a unit did could else be counted twice after it "
            "was bounded, and neither counts nor the guarantee would hold; leave it out"
        )
    live = [
        "--streaming",
        f"--checkpointing_interval={_CHECKPOINT_MILLISECONDS}",
        f"--max_bundle_time_mills={_BUNDLE_MILLISECONDS}",
    ]
    # Else what a stage puts out while a checkpoint is taken is held back, the watermark passes it, and it is lost.
    whole = ["--finish_bundle_before_checkpointing"] if endless or "streaming" in given else []
    always = [*whole, *(live if endless else [])]
    if "job_endpoint" in given:
        return "PortableRunner", always
    # Inside this process, with the job server that deploy/flink/get has put together; else Beam looks for one itself.
    built = sorted(cache().glob("flink-job-server-*/tidegate-flink-job-server.jar"))
    server = [f"--flink_job_server_jar={built[-1]}", f"--flink_version={FLINK}"] if built else []
    return "FlinkRunner", ["--environment_type=LOOPBACK", *server, *always]


def _dataflow(given: dict[str, str], endless: bool) -> tuple[str, list[str]]:
    for option, (why, example) in _DATAFLOW_NEEDS.items():
        if not given.get(option):
            raise SpecError(f"the Beam option --{option} is required on dataflow: {why}; write --{option}={example}")
    if not given["temp_location"].startswith("gs://"):
        raise SpecError(
            f"the Beam option --temp_location must be in a bucket on dataflow, not {shown(given['temp_location'])}; "
            f"write --temp_location=gs://my-bucket/temp"
        )
    if not re.fullmatch(SECRET_VERSION, given["tidegate_secret"]):
        # Not shown: somebody may have taken the secret for its name. And `latest` may change while the job runs.
        raise SpecError(
            "the Beam option --tidegate_secret must be the name of a secret with the number of a version, and it is not; "
            "write --tidegate_secret=projects/my-project/secrets/tidegate/versions/1"
        )
    try:
        for package in ("google.cloud.dataflow", "google.cloud.storage"):
            import_module(package)
    except ImportError:
        raise SpecError(
            "--runner dataflow needs the packages of apache-beam[gcp], which are not here; pip install 'tidegate[gcp]'"
        ) from None
    return "DataflowRunner", ["--streaming", "--enable_streaming_engine"] if endless else []


def _refuse_experiments(options: PipelineOptions) -> None:
    """Beam takes experiments and service options as lists, from one argument or many, and asks nobody what they do."""
    for option, values in {
        "experiments": options.view_as(DebugOptions).experiments,
        "dataflow_service_options": options.view_as(GoogleCloudOptions).dataflow_service_options,
    }.items():
        for name in (value.split("=")[0] for value in values or []):
            if name in _REFUSED_EXPERIMENTS:
                raise SpecError(
                    f"the Beam option --{option}={name} is refused: {_REFUSED_EXPERIMENTS[name]}; leave it out"
                )


def check_places(name: str, spec: Spec) -> None:
    """Refuse a folder on a worker's own disk where that disk is gone when the worker is."""
    if name != "dataflow":
        return
    if spec.dead_letters is not None:
        raise SpecError(
            f"dead_letters must be left out on dataflow, where a worker's disk goes with the worker and the letters would be "
            f"lost, and it is {shown(spec.dead_letters)}; leave it out: they are still counted, by reason"
        )
    places = {"source.files": [spec.source.files], "sink.files": [sink.files for sink in spec.sink]}
    for field, folders in places.items():
        for place in folders:
            if place is not None and "://" not in place:
                raise SpecError(
                    f"{field} must be in a bucket on dataflow, where a worker's disk goes with the worker, "
                    f"not {shown(place)}; write gs://my-bucket/{Path(place).name}"
                )


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
        if "_add_argparse_args" in vars(inner) and inner.__module__.startswith(("apache_beam.options", __name__)):
            found.append(inner)
        found.extend(_all_option_classes(inner))
    return found
