"""What the image starts with. On a worker it fetches the secret and hands over to Beam, on a launcher to Google's own.

    worker.py --id=1-1 --provision_endpoint=localhost:12370 …    as Dataflow starts a worker

A worker that cannot have the secret does not start, and says why in the log of its start.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import secret_manager

from tidegate.transforms.problems import SafeError

BOOT = "/opt/apache/beam/boot"
TEMPLATE_LAUNCHER = "/opt/google/dataflow/python_template_launcher"
SECONDS_TO_ANSWER = 120.0


def main(arguments: Sequence[str]) -> None:
    """Become the program that the arguments are for."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--id", default="")
    parser.add_argument("--provision_endpoint")
    own, _ = parser.parse_known_args(arguments)
    if own.provision_endpoint is None:  # only workers are told where to ask for their job
        os.execv(TEMPLATE_LAUNCHER, [TEMPLATE_LAUNCHER, *arguments])  # noqa: S606
    secret_manager.fetch(secret_of(job_options(own.provision_endpoint, own.id)))
    os.execv(BOOT, [BOOT, *arguments])  # noqa: S606


def job_options(endpoint: str, worker: str) -> dict[str, Any]:
    """The options of the job that a worker was started for. Beam's boot asks for them in the same way."""
    import grpc
    from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc
    from google.protobuf.json_format import MessageToDict

    with grpc.insecure_channel(endpoint) as channel:
        try:
            answer = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel).GetProvisionInfo(
                beam_provision_api_pb2.GetProvisionInfoRequest(),
                metadata=[("worker_id", worker)],
                timeout=SECONDS_TO_ANSWER,
                wait_for_ready=True,
            )
        except grpc.RpcError as problem:
            raise SafeError(
                f"the job's options cannot be had from {endpoint} ({type(problem).__name__}); see the worker's own log"
            ) from None
    return dict(MessageToDict(answer.info.pipeline_options))


def secret_of(options: dict[str, Any]) -> str:
    """The name of the secret, in either of the two ways in which Beam writes options down."""
    name = options.get("options", {}).get("tidegate_secret") or options.get("beam:option:tidegate_secret:v1")
    if not isinstance(name, str):
        raise SafeError(
            "the job does not say which secret to fetch; "
            "start it with --tidegate_secret=projects/my-project/secrets/tidegate/versions/1"
        )
    return name


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SafeError as told:
        sys.exit(f"tidegate: {told}")
