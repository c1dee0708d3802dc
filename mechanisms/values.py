"""Numbers of a unit: a column as whole numbers, one for each unit and key, and what of them adds up over units.

A unit has *one* value in a key, whatever it did there: its events' numbers put together (their sum, mean, smallest or
largest), then clipped to [low, high]. So what one unit can change is known from the terms alone, and what is held of a
window follows its distinct (unit, key) pairs, not its events.

Values are fixed point: whole numbers of steps of a stated resolution, from decoding until a mechanism has drawn. Noise on
floating-point numbers can be undone from their last digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite, log10
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from tidegate.mechanisms.table import Ints

Each = Literal["sum", "mean", "min", "max"]
Operation = Literal["sum", "min", "max"]
LARGEST_STEP = 2**30
"""Sums over 2^31 units stay inside 64 bits."""

_EVENT_LIMIT = 2**40
_USUAL_STEPS = 1000


@dataclass(frozen=True)
class Slot:
    """What is gathered of a column for each unit and key: merged by adding, or by the smaller or larger of two."""

    column: str
    resolution: Fraction
    operation: Operation

    def read(self, numbers: npt.NDArray[np.float64]) -> Ints:
        """Events' numbers in steps; far beyond any bound they are cut, so that sums cannot overflow."""
        steps = np.rint(numbers * self.resolution.denominator / self.resolution.numerator)
        return np.clip(steps, -_EVENT_LIMIT, _EVENT_LIMIT).astype(np.int64)


EVENTS = Slot("", Fraction(1), "sum")
"""How many events a unit had in a key, for means."""


@dataclass(frozen=True)
class Value:
    """A unit's value in a key. `low` and `high` are in steps."""

    column: str
    low: int
    high: int
    resolution: Fraction
    each: Each

    @staticmethod
    def parse(column: Any, low: Any, high: Any, resolution: Any = None, each: Any = "mean") -> Value:
        """From plain values; raises ValueError with the name of the one that is wrong in front."""
        if not isinstance(column, str) or not column:
            raise ValueError(f"column must be the name of a column of numbers, not {column!r}; write amount")
        if each not in get_args(Each):
            raise ValueError(
                f"each must be sum, mean, min or max, not {each!r}: a unit has one value a key; write mean"
            )
        bottom, top = _number("low", low), _number("high", high)
        if bottom >= top:
            raise ValueError(f"high must be above low, and {high} is not above {low}; write low: 0, high: 100")
        if resolution is None:
            step = Fraction(10) ** _decimal_places(top - bottom)
        else:
            step = _number("resolution", resolution)
            if step <= 0:
                raise ValueError(f"resolution must be above 0, not {resolution}; write 0.01")
        for name, end, given in (("low", bottom, low), ("high", top, high)):
            if (end / step).denominator != 1:
                raise ValueError(
                    f"{name} must be a whole number of steps of resolution {float(step):g}, not {given}; "
                    f"write {float(round(end / step) * step):g}"
                )
            if abs(end / step) > LARGEST_STEP:
                raise ValueError(
                    f"{name} must be at most {LARGEST_STEP} steps of the resolution, and {given} is "
                    f"{float(abs(end / step)):.3g} of them; write a larger resolution"
                )
        return Value(column, int(bottom / step), int(top / step), step, each)

    @property
    def reach(self) -> int:
        """The most that one unit can change a sum by, in steps."""
        return max(abs(self.low), abs(self.high))

    @property
    def span(self) -> int:
        return self.high - self.low

    @property
    def slots(self) -> tuple[Slot, ...]:
        if self.each == "mean":
            return Slot(self.column, self.resolution, "sum"), EVENTS
        return (Slot(self.column, self.resolution, self.each),)

    def of_units(self, gathered: Mapping[Slot, Ints]) -> Ints:
        """Each unit's value, clipped."""
        values = gathered[self.slots[0]]
        if self.each == "mean":
            events = gathered[EVENTS]
            values = (2 * values + events) // (2 * events)
        return np.clip(values, self.low, self.high)

    def shown(self, steps: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Steps as numbers: one correctly rounded division, so that 115 steps of 0.01 read 1.15."""
        return np.asarray(steps, np.float64) * self.resolution.numerator / self.resolution.denominator

    def ends(self, low: Ints, high: Ints) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The ends of a range as numbers, rounded outwards where floating point cannot hold all their digits."""
        beyond = 2**53 / self.resolution.numerator
        shown_low, shown_high = self.shown(low), self.shown(high)
        return (
            np.where(np.abs(low) < beyond, shown_low, shown_low - 2 * np.spacing(np.abs(shown_low))),
            np.where(np.abs(high) < beyond, shown_high, shown_high + 2 * np.spacing(np.abs(shown_high))),
        )

    def number(self, steps: int) -> float:
        return steps * self.resolution.numerator / self.resolution.denominator

    @property
    def name(self) -> str:
        return f"{self.each} of {self.column} in [{self.low}, {self.high}] steps of {self.resolution}"


@dataclass(frozen=True)
class Statistic:
    """A whole number a key: the sum over its units of (value - low)^power. Power 0 is how many units there are."""

    value: Value | None
    power: int

    @property
    def name(self) -> str:
        return "units" if self.value is None else f"power {self.power}, {self.value.name}"

    def of_units(self, gathered: Mapping[Slot, Ints], rows: int) -> Ints:
        if self.value is None:
            return np.ones(rows, np.int64)
        powers: Ints = (self.value.of_units(gathered) - self.value.low) ** self.power
        return powers


UNITS = Statistic(None, 0)


@dataclass(frozen=True)
class Spread:
    """How a key's units are spread over buckets: bucket i holds the values from edges[i-1] up to edges[i], in steps."""

    value: Value
    edges: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"spread over {','.join(map(str, self.edges))}, {self.value.name}"

    @property
    def buckets(self) -> int:
        return len(self.edges) + 1

    def of_units(self, gathered: Mapping[Slot, Ints]) -> Ints:
        """The bucket that each unit is in."""
        return np.searchsorted(np.array(self.edges, np.int64), self.value.of_units(gathered), side="right")


def _number(name: str, given: Any) -> Fraction:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not isfinite(given):
        raise ValueError(f"{name} must be a number, not {given!r}; write {name}: {100 if name == 'high' else 0}")
    return Fraction(repr(given))


def _decimal_places(span: Fraction) -> int:
    """The largest power of ten that gives at least a thousand steps."""
    power = int(log10(span / _USUAL_STEPS)) + 2
    while span / Fraction(10) ** power < _USUAL_STEPS:
        power -= 1
    return power
