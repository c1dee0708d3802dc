"""The default gate: truncated geometric noise, one draw for three promises.

A key with exact count n gets integer noise j in [-k, k], Pr[j] = C a^|j|, a = exp(-rate), and is published as v = n + j if
and only if v > k. From that single draw follow

* the private choice of keys: a key that no unit stands behind (n = 0) can never reach k + 1, and for l0 = c = 1 no
  (epsilon, delta)-private choice lets a rare key through more often;
* the estimate v of the count, at no further cost;
* the range [v - k, v + k], which holds the exact count with certainty, since |j| <= k always.

Why it is private. Let a unit add up to c to each of l0 keys and take rate = epsilon / (l0 c). Where both neighbours can
publish v, the probabilities differ by at most exp(rate c) a key. What only one of them can publish has probability at most

    d1(k) = a^(k-c+1) (1 - a^c) / (1 + a - 2 a^(k+1))

a key, in both directions, and the l0 keys are drawn independently: delta(k) = 1 - (1 - d1)^l0. The sampler is within a
distance h of this distribution (`BoundedGeometric.distance`), which is charged as (1 + exp(rate c)) h a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal, localcontext
from typing import Any, ClassVar

import numpy as np

from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mechanism import Bounds, Role
from tidegate.mechanisms.noise import WORD_BITS, BoundedGeometric, Noise
from tidegate.mechanisms.table import ExactTable, Rows

_DIGITS = 60
LARGEST_HALF_WIDTH = 2**40
"""Counts must stay far inside the integers that a float64 shows exactly (2^53)."""


SMALLEST_EPSILON = 1e-30
"""Far below any use; it keeps the arithmetic of the calibration inside its digits."""


class TruncatedGeometric:
    """Publish n + j for the keys where it exceeds k; k is the smallest that keeps (epsilon, delta)."""

    role: ClassVar[Role] = "gate"

    def __init__(self, bounds: Bounds, *, epsilon: float, delta: float) -> None:
        if not SMALLEST_EPSILON <= epsilon < float("inf"):
            raise ValueError(
                f"epsilon must be at least {SMALLEST_EPSILON:g} and finite, not {epsilon:g}; write a number such as 1.0"
            )
        if not 0 < delta < 1:
            raise ValueError(
                f"delta must be above 0 and below 1, not {delta:g}: with unknown keys nothing can be published at "
                f"delta 0; write a number such as 1e-9"
            )
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, bounds.per_key)
        self.half_width, rate = calibrate(epsilon, delta, bounds)
        self.distribution = BoundedGeometric(rate, self.half_width)

    def describe(self) -> Mapping[str, Any]:
        return {
            "half_width": self.half_width,
            "threshold": self.half_width + 1,
            "noise_rate": float(self.distribution.rate),
        }

    def survival(self, n: int) -> float:
        """Pr[n + j > k]."""
        return float(_tail(self.distribution.rate, self.half_width, self.half_width + 1 - n))

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        values = table.counts + self.distribution.draw(noise, ids)
        passed = np.flatnonzero(values > self.half_width)
        shown = values[passed].astype(np.float64)
        return Rows(table.keys.take(passed), shown, shown - self.half_width, shown + self.half_width)


def calibrate(epsilon: float, delta: float, bounds: Bounds) -> tuple[int, Decimal]:
    """The smallest k that keeps (epsilon, delta), and the noise rate; decimal arithmetic, so delta may be 1e-300.

    The closed form gives a candidate; what counts is the check of delta(k) itself on either side of it.
    """
    with localcontext() as context:
        target = Decimal(repr(delta))
        context.prec = _DIGITS - target.adjusted()
        c = bounds.per_key
        rate = _rate(Decimal(repr(epsilon)), target, bounds)
        a = (-rate).exp()
        per_key = 1 - ((1 - target).ln() / bounds.keys).exp()
        ratio = ((rate * c).exp() - 1 + 2 * per_key) / (per_key * (1 + a))
        estimate = ratio.ln() / rate
        if estimate > LARGEST_HALF_WIDTH:
            raise ValueError(
                f"epsilon {epsilon:g} is too small for {bounds.keys} keys of {c} each: the noise would reach "
                f"{float(estimate):.3g}; write a larger epsilon or tighter bounds"
            )
        k = max(c, int(estimate.to_integral_value(ROUND_CEILING)) - 1)
        while _exact_delta(k, rate, bounds) > target:
            k += 1
        while k > c and _exact_delta(k - 1, rate, bounds) <= target:
            k -= 1
        return k, rate


def exact_delta(k: int, rate: Decimal, bounds: Bounds) -> float:
    """The delta that half-width k really has, the sampler's distance included."""
    with localcontext() as context:
        context.prec = 400
        return float(_exact_delta(k, rate, bounds))


def _exact_delta(k: int, rate: Decimal, bounds: Bounds) -> Decimal:
    a, c = (-rate).exp(), bounds.per_key
    only_one = (-rate * (k - c + 1)).exp() * (1 - (-rate * c).exp()) / (1 + a - 2 * (-rate * (k + 1)).exp())
    distance = BoundedGeometric(rate, k).distance
    charge = (1 + (rate * c).exp()) * distance.numerator / distance.denominator
    d1 = min(Decimal(1), only_one + charge)
    return 1 - (1 - d1) ** bounds.keys


def _rate(epsilon: Decimal, delta: Decimal, bounds: Bounds) -> Decimal:
    """epsilon / (l0 c), but never so high that the sampler's rounding would matter next to delta.

    Words have 128 bits, so a likelihood ratio near 2^128 cannot be drawn. Noise calibrated to a smaller epsilon is private
    for the larger one too; the cap is reached only at epsilons of 30 to 60 a key, where the noise is all but nil anyway.
    """
    cap = (delta / bounds.keys).ln() + (WORD_BITS - 20) * Decimal(2).ln()
    if cap < Decimal("0.1"):
        raise ValueError(
            f"delta {delta:g} is below what 128-bit noise can promise for {bounds.keys} keys; write at least 1e-30"
        )
    return min(epsilon / (bounds.keys * bounds.per_key), cap / bounds.per_key)


def _tail(rate: Decimal, k: int, m: int) -> Decimal:
    """Pr[j >= m] for the noise on [-k, k]."""
    if m > k:
        return Decimal(0)
    if m <= -k:
        return Decimal(1)
    if m <= 0:
        return 1 - _tail(rate, k, 1 - m)
    with localcontext() as context:
        context.prec = _DIGITS
        a, beyond = (-rate).exp(), (-rate * (k + 1)).exp()
        return ((-rate * m).exp() - beyond) / (1 + a - 2 * beyond)
