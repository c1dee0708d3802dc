"""How the units of every key that passed the gate are spread over buckets of a column.

A unit has one value in a key, so it stands in one bucket of that key and changes one number by 1; it does so for at most
`keys` keys. Noise on [-k, k] for every bucket therefore keeps (epsilon, delta) at the price of a single count, however many
buckets there are (`calibration`). All buckets are published, empty ones too, each with a range that holds for certain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidegate.mechanisms.calibration import bounded_noise, key_delta
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mechanism import Bounds, Role
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable, Rows, dense_spread
from tidegate.mechanisms.values import Spread, Value

MOST_BUCKETS = 1024


class Histogram:
    """Publish, for every bucket between two `edges`, how many of a key's units have their value there."""

    role: ClassVar[Role] = "per-key"

    def __init__(
        self,
        bounds: Bounds,
        *,
        epsilon: float,
        delta: float,
        column: str,
        edges: Sequence[float],
        resolution: float | None = None,
        each: str = "mean",
    ) -> None:
        if isinstance(edges, str) or not isinstance(edges, Sequence) or not 2 <= len(edges) <= MOST_BUCKETS + 1:
            raise ValueError(
                f"edges must be a list of 2 to {MOST_BUCKETS + 1} numbers, not {str(edges)[:40]}; write [0, 10, 20, 50]"
            )
        ends = [Value.parse(column, left, right, resolution) for left, right in pairwise(edges)]
        if resolution is None:
            resolution = float(min(end.resolution for end in ends))
        self.value = Value.parse(column, edges[0], edges[-1], resolution, each)
        inner = [Value.parse(column, edges[0], edge, resolution).high for edge in edges[1:-1]]
        self.spread = Spread(self.value, tuple(inner))
        self.needs = (self.spread,)
        last = len(edges) - 2
        self.measures = tuple(
            f"histogram({column}) [{left:g}, {right:g}{']' if place == last else ')'}"
            for place, (left, right) in enumerate(pairwise(edges))
        )
        self.distribution = bounded_noise(epsilon, delta, Bounds(bounds.keys, 1))
        a_key = key_delta(self.distribution.k, self.distribution.rate, 1)
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, 1, a_key)

    def describe(self) -> Mapping[str, Any]:
        return {
            "half_width": self.distribution.k,
            "buckets": self.spread.buckets,
            "noise_rate": float(self.distribution.rate),
        }

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        buckets, k = self.spread.buckets, self.distribution.k
        noisy = dense_spread(table.spreads[self.spread.name], buckets)
        for bucket in range(buckets):
            noisy[:, bucket] += self.distribution.draw(noise.part(bucket), ids)
        values = noisy.reshape(-1).astype(np.float64)
        return Rows(
            table.keys.take(pa.array(np.repeat(np.arange(len(table)), buckets))),
            values,
            np.maximum(values - k, 0),
            values + k,
            np.tile(np.arange(buckets, dtype=np.int32), len(table)),
        )
