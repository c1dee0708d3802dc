"""seal: a window's rows come together in order, with the manifest that says what they mean.

Every window of the range is sealed, also when nothing passed: silence is a record, and a missing window is a failure.
Nothing in a manifest is computed from data, but for what the mechanisms published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.window import TimestampedValue

from tidegate.mechanisms.table import Rows
from tidegate.transforms.closing import is_first_firing
from tidegate.transforms.problems import withheld
from tidegate.transforms.release import ROW_SCHEMA, Release
from tidegate.transforms.terms import MechanismTerms, Terms
from tidegate.transforms.windows import MICROS, Windows
from tidegate.version import __version__

MANIFEST_FORMAT = 1


class Ticks(beam.PTransform[Any, Any]):
    """One empty element for every window, from the terms or the clock alone: all of a range at once, endless ones in time."""

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        self._windows = windows

    def expand(self, pipeline: Any) -> Any:
        windows = self._windows
        if windows.endless:
            return (
                pipeline
                | "Clock"
                >> PeriodicImpulse(
                    start_timestamp=windows.carrier_timestamp(0, windows.start), fire_interval=windows.every / MICROS
                )
                | "Tick" >> beam.Map(_tick).with_output_types(tuple[int, Rows])
            )
        return (
            pipeline
            | "Range" >> beam.Impulse()
            | "Tick" >> beam.FlatMap(_ticks, windows).with_output_types(tuple[int, Rows])
        )


def _tick(_: object) -> tuple[int, Rows]:
    return -1, Rows.concat([])


def _ticks(_: object, windows: Windows) -> Iterator[Any]:
    for window in range(windows.count):
        yield TimestampedValue(_tick(None), windows.carrier_timestamp(window, windows.start))


class Seal(beam.PTransform[Any, Any]):
    """(mechanism number, Rows) of all shards, and ticks → one Release a window."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        self._terms = terms

    def expand(self, rows: Any) -> Any:
        return (
            rows
            | "By window"
            >> beam.ParDo(NumberWindowFn(self._terms.window.windows)).with_output_types(tuple[int, tuple[int, Rows]])
            | "Whole window" >> beam.GroupByKey()
            | "Seal" >> beam.ParDo(SealFn(self._terms)).with_output_types(Release)
        )


class NumberWindowFn(beam.DoFn):
    """Keys rows by their window, so that windows are sealed in parallel."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows

    def process(self, element: tuple[int, Rows], window: Any = beam.DoFn.WindowParam) -> Iterator[Any]:
        yield self._windows.carried(window), element


class SealFn(beam.DoFn):
    """Puts rows in order and writes the manifest."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    @withheld("seal")
    def process(
        self, element: tuple[int, Iterable[tuple[int, Rows]]], pane: Any = beam.DoFn.PaneInfoParam
    ) -> Iterator[Release]:
        if not is_first_firing(pane):
            return
        window, parts = element
        by_mechanism: dict[int, list[Rows]] = {}
        for number, rows in parts:
            by_mechanism.setdefault(number, []).append(rows)
        tables = [
            self._table(window, number, Rows.concat(by_mechanism.get(number, [])))
            for number in range(len(self._terms.mechanisms))
        ]
        table = pa.concat_tables(tables).combine_chunks()
        yield Release(
            window, self._terms.window.windows.folder(window), table, manifest(self._terms, window, len(table))
        )

    def _table(self, window: int, number: int, rows: Rows) -> pa.Table:
        terms = self._terms
        begin, end = terms.window.windows.bounds(window)
        guarantee = terms.mechanisms[number].guarantee
        order = pc.sort_indices(rows.keys)  # stable: the numbers of a key stay in the mechanism's order
        constants = {
            "stream": terms.stream,
            "window_start": begin,
            "window_end": end,
            "mechanism": terms.mechanism_name(number),
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "spec_digest": terms.digest,
        }
        columns = {
            "measure": pa.array(terms.measures(number), pa.string()).take(pa.array(rows.parts)).take(order),
            "key": rows.keys.take(order).cast(pa.string()),
            **{
                name: pa.array(column, mask=~np.isfinite(column)).take(order)  # what is not said becomes null
                for name, column in (("value", rows.values), ("low", rows.low), ("high", rows.high))
            },
        }
        arrays = [
            columns[f.name] if f.name in columns else pa.repeat(pa.scalar(constants[f.name], f.type), len(rows))
            for f in ROW_SCHEMA
        ]
        return pa.Table.from_arrays(arrays, schema=ROW_SCHEMA)


def manifest(terms: Terms, window: int, rows: int) -> Mapping[str, Any]:
    """What a window's release means, in words and numbers."""
    windows, guarantee = terms.window.windows, terms.guarantee
    begin, end = windows.bounds(window)
    return {
        "format": MANIFEST_FORMAT,
        "stream": terms.stream,
        "window": {"start": rfc3339(begin), "end": rfc3339(end)},
        "range": {
            "start": rfc3339(windows.bounds(0)[0]),
            "end": None if windows.end is None else rfc3339(windows.end),
            "size_seconds": terms.window.size,
            "every_seconds": terms.window.every or terms.window.size,
            "grace_seconds": terms.window.grace,
        },
        "guarantee": {
            "words": guarantee.words(),
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "unit": terms.protects,
            "keys": guarantee.keys,
            "per_key": guarantee.per_key,
        },
        "key_columns": list(terms.columns.key),
        "gate": {
            "measure": terms.gate.measure.meaning(),
            "mechanism": terms.gate.mechanism,
            **public_parameters(terms.gate),
            **terms.gate_mechanism.describe(),
        },
        "then": [
            {
                "mechanism": item.mechanism,
                "measures": list(terms.measures(number)),
                "delta": terms.mechanisms[number].guarantee.delta,
                **public_parameters(item),
                **terms.mechanisms[number].describe(),
            }
            for number, item in enumerate(terms.then, start=1)
        ],
        "rows": rows,
        "spec_digest": terms.digest,
        "software": f"tidegate {__version__}",
    }


def public_parameters(terms: MechanismTerms) -> dict[str, Any]:
    """What the spec says of a mechanism; a long list of keys is counted by the mechanism itself."""
    return {name: value for name, value in terms.parameters().items() if name != "keys"}


def rfc3339(instant: Any) -> str:
    return str(instant.strftime("%Y-%m-%dT%H:%M:%SZ"))
