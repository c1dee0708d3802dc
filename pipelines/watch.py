"""Watching releases come: each window as it is published, and a word when one is overdue.

Which window comes next, and when it should, follows from the manifests alone: they name the range, the step and the grace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate.pipelines.publish import plain
from tidegate.pipelines.reader import Published, ReadError, list_published


@dataclass(frozen=True)
class Seen:
    """A window that is out. `after` is how long after its grace had passed it was seen, if it was seen to come."""

    window: Published
    after: timedelta | None


@dataclass(frozen=True)
class Overdue:
    """A window that should be out by now."""

    start: datetime
    since: timedelta


@dataclass(frozen=True)
class Last:
    """The range is complete: nothing more will come."""

    windows: int


def due(published: list[Published]) -> tuple[datetime, datetime] | None:
    """The first window that is not out, and when it is due; None once the range is complete."""
    newest = published[-1].manifest["range"]
    step, size = timedelta(seconds=newest["every_seconds"]), timedelta(seconds=newest["size_seconds"])
    grace = timedelta(seconds=newest.get("grace_seconds", 0))
    there = {item.start for item in published}
    start = datetime.fromisoformat(newest["start"])
    while start in there:
        start += step
    if newest["end"] is not None and start + size > datetime.fromisoformat(newest["end"]):
        return None
    return start, start + size + grace


def largest(window: Published, count: int) -> list[dict[str, Any]]:
    """The rows with the largest counts of the gate, of those that have one."""
    if not count:
        return []
    rows = [plain(row) for table in window.tables() for row in table.to_pylist()]
    counts = [
        row for row in rows if row["mechanism"] == window.manifest["gate"]["mechanism"] and row["value"] is not None
    ]
    return sorted(counts, key=lambda row: -row["value"])[:count]


def watch(
    path: str,
    security: str | None,
    patience: timedelta,
    every: float = 1.0,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Iterator[Seen | Overdue | Last]:
    """What happens, as it does: first the windows that are out already, then those that come. Ends with the last one."""
    known: set[tuple[datetime, datetime]] = set()
    warned: datetime | None = None
    first = True
    while True:
        published = _published(path, security)
        for item in published:
            if (item.start, item.end) not in known:
                known.add((item.start, item.end))
                grace = timedelta(seconds=item.manifest["range"].get("grace_seconds", 0))
                yield Seen(item, None if first else now() - item.end - grace)
        first = first and not published
        coming = due(published) if published else None
        if published and coming is None:
            yield Last(len(published))
            return
        if coming is not None and now() > coming[1] + patience and warned != coming[0]:
            warned = coming[0]
            yield Overdue(coming[0], now() - coming[1])
        time.sleep(every)


def _published(path: str, security: str | None) -> list[Published]:
    """What is out; nothing at all is what a watcher expects to see at first."""
    try:
        return list_published(path, security)
    except ReadError as problem:
        if "holds no releases" in str(problem):
            return []
        raise
