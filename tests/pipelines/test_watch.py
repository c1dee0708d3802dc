"""Watching: windows as they come, a word when one is overdue, an end when the range is complete."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.test_cli import tidegate
from tests.transforms.running import terms
from tidegate.pipelines.publish import publish
from tidegate.pipelines.reader import list_published, read_releases
from tidegate.pipelines.watch import Last, Overdue, Seen, due, watch
from tidegate.transforms.release import ROW_SCHEMA, Release
from tidegate.transforms.seal import manifest
from tidegate.transforms.terms import make_terms

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def put(folder: Path, window: int, **changes: Any) -> None:
    made = make_terms(**terms(window={"grace": "10m", **changes}))
    empty = ROW_SCHEMA.empty_table()
    publish(Release(window, made.window.windows.folder(window), empty, manifest(made, window, 0)), str(folder), "avro")


class Clock:
    """A clock that jumps to the next of the given times with every look at the folder."""

    def __init__(self, folder: Path, happens: list[tuple[datetime, int | None]], **changes: Any) -> None:
        self._folder, self._happens, self._changes = folder, happens, changes
        self.time = START

    def sleep(self, _: float) -> None:
        if not self._happens:
            raise KeyboardInterrupt
        self.time, window = self._happens.pop(0)
        if window is not None:
            put(self._folder, window, **self._changes)


def watched(clock: Clock, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Seen | Overdue | Last]:
    monkeypatch.setattr("tidegate.pipelines.watch.time.sleep", clock.sleep)
    found: list[Seen | Overdue | Last] = []
    with suppress(KeyboardInterrupt):
        for event in watch(str(folder), None, timedelta(minutes=5), now=lambda: clock.time):
            found.append(event)  # noqa: PERF402  (what came before the interruption counts)
    return found


def test_windows_are_told_as_they_come_and_the_last_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happens = [(START + HOUR + timedelta(minutes=11), 0), (START + 2 * HOUR + timedelta(minutes=12), 1)]
    found = watched(Clock(tmp_path, list(happens)), tmp_path, monkeypatch)
    assert [type(event) for event in found] == [Seen, Seen, Last]
    ages = [event.after for event in found if isinstance(event, Seen)]
    assert ages == [None, timedelta(minutes=2)]  # of the first nobody saw when it came
    assert list_published(str(tmp_path))[0].manifest["range"]["grace_seconds"] == 600


def test_a_window_is_overdue_once_patience_has_run_out_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, 0, end=None)
    due_at = START + 2 * HOUR + timedelta(minutes=10)
    quiet: list[tuple[datetime, int | None]] = [
        (due_at, None),
        (due_at + timedelta(minutes=4), None),
        (due_at + timedelta(minutes=6), None),
        (due_at + timedelta(minutes=9), None),
        (due_at + timedelta(minutes=10), 1),
        (due_at + timedelta(minutes=11), None),
    ]
    found = watched(Clock(tmp_path, quiet, end=None), tmp_path, monkeypatch)
    assert [type(event) for event in found] == [Seen, Overdue, Seen]
    late = next(event for event in found if isinstance(event, Overdue))
    assert (late.start, late.since) == (START + HOUR, timedelta(minutes=6))


def test_a_gap_is_due_before_what_came_after_it(tmp_path: Path) -> None:
    for window in (0, 2):
        put(tmp_path, window, end=None)
    assert due(list_published(str(tmp_path))) == (START + HOUR, START + 2 * HOUR + timedelta(minutes=10))


def test_an_endless_stream_is_read_up_to_its_last_window_and_not_over_a_gap(tmp_path: Path) -> None:
    for window in (0, 1):
        put(tmp_path, window, end=None)
    assert len(read_releases(str(tmp_path))) == 0
    put(tmp_path, 3, end=None)
    with pytest.raises(Exception, match="the window that begins at 2026-01-01T02:00:00Z is missing"):
        read_releases(str(tmp_path))


def test_monitoring_gets_an_exit_code(tmp_path: Path) -> None:
    put(tmp_path, 0, end=None)
    answer = tidegate("watch", tmp_path, "--once")
    assert answer.code == 1
    assert "the window that begins at 2026-01-01T01:00:00Z is overdue since" in answer.err
    put(tmp_path / "done", 0)
    put(tmp_path / "done", 1)
    assert tidegate("watch", tmp_path / "done", "--once").text == "no window is overdue"
    assert tidegate("watch", tmp_path / "done").text.endswith("all 2 windows are out")
