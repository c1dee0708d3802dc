"""A gate of geometric noise without an end, and a threshold: the classical way, for comparison.

A key with exact count n gets two-sided geometric noise G, Pr[G = z] = (1-a)/(1+a) a^|z|, a = exp(-rate), and is published as
v = n + G if and only if v >= T. Nothing is promised about how far v is from n.

Why it is private. rate = epsilon / l1. A key that both neighbours have shows any v with probabilities that differ by at
most exp(rate x) where it changed by x: no delta. A key that only one of them has shows with probability
p(x) = a^(T-x) / (1+a), x <= c, which goes to delta: delta = 1 - product of (1 - p(x)) over the unit's new keys, at its
largest over how many there are. In the other direction, not showing a new key is likelier by 1/(1 - p(x)), which must fit
into the part of epsilon that the key does not use otherwise; no further slack is needed. What the sampler cuts off, and its
distance from the distribution, both below 2^-120, are charged in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal, localcontext
from typing import Any, ClassVar

import numpy as np

from tidegate.mechanisms.calibration import DIGITS, LARGEST_HALF_WIDTH, check_budget, noise_rate
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mechanism import Bounds, Role
from tidegate.mechanisms.noise import BoundedGeometric, Noise, cut_off, reach
from tidegate.mechanisms.table import ExactTable, Rows


class GeometricThreshold:
    """Publish n + G for the keys where it reaches T, the smallest for which the reasons above hold."""

    role: ClassVar[Role] = "gate"

    def __init__(self, bounds: Bounds, *, epsilon: float, delta: float) -> None:
        check_budget(epsilon, delta)
        self.threshold, rate = calibrate(epsilon, delta, bounds)
        self.distribution = BoundedGeometric(rate, reach(rate))
        with localcontext() as context:
            context.prec = DIGITS - Decimal(repr(delta)).adjusted()
            c = min(bounds.per_key, bounds.l1)
            charge = _charge(rate, c)
            new = float(_appears(self.threshold, rate, c) + charge)
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, bounds.per_key, float(charge), new)

    def describe(self) -> Mapping[str, Any]:
        return {"threshold": self.threshold, "noise_rate": float(self.distribution.rate)}

    def survival(self, n: int) -> float:
        """Pr[n + G >= T]; a key with nothing behind it has no draw."""
        if n <= 0:
            return 0.0
        with localcontext() as context:
            context.prec = DIGITS
            rate, gap = self.distribution.rate, self.threshold - n
            a = (-rate).exp()
            tail = (-rate * gap).exp() / (1 + a) if gap > 0 else 1 - (-rate * (1 - gap)).exp() / (1 + a)
            return float(tail)

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        values = table.counts + self.distribution.draw(noise, ids)
        passed = np.flatnonzero(values >= self.threshold)
        unsaid = np.full(len(passed), np.nan)
        return Rows(table.keys.take(passed), values[passed].astype(np.float64), unsaid, unsaid)


def calibrate(epsilon: float, delta: float, bounds: Bounds) -> tuple[int, Decimal]:
    """The smallest T that keeps (epsilon, delta), and the noise rate."""
    with localcontext() as context:
        target = Decimal(repr(delta))
        context.prec = DIGITS - target.adjusted()
        c = min(bounds.per_key, bounds.l1)
        rate = noise_rate(Decimal(repr(epsilon)), target, bounds)
        per_key = 1 - ((1 - target).ln() / bounds.keys).exp()
        allowed = min(per_key, 1 - (-rate * c).exp())
        estimate = -(allowed * (1 + (-rate).exp())).ln() / rate
        if estimate > LARGEST_HALF_WIDTH:
            raise ValueError(
                f"epsilon {epsilon:g} is too small for {bounds.keys} keys of {bounds.per_key} each: the threshold would "
                f"be {float(estimate):.3g}; write a larger epsilon or tighter bounds"
            )
        threshold = max(c + 1, c + int(estimate.to_integral_value(ROUND_CEILING)))
        while not _keeps(threshold, rate, target, bounds):
            threshold += 1
        while threshold > c + 1 and _keeps(threshold - 1, rate, target, bounds):
            threshold -= 1
        return threshold, rate


def exact_delta(threshold: int, rate: Decimal, bounds: Bounds) -> float:
    """The delta that the threshold really has, the sampler's distance included."""
    with localcontext() as context:
        context.prec = 400
        return float(_exact_delta(threshold, rate, bounds))


def _keeps(threshold: int, rate: Decimal, target: Decimal, bounds: Bounds) -> bool:
    """Delta is kept, and a new key that stays away fits into the epsilon that it leaves unused."""
    c = min(bounds.per_key, bounds.l1)
    # With a bound on every key alone, a new key frees all that a key may use; with one on the total, what it adds.
    least = c if bounds.l1 == bounds.keys * bounds.per_key else 1
    fits = all(-(1 - _appears(threshold, rate, x)).ln() <= rate * max(x, least) for x in (least, c))
    return fits and _exact_delta(threshold, rate, bounds) <= target


def _exact_delta(threshold: int, rate: Decimal, bounds: Bounds) -> Decimal:
    worst = Decimal(0)
    for changes in _worst_changes(bounds):
        kept = Decimal(1)
        for change, keys in changes:
            kept *= (1 - _appears(threshold, rate, change) - _charge(rate, change)) ** keys
        worst = max(worst, 1 - kept)
    return worst


def _worst_changes(bounds: Bounds) -> list[list[tuple[int, int]]]:
    """What a unit may do to new keys, as (change, how many keys), one of which is the worst it can do.

    p is convex, so m new keys are worst with c in as many as possible, one with what is left over, and 1 in the others.
    Between two m for which nothing is left over that is linear or convex in m, so only the ends of it can be worst.
    """
    c, l1, most = min(bounds.per_key, bounds.l1), bounds.l1, min(bounds.keys, bounds.l1)
    if c == 1 or most * c == l1:
        return [[(c, most)]]
    fewest = -(-l1 // c)
    even = range(fewest + (l1 - fewest) % (c - 1), most + 1, c - 1)
    found = []
    for m in {fewest, *even[:1], *even[-1:], most}:
        full, left = divmod(l1 - m, c - 1)
        rest = m - full - (1 if left else 0)
        found.append([(c, full), *([(left + 1, 1)] if left else []), (1, rest)])
    return found


def _appears(threshold: int, rate: Decimal, change: int) -> Decimal:
    """Pr[change + G >= T] for T above the change."""
    return (-rate * (threshold - change)).exp() / (1 + (-rate).exp())


def _charge(rate: Decimal, change: int) -> Decimal:
    noise = BoundedGeometric(rate, reach(rate))
    distance = noise.distance + cut_off(rate, noise.k)
    return (1 + (rate * change).exp()) * distance.numerator / distance.denominator
