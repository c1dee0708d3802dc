"""A count of every key that passed the gate which never overstates: fit to be quoted as "at least".

On a fixed set of keys a unit changes what `calibration` says it does, and noise on [-k, k] keeps (epsilon, delta). Taking k
off what was drawn is arithmetic on what is private already.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from tidegate.mechanisms.calibration import bounded_noise
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mechanism import Bounds, Role
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable, Rows


class AtLeast:
    role: ClassVar[Role] = "per-key"

    def __init__(self, bounds: Bounds, *, epsilon: float, delta: float) -> None:
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, bounds.per_key)
        self.distribution = bounded_noise(epsilon, delta, bounds)

    def describe(self) -> Mapping[str, Any]:
        return {"understates_by_at_most": 2 * self.distribution.k}

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        surely = (table.counts + self.distribution.draw(noise, ids) - self.distribution.k).astype(float)
        return Rows(table.keys, surely, surely, surely + 2 * self.distribution.k)
