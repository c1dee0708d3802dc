"""The deployment scripts start real engines, and these publish the very bytes that the direct runner does."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engines.flink import DEPLOY, Cluster, running_cluster, script, tidegate
from tests.needed import built_by, needs

pytestmark = pytest.mark.engines

SCRIPTS = ("get", "start", "submit", "savepoint", "resume", "status", "stop", "embedded")


@dataclass(frozen=True)
class Example:
    """A simulated stream, a secret, and what the direct runner publishes of them."""

    folder: Path
    environment: dict[str, str]

    def spec(self, name: str, **changes: Any) -> Path:
        """The same spec with a sink of its own; with changes, another, and None is for what to leave out."""
        path = self.folder / f"{name}.yaml"
        whole = {
            "stream": "searches",
            "source": {"files": str(self.folder / "stream" / "events-*.parquet")},
            "columns": {"unit": "user", "key": "term", "time": "at"},
            "window": {"size": "1h", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T04:00:00Z"},
            "bound": {"keys": 3, "per_key": 1},
            "gate": {"epsilon": 1.0, "delta": 1e-9},
            "then": [
                {"mechanism": "mean", "column": "seconds", "low": 0, "high": 300, "epsilon": 0.5},
                {"mechanism": "top-k", "k": 5, "epsilon": 0.2},  # gathers all shards of a window
            ],
            "sink": {"files": str(self.folder / name), "format": "avro"},
            "state": str(self.folder / "state"),
            **changes,
        }
        path.write_text(yaml.safe_dump({field: value for field, value in whole.items() if value is not None}))
        return path

    def published(self, name: str) -> dict[str, bytes]:
        """Every file of a sink."""
        place = self.folder / name
        return {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    folder = tmp_path_factory.mktemp("flink")
    secret = folder / "secret"
    secret.write_text("5e" * 32 + "\n")
    secret.chmod(0o600)
    made = Example(folder, {"TIDEGATE_SECRET_FILE": str(secret)})
    amounts = ("--events", "20000", "--units", "2000", "--keys", "100", "--windows", "4")
    tidegate(["simulate", str(folder / "stream"), *amounts], made.environment)
    tidegate(["run", str(made.spec("direct")), "--quiet"], made.environment)
    assert len(made.published("direct")) == 8
    return made


@pytest.fixture(scope="module")
def cluster(example: Example) -> Iterator[Cluster]:
    # Two TaskManagers ask the one pool for workers of the same names.
    options = ("--parallelism", "2", "--task-managers", "2", "--memory", "2g", "--checkpoints-every", "3")
    with running_cluster(example.folder / "cluster", *options, environment=example.environment) as running:
        yield running


@pytest.mark.parametrize("name", [*(f"flink/{name}" for name in SCRIPTS), "prism/get"])
def test_every_script_explains_itself(name: str) -> None:
    told = script(name, "--help", seconds=20).stdout
    assert told.startswith(f"Usage: deploy/{name}")
    assert "Examples:" in told
    assert subprocess.run([str(DEPLOY / name), "--no-such-option"], capture_output=True).returncode in (1, 2)


def test_scripts_without_a_cluster_say_what_to_do(tmp_path: Path) -> None:
    for name in ("status", "submit"):
        done = script(f"flink/{name}", "spec.yaml", "--folder", str(tmp_path / "none"), check=False, seconds=20)
        assert done.returncode == 1
        assert "deploy/flink/start" in done.stderr


def test_a_second_start_says_what_runs_and_starts_nothing(cluster: Cluster) -> None:
    before = cluster.processes()
    told = cluster.script("start").stderr
    assert "running already" in told
    assert cluster.processes() == before


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_cluster_publishes_the_same_bytes(example: Example, cluster: Cluster, parallelism: int) -> None:
    name = f"batch-{parallelism}"
    options = ("--batch", "--parallelism", str(parallelism))
    cluster.script("submit", str(example.spec(name)), *options, environment=example.environment, seconds=300)
    assert example.published(name) == example.published("direct")


def test_a_cluster_publishes_the_same_bytes_of_rows_that_are_units(example: Example, cluster: Cluster) -> None:
    rows: dict[str, Any] = {"columns": {"unit": {"each": "row"}, "key": "term", "time": "at"}, "bound": None}
    tidegate(["run", str(example.spec("rows-direct", **rows)), "--quiet"], example.environment)
    options = ("--batch", "--parallelism", "2")
    spec = str(example.spec("rows-flink", **rows))
    cluster.script("submit", spec, *options, environment=example.environment, seconds=300)
    assert example.published("rows-flink") == example.published("rows-direct")


@pytest.mark.long
def test_what_is_lost_is_brought_back(example: Example, cluster: Cluster) -> None:
    cluster.script("stop", "--kill", "task-manager-1")
    cluster.script("stop", "--kill", "worker-pool")
    assert "task-manager-1" not in [file.name for file in (cluster.folder / "pids").iterdir()]
    cluster.script("start", environment=example.environment)
    # A new TaskManager may answer before the JobManager counts its slots.
    deadline = time.monotonic() + 60
    while cluster.ask("/overview")["slots-total"] < 2:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert "no JobManager" not in cluster.script("status").stderr


def test_a_stream_with_checkpoints_publishes_the_same_bytes(example: Example, cluster: Cluster) -> None:
    """Also asserts that nothing was restarted: a job whose checkpoints fail replays everything and looks well."""
    spec = str(example.spec("live"))
    try:
        cluster.script("submit", spec, environment=example.environment, seconds=180)
    except subprocess.TimeoutExpired:
        told = cluster.script("status").stdout
        cluster.cancel()
        pytest.fail(f"the job does not end:\n{told}")
    assert example.published("live") == example.published("direct")
    last = max(cluster.ask("/jobs/overview")["jobs"], key=lambda job: job["start-time"])
    assert cluster.ask(f"/jobs/{last['jid']}/checkpoints")["counts"]["restored"] == 0
    assert not cluster.ask(f"/jobs/{last['jid']}/exceptions")["exceptionHistory"]["entries"]


def test_embedded_flink_publishes_the_same_bytes(example: Example) -> None:
    needs("java", "mvn")
    script("flink/get")
    script("flink/embedded", str(example.spec("embedded")), "--batch", environment=example.environment, seconds=300)
    assert example.published("embedded") == example.published("direct")


def test_prism_publishes_the_same_bytes(example: Example) -> None:
    prism = built_by(DEPLOY / "prism" / "get")
    options = ("--runner", "PrismRunner", "--", f"--prism_location={prism}", "--environment_type=LOOPBACK")
    for attempt in range(3):  # what goes wrong between stages does so now and then
        name = f"prism-{attempt}"
        tidegate(["run", str(example.spec(name)), *options], example.environment)
        assert example.published(name) == example.published("direct")
