"""What the literature's closed formulas say, beside the smallest numbers that are really private.

Published bounds are made to be short, not tight: a threshold taken from one is safe, and hides keys that could have been
shown. Here both stand side by side, each computed, so that a page or a plan that quotes a figure can be held to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, expm1, log, log1p

from tidegate.mechanisms.geometric_threshold import GeometricThreshold
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.optimal_selection import OptimalSelection
from tidegate.mechanisms.range_release import RangeRelease
from tidegate.mechanisms.truncated_geometric import TruncatedGeometric

EPSILON, DELTA = 0.05, 1e-19
"""The setting in which the formulas below are usually quoted: one key a unit, once."""

_GAMMAS = (1.0, 0.1, 0.01)
_UNIVERSES = (1, 10**9)
_SPARSE_EPSILON, _SPARSE_BETA, _SPARSE_KEYS = 0.1, 0.01, 10**12


@dataclass(frozen=True)
class Figure:
    """One number of the literature and the exact one that takes its place."""

    at: str
    what: str
    formula: str
    said: float
    exact: int
    by: str


def threshold(epsilon: float, delta: float, gamma: float) -> float:
    """A threshold for geometric noise with slack gamma for keys that come and go: 1 + (1 + gamma) ln(1/delta) / epsilon."""
    return 1 + (1 + gamma) * log(1 / delta) / epsilon


def range_width(epsilon: float, delta: float, keys: int) -> float:
    """A half-width that pays for every key that could ever be: (ln(keys) + ln(1/delta)) / epsilon."""
    return (log(keys) + log(1 / delta)) / epsilon


def sparsity(epsilon: float, beta: float, keys: int) -> float:
    """A threshold that so many empty keys all stay below but with probability beta: ln(keys/beta) / epsilon."""
    return log(keys / beta) / epsilon


def exact_sparsity(epsilon: float, beta: float, keys: int) -> int:
    """The smallest T for which geometric noise on so many empty keys exceeds T nowhere, with probability 1 - beta.

    Pr[G > T] = a^(T+1) / (1+a), a = exp(-epsilon), and keys are independent, so (1 - Pr[G > T])^keys >= 1 - beta.
    """

    def kept(t: int) -> float:
        return keys * log1p(-exp(-epsilon * (t + 1)) / (1 + exp(-epsilon)))

    found = max(0, ceil(sparsity(epsilon, beta, keys)))
    while kept(found) < log1p(-beta):
        found += 1
    while found and kept(found - 1) >= log1p(-beta):
        found -= 1
    return found


def claimed_least_count(chance: float, epsilon: float, delta: float) -> float:
    """What a key shown with this chance is said to need: ln(chance/delta + 1) / epsilon - 1. Too much, below ln 2."""
    return log1p(chance / delta) / epsilon - 1


def least_count(chance: float, epsilon: float, delta: float) -> float:
    """What it does need, whatever the mechanism: ln(1 + (chance/delta) (e^epsilon - 1)) / epsilon units.

    A key that nobody stands behind is shown with chance 0, and one unit more takes p to at most e^epsilon p + delta.
    """
    return log1p(chance / delta * expm1(epsilon)) / epsilon if epsilon < 700 else 1.0


def least_units(chance: float, epsilon: float, delta: float) -> int:
    """`least_count` in whole units, and for chances above a half also by how slowly the chance to be hidden can fall.

    One unit more takes the chance q to be hidden to at least (q - delta) e^-epsilon. A key is below a half with one unit
    less than it takes to reach a half, and from there needs as many as it takes q to fall.
    """
    fewest = _whole(least_count(chance, epsilon, delta))
    if chance <= 0.5 or epsilon >= 700:
        return fewest
    rest = delta / expm1(epsilon)
    falling = log((0.5 + rest) / (1 - chance + rest)) / epsilon
    return max(fewest, _whole(least_count(0.5, epsilon, delta)) + _whole(falling) - 1)


def _whole(units: float) -> int:
    """Rounded up, but for the last digits of floating point: a limit must not claim too much."""
    return max(1, ceil(units - 1e-9 * max(1.0, units)))


def figures() -> list[Figure]:
    """The literature's own numbers and the exact ones."""
    one, setting = Bounds(1, 1), {"epsilon": EPSILON, "delta": DELTA}
    at = f"epsilon {EPSILON:g}, delta {_power(DELTA)}"
    found = []
    formula, exact = "1 + (1 + gamma) ln(1/delta) / epsilon", GeometricThreshold(one, **setting).threshold
    for gamma in _GAMMAS:
        said = threshold(EPSILON, DELTA, gamma)
        found.append(Figure(at, f"threshold, gamma {gamma:g}", formula, said, exact, "geometric-threshold"))
    said, exact = threshold(EPSILON, DELTA, 0), TruncatedGeometric(one, **setting).half_width
    found.append(
        Figure(at, "count to exceed, gamma 0", "1 + ln(1/delta) / epsilon", said, exact, "truncated-geometric")
    )
    said, formula = claimed_least_count(0.5, EPSILON, DELTA), "ln(1/(2 delta) + 1) / epsilon - 1"
    exact = int(OptimalSelection(one, **setting).describe()["appears_half_the_time_at"])
    found.append(Figure(at, "least count shown half the time", formula, said, exact, "optimal-selection"))
    formula, exact = "(ln(d) + ln(1/delta)) / epsilon", RangeRelease(one, **setting, keys=["any"]).half_width
    for keys in _UNIVERSES:
        said, what = range_width(EPSILON, DELTA, keys), f"half-width of a range, d = {_power(keys)} keys"
        found.append(Figure(at, what, formula, said, exact, "range, for any d"))
    given = _SPARSE_EPSILON, _SPARSE_BETA, _SPARSE_KEYS
    at = f"epsilon {_SPARSE_EPSILON:g}, beta {_SPARSE_BETA:g}"
    what, by = f"largest noise on n = {_power(_SPARSE_KEYS)} empty keys", "the smallest T that holds"
    found.append(Figure(at, what, "ln(n/beta) / epsilon", sparsity(*given), exact_sparsity(*given), by))
    return found


def markdown(table: Sequence[Figure]) -> str:
    """The figures as they stand in the documents."""
    lines = ["| at | what | the literature's formula | says | exact | by |", "|---|---|---|---:|---:|---|"]
    lines += [
        f"| {row.at} | {row.what} | `{row.formula}` | {row.said:,.2f} | {row.exact:,} | {row.by} |" for row in table
    ]
    return "\n".join(lines) + "\n"


def _power(number: float) -> str:
    return f"{number:g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
