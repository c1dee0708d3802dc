"""Counts, sums, means, variances and histograms keep their (epsilon, delta), exactly, on a fixed set of keys.

Each of them publishes whole numbers with the noise of the real sampler, which is enumerated here for a unit that is there
and one that is not. What a unit changes in which number is pinned down by the real `release` on chosen draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement, product
from math import log, nextafter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from tests.exact.divergence import Distribution, DrawsAsGiven, common, delta_between, joint, row_numbers
from tidegate.mechanisms import lattice as lattices
from tidegate.mechanisms.calibration import exact_delta
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.histogram import Histogram
from tidegate.mechanisms.mean import Mean
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.noise import BoundedGeometric, Noise
from tidegate.mechanisms.noisy_count import NoisyCount
from tidegate.mechanisms.sum import Sum
from tidegate.mechanisms.table import ExactTable, Ints, Rows, make_spread
from tidegate.mechanisms.values import Spread, Value
from tidegate.mechanisms.variance import Variance

ALL_BUT_NOTHING = 1e-12


def noisy(distribution: BoundedGeometric, n: int) -> Distribution:
    """What is seen of a number n."""
    masses, total = common(distribution.pmf())
    reach = range(-distribution.k, distribution.k + 1)
    return Distribution({n + j: mass for j, mass in zip(reach, masses, strict=True)}, total)


def neighbours(distribution: BoundedGeometric, changes: Sequence[int]) -> tuple[Distribution, Distribution]:
    """Numbers side by side, without and with a unit that changes them so."""
    return joint([noisy(distribution, 0)] * len(changes)), joint([noisy(distribution, x) for x in changes])


def delta_of(distribution: BoundedGeometric, changes: Sequence[int], epsilon: float) -> Fraction:
    """Both directions."""
    return delta_between(*neighbours(distribution, changes), epsilon)


def loss_of(distribution: BoundedGeometric, changes: Sequence[int]) -> float:
    """The largest log-ratio where both neighbours can show the outcome, in either direction."""
    forth = back = Fraction(1)  # the numbers are independent, so the worst is where each of them is at its worst
    for change in changes:
        one, other = noisy(distribution, 0).mass, noisy(distribution, change).mass
        both = [(mass, other[outcome]) for outcome, mass in one.items() if outcome in other]
        forth *= max(Fraction(p, q) for p, q in both)
        back *= max(Fraction(q, p) for p, q in both)
    return log(max(forth, back))


def noise_of(mechanism: Any) -> BoundedGeometric:
    found = mechanism.lattice.distribution if hasattr(mechanism, "lattice") else mechanism.distribution
    assert isinstance(found, BoundedGeometric)
    return found


def one_smaller(distribution: BoundedGeometric) -> BoundedGeometric:
    return BoundedGeometric(distribution.rate, distribution.k - 1)


def assert_kept_and_tight(
    distribution: BoundedGeometric, guarantee: Guarantee, one_key: Sequence[Sequence[int]], worst: Sequence[int]
) -> None:
    """`one_key` is everything that a unit may do to one key's numbers, `worst` what is worst."""
    epsilon, keys = guarantee.epsilon, guarantee.keys
    assert guarantee.a_key is not None
    share = epsilon / keys
    deltas = {tuple(changes): delta_of(distribution, changes, share) for changes in one_key}
    # A floating-point number states it to within the last place.
    assert max(deltas.values()) <= Fraction(nextafter(guarantee.a_key, 1))
    assert deltas[tuple(worst)] == max(deltas.values())
    assert float(deltas[tuple(worst)]) == pytest.approx(guarantee.a_key, rel=1e-9)
    assert max(loss_of(distribution, changes) for changes in one_key) == pytest.approx(share, rel=ALL_BUT_NOTHING)
    together = delta_of(distribution, list(worst) * keys, epsilon)
    assert together <= Fraction(repr(guarantee.delta))
    reach = max(map(abs, worst))
    assert float(together) == pytest.approx(
        exact_delta(distribution.k, distribution.rate, Bounds(keys, reach)), rel=1e-9
    )
    if distribution.k > reach:
        narrower = one_smaller(distribution)
        assert delta_of(narrower, list(worst) * keys, epsilon) > Fraction(repr(guarantee.delta))


# (epsilon, delta, keys, per_key)
COUNTS = [(1.0, 1e-5, 1, 1), (0.3, 1e-3, 1, 3), (2.0, 1e-2, 2, 1), (4.0, 1e-2, 2, 2), (3.0, 0.05, 3, 1)]


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), COUNTS)
def test_a_noisy_count_keeps_its_delta_and_wastes_none(epsilon: float, delta: float, keys: int, per_key: int) -> None:
    count = NoisyCount(Bounds(keys, per_key), epsilon=epsilon, delta=delta)
    changes = [(x,) for x in range(per_key + 1)]
    assert_kept_and_tight(count.distribution, count.guarantee, changes, (per_key,))
    assert count.distribution.k > per_key  # the check of a smaller width was made


@pytest.mark.parametrize("bounds", [Bounds(2, 3, total=4), Bounds(3, 2, total=3), Bounds(2, 2, total=2)])
def test_a_bound_on_the_total_holds_for_every_way_to_spread_it(bounds: Bounds) -> None:
    epsilon, delta = 3.0, 0.02
    count = NoisyCount(bounds, epsilon=epsilon, delta=delta)
    spread = [x for x in product(range(bounds.per_key + 1), repeat=bounds.keys) if sum(x) <= bounds.l1]
    deltas = {changes: delta_of(count.distribution, changes, epsilon) for changes in spread}
    assert max(deltas.values()) <= Fraction(repr(delta))
    stated = exact_delta(count.distribution.k, count.distribution.rate, bounds)
    assert float(max(deltas.values())) == pytest.approx(stated, rel=1e-9)
    worst = max(deltas, key=lambda changes: deltas[changes])
    assert sorted(worst)[-1] == bounds.per_key
    assert delta_of(one_smaller(count.distribution), worst, epsilon) > Fraction(repr(delta))


# (epsilon, delta, keys, low, high); only the farther end matters.
SUMS = [
    (1.0, 1e-3, 1, 0, 4),
    (1.0, 1e-3, 1, -4, 3),
    (1.0, 1e-3, 1, -4, -1),
    (2.0, 1e-4, 1, 2, 3),
    (5.0, 1e-2, 2, -2, 3),
    (5.0, 1e-2, 2, -3, 1),
]


@pytest.mark.parametrize(("epsilon", "delta", "keys", "low", "high"), SUMS)
def test_a_sum_keeps_its_delta_for_every_value_and_wastes_none(
    epsilon: float, delta: float, keys: int, low: int, high: int
) -> None:
    total = Sum(Bounds(keys, 1), epsilon=epsilon, delta=delta, column="x", low=low, high=high, resolution=1)
    reach = max(abs(low), abs(high))
    assert total.value.reach == reach
    worst = (high,) if high == reach else (low,)
    assert_kept_and_tight(total.lattice.distribution, total.guarantee, [(y,) for y in range(low, high + 1)], worst)
    assert total.lattice.distribution.k > reach
    for both in product(range(low, high + 1), repeat=keys):
        assert delta_of(total.lattice.distribution, both, epsilon) <= Fraction(repr(delta))


# (epsilon, delta, keys, low, high)
MEANS = [(1.0, 1e-2, 1, 0, 1), (2.0, 1e-3, 1, 0, 3), (3.0, 1e-4, 1, -1, 3), (8.0, 8e-2, 2, 0, 2), (9.0, 1e-2, 2, -1, 0)]


@pytest.mark.parametrize(("epsilon", "delta", "keys", "low", "high"), MEANS)
def test_both_numbers_of_a_mean_together_keep_its_delta_and_waste_none(
    epsilon: float, delta: float, keys: int, low: int, high: int
) -> None:
    mean = Mean(Bounds(keys, 1), epsilon=epsilon, delta=delta, column="x", low=low, high=high, resolution=1)
    span = high - low
    one_key = [(span - y, y) for y in range(span + 1)]
    for worst in ((span, 0), (0, span)):
        assert_kept_and_tight(mean.lattice.distribution, mean.guarantee, one_key, worst)
    assert mean.lattice.distribution.k > span
    for changes in product(one_key, repeat=keys):
        flat = [change for key in changes for change in key]
        assert delta_of(mean.lattice.distribution, flat, epsilon) <= Fraction(repr(delta))
        # The whole of epsilon is used, whatever the value is.
        assert loss_of(mean.lattice.distribution, flat) == pytest.approx(epsilon, rel=ALL_BUT_NOTHING)


# (epsilon, delta, steps between low and high)
VARIANCES = [(6.0, 2e-2, 2), (4.0, 1e-2, 2), (12.0, 5e-2, 3), (2.0, 1e-2, 1)]


def of_variance(y: int, span: int) -> tuple[int, int, int]:
    return y**2, 2 * y * (span - y), (span - y) ** 2


@pytest.mark.parametrize(("epsilon", "delta", "span"), VARIANCES)
def test_the_three_numbers_of_a_variance_together_keep_its_delta_and_waste_none(
    epsilon: float, delta: float, span: int
) -> None:
    variance = Variance(Bounds(1, 1), epsilon=epsilon, delta=delta, column="x", low=0, high=span, resolution=1)
    one_key = [of_variance(y, span) for y in range(span + 1)]
    assert {sum(changes) for changes in one_key} == {span**2}
    for y in (0, span):
        assert_kept_and_tight(variance.lattice.distribution, variance.guarantee, one_key, of_variance(y, span))
    assert variance.lattice.distribution.k > span**2


def test_two_keys_of_a_variance_together_keep_its_delta() -> None:
    epsilon, delta, span = 4.0, 5e-2, 1
    variance = Variance(Bounds(2, 1), epsilon=epsilon, delta=delta, column="x", low=0, high=span, resolution=1)
    for one, other in product(range(span + 1), repeat=2):
        # The middle number is 2 y (R - y) = 0 at both ends, so it tells nothing there.
        changes = [x for y in (one, other) for x in of_variance(y, span) if x]
        assert delta_of(variance.lattice.distribution, changes, epsilon) <= Fraction(repr(delta))
    narrower = one_smaller(variance.lattice.distribution)
    assert delta_of(narrower, [span**2, span**2], epsilon) > Fraction(repr(delta))


# (epsilon, delta, keys)
HISTOGRAMS = [(1.0, 1e-3, 1), (0.5, 1e-2, 1), (4.0, 2e-2, 2)]


@pytest.mark.parametrize(("epsilon", "delta", "keys"), HISTOGRAMS)
def test_all_buckets_together_keep_the_delta_of_a_histogram_and_waste_none(
    epsilon: float, delta: float, keys: int
) -> None:
    histogram = Histogram(Bounds(keys, 1), epsilon=epsilon, delta=delta, column="x", edges=[0, 5, 10], resolution=1)
    one_key = [(1, 0), (0, 1)]
    for worst in one_key:
        assert_kept_and_tight(histogram.distribution, histogram.guarantee, one_key, worst)
    assert histogram.distribution.k > 1
    for changes in product(one_key, repeat=keys):
        flat = [change for key in changes for change in key]
        assert delta_of(histogram.distribution, flat, epsilon) <= Fraction(repr(delta))


def test_a_unit_in_two_buckets_would_break_the_delta_of_a_histogram() -> None:
    histogram = Histogram(Bounds(1, 1), epsilon=1.0, delta=1e-3, column="x", edges=[0, 5, 10], resolution=1)
    assert delta_of(histogram.distribution, (1, 1), 1.0) > Fraction("1e-3")


MAKERS: dict[str, Callable[[float, float, int], Any]] = {
    "noisy-count": lambda e, d, keys: NoisyCount(Bounds(keys, 2), epsilon=e, delta=d),
    "sum": lambda e, d, keys: Sum(Bounds(keys, 1), epsilon=e, delta=d, column="x", low=-1, high=2, resolution=1),
    "mean": lambda e, d, keys: Mean(Bounds(keys, 1), epsilon=e, delta=d, column="x", low=0, high=2, resolution=1),
    "variance": lambda e, d, keys: Variance(
        Bounds(keys, 1), epsilon=e, delta=d, column="x", low=0, high=1, resolution=1
    ),
    "histogram": lambda e, d, keys: Histogram(
        Bounds(keys, 1), epsilon=e, delta=d, column="x", edges=[0, 5, 10], resolution=1
    ),
}
WORST = {"noisy-count": (2,), "sum": (2,), "mean": (2, 0), "variance": (1, 0, 0), "histogram": (1, 0)}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("keys", [1, 2])
def test_delta_is_kept_where_epsilon_is_more_than_the_words_can_show(name: str, keys: int) -> None:
    # At such an epsilon the rate is capped; what is rounded away must still fit into delta.
    epsilon, delta = 400.0, 1e-9
    mechanism = MAKERS[name](epsilon, delta, keys)
    assert noise_of(mechanism).rate * keys * max(WORST[name]) < 400
    for told in (60.0 * keys, epsilon):
        assert delta_of(noise_of(mechanism), WORST[name] * keys, told) <= Fraction(repr(delta))


# What the numbers are: the real release on chosen draws.


class Drawn(DrawsAsGiven):
    """Words that lead the sampler to chosen draws: a row of them for each part; identifiers are row numbers."""

    def __init__(self, draws: Ints) -> None:
        super().__init__(draws[0].tolist())
        self._parts = draws

    def part(self, number: int) -> Noise:
        return DrawsAsGiven(self._parts[number].tolist())


def exact_row(mechanism: Any, values: Sequence[int], copies: int) -> ExactTable:
    """A key whose units have these values, in steps, as many times over."""
    keys = pa.array([str(copy) for copy in range(copies)])
    steps = np.array(values, np.int64)
    totals: dict[str, npt.NDArray[np.int64]] = {}
    spreads: dict[str, pa.Array] = {}
    for need in getattr(mechanism, "needs", ()):
        gathered = dict.fromkeys(_value_of(mechanism).slots, steps)
        if isinstance(need, Spread):
            place = np.repeat(np.arange(copies), len(steps))
            bucket = np.tile(need.of_units(gathered), copies)
            spreads[need.name] = make_spread(place, bucket, np.ones(len(bucket), np.int64), copies)
        else:
            totals[need.name] = np.full(copies, need.of_units(gathered, len(steps)).sum())
    return ExactTable(keys, np.full(copies, len(values)), totals, spreads)


def _value_of(mechanism: Any) -> Value:
    found = mechanism.value
    assert isinstance(found, Value)
    return found


def every_release(mechanism: Any, values: Sequence[int], numbers: int) -> tuple[Ints, Rows]:
    """All combinations of draws of so many numbers, and what is published on each."""
    width = noise_of(mechanism).k
    draws = np.array(list(product(range(-width, width + 1), repeat=numbers)), np.int64).T
    copies = draws.shape[1]
    return draws, mechanism.release(exact_row(mechanism, values, copies), row_numbers(copies), Drawn(draws))


def as_read(number: float) -> Fraction:
    """A published number as people read it: 1.15, not the binary fraction nearest to it."""
    return Fraction(repr(float(number)))


def assert_contains(rows: Rows, truth: Fraction, part: int = 0) -> None:
    """On every draw, whether a range's ends are taken as binary fractions or as they read."""
    chosen = rows.parts == part
    low, high = rows.low[chosen].max(), rows.high[chosen].min()
    assert min(Fraction(low), as_read(low)) <= truth <= max(Fraction(high), as_read(high))


def datasets(low: int, high: int, most: int) -> list[tuple[int, ...]]:
    """What up to so many units may have, in steps."""
    return [
        values for units in range(1, most + 1) for values in combinations_with_replacement(range(low, high + 1), units)
    ]


# (low, high, resolution)
GRIDS = [(0.0, 2.0, 1.0), (-1.0, 2.0, 1.0), (-0.3, -0.1, 0.1), (0.07, 0.1, 0.01), (-2.0, -1.0, 0.5)]
EXACT = {"epsilon": 8.0, "delta": 5e-2}


@pytest.mark.parametrize(("low", "high", "resolution"), GRIDS)
def test_a_sum_is_the_exact_one_plus_the_draw_and_its_range_holds_it_on_every_draw(
    low: float, high: float, resolution: float
) -> None:
    step = Fraction(repr(resolution))
    total = Sum(Bounds(1, 1), **EXACT, column="x", low=low, high=high, resolution=resolution, each="sum")
    for values in datasets(total.value.low, total.value.high, 4):
        draws, rows = every_release(total, values, 1)
        assert_contains(rows, sum(values) * step)
        assert [as_read(value) for value in rows.values] == [(sum(values) + int(j)) * step for j in draws[0]]


def test_the_range_of_a_sum_holds_the_exact_one_beyond_what_floating_point_counts() -> None:
    total = Sum(Bounds(1, 1), **EXACT, column="x", low=0, high=2, resolution=1, each="sum")
    width = total.lattice.distribution.k
    draws = np.arange(-width, width + 1, dtype=np.int64)
    units, above = total.needs
    for truth in range(2**53 - 3, 2**53 + 6):
        totals = {units.name: np.full(len(draws), 2**52), above.name: np.full(len(draws), truth)}
        table = ExactTable(pa.array([str(j) for j in draws]), totals[units.name], totals)
        assert_contains(total.release(table, row_numbers(len(draws)), Drawn(draws[np.newaxis])), Fraction(truth))


@pytest.mark.parametrize(("low", "high", "resolution"), GRIDS)
def test_the_range_of_a_mean_holds_the_exact_one_on_every_draw(low: float, high: float, resolution: float) -> None:
    step = Fraction(repr(resolution))
    mean = Mean(Bounds(1, 1), **EXACT, column="x", low=low, high=high, resolution=resolution, each="sum")
    for values in datasets(mean.value.low, mean.value.high, 4):
        _, rows = every_release(mean, values, 2)
        assert_contains(rows, sum(values) * step / len(values))


def test_the_range_of_a_mean_holds_the_exact_one_far_from_zero() -> None:
    # Between a million and a million and one, what floating point rounds away is more than a share of 1e-14.
    mean = Mean(Bounds(1, 1), **EXACT, column="x", low=1_000_000, high=1_000_001, resolution=0.2, each="sum")
    for values in datasets(mean.value.low, mean.value.high, 4):
        _, rows = every_release(mean, values, 2)
        assert_contains(rows, sum(values) * Fraction(1, 5) / len(values))


@pytest.mark.parametrize("values", [(0,), (0, 1, 2), (1, 1), (0, 0, 0, 0, 2, 2, 2), (2,) * 9])
def test_a_mean_is_made_of_both_numbers_with_a_draw_each(values: tuple[int, ...]) -> None:
    mean = Mean(Bounds(1, 1), **EXACT, column="x", low=10, high=12, resolution=1, each="sum")
    draws, rows = every_release(mean, [10 + y for y in values], 2)
    above = np.maximum(sum(values) + draws[0], 0)
    below = np.maximum(sum(2 - y for y in values) + draws[1], 0)
    whole = above + below
    expected = [10 + (2 * int(a) / int(n) if n else 1) for a, n in zip(above, whole, strict=True)]
    assert rows.values.tolist() == pytest.approx(expected, rel=1e-14)


def population_variance(values: Sequence[int]) -> Fraction:
    mean = Fraction(sum(values), len(values))
    return sum(((y - mean) ** 2 for y in values), Fraction(0)) / len(values)


@pytest.mark.parametrize(("low", "high", "resolution"), GRIDS)
def test_the_range_of_a_variance_holds_the_exact_one_on_every_draw(low: float, high: float, resolution: float) -> None:
    step = Fraction(repr(resolution))
    variance = Variance(
        Bounds(1, 1), epsilon=14.0, delta=5e-2, column="x", low=low, high=high, resolution=resolution, each="sum"
    )
    for values in [*datasets(variance.value.low, variance.value.high, 3), (variance.value.low,) * 9]:
        _, rows = every_release(variance, values, 3)
        truth = population_variance(values) * step**2
        assert_contains(rows, truth)
        assert rows.low.min() >= 0


@pytest.mark.parametrize("values", [(0,), (0, 1, 2), (0, 2), (0, 0, 0, 0, 2, 2, 2), (1,) * 9])
def test_a_variance_is_made_of_all_three_numbers_with_a_draw_each(values: tuple[int, ...]) -> None:
    variance = Variance(Bounds(1, 1), epsilon=14.0, delta=5e-2, column="x", low=10, high=12, resolution=1, each="sum")
    draws, rows = every_release(variance, [10 + y for y in values], 3)
    exact = [sum(column) for column in zip(*(of_variance(y, 2) for y in values), strict=True)]
    for place in range(0, draws.shape[1], 7):
        p, q, w = (max(0, number + int(j)) for number, j in zip(exact, draws[:, place], strict=True))
        if p + q + w:
            units = Fraction(p + q + w, 4)
            spread = p / units - ((p + Fraction(q, 2)) / (2 * units)) ** 2
            assert rows.values[place] == pytest.approx(float(min(max(spread, Fraction(0)), Fraction(1))), abs=1e-13)


def test_the_ranges_of_a_histogram_hold_every_bucket_on_every_draw() -> None:
    histogram = Histogram(Bounds(1, 1), epsilon=2.0, delta=5e-2, column="x", edges=[0, 1, 3], resolution=1, each="sum")
    for values in datasets(0, 3, 4):
        draws, rows = every_release(histogram, values, 2)
        for bucket, truth in enumerate((values.count(0), len(values) - values.count(0))):
            assert_contains(rows, Fraction(truth), bucket)
            assert rows.values[rows.parts == bucket].tolist() == (truth + draws[bucket]).tolist()
            assert rows.low.min() >= 0


# Coarse steps: sums are rounded down to a lattice before noise is added. Here a unit changes but two or three steps of it.


@pytest.fixture(params=[2, 3])
def coarse(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattices, "STEPS", request.param)


def moved(exact: Sequence[int], changes: Sequence[int], step: int) -> tuple[int, ...]:
    """What a unit changes on the lattice, which depends on where the sums were."""
    return tuple((was + by) // step - was // step for was, by in zip(exact, changes, strict=True))


def every_move(changes: Sequence[Sequence[int]], step: int) -> set[tuple[int, ...]]:
    numbers = len(changes[0])
    return {moved(exact, by, step) for by in changes for exact in product(range(step), repeat=numbers)}


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(("low", "high"), [(0, 7), (-7, 3), (-4, -1), (-5, 5)])
@pytest.mark.parametrize("keys", [1, 2])
def test_a_sum_on_a_lattice_keeps_its_delta_wherever_it_was(low: int, high: int, keys: int) -> None:
    epsilon, delta = 4.0, 2e-2
    total = Sum(Bounds(keys, 1), epsilon=epsilon, delta=delta, column="x", low=low, high=high, resolution=1)
    step, distribution = total.lattice.step, total.lattice.distribution
    assert step > 1
    moves = every_move([(y,) for y in range(low, high + 1)], step)
    farthest = max(moves, key=lambda move: abs(move[0]))
    assert_kept_and_tight(distribution, total.guarantee, sorted(moves), farthest)
    assert distribution.k > abs(farthest[0])


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("span", [4, 8])
@pytest.mark.parametrize(("epsilon", "delta"), [(3.0, 2e-2), (8.0, 1e-3)])
def test_a_mean_on_a_lattice_keeps_its_delta_wherever_its_numbers_were(span: int, epsilon: float, delta: float) -> None:
    mean = Mean(Bounds(1, 1), epsilon=epsilon, delta=delta, column="x", low=0, high=span, resolution=1)
    step, distribution = mean.lattice.step, mean.lattice.distribution
    assert step > 1
    assert mean.guarantee.a_key is not None
    moves = every_move([(span - y, y) for y in range(span + 1)], step)
    assert max(delta_of(distribution, move, epsilon) for move in moves) <= Fraction(nextafter(mean.guarantee.a_key, 1))
    assert max(loss_of(distribution, move) for move in moves) <= epsilon * (1 + ALL_BUT_NOTHING)
    # Both numbers can round up at once, which is what the further step is for.
    assert max(map(sum, moves)) == -(-span // step) + 1
    assert max(loss_of(distribution, move) for move in moves) == pytest.approx(epsilon, rel=ALL_BUT_NOTHING)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(("epsilon", "delta"), [(6.0, 5e-2), (9.0, 1e-2)])
def test_a_variance_on_a_lattice_keeps_its_delta_wherever_its_numbers_were(epsilon: float, delta: float) -> None:
    span = 3
    variance = Variance(Bounds(1, 1), epsilon=epsilon, delta=delta, column="x", low=0, high=span, resolution=1)
    step, distribution = variance.lattice.step, variance.lattice.distribution
    assert step > 1
    moves = {tuple(sorted(move)) for move in every_move([of_variance(y, span) for y in range(span + 1)], step)}
    for move in moves:
        assert delta_of(distribution, move, epsilon) <= Fraction(repr(delta))
        assert loss_of(distribution, move) <= epsilon * (1 + ALL_BUT_NOTHING)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(("low", "high"), [(0, 5), (-4, 3), (-7, -2)])
def test_ranges_on_a_lattice_hold_the_exact_numbers_on_every_draw(low: int, high: int) -> None:
    column: dict[str, Any] = {"column": "x", "low": low, "high": high, "resolution": 1, "each": "sum"}
    total, mean, variance = (kind(Bounds(1, 1), epsilon=14.0, delta=8e-2, **column) for kind in (Sum, Mean, Variance))
    ends = (low, low, low, high, high)
    for values in [*datasets(low, high, 2), ends, (*ends, high - 1)]:
        assert_contains(every_release(total, values, 1)[1], Fraction(sum(values)))
        assert_contains(every_release(mean, values, 2)[1], Fraction(sum(values), len(values)))
    for values in [*datasets(low, high, 2)[::4], ends]:
        assert_contains(every_release(variance, values, 3)[1], population_variance(values))


@pytest.mark.parametrize("change", [1, 127, 128, 129, 1000, 12345, 2**30])
@pytest.mark.parametrize("sums", [1, 2, 3])
def test_a_lattice_costs_at_most_a_few_percent_of_what_a_unit_changes(change: int, sums: int) -> None:
    lattice = lattices.Lattice.calibrated(1.0, 1e-6, 1, change, sums)
    steps = 1 / float(lattice.distribution.rate)  # what a unit is taken to change, on the lattice
    assert change <= steps * lattice.step * (1 + ALL_BUT_NOTHING)
    # One step for rounding up, and one for every further sum, of at least 65.
    assert steps * lattice.step <= change * (1 + sums / 65) * (1 + ALL_BUT_NOTHING)
    assert (lattice.step == 1) == (change <= 128)


class Watched(Noise):
    """Says which parts were asked for."""

    def __init__(self, seed: bytes, asked: list[int]) -> None:
        super().__init__(seed)
        self._asked = asked

    def part(self, number: int) -> Noise:
        self._asked.append(number)
        return super().part(number)


@pytest.mark.parametrize("name", MAKERS)
def test_every_number_has_noise_of_its_own(name: str) -> None:
    mechanism = MAKERS[name](1.0, 1e-3, 1)
    asked: list[int] = []
    mechanism.release(exact_row(mechanism, [1, 2], 3), row_numbers(3), Watched(b"s" * 32, asked))
    numbers = len(WORST[name])
    assert sorted(asked) == (list(range(numbers)) if numbers > 1 else [])


@pytest.mark.parametrize("name", MAKERS)
def test_removing_a_unit_is_the_same_as_adding_it_the_other_way_round(name: str) -> None:
    # The noise is symmetric, so one direction says all; an asymmetric sampler would show here.
    distribution = noise_of(MAKERS[name](2.0, 1e-2, 1))
    changes = WORST[name]
    assert delta_of(distribution, changes, 2.0) == delta_of(distribution, [-x for x in changes], 2.0)
    assert distribution.pmf() == distribution.pmf()[::-1]
