"""whole: where one worker sees whole windows, everything from the bounds to the seal happens in one place.

The stages are those of the larger graph and are called one after the other; what is left out is the way between workers.
Every grouping and every step costs a runner some hundredths of a second before the first event, and on a single machine
these are most of a small release.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import TimestampedValue

from tidegate.mechanisms.mechanism import public_keys_of
from tidegate.mechanisms.table import ExactTable, Rows
from tidegate.transforms.bound import BoundFn
from tidegate.transforms.closing import is_first_firing
from tidegate.transforms.contributions import Contributions
from tidegate.transforms.count import CountFn
from tidegate.transforms.gate import GateFn, PublicKeysFn, beside_digest
from tidegate.transforms.problems import withheld
from tidegate.transforms.release import Release
from tidegate.transforms.rows import RowSums, SumRowsFn
from tidegate.transforms.rows import nothing as no_rows
from tidegate.transforms.seal import SealFn
from tidegate.transforms.secret import Secret
from tidegate.transforms.terms import Terms
from tidegate.transforms.then import PerKeyFn, PerWindowFn
from tidegate.transforms.windows import Windows


class WholeWindows(beam.PTransform[Any, Any]):
    """(number of a window, Contributions or RowSums) of a range that ends → one Release a window."""

    def __init__(self, terms: Terms, secret: Secret) -> None:
        super().__init__()
        self._terms, self._secret = terms, secret

    def expand(self, contributions: Any) -> Any:
        windows = self._terms.window.windows
        each_row = self._terms.columns.unit is None
        kind = tuple[int, RowSums] if each_row else tuple[int, Contributions]
        ticks = (
            contributions.pipeline
            | "Range" >> beam.Impulse()
            | "Tick" >> beam.FlatMap(_ticks, windows, each_row).with_output_types(kind)
        )
        return (
            (contributions, ticks)
            | "Events and ticks" >> beam.Flatten()
            | "Into windows" >> windows.into_carriers()
            | "Together by window" >> beam.GroupByKey()
            | "Release" >> beam.ParDo(WholeFn(self._terms, self._secret)).with_output_types(Release)
        )


def _no_contributions() -> Contributions:
    none = np.zeros(0, np.int64)
    return Contributions(none, none, none, None, np.zeros((0, 2), np.uint64), pa.array([], pa.string()))


def _ticks(_: object, windows: Windows, each_row: bool) -> Iterator[Any]:
    """Nothing, once for every window: so that windows in which nothing happened are released, too."""
    nothing = no_rows() if each_row else _no_contributions()
    for window in range(windows.count):
        yield TimestampedValue((window, nothing), windows.carrier_timestamp(window, windows.start))


class WholeFn(beam.DoFn):
    """Runs the stages of a window behind each other."""

    def __init__(self, terms: Terms, secret: Secret) -> None:
        self._windows = terms.window.windows
        self._bound: BoundFn | SumRowsFn = BoundFn(terms, secret, 1) if terms.columns.unit else SumRowsFn(terms, 1)
        self._count = CountFn(terms, secret)
        self._public = PublicKeysFn(terms, secret, shards=1) if public_keys_of(terms.gate_mechanism) else None
        self._gate, self._seal = GateFn(terms, secret), SealFn(terms)
        self._by_key, self._by_window = PerKeyFn(terms, secret), PerWindowFn(terms, secret)

    @withheld("release")
    def setup(self) -> None:
        for stage in (self._bound, self._count, self._gate, self._by_key, self._by_window, self._public):
            if stage is not None:
                stage.setup()

    @withheld("release")
    def process(
        self,
        element: tuple[int, Iterable[Any]],
        window: Any = beam.DoFn.WindowParam,
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterator[Release]:
        if not is_first_firing(pane):
            return
        rows: list[tuple[int, Rows]] = []
        tables = self._tables([part for part in element[1] if len(part)], window, pane)
        if tables:
            ((shard, table),), ((_, digest),) = _apart(self._count.process((0, tables), pane))
            rows, kept = _apart(self._gate.process((shard, beside_digest(table, digest)), window, pane))
            for passed in kept:
                more, summaries = _apart(self._by_key.process(passed, window))
                rows += more
                for number, summary in summaries:
                    rows += self._by_window.process((number, [summary]), window, pane)
        yield from self._seal.process((self._windows.carried(window), rows), pane)

    def _tables(self, parts: list[Any], window: Any, pane: Any) -> list[ExactTable]:
        """What the units of the window come to, and the public keys."""
        counted = self._bound.process((0, parts), pane, window) if parts else ()
        public = self._public.process(None) if self._public is not None else ()
        return [table for _, table in (*counted, *public)]


def _apart(outputs: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """The main output of a stage and its tagged one, of which no stage here has more than one."""
    main: list[Any] = []
    tagged: list[Any] = []
    for output in outputs:
        if isinstance(output, TaggedOutput):
            tagged.append(output.value)
        else:
            main.append(output)
    return main, tagged
