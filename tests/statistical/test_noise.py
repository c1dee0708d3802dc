"""What is drawn follows the exact distribution. Each test states how often it fails by chance; seeds are fixed, so a failure
is a change of the code, never of luck."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tests.statistical.chi_squared import miss_probability, p_value
from tidegate.mechanisms.keyed import Ids, KeyedHash
from tidegate.mechanisms.noise import BoundedGeometric, Noise

SURE = 1e-9
"""Probability of a false alarm of each test below; a noise scale that is 10% off is missed with less than 1e-9 as well."""
DRAWS = 400_000


def identifiers(number: int) -> Ids:
    return KeyedHash(bytes(32))(pa.array([str(i) for i in range(number)]))


def histogram(
    drawn: np.ndarray[tuple[int, ...], np.dtype[np.int64]], k: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.bincount(drawn + k, minlength=2 * k + 1)


@pytest.mark.parametrize(("rate", "k"), [("1", 11), ("0.3333333333333333", 61), ("0.05", 802), ("3", 4), ("0.01", 5)])
def test_draws_follow_the_exact_distribution(rate: str, k: int) -> None:
    distribution = BoundedGeometric(Decimal(rate), k)
    drawn = distribution.draw(Noise(b"n" * 32), identifiers(DRAWS))
    assert p_value(histogram(drawn, k), [float(p) for p in distribution.pmf()]) > SURE


@pytest.mark.parametrize("factor", ["0.9", "1.1"])
@pytest.mark.parametrize(("rate", "k"), [("1", 11), ("0.3333333333333333", 61), ("0.05", 802)])
def test_noise_a_tenth_too_small_or_too_large_is_rejected(rate: str, k: int, factor: str) -> None:
    drawn = BoundedGeometric(Decimal(rate) / Decimal(factor), k).draw(Noise(b"n" * 32), identifiers(DRAWS))
    expected = [float(p) for p in BoundedGeometric(Decimal(rate), k).pmf()]
    assert p_value(histogram(drawn, k), expected) < SURE
    actual = [float(p) for p in BoundedGeometric(Decimal(rate) / Decimal(factor), k).pmf()]
    assert miss_probability(actual, expected, DRAWS, SURE) < SURE


def test_draws_of_different_keys_and_seeds_are_independent() -> None:
    # Under independence the sample correlation of n pairs is about normal with deviation 1/sqrt(n): 6.5 of them, 1e-10.
    distribution = BoundedGeometric(Decimal("0.3"), 60)
    ids = identifiers(DRAWS)
    one = distribution.draw(Noise(b"n" * 32), ids)
    other_seed = distribution.draw(Noise(b"m" * 32), ids)
    for left, right in ((one[:-1], one[1:]), (one, other_seed), (one, np.roll(one, 1 << 14))):
        assert abs(np.corrcoef(left, right)[0, 1]) < 6.5 / np.sqrt(len(left))


def test_a_draw_depends_on_its_key_and_seed_alone() -> None:
    # Order, number and place of the other keys do not matter; this is what makes shards and retries harmless.
    distribution, ids = BoundedGeometric(Decimal("0.3"), 60), identifiers(50_000)
    all_at_once = distribution.draw(Noise(b"n" * 32), ids)
    order = np.random.default_rng(0).permutation(len(ids))
    shuffled = distribution.draw(Noise(b"n" * 32), ids[order])
    assert np.array_equal(shuffled, all_at_once[order])
    assert np.array_equal(distribution.draw(Noise(b"n" * 32), ids[17:23]), all_at_once[17:23])


def test_words_at_different_positions_are_unrelated_even_for_neighbouring_identifiers() -> None:
    # Identifiers that differ in the bits where the position goes must not share words.
    ids = np.zeros((1024, 2), dtype=np.uint64)
    ids[:, 0] = np.arange(1024)
    high = np.stack([word[0] for word in Noise(b"n" * 32).words(ids, 8)])
    assert len(np.unique(high)) == high.size


def test_identifiers_are_uniform_bits() -> None:
    # Each of 128 bits over n identifiers is binomial(n, 1/2): 7 deviations either way, 3e-10 for all of them together.
    ids = identifiers(100_000)
    ones = np.unpackbits(ids.view(np.uint8), axis=1).sum(axis=0, dtype=np.int64)
    assert np.all(np.abs(ones - 50_000) < 7 * np.sqrt(100_000) / 2)
