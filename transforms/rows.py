"""rows: where every row is a unit of its own, nothing has to meet by unit, and keys are added up where rows are decoded.

A row has one key, so there is nothing to bound: what it is worth is clipped by itself, and sums are those of keys from the
first bundle on. What travels is a row a key instead of a row a unit and key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from tidegate.mechanisms.keyed import KeyedHash, derive_key
from tidegate.mechanisms.table import ExactTable
from tidegate.transforms.bound import split_by_key
from tidegate.transforms.closing import ClosingFn, close
from tidegate.transforms.contributions import Contributions
from tidegate.transforms.decode import DEAD, DecodeFn, make_tally, stage_key
from tidegate.transforms.problems import withheld
from tidegate.transforms.secret import Secret
from tidegate.transforms.terms import Terms

_KEYS_MERGED, _KEYS_HELD = 1 << 20, 1 << 22


@dataclass(frozen=True)
class RowSums:
    """What some rows of one window come to, key by key; how many there were, and under what they were read. Secret."""

    table: ExactTable
    window: int
    events: int
    terms: str

    def __len__(self) -> int:
        return len(self.table)

    @property
    def begun(self) -> tuple[str, int]:
        return self.terms, self.window

    def __repr__(self) -> str:
        return "RowSums(withheld)"


class DecodeRows(beam.PTransform[Any, Any]):
    """Raw batches → {None: (window and shard of keys, RowSums) by window carrier timestamp, "dead": DeadLetter}."""

    def __init__(self, terms: Terms, secret: Secret, shards: int) -> None:
        super().__init__()
        self._terms, self._secret, self._shards = terms, secret, shards

    def expand(self, batches: Any) -> Any:
        return batches | "Decode" >> beam.ParDo(
            DecodeRowsFn(self._terms, self._secret, self._shards)
        ).with_output_types(tuple[int, RowSums]).with_outputs(DEAD, main="contributions")


class DecodeRowsFn(DecodeFn):
    """Decodes as ever, and adds up a bundle's keys instead of gathering its units."""

    @withheld("decode")
    def setup(self) -> None:
        super().setup()
        self._tally = make_tally(self._terms)
        self._place = KeyedHash(derive_key(stage_key(self._terms, self._secret), "key shards"))

    def start_bundle(self) -> None:
        super().start_bundle()
        self._tables: dict[int, list[ExactTable]] = {}
        self._held, self._merge_at = 0, _KEYS_MERGED

    def _gather(self, contributions: Contributions) -> Iterator[Any]:
        for window, rows in contributions.by_window():
            table = rows.count_keys(self._tally)
            self._tables.setdefault(window, []).append(table)
            self._held += len(table)
        if self._held > self._merge_at:
            self._tables = {window: [ExactTable.merge(tables)] for window, tables in self._tables.items()}
            self._held = sum(len(table) for (table,) in self._tables.values())
            self._merge_at = max(_KEYS_MERGED, 2 * self._held)
            if self._held > _KEYS_HELD:
                yield from self._flush()

    def _flush(self) -> Iterator[Any]:
        tables, untold = self._tables, self._arrivals
        self._tables, self._arrivals, self._held, self._merge_at = {}, {}, 0, _KEYS_MERGED
        for window, parts in tables.items():
            told, timestamp = untold[window].events, self._windows.carrier_timestamp(window, untold[window].earliest)
            for shard, table in split_by_key(ExactTable.merge(parts), self._place, self._shards):
                sums = RowSums(table, window, told, self._under)
                told = 0  # the first part of a window speaks for all
                yield WindowedValue((window * self._shards + shard, sums), timestamp, (GlobalWindow(),))


class SumRows(beam.PTransform[Any, Any]):
    """(window and shard of keys, RowSums) → (shard of keys, partial ExactTable)."""

    def __init__(self, terms: Terms, shards: int) -> None:
        super().__init__()
        self._sum = SumRowsFn(terms, shards)

    def expand(self, sums: Any) -> Any:
        return close(sums, self._sum, RowSums)


class SumRowsFn(ClosingFn):
    """Adds up one shard of a window's keys."""

    def merge(self, parts: Sequence[RowSums]) -> RowSums:
        table = ExactTable.merge([part.table for part in parts])
        return replace(parts[0], table=table, events=sum(part.events for part in parts))

    def _tables(self, shard: int, parts: Sequence[RowSums]) -> Iterator[tuple[int, ExactTable]]:
        yield shard, ExactTable.merge([part.table for part in parts])


def nothing() -> RowSums:
    """For windows in which nothing happened."""
    return RowSums(ExactTable(pa.array([], pa.string()), np.zeros(0, np.int64)), 0, 0, "")
