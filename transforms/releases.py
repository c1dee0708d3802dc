"""PrivateReleases: a stream of events goes in, one private release for every window comes out.

    import apache_beam as beam
    from tidegate.transforms import PrivateReleases, Secret

    with beam.Pipeline() as pipeline:
        releases = (
            pipeline
            | beam.Create([{"user": "ann", "term": "tide tables", "at": "2026-01-01T08:00:00Z"}])
            | PrivateReleases(
                stream="searches",
                columns={"unit": "user", "key": "term", "time": "at"},
                window={"size": "1h", "start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"},
                bound={"keys": 3},
                gate={"epsilon": 1.0, "delta": 1e-9},
                secret=Secret.make_or_open(Path(".tidegate")),
            )
        )

The promise holds whatever windowing, trigger or lateness the input carries: events are put into windows by their own time,
every window of the range fires once, and what comes too late is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.transforms.trigger import AccumulationMode, DefaultTrigger
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.utils.timestamp import MAX_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from tidegate.mechanisms.mechanism import public_keys_of
from tidegate.mechanisms.table import ExactTable
from tidegate.transforms.bound import Bound
from tidegate.transforms.closing import is_live
from tidegate.transforms.coders import register
from tidegate.transforms.columns import rows_to_batches
from tidegate.transforms.count import Count
from tidegate.transforms.decode import DEAD, Decode
from tidegate.transforms.gate import KEPT, Gate, PublicKeysFn
from tidegate.transforms.problems import SpecError, withheld
from tidegate.transforms.rows import DecodeRows, SumRows
from tidegate.transforms.seal import Seal, Ticks
from tidegate.transforms.secret import Secret
from tidegate.transforms.terms import Terms, make_terms
from tidegate.transforms.then import Then
from tidegate.transforms.whole import WholeWindows

SHARDS = 8


class PrivateReleases(beam.PTransform[Any, Any]):
    """Events → one Release a window.

    Args:
      terms: Required unless given as keywords. What a release means.
      secret: Required. What all draws hang on; the same secret gives the same releases for the same events.
      dead_letters: Optional. A transform for the rows that cannot be read (DeadLetter elements); by default they are only
        counted.
      shards: Optional, default 8. Into how many parts a window's units and keys are split. More spread a larger window over
        more workers, fewer make many small windows cheaper; releases do not depend on it.
      **fields: The terms as plain values, as a spec file has them.

    Input elements are Arrow record batches with the columns that the terms name, or plain dicts.
    """

    def __init__(
        self,
        terms: Terms | None = None,
        *,
        secret: Secret,
        dead_letters: Any = None,
        shards: int = SHARDS,
        **fields: Any,
    ) -> None:
        super().__init__()
        if terms is not None and fields:
            raise SpecError(f"the terms are given twice, as an object and as {', '.join(fields)}; leave one out")
        if not isinstance(secret, Secret):
            raise SpecError("secret must be a Secret, not the bytes themselves; write Secret.at(path)")
        if shards < 1:
            raise SpecError(f"shards must be at least 1, not {shards}; write 8")
        self._terms = terms if terms is not None else make_terms(**fields)
        self._secret, self._dead_letters, self._shards = secret, dead_letters, shards
        register()

    def expand(self, events: Any) -> Any:
        _refuse_repeated_panes(events.windowing)
        if self._terms.window.end is None and events.is_bounded:
            raise SpecError(
                "window.end is required for events that come to an end, or nobody knows the last window; "
                "write end: 2026-01-02T00:00:00Z"
            )
        terms, secret = self._terms, self._secret
        decode = Decode if terms.columns.unit else DecodeRows
        decoded = self._batches(events) | "decode" >> decode(terms, secret, self._shards)
        if self._dead_letters is not None:
            decoded[DEAD] | "dead letters" >> self._dead_letters
        contributions = decoded["contributions"]
        if self._shards == 1 and not terms.window.windows.endless and not is_live(events):
            return contributions | "whole windows" >> WholeWindows(terms, secret)
        return self._spread(contributions)

    def _batches(self, events: Any) -> Any:
        """Record batches in no windows: what has that form already is left alone, since steps cost start-up."""
        if not events.windowing.is_default():
            events = events | "Leave the caller's windows" >> beam.WindowInto(GlobalWindows())
        if events.element_type is pa.RecordBatch:
            return events
        return events | "Batches" >> beam.ParDo(BatchFn(self._terms)).with_output_types(pa.RecordBatch)

    def _spread(self, contributions: Any) -> Any:
        """The stages one by one, each on as many workers as there are shards."""
        terms, secret = self._terms, self._secret
        windows = terms.window.windows
        bound = Bound(terms, secret, self._shards) if terms.columns.unit else SumRows(terms, self._shards)
        partial = contributions | "Into windows" >> windows.into_carriers() | "bound" >> bound
        ticks = contributions.pipeline | "ticks" >> Ticks(windows) | "Ticks into windows" >> windows.into_carriers()
        if public_keys_of(terms.gate_mechanism):
            public = ticks | "Public keys" >> beam.ParDo(PublicKeysFn(terms, secret, self._shards)).with_output_types(
                tuple[int, ExactTable]
            )
            partial = (partial, public) | "Add public keys" >> beam.Flatten()
        tables, digests = partial | "count" >> Count(terms, secret)
        gated = (tables, digests) | "gate" >> Gate(terms, secret, self._shards)
        parts = [gated["rows"], ticks]
        if terms.then:
            parts.append(gated[KEPT] | "then" >> Then(terms, secret))
        return parts | "All rows" >> beam.Flatten() | "seal" >> Seal(terms)


class BatchFn(beam.DoFn):
    """Lets record batches through and puts plain dicts into batches."""

    ROWS = 1 << 14

    def __init__(self, terms: Terms) -> None:
        self._names = terms.event_columns

    def start_bundle(self) -> None:
        self._rows: list[Mapping[str, Any]] = []
        self._earliest = MAX_TIMESTAMP

    @withheld("batching")
    def process(self, element: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        if isinstance(element, pa.RecordBatch):
            yield element
        elif isinstance(element, Mapping):
            self._rows.append(element)
            self._earliest = min(self._earliest, timestamp)
            if len(self._rows) >= self.ROWS:
                yield from self._drain()
        else:
            raise SpecError(
                f"events must be Arrow record batches or dicts, not {type(element).__name__}; map them to dicts first"
            )

    @withheld("batching")
    def finish_bundle(self) -> Iterator[Any]:
        if self._rows:
            yield from self._drain()

    def _drain(self) -> Iterator[WindowedValue]:
        """A batch stands where its earliest row stood, so that nothing is late by packaging."""
        rows, earliest = self._rows, self._earliest
        self.start_bundle()
        for batch in rows_to_batches(rows, self._names):
            yield WindowedValue(batch, earliest, (GlobalWindow(),))


def _refuse_repeated_panes(windowing: Any) -> None:
    """A trigger that fires a window again with all it had before would feed the same events in twice."""
    repeats = windowing.accumulation_mode == AccumulationMode.ACCUMULATING
    if repeats and not isinstance(windowing.triggerfn, DefaultTrigger):
        raise SpecError(
            "the input's windows fire more than once and accumulate, so the same events would be counted again with every "
            "firing; write accumulation_mode=AccumulationMode.DISCARDING before PrivateReleases"
        )
