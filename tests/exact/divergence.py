"""Exact arithmetic for privacy claims: distributions as fractions, the hockey-stick divergence as an upper bound.

e^epsilon is irrational, so it is replaced by a fraction just below it: the divergence computed with it is never too small.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, product
from math import isnan, lcm, prod
from zlib import crc32

import numpy as np
import pyarrow as pa

from tidegate.mechanisms.keyed import Ids, KeyedHash
from tidegate.mechanisms.mechanism import PerKeyMechanism
from tidegate.mechanisms.noise import WORD_BITS, BoundedGeometric, Noise, Words
from tidegate.mechanisms.table import ExactTable, Rows

ALL_WORDS = 2**WORD_BITS


@dataclass(frozen=True)
class Distribution:
    """Masses as whole numbers over a common total: exact, and much faster than fractions."""

    mass: Mapping[Hashable, int]
    total: int


def common(probabilities: Sequence[Fraction]) -> tuple[list[int], int]:
    """Numerators over the common denominator."""
    total = lcm(*(p.denominator for p in probabilities))
    return [p.numerator * (total // p.denominator) for p in probabilities], total


def exp_below(epsilon: float) -> Fraction:
    """A fraction below e^epsilon, by less than one part in 10^60."""
    with localcontext() as context:
        context.prec = 80
        exact = Decimal(repr(epsilon)).exp()
        places = Decimal(1).scaleb(exact.adjusted() - 60)
        return Fraction(exact.quantize(places, rounding=ROUND_FLOOR))


def hockey_stick(p: Distribution, q: Distribution, epsilon: float) -> Fraction:
    """The smallest delta with P(S) <= e^epsilon Q(S) + delta for every set S."""
    assert p.total == q.total
    factor = exp_below(epsilon)
    excess = 0
    for outcome, mass in p.mass.items():
        excess += max(0, mass * factor.denominator - q.mass.get(outcome, 0) * factor.numerator)
    return Fraction(excess, p.total * factor.denominator)


def delta_between(p: Distribution, q: Distribution, epsilon: float) -> Fraction:
    """Both directions."""
    return max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))


def release_of_one_key(noise: Sequence[Fraction], k: int, n: int, threshold: int | None = None) -> Distribution:
    """What is seen of a key with exact count n: a value above the threshold, or nothing."""
    threshold = k if threshold is None else threshold
    masses, total = common(noise)
    seen: dict[Hashable, int] = {}
    for j, mass in zip(range(-k, k + 1), masses, strict=True):
        # A key that nobody touched is not in the table and gets no draw at all.
        outcome: Hashable = n + j if n > 0 and n + j > threshold else None
        seen[outcome] = seen.get(outcome, 0) + mass
    return Distribution(seen, total)


def joint(parts: Sequence[Distribution]) -> Distribution:
    """Independent keys side by side."""
    return Distribution(
        {
            outcomes: prod(part.mass[outcome] for part, outcome in zip(parts, outcomes, strict=True))
            for outcomes in product(*(part.mass for part in parts))
        },
        prod(part.total for part in parts),
    )


@dataclass(frozen=True)
class Odds:
    """Two distributions side by side. Outcomes with the same odds are merged: no divergence tells them apart."""

    masses: tuple[tuple[int, int], ...]
    total: int

    @staticmethod
    def merged(masses: Iterable[tuple[int, int]], total: int) -> Odds:
        found: dict[Fraction | None, tuple[int, int]] = {}
        for here, there in masses:
            if here or there:
                ratio = Fraction(here, there) if there else None
                before = found.get(ratio, (0, 0))
                found[ratio] = (before[0] + here, before[1] + there)
        return Odds(tuple(found.values()), total)

    def beside(self, other: Odds) -> Odds:
        """An independent key more."""
        both = ((p1 * p2, q1 * q2) for (p1, q1), (p2, q2) in product(self.masses, other.masses))
        return Odds(tuple(both), self.total * other.total)

    def one_way(self, epsilon: float) -> Fraction:
        """The smallest delta with P(S) <= e^epsilon Q(S) + delta for every set S."""
        factor = exp_below(epsilon)
        excess = sum(max(0, p * factor.denominator - q * factor.numerator) for p, q in self.masses)
        return Fraction(excess, self.total * factor.denominator)

    def turned(self) -> Odds:
        return Odds(tuple((q, p) for p, q in self.masses), self.total)

    def delta(self, epsilon: float) -> Fraction:
        """Both directions."""
        return max(self.one_way(epsilon), self.turned().one_way(epsilon))


def odds(p: Distribution, q: Distribution) -> Odds:
    assert p.total == q.total
    return Odds.merged(((p.mass.get(o, 0), q.mass.get(o, 0)) for o in {**p.mass, **q.mass}), p.total)


def together(keys: Sequence[Odds]) -> Odds:
    """Independent keys, as what they do to the odds of everything that is seen."""
    whole, *others = keys
    for place, other in enumerate(others):
        if place:
            whole = Odds.merged(whole.masses, whole.total)
        whole = whole.beside(other)
    return whole


class DrawsAsGiven(Noise):
    """Words that lead the sampler to chosen draws; identifiers are row numbers."""

    def __init__(self, draws: Sequence[int]) -> None:
        self._draws = np.array(draws, dtype=np.int64)

    def words(self, ids: Ids, count: int) -> Iterator[Words]:
        drawn = self._draws[ids[:, 0].astype(np.int64)]
        most, nothing = np.uint64(2**64 - 1), np.uint64(0)
        yield _both_halves(np.where(drawn == 0, most, nothing))
        yield _both_halves((drawn < 0).astype(np.uint64))
        magnitude = np.maximum(np.abs(drawn) - 1, 0)
        for bit in reversed(range(count - 2)):
            yield _both_halves(np.where(magnitude >> bit & 1, nothing, most))


def _both_halves(half: Ids) -> Words:
    return half, half


def row_numbers(count: int, kind: str = "key") -> Ids:
    """Identifiers that say the row, and tell keys of one kind from those of another."""
    ids = np.zeros((count, 2), dtype=np.uint64)
    ids[:, 0] = np.arange(count)
    ids[:, 1] = crc32(kind.encode())
    return ids


@lru_cache(maxsize=8)
def masses_of(noise: BoundedGeometric) -> tuple[tuple[int, ...], int]:
    masses, total = common(noise.pmf())
    return tuple(masses), total


def names(kind: str, count: int) -> list[str]:
    return [f"{kind} {number}" for number in range(count)]


def released_with_every_draw(gate: PerKeyMechanism, k: int, n: int, kind: str = "key") -> list[Hashable]:
    """What the gate's own `release` shows of a key with exact count n for the draws -k..k: (value, low, high) or None.

    Each draw has a row and a key of its own, all of the same kind, so that it is known which draw showed what.
    """
    rows = 2 * k + 1
    keys = names(kind, rows)
    table = ExactTable(pa.array(keys), np.full(rows, n, dtype=np.int64))
    shown = gate.release(table, row_numbers(rows, kind), DrawsAsGiven(range(-k, k + 1)))
    found = as_rows(shown)
    assert len({key for key, *_ in found}) == len(shown)
    said = {key: outcome for key, *outcome in found}
    return [tuple(said[key]) if key in said else None for key in keys]


def seen(
    gate: PerKeyMechanism, noise: BoundedGeometric, n: int | None, kind: str = "key", *, kept: bool = False
) -> Distribution:
    """The distribution of what is seen of a key with exact count n, or, with None, of one that is not in the table.

    With `kept`, only whether the key appears is looked at.
    """
    masses, total = masses_of(noise)
    if n is None:
        return Distribution({None: total}, total)
    found: dict[Hashable, int] = {}
    for outcome, mass in zip(released_with_every_draw(gate, noise.k, n, kind), masses, strict=True):
        what = outcome is not None if kept else outcome
        found[what] = found.get(what, 0) + mass
    return Distribution(found, total)


def holds(outcome: Hashable, n: int) -> bool:
    """A range was shown, and the exact count is in it."""
    if not isinstance(outcome, tuple):
        return False
    _, low, high = outcome
    return bool(low <= n <= high)


def as_rows(rows: Rows) -> set[tuple[str, float | None, float | None, float | None]]:
    """Rows as a set, what is not said as None."""
    columns = ([None if isnan(x) else x for x in column.tolist()] for column in (rows.values, rows.low, rows.high))
    return set(zip(rows.keys.to_pylist(), *columns, strict=True))


def assert_release_knows_no_order_and_no_shards(
    gate: PerKeyMechanism, counts: Mapping[str, int], order: Sequence[int], cuts: set[int]
) -> None:
    """The same rows come out whatever the order of the table and however it is cut into shards."""
    keys, values = pa.array(list(counts), pa.string()), np.array(list(counts.values()), dtype=np.int64)
    ids = KeyedHash(b"k" * 32)(keys)
    whole = ExactTable(keys, values)
    expected = as_rows(gate.release(whole, ids, Noise(b"x" * 32)))
    rows = np.array(order, dtype=np.int64)
    shuffled = gate.release(whole.take(rows), ids[rows], Noise(b"x" * 32))
    assert as_rows(shuffled) == expected
    shards = [rows[begin:end] for begin, end in pairwise([0, *sorted(cuts), len(rows)])]
    parts = [gate.release(whole.take(shard), ids[shard], Noise(b"x" * 32)) for shard in shards]
    assert as_rows(Rows.concat(parts)) == expected
    assert sum(len(part) for part in parts) == len(shuffled) == len(expected)
