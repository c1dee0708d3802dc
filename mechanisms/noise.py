"""The only source of noise: AES words addressed by (seed, key, position), and a bitwise sampler over them.

A key's noise is a function of the window's seed and of the key alone, so shards, bundles, order and retries cannot change
it; the seed covers the whole window's exact table, so two versions of a window share no draw.

`BoundedGeometric` draws j in [-k, k] with probability proportional to exp(-rate |j|). Its magnitude is drawn bit by bit,
highest first: while the bits so far are below those of the largest magnitude, a bit is 1 with probability
1/(1 + exp(rate 2^b)) whatever the others are; while they are equal to them, the probability is that of the part of the
range that is left. So nothing is ever rejected, every draw costs the same words and the same operations, and no branch or
address depends on a drawn value. Every bit compares one 128-bit word with one 128-bit threshold: integers only.

`Coins` fall with given probabilities, one word against one threshold each, for mechanisms that decide rather than add.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tidegate.mechanisms.keyed import BlockCipher, Ids, derive_key
from tidegate.mechanisms.table import Ints

WORD_BITS = 128
_DIGITS = 80  # decimal digits behind a threshold, against the 39 that 128 bits can show
_CHUNK = 1 << 14  # rows drawn at a time: their words stay in the processor's cache
_HALF = 1 << 64

Words = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
Bits = npt.NDArray[np.bool_]


class Noise:
    """The random words of one mechanism in one window."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._cipher = BlockCipher(seed)

    def part(self, number: int) -> Noise:
        """Words of their own, for a mechanism that draws more than once a key."""
        return Noise(derive_key(self._seed, "part", number))

    def words(self, ids: Ids, count: int) -> Iterator[Words]:
        """`count` independent 128-bit words for every identifier, as (high, low) halves, one position after the other."""
        for position in range(count):
            block = ids.copy()
            block[:, 1] ^= np.uint64(position)
            drawn = self._cipher(block)
            yield drawn[:, 0], drawn[:, 1]


@dataclass(frozen=True)
class BoundedGeometric:
    """Integer noise on [-k, k], Pr[j] proportional to exp(-rate |j|)."""

    rate: Decimal
    k: int

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"the rate of the noise must be above 0, not {self.rate}")
        if self.k < 1:
            raise ValueError(f"the largest noise must be at least 1, not {self.k}")

    @property
    def bits(self) -> int:
        """Bits of the largest magnitude but one: a magnitude is 1 + [0, k-1]."""
        return (self.k - 1).bit_length()

    @property
    def distance(self) -> Fraction:
        """How far, in total variation, a draw may be from the ideal distribution: each threshold is off by at most
        half a unit of 2^-128, and there are bits + 1 comparisons in a draw (the sign is a fair bit, exactly)."""
        return Fraction(self.bits + 1, 2 ** (WORD_BITS + 1))

    @cached_property
    def _thresholds(self) -> tuple[int, list[int], list[int]]:
        """(not zero, bit b while free, bit b while at the edge), each a probability times 2^128, rounded.

        Decimal arithmetic, since it gives the same digits on every machine, unlike a platform's exp.
        """
        with localcontext() as context:
            context.prec = _DIGITS + self.k.bit_length()
            a = (-self.rate).exp()
            tail = (-self.rate * (self.k + 1)).exp()
            zero = (1 - a) / (1 + a - 2 * tail)
            free, edge = [], []
            for b in range(self.bits):
                one = (-self.rate * 2**b).exp()
                free.append(_threshold(one / (1 + one)))
                # What is left of the range while the higher bits agree with those of k-1: values 0..rest.
                rest = (self.k - 1) % 2 ** (b + 1)
                beyond = (-self.rate * (rest + 1)).exp()
                edge.append(_threshold((one - beyond) / (1 - beyond)) if rest >= 2**b else 0)
            return _threshold(1 - zero), free, edge

    def draw(self, noise: Noise, ids: Ids) -> Ints:
        """One draw for every identifier."""
        drawn = np.empty(len(ids), dtype=np.int64)
        for begin in range(0, len(ids), _CHUNK):
            drawn[begin : begin + _CHUNK] = self._draw_chunk(noise, ids[begin : begin + _CHUNK])
        return drawn

    def _draw_chunk(self, noise: Noise, ids: Ids) -> Ints:
        not_zero, free, edge = self._thresholds
        words = noise.words(ids, self.bits + 2)
        nonzero = _below(next(words), not_zero)
        sign = 1 - 2 * (next(words)[0] & np.uint64(1)).astype(np.int64)
        magnitude: Ints = np.zeros(len(ids), dtype=np.int64)
        at_edge: Bits = np.ones(len(ids), dtype=np.bool_)
        for b in reversed(range(self.bits)):
            word = next(words)
            bit = _below(word, free[b]) & ~at_edge
            if (self.k - 1) >> b & 1:  # public: depends on the parameters only
                bit |= _below(word, edge[b]) & at_edge
                at_edge &= bit
            magnitude = (magnitude << 1) | bit
        drawn: Ints = nonzero * sign * (1 + magnitude)
        return drawn

    def pmf(self) -> list[Fraction]:
        """The exact distribution of `draw` over -k..k given uniform words, from the same integers it compares with."""
        unit = 2**WORD_BITS
        not_zero, free, edge = self._thresholds
        half = [Fraction(not_zero, 2 * unit) * self._magnitude_probability(m, free, edge, unit) for m in range(self.k)]
        return [*reversed(half), Fraction(unit - not_zero, unit), *half]

    def _magnitude_probability(self, value: int, free: list[int], edge: list[int], unit: int) -> Fraction:
        numerator, at_edge = 1, True
        for b in reversed(range(self.bits)):
            one = edge[b] if at_edge else free[b]
            bit = value >> b & 1
            numerator *= one if bit else unit - one
            at_edge = at_edge and bit == ((self.k - 1) >> b & 1)
        return Fraction(numerator, unit**self.bits)


def reach(rate: Decimal) -> int:
    """How far geometric noise must reach so that what is cut off is below 2^-128: noise without an end, but for that."""
    with localcontext() as context:
        context.prec = _DIGITS
        return int((WORD_BITS * Decimal(2).ln() / rate).to_integral_value(ROUND_CEILING))


def cut_off(rate: Decimal, k: int) -> Fraction:
    """What noise without an end has beyond [-k, k], at most."""
    with localcontext() as context:
        context.prec = _DIGITS
        a = (-rate).exp()
        return Fraction(2 * a ** (k + 1) / (1 + a))


class Coins:
    """Coins that fall with the probabilities thresholds[i] / 2^128: one word against one threshold."""

    def __init__(self, thresholds: Sequence[int]) -> None:
        self.thresholds = tuple(thresholds)
        capped = [min(threshold, 2**WORD_BITS - 1) for threshold in thresholds]
        self._high = np.array([threshold // _HALF for threshold in capped], dtype=np.uint64)
        self._low = np.array([threshold % _HALF for threshold in capped], dtype=np.uint64)
        self._sure = np.array([threshold >= 2**WORD_BITS for threshold in thresholds], dtype=np.bool_)
        self._some_sure = bool(self._sure.any())

    def toss(self, word: Words, which: Ints) -> Bits:
        """For every word, the fall of the coin with that index."""
        high, low = word
        top = self._high.take(which)
        fallen: Bits = high < top
        equal = high == top
        if equal.any():  # one in 2^64: the lower halves decide
            fallen |= equal & (low < self._low.take(which))
        if self._some_sure:
            fallen |= self._sure.take(which)
        return fallen


def decaying_coins(rate: Decimal, most: int) -> list[int]:
    """exp(-rate g) for g = 0, 1, ... in units of 2^-128, rounded, down to the last that is not 0 (which then follows).

    Raises ValueError if there are more than `most` of them.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        if WORD_BITS * Decimal(2).ln() / rate > most:
            raise ValueError(f"epsilon must be larger: a step of the count would matter by only {float(rate):.3g}")
        factor, weight = (-rate).exp(), Decimal(2**WORD_BITS)
        found = []
        while weight >= Decimal("0.5"):
            found.append(int(weight.to_integral_value()))
            weight *= factor
        return [*found, 0]


def _threshold(probability: Decimal) -> int:
    return int((probability * 2**WORD_BITS).to_integral_value())


def _below(word: Words, threshold: int) -> Bits:
    """word < threshold for 128-bit numbers given as halves."""
    high, low = word
    top, bottom = np.uint64(threshold // _HALF), np.uint64(threshold % _HALF)
    below: Bits = (high < top) | ((high == top) & (low < bottom))
    return below
