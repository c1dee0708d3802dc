"""Geometric noise and a threshold keep (epsilon, delta), exactly: the gate's own release with every draw of its sampler."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import exp, expm1, log1p

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exact.divergence import (
    Odds,
    assert_release_knows_no_order_and_no_shards,
    delta_between,
    odds,
    seen,
    together,
)
from tidegate.mechanisms.geometric_threshold import GeometricThreshold, calibrate, exact_delta
from tidegate.mechanisms.mechanism import Bounds

# (epsilon, delta, keys, per_key, threshold); the thresholds were derived independently of this code.
KNOWN = [
    (0.05, 1e-19, 1, 1, 863),
    (1.0, 1e-5, 1, 1, 13),
    (1.0, 1e-5, 3, 1, 38),
    (1.0, 1e-5, 1, 5, 60),
    (1.0, 1e-5, 3, 5, 185),
    (0.1, 1e-10, 1, 1, 225),
    (1.0, 1e-10, 10, 1, 248),
]
ONE_KEY = [(e, d, 1, c) for e in (0.5, 1.0, 3.0, 8.0) for d in (1e-2, 1e-6, 1e-12) for c in (1, 2, 5)]
SEVERAL_KEYS = [(1.0, 1e-2, 2, 1), (2.0, 1e-3, 2, 2), (4.0, 1e-2, 3, 1), (8.0, 1e-6, 3, 2), (0.5, 0.1, 2, 1)]
LARGE_DELTA = [(0.2, 0.5, 2, 1), (0.3, 0.9, 3, 1), (0.4, 0.6, 2, 2)]


@lru_cache
def gate(epsilon: float, delta: float, keys: int, per_key: int) -> GeometricThreshold:
    return GeometricThreshold(Bounds(keys, per_key), epsilon=epsilon, delta=delta)


def with_threshold(epsilon: float, delta: float, keys: int, per_key: int, change: int) -> GeometricThreshold:
    """The gate with another threshold than it would choose."""
    planted = GeometricThreshold(Bounds(keys, per_key), epsilon=epsilon, delta=delta)
    planted.threshold += change
    return planted


def change_of(chosen: GeometricThreshold, before: int | None, after: int) -> Odds:
    """One key, without and with the unit; None is a key that nobody else touched."""
    return odds(*(seen(chosen, chosen.distribution, n) for n in (before, after)))


def worst_new_keys(chosen: GeometricThreshold, epsilon: float, keys: int, per_key: int) -> Fraction:
    """A unit that adds all it may to keys that nobody else touched."""
    return together([change_of(chosen, None, per_key)] * keys).delta(epsilon)


def counts_to_try(chosen: GeometricThreshold) -> list[int]:
    """One unit behind it, around the threshold, sure to appear, and where the sampler's own end shows."""
    t, k = chosen.threshold, chosen.distribution.k
    return sorted({1, 2, t - 1, t, t + 1, t + k - 1, t + k, t + k + 1})


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key", "threshold"), KNOWN)
def test_the_threshold_is_the_known_one(epsilon: float, delta: float, keys: int, per_key: int, threshold: int) -> None:
    assert gate(epsilon, delta, keys, per_key).threshold == threshold


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), [*ONE_KEY, *SEVERAL_KEYS, *(p[:4] for p in KNOWN)])
def test_new_keys_keep_delta_together_and_with_a_threshold_one_smaller_break_it(
    epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    chosen = gate(epsilon, delta, keys, per_key)
    assert worst_new_keys(chosen, epsilon, keys, per_key) <= Fraction(repr(delta))
    smaller = with_threshold(epsilon, delta, keys, per_key, -1)
    assert worst_new_keys(smaller, epsilon, keys, per_key) > Fraction(repr(delta))


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), [*ONE_KEY, *SEVERAL_KEYS, *(p[:4] for p in KNOWN)])
def test_the_stated_delta_is_the_exact_one(epsilon: float, delta: float, keys: int, per_key: int) -> None:
    chosen = gate(epsilon, delta, keys, per_key)
    stated = exact_delta(chosen.threshold, chosen.distribution.rate, Bounds(keys, per_key))
    assert float(worst_new_keys(chosen, epsilon, keys, per_key)) == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), [*ONE_KEY, (0.05, 1e-19, 1, 1)])
def test_one_key_keeps_delta_whatever_its_count_and_whatever_one_unit_adds(
    epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    chosen = gate(epsilon, delta, keys, per_key)
    noise = chosen.distribution
    for before in (None, *counts_to_try(chosen)):
        here = seen(chosen, noise, before)
        for added in {1, per_key}:
            assert delta_between(here, seen(chosen, noise, (before or 0) + added), epsilon) <= Fraction(repr(delta))


@pytest.mark.parametrize("per_key", [1, 3])
def test_a_key_that_others_touched_too_costs_no_delta_at_all_at_any_count(per_key: int) -> None:
    chosen = gate(4.0, 1e-2, 1, per_key)
    until = chosen.threshold + chosen.distribution.k + 3
    at = [seen(chosen, chosen.distribution, n) for n in range(until + per_key)]
    worst = max(delta_between(at[n], at[n + added], 4.0) for n in range(1, until) for added in range(1, per_key + 1))
    assert worst < Fraction(1, 2**110)


@pytest.mark.parametrize(
    ("epsilon", "delta", "keys", "per_key"), [*SEVERAL_KEYS, (1.0, 1e-5, 3, 1), (1.0, 1e-10, 10, 1)]
)
def test_new_and_old_keys_mixed_keep_delta_without_slack_for_the_new_ones(
    epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    # Each new key that appears is paid by delta, each that stays away by the epsilon it does not use: nothing is added.
    chosen = gate(epsilon, delta, keys, per_key)
    t, k = chosen.threshold, chosen.distribution.k
    new = change_of(chosen, None, per_key)
    appears = new.turned().one_way(80.0)
    for old in range(1, min(keys, 3)):
        for before in (1, t, t + k + 1):
            others = change_of(chosen, before, before + per_key)
            mixed = together([new] * (keys - old) + [others] * old).delta(epsilon)
            assert mixed <= Fraction(repr(delta))
            # Exactly what the new keys cost: the old ones are free.
            assert float(mixed) == pytest.approx(float(1 - (1 - appears) ** (keys - old)), rel=1e-9)


def test_no_mix_of_counts_and_additions_over_two_keys_is_worse_than_two_new_keys() -> None:
    epsilon, delta, c = 8.0, 2e-2, 2
    chosen = gate(epsilon, delta, 2, c)
    befores = [None, *range(1, chosen.threshold + 3), chosen.threshold + chosen.distribution.k]
    changes = [change_of(chosen, n, (n or 0) + added) for n in befores for added in range(1, c + 1)]
    worst = max(one.beside(other).delta(epsilon) for i, one in enumerate(changes) for other in changes[: i + 1])
    assert worst <= Fraction(repr(delta))
    stated = exact_delta(chosen.threshold, chosen.distribution.rate, Bounds(2, c))
    assert float(worst) == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), LARGE_DELTA)
def test_with_a_large_delta_a_new_key_that_stays_away_still_fits_into_its_share_of_epsilon(
    epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    chosen = gate(epsilon, delta, keys, per_key)
    allowed = -expm1(-epsilon / keys)
    assert allowed < -expm1(log1p(-delta) / keys)
    assert chosen.survival(per_key) <= allowed < with_threshold(epsilon, delta, keys, per_key, -1).survival(per_key)
    assert worst_new_keys(chosen, epsilon, keys, per_key) <= Fraction(repr(delta))
    # One new key, the others old and so common that they always appear.
    assert _without_over_with(chosen, epsilon, keys, per_key) < Fraction(1, 2**100)
    one_smaller = with_threshold(epsilon, delta, keys, per_key, -1)
    assert _without_over_with(one_smaller, epsilon, keys, per_key) > Fraction(1, 10**5)


def _without_over_with(chosen: GeometricThreshold, epsilon: float, keys: int, per_key: int) -> Fraction:
    """What the release without the unit has over e^epsilon times the one with it."""
    high = chosen.threshold + chosen.distribution.k + 1
    old = change_of(chosen, high, high + per_key)
    return together([change_of(chosen, None, per_key)] + [old] * (keys - 1)).one_way(epsilon)


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key", "threshold"), KNOWN)
def test_survival_is_the_chance_under_the_sampler(
    epsilon: float, delta: float, keys: int, per_key: int, threshold: int
) -> None:
    chosen = gate(epsilon, delta, keys, per_key)
    for n in (1, per_key, threshold - 1, threshold, threshold + 1, 2 * threshold):
        appears = seen(chosen, chosen.distribution, n, kept=True)
        assert chosen.survival(n) == pytest.approx(float(Fraction(appears.mass[True], appears.total)), rel=1e-12)
    assert chosen.survival(0) == 0.0


def test_what_is_published_is_the_count_and_its_noise_and_no_range() -> None:
    chosen = gate(1.0, 1e-5, 1, 1)
    k = chosen.distribution.k
    masses = seen(chosen, chosen.distribution, 20).mass
    assert set(masses) == {None, *((float(v), None, None) for v in range(chosen.threshold, 20 + k + 1))}


@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-19, 1e-25])
@pytest.mark.parametrize(("keys", "per_key"), [(1, 1), (3, 1), (10, 1), (1, 5), (4, 3), (1000, 1)])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 5.0])
def test_the_threshold_is_the_smallest_that_keeps_delta(epsilon: float, delta: float, keys: int, per_key: int) -> None:
    bounds = Bounds(keys, per_key)
    threshold, rate = calibrate(epsilon, delta, bounds)
    assert rate * keys * per_key == pytest.approx(Decimal(repr(epsilon)))
    assert exact_delta(threshold, rate, bounds) <= delta
    assert threshold == per_key + 1 or exact_delta(threshold - 1, rate, bounds) > delta
    # The closed form, to within what floating point can tell.
    a, p = exp(-rate), -expm1(log1p(-delta) / keys)
    assert exp(-rate * Decimal(threshold - per_key)) / (1 + a) <= p * (1 + 1e-9)


epsilons = st.floats(0.05, 8.0)
deltas = st.floats(1e-12, 0.5)
sizes = st.integers(1, 6)


@given(epsilons, deltas, sizes, sizes, st.floats(1.0, 4.0), st.floats(0.05, 1.0), sizes)
def test_the_threshold_falls_with_epsilon_and_delta_and_rises_with_keys_and_what_each_may_get(
    epsilon: float, delta: float, keys: int, per_key: int, more: float, less: float, further: int
) -> None:
    threshold, _ = calibrate(epsilon, delta, Bounds(keys, per_key))
    assert calibrate(epsilon * more, delta, Bounds(keys, per_key))[0] <= threshold
    assert calibrate(epsilon, delta * less, Bounds(keys, per_key))[0] >= threshold
    assert calibrate(epsilon, delta, Bounds(keys + further, per_key))[0] >= threshold
    assert calibrate(epsilon, delta, Bounds(keys, per_key + further))[0] >= threshold


@given(st.sampled_from(KNOWN), st.integers(0, 2000), st.integers(0, 200))
def test_a_larger_count_survives_no_less_often(point: tuple[float, float, int, int, int], n: int, more: int) -> None:
    chosen = gate(*point[:4])
    assert chosen.survival(n) <= chosen.survival(n + more)
    assert chosen.survival(2 * chosen.threshold) > 0.99


@given(st.dictionaries(st.text(max_size=4), st.integers(1, 30), min_size=1, max_size=20), st.data())
def test_the_rows_depend_neither_on_the_tables_order_nor_on_its_shards(
    counts: dict[str, int], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(counts))))
    cuts = data.draw(st.sets(st.integers(0, len(counts))))
    assert_release_knows_no_order_and_no_shards(gate(1.0, 1e-5, 1, 1), counts, order, cuts)


def test_every_pair_of_small_counts_is_tried_in_both_directions_with_new_keys() -> None:
    epsilon, delta, c = 3.0, 5e-2, 2
    chosen = gate(epsilon, delta, 1, c)
    counts: list[int | None] = [None, *range(1, chosen.threshold + 6)]
    at = {n: seen(chosen, chosen.distribution, n) for n in counts}
    pairs = [(m, n) for m, n in product(counts, counts) if 0 < abs((m or 0) - (n or 0)) <= c]
    worst = max(delta_between(at[m], at[n], epsilon) for m, n in pairs)
    stated = exact_delta(chosen.threshold, chosen.distribution.rate, Bounds(1, c))
    assert float(worst) == pytest.approx(stated, rel=1e-9)
