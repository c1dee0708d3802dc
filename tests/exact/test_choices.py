"""Choices keep their epsilon, exactly: the chance of every key is a rational number made of the coins' thresholds.

Permute-and-flip takes a uniform one of the keys whose coins fall (the first of them in random order), so its distribution is
a sum over which coins fall; the exponential mechanism is its integer weights. Neighbours are all that one unit can do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import combinations, permutations, product
from math import comb, exp, lcm, log
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exact.divergence import Distribution, delta_between
from tests.statistical.chi_squared import miss_probability, p_value
from tidegate.mechanisms.choose import Choose, Chooser, pack, unpack
from tidegate.mechanisms.keyed import Ids, KeyedHash, derive_key
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.noise import WORD_BITS, Noise
from tidegate.mechanisms.table import ExactTable, Ints
from tidegate.mechanisms.top_k import TopK

METHODS = ["permute-and-flip", "exponential"]
UNIT = 2**WORD_BITS
Vector = tuple[int, ...]


def chances(chooser: Chooser, utilities: Sequence[int]) -> list[Fraction]:
    """The exact chance of every key."""
    coins = [chooser.thresholds[min(max(utilities) - u, len(chooser.thresholds) - 1)] for u in utilities]
    if chooser.method == "exponential":
        return [Fraction(coin, sum(coins)) for coin in coins]
    found = [0] * len(coins)
    shares = lcm(*range(1, len(coins) + 1))
    for fallen in product((False, True), repeat=len(coins)):
        mass = shares
        for coin, falls in zip(coins, fallen, strict=True):
            mass *= coin if falls else UNIT - coin
        if mass:
            for place in np.flatnonzero(fallen):
                found[place] += mass // sum(fallen)
    return [Fraction(mass, shares * UNIT ** len(coins)) for mass in found]


def in_order(chooser: Chooser, utilities: Sequence[int], wanted: int) -> dict[Hashable, Fraction]:
    """The exact chance of every list of first keys, a round after the other."""
    found: dict[Hashable, Fraction] = {}
    for chosen in permutations(range(len(utilities)), wanted):
        chance, left = Fraction(1), list(range(len(utilities)))
        for place in chosen:
            chance *= chances(chooser, [utilities[i] for i in left])[left.index(place)]
            left.remove(place)
        found[chosen] = chance
    return found


def apart(p: dict[Hashable, Fraction], q: dict[Hashable, Fraction], epsilon: float) -> tuple[Fraction, float]:
    """(delta at epsilon, largest log-ratio), both directions."""
    total = lcm(*(chance.denominator for chance in (*p.values(), *q.values())))
    one, other = (Distribution({k: int(v * total) for k, v in side.items()}, total) for side in (p, q))
    assert sum(one.mass.values()) == sum(other.mass.values()) == total
    ratio = max(max(p[k] / q[k], q[k] / p[k]) for k in p if p[k] and q[k])
    return delta_between(one, other, epsilon), log(ratio)


def named(found: list[Fraction]) -> dict[Hashable, Fraction]:
    return dict(enumerate(found))


def raised(vector: Vector, keys: int, by: range) -> Iterator[Vector]:
    """Everything that one unit can do: any `keys` of the counts change, each by any number of the range."""
    for places in combinations(range(len(vector)), min(keys, len(vector))):
        for changes in product(by, repeat=len(places)):
            changed = list(vector)
            for place, change in zip(places, changes, strict=True):
                changed[place] += change
            yield tuple(changed)


def worst(chooser: Chooser, vectors: Sequence[Vector], keys: int, by: range, epsilon: float) -> tuple[Fraction, float]:
    """Over all vectors and all that a unit can do to them."""
    cached: dict[Vector, dict[Hashable, Fraction]] = {}

    def of(vector: Vector) -> dict[Hashable, Fraction]:
        # Only gaps matter, so vectors that differ by a constant are the same.
        gaps = tuple(max(vector) - u for u in vector)
        if gaps not in cached:
            cached[gaps] = named(chances(chooser, [-gap for gap in gaps]))
        return cached[gaps]

    found = {
        (tuple(max(v) - u for u in v), tuple(max(w) - u for u in w)): (v, w)
        for v in vectors
        for w in raised(v, keys, by)
    }
    results = [apart(of(v), of(w), epsilon) for v, w in found.values()]
    return max(delta for delta, _ in results), max(loss for _, loss in results)


SMALL = [*product(range(4), repeat=3), (0, 20, 20), (0, 0, 30), (9, 9, 0)]
# (epsilon, keys, per_key)
POINTS = [(1.0, 1, 1), (0.3, 3, 1), (2.0, 2, 2), (5.0, 1, 3)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("epsilon", "keys", "per_key"), POINTS)
def test_a_unit_changes_the_odds_of_no_key_by_more_than_epsilon(
    method: str, epsilon: float, keys: int, per_key: int
) -> None:
    choose = Choose(Bounds(keys, per_key), epsilon=epsilon, delta=1e-9, method=method)
    assert choose.chooser.step == 1
    # It costs the same however many keys a unit changes: here it may change all three.
    delta, loss = worst(choose.chooser, SMALL, 3, range(per_key + 1), epsilon)
    assert delta <= Fraction(choose.guarantee.delta)
    assert loss <= epsilon * (1 + 1e-12)
    # And no less can be promised.
    assert loss >= 0.999 * epsilon


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("epsilon", "keys", "per_key"), POINTS)
def test_a_rate_a_fifth_too_high_breaks_epsilon(method: str, epsilon: float, keys: int, per_key: int) -> None:
    choose = Choose(Bounds(keys, per_key), epsilon=epsilon, delta=1e-9, method=method)
    choose.chooser.rate *= Decimal("1.2")
    delta, loss = worst(choose.chooser, SMALL, keys, range(per_key + 1), epsilon)
    assert loss > 1.1 * epsilon
    assert delta > Fraction(choose.guarantee.delta)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("epsilon", [1.0, 7.0])
def test_what_is_rounded_away_of_coins_that_hardly_ever_fall_fits_into_delta(method: str, epsilon: float) -> None:
    choose = Choose(Bounds(1, 1), epsilon=epsilon, delta=1e-9, method=method)
    last = len(choose.chooser.thresholds)
    vectors = [(0, gap, other) for gap in range(last - 5, last + 2) for other in (0, gap)]
    delta, loss = worst(choose.chooser, vectors, 3, range(2), epsilon)
    # There the ratio of whole numbers is no longer that of the exponentials, so there is something to charge.
    assert loss > epsilon
    assert 0 < delta <= Fraction(choose.guarantee.delta)


def test_the_usual_rate_would_be_half_as_large() -> None:
    # Without using that a unit only adds, its choices cost twice the rate at which they decay.
    usual, ours = (Choose(Bounds(1, 1, swing=swing), epsilon=1.0, delta=1e-9).chooser.rate for swing in (2, None))
    assert ours == 2 * usual


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("by", [range(-2, 4), range(-3, 3)], ids=["-2 to 3", "-3 to 2"])
def test_changes_of_both_signs_cost_their_swing(method: str, by: range) -> None:
    epsilon, bounds = 2.0, Bounds(2, 3, swing=5)
    choose = Choose(bounds, epsilon=epsilon, delta=1e-9, method=method)
    vectors = [*product((0, 5), repeat=3), (0, 2, 4), (0, 100, 0)]
    delta, loss = worst(choose.chooser, vectors, 2, by, epsilon)
    assert delta <= Fraction(choose.guarantee.delta)
    assert 0.999 * epsilon <= loss <= epsilon * (1 + 1e-12)
    # The bound on one key alone would not do.
    alone = Choose(Bounds(2, 3), epsilon=epsilon, delta=1e-9, method=method)
    assert worst(alone.chooser, vectors, 2, by, epsilon)[1] > 1.5 * epsilon


@pytest.mark.parametrize("method", METHODS)
def test_two_rounds_of_top_k_together_keep_epsilon(method: str) -> None:
    epsilon, bounds = 2.0, Bounds(3, 1)
    top = TopK(bounds, epsilon=epsilon, delta=1e-9, k=2, method=method)
    vectors = [*product(range(3), repeat=3), (0, 1, 20), (0, 0, 30), (20, 0, 20)]
    largest = 0.0
    cached = {v: in_order(top.chooser, v, 2) for vector in vectors for v in (vector, *raised(vector, 3, range(2)))}
    for vector in vectors:
        for more in raised(vector, 3, range(2)):
            delta, loss = apart(cached[vector], cached[more], epsilon)
            assert delta <= Fraction(top.guarantee.delta)
            largest = max(largest, loss)
    # More than one round could: the rounds do add up.
    assert epsilon / 2 < largest <= epsilon * (1 + 1e-12)
    single = Choose(bounds, epsilon=epsilon, delta=1e-9, method=method)
    too_high = max(
        apart(in_order(single.chooser, v, 2), in_order(single.chooser, w, 2), epsilon)[1]
        for v in ((0, 0, 30), (0, 1, 20))
        for w in raised(v, 3, range(2))
    )
    assert too_high > epsilon


@pytest.mark.parametrize("rate", [0.2, 1.0, 3.0])
def test_permute_and_flip_is_never_worse_than_the_exponential_mechanism(rate: float) -> None:
    flip, exponential = (Chooser(Bounds(1, 1), rate, 1e-9, 1, method) for method in METHODS)
    better = 0
    for utilities in [*product(range(5), repeat=3), *product((0, 3, 4), repeat=4)]:
        expected = [
            sum(chance * u for chance, u in zip(chances(chooser, utilities), utilities, strict=True))
            for chooser in (flip, exponential)
        ]
        # Up to the rounding of coins to 2^-128.
        assert expected[0] >= expected[1] - Fraction(1, 2**120)
        better += expected[0] > expected[1] + Fraction(1, 100)
    assert better > 10


def test_among_two_keys_the_chance_is_the_known_one() -> None:
    # The one that is short by g: half of exp(-g), as the other's coin is sure; or 1/(1 + exp(g)).
    flip, exponential = (Chooser(Bounds(1, 1), 1.0, 1e-9, 1, method) for method in METHODS)
    for gap in range(6):
        assert float(chances(flip, [gap, 0])[1]) == pytest.approx(exp(-gap) / 2, rel=1e-12)
        assert float(chances(exponential, [gap, 0])[1]) == pytest.approx(1 / (1 + exp(gap)), rel=1e-12)


# Coarser steps.


def allowed(chooser: Chooser, epsilon: float) -> float:
    """The difference of utilities that the rate is made for."""
    return epsilon / chooser.rounds / float(chooser.rate)


@pytest.mark.parametrize(("epsilon", "rounds"), [(1.0, 1), (0.25, 1), (2.0, 4), (0.01, 1)])
@pytest.mark.parametrize(
    "bounds", [Bounds(1, 5000), Bounds(3, 2984, swing=5000), Bounds(1, 3), Bounds(2, 700, swing=700)]
)
@settings(max_examples=30)
@given(data=st.data())
def test_counts_in_steps_move_no_further_apart_than_the_rate_is_made_for(
    epsilon: float, rounds: int, bounds: Bounds, data: st.DataObject
) -> None:
    chooser = Chooser(bounds, epsilon, 1e-9, rounds, "permute-and-flip")
    least, most = bounds.per_key - bounds.apart, bounds.per_key
    counts = np.array(data.draw(st.lists(st.integers(0, 2**40), min_size=2, max_size=4)), np.int64)
    changes = np.array(data.draw(st.lists(st.integers(least, most), min_size=len(counts), max_size=len(counts))))
    moved = chooser.utilities(counts + changes) - chooser.utilities(counts)
    moved = np.append(moved, 0)  # a key that the unit does not have
    assert int(moved.max() - moved.min()) <= allowed(chooser, epsilon) * (1 + 1e-12)


def test_steps_are_coarse_only_where_a_unit_weighs_much() -> None:
    assert Chooser(Bounds(1, 5000), 1.0, 1e-9, 1, "permute-and-flip").step == 19
    assert Chooser(Bounds(1, 256), 1.0, 1e-9, 1, "permute-and-flip").step == 1
    assert Chooser(Bounds(1, 5000), 0.01, 1e-9, 1, "permute-and-flip").step > 19


def test_opposite_changes_can_move_a_step_further_and_the_rate_knows() -> None:
    # 2984 up is at most 158 steps of 19, 2016 down at most 107: one more than the 264 of 5000 at once.
    chooser = Chooser(Bounds(2, 2984, swing=5000), 1.0, 1e-9, 1, "permute-and-flip")
    before, after = np.array([18, 19 * 200]), np.array([18 + 2984, 19 * 200 - 2016])
    moved = chooser.utilities(after) - chooser.utilities(before)
    assert int(moved[0] - moved[1]) == 265 == round(allowed(chooser, 1.0))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("bounds", "changes"), [(Bounds(3, 5000), (0, 5000)), (Bounds(3, 2984, swing=5000), (-2016, 2984))]
)
def test_choices_in_steps_keep_epsilon(method: str, bounds: Bounds, changes: tuple[int, int]) -> None:
    epsilon = 1.0
    choose = Choose(bounds, epsilon=epsilon, delta=1e-9, method=method)
    step, largest = choose.chooser.step, 0.0
    for counts in product((9 * step, 10 * step - 1, 4000 * step + 1), repeat=3):
        p = named(chances(choose.chooser, choose.chooser.utilities(np.array(counts)).tolist()))
        for change in product((*changes, 0), repeat=3):
            after = choose.chooser.utilities(np.array(counts) + np.array(change)).tolist()
            delta, loss = apart(p, named(chances(choose.chooser, after)), epsilon)
            assert delta <= Fraction(choose.guarantee.delta)
            largest = max(largest, loss)
    assert 0.99 * epsilon < largest <= epsilon * (1 + 1e-12)


# Summaries.


def identify(strings: pa.Array) -> Ids:
    return KeyedHash(bytes(32))(strings)


def table_of(counts: dict[str, int]) -> ExactTable:
    return ExactTable(pa.array(list(counts), pa.string()), np.array(list(counts.values()), np.int64))


def held(summary: bytes) -> dict[str, int]:
    keys, utilities = unpack(summary)
    assert len(set(keys.to_pylist())) == len(keys)
    return dict(zip(keys.to_pylist(), utilities.tolist(), strict=True))


def mechanisms(epsilon: float) -> list[Choose | TopK]:
    bounds = Bounds(2, 1)
    return [
        mechanism
        for method in METHODS
        for mechanism in (
            Choose(bounds, epsilon=epsilon, delta=1e-9, method=method),
            TopK(bounds, epsilon=3 * epsilon, delta=1e-9, k=3, method=method),
        )
    ]


# At rate 8 a coin at a gap of 12 never falls, so much is left out of summaries.
STEEP = mechanisms(8.0)
counts_of_keys = st.dictionaries(st.text(max_size=3), st.integers(0, 60), max_size=24)


def shards(counts: dict[str, int], number: int) -> list[dict[str, int]]:
    return [dict(list(counts.items())[shard::number]) for shard in range(number)]


@pytest.mark.parametrize("mechanism", STEEP, ids=lambda m: f"{type(m).__name__} {m.chooser.method}")
@settings(max_examples=30)
@given(counts=counts_of_keys)
def test_merging_summaries_is_associative_and_commutative(mechanism: Choose | TopK, counts: dict[str, int]) -> None:
    a, b, c = (mechanism.summarize(table_of(shard)) for shard in shards(counts, 3))
    assert held(mechanism.merge(a, b)) == held(mechanism.merge(b, a))
    left = held(mechanism.merge(mechanism.merge(a, b), c))
    assert left == held(mechanism.merge(a, mechanism.merge(b, c)))
    assert left == held(mechanism.summarize(table_of(counts)))


def order_of(rows: Any) -> list[str]:
    found: list[str] = rows.keys.to_pylist()
    return found


@pytest.mark.parametrize("mechanism", STEEP, ids=lambda m: f"{type(m).__name__} {m.chooser.method}")
@settings(max_examples=20)
@given(counts=counts_of_keys, seed=st.integers(0, 2**32), number=st.integers(1, 5))
def test_shards_their_order_and_what_summaries_leave_out_do_not_change_the_choice(
    mechanism: Choose | TopK, counts: dict[str, int], seed: int, number: int
) -> None:
    noise = Noise(derive_key(bytes(32), seed))
    utilities = np.array(list(counts.values()), np.int64)
    all_kept = everything(pa.array(list(counts), pa.string()), utilities)
    expected = order_of(mechanism.release(all_kept, identify, noise))
    assert len(expected) == min(len(counts), 3 if isinstance(mechanism, TopK) else 1)
    for parts in (shards(counts, number), shards(counts, number)[::-1], shards(dict(reversed(counts.items())), 2)):
        merged = mechanism.summarize(table_of(parts[0]))
        for part in parts[1:]:
            merged = mechanism.merge(merged, mechanism.summarize(table_of(part)))
        assert order_of(mechanism.release(merged, identify, noise)) == expected


class KeepsAll(Chooser):
    def within_reach(self, utilities: Ints, wanted: int) -> Ints:
        return np.arange(len(utilities))


def everything(keys: pa.Array, utilities: Ints) -> bytes:
    """A summary that leaves nothing out."""
    return pack(KeepsAll(Bounds(1, 1), 1.0, 1e-9, 1, "exponential"), keys, utilities, 1)


def test_what_a_summary_leaves_out_could_never_be_chosen() -> None:
    for mechanism in STEEP:
        chooser = mechanism.chooser
        counts = {str(count): count for count in range(200)}
        kept = held(mechanism.summarize(table_of(counts)))
        assert len(kept) < 30
        wanted = mechanism.k if isinstance(mechanism, TopK) else 1
        # Even when the others of the first are gone: the coins of those that are left out are 0.
        smallest_first = 200 - wanted
        left_out = [count for count in counts.values() if str(count) not in kept]
        assert {chooser.thresholds[min(smallest_first - u, len(chooser.thresholds) - 1)] for u in left_out} == {0}


# The real release, sampled.

SURE = 1e-9
"""Probability of a false alarm of each test below; a rate that is 10% off is missed with less than 1e-9 as well."""


def sampled(mechanism: Choose | TopK, utilities: Sequence[int], draws: int) -> list[tuple[int, ...]]:
    """Releases with different seeds, as places."""
    keys = pa.array([f"{place}" for place in range(len(utilities))])
    summary = mechanism.summarize(ExactTable(keys, np.array(utilities, np.int64)))
    known = dict(zip(keys.to_pylist(), identify(keys), strict=True))
    ids = np.array([known[key] for key in unpack(summary)[0].to_pylist()], np.uint64)
    return [
        tuple(map(int, order_of(mechanism.release(summary, lambda _: ids, Noise(derive_key(b"c" * 32, draw))))))
        for draw in range(draws)
    ]


@pytest.mark.parametrize("method", METHODS)
def test_releases_follow_the_exact_distribution(method: str) -> None:
    choose = Choose(Bounds(1, 1), epsilon=0.7, delta=1e-9, method=method)
    utilities = [5, 5, 4, 2, 0]
    seen = np.bincount([chosen for (chosen,) in sampled(choose, utilities, 1500)], minlength=5)
    assert p_value(seen, [float(chance) for chance in chances(choose.chooser, utilities)]) > SURE


@pytest.mark.parametrize("method", METHODS)
def test_top_k_follows_the_exact_distribution_of_ordered_pairs(method: str) -> None:
    top = TopK(Bounds(1, 1), epsilon=1.6, delta=1e-9, k=2, method=method)
    utilities = [3, 3, 1, 0]
    expected = in_order(top.chooser, utilities, 2)
    found = sampled(top, utilities, 1000)
    seen = np.array([found.count(pair) for pair in permutations(range(4), 2)])
    assert seen.sum() == 1000
    assert p_value(seen, [float(expected[pair]) for pair in permutations(range(4), 2)]) > SURE


MANY, SHORT, DRAWS = 4000, 8, 1200


def chance_of_the_largest(rate: float, method: str) -> float:
    """Against many keys that are all short by the same; a binomial number of their coins falls."""
    p = float(np.exp(-rate * SHORT))
    if method == "exponential":
        return 1 / (1 + MANY * p)
    return sum(comb(MANY, fallen) * p**fallen * (1 - p) ** (MANY - fallen) / (1 + fallen) for fallen in range(60))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("factor", ["1", "0.9", "1.1"])
def test_a_rate_a_tenth_too_small_or_too_large_is_rejected(method: str, factor: str) -> None:
    choose = Choose(Bounds(1, 1), epsilon=1.0, delta=1e-9, method=method)
    choose.chooser.rate *= Decimal(factor)
    largest = sum(chosen == 0 for (chosen,) in sampled(choose, [SHORT, *([0] * MANY)], DRAWS))
    believed = chance_of_the_largest(1.0, method)
    p = p_value(np.array([largest, DRAWS - largest]), [believed, 1 - believed])
    if factor == "1":
        assert p > SURE
    else:
        assert p < SURE
        actual = chance_of_the_largest(float(factor), method)
        assert miss_probability([actual, 1 - actual], [believed, 1 - believed], DRAWS, SURE) < SURE


def test_equal_keys_are_chosen_equally_often_wherever_they_stand() -> None:
    for method in METHODS:
        mechanism = Choose(Bounds(1, 1), epsilon=1.0, delta=1e-9, method=method)
        first = [chosen for (chosen,) in sampled(mechanism, [7] * 5, 600)]
        assert p_value(np.bincount(first, minlength=5), [0.2] * 5) > SURE


refused: list[tuple[str, Callable[[], object]]] = [
    ("method must be", lambda: Choose(Bounds(1, 1), epsilon=1.0, delta=1e-9, method="best")),
    ("epsilon must be", lambda: Choose(Bounds(1, 1), epsilon=0.0, delta=1e-9)),
    ("epsilon must be larger", lambda: Choose(Bounds(1, 1), epsilon=1e-6, delta=1e-9)),
    ("delta must be", lambda: Choose(Bounds(1, 1), epsilon=1.0, delta=0.0)),
    ("delta 1e-29 is below", lambda: Choose(Bounds(1, 1), epsilon=1.0, delta=1e-29)),
    ("k must be", lambda: TopK(Bounds(1, 1), epsilon=1.0, delta=1e-9, k=0)),
    ("k must be", lambda: TopK(Bounds(1, 1), epsilon=1.0, delta=1e-9, k=True)),
]


@pytest.mark.parametrize(("sentence", "build"), refused)
def test_what_cannot_be_kept_is_refused(sentence: str, build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        build()
