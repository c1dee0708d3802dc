"""A range or nothing keeps (epsilon, delta), exactly: the gate's own release with every draw of its sampler."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import ceil, exp, expm1, log

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exact.divergence import (
    Odds,
    assert_release_knows_no_order_and_no_shards,
    delta_between,
    holds,
    names,
    odds,
    released_with_every_draw,
    seen,
    together,
)
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.range_release import RangeRelease, calibrate, exact_delta

LISTED = names("listed", 4000)
ONE_KEY = [(e, d, 1, c) for e in (0.5, 1.0, 4.0) for d in (1e-2, 1e-6, 1e-12) for c in (1, 2, 5)]
SEVERAL_KEYS = [
    (1.0, 1e-2, 2, 1),
    (2.0, 1e-3, 2, 2),
    (4.0, 1e-2, 3, 1),
    (8.0, 1e-6, 3, 2),
    (1.0, 1e-5, 3, 1),
    (1.0, 1e-5, 3, 5),
]


@lru_cache
def gate(epsilon: float, delta: float, keys: int, per_key: int) -> RangeRelease:
    return RangeRelease(Bounds(keys, per_key), epsilon=epsilon, delta=delta, keys=LISTED)


def with_half_width(epsilon: float, delta: float, keys: int, per_key: int, width: int) -> RangeRelease:
    """The gate with another half-width than it would choose."""
    planted = RangeRelease(Bounds(keys, per_key), epsilon=epsilon, delta=delta, keys=LISTED)
    assert width != planted.half_width
    planted.half_width = width
    return planted


def change_of(chosen: RangeRelease, before: int, after: int) -> Odds:
    assert 2 * chosen.distribution.k < len(LISTED)
    return odds(*(seen(chosen, chosen.distribution, n, "listed") for n in (before, after)))


def worst_delta(chosen: RangeRelease, epsilon: float, keys: int, per_key: int) -> Fraction:
    return together([change_of(chosen, 0, per_key)] * keys).delta(epsilon)


def test_the_half_width_is_the_known_one_however_many_keys_there_are() -> None:
    # The published formula asks for 874.98 with a single key, and for 1289.45 with a billion of them.
    for listed in (1, 4000):
        chosen = RangeRelease(Bounds(1, 1), epsilon=0.05, delta=1e-19, keys=LISTED[:listed])
        assert chosen.half_width == 802
    assert worst_delta(gate(0.05, 1e-19, 1, 1), 0.05, 1, 1) <= Fraction("1e-19")


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), [*ONE_KEY, *SEVERAL_KEYS, (0.05, 1e-19, 1, 1)])
def test_all_keys_of_a_unit_keep_delta_and_break_it_with_a_half_width_one_smaller(
    epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    chosen = gate(epsilon, delta, keys, per_key)
    exact = worst_delta(chosen, epsilon, keys, per_key)
    assert exact <= Fraction(repr(delta))
    stated = exact_delta(chosen.half_width, chosen.distribution.rate, Bounds(keys, per_key))
    assert float(exact) == pytest.approx(stated, rel=1e-9)
    smaller = with_half_width(epsilon, delta, keys, per_key, chosen.half_width - 1)
    assert worst_delta(smaller, epsilon, keys, per_key) > Fraction(repr(delta))


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), [*ONE_KEY, (0.05, 1e-19, 1, 1)])
def test_one_key_keeps_delta_from_zero_and_from_any_other_count_whatever_one_unit_adds(
    epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    chosen = gate(epsilon, delta, keys, per_key)
    for before in (0, 1, chosen.half_width + 1):
        here = seen(chosen, chosen.distribution, before, "listed")
        for added in {1, (per_key + 1) // 2, per_key}:
            there = seen(chosen, chosen.distribution, before + added, "listed")
            assert delta_between(here, there, epsilon) <= Fraction(repr(delta))


@pytest.mark.parametrize(("epsilon", "delta"), [(2.0, 1e-3), (6.0, 1e-2), (1.0, 1e-5)])
def test_no_smaller_change_of_some_of_the_keys_is_worse(epsilon: float, delta: float) -> None:
    keys, c = 3, 2
    chosen = gate(epsilon, delta, keys, c)
    by = {added: change_of(chosen, 0, added) for added in range(c + 1)}
    found = {
        (x, y, z): together([by[x], by[y], by[z].turned()]).delta(epsilon) for x in by for y in range(x + 1) for z in by
    }
    assert max(found.values()) <= Fraction(repr(delta))
    assert float(found[2, 2, 2]) == pytest.approx(float(max(found.values())), rel=1e-12)
    assert found[0, 0, 0] == 0


def test_keys_that_the_unit_does_not_touch_cost_nothing() -> None:
    epsilon, delta = 1.0, 1e-3
    chosen = gate(epsilon, delta, 1, 2)
    touched = change_of(chosen, 0, 2)
    untouched = [change_of(chosen, n, n) for n in (0, 3, 50)]
    assert together([touched, *untouched]).delta(epsilon) == touched.delta(epsilon)


@pytest.mark.parametrize(
    ("epsilon", "delta", "sensitivity"), [(1.0, 1e-5, 3), (1.0, 1e-5, 5), (2.0, 1e-3, 4), (0.5, 1e-6, 2)]
)
def test_a_half_width_that_shrinks_with_the_sensitivity_breaks_delta(
    epsilon: float, delta: float, sensitivity: int
) -> None:
    # Claimed: L + D - 1 stands in the exponent. It is L - D + 1, so the claim's half-width is smaller by 2 (D - 1).
    chosen = gate(epsilon, delta, 1, sensitivity)
    rate = epsilon / sensitivity
    right = ceil(log(-expm1(-epsilon) / ((1 + exp(-rate)) * delta)) / rate) + sensitivity - 1
    assert chosen.half_width == right
    wrong = with_half_width(epsilon, delta, 1, sensitivity, right - 2 * (sensitivity - 1))
    broken = worst_delta(wrong, epsilon, 1, sensitivity)
    assert broken > Fraction(repr(delta))
    assert float(broken / worst_delta(chosen, epsilon, 1, sensitivity)) == pytest.approx(
        exp(2 * (sensitivity - 1) * rate), rel=1e-6
    )


@pytest.mark.parametrize("n", [0, 1, 17, 10**6])
def test_noise_beyond_the_half_width_shows_nothing_and_any_other_a_range_that_holds_the_count(n: int) -> None:
    chosen = gate(1.0, 1e-5, 1, 5)
    k, width = chosen.distribution.k, chosen.half_width
    assert k > width
    shown = dict(zip(range(-k, k + 1), released_with_every_draw(chosen, k, n, "listed"), strict=True))
    for drawn, outcome in shown.items():
        value = float(n + drawn)
        assert outcome == (None if abs(drawn) > width else (value, value - width, value + width))
        assert holds(outcome, n) == (abs(drawn) <= width)


def test_a_key_that_nobody_listed_never_appears() -> None:
    chosen = gate(1.0, 1e-5, 1, 1)
    for n in (0, 1, 10**9):
        assert set(released_with_every_draw(chosen, chosen.distribution.k, n, "other")) == {None}
    assert chosen.admits(pa.array(["listed 3", "listed 3 ", "other 3"])).tolist() == [True, False, False]


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), [*SEVERAL_KEYS, (0.05, 1e-19, 1, 1)])
def test_survival_is_the_chance_under_the_sampler_whatever_the_count(
    epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    chosen = gate(epsilon, delta, keys, per_key)
    for n in (0, 1, 2 * chosen.half_width):
        ranges = seen(chosen, chosen.distribution, n, "listed", kept=True)
        assert chosen.survival(n) == pytest.approx(float(Fraction(ranges.mass[True], ranges.total)), rel=1e-12)
        missing = float(Fraction(ranges.mass[False], ranges.total))
        a = exp(-float(chosen.distribution.rate))
        assert missing == pytest.approx(2 * a ** (chosen.half_width + 1) / (1 + a), rel=1e-9)


@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-19, 1e-25])
@pytest.mark.parametrize(("keys", "per_key"), [(1, 1), (3, 1), (10, 1), (1, 5), (4, 3), (1000, 1)])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 5.0])
def test_the_half_width_is_the_smallest_that_keeps_delta(epsilon: float, delta: float, keys: int, per_key: int) -> None:
    bounds = Bounds(keys, per_key)
    width, rate = calibrate(epsilon, delta, bounds)
    assert exact_delta(width, rate, bounds) <= delta
    assert width == per_key or exact_delta(width - 1, rate, bounds) > delta


epsilons = st.floats(0.05, 8.0)
sizes = st.integers(1, 5)


# Where delta is as large as epsilon, wide noise mostly shows nothing, and needs no width to be private.
@given(epsilons, st.floats(1e-12, 1e-4), sizes, sizes, st.floats(1.0, 4.0), st.floats(0.05, 1.0), sizes)
def test_the_half_width_falls_with_epsilon_and_delta_and_rises_with_keys_and_what_each_may_get(
    epsilon: float, delta: float, keys: int, per_key: int, more: float, less: float, further: int
) -> None:
    width, _ = calibrate(epsilon, delta, Bounds(keys, per_key))
    assert calibrate(epsilon * more, delta, Bounds(keys, per_key))[0] <= width
    assert calibrate(epsilon, delta * less, Bounds(keys, per_key))[0] >= width
    assert calibrate(epsilon, delta, Bounds(keys + further, per_key))[0] >= width
    assert calibrate(epsilon, delta, Bounds(keys, per_key + further))[0] >= width


mixed_keys = st.one_of(st.sampled_from(LISTED[:15]), st.text(max_size=3))


@given(st.dictionaries(mixed_keys, st.integers(0, 60), min_size=1), st.data())
def test_the_rows_depend_neither_on_the_tables_order_nor_on_its_shards(
    counts: dict[str, int], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(counts))))
    cuts = data.draw(st.sets(st.integers(0, len(counts))))
    assert_release_knows_no_order_and_no_shards(gate(1.0, 0.2, 1, 1), counts, order, cuts)
