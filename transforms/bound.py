"""bound: all of a unit's contributions to a window meet in one place, and what exceeds its bounds is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import apache_beam as beam
import numpy as np

from tidegate.mechanisms.keyed import KeyedHash, derive_key
from tidegate.mechanisms.table import ExactTable
from tidegate.transforms.closing import ClosingFn, close
from tidegate.transforms.contributions import Contributions
from tidegate.transforms.decode import make_bounder, make_tally, stage_key
from tidegate.transforms.problems import withheld
from tidegate.transforms.secret import Secret
from tidegate.transforms.terms import Terms


class Bound(beam.PTransform[Any, Any]):
    """(window and shard of units, Contributions) → (shard of keys, partial ExactTable)."""

    def __init__(self, terms: Terms, secret: Secret, shards: int) -> None:
        super().__init__()
        self._bound = BoundFn(terms, secret, shards)

    def expand(self, contributions: Any) -> Any:
        return close(contributions, self._bound, Contributions)


class BoundFn(ClosingFn):
    """Bounds one shard of a window's units and adds up their keys."""

    def __init__(self, terms: Terms, secret: Secret, shards: int) -> None:
        super().__init__(terms, shards)
        self._secret = secret

    @withheld("bound")
    def setup(self) -> None:
        key = stage_key(self._terms, self._secret)
        self._bounder, self._tally = make_bounder(self._terms, key), make_tally(self._terms)
        self._place = KeyedHash(derive_key(key, "key shards"))

    def merge(self, parts: Sequence[Contributions]) -> Contributions:
        bounded = self._bounder(Contributions.merge(parts))
        # Dictionaries of what is left: else state would keep every key that a unit ever touched.
        whole = bounded.take(slice(None))
        return replace(whole, events=sum(part.events for part in parts), terms=parts[0].terms)

    def _tables(self, _: int, parts: Sequence[Contributions]) -> Iterator[tuple[int, ExactTable]]:
        table = self._bounder(Contributions.merge(parts)).count_keys(self._tally)
        yield from split_by_key(table, self._place, self._shards)


def split_by_key(table: ExactTable, place: KeyedHash, shards: int) -> Iterator[tuple[int, ExactTable]]:
    """The table in parts, each key always in the same one."""
    if shards == 1:
        if len(table):
            yield 0, table
        return
    shard = (place(table.keys)[:, 0] % np.uint64(shards)).astype(np.int64)
    for number in range(shards):
        rows = np.flatnonzero(shard == number)
        if len(rows):
            yield number, table.take(rows)
