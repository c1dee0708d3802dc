"""Live on a real Flink cluster with a real Kafka: windows come out exact, in time and once, whatever is killed."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engines.broker import Broker, running_broker
from tests.engines.flink import DEPLOY, Cluster, running_cluster
from tests.engines.traffic import FolderWatch, Seen, TopicWatch, Traffic
from tests.needed import leave_out
from tidegate.pipelines.reader import read_releases

WINDOW = 10
PARTITIONS = 2
FOREVER = {"retention.ms": "-1", "retention.bytes": "-1"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as started:
        yield started


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    options = ("--parallelism", "2", "--memory", "2g")
    with running_cluster(tmp_path / "cluster", *options, environment=environment(tmp_path)) as running:
        yield running


def environment(folder: Path) -> dict[str, str]:
    secret = folder / "secret"
    if not secret.exists():
        secret.write_text("5e" * 32 + "\n")
        secret.chmod(0o600)
    return {"TIDEGATE_SECRET_FILE": str(secret)}


def name_of(window: int) -> str:
    begin, end = (datetime.fromtimestamp(number * WINDOW, UTC) for number in (window, window + 1))
    return f"{begin:%Y%m%dT%H%M%SZ}-{end:%Y%m%dT%H%M%SZ}"


def end_of(name: str) -> float:
    return datetime.strptime(name.split("-")[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()


@dataclass
class Live:
    """A stream that runs, with its traffic and two readers who never look away."""

    folder: Path
    broker: Broker
    cluster: Cluster
    spec: Path
    traffic: Traffic
    files: FolderWatch
    topic: TopicWatch

    @contextmanager
    def submitted(
        self, script: str = "submit", *arguments: str, spec: Path | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """The job, from submission until the block ends; what is cancelled is the job, not just the client."""
        line = [
            str(DEPLOY / "flink" / script),
            "--folder",
            str(self.cluster.folder),
            str(spec or self.spec),
            *arguments,
        ]
        environ = {**os.environ, "TIDEGATE_PYTHON": sys.executable, **environment(self.folder)}
        with (self.folder / "client.log").open("ab") as log:
            options = ["--", "--checkpointing_interval=3000"]
            client = subprocess.Popen([*line, *options], env=environ, stdout=log, stderr=log, start_new_session=True)
            try:
                yield client
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(client.pid, signal.SIGKILL)
                client.wait()
                self.cluster.cancel()
                self.wait_until(lambda: not self.cluster.alive(), 60, "the job to end")

    def wait_until(self, ready: Any, seconds: float, what: str) -> None:
        deadline = time.time() + seconds
        while not ready():
            if time.time() > deadline:
                told = self.cluster.script("status", check=False)
                pytest.fail(f"waited {seconds:.0f} s for {what}:\n{told.stdout}\n{told.stderr}")
            time.sleep(0.1)

    def is_published(self, window: int) -> bool:
        name = name_of(window)
        return name in self.files.windows and name in self.topic.windows

    def check(self, first: int, last: int, *, exact: bool = True) -> None:
        """Both readers saw every window once, whole and as it should be; folder and topic agree."""
        assert not self.files.troubles
        assert not self.topic.troubles
        for windows in (self.files.windows, self.topic.windows):
            twice = {name for name, seen in windows.items() if len(seen.contents) != 1}
            assert not twice, f"seen with two contents: {twice}"
            missing = {name_of(window) for window in range(first, last + 1)} - windows.keys()
            assert not missing, f"never published: {missing}"
        for name, seen in self.files.windows.items():
            assert name not in self.topic.windows or self.topic.windows[name].contents == seen.contents
        wrong = Counter[str]()
        for (window, term), users in self.traffic.truth.items():
            if first <= window <= last and len(users) > 1:  # a key of one user may stay out
                wrong[name_of(window)] += self.files.windows[name_of(window)].rows.get(term) != len(users)
        wrong = +wrong
        assert not exact or not wrong, f"not what was sent: {dict(wrong)}"


@contextmanager
def running_live(
    folder: Path, broker: Broker, cluster: Cluster, sinks: list[dict[str, Any]], topic: TopicWatch
) -> Iterator[Live]:
    """Traffic into a topic of its own, and readers of these sinks, the first of which is a folder."""
    events = broker.topic(PARTITIONS)
    start = datetime.fromtimestamp(time.time() // WINDOW * WINDOW - 120, UTC)
    spec = {
        "stream": "searches",
        "source": {"kafka": {"servers": broker.servers, "topic": events, "out_of_order": "1s", "idle_after": "120s"}},
        "columns": {"unit": "user", "key": "term", "time": "at"},
        "window": {"size": f"{WINDOW}s", "grace": "0s", "start": f"{start:%Y-%m-%dT%H:%M:%SZ}"},
        "bound": {"keys": 50},
        # The noise is nil, so that what comes out can be held against what went in.
        "gate": {"epsilon": 5000.0, "delta": 1e-9},
        "sink": sinks,
        "state": str(folder / "state"),
        "dead_letters": str(folder / "dead"),
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    rate = int(os.environ.get("TIDEGATE_RATE", "5000"))
    traffic, files = Traffic(broker, events, PARTITIONS, rate, WINDOW), FolderWatch(Path(sinks[0]["files"]))
    for each in (traffic, files, topic):
        each.start()
    try:
        yield Live(folder, broker, cluster, folder / "spec.yaml", traffic, files, topic)
    finally:
        for each in (traffic, files, topic):
            each.stop()


@pytest.fixture
def live(broker: Broker, cluster: Cluster, tmp_path: Path) -> Iterator[Live]:
    releases = broker.topic(1, FOREVER)
    sinks: list[dict[str, Any]] = [
        {"files": str(tmp_path / "releases"), "format": "jsonl"},
        {"kafka": {"servers": broker.servers, "topic": releases}},
    ]
    with running_live(tmp_path, broker, cluster, sinks, TopicWatch(broker, releases)) as running:
        yield running


def now_window() -> int:
    return int(time.time()) // WINDOW


def lags(windows: dict[str, Seen], first: int, last: int) -> list[float]:
    """Seconds from a window's end to when it was seen."""
    names = [name_of(window) for window in range(first, last + 1)]
    return [windows[name].at - end_of(name) for name in names if name in windows]


@pytest.mark.long
def test_windows_come_out_in_time_and_every_row_is_accounted_for(live: Live) -> None:
    seconds = int(os.environ.get("TIDEGATE_LIVE_SECONDS", "180"))
    began = time.time()
    with live.submitted():
        live.wait_until(lambda: live.is_published(live.traffic.first_window), 240, "the first window with events")
        print(f"first window {time.time() - began:.0f} s after submission")
        # What piled up while the job started is worked off first.
        live.wait_until(lambda: live.is_published(now_window() - 1), 120, "the stream to be up to date")
        first = now_window()
        live.traffic.stragglers.set()
        time.sleep(seconds)
        last = now_window() - 1
        live.traffic.stop()
        live.wait_until(lambda: live.is_published(last), 60, "the last window")
        live.files.stop()
        live.topic.stop()
        live.check(live.traffic.first_window + 1, last)
        took = lags(live.files.windows, first, last)
        share = sum(lag <= 1 + 5 for lag in took) / len(took)  # a second is out_of_order: the watermark's
        print(
            f"{len(took)} windows, {live.traffic.sent.total() / (time.time() - began):.0f} messages/s, lag median "
            f"{statistics.median(took):.1f} s, most {max(took):.1f} s, in time {share:.0%}"
        )
        assert share >= 0.9, took
        # Everything that was sent is in one of the operator's counters.
        sent = live.traffic.sent
        records = sent["good"] + sent["again"] + sent["late"]
        assert records == live.traffic.rows.total() + sent["late"]
        closed = sum(rows for window, rows in live.traffic.rows.items() if live.is_published(window))
        expected = {
            "dead_malformed": sent["malformed"],
            "rows_read": records,
            "rows_outside_range": 0,
            "rows_in_windows": records,
            "rows_counted": closed,
        }
        live.wait_until(lambda: counters(live).items() >= expected.items(), 60, f"the counters to be {expected}")
        print(live.cluster.script("status").stdout)
    dead = sum(len(path.read_bytes().splitlines()) for path in (live.folder / "dead").glob("*.jsonl"))
    assert dead == live.traffic.sent["malformed"]


def counters(live: Live) -> Counter[str]:
    line = next(line for line in live.cluster.script("status").stdout.splitlines() if "since the last restart" in line)
    pairs = (each.rsplit(" ", 1) for each in line.split(": ")[1].split(", "))
    return Counter({name: int(amount.replace(",", "")) for name, amount in pairs})


def job_of(live: Live) -> str:
    (job,) = live.cluster.jobs("RUNNING")
    return job


@pytest.mark.long
def test_a_stream_that_is_stopped_goes_on_under_the_same_terms_only(live: Live) -> None:
    with live.submitted():
        live.wait_until(lambda: live.is_published(live.traffic.first_window + 1), 240, "a window with events")
        path = live.cluster.script("savepoint", job_of(live)).stdout.strip()
    fields = yaml.safe_load(live.spec.read_text())
    changes: list[tuple[str, dict[str, Any], str]] = [
        ("epsilon", {"gate": {**fields["gate"], "epsilon": 4000.0}}, "epsilon is 5000.0 there and 4000.0 here"),
        ("size", {"window": {**fields["window"], "size": "20s"}}, "window.size is 10 there and 20 here"),
    ]
    for name, change, told in changes:
        other = live.folder / f"{name}.yaml"
        other.write_text(yaml.safe_dump({**fields, **change}))
        done = live.cluster.script("resume", str(other), path, environment=environment(live.folder), check=False)
        assert done.returncode != 0
        assert told in done.stderr
    # With a sink of its own the spec looks fine, and only the state of the open windows gives it away.
    other = live.folder / "elsewhere.yaml"
    sink = {"files": str(live.folder / "elsewhere"), "format": "jsonl"}
    other.write_text(yaml.safe_dump({**fields, **changes[0][1], "sink": sink}))
    with live.submitted("resume", path, spec=other):
        live.wait_until(lambda: "begun under other terms" in live.cluster.script("status").stdout, 180, "a refusal")
    assert not list((live.folder / "elsewhere").glob("*/manifest.json"))
    with live.submitted("resume", path):
        last = now_window()
        live.wait_until(lambda: live.is_published(last), 240, "windows after resuming")
        live.traffic.stop()
    live.files.stop()
    live.topic.stop()
    live.check(live.traffic.first_window + 1, last)


KILLS = ("worker", "task-manager-1", "job-server", "broker")


@pytest.mark.long
def test_whatever_is_killed_every_window_is_published_once(live: Live) -> None:
    kills = int(os.environ.get("TIDEGATE_KILLS", "24"))
    seed = int(os.environ.get("TIDEGATE_SEED", str(int(time.time()))))
    print(f"TIDEGATE_SEED={seed}")
    rng = random.Random(seed)
    victims = [KILLS[number % len(KILLS)] for number in range(kills)]
    rng.shuffle(victims)
    recovered: dict[str, list[float]] = {}
    with live.submitted():
        live.wait_until(lambda: live.is_published(live.traffic.first_window), 240, "the first window with events")
        for victim in victims:
            time.sleep(rng.uniform(0, WINDOW))
            killed = time.time()
            kill(live, victim, rng)
            # Half of the time the next accident comes before this one is over.
            if rng.random() < 0.5:
                window = int(killed) // WINDOW
                live.wait_until(lambda window=window: live.is_published(window), 240, f"recovery from killing {victim}")
                recovered.setdefault(victim, []).append(time.time() - (window + 1) * WINDOW)
        last = now_window()
        time.sleep(2 * WINDOW)
        live.traffic.stop()
        live.wait_until(lambda: live.is_published(last), 300, "the last window after the last kill")
        told = live.cluster.script("status").stdout
    live.files.stop()
    live.topic.stop()
    live.check(live.traffic.first_window + 1, last)
    for victim, seconds in recovered.items():
        print(f"{victim}: window out {statistics.median(seconds):.0f} s after its end, most {max(seconds):.0f} s")
    print(told)
    read = read_releases(str(live.folder / "releases"))
    assert read.num_rows


def kill(live: Live, victim: str, rng: random.Random) -> None:
    """Kill -9, and bring back what does not come by itself."""
    if victim == "broker":
        live.broker.kill()
        time.sleep(rng.uniform(0, 3))
        live.broker.start()
        return
    done = live.cluster.script("stop", "--kill", victim, check=False)
    if done.returncode and "no worker runs" not in done.stderr:  # it may be dead already
        assert f"no {victim} runs" in done.stderr, done.stderr
    if victim != "worker":
        time.sleep(rng.uniform(0, 3))
        live.cluster.script("start", environment=environment(live.folder))


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of a megabyte and a half, which can be full."""
    if os.geteuid() != 0:
        leave_out("needs root, to mount a disk that can be full")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1536k", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.long
def test_a_full_disk_or_a_sink_that_is_gone_delays_windows_and_spoils_none(
    broker: Broker, cluster: Cluster, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk"), running_broker() as far_away:
        releases = far_away.topic(1, FOREVER)
        sinks: list[dict[str, Any]] = [
            {"files": str(tmp_path / "disk" / "out"), "format": "jsonl"},
            {"kafka": {"servers": far_away.servers, "topic": releases}},
        ]
        with running_live(tmp_path, broker, cluster, sinks, TopicWatch(far_away, releases)) as live, live.submitted():
            live.wait_until(lambda: live.is_published(live.traffic.first_window + 1), 240, "a window with events")

            filler = tmp_path / "disk" / "filler"
            with suppress(OSError), filler.open("wb") as file:
                for _ in range(2_000):
                    file.write(bytes(1024))
            full = now_window()
            time.sleep(3 * WINDOW)
            assert name_of(full + 1) not in live.files.windows, "the disk was to be full"
            told = live.cluster.script("status").stdout
            assert "No space left on device" in told, told
            filler.unlink()
            live.wait_until(lambda: live.is_published(full + 2), 240, "windows after there is room again")

            far_away.kill()
            gone = now_window()
            time.sleep(3 * WINDOW)
            assert name_of(gone + 1) not in live.topic.windows
            far_away.start()
            live.wait_until(lambda: live.is_published(gone + 3), 240, "windows after the sink is back")
            last = gone + 3
            live.traffic.stop()
            live.files.stop()
            live.topic.stop()
            live.check(live.traffic.first_window + 1, last)


BACKLOG = 2_000_000


@pytest.mark.long
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_backlog_is_worked_off_exactly(broker: Broker, cluster: Cluster, tmp_path: Path, parallelism: int) -> None:
    """Prints how fast; what it holds true is that no row is lost or doubled at full speed."""
    events, windows = broker.topic(PARTITIONS), 20
    start = int(time.time()) // WINDOW * WINDOW - 3600
    truth: dict[str, set[int]] = {}
    rng = random.Random(1)
    per_partition: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for number in range(BACKLOG):
        user, term, at = (
            rng.randrange(100_000),
            f"t{min(int(rng.expovariate(0.15)), 40)}",
            number * windows * WINDOW / BACKLOG,
        )
        truth.setdefault(f"{int(at) // WINDOW} {term}", set()).add(user)
        line = f'{{"user": "u{user}", "term": "{term}", "at": {int((start + at) * 1000)}}}'
        per_partition[number % PARTITIONS].append(line.encode())
    for partition, lines in enumerate(per_partition):
        broker.write(events, lines, partition)
    spec = {
        "stream": "searches",
        "source": {"kafka": {"servers": broker.servers, "topic": events, "out_of_order": "1s", "idle_after": "5s"}},
        "columns": {"unit": "user", "key": "term", "time": "at", "time_unit": "ms"},
        "window": {
            "size": f"{WINDOW}s",
            "grace": "0s",
            "start": f"{datetime.fromtimestamp(start, UTC):%Y-%m-%dT%H:%M:%SZ}",
        },
        "bound": {"keys": 50},
        "gate": {"epsilon": 5000.0, "delta": 1e-9},
        "sink": {"files": str(tmp_path / "releases"), "format": "jsonl"},
        "state": str(tmp_path / "state"),
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    files = FolderWatch(tmp_path / "releases")
    files.start()
    names = [name_of(start // WINDOW + number) for number in range(windows)]
    live = Live(tmp_path, broker, cluster, tmp_path / "spec.yaml", None, files, None)  # type: ignore[arg-type]
    began = time.time()
    with live.submitted("submit", "--parallelism", str(parallelism)):
        live.wait_until(lambda: all(name in files.windows for name in names), 400, "all windows")
    files.stop()
    assert not files.troubles
    for place, users in truth.items():
        window, term = place.split()
        if len(users) > 1:
            assert files.windows[names[int(window)]].rows[term] == len(users)
    first, last = files.windows[names[0]].at, files.windows[names[-2]].at
    rate = BACKLOG * (windows - 2) / windows / (last - first)
    print(
        f"parallelism {parallelism}: {rate:,.0f} events/s once warm; {BACKLOG:,} events {last - began:.0f} s after submission"
    )


PAIRS, ROUNDS = 100_000, 10


@pytest.mark.long
def test_state_follows_what_is_distinct_and_not_events(broker: Broker, cluster: Cluster, tmp_path: Path) -> None:
    """The same pairs come round and round in one open window; a grouping would keep every round."""
    events = broker.topic(1)
    start = datetime.fromtimestamp(time.time() // 3600 * 3600, UTC)
    at = int(start.timestamp() * 1000)
    lines = [f'{{"user": "u{i // 4}", "term": "t{i % 400}", "at": {at}}}'.encode() for i in range(PAIRS)]
    spec = {
        "stream": "searches",
        "source": {"kafka": {"servers": broker.servers, "topic": events, "out_of_order": "1s", "idle_after": "120s"}},
        "columns": {"unit": "user", "key": "term", "time": "at", "time_unit": "ms"},
        "window": {"size": "24h", "grace": "0s", "start": f"{start:%Y-%m-%dT%H:%M:%SZ}"},
        "bound": {"keys": 4},
        "gate": {"epsilon": 1.0, "delta": 1e-9},
        "sink": {"files": str(tmp_path / "releases"), "format": "jsonl"},
        "state": str(tmp_path / "state"),
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    live = Live(tmp_path, broker, cluster, tmp_path / "spec.yaml", None, None, None)  # type: ignore[arg-type]

    def size_after(rounds: int) -> int:
        """Of the first checkpoint that was begun once so many rounds had been read."""
        read = {"rows_in_windows": rounds * PAIRS}
        live.wait_until(lambda: counters(live).items() >= read.items(), 300, f"{rounds} rounds to be read")
        now = 1000 * (time.time() + 2)  # for what is on its way to the stage behind
        job = job_of(live)

        def newest() -> dict[str, int]:
            found: dict[str, int] = cluster.ask(f"/jobs/{job}/checkpoints")["latest"]["completed"] or {}
            return found

        live.wait_until(lambda: newest().get("trigger_timestamp", 0) > now, 60, "a checkpoint")
        return newest()["state_size"]

    with live.submitted():
        live.wait_until(lambda: cluster.jobs("RUNNING"), 120, "the job to run")
        broker.write(events, lines, 0)
        live.wait_until(lambda: "rows_in_windows" in cluster.script("status").stdout, 180, "counters")
        once = size_after(1)
        for _ in range(ROUNDS - 1):
            broker.write(events, lines, 0)
        often = size_after(ROUNDS)
    print(f"{PAIRS:,} pairs: {once:,} bytes of state after one round, {often:,} after {ROUNDS}")
    assert once > 12 * PAIRS
    # Twice what is merged, and the first of it was not merged at all.
    assert often < 3 * once
