"""closing: a shard of a window comes together, and closes once.

Whatever arrives afterwards is dropped: a second firing would be a second release. The operator sees it in the counters:
rows_in_windows is what was sent here, rows_counted what was in time.

Where all events are read before a window closes, a GroupByKey brings a shard together. It keeps all that it was sent, which
on a live stream would be state that follows events. There the shard is *held* instead: merged and bounded whenever as much
has come as the merge before had left. State then follows what is distinct. Bounds are mergeable, so nothing hangs on when
that happens, and releases are the same bytes either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam import coders
from apache_beam.metrics import Metrics
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.utils.windowed_value import PaneInfoTiming

from tidegate.mechanisms.table import ExactTable
from tidegate.transforms.decode import begun_under
from tidegate.transforms.problems import SafeError, withheld
from tidegate.transforms.terms import Terms


def close(parts: Any, closing: ClosingFn, kind: type) -> Any:
    """(window and shard, part of this kind) → (shard of keys, partial ExactTable), once for every window and shard."""
    if is_live(parts):
        return parts | "Hold" >> beam.ParDo(HoldFn(closing, kind)).with_output_types(tuple[int, ExactTable])
    parts = parts | "Together" >> beam.GroupByKey()
    return parts | "Close" >> beam.ParDo(closing).with_output_types(tuple[int, ExactTable])


def is_live(events: Any) -> bool:
    """Whether windows close while events still come.

    Not so on Beam's runners for a single process: one reads all there is before it closes a window, and the other lets the
    watermark pass what a timer puts out, so that all of it would be late.
    """
    runner = type(events.pipeline.runner).__module__
    in_process = runner.startswith(("apache_beam.runners.direct", "apache_beam.runners.portability.fn_api_runner"))
    return not events.is_bounded and not in_process


class ClosingFn(beam.DoFn):
    """What a shard of a window comes to, with nothing in it that was begun otherwise."""

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
        if is_first_firing(pane):
            yield from self.close(element[0], list(element[1]), carrier)

    def close(self, place: int, parts: Sequence[Any], carrier: Any) -> Iterator[tuple[int, ExactTable]]:
        """All parts of a window and shard, as tables by shard of keys."""
        self.check(parts, carrier)
        self._counted.inc(sum(part.events for part in parts))
        yield from self._tables(place % self._shards, parts)

    def check(self, parts: Iterable[Any], carrier: Any) -> None:
        """Refuse what was sent under other terms, from before a stream was stopped and resumed."""
        window = self._terms.window.windows.carried(carrier)
        if any(part.begun != (begun_under(self._terms, self._shards), window) for part in parts):
            raise SafeError(
                "windows that are still open were begun under other terms or with another number of shards, and cannot be "
                "released under these: resume with the spec and --shards as they were, or begin a new stream with a sink of "
                "its own"
            )

    def merge(self, parts: Sequence[Any]) -> Any:
        """One part in place of several, which may be merged with others again; for parts that were checked."""
        raise NotImplementedError

    def _tables(self, shard: int, parts: Sequence[Any]) -> Iterator[tuple[int, ExactTable]]:
        raise NotImplementedError


_END = TimerSpec("end", TimeDomain.WATERMARK)
_HELD = beam.DoFn.StateParam(BagStateSpec("held", coders.BytesCoder()))
_DONE = beam.DoFn.StateParam(BagStateSpec("done", coders.BytesCoder()))
_SIZES = beam.DoFn.StateParam(
    ReadModifyWriteStateSpec("sizes", coders.TupleCoder((coders.VarIntCoder(), coders.VarIntCoder())))
)
_AT_END = beam.DoFn.TimerParam(_END)
_CLOSED = (-1, -1)


class HoldFn(beam.DoFn):
    """Holds a shard of a window until it closes.

    What is held is merged when as many bytes have been added as were left by the merge before. What a merge leaves is written
    anew, in one piece, and engines have limits for that; so a large one is put aside, and merged with the rest in the end.
    """

    MERGE_AT = 1 << 19
    """Bytes. Less is not worth a merge."""
    PUT_ASIDE_AT = 1 << 25
    """Bytes. Twice as much may be written at once; Dataflow's limits are 80 MB a value, and 180 MB in all."""

    def __init__(self, closing: ClosingFn, kind: type) -> None:
        self._closing, self._kind = closing, kind

    @withheld("bound")
    def setup(self) -> None:
        self._closing.setup()
        self._coder = coders.registry.get_coder(self._kind)

    @withheld("bound")
    def process(
        self,
        element: tuple[int, Any],
        carrier: Any = beam.DoFn.WindowParam,
        held: Any = _HELD,
        done: Any = _DONE,
        sizes: Any = _SIZES,
        end: Any = _AT_END,
    ) -> None:
        merged, added = sizes.read() or (0, 0)
        if (merged, added) == _CLOSED:  # too late, on a runner that does not drop it
            return
        encoded = self._coder.encode(element[1])
        added += len(encoded)
        if added >= max(self.MERGE_AT, merged):  # doubling, so that a row is merged a few times in all
            parts = [*self._read(held), element[1]]
            self._closing.check(parts, carrier)
            encoded = self._coder.encode(self._closing.merge(parts))
            merged, added = len(encoded), 0
            held.clear()
        if len(encoded) >= self.PUT_ASIDE_AT:
            done.add(encoded)
            merged = 0
        else:
            held.add(encoded)
        sizes.write((merged, added))
        end.set(carrier.max_timestamp())

    @on_timer(_END)  # type: ignore[untyped-decorator]
    @withheld("bound")
    def close(
        self,
        place: Any = beam.DoFn.KeyParam,
        carrier: Any = beam.DoFn.WindowParam,
        held: Any = _HELD,
        done: Any = _DONE,
        sizes: Any = _SIZES,
    ) -> Iterator[tuple[int, ExactTable]]:
        if sizes.read() == _CLOSED:
            return
        yield from self._closing.close(place, [*self._read(done), *self._read(held)], carrier)
        done.clear()
        held.clear()
        sizes.write(_CLOSED)  # until the runner forgets the window

    def _read(self, parts: Any) -> list[Any]:
        return [self._coder.decode(part) for part in parts.read()]


def is_first_firing(pane: Any) -> bool:
    """Whether a grouped element is the one firing of its window.

    With the default trigger and no lateness there is no other; but some runners let an element slip in behind the
    watermark and fire again (the direct runner does, at the very end of a window), so nobody is trusted with it.
    """
    return bool(pane.index == 0 and pane.timing != PaneInfoTiming.LATE)
