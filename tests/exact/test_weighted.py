"""A gate on counts times public weights keeps (epsilon, delta), and its ranges hold the count: for every draw, exactly."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial
from itertools import combinations_with_replacement, product
from math import inf

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exact.divergence import (
    ALL_WORDS,
    Distribution,
    Odds,
    assert_release_knows_no_order_and_no_shards,
    holds,
    names,
    odds,
    released_with_every_draw,
    seen,
    together,
)
from tidegate.mechanisms.calibration import exact_delta
from tidegate.mechanisms.geometric_threshold import GeometricThreshold
from tidegate.mechanisms.mechanism import Bounds, Gate
from tidegate.mechanisms.noise import BoundedGeometric
from tidegate.mechanisms.optimal_selection import OptimalSelection
from tidegate.mechanisms.truncated_geometric import TruncatedGeometric
from tidegate.mechanisms.weighted import Weighted

INNER: dict[str, Callable[..., Gate]] = {
    "truncated-geometric": TruncatedGeometric,
    "geometric-threshold": GeometricThreshold,
    "optimal-selection": OptimalSelection,
}
# A key's kind is the first word of its name; keys of the kind "one" have no weight of their own.
WEIGHTS = {"none": 0.0, "one": 1.0, "two": 2.0, "five": 5.0, "always": inf}
MOST_DRAWS = 5400
LISTED = {name: weight for kind, weight in WEIGHTS.items() if kind != "one" for name in names(kind, MOST_DRAWS)}
COUNTS_TO_TRY = (0, 2, 40)


@lru_cache
def gate(inner: str, bounds: Bounds, epsilon: float, delta: float) -> Weighted:
    make = partial(INNER[inner], epsilon=epsilon, delta=delta)
    return Weighted(bounds, make, LISTED, 1, epsilon=epsilon, delta=delta)


@lru_cache
def change_of(chosen: Weighted, kind: str, before: int, added: int) -> Odds:
    """A key of that kind without and with the unit."""
    return odds(*(_seen(chosen, kind, n) for n in (before, before + added)))


def _seen(chosen: Weighted, kind: str, n: int) -> Distribution:
    inner = chosen._gate
    if kind == "always":
        assert chosen._public is not None
        return seen(chosen, chosen._public.distribution, n, kind)
    if isinstance(inner, OptimalSelection):
        utility = int(n * WEIGHTS[kind])
        chance = inner.probabilities[min(-(-utility // inner._per_key), len(inner.probabilities) - 1)]
        return Distribution({True: chance, None: ALL_WORDS - chance}, ALL_WORDS)
    assert isinstance(inner, (TruncatedGeometric, GeometricThreshold))
    assert 2 * inner.distribution.k < MOST_DRAWS
    # A key that nobody touched is not in the table.
    return seen(chosen, inner.distribution, n or None, kind)


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize(("epsilon", "delta", "per_key"), [(4.0, 1e-2, 2), (1.0, 1e-5, 1), (8.0, 1e-9, 3)])
def test_a_unit_in_two_keys_of_any_weights_keeps_epsilon_and_delta(
    inner: str, epsilon: float, delta: float, per_key: int
) -> None:
    chosen = gate(inner, Bounds(2, per_key), epsilon, delta)
    assert (chosen.guarantee.epsilon, chosen.guarantee.delta) == (epsilon, delta)
    changes = {change_of(chosen, *way) for way in product(WEIGHTS, COUNTS_TO_TRY, {1, per_key})}
    worst = max(one.beside(other).delta(epsilon) for one, other in combinations_with_replacement(changes, 2))
    assert worst <= Fraction(repr(delta))
    # No weight costs more than the heaviest and the infinite one do.
    new = change_of(chosen, "five", 0, per_key)
    public = change_of(chosen, "always", 0, per_key)
    dearest = max(one.beside(other).delta(epsilon) for one in (new, public) for other in (new, public))
    assert float(worst) == pytest.approx(float(dearest), rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta", "per_key"), [(4.0, 1e-2, 2), (1.0, 1e-5, 1), (8.0, 1e-9, 3)])
def test_the_half_width_is_that_of_the_heaviest_weight_and_one_smaller_breaks_delta(
    epsilon: float, delta: float, per_key: int
) -> None:
    chosen = gate("truncated-geometric", Bounds(2, per_key), epsilon, delta)
    noisy = chosen._gate
    assert isinstance(noisy, TruncatedGeometric)
    stated = exact_delta(noisy.half_width, noisy.distribution.rate, Bounds(2, 5 * per_key))
    heaviest = change_of(chosen, "five", 0, per_key)
    assert float(heaviest.beside(heaviest).delta(epsilon)) == pytest.approx(stated, rel=1e-9)
    smaller = TruncatedGeometric(Bounds(2, 5 * per_key), epsilon=epsilon, delta=delta)
    smaller.half_width -= 1
    smaller.distribution = BoundedGeometric(smaller.distribution.rate, smaller.half_width)
    planted = Weighted(Bounds(2, per_key), lambda _: smaller, LISTED, 1, epsilon=epsilon, delta=delta)
    broken = change_of(planted, "five", 0, per_key)
    assert broken.beside(broken).delta(epsilon) > Fraction(repr(delta))


def test_a_gate_calibrated_to_the_counts_instead_of_the_utilities_breaks_delta() -> None:
    epsilon, delta = 1.0, 1e-5
    unweighted = TruncatedGeometric(Bounds(1, 1), epsilon=epsilon, delta=delta)
    planted = Weighted(Bounds(1, 1), lambda _: unweighted, LISTED, 1, epsilon=epsilon, delta=delta)
    assert change_of(planted, "one", 0, 1).delta(epsilon) <= Fraction(repr(delta))
    assert change_of(planted, "two", 0, 1).delta(epsilon) > Fraction(repr(delta))


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-3), (4.0, 1e-2)])
def test_with_a_bound_on_the_total_keys_of_any_weights_keep_epsilon_and_delta(
    inner: str, epsilon: float, delta: float
) -> None:
    bounds = Bounds(2, 3, 4)
    chosen = gate(inner, bounds, epsilon, delta)
    worst = Fraction(0)
    for x, y in [(3, 1), (2, 2), (1, 3), (3, 0)]:
        for one, other in product(WEIGHTS, WEIGHTS):
            for before, there in [(0, 0), (0, 3), (3, 0), (3, 3)]:
                unit = [change_of(chosen, one, before, x), change_of(chosen, other, there, y)]
                worst = max(worst, together(unit).delta(epsilon))
    assert worst <= Fraction(repr(delta))


@pytest.mark.parametrize("kind", ["one", "two", "five"])
@pytest.mark.parametrize("n", [1, 2, 7, 30, 31, 1000])
def test_every_range_that_any_draw_publishes_holds_the_count(kind: str, n: int) -> None:
    chosen = gate("truncated-geometric", Bounds(1, 2), 1.0, 1e-3)
    noisy = chosen._gate
    assert isinstance(noisy, TruncatedGeometric)
    k, weight = noisy.half_width, int(WEIGHTS[kind])
    published = 0
    for drawn, outcome in zip(range(-k, k + 1), released_with_every_draw(chosen, k, n, kind), strict=True):
        utility = n * weight + drawn
        if utility <= k:
            assert outcome is None
            continue
        published += 1
        low, high = -((k - utility) // weight), (utility + k) // weight
        assert outcome == (utility / weight, float(low), float(high))
        # Rounded inwards: as narrow as whole numbers allow, and still certain.
        assert low <= n <= high
        assert (low - 1) * weight < utility - k <= low * weight
        assert high * weight <= utility + k < (high + 1) * weight
    assert published == min(2 * k + 1, n * weight)


@pytest.mark.parametrize("inner", ["truncated-geometric", "geometric-threshold"])
def test_a_key_of_weight_nought_never_appears_and_one_of_infinite_weight_always_zeros_included(inner: str) -> None:
    chosen = gate(inner, Bounds(1, 2), 1.0, 1e-3)
    public = chosen._public
    assert public is not None
    k = public.half_width
    for n in (0, 1, 500, 10**9):
        assert set(released_with_every_draw(chosen, 300, n, "none")) == {None}
        always = released_with_every_draw(chosen, k, n, "always")
        assert always == [(float(n + j), float(n + j - k), float(n + j + k)) for j in range(-k, k + 1)]
        assert all(holds(outcome, n) for outcome in always)
    assert chosen.public == tuple(names("always", MOST_DRAWS))
    admitted = chosen.admits(pa.array(["none 3", "always 3", "five 3", "somebody"]))
    assert admitted is not None
    assert admitted.tolist() == [False, True, True, True]


def test_a_public_keys_noise_is_as_narrow_as_without_weights() -> None:
    chosen = gate("truncated-geometric", Bounds(1, 1), 1.0, 1e-5)
    assert chosen._public is not None
    assert chosen._public.half_width == 11
    assert chosen.describe()["half_width"] == TruncatedGeometric(Bounds(1, 5), epsilon=1.0, delta=1e-5).half_width == 57


@pytest.mark.parametrize("inner", INNER)
def test_survival_is_the_chance_of_a_key_without_a_weight_of_its_own(inner: str) -> None:
    chosen = gate(inner, Bounds(2, 2), 4.0, 1e-2)
    for n in (1, 5, 20, 50, 200):
        shown = _seen(chosen, "one", n)
        missing = Fraction(shown.mass.get(None, 0), shown.total)
        assert chosen.survival(n) == pytest.approx(float(1 - missing), rel=1e-12)


@given(st.sampled_from(sorted(INNER)), st.integers(0, 200), st.integers(0, 50))
def test_a_larger_count_survives_no_less_often(inner: str, n: int, more: int) -> None:
    chosen = gate(inner, Bounds(2, 2), 4.0, 1e-2)
    assert chosen.survival(n) <= chosen.survival(n + more)
    assert chosen.survival(0) == 0.0 < chosen.survival(1)


@settings(max_examples=40)
@given(
    st.floats(0.1, 8.0),
    st.floats(1e-9, 0.3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(0, 9),
)
def test_the_half_width_rises_with_the_heaviest_weight(
    epsilon: float, delta: float, keys: int, per_key: int, weight: int, more: int
) -> None:
    def width(heaviest: int) -> int:
        make = partial(TruncatedGeometric, epsilon=epsilon, delta=delta)
        made = Weighted(Bounds(keys, per_key), make, {"a": heaviest, "b": 1}, 1, epsilon=epsilon, delta=delta)
        return int(made.describe()["half_width"])

    assert width(weight) <= width(weight + more)
    assert width(weight) == TruncatedGeometric(Bounds(keys, per_key * weight), epsilon=epsilon, delta=delta).half_width


mixed_keys = st.sampled_from([f"{kind} {number}" for kind in WEIGHTS for number in range(8)])


@settings(max_examples=50)
@given(st.sampled_from(sorted(INNER)), st.dictionaries(mixed_keys, st.integers(1, 60), min_size=1), st.data())
def test_the_rows_depend_neither_on_the_tables_order_nor_on_its_shards(
    inner: str, counts: dict[str, int], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(counts))))
    cuts = data.draw(st.sets(st.integers(0, len(counts))))
    assert_release_knows_no_order_and_no_shards(gate(inner, Bounds(2, 2), 4.0, 1e-2), counts, order, cuts)
