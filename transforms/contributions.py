"""Who touched which key, in columns: the form events take from decoding until they are counted.

A row says that a unit touched a key in a window some number of times. Units are keyed identifiers, never names. Both units
and keys are dictionary-encoded, so the row columns are small integers; rows are sorted and distinct. Merging and bounding
are then a sort of one packed 64-bit column, and what travels between workers is a few bytes a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.table import ExactTable, concat_texts, make_spread, sum_by
from tidegate.mechanisms.values import Operation, Slot, Spread, Statistic, Value

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Contributions:
    """Distinct (window, unit, key) rows, sorted by the three codes. Without counts, every row counts 1.

    `values` holds, for each slot that the terms gather, one number a row; `operations` says how two of them become one.
    What travels also says how many events stand behind it, for the operator's counters, and under which terms it was made.
    """

    window: Codes
    unit: Codes
    key: Codes
    count: Codes | None
    units: Ids
    keys: pa.Array
    values: tuple[Codes, ...] = ()
    operations: tuple[Operation, ...] = ()
    events: int = 0
    terms: str = ""

    def __len__(self) -> int:
        return len(self.window)

    @property
    def begun(self) -> tuple[str, int]:
        """Under what and for which window they were sent; what travels has rows of one window."""
        return self.terms, int(self.window[0])

    def __repr__(self) -> str:
        return "Contributions(withheld)"

    @staticmethod
    def gather(
        window: Codes,
        unit: Codes,
        key: Codes,
        count: Codes | None,
        units: Ids,
        keys: pa.Array,
        values: Sequence[Codes] = (),
        operations: Sequence[Operation] = (),
    ) -> Contributions:
        """Rows in any order, repeated or not; without counts each row stands for one event."""
        extent = _Extent(len(window), int(window.max(initial=0)), len(units), len(keys))
        groups = _group([(window, unit, key)], extent, in_order=count is not None or bool(values))
        return groups.contributions(count, units, keys, values, operations)

    @staticmethod
    def merge(parts: Sequence[Contributions]) -> Contributions:
        """All rows together, counts of equal rows summed. Order does not matter."""
        if len(parts) == 1:
            return parts[0]
        units, unit_indices = _distinct(np.concatenate([part.units for part in parts]))
        keys = concat_texts([part.keys for part in parts]).dictionary_encode()
        new_units = np.split(unit_indices, np.cumsum([len(part.units) for part in parts[:-1]]))
        new_keys = np.split(keys.indices.to_numpy(), np.cumsum([len(part.keys) for part in parts[:-1]]))
        # One part after the other: its codes fit the processor's cache, and not all rows are there once more.
        rows = (
            (part.window, new_unit[part.unit], new_key[part.key])
            for part, new_unit, new_key in zip(parts, new_units, new_keys, strict=True)
        )
        last_window = max(int(part.window.max(initial=0)) for part in parts)
        extent = _Extent(sum(map(len, parts)), last_window, len(units), len(keys.dictionary))
        count = _concat_counts(parts)
        groups = _group(rows, extent, in_order=count is not None or bool(parts[0].values))
        values = [np.concatenate(values) for values in zip(*(part.values for part in parts), strict=True)]
        return groups.contributions(count, units, keys.dictionary, values, parts[0].operations)

    def capped(self, per_key: int) -> Contributions:
        """No row counts more than `per_key`. Sums of capped counts, capped again, are what capping once would give."""
        capped = None if self.count is None or per_key == 1 else np.minimum(self.count, per_key)
        return replace(self, count=capped)

    def only(self, keep: npt.NDArray[np.bool_] | Codes) -> Contributions:
        """Some rows, in order, with the same dictionaries."""
        return replace(
            self,
            window=self.window[keep],
            unit=self.unit[keep],
            key=self.key[keep],
            count=None if self.count is None else self.count[keep],
            values=tuple(value[keep] for value in self.values),
        )

    def take(self, rows: Codes | slice) -> Contributions:
        """Some rows, in order, with dictionaries that hold only what the rows use."""
        unit, used_units = _compact(self.unit[rows], len(self.units))
        key, used_keys = _compact(self.key[rows], len(self.keys))
        return Contributions(
            self.window[rows],
            unit,
            key,
            None if self.count is None else self.count[rows],
            self.units[used_units],
            self.keys.take(pa.array(used_keys)),
            tuple(value[rows] for value in self.values),
            self.operations,
        )

    def by_window(self) -> Iterator[tuple[int, Contributions]]:
        """The rows of each window, in whatever order they are, with the same dictionaries."""
        if not len(self):
            return
        order = np.argsort(self.window, kind="stable")
        window = self.window[order]
        for first, last in pairwise([0, *(np.flatnonzero(np.diff(window)) + 1).tolist(), len(self)]):
            yield int(window[first]), self if last - first == len(self) else self.only(order[first:last])

    def split(self, shards: int) -> Iterator[tuple[int, int, Contributions]]:
        """(window, shard of the unit, rows): what travels to the worker that bounds these units."""
        if not len(self):
            return
        if shards == 1:  # rows are in order of their windows
            for first, last in pairwise([0, *(np.flatnonzero(np.diff(self.window)) + 1).tolist(), len(self)]):
                yield int(self.window[first]), 0, self.take(slice(first, last))
            return
        shard = (self.units[:, 0] % np.uint64(shards)).astype(np.int64)[self.unit]
        place = self.window * shards + shard
        order = np.argsort(place, kind="stable")
        sorted_place = place[order]
        edges = np.flatnonzero(np.diff(sorted_place)) + 1
        for rows in np.split(order, edges):
            window, number = divmod(int(place[rows[0]]), shards)
            yield window, number, self.take(rows)

    def count_keys(self, tally: Tally) -> ExactTable:
        """What the terms ask of each key, for rows of a single window."""
        size = len(self.keys)
        units = np.bincount(self.key, minlength=size).astype(np.int64)
        gathered = dict(zip(tally.slots, self.values, strict=True))
        if tally.measured is not None:
            counts = sum_by(self.key, tally.measured.of_units(gathered), size)
        else:
            counts = units if self.count is None else sum_by(self.key, self.count, size)
        totals, spreads = {}, {}
        for need in tally.needs:
            if isinstance(need, Spread):
                ones = np.ones(len(self), np.int64)
                spreads[need.name] = make_spread(self.key, need.of_units(gathered), ones, size)
            elif need.value is None:
                totals[need.name] = units
            else:
                totals[need.name] = sum_by(self.key, need.of_units(gathered, len(self)), size)
        touched = np.flatnonzero(units)
        whole = ExactTable(self.keys, counts, totals, spreads)
        return whole if len(touched) == size else whole.take(touched)


@dataclass(frozen=True)
class Tally:
    """What is asked of each key: what the gate measures, if it is a column, and what downstream mechanisms need."""

    slots: tuple[Slot, ...] = ()
    measured: Value | None = None
    needs: tuple[Statistic | Spread, ...] = ()

    def empty(self, keys: pa.Array) -> ExactTable:
        """Keys with nothing behind them."""
        return ExactTable.empty(
            keys,
            [need.name for need in self.needs if isinstance(need, Statistic)],
            [need.name for need in self.needs if isinstance(need, Spread)],
        )


@dataclass(frozen=True)
class _Extent:
    """How many rows there are, and the largest codes they may have."""

    rows: int
    last_window: int
    units: int
    keys: int


@dataclass(frozen=True)
class _Groups:
    """Distinct (window, unit, key), sorted, and where the rows of each begin once all are put in that order."""

    window: Codes
    unit: Codes
    key: Codes
    first: Codes
    order: Codes | None
    rows: int

    def contributions(
        self,
        count: Codes | None,
        units: Ids,
        keys: pa.Array,
        values: Sequence[Codes],
        operations: Sequence[Operation],
    ) -> Contributions:
        counted = run_lengths(self.first, self.rows) if count is None else self.reduce(count, "sum")
        reduced = tuple(self.reduce(value, how) for value, how in zip(values, operations, strict=True))
        return Contributions(self.window, self.unit, self.key, counted, units, keys, reduced, tuple(operations))

    def reduce(self, values: Codes, operation: Operation) -> Codes:
        """One value a group out of one a row."""
        if not len(self.first):
            return values
        reduced: Codes = _REDUCE[operation].reduceat(values if self.order is None else values[self.order], self.first)
        return reduced


_REDUCE: Mapping[Operation, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def _group(rows: Iterable[tuple[Codes, Codes, Codes]], extent: _Extent, in_order: bool) -> _Groups:
    """Groups of equal rows. Without `in_order` nothing but the rows themselves is wanted, and sorting them is faster."""
    key_bits = max(1, (extent.keys - 1).bit_length())
    unit_bits = max(1, (extent.units - 1).bit_length())
    window_bits = extent.last_window.bit_length()
    order: Codes | None
    if key_bits + unit_bits + window_bits > 63:
        window, unit, key = (np.concatenate(codes, dtype=np.int64) for codes in zip(*rows, strict=True))
        order = np.lexsort((key, unit, window))
        window, unit, key = window[order], unit[order], key[order]
        new = np.ones(len(window), dtype=np.bool_)
        new[1:] = (np.diff(window) != 0) | (np.diff(unit) != 0) | (np.diff(key) != 0)
        first = np.flatnonzero(new)
        return _Groups(window[first], unit[first], key[first], first, order, extent.rows)
    packed, end = np.empty(extent.rows, np.int64), 0
    for window, unit, key in rows:
        begin, end = end, end + len(window)
        part = packed[begin:end]
        part[:] = unit
        if window_bits:
            part |= window << unit_bits
        part <<= key_bits
        part |= key
    order = np.argsort(packed, kind="stable") if in_order else None
    if order is None:
        packed.sort()
    else:
        packed = packed[order]
    new = np.ones(len(packed), dtype=np.bool_)
    np.not_equal(packed[1:], packed[:-1], out=new[1:])
    first = np.flatnonzero(new)
    packed = packed[first]
    return _Groups(
        packed >> (unit_bits + key_bits),
        (packed >> key_bits) & ((1 << unit_bits) - 1),
        packed & ((1 << key_bits) - 1),
        first,
        order,
        extent.rows,
    )


def _concat_counts(parts: Sequence[Contributions]) -> Codes | None:
    if all(part.count is None for part in parts):
        return None
    return np.concatenate([np.ones(len(p), np.int64) if p.count is None else p.count for p in parts])


def run_lengths(first: Codes, total: int) -> Codes:
    return np.diff(np.append(first, total))


def _compact(codes: Codes, size: int) -> tuple[Codes, Codes]:
    """Codes renumbered to the values in use, and those values' old codes."""
    if size > 4 * len(codes):
        used, renumbered = np.unique(codes, return_inverse=True)
        return renumbered.astype(np.int64), used
    present = np.zeros(size, dtype=np.bool_)
    present[codes] = True
    return (np.cumsum(present) - 1)[codes], np.flatnonzero(present)


def distinct_units(ids: Ids, codes: Codes) -> tuple[Ids, Codes]:
    """Every identifier once, and codes into them. A unit that is there twice would be bounded twice."""
    halves = np.sort(ids[:, 0])  # a quarter of the time that looking for equal texts takes
    if len(halves) < 2 or (halves[1:] != halves[:-1]).all():
        return ids, codes
    distinct, place = _distinct(ids)
    return distinct, place.astype(np.int64)[codes]


def _distinct(ids: Ids) -> tuple[Ids, npt.NDArray[np.integer]]:
    """Distinct identifiers in the order in which they first appear, and which of them each one is."""
    # Numbers are found several times faster than bytes, and half of an identifier is all but certain to tell it apart.
    halves = pa.array(np.ascontiguousarray(ids[:, 0])).dictionary_encode()
    place = halves.indices.to_numpy()
    first = np.empty(len(halves.dictionary), np.int64)
    first[place[::-1]] = np.arange(len(ids) - 1, -1, -1)
    if np.array_equal(ids[first, 1][place], ids[:, 1]):
        return ids[first], place
    whole = _as_binary(ids).dictionary_encode()
    return _as_ids(whole.dictionary), whole.indices.to_numpy()


def _as_binary(ids: Ids) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(ids, dtype="<u8"))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), [None, buffer])


def _as_ids(binary: pa.Array) -> Ids:
    return np.frombuffer(binary.buffers()[1], dtype="<u8", offset=16 * binary.offset, count=2 * len(binary)).reshape(
        -1, 2
    )


_EVENTS, _TERMS = "events", "terms"


def to_batch(rows: Contributions) -> pa.RecordBatch:
    columns = {
        "window": pa.array(rows.window.astype(np.int32)),
        "unit": pa.DictionaryArray.from_arrays(pa.array(rows.unit.astype(np.int32)), _as_binary(rows.units)),
        "key": pa.DictionaryArray.from_arrays(pa.array(rows.key.astype(np.int32)), rows.keys),
    }
    if rows.count is not None:
        columns["count"] = pa.array(rows.count)
    for place, (value, operation) in enumerate(zip(rows.values, rows.operations, strict=True)):
        columns[f"{operation} {place}"] = pa.array(value)
    return pa.RecordBatch.from_pydict(columns, metadata={_EVENTS: str(rows.events), _TERMS: rows.terms})


def from_batch(batch: pa.RecordBatch) -> Contributions:
    window, unit, key = batch.column("window"), batch.column("unit"), batch.column("key")
    slots = [name for name in batch.schema.names if " " in name]
    return Contributions(
        window.to_numpy().astype(np.int64),
        unit.indices.to_numpy().astype(np.int64),
        key.indices.to_numpy().astype(np.int64),
        batch.column("count").to_numpy() if "count" in batch.schema.names else None,
        _as_ids(unit.dictionary),
        key.dictionary,
        tuple(batch.column(name).to_numpy() for name in slots),
        tuple(cast(Operation, name.split()[0]) for name in slots),
        int(batch.schema.metadata[_EVENTS.encode()]),
        batch.schema.metadata[_TERMS.encode()].decode(),
    )
