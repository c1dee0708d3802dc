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


class BoundFn(beam.DoFn):
    """Bounds one shard of a window's units and adds up their keys."""

    def __init__(self, terms: Terms, secret: Secret, shards: int) -> None:
        self._terms, self._secret, self._shards = terms, secret, shards
        self._counted = Metrics.counter("tidegate", "rows_counted")

    @withheld("bound")
    def setup(self) -> None:
        key = stage_key(self._terms, self._secret)
        self._bounder, self._under = make_bounder(self._terms, key), begun_under(self._terms, self._shards)
        self._tally = make_tally(self._terms)
        self._place = KeyedHash(derive_key(key, "key shards"))

    @withheld("bound")
    def process(
        self,
        element: tuple[int, Iterable[Contributions]],
        pane: Any = beam.DoFn.PaneInfoParam,
        carrier: Any = beam.DoFn.WindowParam,
    ) -> Iterator[tuple[int, ExactTable]]:
        if not is_first_firing(pane):
            return
        parts = list(element[1])
        window = self._terms.window.windows.carried(carrier)
        check_begun_under(self._under, window, ((part.terms, part.window[0]) for part in parts))
        self._counted.inc(sum(part.events for part in parts))
        bounded = self._bounder(Contributions.merge(parts))
        table = bounded.count_keys(self._tally)
        yield from split_by_key(table, self._place, self._shards)


def check_begun_under(these: str, window: int, parts: Iterable[tuple[str, int]]) -> None:
    """Refuse what was sent to a window under other terms, or when windows were numbered otherwise."""
    if any(part != (these, window) for part in parts):
        raise SafeError(
            "windows that are still open were begun under other terms or with another number of shards, and cannot be "
            "released under these: resume with the spec and --shards as they were, or begin a new stream with a sink of "
            "its own"
        )


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
