"""decode: batches of raw rows become contributions; rows that cannot be read become dead letters with a reason.

A batch is judged a column at a time, and the distinct values of a column rather than its rows: text is checked and
identified once for each value in the batch. Only the rows that fail are ever looked at one by one.

Units leave this stage as keyed identifiers; within a bundle contributions are merged and bounded before they travel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from tidegate.mechanisms.keyed import KeyedHash, derive_key
from tidegate.mechanisms.mechanism import Bounds, admitted_by
from tidegate.transforms.bounding import Bounder, Gathering
from tidegate.transforms.columns import ROW, Fault, TextColumn, join_keys, read_number, read_text, read_time
from tidegate.transforms.contributions import Contributions, Tally, distinct_units
from tidegate.transforms.prepare import Preparer
from tidegate.transforms.problems import withheld
from tidegate.transforms.secret import Secret
from tidegate.transforms.terms import Terms
from tidegate.transforms.windows import Windows

DEAD = "dead"
SOURCE, FIRST_ROW = b"tidegate.source", b"tidegate.first_row"
"""Schema metadata of a raw batch: where its rows came from."""

_NOBODY = np.zeros((1, 2), np.uint64)
_ROWS_A_BATCH = 1 << 20
_ROWS_HELD = 1 << 23
"""Some 200 MB. What is sent is forgotten, and sent again with the next event of the same unit and key."""

_ROWS_AN_ELEMENT = 1 << 18
_ROWS_AN_ELEMENT_HERE = 1 << 20
"""Where there is one shard, elements seldom leave the process, and each is merged with the others once more."""


@dataclass(frozen=True)
class DeadLetter:
    """A row that cannot be counted. For the operator's eyes only."""

    reason: str
    source: str
    row: int | None
    raw: str

    def __repr__(self) -> str:
        return f"DeadLetter({self.reason}, withheld)"


class Arrivals(NamedTuple):
    """How many events came for a window, and the time of the earliest."""

    events: int
    earliest: int

    def and_also(self, other: Arrivals) -> Arrivals:
        return Arrivals(self.events + other.events, min(self.earliest, other.earliest))


@dataclass(frozen=True)
class Decoded:
    """What became of a batch."""

    contributions: Contributions
    windows: dict[int, Arrivals] = field(repr=False)
    dead: list[DeadLetter]
    outside: int
    left_out: int


class Decoder:
    """Reads raw batches under given terms."""

    def __init__(self, terms: Terms, key: bytes) -> None:
        self._columns = terms.columns
        self._windows = terms.window.windows
        self._per_key = terms.bound.per_key
        self._slots = terms.slots
        self._gate = terms.gate_mechanism
        self._prepare = Preparer(terms.prepare) if terms.prepare.steps else None
        self._identify = KeyedHash(derive_key(key, "units"))

    def __call__(self, batch: pa.RecordBatch) -> Decoded:
        dead: list[DeadLetter] = []
        origin: npt.NDArray[np.int64] | None = None
        raw, left_out = batch, 0
        if self._prepare is not None:
            prepared = self._prepare(batch)
            dead += _letters(raw, prepared.failed, np.full(len(prepared.failed), Fault.not_prepared, np.uint8))
            left_out = len(batch) - len(prepared.rows) - len(prepared.failed)
            batch, origin = prepared.batch, prepared.rows
        unit = self._units(batch)
        parts = [self._text(batch, name, Fault.missing_key, self._columns.max_key_bytes) for name in self._columns.key]
        key = parts[0] if len(parts) == 1 else join_keys(parts, self._columns.max_key_bytes)
        times, time_fault = self._times(batch)
        values, value_fault = self._values(batch)
        fault = key.fault if unit is None else unit.fault
        for other in (key.fault, time_fault, value_fault):
            if other.any():
                fault = np.where(fault > 0, fault, other)
        if unit is None:
            units, unit_codes = _NOBODY, np.zeros(len(batch), np.int64)
        else:
            units, unit_codes = distinct_units(self._identify(unit.values), unit.codes)
        key_codes = key.codes
        admitted = admitted_by(self._gate, key.values)
        good = fault == 0
        if fault.any():
            bad = np.flatnonzero(fault)
            dead += _letters(raw, bad if origin is None else origin[bad], fault[bad])
        if admitted is not None and not admitted.all():
            known = good & admitted[key_codes]
            left_out += int(good.sum() - known.sum())
            good = known
        if not good.all():
            rows = np.flatnonzero(good)
            unit_codes, key_codes, times = unit_codes[rows], key_codes[rows], times[rows]
            values = [value[rows] for value in values]
        rows, window = self._windows.assign(times)
        overlapping = self._windows.size > self._windows.every
        outside = len(times) - len(np.unique(rows) if overlapping else rows)
        if outside or overlapping:  # else every row is in one window, and they stand as they stood
            unit_codes, key_codes, times = unit_codes[rows], key_codes[rows], times[rows]
            values = [value[rows] for value in values]
        windows = _arrivals(window, times)
        operations = [slot.operation for slot in self._slots]
        if unit is None:
            contributions = Contributions(
                window, unit_codes, key_codes, None, units, key.values, tuple(values), tuple(operations)
            )
        else:
            contributions = Contributions.gather(
                window, unit_codes, key_codes, None, units, key.values, values, operations
            ).capped(self._per_key)
        return Decoded(contributions, windows, dead, outside, left_out)

    def _units(self, batch: pa.RecordBatch) -> TextColumn | None:
        """None where every row is a unit of its own: nobody asks which."""
        if self._columns.unit is None:
            return None
        return self._text(
            batch, self._columns.unit, Fault.missing_unit, limit=1 << 16, empty=Fault.empty_unit, distinct=False
        )

    def _times(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        if self._columns.time not in batch.schema.names:
            return np.zeros(len(batch), np.int64), np.full(len(batch), Fault.missing_column, np.uint8)
        return read_time(batch.column(self._columns.time), self._columns.time_unit)

    def _values(self, batch: pa.RecordBatch) -> tuple[list[npt.NDArray[np.int64]], npt.NDArray[np.uint8]]:
        """The numbers that the slots gather, in steps; a row needs all of them."""
        fault = np.zeros(len(batch), np.uint8)
        numbers: dict[str, npt.NDArray[np.float64]] = {"": np.ones(len(batch))}
        for name in {slot.column for slot in self._slots} - {""}:
            if name in batch.schema.names:
                numbers[name], wrong = read_number(batch.column(name))
            else:
                numbers[name] = np.zeros(len(batch))
                wrong = np.full(len(batch), Fault.missing_column, np.uint8)
            fault = np.where(fault > 0, fault, wrong)
        return [slot.read(numbers[slot.column]) for slot in self._slots], fault

    def _text(
        self,
        batch: pa.RecordBatch,
        name: str,
        missing: Fault,
        limit: int,
        empty: Fault = Fault.none,
        *,
        distinct: bool = True,
    ) -> TextColumn:
        if name not in batch.schema.names:
            return TextColumn.absent(len(batch))
        return read_text(batch.column(name), missing, limit, empty, self._columns.missing, distinct=distinct)


class Decode(beam.PTransform[Any, Any]):
    """Raw batches → {None: (window and shard, Contributions) by window carrier timestamp, "dead": DeadLetter}."""

    def __init__(self, terms: Terms, secret: Secret, shards: int) -> None:
        super().__init__()
        self._terms, self._secret, self._shards = terms, secret, shards

    def expand(self, batches: Any) -> Any:
        return batches | "Decode" >> beam.ParDo(DecodeFn(self._terms, self._secret, self._shards)).with_output_types(
            tuple[int, Contributions]
        ).with_outputs(DEAD, main="contributions")


class DecodeFn(beam.DoFn):
    """Gathers a bundle's contributions and sends them on by window and unit."""

    def __init__(self, terms: Terms, secret: Secret, shards: int) -> None:
        self._terms, self._secret, self._shards = terms, secret, shards
        self._most = _ROWS_AN_ELEMENT if shards > 1 else _ROWS_AN_ELEMENT_HERE
        self._read = Metrics.counter("tidegate", "rows_read")
        self._outside = Metrics.counter("tidegate", "rows_outside_range")
        self._left_out = Metrics.counter("tidegate", "rows_left_out")
        self._sent = Metrics.counter("tidegate", "rows_in_windows")

    @withheld("decode")
    def setup(self) -> None:
        key = stage_key(self._terms, self._secret)
        self._windows, self._under = self._terms.window.windows, begun_under(self._terms, self._shards)
        self._decoder = Decoder(self._terms, key)
        self._bounder = make_bounder(self._terms, key)

    def start_bundle(self) -> None:
        self._gathering = Gathering(self._bounder)
        self._arrivals: dict[int, Arrivals] = {}

    @withheld("decode")
    def process(self, batch: pa.RecordBatch) -> Iterator[Any]:
        self._read.inc(len(batch))
        for begin in range(0, len(batch), _ROWS_A_BATCH):
            decoded = self._decoder(_slice(batch, begin))
            self._outside.inc(decoded.outside)
            if decoded.left_out:
                self._left_out.inc(decoded.left_out)
            for letter in decoded.dead:
                Metrics.counter("tidegate", f"dead_{letter.reason}").inc()
                yield beam.pvalue.TaggedOutput(DEAD, letter)
            if len(decoded.contributions):
                for window, arrivals in decoded.windows.items():
                    self._sent.inc(arrivals.events)
                    before = self._arrivals.get(window)
                    self._arrivals[window] = arrivals if before is None else before.and_also(arrivals)
                yield from self._gather(decoded.contributions)

    def _gather(self, contributions: Contributions) -> Iterator[Any]:
        rested = self._gathering.add(contributions)
        if rested is not None:
            yield from self._send(rested)
        if len(self._gathering) >= _ROWS_HELD:  # which is when it has just been merged, if no row came twice
            yield from self._flush()

    @withheld("decode")
    def finish_bundle(self) -> Iterator[Any]:
        yield from self._flush()

    def _flush(self) -> Iterator[Any]:
        whole = self._gathering.drain()
        if whole is not None:
            yield from self._send(whole)

    def _send(self, whole: Contributions) -> Iterator[Any]:
        untold = self._arrivals
        earliest = {window: arrivals.earliest for window, arrivals in untold.items()}
        for window, shard, rows in whole.split(self._shards):
            timestamp = self._windows.carrier_timestamp(window, earliest[window])
            for begin in range(0, len(rows), self._most):
                part = rows if len(rows) <= self._most else rows.take(slice(begin, begin + self._most))
                # All elements of a window are late or none is, so that one of them can speak for all.
                told = untold.pop(window, None)
                part = replace(part, events=told.events if told else 0, terms=self._under)
                # By window too: what is grouped under one key is gone through for every window that closes.
                yield WindowedValue((window * self._shards + shard, part), timestamp, (GlobalWindow(),))


def stage_key(terms: Terms, secret: Secret) -> bytes:
    """What every key, identifier and draw of these terms derives from; a changed guarantee changes them all."""
    return derive_key(secret.load(), "tidegate", terms.stream, terms.digest)


def begun_under(terms: Terms, shards: int) -> str:
    """What all contributions to a window must have in common, or a unit could be bounded in two places.

    Under other terms it has another identifier, and with other shards the same one is sent elsewhere.
    """
    return f"{terms.digest}/{shards}"


def make_bounder(terms: Terms, key: bytes) -> Bounder:
    windows: Windows = terms.window.windows
    # In events, where the mechanisms' bounds are in steps of the measure.
    bounds = Bounds(terms.bounds.keys, terms.bound.per_key, terms.prepare.truncate)
    return Bounder(derive_key(key, "bound"), bounds, windows.start // windows.every)


def make_tally(terms: Terms) -> Tally:
    return Tally(terms.slots, terms.gate.measure.value, terms.needs)


def _arrivals(window: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> dict[int, Arrivals]:
    """What came for each window that has any event."""
    if not len(window):
        return {}
    first = int(window.min())
    span = int(window.max()) - first + 1
    if span == 1:
        return {first: Arrivals(len(window), int(times.min()))}
    if span > 4 * len(window) + 1024:  # a few events far apart: no room for all windows between them
        there, place = np.unique(window, return_inverse=True)
    else:
        there, place = np.arange(first, first + span), window - first
    earliest = np.full(len(there), np.iinfo(np.int64).max)
    np.minimum.at(earliest, place, times)
    events = np.bincount(place, minlength=len(there))
    return {
        int(number): Arrivals(int(count), int(time))
        for number, count, time in zip(there, events, earliest, strict=True)
        if count
    }


def _slice(batch: pa.RecordBatch, begin: int) -> pa.RecordBatch:
    if len(batch) <= _ROWS_A_BATCH:
        return batch
    metadata = dict(batch.schema.metadata or {})
    if FIRST_ROW in metadata:
        metadata[FIRST_ROW] = str(int(metadata[FIRST_ROW]) + begin).encode()
    return batch.slice(begin, _ROWS_A_BATCH).replace_schema_metadata(metadata)


def _letters(batch: pa.RecordBatch, bad: npt.NDArray[np.int64], fault: npt.NDArray[np.uint8]) -> list[DeadLetter]:
    """The rows that fail, one by one: this is the slow path, and only they take it."""
    if not len(bad):
        return []
    metadata = batch.schema.metadata or {}
    source = metadata.get(SOURCE, b"").decode(errors="replace")
    first = int(metadata.get(FIRST_ROW, b"0"))
    columns = {name: column.take(pa.array(bad)) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    numbers = columns.pop(ROW, pa.array(bad + first))
    letters = []
    for place in range(len(bad)):
        raw = json.dumps({name: _show(column[place]) for name, column in columns.items()}, ensure_ascii=False)
        letters.append(DeadLetter(Fault(fault[place]).name, source, numbers[place].as_py(), raw))
    return letters


def _show(value: pa.Scalar) -> Any:
    try:
        plain = value.as_py()
    except Exception:  # Python has no room for it: no UTF-8, no such year, an unknown timezone
        plain = _show_otherwise(value)
    if isinstance(plain, bytes):
        return plain.decode("utf-8", errors="backslashreplace")
    return plain if isinstance(plain, (str, int, float, bool, type(None))) else str(plain)


def _show_otherwise(value: pa.Scalar) -> Any:
    for kind in (pa.large_binary(), pa.int64(), pa.int32()):
        try:
            return value.cast(kind).as_py()
        except pa.ArrowException:
            continue
    return f"a {value.type} that cannot be shown"
