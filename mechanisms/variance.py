"""The variance of a clipped column for every key that passed the gate.

Let y be a unit's value above low, in [0, R]. Publish, with noise each, the three sums

    P = sum of y^2        Q = sum of 2 y (R - y)        W = sum of (R - y)^2

A unit adds y^2 + 2 y (R - y) + (R - y)^2 = R^2 in all, whatever y is. From them the units are n = (P + Q + W) / R^2, the mean
of y is (P + Q/2) / (n R), the mean of y^2 is P / n, and the variance is what the second exceeds the square of the first by
(the population variance, over the units that are there).

Why it is private: as for the mean, with R^2 in place of R.

The range follows from |noise| <= k by interval arithmetic, and holds the exact variance for certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tidegate.mechanisms.calibration import bounded_noise, key_delta
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mean import ROUNDING
from tidegate.mechanisms.mechanism import Bounds, Role
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable, Floats, Rows
from tidegate.mechanisms.values import UNITS, Statistic, Value

MOST_STEPS = 2**15
"""Squares summed over 2^33 units stay inside 64 bits."""


class Variance:
    """Publish the variance over a key's units of what each of them has there in `column`."""

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
        if self.value.span > MOST_STEPS:
            raise ValueError(
                f"resolution must give at most {MOST_STEPS} steps between low and high, not {self.value.span}, "
                f"as values are squared; write a larger one"
            )
        self._first, self._second = Statistic(self.value, 1), Statistic(self.value, 2)
        self.needs = (UNITS, self._first, self._second)
        self.measures = (f"variance({column})",)
        square = self.value.span**2
        self.distribution = bounded_noise(epsilon, delta, Bounds(bounds.keys, square))
        a_key = key_delta(self.distribution.k, self.distribution.rate, square)
        per_key = self.value.number(self.value.span)
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, per_key, a_key)

    def describe(self) -> Mapping[str, Any]:
        return {
            "half_width_of_units": self.distribution.k / self.value.span**2,
            "resolution": float(self.value.resolution),
            "noise_rate": float(self.distribution.rate),
        }

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        k, span = self.distribution.k, self.value.span
        units, first, second = (table.totals[need.name] for need in self.needs)
        exact = (second, 2 * (span * first - second), units * span**2 - 2 * span * first + second)
        noisy = [total + self.distribution.draw(noise.part(i), ids) for i, total in enumerate(exact)]
        p, q, w = (np.maximum(total, 0).astype(np.float64) for total in noisy)
        p_low, q_low, w_low = (np.maximum(total - k, 0).astype(np.float64) for total in noisy)
        p_high, q_high, w_high = (np.maximum(total + k, 0).astype(np.float64) for total in noisy)
        # As shares of the whole: y^2 and y, in units of R^2 and R. Each share grows with its own part and falls with the
        # others.
        squares_low, squares_high = _share(p_low, q_high + w_high, 0.0), _share(p_high, q_low + w_low, 1.0)
        mean_low = _share(p_low + q_low / 2, q_high / 2 + w_high, 0.0)
        mean_high = _share(p_high + q_high / 2, q_low / 2 + w_low, 1.0)
        value = _share(p, q + w, 0.5) - _share(p + q / 2, q / 2 + w, 0.5) ** 2
        unit = self.value.number(span) ** 2
        return Rows(
            table.keys,
            # No variance of values in [0, 1] exceeds a quarter.
            np.clip(value, 0, 0.25) * unit,
            np.clip(squares_low - mean_high**2 - ROUNDING, 0, 0.25) * unit,
            np.clip(squares_high - mean_low**2 + ROUNDING, 0, 0.25 + ROUNDING) * unit,
        )


def _share(part: Floats, rest: Floats, otherwise: float) -> Floats:
    whole = part + rest
    return np.where(whole > 0, part / np.maximum(whole, 1.0), otherwise)
