"""gate: perturb and threshold. Decides which keys appear, and publishes their counts at no extra cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import apache_beam as beam
import pyarrow as pa

from tidegate.mechanisms.keyed import KeyedHash, derive_key
from tidegate.mechanisms.mechanism import public_keys_of
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable, Rows
from tidegate.transforms.bound import split_by_key
from tidegate.transforms.closing import is_first_firing
from tidegate.transforms.coders import ExactTableCoder, typed
from tidegate.transforms.decode import make_tally, stage_key
from tidegate.transforms.problems import withheld
from tidegate.transforms.secret import Secret
from tidegate.transforms.terms import Terms

KEPT = "kept"


class Gate(beam.PTransform[Any, Any]):
    """((shard, ExactTable), digests) → {"rows": (mechanism number, Rows), "kept": (digest, ExactTable of what passed)}.

    The window's digest meets each shard's table in a grouping of its own. As a side input it would not be safe: some runners
    hand out an empty one at times, and the draws would hang on that.
    """

    def __init__(self, terms: Terms, secret: Secret, shards: int) -> None:
        super().__init__()
        self._terms, self._secret, self._shards = terms, secret, shards

    def expand(self, counted: Any) -> Any:
        tables, digests = counted
        told = digests | "Digest to every shard" >> beam.FlatMap(_to_shards, self._shards).with_output_types(
            tuple[int, tuple[bool, bytes]]
        )
        sent = tables | "Table beside digest" >> beam.MapTuple(_encoded).with_output_types(
            tuple[int, tuple[bool, bytes]]
        )
        gated = (
            (sent, told)
            | "Tables and digests" >> beam.Flatten()
            | "Together by shard" >> beam.GroupByKey()
            | "Gate"
            >> beam.ParDo(GateFn(self._terms, self._secret))
            .with_output_types(tuple[int, Rows])
            .with_outputs(KEPT, main="rows")
        )
        return typed(gated, kept=tuple[bytes, ExactTable])


def _to_shards(digest: bytes, shards: int) -> Iterator[tuple[int, tuple[bool, bytes]]]:
    for shard in range(shards):
        yield shard, (False, digest)


def _encoded(shard: int, table: ExactTable) -> tuple[int, tuple[bool, bytes]]:
    return shard, (True, ExactTableCoder().encode(table))


def beside_digest(table: ExactTable, digest: bytes) -> list[tuple[bool, bytes]]:
    """A table and its digest as the grouping by shard would bring them together."""
    return [_encoded(0, table)[1], (False, digest)]


class GateFn(beam.DoFn):
    """Releases one shard of a window's keys."""

    def __init__(self, terms: Terms, secret: Secret) -> None:
        self._terms, self._secret = terms, secret

    @withheld("gate")
    def setup(self) -> None:
        self._draws = Draws(self._terms, self._secret)

    @withheld("gate")
    def process(
        self,
        element: tuple[int, Any],
        window: Any = beam.DoFn.WindowParam,
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterator[Any]:
        if not is_first_firing(pane):
            return
        parts = list(element[1])
        tables = [part for is_table, part in parts if is_table]
        if not tables:  # a shard without keys
            return
        (encoded,), (digest,) = tables, [part for is_table, part in parts if not is_table]  # one of each, or no release
        table = ExactTableCoder().decode(encoded)
        rows = self._terms.gate_mechanism.release(
            table, self._draws.identify(table.keys), self._draws.noise(window, digest, 0)
        )
        if len(rows):
            yield 0, in_numbers(rows, self._terms)
            if self._terms.then:
                yield beam.pvalue.TaggedOutput(KEPT, (digest, table.restrict(rows.keys)))


def in_numbers(rows: Rows, terms: Terms) -> Rows:
    """Steps of the gate's measure as the numbers they stand for."""
    shown = terms.gate.measure.shown
    return replace(rows, values=shown(rows.values), low=shown(rows.low), high=shown(rows.high))


class PublicKeysFn(beam.DoFn):
    """Every window's table holds the public keys, also where nobody touched them: shards of nothing, to be added to."""

    def __init__(self, terms: Terms, secret: Secret, shards: int) -> None:
        self._terms, self._secret, self._shards = terms, secret, shards

    @withheld("gate")
    def setup(self) -> None:
        keys = pa.array(public_keys_of(self._terms.gate_mechanism), pa.string())
        place = KeyedHash(derive_key(stage_key(self._terms, self._secret), "key shards"))
        self._parts = list(split_by_key(make_tally(self._terms).empty(keys), place, self._shards))

    @withheld("gate")
    def process(self, _: object) -> Iterator[tuple[int, ExactTable]]:
        yield from self._parts


class Draws:
    """The noise of every mechanism of a window: a function of the secret, the terms, the window and its whole table.

    The same data gives the same draws in every retry and replay. Other data, by however little, gives draws that are all
    independent of the first ones: were only some of them new, they would show which keys had changed.
    """

    def __init__(self, terms: Terms, secret: Secret) -> None:
        self._key = stage_key(terms, secret)
        self._terms, self._windows = terms, terms.window.windows
        self.identify = KeyedHash(derive_key(self._key, "noise keys"))

    def noise(self, carrier: Any, digest: bytes, mechanism: int) -> Noise:
        begin, end = self._windows.bounds(self._windows.carried(carrier))
        name = self._terms.mechanism_name(mechanism)
        seed = derive_key(
            self._key, "window", int(begin.timestamp()), int(end.timestamp()), digest, "mechanism", mechanism, name
        )
        return Noise(seed)
