"""The keys with the largest counts among those that passed the gate, in order.

The first is chosen as `choose` does, then the next among the others, and so on: k choices at epsilon/k each, which add up to
epsilon. Ranks are published, no counts; the gate's own counts are there beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidegate.mechanisms.choose import Chooser, pack, together, unpack
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.mechanism import Bounds, Identify, Role
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable, Rows

MOST = 1000


class TopK:
    """Publish `k` keys with their rank, 1 for the first; all of them where fewer passed."""

    role: ClassVar[Role] = "per-window"
    measures = ("rank",)

    def __init__(
        self, bounds: Bounds, *, epsilon: float, delta: float, k: int, method: str = "permute-and-flip"
    ) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MOST:
            raise ValueError(f"k must be a whole number from 1 to {MOST}, not {k!r}; write 10")
        self.k = k
        self.chooser = Chooser(bounds, epsilon, delta, k, method)
        self.guarantee = Guarantee(epsilon, self.chooser.delta, bounds.keys, bounds.per_key)

    def describe(self) -> Mapping[str, Any]:
        return {
            "k": self.k,
            "method": self.chooser.method,
            "rate": float(self.chooser.rate),
            "step": self.chooser.step,
        }

    def summarize(self, table: ExactTable) -> bytes:
        return pack(self.chooser, table.keys, self.chooser.utilities(table.counts), self.k)

    def merge(self, left: bytes, right: bytes) -> bytes:
        return pack(self.chooser, *together(left, right), self.k)

    def release(self, summary: bytes, identify: Identify, noise: Noise) -> Rows:
        keys, utilities = unpack(summary)
        ids = identify(keys)
        left, chosen = np.arange(len(keys)), []
        for rank in range(min(self.k, len(keys))):
            place = self.chooser.choose(utilities[left], ids[left], noise.part(rank))
            chosen.append(int(left[place]))
            left = np.delete(left, place)
        unsaid = np.full(len(chosen), np.nan)
        return Rows(
            keys.take(pa.array(chosen, pa.int64())), np.arange(1, len(chosen) + 1).astype(np.float64), unsaid, unsaid
        )
