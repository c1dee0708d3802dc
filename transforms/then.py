"""then: further mechanisms on the keys that passed the gate, each with an epsilon of its own.

They see the exact table of those keys and of no other. A per-key mechanism releases every shard on its own; a per-window
one merges the shards' summaries first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any, cast

import apache_beam as beam

from tidegate.mechanisms.mechanism import PerKeyMechanism, PerWindowMechanism, needs_of
from tidegate.mechanisms.table import ExactTable, Rows
from tidegate.transforms.closing import is_first_firing
from tidegate.transforms.coders import typed
from tidegate.transforms.gate import Draws, in_numbers
from tidegate.transforms.problems import withheld
from tidegate.transforms.secret import Secret
from tidegate.transforms.terms import Terms

SUMMARY = "summary"


class Then(beam.PTransform[Any, Any]):
    """(digest, kept ExactTable) of every shard → (mechanism number, Rows) of all downstream mechanisms."""

    def __init__(self, terms: Terms, secret: Secret) -> None:
        super().__init__()
        self._terms, self._secret = terms, secret

    def expand(self, kept: Any) -> Any:
        shards = kept | "Then by key" >> beam.ParDo(PerKeyFn(self._terms, self._secret)).with_output_types(
            tuple[int, Rows]
        ).with_outputs(SUMMARY, main="rows")
        windows = (
            typed(shards, summary=tuple[int, tuple[bytes, bytes]])[SUMMARY]
            | "Together by mechanism" >> beam.GroupByKey()
            | "Then by window" >> beam.ParDo(PerWindowFn(self._terms, self._secret)).with_output_types(tuple[int, Rows])
        )
        return (shards["rows"], windows) | "All downstream rows" >> beam.Flatten()


class PerKeyFn(beam.DoFn):
    """Releases what can be released from a shard alone, and summarises the rest."""

    def __init__(self, terms: Terms, secret: Secret) -> None:
        self._terms, self._secret = terms, secret

    @withheld("then")
    def setup(self) -> None:
        self._draws = Draws(self._terms, self._secret)

    @withheld("then")
    def process(self, element: tuple[bytes, ExactTable], window: Any = beam.DoFn.WindowParam) -> Iterator[Any]:
        digest, table = element
        ids = self._draws.identify(table.keys)
        for number, mechanism in enumerate(self._terms.mechanisms[1:], start=1):
            if mechanism.role == "per-window":
                summary = cast(PerWindowMechanism, mechanism).summarize(table)
                yield beam.pvalue.TaggedOutput(SUMMARY, (number, (digest, summary)))
            else:
                noise = self._draws.noise(window, digest, number)
                rows = cast(PerKeyMechanism, mechanism).release(table, ids, noise)
                # What asks for no statistic of its own has worked on the gate's measure.
                yield number, rows if needs_of(mechanism) else in_numbers(rows, self._terms)


class PerWindowFn(beam.DoFn):
    """Merges a mechanism's summaries of a window and releases."""

    def __init__(self, terms: Terms, secret: Secret) -> None:
        self._terms, self._secret = terms, secret

    @withheld("then")
    def setup(self) -> None:
        self._draws = Draws(self._terms, self._secret)

    @withheld("then")
    def process(
        self,
        element: tuple[int, Iterable[tuple[bytes, bytes]]],
        window: Any = beam.DoFn.WindowParam,
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterator[tuple[int, Rows]]:
        if not is_first_firing(pane):
            return
        number, told = element
        digests, summaries = zip(*told, strict=True)
        (digest,) = set(digests)  # all shards of a window hang on the same one, or there is no release
        mechanism = cast(PerWindowMechanism, self._terms.mechanisms[number])
        # Sorted, so that a merge that rounds gives the same bytes whatever the shards' order.
        merged = reduce(mechanism.merge, sorted(summaries))
        yield number, mechanism.release(merged, self._draws.identify, self._draws.noise(window, digest, number))
