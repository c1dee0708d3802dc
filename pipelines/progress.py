"""Progress of a run on this machine: workers append to a log, whoever watches adds it up.

A file rather than memory, since workers may be other processes. It holds totals only, lives in the private state folder and
is removed when the run ends.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
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


class Watching:
    """Shows a run's progress: a bar in a terminal, a line now and then elsewhere."""

    SECONDS = 0.2
    SECONDS_A_LINE = 10.0

    def __init__(self, log: ProgressLog, windows: int, console: Console) -> None:
        self._log, self._windows, self._console = log, windows, console
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
                totals = self._log.totals()
                progress.update(task, description=self._words(totals), completed=totals.get("windows", 0))

    def _show_lines(self) -> None:
        said = time.monotonic()
        while not self._stop.wait(self.SECONDS):
            if time.monotonic() - said >= self.SECONDS_A_LINE:
                said = time.monotonic()
                self._console.print(self._words(self._log.totals()), highlight=False)

    def _words(self, totals: dict[str, int]) -> str:
        return f"{totals.get('rows', 0):,} rows read, {totals.get('windows', 0)} of {self._windows} windows released"
