"""count: partial sums per key become the window's exact table, shard by shard, and its digest.

The digest says, without revealing anything, exactly which table a window has; the window's seed hangs on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow.compute as pc

from tidegate.mechanisms.keyed import KeyedHash, add_digests, derive_key
from tidegate.mechanisms.table import ExactTable
from tidegate.transforms.closing import is_first_firing
from tidegate.transforms.coders import typed
from tidegate.transforms.decode import stage_key
from tidegate.transforms.problems import withheld
from tidegate.transforms.secret import Secret
from tidegate.transforms.terms import Terms

DIGEST = "digest"


class TableDigest:
    """A digest of everything in an exact table: any difference in any column makes it another one."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._identify = KeyedHash(key)

    def __call__(self, table: ExactTable) -> bytes:
        ids = self._identify(table.keys)
        digest = self._identify.digest(ids, table.counts)
        for name, column in table.totals.items():
            digest = add_digests(digest, self._of_column(name).digest(ids, column))
        for name, spread in table.spreads.items():
            lengths = pc.list_value_length(spread).to_numpy(zero_copy_only=False)
            items, rows = spread.flatten(), np.repeat(ids, lengths, axis=0)
            # The bucket becomes part of the identifier, which tells a key's buckets apart.
            rows[:, 1] += items.field("bucket").to_numpy().astype(np.uint64)
            digest = add_digests(digest, self._of_column(name).digest(rows, items.field("count").to_numpy()))
        return digest

    def _of_column(self, name: str) -> KeyedHash:
        return KeyedHash(derive_key(self._key, "column", name))


class Count(beam.PTransform[Any, Any]):
    """(shard of keys, partial ExactTable) → ((shard of keys, ExactTable), one digest a window)."""

    def __init__(self, terms: Terms, secret: Secret) -> None:
        super().__init__()
        self._terms, self._secret = terms, secret

    def expand(self, partial: Any) -> Any:
        counted = (
            partial
            | "Together by key" >> beam.GroupByKey()
            | "Count"
            >> beam.ParDo(CountFn(self._terms, self._secret))
            .with_output_types(tuple[int, ExactTable])
            .with_outputs(DIGEST, main="tables")
        )
        digests = (
            typed(counted, digest=tuple[int, bytes])[DIGEST]
            | "Together by window" >> beam.GroupByKey()
            | "Digest of window" >> beam.Map(_whole_digest).with_output_types(bytes)
        )
        return counted["tables"], digests


class CountFn(beam.DoFn):
    """Adds up one shard of a window's keys."""

    def __init__(self, terms: Terms, secret: Secret) -> None:
        self._terms, self._secret = terms, secret

    @withheld("count")
    def setup(self) -> None:
        self._digest = TableDigest(derive_key(stage_key(self._terms, self._secret), "digest"))

    @withheld("count")
    def process(self, element: tuple[int, Iterable[ExactTable]], pane: Any = beam.DoFn.PaneInfoParam) -> Iterator[Any]:
        if not is_first_firing(pane):
            return
        table = ExactTable.merge(list(element[1]))
        yield element[0], table
        yield beam.pvalue.TaggedOutput(DIGEST, (0, self._digest(table)))


def _whole_digest(element: tuple[int, Iterable[bytes]]) -> bytes:
    return reduce(add_digests, element[1])
