"""A gate that publishes keys and nothing about them: no private choice lets a key through more often.

A key is published with probability p(n) that depends on its own count n alone. With e = exp(epsilon/l0) and d the delta
of one key, p(0) = 0 and

    p(m+1) = the largest p with  p <= e p(m) + d  and  1 - p(m) <= e (1 - p) + d

(Desfontaines, Voss, Gipson, Mandayam 2020), which is both conditions of privacy met with equality as long as they bind.
One unit moves n by at most c, hence m = ceil(n/c) by at most one. A unit's keys are drawn independently: epsilon/l0
each adds up to epsilon, and delta = 1 - (1 - d)^l0.

The probabilities are kept as whole numbers of 2^-128 and rounded to the private side at every step, so the coins that are
tossed keep both conditions exactly, with no charge for the sampler.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from tidegate.mechanisms.calibration import DIGITS, check_budget
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mechanism import Bounds, Role
from tidegate.mechanisms.noise import WORD_BITS, Coins, Noise
from tidegate.mechanisms.table import ExactTable, Rows

LARGEST_TABLE = 2**20
_ONE = 2**WORD_BITS


class OptimalSelection:
    """Publish a key with the largest probability that (epsilon, delta) allows for its count."""

    role: ClassVar[Role] = "gate"

    def __init__(self, bounds: Bounds, *, epsilon: float, delta: float) -> None:
        check_budget(epsilon, delta)
        self._per_key = bounds.per_key
        keys = min(bounds.keys, bounds.l1)
        self.probabilities, a_key = recursion(epsilon, delta, keys)
        self._coins = Coins(self.probabilities)
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, bounds.per_key, a_key)

    def describe(self) -> Mapping[str, Any]:
        half = next(m for m, p in enumerate(self.probabilities) if 2 * p >= _ONE)
        return {
            "appears_half_the_time_at": (half - 1) * self._per_key + 1,
            "appears_always_at": (len(self.probabilities) - 2) * self._per_key + 1,
        }

    def survival(self, n: int) -> float:
        steps = min(max(0, -(-n // self._per_key)), len(self.probabilities) - 1)
        return float(self.probabilities[steps] / _ONE)

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        steps = np.clip(-(-table.counts // self._per_key), 0, len(self.probabilities) - 1)
        fallen = self._coins.toss(next(noise.words(ids, 1)), steps)
        return Rows.of_keys(table.keys.take(np.flatnonzero(fallen)))


def recursion(epsilon: float, delta: float, keys: int) -> tuple[list[int], float]:
    """p(0), p(1), ... up to certainty, in units of 2^-128, and the delta of one key."""
    with localcontext() as context:
        target = Decimal(repr(delta))
        context.prec = DIGITS - target.adjusted()
        factor = (min(Decimal(repr(epsilon)) / keys, Decimal(80))).exp()
        # From below: a smaller factor asks for more than privacy does.
        e = Fraction(factor.quantize(Decimal(1).scaleb(factor.adjusted() - 50), rounding=ROUND_FLOOR))
        d = int(((1 - ((1 - target).ln() / keys).exp()) * _ONE).to_integral_value(ROUND_FLOOR))
    if d < 1:
        raise ValueError(f"delta {delta:g} is below what 128-bit coins can promise; write at least 1e-30")
    found = [0]
    while found[-1] < _ONE:
        p = found[-1]
        rising = p * e.numerator // e.denominator + d
        # 1 - p(m) <= e (1 - p) + d, solved for p and rounded down.
        falling = _ONE - -(-max(0, _ONE - p - d) * e.denominator // e.numerator)
        found.append(min(rising, falling, _ONE))
        if len(found) > LARGEST_TABLE:
            raise ValueError(
                f"epsilon {epsilon:g} is too small for {keys} keys: the table of chances would have more than "
                f"{LARGEST_TABLE} entries; write a larger epsilon"
            )
    return found, d / _ONE
