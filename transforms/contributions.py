"""Who touched which key, in columns: the form events take from decoding until they are counted.

A row says that a unit touched a key in a window some number of times. Units are keyed identifiers, never names. Both units
and keys are dictionary-encoded, so the row columns are small integers; rows are sorted and distinct. Merging and bounding
are then a sort of one packed 64-bit column, and what travels between workers is a few bytes a row.

Bounding keeps, for each unit and window, the `keys` keys of smallest keyed rank. The rank is a pseudo-random function of
window, unit and key, so the choice is uniform over the unit's keys, the same in every retry, and mergeable: a key that is
not among the smallest of a part is not among the smallest of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.mechanisms.keyed import BlockCipher, Ids, KeyedHash, derive_key
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.table import ExactTable

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Contributions:
    """Distinct (window, unit, key) rows, sorted by the three codes. Without counts, every row counts 1."""

    window: Codes
    unit: Codes
    key: Codes
    count: Codes | None
    units: Ids
    keys: pa.Array

    def __len__(self) -> int:
        return len(self.window)

    def __repr__(self) -> str:
        return "Contributions(withheld)"

    @staticmethod
    def gather(
        window: Codes, unit: Codes, key: Codes, count: Codes | None, units: Ids, keys: pa.Array
    ) -> Contributions:
        """Rows in any order, repeated or not; without counts each row stands for one event."""
        window, unit, key, count = _sum_distinct(window, unit, key, count, len(units), len(keys))
        return Contributions(window, unit, key, count, units, keys)

    @staticmethod
    def merge(parts: Sequence[Contributions]) -> Contributions:
        """All rows together, counts of equal rows summed. Order does not matter."""
        if len(parts) == 1:
            return parts[0]
        units = _as_binary(np.concatenate([part.units for part in parts])).dictionary_encode()
        keys = pa.concat_arrays([part.keys for part in parts]).dictionary_encode()
        return Contributions.gather(
            np.concatenate([part.window for part in parts]),
            _recode([part.unit for part in parts], [len(part.units) for part in parts], units.indices),
            _recode([part.key for part in parts], [len(part.keys) for part in parts], keys.indices),
            _concat_counts(parts),
            _as_ids(units.dictionary),
            keys.dictionary,
        )

    def capped(self, per_key: int) -> Contributions:
        """No row counts more than `per_key`. Sums of capped counts, capped again, are what capping once would give."""
        capped = None if self.count is None or per_key == 1 else np.minimum(self.count, per_key)
        return replace(self, count=capped)

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
        )

    def split(self, shards: int) -> Iterator[tuple[int, int, Contributions]]:
        """(window, shard of the unit, rows): what travels to the worker that bounds these units."""
        if not len(self):
            return
        shard = (self.units[:, 0] % np.uint64(shards)).astype(np.int64)[self.unit]
        place = self.window * shards + shard
        order = np.argsort(place, kind="stable")
        sorted_place = place[order]
        edges = np.flatnonzero(np.diff(sorted_place)) + 1
        for rows in np.split(order, edges):
            window, number = divmod(int(place[rows[0]]), shards)
            yield window, number, self.take(rows)

    def count_keys(self) -> ExactTable:
        """Sums per key, for rows of a single window."""
        if self.count is None:
            sums = np.bincount(self.key, minlength=len(self.keys)).astype(np.int64)
        else:
            sums = np.zeros(len(self.keys), dtype=np.int64)
            np.add.at(sums, self.key, self.count)
        touched = np.flatnonzero(sums)
        return ExactTable(self.keys.take(pa.array(touched)), sums[touched])


class Bounder:
    """Holds every unit to its bounds, given a key that nobody outside knows."""

    def __init__(self, key: bytes, bounds: Bounds, first_window: int) -> None:
        """`first_window` numbers window 0 on a clock of its own, so that ranks do not depend on where a range starts."""
        self._bounds = bounds
        self._first_window = first_window
        self._identify = KeyedHash(derive_key(key, "rank keys"))
        self._rank = BlockCipher(derive_key(key, "rank"))

    def __call__(self, rows: Contributions) -> Contributions:
        """At most `keys` keys a unit and window, at most `per_key` each."""
        if not len(rows):
            return rows
        new_group = np.ones(len(rows), dtype=np.bool_)
        new_group[1:] = (np.diff(rows.window) != 0) | (np.diff(rows.unit) != 0)
        starts = np.flatnonzero(new_group)
        sizes = np.diff(np.append(starts, len(rows)))
        keep = np.ones(len(rows), dtype=np.bool_)
        full = sizes > self._bounds.keys
        if full.any():
            crowded = np.flatnonzero(np.repeat(full, sizes))
            keep[crowded] = self._smallest(rows, crowded, sizes[full])
        rows = rows.capped(self._bounds.per_key)
        if keep.all():
            return rows
        return Contributions(
            rows.window[keep],
            rows.unit[keep],
            rows.key[keep],
            None if rows.count is None else rows.count[keep],
            rows.units,
            rows.keys,
        )

    def _smallest(self, rows: Contributions, where: Codes, sizes: Codes) -> npt.NDArray[np.bool_]:
        """Which of the rows are among the smallest ranks of their group; groups follow each other with these sizes."""
        block = rows.units[rows.unit[where]] ^ self._identify(rows.keys)[rows.key[where]]
        block[:, 1] ^= (rows.window[where] + self._first_window).view(np.uint64)
        rank = self._rank(block)
        group = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
        starts = np.cumsum(sizes) - sizes
        # Sorting numbers is ten times faster than sorting positions: put group and the leading bits of the rank into one
        # number, sort, and read off the largest rank each group may keep.
        bits = max(1, int(len(sizes) - 1).bit_length())
        packed = (group << np.uint64(64 - bits)) | (rank[:, 0] >> np.uint64(bits))
        limit = np.sort(packed)[starts + self._bounds.keys - 1]
        keep: npt.NDArray[np.bool_] = packed <= np.repeat(limit, sizes)
        if int(keep.sum()) != len(sizes) * self._bounds.keys:
            # Two ranks agree in their leading bits: decide by all of them.
            order = np.lexsort((rank[:, 1], rank[:, 0], group))
            place = np.empty(len(order), dtype=np.int64)
            place[order] = np.arange(len(order)) - np.repeat(starts, sizes)
            keep = place < self._bounds.keys
        return keep


class Gathering:
    """Contributions arriving batch by batch, held in bounded form: memory follows distinct rows, not events."""

    FIRST_COMPACTION = 1 << 21

    def __init__(self, bounder: Bounder) -> None:
        self._bounder = bounder
        self._parts: list[Contributions] = []
        self._rows = 0
        self._compact_at = self.FIRST_COMPACTION

    def add(self, part: Contributions) -> None:
        self._parts.append(part)
        self._rows += len(part)
        if self._rows >= self._compact_at:
            self._compact()

    def __len__(self) -> int:
        return self._rows

    def drain(self) -> Contributions | None:
        """Everything so far, merged and bounded, or None; starts anew."""
        if not self._parts:
            return None
        self._compact()
        whole = self._parts[0]
        self._parts, self._rows, self._compact_at = [], 0, self.FIRST_COMPACTION
        return whole

    def _compact(self) -> None:
        whole = self._bounder(Contributions.merge(self._parts))
        # Doubling keeps the total work proportional to the rows that came in.
        self._parts, self._rows, self._compact_at = [whole], len(whole), max(self.FIRST_COMPACTION, 2 * len(whole))


def _sum_distinct(
    window: Codes, unit: Codes, key: Codes, count: Codes | None, units: int, keys: int
) -> tuple[Codes, Codes, Codes, Codes]:
    """Equal (window, unit, key) rows become one, counts summed; sorted."""
    key_bits = max(1, (keys - 1).bit_length())
    unit_bits = max(1, (units - 1).bit_length())
    window_bits = int(window.max(initial=0)).bit_length()
    if key_bits + unit_bits + window_bits > 63:
        order = np.lexsort((key, unit, window))
        window, unit, key = window[order], unit[order], key[order]
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = (np.diff(window) != 0) | (np.diff(unit) != 0) | (np.diff(key) != 0)
        first = np.flatnonzero(new)
        summed = _run_lengths(first, len(order)) if count is None else _run_sums(count[order], first)
        return window[first], unit[first], key[first], summed
    packed = (((window << unit_bits) | unit) << key_bits) | key
    if count is None:
        packed.sort()
        ordered = packed
    else:
        order = np.argsort(packed, kind="stable")
        ordered = packed[order]
    new = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    first = np.flatnonzero(new)
    summed = _run_lengths(first, len(ordered)) if count is None else _run_sums(count[order], first)
    distinct = ordered[first]
    return (
        distinct >> (unit_bits + key_bits),
        (distinct >> key_bits) & ((1 << unit_bits) - 1),
        distinct & ((1 << key_bits) - 1),
        summed,
    )


def _concat_counts(parts: Sequence[Contributions]) -> Codes | None:
    if all(part.count is None for part in parts):
        return None
    return np.concatenate([np.ones(len(p), np.int64) if p.count is None else p.count for p in parts])


def _run_lengths(first: Codes, total: int) -> Codes:
    return np.diff(np.append(first, total))


def _run_sums(values: Codes, first: Codes) -> Codes:
    return np.add.reduceat(values, first) if len(first) else values


def _compact(codes: Codes, size: int) -> tuple[Codes, Codes]:
    """Codes renumbered to the values in use, and those values' old codes."""
    if size > 4 * len(codes):
        used, renumbered = np.unique(codes, return_inverse=True)
        return renumbered.astype(np.int64), used
    present = np.zeros(size, dtype=np.bool_)
    present[codes] = True
    return (np.cumsum(present) - 1)[codes], np.flatnonzero(present)


def _recode(codes: Sequence[Codes], sizes: Sequence[int], indices: pa.Array) -> Codes:
    """Codes of several dictionaries → codes of the one dictionary that `indices` maps their concatenation to."""
    mapping: Codes = indices.to_numpy().astype(np.int64)
    offsets = np.cumsum([0, *sizes[:-1]])
    recoded: Codes = mapping[np.concatenate([code + offset for code, offset in zip(codes, offsets, strict=True)])]
    return recoded


def _as_binary(ids: Ids) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(ids, dtype="<u8"))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), [None, buffer])


def _as_ids(binary: pa.Array) -> Ids:
    return np.frombuffer(binary.buffers()[1], dtype="<u8", offset=16 * binary.offset, count=2 * len(binary)).reshape(
        -1, 2
    )


def to_batch(rows: Contributions) -> pa.RecordBatch:
    columns = {
        "window": pa.array(rows.window.astype(np.int32)),
        "unit": pa.DictionaryArray.from_arrays(pa.array(rows.unit.astype(np.int32)), _as_binary(rows.units)),
        "key": pa.DictionaryArray.from_arrays(pa.array(rows.key.astype(np.int32)), rows.keys),
    }
    if rows.count is not None:
        columns["count"] = pa.array(rows.count)
    return pa.RecordBatch.from_pydict(columns)


def from_batch(batch: pa.RecordBatch) -> Contributions:
    window, unit, key = batch.column("window"), batch.column("unit"), batch.column("key")
    return Contributions(
        window.to_numpy().astype(np.int64),
        unit.indices.to_numpy().astype(np.int64),
        key.indices.to_numpy().astype(np.int64),
        batch.column("count").to_numpy() if "count" in batch.schema.names else None,
        _as_ids(unit.dictionary),
        key.dictionary,
    )
