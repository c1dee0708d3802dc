"""Progress of a run on this machine: workers append to a log, whoever watches adds it up.

A file rather than memory, since workers may be other processes. It holds totals only, lives in the private state folder and
is removed when the run ends.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import apache_beam as beam
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@dataclass(frozen=True)
class ProgressLog:
    """Where progress is noted."""

    path: str

    def note(self, what: str, amount: int) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{what} {amount}\n".encode())  # a short append is never torn
        finally:
            os.close(descriptor)

    def totals(self) -> dict[str, int]:
        found: dict[str, int] = {}
        try:
            lines = Path(self.path).read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            return found
        for line in lines:
            what, amount = line.split()
            found[what] = found.get(what, 0) + int(amount)
        return found


class Counting(beam.PTransform[Any, Any]):
    """Lets elements through and notes how many, or how much they hold."""

    def __init__(self, log: ProgressLog, what: str, size: Callable[[Any], int] | None = None) -> None:
        super().__init__()
        self._log, self._what, self._size = log, what, size

    def expand(self, elements: Any) -> Any:
        counted = elements | beam.ParDo(CountingFn(self._log, self._what, self._size))
        counted.element_type = elements.element_type
        return counted


class CountingFn(beam.DoFn):
    """Notes an element."""

    def __init__(self, log: ProgressLog, what: str, size: Callable[[Any], int] | None) -> None:
        self._log, self._what, self._size = log, what, size

    def process(self, element: Any) -> Iterator[Any]:
        self._log.note(self._what, self._size(element) if self._size else 1)
        yield element


class Pace:
    """What a run has done, how fast, and how long the rest takes at the speed of the last few seconds."""

    SECONDS = 10.0

    def __init__(self, windows: int) -> None:
        self._windows = windows
        self._seen: deque[tuple[float, Mapping[str, int]]] = deque()

    def see(self, now: float, totals: Mapping[str, int]) -> None:
        self._seen.append((now, totals))
        while len(self._seen) > 2 and self._seen[1][0] <= now - self.SECONDS:
            self._seen.popleft()

    def rate(self, what: str) -> float:
        """How many a second; zero where nothing can be said."""
        if len(self._seen) < 2:
            return 0.0
        (began, before), (now, after) = self._seen[0], self._seen[-1]
        return (after.get(what, 0) - before.get(what, 0)) / (now - began) if now > began else 0.0

    def left(self) -> float | None:
        """Seconds until what is under way is done: reading, and after it releasing. None where nobody can tell."""
        totals = self._seen[-1][1] if self._seen else {}
        done, pace = totals.get("windows", 0), self.rate("windows")
        if done:
            return (self._windows - done) / pace if pace else None
        to_read, pace = totals.get("expected", 0) - totals.get("rows", 0), self.rate("rows")
        return to_read / pace if to_read > 0 and pace else None

    def words(self) -> str:
        totals = self._seen[-1][1] if self._seen else {}
        rows, expected, windows = (totals.get(what, 0) for what in ("rows", "expected", "windows"))
        told = f"{rows:,} rows read"
        if not windows:
            if expected > rows:
                told += f" of about {expected:,}"
            if pace := self.rate("rows"):
                told += f", {pace:,.0f} a second"
        told += f", {windows:,} of {self._windows:,} windows released"
        left = self.left()
        return told if left is None else f"{told}, {_duration(left)} left" + ("" if windows else " to read")


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


class Watching:
    """Shows a run's progress: a bar in a terminal, a line now and then elsewhere."""

    SECONDS = 0.2
    SECONDS_A_LINE = 10.0

    def __init__(self, log: ProgressLog, windows: int, console: Console) -> None:
        self._log, self._windows, self._console, self._pace = log, windows, console, Pace(windows)
        self._stop = threading.Event()

    def __enter__(self) -> Watching:
        Path(self._log.path).unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        Path(self._log.path).unlink(missing_ok=True)

    def _watch(self) -> None:
        if self._console.is_terminal:
            self._show_bar()
        else:
            self._show_lines()

    def _show_bar(self) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task("starting", total=self._windows)
            while not self._stop.wait(self.SECONDS):
                totals = self._look()
                # Rows while they are read, then windows: whatever is under way fills the bar.
                reading = "expected" in totals and "windows" not in totals
                total, done = ("expected", "rows") if reading else ("", "windows")
                whole = totals.get(total, self._windows)
                progress.update(task, description=self._pace.words(), completed=totals.get(done, 0), total=whole)

    def _show_lines(self) -> None:
        said = time.monotonic()
        while not self._stop.wait(self.SECONDS):
            self._look()
            if time.monotonic() - said >= self.SECONDS_A_LINE:
                said = time.monotonic()
                self._console.print(self._pace.words(), highlight=False)

    def _look(self) -> dict[str, int]:
        totals = self._log.totals()
        self._pace.see(time.monotonic(), totals)
        return totals
