"""A bound on what a unit adds to all keys together: every way to spread it over new and old keys, exactly, both ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import combinations_with_replacement, product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exact.divergence import Odds, names, odds, seen, together
from tidegate.mechanisms import calibration, geometric_threshold, range_release
from tidegate.mechanisms.geometric_threshold import GeometricThreshold
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.noise import BoundedGeometric
from tidegate.mechanisms.range_release import RangeRelease
from tidegate.mechanisms.truncated_geometric import TruncatedGeometric

LISTED = names("listed", 2000)
SPREADS = [Bounds(3, 4, 5), Bounds(2, 3, 4), Bounds(4, 2, 3), Bounds(3, 4, 2), Bounds(2, 5, 5)]
BUDGETS = [(8.0, 1e-3), (2.0, 1e-2), (1.0, 1e-5)]
POINTS = [*((bounds, *budget) for bounds, budget in product(SPREADS, BUDGETS)), (Bounds(3, 3, 7), 8.0, 1e-3)]


class Change:
    """What the gate shows of one key without and with the unit; `before` is None where nobody else touched it."""

    def __init__(self, gate: TruncatedGeometric | GeometricThreshold | RangeRelease) -> None:
        self._gate = gate
        self._known: dict[tuple[int | None, int], Odds] = {}

    def __call__(self, before: int | None, added: int) -> Odds:
        found = self._known.get((before, added))
        if found is None:
            gate = self._gate
            assert 2 * gate.distribution.k < len(LISTED)
            # A listed key is in every table, with nothing behind it too.
            kind, first = ("listed", before or 0) if isinstance(gate, RangeRelease) else ("key", before)
            here, there = (seen(gate, gate.distribution, n, kind) for n in (first, (before or 0) + added))
            found = self._known[before, added] = odds(here, there)
        return found


def spreads(bounds: Bounds) -> Iterator[tuple[int, ...]]:
    """All ways to add at most the total to at most so many keys."""
    assert bounds.total is not None
    for way in combinations_with_replacement(range(bounds.per_key + 1), bounds.keys):
        if 0 < sum(way) <= bounds.total:
            yield tuple(added for added in way if added)


def worst_delta(
    gate: TruncatedGeometric | GeometricThreshold | RangeRelease,
    bounds: Bounds,
    epsilon: float,
    counts: Sequence[int | None],
) -> Fraction:
    """Over all spreads, and over all counts of the keys before the unit came."""
    change = Change(gate)
    # The keys are independent, so their order does not matter.
    units = {
        tuple(sorted(zip(way, map(counts.index, before), strict=True)))
        for way in spreads(bounds)
        for before in product(counts, repeat=len(way))
    }
    return max(together([change(counts[n], added) for added, n in unit]).delta(epsilon) for unit in units)


@lru_cache
def truncated(bounds: Bounds, epsilon: float, delta: float) -> TruncatedGeometric:
    return TruncatedGeometric(bounds, epsilon=epsilon, delta=delta)


@lru_cache
def threshold(bounds: Bounds, epsilon: float, delta: float) -> GeometricThreshold:
    return GeometricThreshold(bounds, epsilon=epsilon, delta=delta)


@lru_cache
def ranges(bounds: Bounds, epsilon: float, delta: float) -> RangeRelease:
    return RangeRelease(bounds, epsilon=epsilon, delta=delta, keys=LISTED)


@pytest.mark.parametrize(("bounds", "epsilon", "delta"), POINTS)
def test_truncated_geometric_keeps_delta_over_all_spreads_and_states_the_worst(
    bounds: Bounds, epsilon: float, delta: float
) -> None:
    chosen = truncated(bounds, epsilon, delta)
    counts = [None, chosen.half_width, 3 * chosen.half_width] if epsilon > 1 else [None, chosen.half_width]
    worst = worst_delta(chosen, bounds, epsilon, counts)
    assert worst <= Fraction(repr(delta))
    stated = calibration.exact_delta(chosen.half_width, chosen.distribution.rate, bounds)
    assert float(worst) == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize(("bounds", "epsilon", "delta"), POINTS)
def test_truncated_geometric_with_a_half_width_one_smaller_breaks_delta(
    bounds: Bounds, epsilon: float, delta: float
) -> None:
    planted = TruncatedGeometric(bounds, epsilon=epsilon, delta=delta)
    assert planted.half_width > min(bounds.per_key, bounds.l1)
    planted.half_width -= 1
    planted.distribution = BoundedGeometric(planted.distribution.rate, planted.half_width)
    assert worst_delta(planted, bounds, epsilon, [None]) > Fraction(repr(delta))


@pytest.mark.parametrize(("bounds", "epsilon", "delta"), POINTS)
def test_geometric_threshold_keeps_delta_over_all_spreads_and_states_the_worst(
    bounds: Bounds, epsilon: float, delta: float
) -> None:
    chosen = threshold(bounds, epsilon, delta)
    counts = [None, chosen.threshold + chosen.distribution.k + 1]
    worst = worst_delta(chosen, bounds, epsilon, counts)
    assert worst <= Fraction(repr(delta))
    stated = geometric_threshold.exact_delta(chosen.threshold, chosen.distribution.rate, bounds)
    assert float(worst) == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize(("bounds", "epsilon", "delta"), POINTS)
def test_geometric_threshold_with_a_threshold_one_smaller_breaks_delta(
    bounds: Bounds, epsilon: float, delta: float
) -> None:
    planted = GeometricThreshold(bounds, epsilon=epsilon, delta=delta)
    planted.threshold -= 1
    assert worst_delta(planted, bounds, epsilon, [None]) > Fraction(repr(delta))


@pytest.mark.parametrize(("bounds", "epsilon", "delta"), POINTS)
def test_a_range_keeps_delta_over_all_spreads_and_states_the_worst(
    bounds: Bounds, epsilon: float, delta: float
) -> None:
    chosen = ranges(bounds, epsilon, delta)
    worst = worst_delta(chosen, bounds, epsilon, [0])
    assert worst <= Fraction(repr(delta))
    stated = range_release.exact_delta(chosen.half_width, chosen.distribution.rate, bounds)
    assert float(worst) == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize(("bounds", "epsilon", "delta"), POINTS)
def test_a_range_with_a_half_width_one_smaller_breaks_delta(bounds: Bounds, epsilon: float, delta: float) -> None:
    planted = RangeRelease(bounds, epsilon=epsilon, delta=delta, keys=LISTED)
    assert planted.half_width > min(bounds.per_key, bounds.l1)
    planted.half_width -= 1
    full, left = divmod(bounds.l1, min(bounds.per_key, bounds.l1))
    change = Change(planted)
    worst = together([change(0, x) for x in [min(bounds.per_key, bounds.l1)] * full + [left] * (left > 0)])
    assert worst.delta(epsilon) > Fraction(repr(delta))


@pytest.mark.parametrize(("epsilon", "delta"), [(8.0, 1e-3), (4.0, 1e-2)])
def test_no_count_before_the_unit_came_makes_a_spread_worse(epsilon: float, delta: float) -> None:
    bounds = Bounds(2, 3, 4)
    noisy = truncated(bounds, epsilon, delta)
    counts: list[int | None] = [None, *range(1, 2 * noisy.half_width + 3)]
    stated = calibration.exact_delta(noisy.half_width, noisy.distribution.rate, bounds)
    assert float(worst_delta(noisy, bounds, epsilon, counts)) == pytest.approx(stated, rel=1e-9)
    cut = threshold(bounds, epsilon, delta)
    counts = [None, *range(1, cut.threshold + 2), cut.threshold + cut.distribution.k]
    stated = geometric_threshold.exact_delta(cut.threshold, cut.distribution.rate, bounds)
    assert float(worst_delta(cut, bounds, epsilon, counts)) == pytest.approx(stated, rel=1e-9)


def test_with_a_large_delta_a_new_key_that_stays_away_fits_into_the_epsilon_of_what_was_added_to_it() -> None:
    # Here epsilon holds the threshold, not delta: without the unit, no outcome is likelier by more than e^epsilon.
    bounds, epsilon, delta = Bounds(3, 4, 5), 0.5, 0.6
    chosen = threshold(bounds, epsilon, delta)
    assert geometric_threshold.exact_delta(chosen.threshold - 1, chosen.distribution.rate, bounds) < delta
    high = chosen.threshold + chosen.distribution.k + 1
    found = {}
    for shift in (0, -1):
        planted = GeometricThreshold(bounds, epsilon=epsilon, delta=delta)
        planted.threshold += shift
        change = Change(planted)
        found[shift] = max(
            together([change(None, added), change(high, 5 - added)]).one_way(epsilon) for added in range(1, 5)
        )
    assert found[0] < Fraction(1, 2**100)
    assert found[-1] > Fraction(1, 10**5)


@settings(max_examples=40)
@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 16),
    st.floats(0.2, 8.0),
    st.floats(1e-9, 0.2),
    st.integers(1, 30),
)
def test_the_closed_forms_are_the_largest_over_all_spreads(
    keys: int, per_key: int, total: int, epsilon: float, delta: float, beyond: int
) -> None:
    # One key's part is taken from the closed form with that key alone, which the tests above hold against enumeration.
    bounds = Bounds(keys, per_key, total)
    at = min(per_key, bounds.l1) + beyond
    rate = calibration.noise_rate(Decimal(repr(epsilon)), Decimal(repr(delta)), bounds)
    for exact_delta in (calibration.exact_delta, geometric_threshold.exact_delta, range_release.exact_delta):
        alone = {x: exact_delta(at, rate, Bounds(1, x)) for x in range(1, per_key + 1)}
        worst = max(1 - prod(1 - alone[added] for added in way) for way in spreads(bounds))
        assert exact_delta(at, rate, bounds) == pytest.approx(worst, rel=1e-6, abs=1e-15)


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 20), st.floats(0.2, 8.0), st.floats(1e-9, 1e-3))
def test_a_looser_total_never_narrows_and_one_that_binds_nothing_changes_nothing(
    keys: int, per_key: int, total: int, epsilon: float, delta: float
) -> None:
    for calibrate in (calibration.calibrate, geometric_threshold.calibrate, range_release.calibrate):
        here = calibrate(epsilon, delta, Bounds(keys, per_key, total))[0]
        assert here <= calibrate(epsilon, delta, Bounds(keys, per_key, total + 1))[0]
        whole = calibrate(epsilon, delta, Bounds(keys, per_key))[0]
        assert here <= whole
        assert calibrate(epsilon, delta, Bounds(keys, per_key, keys * per_key + total))[0] == whole
