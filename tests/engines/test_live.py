"""Live: events go into a real topic or folder, and windows come out in time, on Prism."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.documents import ROOT
from tests.engines.broker import Broker, running_broker
from tests.needed import built_by
from tidegate.pipelines.reader import list_published, read_releases

WINDOW = 5
LIVE = 45
RATE = 1000


@pytest.fixture(scope="module")
def prism() -> str:
    """Prism, built once and kept in the cache."""
    return built_by(ROOT / "deploy" / "prism" / "get")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as started:
        yield started


def now_window() -> int:
    return int(time.time()) // WINDOW


def spec(folder: Path, source: dict[str, Any], sink: Any) -> Path:
    fields = {
        "stream": "searches",
        "source": source,
        "columns": {"unit": "user", "key": "term", "time": "at"},
        "window": {
            "size": f"{WINDOW}s",
            "grace": "0s",
            "start": f"{datetime.fromtimestamp(now_window() * WINDOW, UTC):%Y-%m-%dT%H:%M:%SZ}",
        },
        "bound": {"keys": 50},
        # The noise is nil, so that what comes out can be held against what went in.
        "gate": {"epsilon": 5000.0, "delta": 1e-9},
        "sink": sink,
        "state": str(folder / "state"),
        "dead_letters": str(folder / "dead"),
    }
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


@contextmanager
def running(path: Path, prism: str) -> Iterator[None]:
    """The command as people start it, until the block ends."""
    line = [sys.executable, "-m", "tidegate", "run", str(path), "--runner", "prism", "--quiet"]
    with (path.parent / "run.log").open("wb") as log:
        started = subprocess.Popen(
            [*line, "--", f"--prism_location={prism}"], stdout=log, stderr=log, cwd=path.parent, start_new_session=True
        )
        try:
            yield
            assert started.poll() is None, (path.parent / "run.log").read_text()[-2000:]
        finally:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def made(rng: random.Random, truth: dict[tuple[int, str], set[str]]) -> dict[str, str]:
    """One event of now; counted as it will be."""
    at = time.time()
    user, term = f"u{rng.randrange(2000)}", f"t{min(int(rng.expovariate(0.3)), 20)}"
    truth[int(at) // WINDOW, term].add(user)
    return {"user": user, "term": term, "at": datetime.fromtimestamp(at, UTC).isoformat()}


def counted(table: Any) -> dict[tuple[int, str], float]:
    return {(int(r["window_start"].timestamp()) // WINDOW, r["key"]): r["value"] for r in table.to_pylist()}


@pytest.mark.slow
def test_a_topic_is_released_live_exactly_and_in_time(broker: Broker, prism: str, tmp_path: Path) -> None:
    events, releases = broker.topic(2), broker.topic(1)
    source = {"kafka": {"servers": broker.servers, "topic": events, "out_of_order": "1s", "idle_after": "5s"}}
    sink = [{"files": str(tmp_path / "releases")}, {"kafka": {"servers": broker.servers, "topic": releases}}]
    truth: dict[tuple[int, str], set[str]] = defaultdict(set)
    stop = threading.Event()
    lag: dict[str, float] = {}

    def produce() -> None:
        from confluent_kafka import Producer

        producer, rng, number = Producer({"bootstrap.servers": broker.servers, "linger.ms": 10}), random.Random(1), 0
        while not stop.is_set():
            for _ in range(RATE // 20):
                producer.produce(events, json.dumps(made(rng, truth)), partition=number % 2)
                number += 1
            producer.poll(0)
            time.sleep(0.05)
        producer.flush()

    with running(spec(tmp_path, source, sink), prism):
        producing = threading.Thread(target=produce)
        producing.start()
        began = time.time()
        while time.time() - began < LIVE:
            for folder in (tmp_path / "releases").glob("*/manifest.json"):
                end = datetime.strptime(folder.parent.name.split("-")[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
                lag.setdefault(folder.parent.name, time.time() - end.timestamp())
            time.sleep(0.1)
        stop.set()
        producing.join()
    published = list_published(str(tmp_path / "releases"))
    starts = [int(item.start.timestamp()) // WINDOW for item in published]
    assert starts == list(range(starts[0], starts[0] + len(starts)))
    assert len(starts) >= 5
    found = counted(read_releases(str(tmp_path / "releases")))
    # A key of one unit may stay out; every other is there with exactly its units, in every window that was closed.
    for (window, term), users in truth.items():
        if window in starts and len(users) > 1:
            assert found[window, term] == len(users)
    topic = counted(read_releases(f"kafka://{broker.servers}/{releases}", allow_gaps=True))
    assert {place: value for place, value in found.items() if place in topic} == topic
    warm = sorted(lag[name] for name in sorted(lag)[3:])
    print(f"windows {len(starts)}, lag after warming up: median {warm[len(warm) // 2]:.1f} s, most {warm[-1]:.1f} s")
    assert warm[len(warm) // 2] < 5


@pytest.mark.long
def test_a_folder_is_followed_live_and_silence_is_told_too(prism: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = spec(tmp_path, {"files": str(tmp_path / "in" / "*.jsonl"), "follow": True}, {"files": str(tmp_path / "out")})
    fields = yaml.safe_load(path.read_text())
    fields["window"]["grace"] = "15s"
    path.write_text(yaml.safe_dump(fields))
    with running(path, prism):
        time.sleep(8)
        at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        window = int(datetime.fromisoformat(at).timestamp()) // WINDOW
        lines = [json.dumps({"user": f"u{i}", "term": "tide", "at": at}) for i in range(300)]
        (tmp_path / "draft").write_text("\n".join(lines) + "\n")
        (tmp_path / "draft").rename(tmp_path / "in" / "one.jsonl")
        deadline = time.time() + 60
        while time.time() < deadline and len(list((tmp_path / "out").glob("*/manifest.json"))) < 5:
            time.sleep(0.5)
    published = list_published(str(tmp_path / "out"))
    assert len(published) >= 5
    assert counted(read_releases(str(tmp_path / "out"), allow_gaps=True)) == {(window, "tide"): 300}
    assert sum(item.manifest["rows"] == 0 for item in published) == len(published) - 1
