"""Quantiles of a column over the units of every key that passed the gate.

The q-quantile is found by bisection over equal buckets between low and high: at each of h levels, is it below the
middle? That is so when S = (units below) - q (units in all) is at least 0. The answer is a coin that says yes with
probability Pr[S + G >= 0], G geometric noise: one word against one threshold, since the probability depends on S alone.

Why it is private. A unit has one value in a key, so it changes S by at most max(q, 1-q); in whole numbers, S is scaled
by the denominator of q, or q (units in all) is rounded up where that is too large. Between neighbours the odds of every
answer differ by at most exp(epsilon / (keys h quantiles)), and a unit changes at most `keys` keys. The rounding of
coins to 128 bits is charged to delta; there is no other.

Only low and high are certain: every value was clipped to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from math import expm1
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidegate.mechanisms.calibration import DIGITS, check_budget, noise_rate
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mechanism import Bounds, Role
from tidegate.mechanisms.noise import WORD_BITS, Coins, Noise
from tidegate.mechanisms.table import ExactTable, Floats, Ints, Rows, dense_spread
from tidegate.mechanisms.values import Spread, Value

MOST_BUCKETS = 4096
LARGEST_TABLE = 2**20
_SMALL_DENOMINATOR = 10
_CHUNK = 1 << 13  # keys at a time: their buckets stay in the processor's cache


class Quantiles:
    """Publish the quantiles `at` of what a key's units have in `column`, to within one of the `buckets`."""

    role: ClassVar[Role] = "per-key"

    def __init__(
        self,
        bounds: Bounds,
        *,
        epsilon: float,
        delta: float,
        column: str,
        low: float,
        high: float,
        at: Sequence[float] = (0.5,),
        buckets: int = 64,
        resolution: float | None = None,
        each: str = "mean",
    ) -> None:
        check_budget(epsilon, delta)
        self.value = Value.parse(column, low, high, resolution, each)
        self.at = _quantiles(at)
        whole = isinstance(buckets, int) and not isinstance(buckets, bool)
        if not whole or not 2 <= buckets <= MOST_BUCKETS or buckets & (buckets - 1):
            raise ValueError(f"buckets must be a power of two from 2 to {MOST_BUCKETS}, not {buckets!r}; write 64")
        if self.value.span < buckets:
            raise ValueError(
                f"buckets must be at most the steps between low and high, and {buckets} is more than "
                f"{self.value.span}; write fewer, or a smaller resolution"
            )
        self.levels = buckets.bit_length() - 1
        inner = range(1, buckets)
        self.spread = Spread(self.value, tuple(self.value.low + self.value.span * i // buckets for i in inner))
        self.needs = (self.spread,)
        self.measures = tuple(f"quantile({column}, {float(q):g})" for q in self.at)
        tosses = self.levels * len(self.at)
        with localcontext() as context:
            context.prec = DIGITS
            per_toss = Decimal(repr(epsilon)) / tosses
            self.rate = noise_rate(per_toss, Decimal(repr(delta)), Bounds(bounds.keys, 1))
        # Each coin is rounded by half a unit of 2^-128, and taken for certain where it is within one of it.
        distance = 1.5 * 2.0**-WORD_BITS
        a_key = tosses * distance * (2 + expm1(float(self.rate)))
        self.guarantee = Guarantee(epsilon, -expm1(-a_key * bounds.keys), bounds.keys, 1, a_key)
        if self.guarantee.delta > delta:
            raise ValueError(f"delta must be at least {self.guarantee.delta:.3g} here, not {delta:g}; write that")
        _ = self._largest

    @cached_property
    def _largest(self) -> int:
        """Beyond this S a coin is certain."""
        steps = int(WORD_BITS * Decimal(2).ln() / self.rate) + 2
        largest = steps * max(change for change, _ in map(_scale, self.at))
        if largest > LARGEST_TABLE:
            raise ValueError(
                f"epsilon must be larger for {len(self.at)} quantiles over {2**self.levels} buckets: a unit would weigh "
                f"only {float(self.rate):.3g} in each comparison; write fewer buckets or quantiles, or a larger epsilon"
            )
        return largest

    @cached_property
    def coins(self) -> tuple[Coins, ...]:
        """For each quantile, the chance to go down at S = -largest, ..., largest."""
        return tuple(below_coins(self.rate, _scale(q)[0], self._largest) for q in self.at)

    def describe(self) -> Mapping[str, Any]:
        return {
            "quantiles": [float(q) for q in self.at],
            "buckets": 2**self.levels,
            "bucket_width": self.value.number(self.value.span) / 2**self.levels,
            "noise_rate": float(self.rate),
        }

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        spread, count = table.spreads[self.spread.name], len(self.at)
        found = np.empty((len(table), count))
        parts = [noise.part(number) for number in range(count)]
        for begin in range(0, len(table), _CHUNK):
            chunk = slice(begin, begin + _CHUNK)
            below = np.zeros((len(ids[chunk]), 2**self.levels + 1), np.int64)
            np.cumsum(dense_spread(spread[chunk], 2**self.levels), axis=1, out=below[:, 1:])
            for number in range(count):
                found[chunk, number] = self._search(below, ids[chunk], parts[number], number)
        found.sort(axis=1)  # a higher quantile is never below a lower one
        low, high = (self.value.number(end) for end in (self.value.low, self.value.high))
        return Rows(
            table.keys.take(pa.array(np.repeat(np.arange(len(table)), count))),
            found.reshape(-1),
            np.full(found.size, low),
            np.full(found.size, high),
            np.tile(np.arange(count, dtype=np.int32), len(table)),
        )

    def _search(self, below: Ints, ids: Ids, noise: Noise, number: int) -> Floats:
        """The middle of the bucket that each key's quantile is found in."""
        flat, first = below.reshape(-1), np.arange(len(ids)) * below.shape[1]
        units, leaf = below[:, -1], np.zeros(len(ids), np.int64)
        words = noise.words(ids, self.levels)
        for level in reversed(range(self.levels)):
            excess = self.excess(flat.take(first + leaf + 2**level), units, number)
            down = self.coins[number].toss(next(words), np.clip(excess + self._largest, 0, 2 * self._largest))
            leaf += 2**level * ~down
        width = self.value.span / 2**self.levels
        return self.value.shown(self.value.low + (leaf + 0.5) * width)

    def excess(self, below: Ints, units: Ints, number: int) -> Ints:
        """S in whole numbers."""
        q = self.at[number]
        _, scale = _scale(q)
        if scale == 1:
            return below - -(-q.numerator * units // q.denominator)
        return scale * below - q.numerator * units


def below_coins(rate: Decimal, change: int, largest: int) -> Coins:
    """Pr[S + G >= 0] for S = -largest, ..., largest, where a unit changes S by so much; certain at both ends."""
    with localcontext() as context:
        context.prec = DIGITS
        a = (-rate / change).exp()
        tail, rising = 1 / (1 + a), []
        for _ in range(largest):
            tail *= a  # Pr[G >= s] for s = 1, 2, ...
            rising.append(int((tail * 2**WORD_BITS).to_integral_value()))
    return Coins([*reversed(rising), *(2**WORD_BITS - tail for tail in rising), 2**WORD_BITS])


def _scale(q: Fraction) -> tuple[int, int]:
    """How much one unit changes S at most, and what S is scaled by."""
    if q.denominator > _SMALL_DENOMINATOR:
        return 1, 1
    return max(q.numerator, q.denominator - q.numerator), q.denominator


def _quantiles(at: Any) -> tuple[Fraction, ...]:
    given = [at] if isinstance(at, (int, float)) and not isinstance(at, bool) else at
    if isinstance(given, str) or not isinstance(given, Sequence) or not 1 <= len(given) <= 100:
        raise ValueError(f"at must be a list of quantiles, not {str(at)[:40]}; write [0.5, 0.9]")
    for q in given:
        if isinstance(q, bool) or not isinstance(q, (int, float)) or not 0 < q < 1:
            raise ValueError(f"at must hold numbers above 0 and below 1, not {q!r}; write [0.5, 0.9]")
    if sorted(set(given)) != list(given):
        raise ValueError(f"at must be in order and without repetition, not {list(given)}; write {sorted(set(given))}")
    return tuple(Fraction(repr(q)) for q in given)
