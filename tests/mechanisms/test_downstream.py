"""Mechanisms behind the gate: a key's numbers depend on the key and its units alone, however the work is divided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.mechanisms.choose import Choose
from tidegate.mechanisms.histogram import Histogram
from tidegate.mechanisms.keyed import Ids, KeyedHash, derive_key
from tidegate.mechanisms.mean import Mean
from tidegate.mechanisms.mechanism import Bounds, measures_of, needs_of
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.noisy_count import NoisyCount
from tidegate.mechanisms.quantiles import Quantiles
from tidegate.mechanisms.sum import Sum
from tidegate.mechanisms.table import ExactTable, Rows, make_spread, sum_by
from tidegate.mechanisms.top_k import TopK
from tidegate.mechanisms.values import EVENTS, Slot, Spread
from tidegate.mechanisms.variance import Variance

Units = list[tuple[str, float]]
"""(key, number) of every unit."""

BOUNDS = Bounds(2, 1)
COLUMN: dict[str, Any] = {"column": "x", "low": -2, "high": 8, "resolution": 0.5}
BUILD: dict[str, Callable[..., Any]] = {
    "noisy-count": lambda **budget: NoisyCount(BOUNDS, **budget),
    "sum": lambda **budget: Sum(BOUNDS, **COLUMN, **budget),
    "mean": lambda **budget: Mean(BOUNDS, **COLUMN, **budget),
    "variance": lambda **budget: Variance(BOUNDS, **COLUMN, **budget),
    "histogram": lambda **budget: Histogram(BOUNDS, column="x", edges=[-2, 0, 1.5, 8], resolution=0.5, **budget),
    "quantiles": lambda **budget: Quantiles(BOUNDS, **COLUMN, at=[0.25, 0.5, 0.95], buckets=16, **budget),
}
PER_KEY = {name: build(epsilon=1.0, delta=1e-4) for name, build in BUILD.items()}
every_mechanism = pytest.mark.parametrize("name", PER_KEY)


def identify(strings: pa.Array) -> Ids:
    return KeyedHash(bytes(32))(strings)


def table_of(mechanisms: Sequence[Any], units: Units) -> ExactTable:
    """The exact table of units with one event each."""
    keys = list(dict.fromkeys(key for key, _ in units))
    place = np.array([keys.index(key) for key, _ in units], np.int64)
    numbers = np.array([number for _, number in units], np.float64)
    ones = np.ones(len(units), np.int64)
    gathered: dict[Slot, Any] = {EVENTS: ones}
    totals, spreads = {}, {}
    for need in (need for mechanism in mechanisms for need in needs_of(mechanism)):
        if need.value is not None:
            gathered.update({slot: slot.read(numbers) for slot in need.value.slots if slot != EVENTS})
        if isinstance(need, Spread):
            spreads[need.name] = make_spread(place, need.of_units(gathered), ones, len(keys))
        else:
            totals[need.name] = sum_by(place, need.of_units(gathered, len(units)), len(keys))
    return ExactTable(pa.array(keys, pa.string()), sum_by(place, ones, len(keys)), totals, spreads)


def held(table: ExactTable) -> dict[str, Any]:
    """Everything of an exact table, by key."""
    return {
        key: (
            int(table.counts[row]),
            {name: int(column[row]) for name, column in table.totals.items()},
            {name: column[row].as_py() for name, column in table.spreads.items()},
        )
        for row, key in enumerate(table.keys.to_pylist())
    }


def published(rows: Rows) -> dict[tuple[str, int], tuple[float, float, float]]:
    found = dict(
        zip(
            zip(rows.keys.to_pylist(), rows.parts.tolist(), strict=True),
            zip(rows.values.tolist(), rows.low.tolist(), rows.high.tolist(), strict=True),
            strict=True,
        )
    )
    assert len(found) == len(rows)
    return found


def release(mechanism: Any, table: ExactTable, seed: int = 0) -> Rows:
    rows = mechanism.release(table, identify(table.keys), Noise(derive_key(bytes(32), seed)))
    assert isinstance(rows, Rows)
    return rows


some_units = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "dd", "é", ""]), st.sampled_from([-9.0, -2.0, -0.5, 0.0, 1.5, 3.26, 8.0, 99.0])
    ),
    max_size=25,
)


# A key's numbers follow from the key, its units and the seed.


@every_mechanism
@settings(max_examples=25)
@given(units=some_units, data=st.data())
def test_the_order_of_units_and_of_keys_does_not_matter(name: str, units: Units, data: st.DataObject) -> None:
    mechanism = PER_KEY[name]
    expected = published(release(mechanism, table_of([mechanism], units)))
    shuffled = table_of([mechanism], data.draw(st.permutations(units)))
    assert published(release(mechanism, shuffled)) == expected
    rows = np.array(data.draw(st.permutations(range(len(shuffled)))), np.int64)
    assert published(release(mechanism, shuffled.take(rows))) == expected
    assert len(expected) == len({key for key, _ in units}) * len(measures_of(mechanism, name))


@every_mechanism
@settings(max_examples=25)
@given(units=some_units, shards=st.integers(1, 4))
def test_a_key_is_published_the_same_whatever_shard_it_is_in(name: str, units: Units, shards: int) -> None:
    mechanism = PER_KEY[name]
    whole = table_of([mechanism], units)
    expected = published(release(mechanism, whole))
    parts = [whole.take(np.arange(len(whole))[shard::shards]) for shard in range(shards)]
    assert published(Rows.concat([release(mechanism, part) for part in parts])) == expected


@every_mechanism
@settings(max_examples=25)
@given(units=some_units, shards=st.integers(2, 4))
def test_units_counted_apart_and_merged_are_published_the_same(name: str, units: Units, shards: int) -> None:
    mechanism = PER_KEY[name]
    merged = ExactTable.merge([table_of([mechanism], units[shard::shards]) for shard in range(shards)])
    assert published(release(mechanism, merged)) == published(release(mechanism, table_of([mechanism], units)))


@every_mechanism
def test_another_seed_gives_other_noise(name: str) -> None:
    mechanism = PER_KEY[name]
    table = table_of([mechanism], [(str(key), float(key % 7)) for key in range(200)])
    assert published(release(mechanism, table, 1)) != published(release(mechanism, table, 2))
    assert published(release(mechanism, table, 1)) == published(release(mechanism, table, 1))


@every_mechanism
def test_an_empty_shard_publishes_nothing(name: str) -> None:
    mechanism = PER_KEY[name]
    assert len(release(mechanism, table_of([mechanism], []))) == 0


@every_mechanism
def test_a_key_with_nothing_behind_it_is_published_too(name: str) -> None:
    # Public keys are there whatever the data say.
    mechanism = PER_KEY[name]
    needs = needs_of(mechanism)
    table = ExactTable.empty(
        pa.array(["a", "b"]),
        [need.name for need in needs if not isinstance(need, Spread)],
        [need.name for need in needs if isinstance(need, Spread)],
    )
    rows = release(mechanism, table)
    assert len(rows) == 2 * len(measures_of(mechanism, name))
    assert np.isfinite(rows.values).all()
    assert (rows.low <= rows.high).all()


@settings(max_examples=25)
@given(units=some_units)
def test_merging_is_associative_and_commutative_with_totals_and_spreads(units: Units) -> None:
    everything = list(PER_KEY.values())
    a, b, c = (table_of(everything, units[shard::3]) for shard in range(3))
    assert len(a.totals) >= 3
    assert len(a.spreads) == 2
    left = held(ExactTable.merge([ExactTable.merge([a, b]), c]))
    assert left == held(ExactTable.merge([a, ExactTable.merge([b, c])]))
    assert left == held(ExactTable.merge([c, b, a]))
    assert left == held(table_of(everything, units))


def test_merging_with_nothing_changes_nothing() -> None:
    everything = list(PER_KEY.values())
    table, nothing = table_of(everything, [("a", 1.0), ("b", 2.0), ("a", 3.0)]), table_of(everything, [])
    assert held(ExactTable.merge([table, nothing])) == held(table) == held(ExactTable.merge([nothing, table]))


def test_rows_of_several_numbers_keep_their_parts_when_put_together() -> None:
    one = Rows(pa.array(["a", "a"]), np.array([1.0, 2.0]), np.zeros(2), np.ones(2), np.array([0, 1], np.int32))
    plain = Rows(pa.array(["b"]), np.array([3.0]), np.array([nan]), np.array([4.0]))
    both = Rows.concat([one, plain])
    assert both.keys.to_pylist() == ["a", "a", "b"]
    assert both.values.tolist() == [1, 2, 3]
    assert both.parts.tolist() == [0, 1, 0]
    assert np.isnan(both.low).tolist() == [False, False, True]
    assert both.high.tolist() == [1, 1, 4]
    in_steps = Rows.concat([Rows.concat([one]), Rows.concat([]), Rows.concat([plain])])
    assert in_steps.parts.tolist() == both.parts.tolist()
    assert in_steps.keys.to_pylist() == both.keys.to_pylist()


# Budgets.


def half_width(mechanism: Any) -> int:
    return int(mechanism.lattice.half_width if hasattr(mechanism, "lattice") else mechanism.distribution.k)


WIDTHS = ["noisy-count", "sum", "mean", "variance", "histogram"]


@pytest.mark.parametrize("name", WIDTHS)
@settings(max_examples=25)
@given(
    epsilons=st.tuples(st.floats(0.01, 500), st.floats(0.01, 500)),
    deltas=st.tuples(st.floats(1e-12, 0.3), st.floats(1e-12, 0.3)),
)
def test_more_budget_never_widens(name: str, epsilons: tuple[float, float], deltas: tuple[float, float]) -> None:
    (less, more), (stricter, laxer) = sorted(epsilons), sorted(deltas)

    def width(epsilon: float, delta: float) -> int:
        return half_width(BUILD[name](epsilon=epsilon, delta=delta))

    assert width(more, stricter) <= width(less, stricter)
    assert width(less, laxer) <= width(less, stricter)


@settings(max_examples=30)
@given(epsilons=st.tuples(st.floats(0.3, 500), st.floats(0.3, 500)))
def test_more_budget_never_makes_a_search_or_a_choice_less_sure(epsilons: tuple[float, float]) -> None:
    less, more = sorted(epsilons)
    for build in (BUILD["quantiles"], lambda **budget: Choose(BOUNDS, **budget).chooser):
        assert build(epsilon=less, delta=1e-6).rate <= build(epsilon=more, delta=1e-6).rate


@every_mechanism
def test_more_keys_a_unit_cost_width(name: str) -> None:
    narrow, wide = (
        type(PER_KEY[name])(Bounds(keys, 1), epsilon=1.0, delta=1e-4, **_parameters(name)) for keys in (1, 5)
    )
    if name == "quantiles":
        assert wide.rate * 5 == pytest.approx(narrow.rate)
    else:
        assert half_width(wide) > half_width(narrow)


def _parameters(name: str) -> dict[str, Any]:
    if name == "noisy-count":
        return {}
    if name == "histogram":
        return {"column": "x", "edges": [-2, 0, 1.5, 8], "resolution": 0.5}
    return {**COLUMN, "buckets": 16} if name == "quantiles" else dict(COLUMN)


# Refusals.

BUDGETS: list[tuple[str, dict[str, Any]]] = [
    ("epsilon must be", {"epsilon": 0.0}),
    ("epsilon must be", {"epsilon": -1.0}),
    ("epsilon must be", {"epsilon": float("inf")}),
    ("epsilon must be", {"epsilon": nan}),
    ("delta must be", {"delta": 0.0}),
    ("delta must be", {"delta": 1.0}),
    ("delta must be", {"delta": nan}),
]
COLUMNS: list[tuple[str, dict[str, Any]]] = [
    ("column must be", {"column": ""}),
    ("each must be", {"each": "last"}),
    ("resolution must be", {"resolution": 0}),
]
ENDS: list[tuple[str, dict[str, Any]]] = [
    ("low must be", {"low": "zero"}),
    ("high must be", {"high": -2}),
    ("high must be", {"high": 8.25}),
]
OF_ITS_OWN: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "noisy-count": [],
    "sum": [*COLUMNS, *ENDS],
    "mean": [*COLUMNS, *ENDS],
    "variance": [*COLUMNS, *ENDS, ("resolution must give", {"resolution": 0.0001})],
    "histogram": [
        *COLUMNS,
        ("edges must be", {"edges": [1]}),
        ("edges must be", {"edges": "0, 1"}),
        ("edges must be", {"edges": 5}),
        ("edges must be", {"edges": list(range(1026))}),
        ("high must be", {"edges": [0, 2, 1]}),
        ("high must be", {"edges": [0, 0]}),
        ("high must be", {"edges": [0, 0.3]}),
    ],
    "quantiles": [
        *COLUMNS,
        *ENDS,
        ("at must be", {"at": []}),
        ("at must be", {"at": "0.5"}),
        ("at must hold", {"at": [0]}),
        ("at must hold", {"at": [1.0]}),
        ("at must hold", {"at": [True]}),
        ("at must be in order", {"at": [0.9, 0.5]}),
        ("at must be in order", {"at": [0.5, 0.5]}),
        ("buckets must be", {"buckets": 12}),
        ("buckets must be", {"buckets": 1}),
        ("buckets must be", {"buckets": True}),
        ("buckets must be at most", {"buckets": 64}),
        ("epsilon must be larger", {"epsilon": 1e-4}),
    ],
}
REFUSED = [(name, *case) for name, own in OF_ITS_OWN.items() for case in (*BUDGETS, *own)]


@pytest.mark.parametrize(("name", "sentence", "wrong"), REFUSED, ids=lambda part: str(part)[:40])
def test_a_wrong_parameter_is_refused_in_one_sentence_that_names_it(
    name: str, sentence: str, wrong: dict[str, Any]
) -> None:
    right = {"epsilon": 1.0, "delta": 1e-4, **_parameters(name)}
    type(PER_KEY[name])(BOUNDS, **right)
    with pytest.raises(ValueError, match=f"^{sentence}") as refused:
        type(PER_KEY[name])(BOUNDS, **{**right, **wrong})
    said = str(refused.value)
    assert "write" in said
    assert "\n" not in said
    assert not said.endswith(".")


# Without noise: a huge epsilon. A step is drawn off by exp(-60 / steps that a unit can change), so there are few of them.

HUGE: dict[str, Any] = {"epsilon": 1e6, "delta": 1e-3}
ONE = Bounds(1, 1)
few_units = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([-7, 0, 1, 2, 9])), min_size=1, max_size=30)


def clipped(units: Sequence[tuple[str, float]], low: float, high: float) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for key, number in units:
        found.setdefault(key, []).append(min(max(number, low), high))
    return found


def answers(mechanism: Any, units: Units) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for (key, _), (value, low, high) in sorted(published(release(mechanism, table_of([mechanism], units))).items()):
        assert low <= value <= high
        found.setdefault(key, []).append(value)
    return found


@settings(max_examples=25)
@given(units=few_units)
def test_at_a_huge_epsilon_counts_and_sums_are_exact(units: Units) -> None:
    count = NoisyCount(ONE, **HUGE)
    assert answers(count, units) == {key: [len(values)] for key, values in clipped(units, 0, 0).items()}
    total = Sum(ONE, **HUGE, column="x", low=-1, high=2, resolution=1)
    assert answers(total, units) == {key: [sum(values)] for key, values in clipped(units, -1, 2).items()}


@settings(max_examples=25)
@given(units=few_units)
def test_at_a_huge_epsilon_means_and_variances_are_exact(units: Units) -> None:
    mean = Mean(ONE, **HUGE, column="x", low=0, high=2, resolution=1)
    variance = Variance(ONE, **HUGE, column="x", low=0, high=2, resolution=1)
    for key, values in clipped(units, 0, 2).items():
        assert answers(mean, units)[key] == pytest.approx([np.mean(values)], abs=1e-9)
        assert answers(variance, units)[key] == pytest.approx([np.var(values)], abs=1e-9)


@settings(max_examples=25)
@given(units=few_units)
def test_at_a_huge_epsilon_a_histogram_is_exact(units: Units) -> None:
    histogram = Histogram(ONE, **HUGE, column="x", edges=[0, 1, 2, 5], resolution=1)
    for key, values in clipped(units, 0, 5).items():
        assert answers(histogram, units)[key] == np.histogram(values, [0, 1, 2, 5])[0].tolist()


@settings(max_examples=25)
@given(units=few_units)
def test_at_a_huge_epsilon_a_median_is_within_a_bucket(units: Units) -> None:
    quantiles = Quantiles(ONE, **HUGE, column="x", low=0, high=8, resolution=1, at=[0.5], buckets=8)
    for key, values in clipped(units, 0, 8).items():
        exact = sorted(values)[(len(values) + 1) // 2 - 1]
        assert abs(answers(quantiles, units)[key][0] - exact) <= 1


@settings(max_examples=25)
@given(st.dictionaries(st.text(max_size=3), st.integers(0, 10**6), min_size=1, max_size=20))
def test_at_a_huge_epsilon_choices_are_the_largest_in_order(counts: dict[str, int]) -> None:
    distinct = {count: key for key, count in counts.items()}
    order = [distinct[count] for count in sorted(distinct, reverse=True)]
    table = ExactTable(pa.array(order[::-1], pa.string()), np.array(sorted(distinct), np.int64))
    for method in ("permute-and-flip", "exponential"):
        choose = Choose(ONE, **HUGE, method=method)
        chosen = choose.release(choose.summarize(table), identify, Noise(bytes(32)))
        assert chosen.keys.to_pylist() == order[:1]
        top = TopK(ONE, **HUGE, k=5, method=method)
        rows = top.release(top.summarize(table), identify, Noise(bytes(32)))
        assert rows.keys.to_pylist() == order[:5]
        assert rows.values.tolist() == list(range(1, len(order[:5]) + 1))


@pytest.mark.parametrize("kind", [Sum, Mean])
def test_at_a_huge_epsilon_and_a_fine_resolution_noise_is_a_small_part_of_one_unit(
    kind: type[Sum] | type[Mean],
) -> None:
    # The sampler's words bound how sure a draw can be: noise of a sixtieth of what a unit can change is left.
    mechanism = kind(ONE, **HUGE, column="x", low=0, high=10)
    units = [(str(key), float(number)) for key in range(200) for number in (1, 2, 3, 10)]
    exact = 16.0 if kind is Sum else 4.0
    found = np.array([value for (value,) in answers(mechanism, units).values()])
    assert np.abs(found - exact).max() < 10 * 20 / 60
    assert np.abs(found - exact).mean() < 10 / 30
