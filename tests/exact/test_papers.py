"""Statements in the literature that docs/privacy.md calls wrong, each with the numbers that show it."""

from __future__ import annotations

from collections.abc import Hashable
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from math import ceil, comb, exp, log

import pytest

from tests.exact.divergence import ALL_WORDS, Distribution, common, delta_between, odds, seen, together
from tidegate.mechanisms.geometric_threshold import GeometricThreshold
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.optimal_selection import OptimalSelection
from tidegate.mechanisms.truncated_geometric import TruncatedGeometric


def geometric(rate: float, reach: int) -> list[Fraction]:
    """Two-sided geometric noise on [-reach, reach], with both tails at the ends."""
    with localcontext() as context:
        context.prec = 80
        a = (-Decimal(repr(rate))).exp()
        inside = [(1 - a) / (1 + a) * a ** abs(j) for j in range(-reach, reach + 1)]
        inside[0] = inside[-1] = a**reach / (1 + a)
        return [Fraction(p) for p in inside]


def range_release(rate: float, width: int, value: int) -> Distribution:
    """Publish value + noise if the noise stayed within the width, otherwise nothing."""
    reach = 10 * width
    masses, _ = common(geometric(rate, reach))
    seen: dict[Hashable, int] = {}
    for j, mass in zip(range(-reach, reach + 1), masses, strict=True):
        outcome = value + j if abs(j) <= width else None
        seen[outcome] = seen.get(outcome, 0) + mass
    return Distribution(seen, sum(masses))


def test_the_width_of_a_range_must_grow_with_the_sensitivity_not_shrink() -> None:
    # Claimed for a range of half-width L and sensitivity D: delta <= exp(-(L + D - 1) epsilon / D).
    epsilon, sensitivity, width = 1.0, 3, 8
    claimed = exp(-(width + sensitivity - 1) * epsilon / sensitivity)
    here, there = (range_release(epsilon / sensitivity, width, value) for value in (0, sensitivity))
    apart = delta_between(here, there, epsilon)
    assert claimed == pytest.approx(3.567e-2, rel=1e-3)
    assert float(apart) == pytest.approx(4.984e-2, rel=1e-3)
    assert float(apart) > claimed


def test_a_key_can_be_published_below_the_claimed_lower_bound() -> None:
    # Claimed: what is published with probability p has a count of at least ln(p/delta + 1)/epsilon - 1.
    epsilon, delta, p = 0.05, 1e-19, 0.5
    claimed = log(p / delta + 1) / epsilon - 1
    gate = TruncatedGeometric(Bounds(1, 1), epsilon=epsilon, delta=delta)
    published_at = next(n for n in range(1, 2000) if gate.survival(n) >= p)
    assert claimed == pytest.approx(860.1, abs=0.05)
    assert published_at == 803
    # The bound that is true: n >= ln(1 + (p/delta)(e^epsilon - 1))/epsilon.
    assert published_at >= ceil(log(1 + p / delta * (exp(epsilon) - 1)) / epsilon)


def test_keeping_the_number_of_events_is_not_keeping_neighbours() -> None:
    # Claimed: a deterministic map that keeps the l1 norm can be put before any private mechanism for free.
    def gather_by_parity(counts: tuple[int, int]) -> tuple[int, int]:
        size = sum(counts)
        return (size, 0) if size % 2 == 0 else (0, size)

    one, other = (50, 50), (50, 51)
    mapped = gather_by_parity(one), gather_by_parity(other)
    assert [sum(m) for m in mapped] == [sum(one), sum(other)]
    assert sum(abs(a - b) for a, b in zip(*mapped, strict=True)) == 201


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-19), (0.1, 1e-10), (0.3, 1e-5)])
def test_a_private_choice_of_keys_beats_the_claimed_lower_bound_at_small_epsilons(epsilon: float, delta: float) -> None:
    # The factor e^epsilon - 1 that the claim leaves out is below 1 for epsilon < ln 2.
    chances = OptimalSelection(Bounds(1, 1), epsilon=epsilon, delta=delta).probabilities
    steps = [Distribution({True: p, False: ALL_WORDS - p}, ALL_WORDS) for p in chances]
    assert max(delta_between(less, more, epsilon) for less, more in pairwise(steps)) <= Fraction(repr(delta))
    published_at = next(n for n, p in enumerate(chances) if 2 * p >= ALL_WORDS)
    assert published_at < log(0.5 / delta + 1) / epsilon - 1
    assert published_at == ceil(log(1 + 0.5 / delta * (exp(epsilon) - 1)) / epsilon)


def test_bounding_what_a_unit_does_to_each_key_is_not_enough_when_utilities_are_coupled() -> None:
    # Theorem 6 with coupled utilities. Claimed: keeping a key if its utility and noise of rate epsilon reach a threshold
    # costs epsilon, as long as no key's utility moves by more than 1. Here every key's utility is the number of all
    # events, so that one unit moves all eight by 1.
    claimed, coupled = 0.5, 8
    gate = GeometricThreshold(Bounds(1, 1), epsilon=claimed, delta=1e-2)
    without, with_it = (seen(gate, gate.distribution, gate.threshold + n, kept=True) for n in (-1, 0))
    kept = [
        [comb(coupled, n) * one.mass[True] ** n * one.mass[False] ** (coupled - n) for n in range(coupled + 1)]
        for one in (without, with_it)
    ]
    loss = max(abs(log(Fraction(there, here))) for here, there in zip(*kept, strict=True))
    assert loss == pytest.approx(4.0, rel=1e-9)
    exact = together([odds(without, with_it)] * coupled).delta(claimed)
    assert float(exact) > 0.4
    # Charged with what all utilities move by together, it is what it costs; a key's own count moves by 1 alone.
    assert together([odds(without, with_it)] * coupled).delta(4.0) < Fraction(1, 2**100)
    assert odds(without, with_it).delta(claimed) < Fraction(1, 2**100)


def test_a_map_that_keeps_the_number_of_events_before_a_private_gate_gives_a_unit_away() -> None:
    # The neighbours (50, 50) and (50, 51) are mapped to (100, 0) and (0, 101): a gate that is private tells them apart.
    epsilon, delta = 1.0, 1e-5
    gate = TruncatedGeometric(Bounds(1, 1), epsilon=epsilon, delta=delta)
    absent, hundred, one_more = (seen(gate, gate.distribution, n) for n in (None, 100, 101))
    assert together([odds(hundred, absent), odds(absent, one_more)]).delta(epsilon) == 1
    assert odds(hundred, one_more).delta(epsilon) <= Fraction(repr(delta))
