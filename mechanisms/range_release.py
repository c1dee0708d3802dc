"""A gate that publishes a range or nothing, for keys that are known beforehand.

Every listed key gets geometric noise G without an end, and is published as v = n + G with the range [v - L, v + L] if
|G| <= L, otherwise not at all. A key that nobody listed is never published: its mere appearance would give its first
unit away, which is what the thresholding gates are for.

Why it is private. rate = epsilon / l1. What one neighbour can show and the other cannot has probability b(x) =
(a^(L-x+1) - a^(L+1)) / (1+a) for a key that changed by x; the chance to show nothing is the same for both. So delta = 1
- product of (1 - b(x)) over the unit's keys, however many keys there are in all. b is convex with b(0) = 0, so the
worst is to change as few keys as possible, each by c. What the sampler cuts off, and its distance, are charged in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidegate.mechanisms.calibration import DIGITS, LARGEST_HALF_WIDTH, check_budget, noise_rate
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mechanism import Bounds, Role
from tidegate.mechanisms.noise import BoundedGeometric, Noise, cut_off, reach
from tidegate.mechanisms.public_keys import Listed, Mask, key_list
from tidegate.mechanisms.table import ExactTable, Rows


class RangeRelease:
    """Publish [v - L, v + L] for a listed key when the noise stayed within L, the smallest that keeps (epsilon, delta)."""

    role: ClassVar[Role] = "gate"

    def __init__(self, bounds: Bounds, *, epsilon: float, delta: float, keys: Sequence[str]) -> None:
        check_budget(epsilon, delta)
        self.public = key_list(keys)
        self._listed = Listed(self.public)
        self.half_width, rate = calibrate(epsilon, delta, bounds)
        self.distribution = BoundedGeometric(rate, max(reach(rate), self.half_width))
        with localcontext() as context:
            context.prec = 400
            a_key = float(_key_delta(self.half_width, rate, min(bounds.per_key, bounds.l1)))
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, bounds.per_key, a_key, 0.0)

    def describe(self) -> Mapping[str, Any]:
        return {
            "public_keys": len(self.public),
            "half_width": self.half_width,
            "noise_rate": float(self.distribution.rate),
            "chance_of_a_range": self.survival(0),
        }

    def survival(self, n: int) -> float:  # noqa: ARG002  (the same for every count)
        """Pr[|G| <= L], whatever the count."""
        with localcontext() as context:
            context.prec = DIGITS
            rate = self.distribution.rate
            return float(1 - 2 * (-rate * (self.half_width + 1)).exp() / (1 + (-rate).exp()))

    def admits(self, keys: pa.Array) -> Mask:
        return self._listed.among(keys)

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        drawn = self.distribution.draw(noise, ids)
        shown = np.flatnonzero((np.abs(drawn) <= self.half_width) & self._listed.in_table(table.keys, ids))
        values = (table.counts + drawn)[shown].astype(np.float64)
        return Rows(table.keys.take(pa.array(shown)), values, values - self.half_width, values + self.half_width)


def calibrate(epsilon: float, delta: float, bounds: Bounds) -> tuple[int, Decimal]:
    """The smallest L that keeps (epsilon, delta), and the noise rate."""
    with localcontext() as context:
        target = Decimal(repr(delta))
        context.prec = DIGITS - target.adjusted()
        c = min(bounds.per_key, bounds.l1)
        rate = noise_rate(Decimal(repr(epsilon)), target, bounds)
        per_key = 1 - ((1 - target).ln() / (bounds.l1 // c)).exp()
        estimate = ((1 - (-rate * c).exp()) / ((1 + (-rate).exp()) * per_key)).ln() / rate
        if estimate > LARGEST_HALF_WIDTH:
            raise ValueError(
                f"epsilon {epsilon:g} is too small for {bounds.keys} keys of {bounds.per_key} each: the range would "
                f"reach {float(estimate):.3g}; write a larger epsilon or tighter bounds"
            )
        width = max(c, int(estimate) + c)
        while _exact_delta(width, rate, bounds) > target:
            width += 1
        while width > c and _exact_delta(width - 1, rate, bounds) <= target:
            width -= 1
        return width, rate


def exact_delta(width: int, rate: Decimal, bounds: Bounds) -> float:
    """The delta that half-width L really has, the sampler's distance included."""
    with localcontext() as context:
        context.prec = 400
        return float(_exact_delta(width, rate, bounds))


def _exact_delta(width: int, rate: Decimal, bounds: Bounds) -> Decimal:
    c = min(bounds.per_key, bounds.l1)
    full, left = divmod(bounds.l1, c)
    kept = (1 - _key_delta(width, rate, c)) ** full
    return 1 - (kept * (1 - _key_delta(width, rate, left)) if left else kept)


def _key_delta(width: int, rate: Decimal, change: int) -> Decimal:
    only_one = (-rate * (width - change + 1)).exp() - (-rate * (width + 1)).exp()
    noise = BoundedGeometric(rate, max(reach(rate), width))
    distance = noise.distance + cut_off(rate, noise.k)
    charge = (1 + (rate * change).exp()) * distance.numerator / distance.denominator
    return min(Decimal(1), only_one / (1 + (-rate).exp()) + charge)
