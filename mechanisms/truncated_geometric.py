"""The default gate: truncated geometric noise, one draw for three promises.

A key with exact count n gets integer noise j in [-k, k], Pr[j] = C a^|j|, a = exp(-rate), and is published as v = n + j if
and only if v > k. From that single draw follow

* the private choice of keys: a key that no unit stands behind (n = 0) can never reach k + 1, and for l0 = c = 1 no
  (epsilon, delta)-private choice lets a rare key through more often;
* the estimate v of the count, at no further cost;
* the range [v - k, v + k], which holds the exact count with certainty, since |j| <= k always.

It is private because noise on [-k, k] is (`calibration` says why), and a key that is not there shows what n = 0 shows:
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, localcontext
from typing import Any, ClassVar

import numpy as np

from tidegate.mechanisms.calibration import DIGITS, bounded_noise, key_delta
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mechanism import Bounds, Role
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable, Rows


class TruncatedGeometric:
    """Publish n + j for the keys where it exceeds k; k is the smallest that keeps (epsilon, delta)."""

    role: ClassVar[Role] = "gate"

    def __init__(self, bounds: Bounds, *, epsilon: float, delta: float) -> None:
        self.distribution = bounded_noise(epsilon, delta, bounds)
        self.half_width = self.distribution.k
        a_key = key_delta(self.half_width, self.distribution.rate, min(bounds.per_key, bounds.l1))
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, bounds.per_key, a_key)

    def describe(self) -> Mapping[str, Any]:
        return {
            "half_width": self.half_width,
            "threshold": self.half_width + 1,
            "noise_rate": float(self.distribution.rate),
        }

    def survival(self, n: int) -> float:
        """Pr[n + j > k]."""
        return float(_tail(self.distribution.rate, self.half_width, self.half_width + 1 - n))

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        values = table.counts + self.distribution.draw(noise, ids)
        passed = np.flatnonzero(values > self.half_width)
        shown = values[passed].astype(np.float64)
        return Rows(table.keys.take(passed), shown, shown - self.half_width, shown + self.half_width)


def _tail(rate: Decimal, k: int, m: int) -> Decimal:
    """Pr[j >= m] for the noise on [-k, k]."""
    if m > k:
        return Decimal(0)
    if m <= -k:
        return Decimal(1)
    if m <= 0:
        return 1 - _tail(rate, k, 1 - m)
    with localcontext() as context:
        context.prec = DIGITS
        a, beyond = (-rate).exp(), (-rate * (k + 1)).exp()
        return ((-rate * m).exp() - beyond) / (1 + a - 2 * beyond)
