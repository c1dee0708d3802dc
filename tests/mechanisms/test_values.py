"""Values are whole numbers of steps from the first event to the last draw, and every wrong setting is named."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.mechanisms.table import Ints
from tidegate.mechanisms.values import EVENTS, LARGEST_STEP, UNITS, Each, Slot, Spread, Statistic, Value


def value(low: float = 0, high: float = 10, resolution: float | None = 1, each: str = "sum") -> Value:
    return Value.parse("x", low, high, resolution, each)


def ints(*numbers: int) -> Ints:
    return np.array(numbers, np.int64)


def gathered(of: Value, sums: Ints, events: Ints | None = None) -> dict[Slot, Ints]:
    found = {of.slots[0]: sums}
    if of.each == "mean":
        found[EVENTS] = np.ones_like(sums) if events is None else events
    return found


# Settings.

WRONG: list[tuple[str, dict[str, Any]]] = [
    ("column", {"column": ""}),
    ("column", {"column": None}),
    ("column", {"column": 3}),
    ("each", {"each": "median"}),
    ("each", {"each": None}),
    ("low", {"low": "0"}),
    ("low", {"low": True}),
    ("low", {"low": None}),
    ("low", {"low": float("nan")}),
    ("low", {"low": float("-inf")}),
    ("low", {"low": 0.005}),
    ("low", {"low": -(2**31), "resolution": 1}),
    ("high", {"high": "10"}),
    ("high", {"high": [1]}),
    ("high", {"high": float("inf")}),
    ("high", {"high": 0}),
    ("high", {"high": -1}),
    ("high", {"high": 10.001}),
    ("high", {"high": 2**30 + 1, "resolution": 1}),
    ("resolution", {"resolution": 0}),
    ("resolution", {"resolution": -0.01}),
    ("resolution", {"resolution": "0.01"}),
    ("resolution", {"resolution": False}),
    ("resolution", {"resolution": float("nan")}),
]


@pytest.mark.parametrize(("field", "changed"), WRONG, ids=str)
def test_every_refusal_is_one_sentence_that_starts_with_the_wrong_field(field: str, changed: dict[str, Any]) -> None:
    right: dict[str, Any] = {"column": "x", "low": 0, "high": 10, "resolution": 0.01, "each": "mean"}
    Value.parse(**right)
    with pytest.raises(ValueError, match=f"^{field} must ") as refused:
        Value.parse(**{**right, **changed})
    sentence = str(refused.value)
    assert "; write " in sentence
    assert "\n" not in sentence
    assert not sentence.endswith(".")


def test_a_bound_off_the_grid_is_told_the_nearest_one_on_it() -> None:
    with pytest.raises(
        ValueError, match=r"^high must be a whole number of steps of resolution 0\.25, not 9\.9; write 10$"
    ):
        value(0, 9.9, 0.25)


def test_the_largest_bounds_are_allowed() -> None:
    assert value(-LARGEST_STEP, LARGEST_STEP, 1).span == 2**31


def test_bounds_are_steps_of_the_resolution_as_it_is_written() -> None:
    parsed = value(-0.3, 1.1, 0.1)
    # In floating point neither is a multiple of 0.1.
    assert (parsed.low, parsed.high, parsed.resolution) == (-3, 11, Fraction(1, 10))
    assert parsed.span == 14
    assert parsed.reach == 11


@pytest.mark.parametrize(("low", "high", "reach"), [(0, 4, 4), (-4, 3, 4), (-4, -1, 4), (2, 3, 3), (-5, 5, 5)])
def test_the_reach_is_the_farther_end(low: int, high: int, reach: int) -> None:
    assert value(low, high).reach == reach


@given(low=st.integers(-(10**6), 10**6), span=st.integers(1, 10**6), places=st.integers(0, 5))
def test_the_usual_resolution_is_a_power_of_ten_with_a_thousand_to_ten_thousand_steps(
    low: int, span: int, places: int
) -> None:
    bottom, top = (float(Fraction(end, 10**places)) for end in (low, low + span))
    step = Fraction(1)
    while Fraction(span, 10**places) / step < 1000:
        step /= 10
    while Fraction(span, 10**places) / step >= 10_000:
        step *= 10
    if low % (step * 10**places) or max(abs(low), abs(low + span)) / (step * 10**places) > LARGEST_STEP:
        with pytest.raises(ValueError, match=r"^(low|high) must be"):
            Value.parse("x", bottom, top)
        return
    if span % (step * 10**places):
        with pytest.raises(ValueError, match=r"^high must be"):
            Value.parse("x", bottom, top)
        return
    parsed = Value.parse("x", bottom, top)
    assert parsed.resolution == step
    assert 1000 <= parsed.span < 10_000


@pytest.mark.parametrize(
    ("low", "high", "step"),
    [(0, 1, "1/1000"), (0, 10, "1/100"), (0, 999, "1/10"), (0, 1000, "1"), (0, 0.001, "1/1000000"), (-50, 50, "1/10")],
)
def test_the_usual_resolution_of_common_ranges(low: float, high: float, step: str) -> None:
    assert Value.parse("x", low, high).resolution == Fraction(step)
    assert Value.parse("x", low, high).each == "mean"


# Reading and showing.


def test_steps_read_as_the_numbers_that_people_write() -> None:
    hundredths, tenths, odd = value(0, 10, 0.01), value(0, 10, 0.1), value(0, 3, 0.03)
    assert hundredths.shown(ints(115, 7, -29, 0)).tolist() == [1.15, 0.07, -0.29, 0.0]
    assert tenths.shown(ints(3, 6, 7)).tolist() == [0.3, 0.6, 0.7]
    assert odd.shown(ints(1, 19, 41)).tolist() == [0.03, 0.57, 1.23]
    assert hundredths.number(115) == 1.15
    # Multiplying by the resolution would not do.
    assert 115 * 0.01 != 1.15


@given(steps=st.integers(-(2**45), 2**45), places=st.integers(0, 6), times=st.sampled_from([1, 2, 5, 25]))
def test_what_is_shown_is_the_nearest_number_to_the_exact_one(steps: int, places: int, times: int) -> None:
    parsed = Value("x", 0, 1, Fraction(times, 10**places), "sum")
    exact = float(steps * parsed.resolution)
    assert parsed.shown(ints(steps)).tolist() == [exact]
    assert parsed.number(steps) == exact


def test_reading_rounds_to_the_nearest_step() -> None:
    slot = Slot("x", Fraction(1, 100), "sum")
    assert slot.read(np.array([1.15, 0.29, -0.004, 0.006, 2.0])).tolist() == [115, 29, 0, 1, 200]
    halves = Slot("x", Fraction(1), "sum")
    # Halves go to the even neighbour, as IEEE 754 rounds.
    assert halves.read(np.array([0.5, 1.5, 2.5, -0.5])).tolist() == [0, 2, 2, 0]
    coarse = Slot("x", Fraction(5), "sum")
    assert coarse.read(np.array([12.0, 13.0, -7.4])).tolist() == [10 // 5, 15 // 5, -1]


@given(steps=st.integers(-(2**35), 2**35), places=st.integers(0, 4))
def test_what_was_shown_is_read_as_the_same_steps(steps: int, places: int) -> None:
    parsed = Value("x", 0, 1, Fraction(1, 10**places), "sum")
    assert parsed.slots[0].read(parsed.shown(ints(steps))).tolist() == [steps]


def test_reading_cuts_what_is_far_beyond_any_bound() -> None:
    slot = Slot("x", Fraction(1, 10), "sum")
    assert slot.read(np.array([1e300, -1e300, np.inf, -np.inf])).tolist() == [2**40, -(2**40)] * 2
    # A million of them at once do not overflow, and what is cut is beyond every bound that can be set.
    parsed = value(-LARGEST_STEP, LARGEST_STEP)
    cut = parsed.slots[0].read(np.full(1_000_000, 1e300))
    assert parsed.of_units(gathered(parsed, cut[:1])).tolist() == [LARGEST_STEP]
    assert parsed.of_units(gathered(parsed, cut.sum(keepdims=True))).tolist() == [LARGEST_STEP]


# One value a unit.


@pytest.mark.parametrize(("each", "operation"), [("sum", "sum"), ("min", "min"), ("max", "max"), ("mean", "sum")])
def test_what_is_gathered_follows_how_events_are_put_together(each: Each, operation: str) -> None:
    slots = value(each=each).slots
    assert slots[0] == Slot("x", Fraction(1), operation)  # type: ignore[arg-type]
    assert slots[1:] == ((EVENTS,) if each == "mean" else ())


@pytest.mark.parametrize("each", ["sum", "min", "max"])
def test_what_was_gathered_is_clipped(each: Each) -> None:
    parsed = value(-2, 10, each=each)
    assert parsed.of_units(gathered(parsed, ints(-5, -2, 0, 10, 11, 2**40))).tolist() == [-2, -2, 0, 10, 10, 10]


def test_a_mean_is_rounded_to_the_nearest_step_and_then_clipped() -> None:
    parsed = value(-3, 10, each="mean")
    sums, events = ints(7, 8, -7, -8, 5, 100, -100, 2), ints(3, 3, 3, 3, 2, 4, 4, 1)
    assert parsed.of_units(gathered(parsed, sums, events)).tolist() == [2, 3, -2, -3, 3, 10, -3, 2]


@given(total=st.integers(-(10**9), 10**9), events=st.integers(1, 10**6))
def test_a_mean_is_within_half_a_step_of_the_exact_one(total: int, events: int) -> None:
    parsed = value(-(10**9), 10**9, each="mean")
    found = int(parsed.of_units(gathered(parsed, ints(total), ints(events)))[0])
    assert abs(found - Fraction(total, events)) <= Fraction(1, 2)


@given(sums=st.lists(st.integers(-(2**45), 2**45), min_size=1), each=st.sampled_from(["sum", "mean", "min", "max"]))
def test_no_unit_leaves_the_bounds(sums: list[int], each: Each) -> None:
    parsed = value(-7, 13, each=each)
    found = parsed.of_units(gathered(parsed, np.array(sums, np.int64)))
    assert found.min() >= -7
    assert found.max() <= 13


# What adds up over units.


def test_statistics_are_powers_of_what_is_above_low() -> None:
    parsed = value(-2, 10)
    units = gathered(parsed, ints(-5, -2, 0, 3, 99))
    assert Statistic(parsed, 1).of_units(units, 5).tolist() == [0, 0, 2, 5, 12]
    assert Statistic(parsed, 2).of_units(units, 5).tolist() == [0, 0, 4, 25, 144]
    assert UNITS.of_units(units, 5).tolist() == [1] * 5
    assert UNITS.of_units({}, 0).tolist() == []


def test_a_spread_puts_an_edge_into_the_upper_bucket_and_the_ends_into_the_outer_ones() -> None:
    spread = Spread(value(0, 10), (3, 7))
    assert spread.buckets == 3
    units = gathered(spread.value, ints(-4, 0, 2, 3, 6, 7, 10, 50))
    assert spread.of_units(units).tolist() == [0, 0, 0, 1, 1, 2, 2, 2]


def test_whatever_differs_has_another_name() -> None:
    values = [
        value(),
        value(low=1),
        value(high=9),
        value(resolution=0.5),
        value(each="mean"),
        Value.parse("y", 0, 10, 1, "sum"),
    ]
    statistics = [Statistic(v, power) for v in values for power in (1, 2)]
    spreads = [Spread(v, edges) for v in values for edges in ((3,), (3, 7), (37,))]
    names = [UNITS.name, *(statistic.name for statistic in statistics), *(spread.name for spread in spreads)]
    assert len(set(names)) == len(names)
    assert Statistic(value(), 1).name == Statistic(value(), 1).name
