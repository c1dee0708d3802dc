"""A second count of every key that passed the gate, with noise and a budget of its own.

The gate publishes its count from the draw that let the key in, so the published ones are those that were lucky: rare
keys look larger than they are. A second count has no such bias. On a fixed set of keys a unit changes what
`calibration` says it does, and noise on [-k, k] keeps (epsilon, delta), with ranges for certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tidegate.mechanisms.calibration import bounded_noise, key_delta
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mechanism import Bounds, Role
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable, Rows


class NoisyCount:
    """Publish n + j for every key that is there."""

    role: ClassVar[Role] = "per-key"

    def __init__(self, bounds: Bounds, *, epsilon: float, delta: float) -> None:
        self.distribution = bounded_noise(epsilon, delta, bounds)
        a_key = key_delta(self.distribution.k, self.distribution.rate, min(bounds.per_key, bounds.l1))
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, bounds.per_key, a_key)

    def describe(self) -> Mapping[str, Any]:
        return {"half_width": self.distribution.k, "noise_rate": float(self.distribution.rate)}

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        values = (table.counts + self.distribution.draw(noise, ids)).astype(float)
        return Rows(table.keys, values, values - self.distribution.k, values + self.distribution.k)
