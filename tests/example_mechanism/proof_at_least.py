from fractions import Fraction

from at_least import AtLeast

from tests.exact.divergence import Distribution, common, delta_between
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.noise import BoundedGeometric


def seen(distribution: BoundedGeometric, n: int) -> Distribution:
    masses, total = common(distribution.pmf())
    return Distribution({n + j - 2 * distribution.k: mass for j, mass in enumerate(masses)}, total)


def worst(distribution: BoundedGeometric) -> Fraction:
    return max(delta_between(seen(distribution, 50), seen(distribution, 50 + d), 1.0) for d in (1, 2))


def test_at_least_keeps_epsilon_and_delta() -> None:
    chosen = AtLeast(Bounds(1, 2), epsilon=1.0, delta=1e-6).distribution
    assert worst(chosen) <= Fraction("1e-6")
    assert worst(BoundedGeometric(chosen.rate, chosen.k - 1)) > Fraction("1e-6")
