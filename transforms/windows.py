"""Which windows exist, which ones an event falls into, and how they travel through Beam.

Windows are numbered from the start of the range. In Beam each of them is *carried* by a fixed window that is as long as the
step between windows and ends when ours may close: at its end plus the grace. An event's timestamp is moved forward to lie
in that carrier. So sliding windows and grace need nothing from an engine but fixed windows with the default trigger, and
an event is late for our window exactly when Beam finds it late for the carrier.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import apache_beam as beam
import numpy as np
import numpy.typing as npt
from apache_beam.transforms.window import BoundedWindow, FixedWindows
from apache_beam.utils.timestamp import Duration, Timestamp

from tidegate.transforms.problems import SafeError

MICROS = 1_000_000
MOST_WINDOWS = 2**31 - 1
"""Windows are numbered in 32 bits where they travel: 68 years of seconds."""

Micros = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """`count` windows of `size`, one every `every`, from `start` on; they close `grace` after their end. Microseconds.

    Endless ones go on for as long as the clock does; their count is only what numbers can hold.
    """

    start: int
    count: int
    size: int
    every: int
    grace: int
    endless: bool = False

    @staticmethod
    def between(start: datetime, end: datetime | None, size: int, every: int, grace: int) -> Windows:
        first, sizes = _micros(start), (size * MICROS, every * MICROS, grace * MICROS)
        if end is None:
            return Windows(first, MOST_WINDOWS, *sizes, endless=True)
        count = (_micros(end) - first - size * MICROS) // (every * MICROS) + 1
        return Windows(first, count, *sizes)

    @property
    def end(self) -> datetime | None:
        """Where the last window ends, if there is a last one."""
        return None if self.endless else self.bounds(self.count - 1)[1]

    def bounds(self, index: int) -> tuple[datetime, datetime]:
        begin = self.start + index * self.every
        return _instant(begin), _instant(begin + self.size)

    def folder(self, index: int) -> str:
        """A window's name where colons are not welcome."""
        begin, end = self.bounds(index)
        return f"{begin:%Y%m%dT%H%M%SZ}-{end:%Y%m%dT%H%M%SZ}"

    def assign(self, times: Micros) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(row, window) for every window of the range that each event falls into."""
        if len(times) and self.size == self.every:
            first, last = ((int(time) - self.start) // self.every for time in (times.min(), times.max()))
            if first == last and 0 <= first < self.count:  # as in most batches of a stream
                return np.arange(len(times)), np.full(len(times), first, np.int64)
        newest = np.floor_divide(times - self.start, self.every)
        rows, windows = [], []
        for back in range(self.size // self.every):
            window = newest - back
            inside = np.flatnonzero((window >= 0) & (window < self.count))
            rows.append(inside)
            windows.append(window[inside])
        return np.concatenate(rows), np.concatenate(windows)

    def carrier_timestamp(self, index: int, earliest: int) -> Timestamp:
        """Where in its carrier an element of window `index` stands whose earliest event is at `earliest`."""
        end = self.start + index * self.every + self.size
        return Timestamp(micros=max(earliest, end - self.every) + self.grace)

    def carried(self, carrier: BoundedWindow) -> int:
        """The number of the window that a carrier stands for."""
        number, beside = divmod(int(carrier.end.micros - self.grace - self.size - self.start), self.every)
        if beside:
            # What a stream kept from before it was stopped is taken up again under a spec that cuts time otherwise.
            raise SafeError(
                "windows that are still open were begun under another window.size, every, start or grace; resume with the "
                "spec as it was, or begin a new stream with a sink of its own"
            )
        return number

    def into_carriers(self) -> beam.WindowInto:
        """Fixed windows, one firing, nothing late: whatever the caller's pipeline had is replaced."""
        offset = (self.start + self.size + self.grace) % self.every
        return beam.WindowInto(
            FixedWindows(Duration(micros=self.every), offset=Timestamp(micros=offset)),
            trigger=beam.transforms.trigger.DefaultTrigger(),
            accumulation_mode=beam.transforms.trigger.AccumulationMode.DISCARDING,
            allowed_lateness=0,
        )


def _micros(instant: datetime) -> int:
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _instant(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
