"""Interrupted runs: killed, out of space or stopped by hand, a run leaves whole windows only, and the next one goes on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tidegate.pipelines.publish import MANIFEST
from tidegate.pipelines.reader import ReadError, read_releases
from tidegate.pipelines.simulate import Simulation, simulate

pytestmark = pytest.mark.slow

WINDOWS = 48
PATIENCE = 120.0
Files = dict[str, bytes]


def write_spec(folder: Path, events: Path, sink: Path) -> Path:
    fields = {
        "stream": "searches",
        "source": {"files": f"{events}/events-*.parquet"},
        "columns": {"unit": "user", "key": "term", "time": "at"},
        "window": {"size": "1h", "start": "2026-01-01T00:00:00Z", "end": "2026-01-03T00:00:00Z"},
        "bound": {"keys": 3},
        "gate": {"epsilon": 1.0, "delta": 1e-5},
        "sink": {"files": str(sink)},
        "dead_letters": f"{folder}/dead",
        "state": f"{folder}/state",
    }
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


class Place:
    """A folder of its own for a run over the same events with the same secret."""

    def __init__(self, folder: Path, events: Path, secret: Path | None = None) -> None:
        self.folder, self.releases = folder, folder / "releases"
        self.spec = write_spec(folder, events, self.releases)
        if secret is not None:
            (folder / "state").mkdir(mode=0o700)
            shutil.copy(secret, folder / "state" / "secret")

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "tidegate", "run", str(self.spec), "--quiet"]

    def start(self) -> subprocess.Popen[str]:
        # Whoever runs the tests may have it ignored, as shells do for what they run in the background.
        ctrl_c = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
        return subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, env=environment(), preexec_fn=ctrl_c)

    def run(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command, capture_output=True, text=True, check=False, env=environment(), timeout=PATIENCE
        )

    def manifests(self) -> list[Path]:
        return sorted(self.releases.glob(f"*/{MANIFEST}"))


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "TIDEGATE_SECRET_FILE"}


def wait_for(started: subprocess.Popen[str], place: Place, windows: int) -> None:
    """Until so many windows are published, or the run ends."""
    until = time.monotonic() + PATIENCE
    while len(place.manifests()) < windows and started.poll() is None:
        assert time.monotonic() < until, "the run takes too long"
        time.sleep(0.001)


def files(folder: Path) -> Files:
    """Every file below, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stamps(paths: list[Path]) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def assert_published_windows_are_whole(releases: Path) -> None:
    for path in releases.glob(f"*/{MANIFEST}"):
        for named in json.loads(path.read_bytes())["files"]:
            data = (path.parent / named["name"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == named["sha256"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed")
    simulate(folder / "events", Simulation(events=20_000, units=1_000, keys=30, windows=WINDOWS))
    place = Place(folder, folder / "events")
    done = place.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert len(place.manifests()) == WINDOWS
    assert len(read_releases(str(place.releases))) > WINDOWS
    return place


@pytest.fixture
def place(tmp_path: Path, undisturbed: Place) -> Place:
    return Place(tmp_path, undisturbed.folder / "events", undisturbed.folder / "state" / "secret")


def test_a_run_that_is_killed_again_and_again_ends_as_if_it_never_was(place: Place, undisturbed: Place) -> None:
    seen: dict[Path, tuple[bytes, int]] = {}
    kills = []
    for windows in (1, 24):
        if len(seen) >= windows:  # the one before came late
            continue
        started = place.start()
        wait_for(started, place, windows)
        started.send_signal(signal.SIGKILL)
        started.communicate()
        assert_published_windows_are_whole(place.releases)
        assert stamps(list(seen)) == seen
        seen = stamps(place.manifests())
        if len(seen) < WINDOWS:
            kills.append(len(seen))
            assert started.returncode == -signal.SIGKILL
            with pytest.raises(ReadError, match="is missing"):
                read_releases(str(place.releases))
    assert kills, "every kill came too late to show anything"
    done = place.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert stamps(list(seen)) == seen
    assert files(place.releases) == files(undisturbed.releases)


def test_a_run_that_is_stopped_by_hand_says_so_and_goes_on_later(place: Place, undisturbed: Place) -> None:
    started = place.start()
    wait_for(started, place, 1)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=PATIENCE)
    assert started.returncode == 130
    assert said.strip() == (
        "tidegate: interrupted; windows that are published stay, nothing else was left visible: run again to go on"
    )
    assert_published_windows_are_whole(place.releases)
    seen = stamps(place.manifests())
    done = place.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert stamps(list(seen)) == seen
    assert files(place.releases) == files(undisturbed.releases)


# Runs in a mount namespace of its own, so that the small disk is gone when it ends, however it ends.
SMALL_DISK = """
import json, shutil, subprocess, sys
sink, out, *command = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", sink], check=True)
first = subprocess.run(command, capture_output=True, text=True)
shutil.copytree(sink, f"{out}/first")
subprocess.run(["mount", "-o", "remount,size=64m", sink], check=True)
second = subprocess.run(command, capture_output=True, text=True)
shutil.copytree(sink, f"{out}/second")
print(json.dumps([[run.returncode, run.stderr] for run in (first, second)]))
"""


@pytest.fixture
def namespace(tmp_path: Path) -> list[str]:
    """How to start a command that may mount."""
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    try:
        probe = [*own, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
        able = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        able = False
    if not able:
        reason = "a small disk cannot be mounted here: neither as root nor in a namespace of one's own"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    return own


def test_a_disk_that_fills_up_is_named_and_after_making_room_the_run_goes_on(
    place: Place, undisturbed: Place, namespace: list[str]
) -> None:
    place.releases.mkdir()
    driver = [*namespace, sys.executable, "-c", SMALL_DISK, str(place.releases), str(place.folder), *place.command]
    ended = subprocess.run(driver, capture_output=True, text=True, check=True, env=environment(), timeout=2 * PATIENCE)
    (code, said), second = json.loads(ended.stdout)
    assert code == 1
    (sentence,) = said.splitlines()
    assert sentence.startswith("tidegate: window 2026010")
    assert f"could not be written to {place.releases} (No space left on device); nothing of it is published" in sentence
    first = place.folder / "first"
    there = list(first.glob(f"*/{MANIFEST}"))
    assert 0 < len(there) < WINDOWS
    assert not (first / sentence.split()[2] / MANIFEST).exists()
    assert_published_windows_are_whole(first)
    with pytest.raises(ReadError, match="is missing"):
        read_releases(str(first))
    assert second == [0, ""]
    finished = files(place.folder / "second")
    assert finished == files(undisturbed.releases)


def test_a_file_in_place_of_the_sink_ends_the_run_with_a_sentence(place: Place) -> None:
    place.releases.write_text("in the way")
    done = place.run()
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert f"could not be written to {place.releases} (Not a directory)" in sentence
    assert place.releases.read_text() == "in the way"
