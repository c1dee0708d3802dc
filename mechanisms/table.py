"""The two kinds of table: exact ones, which never leave, and rows, which may.

`ExactTable` is a type of its own so that a mistake is a type error: it cannot be pickled, printed or iterated, and sinks
take `Rows` only. The one way from the first to the second is a mechanism's `release`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]


class ExactTable:
    """Exact counts per key of (a shard of) one window, after bounding. Secret."""

    __slots__ = ("counts", "keys")

    def __init__(self, keys: pa.Array, counts: Ints) -> None:
        if len(keys) != len(counts):
            raise ValueError("an exact table needs one count a key")
        self.keys = keys
        self.counts = counts

    def __len__(self) -> int:
        return len(self.counts)

    def restrict(self, keys: pa.Array) -> ExactTable:
        """The rows of the given keys, in their order; keys that are not here are left out."""
        where = pc.index_in(keys, value_set=self.keys).drop_null().to_numpy(zero_copy_only=False)
        return ExactTable(self.keys.take(pa.array(where)), self.counts[where])

    @staticmethod
    def merge(tables: Sequence[ExactTable]) -> ExactTable:
        """Counts summed per key; the order of the tables does not matter, that of the keys is not defined."""
        if not tables:
            return ExactTable(pa.array([], pa.string()), np.zeros(0, np.int64))
        if len(tables) == 1:
            return tables[0]
        encoded = pa.concat_arrays([t.keys for t in tables]).dictionary_encode()
        sums = np.zeros(len(encoded.dictionary), dtype=np.int64)
        np.add.at(sums, encoded.indices.to_numpy(), np.concatenate([t.counts for t in tables]))
        return ExactTable(encoded.dictionary, sums)

    def __repr__(self) -> str:
        return "ExactTable(withheld)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("an exact table cannot be pickled: only what a mechanism releases may leave the pipeline")

    def __iter__(self) -> NoReturn:
        raise TypeError("an exact table cannot be iterated: only what a mechanism releases may leave the pipeline")


@dataclass(frozen=True)
class Rows:
    """What a mechanism publishes for (a shard of) one window: a value per key and the range that holds the truth.

    `low` and `high` are certain, not likely; a mechanism that cannot promise a range says minus and plus infinity.
    """

    keys: pa.Array
    values: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        return Rows(
            pa.concat_arrays([p.keys for p in parts]) if parts else pa.array([], pa.string()),
            np.concatenate([p.values for p in parts]) if parts else np.zeros(0),
            np.concatenate([p.low for p in parts]) if parts else np.zeros(0),
            np.concatenate([p.high for p in parts]) if parts else np.zeros(0),
        )
