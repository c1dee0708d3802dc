"""Exact arithmetic for privacy claims: distributions as fractions, the hockey-stick divergence as an upper bound.

e^epsilon is irrational, so it is replaced by a fraction just below it: the divergence computed with it is never too small.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from itertools import product
from math import lcm, prod


@dataclass(frozen=True)
class Distribution:
    """Masses as whole numbers over a common total: exact, and much faster than fractions."""

    mass: Mapping[Hashable, int]
    total: int


def common(probabilities: Sequence[Fraction]) -> tuple[list[int], int]:
    """Numerators over the common denominator."""
    total = lcm(*(p.denominator for p in probabilities))
    return [p.numerator * (total // p.denominator) for p in probabilities], total


def exp_below(epsilon: float) -> Fraction:
    """A fraction below e^epsilon, by less than one part in 10^60."""
    with localcontext() as context:
        context.prec = 80
        exact = Decimal(repr(epsilon)).exp()
        places = Decimal(1).scaleb(exact.adjusted() - 60)
        return Fraction(exact.quantize(places, rounding=ROUND_FLOOR))


def hockey_stick(p: Distribution, q: Distribution, epsilon: float) -> Fraction:
    """The smallest delta with P(S) <= e^epsilon Q(S) + delta for every set S."""
    assert p.total == q.total
    factor = exp_below(epsilon)
    excess = 0
    for outcome, mass in p.mass.items():
        excess += max(0, mass * factor.denominator - q.mass.get(outcome, 0) * factor.numerator)
    return Fraction(excess, p.total * factor.denominator)


def delta_between(p: Distribution, q: Distribution, epsilon: float) -> Fraction:
    """Both directions."""
    return max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))


def release_of_one_key(noise: Sequence[Fraction], k: int, n: int, threshold: int | None = None) -> Distribution:
    """What is seen of a key with exact count n: a value above the threshold, or nothing."""
    threshold = k if threshold is None else threshold
    masses, total = common(noise)
    seen: dict[Hashable, int] = {}
    for j, mass in zip(range(-k, k + 1), masses, strict=True):
        # A key that nobody touched is not in the table and gets no draw at all.
        outcome: Hashable = n + j if n > 0 and n + j > threshold else None
        seen[outcome] = seen.get(outcome, 0) + mass
    return Distribution(seen, total)


def joint(parts: Sequence[Distribution]) -> Distribution:
    """Independent keys side by side."""
    return Distribution(
        {
            outcomes: prod(part.mass[outcome] for part, outcome in zip(parts, outcomes, strict=True))
            for outcomes in product(*(part.mass for part in parts))
        },
        prod(part.total for part in parts),
    )
