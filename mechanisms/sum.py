"""The sum of a clipped column for every key that passed the gate.

Each unit has one value in a key, clipped to [low, high], so it changes a key's sum by at most max(|low|, |high|), and
bounded noise keeps (epsilon, delta) (`calibration`, `lattice`). The range holds the exact clipped sum for certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.lattice import Lattice
from tidegate.mechanisms.mechanism import Bounds, Role
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable, Rows
from tidegate.mechanisms.values import UNITS, Statistic, Value


class Sum:
    """Publish the sum over a key's units of what each of them has there in `column`."""

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
        each: str = "sum",
    ) -> None:
        self.value = Value.parse(column, low, high, resolution, each)
        self._above_low = Statistic(self.value, 1)
        self.needs = (UNITS, self._above_low)
        self.measures = (f"sum({column})",)
        self.lattice = Lattice.calibrated(epsilon, delta, bounds.keys, self.value.reach)
        per_key = self.value.number(self.value.reach)
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, per_key, self.lattice.a_key)

    def describe(self) -> Mapping[str, Any]:
        return {
            "half_width": self.value.number(self.lattice.half_width),
            "resolution": float(self.value.resolution),
            "noise_rate": self.lattice.rate,
        }

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        exact = table.totals[self._above_low.name] + self.value.low * table.totals[UNITS.name]
        noisy, width = self.lattice.draw(exact, noise, ids), self.lattice.half_width
        return Rows(table.keys, self.value.shown(noisy), *self.value.ends(noisy - width, noisy + width))
