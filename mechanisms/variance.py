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

from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.lattice import Lattice
from tidegate.mechanisms.mean import CHUNK, ROUNDING, share_of
from tidegate.mechanisms.mechanism import Bounds, Role
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable, Floats, Ints, Rows
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
        self.lattice = Lattice.calibrated(epsilon, delta, bounds.keys, square, sums=3)
        per_key = self.value.number(self.value.span)
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, per_key, self.lattice.a_key)

    def describe(self) -> Mapping[str, Any]:
        return {
            "half_width_of_units": self.lattice.half_width / self.value.span**2,
            "resolution": float(self.value.resolution),
            "noise_rate": self.lattice.rate,
        }

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        span, found = self.value.span, np.empty((3, len(table)))
        parts = [noise.part(number) for number in range(3)]
        for begin in range(0, len(table), CHUNK):
            chunk = slice(begin, begin + CHUNK)
            units, first, second = (table.totals[need.name][chunk] for need in self.needs)
            exact = second, 2 * (span * first - second), units * span**2 - 2 * span * first + second
            noisy = [self.lattice.draw(sums, part, ids[chunk]) for sums, part in zip(exact, parts, strict=True)]
            found[:, chunk] = self._shares(*noisy)
        value, low, high = found * self.value.number(span) ** 2
        return Rows(table.keys, value, low, high)

    def _shares(self, p: Ints, q: Ints, w: Ints) -> tuple[Floats, Floats, Floats]:
        """The variance of values in [0, 1], which is a quarter at most, and the least and the most of it.

        The means of y^2 and of y are shares of the whole; each grows with its own part of it and falls with the others.
        """
        (p_low, p_high), (q_low, q_high), (w_low, w_high) = (self.lattice.range(noisy) for noisy in (p, q, w))
        p_mid, q_mid, w_mid = (np.maximum(noisy, 0.0) for noisy in (p, q, w))
        value = share_of(p_mid, q_mid + w_mid, 0.5) - share_of(p_mid + q_mid / 2, q_mid / 2 + w_mid, 0.5) ** 2
        least = share_of(p_low, q_high + w_high, 0.0) - share_of(p_high + q_high / 2, q_low / 2 + w_low, 1.0) ** 2
        most = share_of(p_high, q_low + w_low, 1.0) - share_of(p_low + q_low / 2, q_high / 2 + w_high, 0.0) ** 2
        return (
            np.clip(value, 0, 0.25),
            np.clip(least - ROUNDING, 0, 0.25),
            np.clip(most + ROUNDING, 0, 0.25 + ROUNDING),
        )
