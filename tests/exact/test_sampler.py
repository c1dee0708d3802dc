"""The sampler draws from the distribution it states: proven by running it on every kind of word it can meet.

Each comparison splits the 2^128 words into intervals. Giving `draw` one word of every interval, in every combination, and
weighting by the intervals' lengths gives the exact distribution of the very code that runs in production.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise, product
from math import prod

import numpy as np
import pytest

from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.noise import WORD_BITS, BoundedGeometric, Noise, Words

ALL_WORDS = 2**WORD_BITS


class WordsAsGiven(Noise):
    """Hands out chosen words; identifiers are row numbers."""

    def __init__(self, rows: Sequence[tuple[int, ...]]) -> None:
        table = np.array([[(word >> 64, word % 2**64) for word in row] for row in rows], dtype=np.uint64)
        self._table = table

    def words(self, ids: Ids, count: int) -> Iterator[Words]:
        assert count == self._table.shape[1]
        chosen = self._table[ids[:, 0].astype(np.int64)]
        for position in range(count):
            yield chosen[:, position, 0], chosen[:, position, 1]


def intervals(thresholds: set[int]) -> list[tuple[int, int]]:
    """(first word, length) of the parts that the thresholds cut the words into."""
    edges = sorted({0, *thresholds, ALL_WORDS})
    return [(low, high - low) for low, high in pairwise(edges) if high > low]


def drawn_distribution(distribution: BoundedGeometric) -> list[Fraction]:
    not_zero, free, edge = distribution._thresholds
    # Words are drawn in this order: zero or not, the sign, then the bits from the highest.
    sign = [(0, ALL_WORDS // 2), (1 << 64, ALL_WORDS // 2)]
    bits = [intervals({free[b], edge[b]}) for b in reversed(range(distribution.bits))]
    combinations = list(product(intervals({not_zero}), sign, *bits))
    rows = [tuple(first for first, _ in combination) for combination in combinations]
    ids = np.zeros((len(rows), 2), dtype=np.uint64)
    ids[:, 0] = np.arange(len(rows))
    drawn = distribution.draw(WordsAsGiven(rows), ids)
    masses = [Fraction(0)] * (2 * distribution.k + 1)
    for value, combination in zip(drawn, combinations, strict=True):
        masses[int(value) + distribution.k] += Fraction(
            prod(length for _, length in combination), ALL_WORDS ** len(combination)
        )
    return masses


@pytest.mark.parametrize("rate", ["0.01", "0.3333333333", "1", "4"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 7, 8, 9, 16, 33, 61])
def test_the_code_draws_exactly_from_the_distribution_it_states(rate: str, k: int) -> None:
    distribution = BoundedGeometric(Decimal(rate), k)
    assert drawn_distribution(distribution) == distribution.pmf()


def test_the_sign_is_a_fair_bit_of_the_high_half() -> None:
    # The two halves of the sign's words are told apart by the lowest bit of the high half: equally many words each.
    distribution = BoundedGeometric(Decimal(1), 1)
    not_zero, _, _ = distribution._thresholds
    rows = [(0, 0), (0, 1 << 64), (0, 2 << 64), (0, 3 << 64), (not_zero, 0), (not_zero, 1 << 64)]
    ids = np.zeros((len(rows), 2), dtype=np.uint64)
    ids[:, 0] = np.arange(len(rows))
    assert distribution.draw(WordsAsGiven(rows), ids).tolist() == [1, -1, 1, -1, 0, 0]


def test_every_draw_costs_the_same_words_whatever_is_drawn() -> None:
    # WordsAsGiven asserts the number of words that are asked for; here they lead to the extremes of the range.
    distribution = BoundedGeometric(Decimal("0.1"), 21)
    rows = [(0,) * (distribution.bits + 2), (ALL_WORDS - 1,) * (distribution.bits + 2)]
    ids = np.array([[0, 0], [1, 0]], dtype=np.uint64)
    assert distribution.draw(WordsAsGiven(rows), ids).tolist() == [21, 0]


@pytest.mark.parametrize(("rate", "k"), [("0", 1), ("-1", 1), ("1", 0)])
def test_impossible_noise_is_refused(rate: str, k: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        BoundedGeometric(Decimal(rate), k)
