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

from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.lattice import Lattice
from tidegate.mechanisms.mechanism import Bounds, Role
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable, Floats, Ints, Rows
from tidegate.mechanisms.values import UNITS, Statistic, Value

CHUNK = 1 << 14  # keys at a time: what is computed of them stays in the processor's cache
ROUNDING = 1e-14
"""More than floating point can be off by in a share, so that a range holds the exact mean for certain."""


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
        self.lattice = Lattice.calibrated(epsilon, delta, bounds.keys, self.value.span, sums=2)
        per_key = self.value.number(self.value.span)
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, per_key, self.lattice.a_key)

    def describe(self) -> Mapping[str, Any]:
        return {
            "half_width_of_units": self.lattice.half_width / self.value.span,
            "resolution": float(self.value.resolution),
            "noise_rate": self.lattice.rate,
        }

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        found = np.empty((3, len(table)))
        parts = noise.part(0), noise.part(1)
        for begin in range(0, len(table), CHUNK):
            chunk = slice(begin, begin + CHUNK)
            above = table.totals[self._above_low.name][chunk]
            below = table.totals[UNITS.name][chunk] * self.value.span - above
            found[:, chunk] = self._shares(
                self.lattice.draw(above, parts[0], ids[chunk]), self.lattice.draw(below, parts[1], ids[chunk])
            )
        value, low, high = self.value.shown(self.value.low + found * self.value.span)
        bottom, top = self.value.number(self.value.low), self.value.number(self.value.high)
        margin = 4 * np.spacing(max(abs(bottom), abs(top)))
        return Rows(table.keys, value, np.maximum(low - margin, bottom), np.minimum(high + margin, top))

    def _shares(self, above: Ints, below: Ints) -> tuple[Floats, Floats, Floats]:
        """Where the mean lies between low and high, and the least and the most of it."""
        (above_low, above_high), (below_low, below_high) = self.lattice.range(above), self.lattice.range(below)
        return (
            share_of(np.maximum(above, 0.0), np.maximum(below, 0.0), 0.5),
            np.maximum(share_of(above_low, below_high, 0.0) - ROUNDING, 0),
            np.minimum(share_of(above_high, below_low, 1.0) + ROUNDING, 1),
        )


def share_of(part: Floats, rest: Floats, otherwise: float) -> Floats:
    """part / (part + rest), or what nothing is worth."""
    whole = part + rest
    share: Floats = part / np.maximum(whole, 1.0)
    nothing = whole == 0
    if nothing.any():
        share[nothing] = otherwise
    return share
