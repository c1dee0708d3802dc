"""Listed keys keep (epsilon, delta), alone and beside keys that fall to a second gate: exactly, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from itertools import combinations_with_replacement, product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exact.divergence import (
    ALL_WORDS,
    Distribution,
    DrawsAsGiven,
    Odds,
    as_rows,
    assert_release_knows_no_order_and_no_shards,
    delta_between,
    holds,
    names,
    odds,
    released_with_every_draw,
    row_numbers,
    seen,
    together,
)
from tidegate.mechanisms.calibration import exact_delta
from tidegate.mechanisms.geometric_threshold import GeometricThreshold
from tidegate.mechanisms.mechanism import Bounds, Gate
from tidegate.mechanisms.noise import BoundedGeometric
from tidegate.mechanisms.optimal_selection import OptimalSelection
from tidegate.mechanisms.public_keys import PublicKeys
from tidegate.mechanisms.table import ExactTable
from tidegate.mechanisms.truncated_geometric import TruncatedGeometric

LISTED = names("listed", 2000)
# (epsilon, delta, keys, per_key, half-width); the half-widths were derived independently of this code.
KNOWN = [(0.05, 1e-19, 1, 1, 802), (1.0, 1e-5, 1, 1, 11), (1.0, 1e-5, 3, 1, 33), (1.0, 1e-5, 1, 5, 57)]
ONE_KEY = [(e, d, 1, c) for e in (0.3, 1.0, 4.0) for d in (1e-2, 1e-6, 1e-12) for c in (1, 3)]
SEVERAL_KEYS = [(1.0, 1e-2, 2, 1), (2.0, 1e-3, 2, 2), (4.0, 1e-2, 3, 1), (8.0, 1e-6, 3, 2), (1.0, 1e-5, 3, 1)]
SECOND_GATES = ["truncated-geometric", "geometric-threshold", "optimal-selection"]


@lru_cache
def gate(bounds: Bounds, epsilon: float, delta: float, otherwise: str | None = None) -> PublicKeys:
    return PublicKeys(bounds, epsilon=epsilon, delta=delta, keys=LISTED, otherwise=otherwise)


def narrower(epsilon: float, delta: float, keys: int, per_key: int) -> PublicKeys:
    """The gate with a half-width one smaller than it would choose."""
    planted = PublicKeys(Bounds(keys, per_key), epsilon=epsilon, delta=delta, keys=LISTED)
    planted.half_width -= 1
    planted.distribution = BoundedGeometric(planted.distribution.rate, planted.half_width)
    return planted


@lru_cache
def listed(chosen: PublicKeys, before: int, after: int) -> Odds:
    """A listed key without and with the unit; it is in the table even with nothing behind it."""
    assert 2 * chosen.half_width < len(LISTED)
    return odds(*(seen(chosen, chosen.distribution, n, "listed") for n in (before, after)))


@lru_cache
def unlisted(chosen: PublicKeys, before: int | None, after: int) -> Odds:
    """A key for the second gate without and with the unit; None is one that nobody else touched."""
    second: Gate | None = chosen._otherwise
    if isinstance(second, OptimalSelection):
        return odds(*(_tossed(chosen, second, n) for n in (before, after)))
    assert isinstance(second, (TruncatedGeometric, GeometricThreshold))
    return odds(*(seen(chosen, second.distribution, n, "other") for n in (before, after)))


def _tossed(chosen: PublicKeys, second: OptimalSelection, n: int | None) -> Distribution:
    chance = second.probabilities[min(-(-(n or 0) // second._per_key), len(second.probabilities) - 1)]
    assert chosen.survival(n or 0) == chance / ALL_WORDS
    return Distribution({True: chance, None: ALL_WORDS - chance}, ALL_WORDS)


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key", "half_width"), KNOWN)
def test_the_half_width_is_the_known_one(
    epsilon: float, delta: float, keys: int, per_key: int, half_width: int
) -> None:
    assert gate(Bounds(keys, per_key), epsilon, delta).half_width == half_width


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), [*ONE_KEY, (0.05, 1e-19, 1, 1)])
def test_one_key_keeps_delta_from_zero_and_from_any_other_count(
    epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    # A public key's release is its count shifted by the noise, so the count it starts from cannot matter; zero is one.
    chosen = gate(Bounds(keys, per_key), epsilon, delta)
    for before in (0, 1, chosen.half_width, 10**6):
        here = seen(chosen, chosen.distribution, before, "listed")
        for added in range(1, per_key + 1):
            there = seen(chosen, chosen.distribution, before + added, "listed")
            assert delta_between(here, there, epsilon) <= Fraction(repr(delta))


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), [*ONE_KEY, *SEVERAL_KEYS, (0.05, 1e-19, 1, 1)])
def test_all_keys_of_a_unit_cost_exactly_what_is_stated_and_break_delta_with_a_half_width_one_smaller(
    epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    chosen = gate(Bounds(keys, per_key), epsilon, delta)
    exact = together([listed(chosen, 0, per_key)] * keys).delta(epsilon)
    assert exact <= Fraction(repr(delta))
    stated = exact_delta(chosen.half_width, chosen.distribution.rate, Bounds(keys, per_key))
    assert float(exact) == pytest.approx(stated, rel=1e-9)
    if chosen.half_width > per_key:
        smaller = narrower(epsilon, delta, keys, per_key)
        assert together([listed(smaller, 0, per_key)] * keys).delta(epsilon) > Fraction(repr(delta))


def test_listed_keys_always_appear_with_a_range_that_holds_the_count_zeros_included() -> None:
    chosen = gate(Bounds(1, 5), 1.0, 1e-5)
    k = chosen.half_width
    for n in (0, 1, k, 7 * k):
        shown = released_with_every_draw(chosen, k, n, "listed")
        assert shown == [(float(n + j), float(n + j - k), float(n + j + k)) for j in range(-k, k + 1)]
        assert all(holds(outcome, n) for outcome in shown)


def test_without_a_second_gate_no_draw_publishes_a_key_that_is_not_listed() -> None:
    chosen = gate(Bounds(1, 1), 1.0, 1e-5)
    for n in (0, 1, 100, 10**9):
        assert set(released_with_every_draw(chosen, chosen.half_width, n, "other")) == {None}
        assert chosen.survival(n) == 0.0
    admitted = chosen.admits(pa.array(["other 0", "listed 0", "listed 0 ", "listed 1"]))
    assert admitted is not None
    assert admitted.tolist() == [False, True, False, True]


@pytest.mark.parametrize("otherwise", SECOND_GATES)
@pytest.mark.parametrize(
    ("epsilon", "delta", "keys", "per_key"),
    [(1.0, 1e-5, 2, 1), (2.0, 1e-3, 2, 3), (4.0, 1e-2, 3, 1), (1.0, 1e-5, 3, 5)],
)
def test_listed_and_unlisted_keys_of_one_unit_keep_epsilon_and_delta_at_no_further_cost(
    otherwise: str, epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    chosen = gate(Bounds(keys, per_key), epsilon, delta, otherwise)
    assert chosen.guarantee.epsilon == epsilon
    assert chosen.guarantee.delta == delta
    public, new = listed(chosen, 0, per_key), unlisted(chosen, None, per_key)
    for count in range(1, keys):
        assert together([public] * count + [new] * (keys - count)).delta(epsilon) <= Fraction(repr(delta))
    n = 4 * keys * per_key + 3
    old = unlisted(chosen, n, n + per_key)
    assert together([public, old] + [new] * (keys - 2)).delta(epsilon) <= Fraction(repr(delta))


def splits(bounds: Bounds) -> list[tuple[int, ...]]:
    """All that a unit may add to its keys when there is a bound on the total."""
    ways = combinations_with_replacement(range(bounds.per_key + 1), bounds.keys)
    return [way for way in ways if sum(way) == bounds.l1]


@pytest.mark.parametrize("otherwise", SECOND_GATES)
@pytest.mark.parametrize(
    ("bounds", "epsilon", "delta"),
    [
        (Bounds(3, 4, 5), 1.0, 1e-3),
        (Bounds(2, 3, 4), 1.0, 1e-3),
        (Bounds(2, 3, 4), 2.0, 1e-5),
        (Bounds(2, 3, 4), 5.0, 1e-2),
    ],
)
def test_with_a_bound_on_the_total_listed_and_unlisted_keys_keep_epsilon_and_delta(
    otherwise: str, bounds: Bounds, epsilon: float, delta: float
) -> None:
    chosen = gate(bounds, epsilon, delta, otherwise)
    often = next(n for n in range(1, 1000) if chosen.survival(n) > 0.4) - 1
    kinds: list[Callable[[int], Odds]] = [
        lambda x: listed(chosen, 0, x),
        lambda x: unlisted(chosen, None, x),
        lambda x: unlisted(chosen, often, often + x),
    ]
    worst = Fraction(0)
    for way in splits(bounds):
        added = [x for x in way if x]
        for chosen_kinds in product(kinds, repeat=len(added)):
            unit = [kind(x) for kind, x in zip(chosen_kinds, added, strict=True)]
            worst = max(worst, together(unit).delta(epsilon))
    assert worst <= Fraction(repr(delta))


@pytest.mark.parametrize("otherwise", ["truncated-geometric", "geometric-threshold"])
def test_a_table_of_both_kinds_is_released_as_each_kind_on_its_own(otherwise: str) -> None:
    chosen = gate(Bounds(1, 1), 1.0, 1e-5, otherwise)
    second = chosen._otherwise
    assert second is not None
    keys = ["other 0", "listed 0", "other 1", "listed 1", "other 2"]
    counts, draws = [30, 0, 12, 5, 40], [-3, -2, -4, 7, 1]
    table = ExactTable(pa.array(keys), np.array(counts, dtype=np.int64))
    ids = row_numbers(len(keys))
    here, there = np.array([1, 3]), np.array([0, 2, 4])
    noise = DrawsAsGiven(draws)
    apart = as_rows(gate(Bounds(1, 1), 1.0, 1e-5).release(table.take(here), ids[here], noise)) | as_rows(
        second.release(table.take(there), ids[there], noise)
    )
    assert as_rows(chosen.release(table, ids, noise)) == apart
    assert {key for key, *_ in apart} == {"listed 0", "listed 1", "other 0", "other 2"}
    assert chosen.admits(pa.array(keys)) is None


epsilons = st.floats(0.05, 8.0)
sizes = st.integers(1, 5)


@settings(max_examples=40)
@given(epsilons, st.floats(1e-12, 0.5), sizes, sizes, st.floats(1.0, 4.0), st.floats(0.05, 1.0), sizes)
def test_the_half_width_falls_with_epsilon_and_delta_and_rises_with_keys_and_what_each_may_get(
    epsilon: float, delta: float, keys: int, per_key: int, more: float, less: float, further: int
) -> None:
    def width(epsilon: float, delta: float, keys: int, per_key: int) -> int:
        return PublicKeys(Bounds(keys, per_key), epsilon=epsilon, delta=delta, keys=["one"]).half_width

    here = width(epsilon, delta, keys, per_key)
    assert width(epsilon * more, delta, keys, per_key) <= here
    assert width(epsilon, delta * less, keys, per_key) >= here
    assert width(epsilon, delta, keys + further, per_key) >= here
    assert width(epsilon, delta, keys, per_key + further) >= here


@given(st.sampled_from(SECOND_GATES), st.integers(0, 200), st.integers(0, 50))
def test_a_larger_count_of_an_unlisted_key_survives_no_less_often(otherwise: str, n: int, more: int) -> None:
    chosen = gate(Bounds(2, 3), 2.0, 1e-3, otherwise)
    assert chosen.survival(n) <= chosen.survival(n + more)
    assert chosen.survival(0) == 0.0 < chosen.survival(1)


mixed_keys = st.one_of(st.sampled_from(LISTED[:12]), st.text(max_size=3))


@settings(max_examples=60)
@given(st.sampled_from([None, *SECOND_GATES]), st.dictionaries(mixed_keys, st.integers(1, 60), min_size=1), st.data())
def test_the_rows_depend_neither_on_the_tables_order_nor_on_its_shards(
    otherwise: str | None, counts: dict[str, int], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(counts))))
    cuts = data.draw(st.sets(st.integers(0, len(counts))))
    assert_release_knows_no_order_and_no_shards(gate(Bounds(2, 3), 2.0, 1e-3, otherwise), counts, order, cuts)
