"""A run may die at any moment, or find the disk full: nothing half-published is readable, and the next run completes it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.pipelines.reader import list_published, read_releases
from tidegate.pipelines.simulate import Simulation, simulate

pytestmark = pytest.mark.slow
WINDOWS = 48
SPEC = """
stream: searches
source: {{files: "{home}/stream/events-*.parquet"}}
columns: {{unit: user, key: term, time: at}}
window: {{size: 1h, start: 2026-01-01T00:00:00Z, end: 2026-01-03T00:00:00Z}}
bound: {{keys: 3}}
gate: {{epsilon: 2.0, delta: 1e-6}}
sink: {{files: "{sink}"}}
dead_letters: "{home}/dead"
state: "{home}/state"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream, and its undisturbed releases."""
    folder = tmp_path_factory.mktemp("killed")
    simulate(folder / "stream", Simulation(events=60_000, units=3_000, keys=60, windows=WINDOWS))
    done = finish(start(folder, folder / "undisturbed"))
    assert done.returncode == 0, done.stderr
    return folder


def start(home: Path, sink: Path) -> subprocess.Popen[str]:
    spec = home / f"{sink.name}.yaml"
    spec.write_text(SPEC.format(home=home, sink=sink))
    environment = {name: value for name, value in os.environ.items() if name != "TIDEGATE_SECRET_FILE"}
    return subprocess.Popen(
        [sys.executable, "-m", "tidegate", "run", str(spec)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finish(running: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, err = running.communicate(timeout=300)
    return subprocess.CompletedProcess([], running.returncode, out, err)


def wait_for_windows(sink: Path, number: int, running: subprocess.Popen[str]) -> None:
    while len(list(sink.glob("*/manifest.json"))) < number and running.poll() is None:
        time.sleep(0.002)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_happened(home: Path) -> None:
    sink = home / "killed-often"
    for number in (1, 7, 20, 33):
        running = start(home, sink)
        wait_for_windows(sink, number, running)
        running.kill()
        running.communicate()
        there = {str(item): (item.read_bytes(), item.stat().st_mtime_ns) for item in sink.glob("*/manifest.json")}
        # What is visible is whole: every manifest's files are there and have the content it says.
        if there:
            assert len(read_releases(str(sink), allow_gaps=True)) >= 0
    published = list_published(str(sink))
    done = finish(start(home, sink))
    assert done.returncode == 0, done.stderr
    assert files(sink) == files(home / "undisturbed")
    for path, (content, changed) in there.items():
        assert (Path(path).read_bytes(), Path(path).stat().st_mtime_ns) == (content, changed)
    assert len(published) <= WINDOWS == len(list_published(str(sink)))


def test_an_interrupted_run_says_so_and_can_be_run_again(home: Path) -> None:
    sink = home / "interrupted"
    running = start(home, sink)
    wait_for_windows(sink, 3, running)
    running.send_signal(signal.SIGINT)
    done = finish(running)
    assert done.returncode == 130, done.stderr
    assert "interrupted; windows that are published stay" in done.stderr
    assert "Traceback" not in done.stderr
    assert finish(start(home, sink)).returncode == 0
    assert files(sink) == files(home / "undisturbed")


def test_a_place_that_cannot_be_written_is_said_in_a_sentence(home: Path) -> None:
    sink = home / "a-file"
    sink.write_text("in the way")
    done = finish(start(home, sink))
    assert done.returncode == 1
    assert "could not be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert sink.read_text() == "in the way"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        assert not os.environ.get("CI"), "a small file system is needed to test a full disk"
        pytest.skip("no right to mount a small file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="no mount on this machine")
def test_a_full_disk_is_said_in_a_sentence_and_costs_nothing(home: Path, small_disk: Path) -> None:
    sink = small_disk / "releases"
    done = finish(start(home, sink))
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "nothing of it is published" in done.stderr
    some = list_published(str(sink))
    assert 0 < len(some) < WINDOWS
    read_releases(str(sink), allow_gaps=True)  # all that is visible is whole
    subprocess.run(["mount", "-o", "remount,size=10m", str(small_disk)], check=True)
    assert finish(start(home, sink)).returncode == 0
    assert files(sink) == files(home / "undisturbed")
