"""How wide bounded noise must be: the smallest k for which noise on [-k, k] keeps (epsilon, delta).

Noise j in [-k, k] with Pr[j] = C a^|j|, a = exp(-rate), is added to every key's number. A unit changes at most `keys` of
them, by at most c each and by at most l1 in all; rate = epsilon / l1. Where both neighbours can show v, the probabilities
differ by at most exp(rate x) for a key that changed by x, hence by exp(epsilon) in all. What only one of them can show has
probability

    d(x) = a^(k-x+1) (1 - a^x) / (1 + a - 2 a^(k+1))

a key, in both directions, and keys are drawn independently: delta = 1 - product of (1 - d(x)) over the unit's keys. d is
convex with d(0) = 0, so the worst is to change as few keys as possible, each by c. The sampler is within a distance h of the
distribution (`BoundedGeometric.distance`), which is charged as (1 + exp(rate x)) h a key.

Decimal arithmetic throughout, so that delta may be 1e-300 and every machine finds the same k.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, localcontext
from math import nextafter

from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.noise import WORD_BITS, BoundedGeometric

DIGITS = 60
LARGEST_HALF_WIDTH = 2**40
"""Counts must stay far inside the integers that a float64 shows exactly (2^53)."""

SMALLEST_EPSILON = 1e-30
"""Far below any use; it keeps the arithmetic of the calibration inside its digits."""


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse what no mechanism with bounded noise or unknown keys can keep."""
    if not SMALLEST_EPSILON <= epsilon < float("inf"):
        raise ValueError(
            f"epsilon must be at least {SMALLEST_EPSILON:g} and finite, not {epsilon:g}; write a number such as 1.0"
        )
    if not 0 < delta < 1:
        raise ValueError(
            f"delta must be above 0 and below 1, not {delta:g}: neither unknown keys nor noise that ends can do without; "
            f"write a number such as 1e-9"
        )


def bounded_noise(epsilon: float, delta: float, bounds: Bounds) -> BoundedGeometric:
    """The narrowest noise that keeps (epsilon, delta)."""
    check_budget(epsilon, delta)
    k, rate = calibrate(epsilon, delta, bounds)
    return BoundedGeometric(rate, k)


def calibrate(epsilon: float, delta: float, bounds: Bounds) -> tuple[int, Decimal]:
    """The smallest k that keeps (epsilon, delta), and the noise rate.

    The closed form gives a candidate; what counts is the check of delta(k) itself on either side of it.
    """
    with localcontext() as context:
        target = Decimal(repr(delta))
        context.prec = DIGITS - target.adjusted()
        c = min(bounds.per_key, bounds.l1)
        rate = noise_rate(Decimal(repr(epsilon)), target, bounds)
        a = (-rate).exp()
        per_key = 1 - ((1 - target).ln() / (bounds.l1 // c)).exp()
        ratio = ((rate * c).exp() - 1 + 2 * per_key) / (per_key * (1 + a))
        estimate = ratio.ln() / rate
        if estimate > LARGEST_HALF_WIDTH:
            raise ValueError(
                f"epsilon {epsilon:g} is too small for {bounds.keys} keys of {bounds.per_key} each: the noise would "
                f"reach {float(estimate):.3g}; write a larger epsilon or tighter bounds"
            )
        k = max(c, int(estimate.to_integral_value(ROUND_CEILING)) - 1)
        while _exact_delta(k, rate, bounds) > target:
            k += 1
        while k > c and _exact_delta(k - 1, rate, bounds) <= target:
            k -= 1
        return k, rate


def exact_delta(k: int, rate: Decimal, bounds: Bounds) -> float:
    """The delta that half-width k really has, the sampler's distance included."""
    with localcontext() as context:
        context.prec = 400
        return float(_exact_delta(k, rate, bounds))


def key_delta(k: int, rate: Decimal, change: int) -> float:
    """The delta of a single key that changes by so much, rounded up."""
    with localcontext() as context:
        context.prec = 400
        return nextafter(float(_key_delta(k, rate, change)), 1.0)


def noise_rate(epsilon: Decimal, delta: Decimal, bounds: Bounds) -> Decimal:
    """epsilon / l1, but never so high that the sampler's rounding would matter next to delta.

    Words have 128 bits, so a likelihood ratio near 2^128 cannot be drawn. Noise calibrated to a smaller epsilon is private
    for the larger one too; the cap is reached only at epsilons of 30 to 60 a key, where the noise is all but nil anyway.
    """
    cap = (delta / bounds.keys).ln() + (WORD_BITS - 20) * Decimal(2).ln()
    if cap < Decimal("0.1"):
        raise ValueError(
            f"delta {delta:g} is below what 128-bit noise can promise for {bounds.keys} keys; write at least 1e-30"
        )
    return min(epsilon / bounds.l1, cap / min(bounds.per_key, bounds.l1))


def _exact_delta(k: int, rate: Decimal, bounds: Bounds) -> Decimal:
    c = min(bounds.per_key, bounds.l1)
    full, left = divmod(bounds.l1, c)
    kept = (1 - _key_delta(k, rate, c)) ** full
    return 1 - (kept * (1 - _key_delta(k, rate, left)) if left else kept)


def _key_delta(k: int, rate: Decimal, change: int) -> Decimal:
    a = (-rate).exp()
    only_one = (-rate * (k - change + 1)).exp() * (1 - (-rate * change).exp())
    only_one /= 1 + a - 2 * (-rate * (k + 1)).exp()
    distance = BoundedGeometric(rate, k).distance
    charge = (1 + (rate * change).exp()) * distance.numerator / distance.denominator
    return min(Decimal(1), only_one + charge)
