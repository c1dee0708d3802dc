"""Object stores: the whole job from and to gs:// and s3://, against emulators of both."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from apache_beam.io.filesystems import FileSystems
from click.testing import CliRunner

from tests.needed import needs_modules
from tests.pipelines.test_publish import release
from tidegate.pipelines import publish as publishing
from tidegate.pipelines.cli import command
from tidegate.pipelines.job import RunError, run
from tidegate.pipelines.publish import MANIFEST, PublishError, publish, release_digest, to_jsonl
from tidegate.pipelines.reader import ReadError, read_releases
from tidegate.pipelines.remote import reach
from tidegate.pipelines.simulate import Simulation, simulate
from tidegate.pipelines.spec import load_spec

needs_modules("moto.server", "gcp_storage_emulator.server", "apache_beam.io.gcp.gcsio", "boto3")

WINDOWS = 3
BUCKET = "tides"


@dataclass(frozen=True)
class Store:
    """A bucket, the options of Beam to reach it with, and a way in that is not Beam's."""

    url: str
    options: list[str]
    environment: dict[str, str]
    content: Callable[[], dict[str, bytes]] = field(repr=False)

    def below(self, folder: str) -> dict[str, bytes]:
        return {name: data for name, data in self.content().items() if name.startswith(f"{folder}/")}


@dataclass(frozen=True)
class SharedSession:
    """One session of boto3 for all, with the lock that it lacks."""

    session: Any
    lock: Any

    def client(self, **named: Any) -> Any:
        with self.lock:
            return self.session.client(**named)


@pytest.fixture(scope="module")
def s3() -> Iterator[Store]:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    known = {"s3_access_key_id": "nobody", "s3_secret_access_key": "nothing", "s3_region_name": "us-east-1"}
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="nobody",
        aws_secret_access_key="nothing",  # noqa: S106  (of an emulator)
    )
    client.create_bucket(Bucket=BUCKET)

    def content() -> dict[str, bytes]:
        names = [item["Key"] for item in client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]
        return {name: client.get_object(Bucket=BUCKET, Key=name)["Body"].read() for name in names}

    options = [f"--{name}={value}" for name, value in {**known, "s3_endpoint_url": endpoint}.items()]
    environment = {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        # Beam makes a client for every call, and each would read all that botocore knows of S3, for half a second.
        patch.setattr(boto3.session, "Session", partial(SharedSession, boto3.session.Session(), Lock()))
        yield Store(f"s3://{BUCKET}", options, environment, content)
    server.stop()


@pytest.fixture(scope="module")
def gs() -> Iterator[Store]:
    from apache_beam.internal.gcp import auth
    from gcp_storage_emulator.handlers import objects
    from gcp_storage_emulator.server import create_server
    from google.cloud import storage

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    server = create_server("localhost", port, in_memory=True, default_bucket=BUCKET)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://localhost:{port}")
        # Beam would look for credentials for twenty seconds before it does without.
        patch.setattr(auth._Credentials, "_credentials_init", True)
        patch.setattr(objects, "_multipart_upload", partial(unless_it_is_there, objects._multipart_upload))
        client = storage.Client.create_anonymous_client()

        def content() -> dict[str, bytes]:
            return {blob.name: blob.download_as_bytes() for blob in client.list_blobs(BUCKET)}

        yield Store(f"gs://{BUCKET}", ["--project=tides"], {}, content)
        client.close()
    server.stop()


def unless_it_is_there(upload: Callable[..., None], request: Any, response: Any, storage: Any) -> None:
    """The one condition that matters here, which the emulator does not know and Google does."""
    place = request.params["bucket_name"], request.query.get("name", [request.data["meta"].get("name")])[0]
    if request.query.get("ifGenerationMatch") == ["0"] and place[1] in storage.objects.get(place[0], {}):
        response.status = HTTPStatus.PRECONDITION_FAILED
        response.json({"error": {"code": 412, "message": "conditionNotMet"}})
        return
    upload(request, response, storage)


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(FileSystems, "_pipeline_options", None)
    found: Store = request.getfixturevalue(request.param)
    return found


def put(url: str, path: Path) -> None:
    with FileSystems.create(url) as file:
        file.write(path.read_bytes())


def write_spec(folder: Path, events: str, sink: str) -> Path:
    fields: dict[str, Any] = {
        "stream": "searches",
        "source": {"files": f"{events}/events-*.parquet"},
        "columns": {"unit": "user", "key": "term", "time": "at"},
        "window": {"size": "1h", "start": "2026-01-01T00:00:00Z", "end": f"2026-01-01T0{WINDOWS}:00:00Z"},
        "bound": {"keys": 3},
        "gate": {"epsilon": 1.0, "delta": 1e-5},
        "sink": {"files": sink},
        "dead_letters": f"{folder}/dead",
        "state": f"{folder}/state",
    }
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def test_a_run_from_and_to_a_bucket_is_the_run_on_this_machine(store: Store, tmp_path: Path) -> None:
    simulate(tmp_path / "events", Simulation(events=6_000, units=1_500, keys=10, windows=WINDOWS, files=2))
    reach(store.options)
    for path in (tmp_path / "events").glob("events-*"):
        put(f"{store.url}/events/{path.name}", path)
    here = load_spec(write_spec(tmp_path, str(tmp_path / "events"), str(tmp_path / "releases")))
    run(here)
    expected = read_releases(str(tmp_path / "releases"))
    assert len(expected) > WINDOWS
    FileSystems.set_options(None)  # nobody but the run itself is to tell
    there = load_spec(write_spec(tmp_path, f"{store.url}/events", f"{store.url}/releases/"))
    assert run(there, beam_options=store.options)["windows_published"] == WINDOWS
    assert read_releases(f"{store.url}/releases/").equals(expected)
    before = store.below("releases")
    assert len(before) == 2 * WINDOWS
    again = run(there, beam_options=store.options)
    assert (again["windows_unchanged"], again.get("windows_published")) == (WINDOWS, None)
    assert store.below("releases") == before
    changed = sorted((tmp_path / "events").glob("events-*"))[0]
    events = pq.read_table(changed)
    pq.write_table(events.slice(0, len(events) // 2), changed)
    put(f"{store.url}/events/{changed.name}", changed)
    with pytest.raises(RunError, match="is published already, and the events or the secret have changed since"):
        run(there, beam_options=store.options)
    assert store.below("releases") == before


def test_a_crash_before_the_manifest_leaves_nothing_to_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        """What no handler for errors takes."""

    def dying(*_: Any) -> None:
        raise Killed

    reach(store.options)
    sealed, sink = release({"tide": 50}), f"{store.url}/crashed"
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "_commit", dying)
        with pytest.raises(Killed):
            publish(release({"tide": 49}), sink, "avro")
    assert len(store.below("crashed")) == 1
    with pytest.raises(ReadError, match="holds no releases"):
        read_releases(sink)
    assert publish(sealed, sink, "avro")
    (named,) = json.loads(store.below("crashed")[f"crashed/{sealed.folder}/{MANIFEST}"])["files"]
    assert store.below("crashed").keys() == {f"crashed/{sealed.folder}/{name}" for name in (MANIFEST, named["name"])}
    assert read_releases(sink, allow_gaps=True).equals(sealed.rows)


def test_the_command_reads_a_bucket_by_the_options_of_beam(s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed, sink = release({"tide": 50}), f"{s3.url}/read"
    reach(s3.options)
    publish(sealed, sink, "parquet")
    monkeypatch.setattr(FileSystems, "_pipeline_options", None)
    line = ["read", sink, "--allow-gaps", "--format", "jsonl"]
    done = CliRunner().invoke(command, [*line, "--", *s3.options])
    assert done.stdout_bytes == to_jsonl(sealed.rows)


def test_the_command_reads_a_bucket_as_the_environment_has_it(s3: Store) -> None:
    sealed, sink = release({"tide": 50}), f"{s3.url}/read-otherwise"
    reach(s3.options)
    publish(sealed, sink, "parquet")
    line = [sys.executable, "-m", "tidegate", "read", sink, "--allow-gaps", "--format", "jsonl"]
    done = subprocess.run(line, env={**os.environ, **s3.environment}, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == to_jsonl(sealed.rows)


def test_of_two_runs_at_once_one_publishes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    reach(store.options)
    one, other, sink = release({"tide": 50}), release({"tide": 49}), f"{store.url}/raced"
    commit = publishing._commit

    def late(place: str, data: bytes) -> bool:
        """Just before the manifest is written, somebody else writes theirs."""
        with monkeypatch.context() as patch:
            patch.setattr(publishing, "_commit", commit)
            publish(other, sink, "avro")
        return commit(place, data)

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "_commit", late)
        with pytest.raises(PublishError, match="is published already"):
            publish(one, sink, "avro")
    assert (publishing.read_manifest(f"{sink}/{one.folder}") or {})["release_digest"] == release_digest(other)
    assert read_releases(sink, allow_gaps=True).equals(other.rows)
