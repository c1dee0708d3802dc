"""Choosing among the keys that passed the gate by their counts: permute-and-flip, or the exponential mechanism.

Over all keys that could ever be, neither is usable: there are too many to weigh, and most are unknown. On the keys that
the gate let through both are, and they look at exact counts.

* permute-and-flip (McKenna, Sheldon 2020): go through the keys in random order, and take each with probability
  exp(-rate gap), where gap is what its count is short of the largest. Never worse than the exponential mechanism.
* the exponential mechanism (McSherry, Talwar 2007): take a key with probability proportional to exp(-rate gap).

Why it is private. One unit raises at most `keys` counts by at most c each and lowers none, so the difference of two
keys changes by at most c; with rate = epsilon / c the odds of every choice change by at most exp(epsilon). (For sums
that a unit can also lower, c is the distance between the most it adds and the most it takes away; without knowing the
direction, the usual rate is half as large.) This holds for any number of changed keys, so it costs the same whatever
`keys` is.

All of it is whole numbers: a coin is one 128-bit word against one threshold, the random order is that of words, and the
exponential mechanism first picks a gap by exact integer weights and then one of the keys that have it. Large counts
(sums in small steps) are taken in coarser steps, fine enough to be far below the noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, localcontext
from functools import cached_property
from itertools import accumulate
from math import expm1
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pyarrow as pa

from tidegate.mechanisms.calibration import DIGITS, check_budget
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mechanism import Bounds, Identify, Role
from tidegate.mechanisms.noise import WORD_BITS, Coins, Noise, Words, decaying_coins
from tidegate.mechanisms.table import ExactTable, Ints, Rows, concat_texts

Method = Literal["permute-and-flip", "exponential"]
LARGEST_TABLE = 2**22
_STEPS = 256  # how finely the noise is resolved
_MOST_KEYS_BITS = 32
_FLIP, _ORDER, _PICK = range(3)


class Chooser:
    """One private choice, at a cost of epsilon; `rounds` of them share one epsilon."""

    def __init__(self, bounds: Bounds, epsilon: float, delta: float, rounds: int, method: Any) -> None:
        check_budget(epsilon, delta)
        if method not in get_args(Method):
            raise ValueError(f"method must be permute-and-flip or exponential, not {method!r}; write permute-and-flip")
        self.method: Method = method
        self.rounds = rounds
        fine = max(1, min(_STEPS, round(_STEPS * epsilon / rounds)))
        self.step = max(1, bounds.apart // fine)
        # Rounding down to steps may add one to the difference of two keys that move in opposite directions.
        apart = -(-bounds.apart // self.step) + (0 if bounds.apart == bounds.per_key or self.step == 1 else 1)
        with localcontext() as context:
            context.prec = DIGITS
            # Coins are rounded to 2^-128, one for each key: what that may add to delta bounds the rate.
            cap = Decimal(repr(delta)).ln() + (WORD_BITS - _MOST_KEYS_BITS - 4) * Decimal(2).ln() - Decimal(rounds).ln()
            if cap < Decimal("0.1"):
                raise ValueError(f"delta {delta:g} is below what 128-bit coins can promise; write at least 1e-26")
            self.rate = min(Decimal(repr(epsilon)) / rounds, cap) / apart
        if WORD_BITS * Decimal(2).ln() / self.rate > LARGEST_TABLE:
            raise ValueError(f"epsilon must be larger for {rounds} choices, not {epsilon:g}; write a larger one")
        self.delta = rounds * 2.0 ** (_MOST_KEYS_BITS - WORD_BITS) * (2 + expm1(float(self.rate * apart)))

    @cached_property
    def thresholds(self) -> list[int]:
        return decaying_coins(self.rate, LARGEST_TABLE + 2)

    @cached_property
    def _coins(self) -> Coins:
        return Coins(self.thresholds)

    def utilities(self, counts: Ints) -> Ints:
        """Counts in the steps that choices are made in."""
        return counts // self.step

    def within_reach(self, utilities: Ints, wanted: int) -> Ints:
        """The places of those that can be among the first `wanted`: all others have coins that never fall."""
        if len(utilities) <= wanted:
            return np.arange(len(utilities))
        least = np.partition(utilities, len(utilities) - wanted)[len(utilities) - wanted]
        return np.flatnonzero(utilities > least - len(self.thresholds))

    def choose(self, utilities: Ints, ids: Ids, noise: Noise) -> int:
        """The place of the chosen one."""
        gaps = np.minimum(utilities.max() - utilities, len(self.thresholds) - 1)
        if self.method == "exponential":
            gaps_there, members = np.unique(gaps, return_counts=True)
            edges = list(
                accumulate(self.thresholds[gap] * int(count) for gap, count in zip(gaps_there, members, strict=True))
            )
            picked = _uniform(noise.part(_PICK), edges[-1])
            chosen = next(gap for gap, edge in zip(gaps_there, edges, strict=True) if picked < edge)
            fallen = np.flatnonzero(gaps == chosen)
        else:
            fallen = np.flatnonzero(self._coins.toss(next(noise.part(_FLIP).words(ids, 1)), gaps))
        return int(fallen[_first(noise.part(_ORDER), ids[fallen])])


class Choose:
    """Publish one of the keys that passed, likely one with a count near the largest."""

    role: ClassVar[Role] = "per-window"
    measures = ("choice",)

    def __init__(self, bounds: Bounds, *, epsilon: float, delta: float, method: str = "permute-and-flip") -> None:
        self.chooser = Chooser(bounds, epsilon, delta, 1, method)
        self.guarantee = Guarantee(epsilon, self.chooser.delta, bounds.keys, bounds.per_key)

    def describe(self) -> Mapping[str, Any]:
        return {"method": self.chooser.method, "rate": float(self.chooser.rate), "step": self.chooser.step}

    def summarize(self, table: ExactTable) -> bytes:
        return pack(self.chooser, table.keys, self.chooser.utilities(table.counts), 1)

    def merge(self, left: bytes, right: bytes) -> bytes:
        return pack(self.chooser, *together(left, right), 1)

    def release(self, summary: bytes, identify: Identify, noise: Noise) -> Rows:
        keys, utilities = unpack(summary)
        if not len(keys):
            return Rows.of_keys(keys)
        return Rows.of_keys(keys.take([self.chooser.choose(utilities, identify(keys), noise)]))


def pack(chooser: Chooser, keys: pa.Array, utilities: Ints, wanted: int) -> bytes:
    """The keys that can be chosen, with their utilities."""
    rows = chooser.within_reach(utilities, wanted)
    batch = pa.RecordBatch.from_pydict({"key": keys.take(pa.array(rows)), "utility": pa.array(utilities[rows])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def unpack(summary: bytes) -> tuple[pa.Array, Ints]:
    with pa.ipc.open_stream(pa.py_buffer(summary)) as reader:
        batch = reader.read_next_batch()
    return batch.column("key"), batch.column("utility").to_numpy()


def together(left: bytes, right: bytes) -> tuple[pa.Array, Ints]:
    (keys, utilities), (more_keys, more_utilities) = unpack(left), unpack(right)
    return concat_texts([keys, more_keys]), np.concatenate([utilities, more_utilities])


def _uniform(noise: Noise, size: int) -> int:
    """A number below `size`, uniform to within size / 2^384."""
    one = np.zeros((1, 2), np.uint64)
    word = 0
    for high, low in noise.words(one, 3):
        word = (word << WORD_BITS) | (int(high[0]) << 64) | int(low[0])
    return word * size >> 3 * WORD_BITS


def _first(noise: Noise, ids: Ids) -> int:
    """The place of the one that comes first in random order."""
    places, round_ = np.arange(len(ids)), 0
    while True:  # words that agree are drawn again, so that order is never decided by place
        high, low = _word(noise, ids[places], round_)
        smallest = np.flatnonzero(high == high.min())
        smallest = smallest[low[smallest] == low[smallest].min()]
        places, round_ = places[smallest], round_ + 1
        if len(places) == 1:
            return int(places[0])


def _word(noise: Noise, ids: Ids, number: int) -> Words:
    return next(noise.part(number).words(ids, 1))
