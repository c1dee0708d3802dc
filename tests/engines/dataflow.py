"""Google's cloud as far as a submission reaches, on this machine: a storage emulator, and a stub where jobs are created."""

from __future__ import annotations

import base64
import bz2
import json
import os
import re
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.needed import needs_modules

FOLDER = Path(__file__).parent.parent.parent / "deploy" / "dataflow"
SECRET_NAME = "projects/my-project/secrets/tidegate/versions/3"  # noqa: S105
IMAGE = "europe-west1-docker.pkg.dev/my-project/images/tidegate:1"
SECRET = bytes(range(100, 132))

# What a launcher's container has and a test has not: credentials, and a Secret Manager, which keeps what it was asked for.
_LAUNCH = """
import json, pathlib, sys, types
import google.auth
from google.auth.credentials import AnonymousCredentials

google.auth.default = lambda *_, **__: (AnonymousCredentials(), "my-project")
sys.path.insert(0, {folder!r})
import launcher, secret_manager
from tidegate.transforms.problems import SafeError

class Client:
    def access_secret_version(self, name):
        with open({asked!r}, "a") as file:
            file.write(name + "\\n")
        return types.SimpleNamespace(payload=types.SimpleNamespace(data=b"{secret}\\n"))

secret_manager._client = Client
try:
    result = launcher.main(sys.argv[1:])
except SafeError as told:
    sys.exit(f"tidegate: {{told}}")
if hasattr(result, "job"):  # a dry run
    pathlib.Path({dry!r}).write_bytes(result.job.proto_pipeline.SerializeToString())
"""


@dataclass
class Cloud:
    """What a submission may touch, and what it left there."""

    folder: Path
    storage_port: int
    jobs_port: int
    requests: list[bytes] = field(default_factory=list)

    def launch(self, spec: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run the template's launcher in a process of its own, with the arguments that Google's launcher gives it."""
        self.forget()
        self.bucket("input").blob("spec.yaml").upload_from_string(spec)
        (self.folder / "launch.py").write_text(
            _LAUNCH.format(
                folder=str(FOLDER), asked=str(self.asked), secret=SECRET.hex(), dry=str(self.folder / "dry.pb")
            )
        )
        usual = [
            "--runner=DataflowRunner",
            "--project=my-project",
            "--region=europe-west1",
            "--temp_location=gs://temp/folder",
            "--staging_location=gs://temp/folder/staging",
            "--job_name=searches",
            '--labels={"goog-dataflow-provided-template-type": "flex"}',
            f"--dataflow_endpoint=http://localhost:{self.jobs_port}",
        ]
        parameters = ["--spec=gs://input/spec.yaml", f"--secret={SECRET_NAME}", f"--sdk_container_image={IMAGE}"]
        given = {option.split("=")[0] for option in options}
        return subprocess.run(
            [
                *(sys.executable, str(self.folder / "launch.py")),
                *(one for one in [*parameters, *usual] if one.split("=")[0] not in given),
                *(option for option in options if not option.endswith("=LEFT OUT")),
            ],
            env={**os.environ, **self.environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=180,
        )

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "STORAGE_EMULATOR_HOST": f"http://localhost:{self.storage_port}",
            "NO_GCE_CHECK": "true",
            "TIDEGATE_SECRET_FILE": str(self.secret_file),
        }

    @property
    def secret_file(self) -> Path:
        return self.folder / "memory" / "secret"

    @property
    def asked(self) -> Path:
        """The names that Secret Manager was asked for, one a line."""
        return self.folder / "asked"

    def bucket(self, name: str) -> Any:
        storage = import_module("google.cloud.storage")
        credentials = import_module("google.auth.credentials").AnonymousCredentials()
        client = storage.Client(
            project="my-project",
            credentials=credentials,
            client_options={"api_endpoint": f"http://localhost:{self.storage_port}"},
        )
        return client.bucket(name) if client.lookup_bucket(name) else client.create_bucket(name)

    def staged(self) -> dict[str, bytes]:
        """Every object that the launcher wrote."""
        return {
            blob.name: blob.download_as_bytes()
            for name in ("temp", "releases")
            for blob in self.bucket(name).list_blobs()
        }

    def forget(self) -> None:
        self.requests.clear()
        for left in (self.asked, self.secret_file, self.folder / "dry.pb"):
            left.unlink(missing_ok=True)
        for name in ("temp", "releases", "input"):
            for blob in self.bucket(name).list_blobs():
                blob.delete()

    def job(self) -> Any:
        """The one job that was created."""
        (request,) = self.requests
        return json.loads(request)

    def pipeline(self) -> Any:
        """The graph that was staged for it."""
        ((_, data),) = [(name, data) for name, data in self.staged().items() if name.endswith("/pipeline.pb")]
        return parse_pipeline(data)

    def dry_pipeline(self) -> Any:
        return parse_pipeline((self.folder / "dry.pb").read_bytes())


def parse_pipeline(data: bytes) -> Any:
    return beam_api("beam_runner_api_pb2").Pipeline.FromString(data)


def beam_api(name: str) -> Any:
    """A part of Beam's own protocols, which have no types."""
    return getattr(import_module("apache_beam.portability.api"), name)


def forms_of(secret: bytes) -> list[bytes]:
    """A secret as it would look if it were somewhere: plain, in hexadecimal, in base64 wherever its beginning falls."""
    shifted = [base64.b64encode(bytes(shift) + secret)[4:-4] for shift in range(3)]
    in_hex = [base64.b64encode(bytes(shift) + secret.hex().encode())[4:-4] for shift in range(3)]
    return [secret, secret.hex().encode(), secret.hex().upper().encode(), *shifted, *in_hex]


def opened(data: bytes) -> Iterator[bytes]:
    """Data, and all that lies packed in it: Beam pickles, compresses and writes down in base64 what a step consists of."""
    yield data
    for packed in re.findall(rb"[A-Za-z0-9+/]{40,}={0,2}", data):
        for begin in range(4):  # what stands before may look like base64 as well
            for unpack in (zlib.decompress, bz2.decompress):
                try:
                    yield from opened(unpack(base64.b64decode(packed[begin:] + b"==")))
                except (ValueError, OSError, zlib.error):
                    continue


@contextmanager
def local_cloud(folder: Path) -> Iterator[Cloud]:
    needs_modules("google.cloud.dataflow", "google.cloud.storage", "gcp_storage_emulator.server")
    cloud = Cloud(folder, _free_port(), _free_port())

    class Jobs(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            cloud.requests.append(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps({"id": "job-1", "name": "searches", "projectId": "my-project"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    storage = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gcp_storage_emulator",
            "start",
            f"--port={cloud.storage_port}",
            "--in-memory",
            "--quiet",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    jobs = ThreadingHTTPServer(("localhost", cloud.jobs_port), Jobs)
    threading.Thread(target=jobs.serve_forever, daemon=True).start()
    try:
        _wait_for(cloud.storage_port)
        yield cloud
    finally:
        jobs.shutdown()
        jobs.server_close()
        storage.terminate()
        storage.wait(10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("localhost", port), timeout=1).close()
            return
        except OSError:
            threading.Event().wait(0.1)
    pytest.fail(f"nothing listens on port {port}")
