"""What the template runs: a spec from a bucket becomes a job, by the same code as `tidegate run SPEC --runner dataflow`.

    launcher.py --spec=gs://bucket/spec.yaml --secret=projects/p/secrets/tidegate/versions/1 --sdk_container_image=IMAGE \\
      --project=p --region=europe-west1 --temp_location=gs://bucket/temp

The parameters of the template arrive as arguments; whatever else arrives is an option of Beam's. It does not wait for the
job: a template is done when the job is described.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import secret_manager
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from tidegate.pipelines.job import explain, start
from tidegate.pipelines.runners import SecretOptions
from tidegate.pipelines.spec import Spec, parse_spec
from tidegate.transforms.problems import SafeError, SpecError


def make_parser() -> argparse.ArgumentParser:
    """The parameters of the template, as metadata.json describes them."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--spec", required=True)
    parser.add_argument("--secret", required=True)
    parser.add_argument("--sdk_container_image", required=True)
    parser.add_argument("--shards", type=int)
    parser.add_argument("--runner", help=argparse.SUPPRESS)  # Google's launcher names it; here it is always Dataflow
    return parser


def main(arguments: Sequence[str]) -> Any:
    """The job as Dataflow has it, or what stands for it where none was made."""
    own, rest = make_parser().parse_known_args(arguments)
    options = [f"--sdk_container_image={own.sdk_container_image}", f"--tidegate_secret={own.secret}", *rest]
    FileSystems.set_options(PipelineOptions(rest))  # whose eyes the spec is read with
    return submit(read_spec(own.spec), options, own.shards)


def submit(spec: Spec, options: Sequence[str], shards: int | None) -> Any:
    """Describe the job to Dataflow."""

    def fetch(chosen: PipelineOptions) -> None:
        secret_manager.fetch(chosen.view_as(SecretOptions).tidegate_secret)

    return start(spec, runner="dataflow", beam_options=options, shards=shards, fetch_secret=fetch)


def read_spec(path: str) -> Spec:
    try:
        with FileSystems.open(path) as file:
            data = file.read()
    except Exception as problem:  # every kind of storage has errors of its own
        raise SpecError(f"the spec {path} cannot be read ({type(problem).__name__}); check the path") from None
    try:
        return parse_spec(data.decode("utf-8"), path)
    except UnicodeDecodeError:
        raise SpecError(f"the spec {path} must be YAML in UTF-8, and it is not UTF-8; save it as UTF-8") from None


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.INFO)
    try:
        main(sys.argv[1:])
    except SafeError as told:
        sys.exit(f"tidegate: {explain(told)}")
