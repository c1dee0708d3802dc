"""count: partial sums per key become the window's exact table, shard by shard, and its digest.

The digest says, without revealing anything, exactly which table a window has; the window's seed hangs on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any

import apache_beam as beam

from tidegate.mechanisms.keyed import KeyedHash, add_digests, derive_key
from tidegate.mechanisms.table import ExactTable
from tidegate.transforms.bound import is_first_firing
from tidegate.transforms.coders import typed
from tidegate.transforms.decode import stage_key
from tidegate.transforms.problems import withheld
from tidegate.transforms.secret import Secret
from tidegate.transforms.terms import Terms

DIGEST = "digest"


class Count(beam.PTransform[Any, Any]):
    """(shard of keys, partial ExactTable) → (ExactTable shards, one digest a window)."""

    def __init__(self, terms: Terms, secret: Secret) -> None:
        super().__init__()
        self._terms, self._secret = terms, secret

    def expand(self, partial: Any) -> Any:
        counted = (
            partial
            | "Together by key" >> beam.GroupByKey()
            | "Count"
            >> beam.ParDo(CountFn(self._terms, self._secret))
            .with_output_types(ExactTable)
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
        self._hash = KeyedHash(derive_key(stage_key(self._terms, self._secret), "digest"))

    @withheld("count")
    def process(self, element: tuple[int, Iterable[ExactTable]], pane: Any = beam.DoFn.PaneInfoParam) -> Iterator[Any]:
        if not is_first_firing(pane):
            return
        table = ExactTable.merge(list(element[1]))
        yield table
        yield beam.pvalue.TaggedOutput(DIGEST, (0, self._hash.digest(self._hash(table.keys), table.counts)))


def _whole_digest(element: tuple[int, Iterable[bytes]]) -> bytes:
    return reduce(add_digests, element[1])
