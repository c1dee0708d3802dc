"""Noise in coarse steps, for sums that a unit can change by thousands of small ones.

The noise on such a sum is many times what one unit can change it by, so nothing is lost by rounding the exact sum down
to a lattice that is a hundredth of that, and noise on the lattice needs fewer random words. On it a unit changes a sum
by at most ceil(change / step) steps. Where it changes several sums by a fixed amount in all, each of them may round up:
one step more for every further sum. What was rounded away is part of the range, which stays certain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.mechanisms.calibration import bounded_noise, key_delta
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.noise import BoundedGeometric, Noise
from tidegate.mechanisms.table import Floats, Ints

STEPS = 128
"""What one unit can change a sum by, in steps of the lattice: rounding up to whole ones costs a percent at most."""


@dataclass(frozen=True)
class Lattice:
    """Noise for sums that one unit changes by at most `change` in all, in each of its keys."""

    distribution: BoundedGeometric
    step: int
    a_key: float

    @staticmethod
    def calibrated(epsilon: float, delta: float, keys: int, change: int, sums: int = 1) -> Lattice:
        """The narrowest that keeps (epsilon, delta) for so many keys."""
        step = max(1, -(-change // STEPS))
        # Each sum may round up by almost a step: worst where all but one change by 1 more than a whole number of steps.
        most = (change - sums) // step + sums if step > 1 else change
        distribution = bounded_noise(epsilon, delta, Bounds(keys, most))
        return Lattice(distribution, step, key_delta(distribution.k, distribution.rate, most))

    @property
    def rate(self) -> float:
        """By how much one more in a sum lowers the odds, as a rate."""
        return float(self.distribution.rate) / self.step

    @property
    def half_width(self) -> int:
        """How far a published sum can be from the exact one, at most."""
        return self.distribution.k * self.step + self.step // 2

    def draw(self, exact: Ints, noise: Noise, ids: Ids) -> Ints:
        """Noisy sums, at the middle of the step that they were rounded down to."""
        noisy: Ints = (exact // self.step + self.distribution.draw(noise, ids)) * self.step + self.step // 2
        return noisy

    def range(self, noisy: Ints) -> tuple[Floats, Floats]:
        """What the exact sums, which are never below 0, lie between."""
        return np.maximum(noisy - self.half_width, 0.0), np.maximum(noisy + self.half_width, 0.0)
