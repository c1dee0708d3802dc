"""bound: all of a unit's contributions to a window meet in one place, and what exceeds its bounds is left out.

Here a window closes. Whatever arrives for it afterwards is dropped: a second firing would be a second release. The operator
sees it in the counters: rows_in_windows is what was sent here, rows_counted what was in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics
from apache_beam.utils.windowed_value import PaneInfoTiming

from tidegate.mechanisms.keyed import KeyedHash, derive_key
from tidegate.mechanisms.table import ExactTable
from tidegate.transforms.contributions import Contributions
from tidegate.transforms.decode import begun_under, make_bounder, make_tally, stage_key
from tidegate.transforms.problems import SafeError, withheld
from tidegate.transforms.secret import Secret
from tidegate.transforms.terms import Terms


class Bound(beam.PTransform[Any, Any]):
    """(window and shard of units, Contributions) → (shard of keys, partial ExactTable)."""

    def __init__(self, terms: Terms, secret: Secret, shards: int) -> None:
        super().__init__()
        self._terms, self._secret, self._shards = terms, secret, shards

    def expand(self, contributions: Any) -> Any:
        return (
            contributions
            | "Together by unit" >> beam.GroupByKey()
            | "Bound"
            >> beam.ParDo(BoundFn(self._terms, self._secret, self._shards)).with_output_types(tuple[int, ExactTable])
        )


class ClosingFn(beam.DoFn):
    """Where a shard of a window closes: once, and with nothing in it that was begun otherwise."""

    def __init__(self, terms: Terms, shards: int) -> None:
        self._terms, self._shards = terms, shards
        self._counted = Metrics.counter("tidegate", "rows_counted")

    @withheld("bound")
    def process(
        self,
        element: tuple[int, Iterable[Any]],
        pane: Any = beam.DoFn.PaneInfoParam,
        carrier: Any = beam.DoFn.WindowParam,
    ) -> Iterator[tuple[int, ExactTable]]:
        if not is_first_firing(pane):
            return
        parts = list(element[1])
        window = self._terms.window.windows.carried(carrier)
        if any(part.begun != (begun_under(self._terms, self._shards), window) for part in parts):
            raise SafeError(
                "windows that are still open were begun under other terms or with another number of shards, and cannot be "
                "released under these: resume with the spec and --shards as they were, or begin a new stream with a sink of "
                "its own"
            )
        self._counted.inc(sum(part.events for part in parts))
        yield from self._close(element[0] % self._shards, parts)

    def _close(self, shard: int, parts: list[Any]) -> Iterator[tuple[int, ExactTable]]:
        """What the parts come to, by shard of keys."""
        raise NotImplementedError


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

    def _close(self, _: int, parts: list[Contributions]) -> Iterator[tuple[int, ExactTable]]:
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


def is_first_firing(pane: Any) -> bool:
    """Whether a grouped element is the one firing of its window.

    With the default trigger and no lateness there is no other; but some runners let an element slip in behind the
    watermark and fire again (the direct runner does, at the very end of a window), so nobody is trusted with it.
    """
    return bool(pane.index == 0 and pane.timing != PaneInfoTiming.LATE)
