"""Quantiles keep their epsilon, exactly: the bisection is a tree of coins, and the coins are whole numbers out of 2^128.

The chance of every leaf is computed from the very thresholds that words are compared with, for a unit that is there and one
that is not; and the real `release`, given one word of every kind, walks the same tree.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from math import ceil, log, prod

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exact.divergence import ALL_WORDS, Distribution, delta_between, joint, row_numbers
from tests.exact.test_sampler import WordsAsGiven, intervals
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.quantiles import Quantiles, below_coins
from tidegate.mechanisms.table import ExactTable, Rows, make_spread

Counts = tuple[int, ...]


def quantiles(epsilon: float, at: Sequence[float], buckets: int = 4, keys: int = 1, delta: float = 1e-9) -> Quantiles:
    return Quantiles(
        Bounds(keys, 1), epsilon=epsilon, delta=delta, column="x", low=0, high=16, resolution=1, at=at, buckets=buckets
    )


def nodes(mechanism: Quantiles, counts: Counts, number: int) -> Iterator[tuple[int, int, int]]:
    """(level, leftmost leaf, threshold to go down) of every node of the tree."""
    below = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    thresholds = mechanism.coins[number].thresholds
    certain = (len(thresholds) - 1) // 2
    for level in reversed(range(mechanism.levels)):
        for leaf in range(0, 2**mechanism.levels, 2 ** (level + 1)):
            excess = int(mechanism.excess(below[leaf + 2**level], below[-1], number))
            yield level, leaf, thresholds[min(max(excess, -certain), certain) + certain]


def leaves(mechanism: Quantiles, counts: Counts, number: int = 0) -> Distribution:
    """How likely the search ends in each bucket."""
    down = {(level, leaf): threshold for level, leaf, threshold in nodes(mechanism, counts, number)}
    reached: dict[Hashable, int] = {}
    for leaf in range(2**mechanism.levels):
        mass, at = 1, 0
        for level in reversed(range(mechanism.levels)):
            up = leaf >> level & 1
            mass *= ALL_WORDS - down[level, at] if up else down[level, at]
            at += up << level
        reached[leaf] = mass
    return Distribution(reached, ALL_WORDS**mechanism.levels)


def all_quantiles(mechanism: Quantiles, counts: Counts) -> Distribution:
    return joint([leaves(mechanism, counts, number) for number in range(len(mechanism.at))])


def with_one_more(counts: Counts) -> list[Counts]:
    """Everything that one unit may do to a key."""
    return [(*counts[:bucket], counts[bucket] + 1, *counts[bucket + 1 :]) for bucket in range(len(counts))]


def loss(p: Distribution, q: Distribution) -> float:
    """The largest log-ratio, in either direction."""
    both = [(mass, q.mass[outcome]) for outcome, mass in p.mass.items() if mass and q.mass[outcome]]
    return log(max(max(Fraction(x, y), Fraction(y, x)) for x, y in both))


SMALL = [*product((0, 1, 3), repeat=4), (30, 0, 0, 0), (0, 0, 0, 30), (0, 20, 20, 0), (500, 0, 0, 400)]
EIGHT = [
    (0,) * 8,
    (30, 0, 0, 0, 0, 0, 0, 0),
    (0, 0, 0, 0, 0, 0, 0, 30),
    (1, 2, 3, 4, 4, 3, 2, 1),
    (5, 0, 0, 0, 0, 0, 0, 5),
    (0, 0, 0, 7, 7, 0, 0, 0),
    (0, 1, 0, 1, 0, 1, 0, 1),
]
# (epsilon, keys, at): small denominators are scaled, 0.95 and 0.123 are rounded.
POINTS = [
    (1.0, 1, (0.5,)),
    (0.3, 1, (0.9,)),
    (2.0, 2, (0.25,)),
    (1.0, 1, (0.95,)),
    (4.0, 2, (0.123,)),
    (8.0, 1, (0.1,)),
]


@pytest.mark.parametrize(("epsilon", "keys", "at"), POINTS)
@pytest.mark.parametrize("buckets", [4, 8])
def test_a_unit_changes_the_odds_of_no_bucket_by_more_than_its_share(
    epsilon: float, keys: int, at: Sequence[float], buckets: int
) -> None:
    mechanism = quantiles(epsilon, at, buckets, keys)
    assert mechanism.guarantee.a_key is not None
    stated = Fraction(mechanism.guarantee.a_key)
    worst = 0.0
    for counts in SMALL if buckets == 4 else EIGHT:
        absent = leaves(mechanism, counts)
        assert sum(absent.mass.values()) == absent.total
        for more in with_one_more(counts):
            present = leaves(mechanism, more)
            assert delta_between(absent, present, epsilon / keys) <= stated
            if sum(counts) <= 40:
                worst = max(worst, loss(absent, present))
    # Nothing is wasted either: where all units are at one end, every level of the search costs what it may.
    assert worst == pytest.approx(epsilon / keys, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "keys", "at"), POINTS)
def test_a_rate_a_fifth_too_high_breaks_epsilon(epsilon: float, keys: int, at: Sequence[float]) -> None:
    mechanism = quantiles(epsilon, at, 4, keys)
    stated = Fraction(repr(1e-9))
    mechanism.rate *= Decimal("1.2")
    ends = [(30, 0, 0, 0), (0, 0, 0, 30), (3, 0, 0, 0), (0, 0, 0, 3)]
    changed = [
        (leaves(mechanism, counts), leaves(mechanism, more)) for counts in ends for more in with_one_more(counts)
    ]
    assert max(loss(*pair) for pair in changed) == pytest.approx(1.2 * epsilon / keys, rel=1e-9)
    assert max(delta_between(*pair, epsilon / keys) for pair in changed) > stated


@pytest.mark.parametrize("at", [(0.25, 0.5), (0.5, 0.95), (0.1, 0.5, 0.9)])
def test_several_quantiles_together_keep_epsilon(at: Sequence[float]) -> None:
    epsilon = 1.5
    mechanism = quantiles(epsilon, at)
    assert mechanism.guarantee.a_key is not None
    worst = 0.0
    for counts in [(0, 0, 0, 0), (1, 2, 3, 4), (0, 0, 0, 30), (30, 0, 0, 0), (10, 0, 0, 10)]:
        absent = all_quantiles(mechanism, counts)
        for more in with_one_more(counts):
            present = all_quantiles(mechanism, more)
            assert delta_between(absent, present, epsilon) <= Fraction(mechanism.guarantee.a_key)
            worst = max(worst, loss(absent, present))
    # A single one may not use the others' part.
    assert epsilon / len(at) < worst <= epsilon * (1 + 1e-12)


def test_two_keys_together_keep_epsilon_and_delta() -> None:
    epsilon = 2.0
    mechanism = quantiles(epsilon, (0.5,), keys=2)
    changes = [
        (leaves(mechanism, counts), leaves(mechanism, more))
        for counts in [(0, 0, 0, 0), (0, 0, 0, 30), (2, 1, 1, 2), (30, 0, 0, 0)]
        for more in with_one_more(counts)
    ]
    worst = 0.0
    for (one, one_more), (two, two_more) in product(changes, repeat=2):
        absent, present = joint([one, two]), joint([one_more, two_more])
        assert delta_between(absent, present, epsilon) <= Fraction(mechanism.guarantee.delta)
        worst = max(worst, loss(absent, present))
    assert worst == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.1, 0.25, 0.3, 0.95, 0.123, 0.999])
@settings(max_examples=60)
@given(
    below=st.integers(0, 2**33),
    above=st.integers(0, 2**33),
    in_lower=st.booleans(),
)
def test_one_unit_changes_the_excess_by_at_most_the_sensitivity(
    q: float, below: int, above: int, in_lower: bool
) -> None:
    mechanism = quantiles(1.0, (q,))
    exact = Fraction(repr(q))
    most = max(exact.numerator, exact.denominator - exact.numerator) if exact.denominator <= 10 else 1
    # A coin's odds change by its rate for a step of the excess, so the product is what one unit may weigh.
    low, high = (mechanism.coins[0].thresholds[len(mechanism.coins[0].thresholds) // 2 - s] for s in (2, 1))
    assert log(Fraction(high, low)) * most == pytest.approx(float(mechanism.rate), rel=1e-12)

    def excess(down: int, units: int) -> int:
        return int(mechanism.excess(np.array([down]), np.array([units]), 0)[0])

    before, after = excess(below, below + above), excess(below + in_lower, below + above + 1)
    assert abs(after - before) <= most
    # It says on which side the quantile is.
    assert (before >= 0) == (below >= exact * (below + above))


@pytest.mark.parametrize(("rate", "largest"), [("0.5", 200), ("0.01", 9000), ("3", 31), ("54", 4), ("0.25", 400)])
def test_coins_rise_are_certain_at_both_ends_and_mirror_each_other(rate: str, largest: int) -> None:
    thresholds = below_coins(Decimal(rate), 1, largest).thresholds
    assert len(thresholds) == 2 * largest + 1
    assert list(thresholds) == sorted(thresholds)
    assert thresholds[0] == 0
    assert thresholds[-1] == ALL_WORDS
    # Pr[S + G >= 0] and Pr[-S - 1 + G >= 0] add up to 1, as the noise is symmetric.
    assert all(thresholds[largest + s] + thresholds[largest - s - 1] == ALL_WORDS for s in range(largest))


@pytest.mark.parametrize("at", [(0.5,), (0.9,), (0.95,), (0.1, 0.5, 0.95)])
@pytest.mark.parametrize("epsilon", [0.2, 3.0, 1e4])
def test_every_coin_is_within_the_charged_distance_of_the_ideal(at: Sequence[float], epsilon: float) -> None:
    mechanism = quantiles(epsilon, at)
    charged = Fraction(3, 2**129)
    for q, coins in zip(mechanism.at, mechanism.coins, strict=True):
        exact = Fraction(q)
        change = max(exact.numerator, exact.denominator - exact.numerator) if exact.denominator <= 10 else 1
        largest = (len(coins.thresholds) - 1) // 2
        assert coins.thresholds[0] == 0
        assert coins.thresholds[-1] == ALL_WORDS
        for excess in {-largest, -largest // 2, -2, -1, 0, 1, largest // 3, largest - 1, largest}:
            with localcontext() as context:
                context.prec = 90
                a = (-mechanism.rate / change).exp()
                ideal = a**-excess / (1 + a) if excess < 0 else 1 - a ** (excess + 1) / (1 + a)
            assert abs(Fraction(coins.thresholds[largest + excess], ALL_WORDS) - Fraction(ideal)) <= charged


# The real release.


class Parts(Noise):
    """Words that were decided on, for every quantile."""

    def __init__(self, tables: Sequence[Sequence[tuple[int, ...]]]) -> None:
        self._tables = tables

    def part(self, number: int) -> Noise:
        return WordsAsGiven(self._tables[number])


def copies_of(mechanism: Quantiles, counts: Counts, copies: int) -> ExactTable:
    place = np.repeat(np.arange(copies), len(counts))
    bucket, count = np.tile(np.arange(len(counts)), copies), np.tile(np.array(counts, np.int64), copies)
    there = count > 0
    spread = make_spread(place[there], bucket[there], count[there], copies)
    keys = pa.array([str(copy) for copy in range(copies)])
    return ExactTable(keys, np.full(copies, sum(counts)), {}, {mechanism.spread.name: spread})


def released(mechanism: Quantiles, counts: Counts) -> dict[tuple[int, ...], Fraction]:
    """The exact distribution of what `release` publishes, as buckets."""
    kinds = []
    for number in range(len(mechanism.at)):
        found = list(nodes(mechanism, counts, number))
        kinds += [
            intervals({threshold for at, _, threshold in found if at == level})
            for level in reversed(range(mechanism.levels))
        ]
    combinations = list(product(*kinds))
    depth = mechanism.levels
    table, ids = copies_of(mechanism, counts, len(combinations)), row_numbers(len(combinations))

    def with_words(of: Callable[[int, int], int]) -> Rows:
        words = [tuple(of(first, length) for first, length in combination) for combination in combinations]
        each = range(0, len(mechanism.at) * depth, depth)
        return mechanism.release(table, ids, Parts([[row[at : at + depth] for row in words] for at in each]))

    rows = with_words(lambda first, length: first)
    # The last word of every interval leads to the same place: the thresholds are where they are said to be.
    assert rows.values.tolist() == with_words(lambda first, length: first + length - 1).values.tolist()
    width = 16 / 2**depth
    buckets = rows.values.reshape(len(combinations), -1) / width - 0.5
    chances: dict[tuple[int, ...], Fraction] = {}
    for place, combination in zip(buckets, combinations, strict=True):
        outcome = tuple(int(bucket) for bucket in place)
        assert list(outcome) == place.tolist()
        chance = Fraction(prod(length for _, length in combination), ALL_WORDS ** len(combination))
        chances[outcome] = chances.get(outcome, Fraction(0)) + chance
    return chances


@pytest.mark.parametrize(("at", "buckets"), [((0.5,), 4), ((0.9,), 8), ((0.95,), 8), ((0.25,), 2), ((0.25, 0.95), 4)])
@pytest.mark.parametrize("shape", [(0, 0), (3, 1), (0, 30), (400, 1), (2, 2)])
def test_the_real_release_walks_the_same_tree(at: Sequence[float], buckets: int, shape: tuple[int, int]) -> None:
    mechanism = quantiles(1.0, at, buckets)
    counts = tuple(shape[bucket % 2] for bucket in range(buckets))
    expected: dict[tuple[int, ...], Fraction] = {}
    exact = all_quantiles(mechanism, counts)
    for outcome, mass in exact.mass.items():
        assert isinstance(outcome, tuple)
        # A higher quantile is never published below a lower one.
        in_order = tuple(sorted(outcome))
        expected[in_order] = expected.get(in_order, Fraction(0)) + Fraction(mass, exact.total)
    assert released(mechanism, counts) == {outcome: chance for outcome, chance in expected.items() if chance}


def test_a_node_far_from_the_quantile_is_certain() -> None:
    # 500 units weigh more than any word can show, so only one bucket is ever published.
    mechanism = quantiles(4.0, (0.5,), 4)
    assert released(mechanism, (0, 0, 500, 0)) == {(2,): Fraction(1)}


units_of_a_key = st.lists(st.integers(0, 1000), min_size=1, max_size=60)


@pytest.mark.parametrize("buckets", [2, 8, 64])
@settings(max_examples=80)
@given(values=units_of_a_key)
def test_at_a_huge_epsilon_a_quantile_is_within_a_bucket_of_the_exact_one(buckets: int, values: list[int]) -> None:
    at = (0.5, 0.95, 0.999)
    mechanism = Quantiles(
        Bounds(1, 1), epsilon=1e6, delta=1e-9, column="x", low=0, high=10, resolution=0.01, at=at, buckets=buckets
    )
    bucket = np.searchsorted(np.array(mechanism.spread.edges), np.array(values), side="right")
    spread = make_spread(np.zeros(len(values), np.int64), bucket, np.ones(len(values), np.int64), 1)
    table = ExactTable(pa.array(["a"]), np.array([len(values)]), {}, {mechanism.spread.name: spread})
    rows = mechanism.release(table, row_numbers(1), Noise(b"q" * 32))
    for q, published in zip(at, rows.values, strict=True):
        exact = sorted(values)[ceil(Fraction(repr(q)) * len(values)) - 1] / 100
        assert abs(published - exact) <= 10 / buckets / 2 + 0.01
    assert rows.low.tolist() == [0.0] * len(at)
    assert rows.high.tolist() == [10.0] * len(at)
