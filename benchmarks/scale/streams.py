"""Streams of any size, straight into Parquet: a row group at a time, so that memory does not grow with them.

Rows come in the order of their time. How many distinct (unit, key) pairs a stream has is counted while it is made, since
that is what a run's memory is held against.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOT = 2  # one event of so many is the hot unit's, or the hot key's
_ROWS = 1 << 19  # of a row group
_GROUPS_A_FILE = 16
_BYTES_A_ROW = 40  # on disk, and no stream here has more
_SUMMARY = "stream.json"
_VERSION = 2  # a cache of streams that were made otherwise is not used
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Stream:
    """`units` have `keys_per_unit` pairs each in every window, drawn from `keys` keys.

    Drawn `as they come`, pairs repeat by chance and few keys have most of the units, as in real streams. Drawn `evenly`,
    each pair of a window comes equally often and each key has equally many, so that their numbers are exact.
    A `hot` unit has half of the events, all over the keys; a hot key has half of the events, from all the units.
    """

    events: int
    windows: int
    units: int
    keys: int
    keys_per_unit: int
    drawn: Literal["as they come", "evenly"] = "evenly"
    hot: Literal["", "unit", "key"] = ""

    @property
    def folder(self) -> str:
        told = json.dumps([_VERSION, _ROWS, asdict(self)], sort_keys=True)
        return f"{self.events}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"

    @property
    def end(self) -> datetime:
        return START + self.windows * HOUR


@dataclass(frozen=True)
class Made:
    """A stream on disk: its distinct (window, unit, key) and (window, key), and how many units have so many keys."""

    files: str
    pairs: int
    keys: int
    crowds: tuple[tuple[int, int], ...]

    def kept(self, bound: int) -> int:
        """Pairs that are left when no unit has more than so many in a window."""
        return sum(min(size, bound) * units for size, units in self.crowds)


def make(stream: Stream, cache: Path) -> Made:
    """The stream, simulated unless it is there. Raises OSError where the disk has no room for it."""
    folder = cache / stream.folder
    summary = folder / _SUMMARY
    if not summary.exists():
        cache.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(cache).free < 2 * _BYTES_A_ROW * stream.events:
            raise OSError(f"{cache} has no room for {stream.events:,} events; set TIDEGATE_CACHE to another disk")
        draft = cache / f".{stream.folder}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        counted = _write(stream, draft)
        (draft / _SUMMARY).write_text(json.dumps({**counted, "stream": asdict(stream)}), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)  # last, so that half a stream is not taken for one
    told = json.loads(summary.read_text(encoding="utf-8"))
    for file in folder.glob("events-*"):
        with file.open("rb") as read:  # so that nobody is the first to read from the disk
            while read.read(1 << 24):
                pass
    crowds = tuple((size, units) for size, units in told["crowds"])
    return Made(str(folder / "events-*.parquet"), told["pairs"], told["keys"], crowds)


def _write(stream: Stream, folder: Path) -> dict[str, Any]:
    users, terms = _names("u", stream.units), _names("term ", stream.keys)
    pairs, keys = _Distinct(stream.keys), _Distinct(stream.keys)
    writer: Any = None
    for number, (unit, key, window, at) in enumerate(_chunks(stream)):
        instants = pa.array(at).cast(pa.timestamp("us", "UTC"))
        rows = [users.take(pa.array(unit)), terms.take(pa.array(key)), instants]
        batch = pa.record_batch(rows, names=["user", "term", "at"])
        if number % _GROUPS_A_FILE == 0:
            if writer is not None:
                writer.close()
            writer = pq.ParquetWriter(folder / f"events-{number // _GROUPS_A_FILE:05d}.parquet", batch.schema)
        writer.write_batch(batch, row_group_size=_ROWS)
        pairs.add((window * stream.units + unit) * stream.keys + key, int(window[-1]) * stream.units * stream.keys)
        keys.add(window * stream.keys + key, int(window[-1]) * stream.keys)
    writer.close()
    crowds = pairs.finish()
    keys.finish()
    return {"pairs": pairs.counted, "keys": keys.counted, "crowds": sorted(crowds.items())}


def _chunks(stream: Stream) -> Iterator[tuple[Numbers, Numbers, Numbers, Numbers]]:
    """Unit, key, window and time of a row group's rows."""
    slots = stream.units * stream.keys_per_unit
    stride = _coprime(slots)
    first, length = int(START.timestamp()) * 10**6, HOUR // timedelta(microseconds=1)
    for begin in range(0, stream.events, _ROWS):
        event = np.arange(begin, min(begin + _ROWS, stream.events))
        window = event * stream.windows // stream.events
        opens = -(-window * stream.events // stream.windows)  # the first event of the window, rounded up
        closes = -(-(window + 1) * stream.events // stream.windows)
        at = first + window * length + (event - opens) * length // np.maximum(closes - opens, 1)
        if stream.drawn == "evenly":
            slot = (event - opens) % slots * stride % slots
            # A unit's keys lie apart, and with enough units every key has equally many of them.
            apart = max(1, stream.keys // stream.keys_per_unit)
            key = (slot // stream.keys_per_unit + slot % stream.keys_per_unit * apart) % stream.keys
        else:
            slot = (_mixed(event, 1) % np.uint64(slots)).astype(np.int64)
            # Uniform in the logarithm: a key's share falls with its rank as it does in speech and searches.
            place = _mixed(window * slots + slot, 2).astype(np.float64) / 2.0**64
            key = np.minimum(stream.keys**place - 1, stream.keys - 1).astype(np.int64)
        unit = slot // stream.keys_per_unit
        hot = _mixed(event, 3) % np.uint64(HOT) == 0
        if stream.hot == "unit":
            unit = np.where(hot, 0, unit)
            key = np.where(hot, (_mixed(event, 4) % np.uint64(stream.keys)).astype(np.int64), key)
        elif stream.hot == "key":
            key = np.where(hot, 0, key)
        yield unit, key, window, at


class _Distinct:
    """Counts distinct numbers that come in rising ranges; what lies below the current range is counted and forgotten.

    Numbers that agree but for the last place, of which there are `base`, are a crowd: the keys of one unit in one window.
    """

    _FEW = 1 << 22

    def __init__(self, base: int) -> None:
        self._base, self._open = base, list[Numbers]()
        self._rows, self._compact_at = 0, self._FEW
        self.counted = 0
        self._crowds: Counter[int] = Counter()

    def add(self, numbers: Numbers, floor: int) -> None:
        distinct = _distinct(numbers)
        self._open.append(distinct)
        self._rows += len(distinct)
        # Many small windows are closed together: sorting all that is open for each of them would take longer.
        if self._rows >= self._compact_at:
            self._compact(floor)

    def finish(self) -> Counter[int]:
        """How many crowds there are of each size."""
        self._compact(np.iinfo(np.int64).max)
        return self._crowds

    def _compact(self, floor: int) -> None:
        whole = _distinct(np.concatenate(self._open))
        closed, still = np.split(whole, [int(np.searchsorted(whole, floor))])
        self.counted += len(closed)
        _, sizes = np.unique(closed // self._base, return_counts=True)
        self._crowds.update(dict(zip(*(a.tolist() for a in np.unique(sizes, return_counts=True)), strict=True)))
        self._open, self._rows, self._compact_at = [still], len(still), max(self._FEW, 2 * len(still))


def _distinct(numbers: Numbers) -> Numbers:
    ordered = np.sort(numbers)
    new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new]


def _coprime(number: int) -> int:
    """A stride that visits all of so many places, far apart, one after the other."""
    stride = max(1, int(number * 0.618))
    while np.gcd(stride, number) != 1:
        stride += 1
    return stride


def _mixed(numbers: Numbers, salt: int) -> npt.NDArray[np.uint64]:
    """Numbers as good as random, and the same each time (SplitMix64)."""
    mixed = (numbers + salt * (1 << 40)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _names(prefix: str, count: int) -> pa.Array:
    numbers = pc.utf8_lpad(pa.array(np.arange(count)).cast(pa.string()), 8, padding="0")
    return pc.binary_join_element_wise(prefix, numbers, "")
