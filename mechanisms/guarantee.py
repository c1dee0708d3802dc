"""What a release promises, in numbers and in words, known before any data is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy for one unit's whole contribution to one window.

    Neighbouring inputs differ by adding or removing everything one unit did in one window, of which at most
    `keys` keys and at most `per_key` in each are ever counted.
    """

    epsilon: float
    delta: float
    keys: int
    per_key: int

    def words(self) -> str:
        """The promise as a sentence for people."""
        return (
            f"Whatever is seen in one window's release, the odds between any two explanations that differ only in what "
            f"one unit did in that window change by a factor of at most e^{self.epsilon:g} "
            f"({factor_words(self.epsilon)}), except with probability {self.delta:g}; "
            f"a unit counts in at most {self.keys} {plural('key', self.keys)} a window, "
            f"at most {self.per_key} in each."
        )


def compose(parts: Iterable[Guarantee]) -> Guarantee:
    """The guarantee of several mechanisms on the same window: epsilons and deltas add up.

    It holds although later mechanisms see which keys the gate let through: adaptive composition asks only that each is
    private for every fixed set of keys.
    """
    items = list(parts)
    if not items:
        raise ValueError("compose needs at least one guarantee; nothing was released")
    return Guarantee(
        epsilon=sum(g.epsilon for g in items),
        delta=min(1.0, sum(g.delta for g in items)),
        keys=max(g.keys for g in items),
        per_key=max(g.per_key for g in items),
    )


def plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def factor_words(epsilon: float) -> str:
    """e^epsilon as people read it."""
    return f"{exp(epsilon):.3g}" if epsilon < 700 else "more than 1e304"
