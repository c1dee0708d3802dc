"""The two kinds of table: exact ones, which never leave, and rows, which may.

`ExactTable` is a type of its own so that a mistake is a type error: it cannot be pickled, printed or iterated, and sinks
take `Rows` only. The one way from the first to the second is a mechanism's `release`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
SPREAD_TYPE = pa.list_(pa.struct([("bucket", pa.int32()), ("count", pa.int64())]))
_NONE: Mapping[str, pa.Array] = MappingProxyType({})


class ExactTable:
    """What is exactly so of each key in (a shard of) one window, after bounding. Secret.

    `counts` is what the gate measures. `totals` and `spreads` hold what downstream mechanisms asked for, by the name of
    the statistic: whole numbers a key, and lists of (bucket, count) of the buckets that are not empty.
    """

    __slots__ = ("counts", "keys", "spreads", "totals")

    def __init__(
        self,
        keys: pa.Array,
        counts: Ints,
        totals: Mapping[str, Ints] = _NONE,
        spreads: Mapping[str, pa.Array] = _NONE,
    ) -> None:
        if any(len(keys) != len(column) for column in (counts, *totals.values(), *spreads.values())):
            raise ValueError("an exact table needs one count a key, and one of every further statistic")
        self.keys = keys
        self.counts = counts
        self.totals = totals
        self.spreads = spreads

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, rows: npt.NDArray[np.int64]) -> ExactTable:
        where = pa.array(rows)
        return ExactTable(
            self.keys.take(where),
            self.counts[rows],
            {name: column[rows] for name, column in self.totals.items()},
            {name: column.take(where) for name, column in self.spreads.items()},
        )

    def restrict(self, keys: pa.Array) -> ExactTable:
        """The rows of the given keys, in their order; keys that are not here are left out."""
        return self.take(pc.index_in(keys, value_set=self.keys).drop_null().to_numpy(zero_copy_only=False))

    @staticmethod
    def empty(keys: pa.Array, totals: Iterable[str], spreads: Iterable[str]) -> ExactTable:
        """Keys with nothing behind them."""
        nothing = np.zeros(len(keys), np.int64)
        return ExactTable(
            keys,
            nothing,
            dict.fromkeys(totals, nothing),
            {name: pa.array([[]] * len(keys), SPREAD_TYPE) for name in spreads},
        )

    @staticmethod
    def merge(tables: Sequence[ExactTable]) -> ExactTable:
        """Everything summed per key; the order of the tables does not matter, that of the keys is not defined."""
        if not tables:
            return ExactTable(pa.array([], pa.string()), np.zeros(0, np.int64))
        if len(tables) == 1:
            return tables[0]
        encoded = concat_texts([t.keys for t in tables]).dictionary_encode()
        place, size = encoded.indices.to_numpy(), len(encoded.dictionary)
        first = tables[0]
        return ExactTable(
            encoded.dictionary,
            sum_by(place, np.concatenate([t.counts for t in tables]), size),
            {n: sum_by(place, np.concatenate([t.totals[n] for t in tables]), size) for n in first.totals},
            {n: _merge_spreads(place, pa.concat_arrays([t.spreads[n] for t in tables]), size) for n in first.spreads},
        )

    def __repr__(self) -> str:
        return "ExactTable(withheld)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("an exact table cannot be pickled: only what a mechanism releases may leave the pipeline")

    def __iter__(self) -> NoReturn:
        raise TypeError("an exact table cannot be iterated: only what a mechanism releases may leave the pipeline")


MOST_BYTES = 2**31 - 1
"""Of all texts in one array of strings, whose offsets have 32 bits."""


def concat_texts(parts: Sequence[pa.Array]) -> pa.Array:
    """All texts in one array: of large strings where there is too much of them, or some are large already."""
    if any(pa.types.is_large_string(part.type) for part in parts) or sum(part.nbytes for part in parts) > MOST_BYTES:
        parts = [part.cast(pa.large_string()) for part in parts]
    return pa.concat_arrays(parts)


def sum_by(place: npt.NDArray[np.integer], values: Ints, size: int) -> Ints:
    """Values summed by place; whole numbers throughout, where bincount would go through floating point."""
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, place, values)
    return sums


def make_spread(place: npt.NDArray[np.integer], bucket: npt.NDArray[np.integer], count: Ints, size: int) -> pa.Array:
    """Lists of (bucket, count) by place, counts of equal buckets summed, buckets in order."""
    span = int(bucket.max(initial=0)) + 1
    packed = place.astype(np.int64) * span + bucket
    order = np.argsort(packed, kind="stable")
    ordered = packed[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(ordered) else order
    sums = np.add.reduceat(count[order], first) if len(first) else count
    places, buckets = np.divmod(ordered[first], span)
    offsets = np.searchsorted(places, np.arange(size + 1)).astype(np.int32)
    items = pa.StructArray.from_arrays(
        [pa.array(buckets.astype(np.int32)), pa.array(sums)], fields=list(SPREAD_TYPE.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(offsets), items).cast(SPREAD_TYPE)


def _merge_spreads(place: npt.NDArray[np.integer], spreads: pa.Array, size: int) -> pa.Array:
    lengths = pc.list_value_length(spreads).to_numpy(zero_copy_only=False)
    items = spreads.flatten()
    return make_spread(
        np.repeat(place, lengths), items.field("bucket").to_numpy(), items.field("count").to_numpy(), size
    )


def dense_spread(spread: pa.Array, buckets: int) -> Ints:
    """A spread as a full matrix, a row a key. Meant for a slice at a time."""
    dense = np.zeros((len(spread), buckets), np.int64)
    lengths = pc.list_value_length(spread).to_numpy(zero_copy_only=False)
    items = spread.flatten()
    rows = np.repeat(np.arange(len(spread)), lengths)
    dense[rows, items.field("bucket").to_numpy()] = items.field("count").to_numpy()
    return dense


@dataclass(frozen=True)
class Rows:
    """What a mechanism publishes for (a shard of) one window: a value per key and the range that holds the truth.

    `low` and `high` are certain, not likely. NaN stands for what is not said: a value where only the key is published, an
    end where no range is promised. A mechanism that publishes several numbers a key says which one with `part`, an index
    into its `measures`.
    """

    keys: pa.Array
    values: Floats
    low: Floats
    high: Floats
    part: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def parts(self) -> npt.NDArray[np.int32]:
        return np.zeros(len(self), np.int32) if self.part is None else self.part

    @staticmethod
    def of_keys(keys: pa.Array) -> Rows:
        """Keys alone."""
        unsaid = np.full(len(keys), np.nan)
        return Rows(keys, unsaid, unsaid, unsaid)

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        if not parts:
            return Rows(pa.array([], pa.string()), np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0, np.int32))
        return Rows(
            concat_texts([p.keys for p in parts]),
            np.concatenate([p.values for p in parts]),
            np.concatenate([p.low for p in parts]),
            np.concatenate([p.high for p in parts]),
            np.concatenate([p.parts for p in parts]),
        )
