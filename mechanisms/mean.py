"""The mean of a clipped column for every key that passed the gate.

Let y be a unit's value above low, in [0, R]. Publish A = sum of (R - y) and B = sum of y with noise each; the mean is
low + R B / (A + B). A unit adds R - y to the one and y to the other, R in all, whatever y is: so both numbers together cost
what a single sum would, instead of half the budget for a sum and half for a count.

Why it is private. Noise on [-k, k] at rate epsilon / (keys R) keeps epsilon, and the delta of a key is
1 - (1 - d(R-y)) (1 - d(y)), at its largest where y is 0 or R, since d is convex with d(0) = 0 (`calibration`).

The range follows from |noise| <= k by interval arithmetic, and holds the exact mean for certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tidegate.mechanisms.calibration import bounded_noise, key_delta
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mechanism import Bounds, Role
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable, Floats, Rows
from tidegate.mechanisms.values import UNITS, Statistic, Value

ROUNDING = 1e-14
"""More than floating point can be off by, so that a range holds the exact mean for certain."""


class Mean:
    """Publish the mean over a key's units of what each of them has there in `column`."""

    role: ClassVar[Role] = "per-key"

    def __init__(
        self,
        bounds: Bounds,
        *,
        epsilon: float,
        delta: float,
        column: str,
        low: float,
        high: float,
        resolution: float | None = None,
        each: str = "mean",
    ) -> None:
        self.value = Value.parse(column, low, high, resolution, each)
        self._above_low = Statistic(self.value, 1)
        self.needs = (UNITS, self._above_low)
        self.measures = (f"mean({column})",)
        self.distribution = bounded_noise(epsilon, delta, Bounds(bounds.keys, self.value.span))
        a_key = key_delta(self.distribution.k, self.distribution.rate, self.value.span)
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, self.value.number(self.value.span), a_key)

    def describe(self) -> Mapping[str, Any]:
        return {
            "half_width_of_units": self.distribution.k / self.value.span,
            "resolution": float(self.value.resolution),
            "noise_rate": float(self.distribution.rate),
        }

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        k, span = self.distribution.k, self.value.span
        above = table.totals[self._above_low.name]
        below = table.totals[UNITS.name] * span - above
        above = above + self.distribution.draw(noise.part(0), ids)
        below = below + self.distribution.draw(noise.part(1), ids)
        # Both sums are at least 0, and the whole is span for each unit.
        value = _ratio(np.maximum(above, 0), np.maximum(below, 0), 0.5)
        low = _ratio(np.maximum(above - k, 0), np.maximum(below + k, 0), 0.0) - ROUNDING
        high = _ratio(np.maximum(above + k, 0), np.maximum(below - k, 0), 1.0) + ROUNDING
        return Rows(table.keys, self._at(value), self._at(low), self._at(high))

    def _at(self, share: Floats) -> Floats:
        """The number that lies at this share of the way from low to high."""
        return self.value.shown(self.value.low + np.clip(share, 0, 1) * self.value.span)


def _ratio(part: np.ndarray[Any, Any], rest: np.ndarray[Any, Any], otherwise: float) -> Floats:
    """part / (part + rest), or what nothing is worth."""
    whole = part + rest
    return np.where(whole > 0, part / np.maximum(whole, 1), otherwise)
