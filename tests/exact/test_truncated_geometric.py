"""The gate keeps its (epsilon, delta), exactly: the real sampler's distribution on worst-case neighbours, both ways."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from math import exp, expm1

import pytest

from tests.exact.divergence import delta_between, joint, release_of_one_key
from tidegate.mechanisms.calibration import calibrate, exact_delta
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.noise import BoundedGeometric
from tidegate.mechanisms.truncated_geometric import TruncatedGeometric

# (epsilon, delta, keys, per_key, half-width); the half-widths were derived independently of this code.
KNOWN = [(0.05, 1e-19, 1, 1, 802), (1.0, 1e-5, 1, 1, 11), (1.0, 1e-5, 3, 1, 33), (1.0, 1e-5, 1, 5, 57)]
ONE_KEY = [(e, d, 1, c) for e in (0.1, 0.7, 1.0, 3.0, 20.0) for d in (1e-3, 1e-6, 1e-12) for c in (1, 2, 5)]
ONE_KEY = [point for point in ONE_KEY if point[0] > 0.1 or point[1] > 1e-12]  # half-widths in the thousands
ONE_KEY.append((0.05, 1e-19, 1, 1))
SEVERAL_KEYS = [
    (1.0, 1e-2, 2, 1),
    (2.0, 1e-3, 2, 2),
    (3.0, 1e-2, 3, 1),
    (8.0, 1e-6, 3, 1),
    (0.5, 0.2, 2, 1),
    (1.0, 1e-5, 3, 1),
]


def gate(epsilon: float, delta: float, keys: int, per_key: int) -> TruncatedGeometric:
    return TruncatedGeometric(Bounds(keys, per_key), epsilon=epsilon, delta=delta)


def worst_delta_one_key(distribution: BoundedGeometric, epsilon: float, c: int) -> Fraction:
    """Over every count a key can have and everything one unit can add to it."""
    k, noise = distribution.k, distribution.pmf()
    counts = list(range(2 * k + c + 2))
    if k > 40:
        # Where something can change: nothing there yet, around the threshold, and where a key is sure to appear.
        counts = sorted({*range(c + 2), *range(k - c, k + c + 3), *range(2 * k - c, 2 * k + c + 2)})
    seen = {n: release_of_one_key(noise, k, n) for n in {m + d for m in counts for d in range(c + 1)}}
    return max(delta_between(seen[n], seen[n + d], epsilon) for d in range(1, c + 1) for n in counts)


def worst_delta_several_keys(distribution: BoundedGeometric, epsilon: float, keys: int, c: int) -> Fraction:
    """A unit that adds c to each of its keys, none of which anybody else touched."""
    noise = distribution.pmf()
    absent = release_of_one_key(noise, distribution.k, 0)
    present = release_of_one_key(noise, distribution.k, c)
    return delta_between(joint([absent] * keys), joint([present] * keys), epsilon)


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key", "half_width"), KNOWN)
def test_the_half_width_is_the_known_one(
    epsilon: float, delta: float, keys: int, per_key: int, half_width: int
) -> None:
    assert gate(epsilon, delta, keys, per_key).half_width == half_width


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), ONE_KEY)
def test_one_key_keeps_delta_at_every_count_in_both_directions(
    epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    chosen = gate(epsilon, delta, keys, per_key)
    assert worst_delta_one_key(_small(chosen.distribution), epsilon, per_key) <= Fraction(repr(delta))


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), ONE_KEY)
def test_one_key_with_a_half_width_one_smaller_breaks_delta(
    epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    chosen = gate(epsilon, delta, keys, per_key)
    if chosen.half_width == per_key:
        pytest.skip("the half-width is at its floor: below it, a unit could be seen for certain")
    smaller = BoundedGeometric(chosen.distribution.rate, chosen.half_width - 1)
    noise = smaller.pmf()
    absent, present = (release_of_one_key(noise, smaller.k, n) for n in (0, per_key))
    assert delta_between(absent, present, epsilon) > Fraction(repr(delta))


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), SEVERAL_KEYS)
def test_several_keys_keep_delta_together(epsilon: float, delta: float, keys: int, per_key: int) -> None:
    chosen = gate(epsilon, delta, keys, per_key)
    assert worst_delta_several_keys(chosen.distribution, epsilon, keys, per_key) <= Fraction(repr(delta))


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), SEVERAL_KEYS)
def test_several_keys_with_a_half_width_one_smaller_break_delta(
    epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    chosen = gate(epsilon, delta, keys, per_key)
    smaller = BoundedGeometric(chosen.distribution.rate, chosen.half_width - 1)
    assert worst_delta_several_keys(smaller, epsilon, keys, per_key) > Fraction(repr(delta))


def test_no_mix_of_counts_and_additions_over_two_keys_is_worse_than_two_new_keys() -> None:
    epsilon, delta, c = 4.0, 2e-2, 2
    chosen = gate(epsilon, delta, 2, c)
    k, noise = chosen.half_width, chosen.distribution.pmf()
    seen = [release_of_one_key(noise, k, n) for n in range(2 * k + c + 2)]
    changes = [(n, n + d) for d in range(c + 1) for n in range(len(seen) - d)]
    worst = Fraction(0)
    for (n1, m1), (n2, m2) in product(changes, repeat=2):
        if (n1, m1) <= (n2, m2):
            worst = max(worst, delta_between(joint([seen[n1], seen[n2]]), joint([seen[m1], seen[m2]]), epsilon))
    assert worst <= Fraction(repr(delta))
    assert float(worst) == pytest.approx(exact_delta(k, chosen.distribution.rate, Bounds(2, c)), rel=1e-12)


def test_a_publishing_threshold_one_too_small_breaks_delta() -> None:
    # Publishing from k on, instead of above k: a key of one unit is then seen twice as often.
    chosen = gate(1.0, 1e-5, 1, 1)
    noise = chosen.distribution.pmf()
    absent, present = (release_of_one_key(noise, chosen.half_width, n, chosen.half_width - 1) for n in (0, 1))
    assert delta_between(absent, present, 1.0) > Fraction("1e-5")


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), [*ONE_KEY, *SEVERAL_KEYS])
def test_the_stated_delta_is_the_exact_one(epsilon: float, delta: float, keys: int, per_key: int) -> None:
    # Two new keys give the worst case, so the closed form must equal the enumeration there, up to the sampler's 2^-128.
    chosen = gate(epsilon, delta, keys, per_key)
    distribution = chosen.distribution
    exact = worst_delta_several_keys(_small(distribution), epsilon, keys, per_key)
    stated = exact_delta(distribution.k, distribution.rate, Bounds(keys, per_key))
    if distribution.rate * keys * per_key == Decimal(repr(epsilon)):
        assert float(exact) == pytest.approx(stated, rel=1e-9)
    assert exact <= Fraction(repr(delta))


@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-19, 1e-25])
@pytest.mark.parametrize(("keys", "per_key"), [(1, 1), (3, 1), (10, 1), (1, 5), (4, 3), (1000, 1)])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 5.0])
def test_the_half_width_is_the_smallest_that_keeps_delta(epsilon: float, delta: float, keys: int, per_key: int) -> None:
    bounds = Bounds(keys, per_key)
    k, rate = calibrate(epsilon, delta, bounds)
    assert exact_delta(k, rate, bounds) <= delta
    assert k == per_key or exact_delta(k - 1, rate, bounds) > delta


def test_a_huge_epsilon_is_served_with_noise_that_is_all_but_nil() -> None:
    chosen = gate(1e6, 1e-9, 1, 1)
    assert chosen.half_width == 1
    assert worst_delta_one_key(chosen.distribution, 80.0, 1) <= Fraction("1e-9")
    assert 1 - chosen.distribution.pmf()[1] < Fraction("1e-20")


def test_keys_appear_as_often_as_any_private_choice_allows() -> None:
    # No (epsilon, delta)-private choice of keys can beat p(n) = delta (e^(n epsilon) - 1)/(e^epsilon - 1) up to k + 1.
    epsilon, delta = 1.0, 1e-5
    chosen = gate(epsilon, delta, 1, 1)
    reached = exact_delta(chosen.half_width, chosen.distribution.rate, Bounds(1, 1))
    for n in range(1, chosen.half_width + 2):
        assert chosen.survival(n) == pytest.approx(reached * expm1(n * epsilon) / expm1(epsilon), rel=1e-9)
    assert chosen.survival(2 * chosen.half_width + 1) == 1.0
    assert chosen.survival(0) == 0.0
    assert chosen.survival(12) >= 0.5 > chosen.survival(11)


@pytest.mark.parametrize("n", [1, 5, 11, 12, 13, 22, 23])
def test_survival_is_the_chance_under_the_sampler(n: int) -> None:
    chosen = gate(1.0, 1e-5, 1, 1)
    seen = release_of_one_key(chosen.distribution.pmf(), chosen.half_width, n)
    assert chosen.survival(n) == pytest.approx(float(1 - Fraction(seen.mass.get(None, 0), seen.total)), rel=1e-12)


@pytest.mark.parametrize(("rate", "k"), [("1", 1), ("0.3", 2), ("1", 11), ("0.05", 33), ("0.05", 802), ("2.5", 64)])
def test_the_samplers_distribution_is_within_its_stated_distance_of_the_ideal(rate: str, k: int) -> None:
    distribution = BoundedGeometric(Decimal(rate), k)
    actual = distribution.pmf()
    assert sum(actual) == 1
    with localcontext() as context:
        context.prec = 120
        weights = [(-Decimal(rate) * abs(j)).exp() for j in range(-k, k + 1)]
        ideal = [Fraction(weight / sum(weights)) for weight in weights]
    apart = sum(abs(p - q) for p, q in zip(actual, ideal, strict=True)) / 2
    assert apart <= distribution.distance
    assert distribution.distance <= Fraction(1, 2**120)


def _small(distribution: BoundedGeometric) -> BoundedGeometric:
    """Enumeration over all counts is quadratic in k: keep the grid to what finishes."""
    if distribution.k > 900:
        pytest.skip("too many outcomes to enumerate; the closed form is checked at the other points")
    return distribution


def test_e_to_the_epsilon_is_approached_from_below() -> None:
    from tests.exact.divergence import exp_below

    for epsilon in (0.05, 1.0, 20.0):
        assert float(exp_below(epsilon)) == pytest.approx(exp(epsilon), rel=1e-15)
        assert Fraction(exp(epsilon)) - exp_below(epsilon) < Fraction(exp(epsilon)) / 10**14
