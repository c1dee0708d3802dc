"""What a release promises, in numbers and in words, known before any data is read."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, log1p


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy for one unit's whole contribution to one window.

    Neighbouring inputs differ by adding or removing everything one unit did in one window, of which at most
    `keys` keys and at most `per_key` in each are ever counted.

    A mechanism that treats every key on its own, spending epsilon/keys on each, says so with `a_key`, the delta of a
    single key; then fewer keys cost less. A gate for which a key that only one neighbour has costs another delta than a
    key that both have gives that one as `a_new_key`.
    """

    epsilon: float
    delta: float
    keys: int
    per_key: float
    a_key: float | None = None
    a_new_key: float | None = None

    def log_kept(self, keys: int) -> float:
        """ln(1 - delta) when only so many keys change."""
        if self.a_key is not None:
            return keys * _log_one_minus(self.a_key)
        return _log_one_minus(self.delta) if keys else 0.0

    @property
    def new_key(self) -> float | None:
        return self.a_key if self.a_new_key is None else self.a_new_key

    def beside(self, other: Guarantee) -> Guarantee:
        """Both at once, each key in the one or in the other: a unit's keys cost no more than in the dearer one."""
        if self.a_key is None or other.a_key is None or self.keys != other.keys or self.epsilon != other.epsilon:
            raise ValueError(
                "mechanism must treat every key on its own to stand beside public keys; write truncated-geometric"
            )
        return Guarantee(
            self.epsilon,
            max(self.delta, other.delta),
            self.keys,
            max(self.per_key, other.per_key),
            max(self.a_key, other.a_key),
            max(self.new_key or 0.0, other.new_key or 0.0),
        )

    def words(self) -> str:
        """The promise as a sentence for people."""
        return (
            f"Whatever is seen in one window's release, the odds between any two explanations that differ only in what "
            f"one unit did in that window change by a factor of at most e^{self.epsilon:g} "
            f"({factor_words(self.epsilon)}), except with probability {self.delta:.3g}; "
            f"a unit counts in at most {self.keys} {plural('key', self.keys)} a window, "
            f"at most {self.per_key:g} in each."
        )


def compose(gate: Guarantee, *then: Guarantee) -> Guarantee:
    """The guarantee of a gate and of what runs downstream on the exact table of the keys that passed.

    Epsilons add up. Deltas do so only in part. Let m of a unit's keys be new, which means that nobody else stands behind
    them. A new key that appears gives the unit away, whatever comes after; one that does not appear is not there for the
    mechanisms downstream. So

        delta = max over m <= keys of 1 - (1 - new)^m (1 - old)^(keys - m) (1 - delta2(keys - m))

    where `new` and `old` are what a new and an old key cost at the gate, and delta2(j) what j changed keys cost
    downstream. In the other direction the release without a new key is likelier by 1/(1 - new), and that must fit into
    the epsilon that the key does not use otherwise: -ln(1 - new) <= epsilon/keys. Raises ValueError where it does not.
    """
    if not then:
        return gate
    epsilon = gate.epsilon + sum(part.epsilon for part in then)
    if gate.a_key is None:  # nothing is known about single keys: the plain rule
        kept = gate.log_kept(1) + sum(part.log_kept(gate.keys) for part in then)
    else:
        new = gate.new_key or 0.0
        unused = gate.epsilon + sum(part.epsilon for part in then if part.a_key is not None)
        if -_log_one_minus(new) > unused / gate.keys:
            raise ValueError(
                f"delta must be small next to epsilon when mechanisms follow the gate, and a new key appears with "
                f"probability {new:.3g}, more than 1 - exp(-{unused:g}/{gate.keys}); write a smaller delta"
            )
        kept = min(
            m * _log_one_minus(new) + gate.log_kept(gate.keys - m) + sum(part.log_kept(gate.keys - m) for part in then)
            # Every term is linear in m, but for the step where no key is left to change.
            for m in {0, gate.keys - 1, gate.keys}
        )
    return Guarantee(epsilon, -expm1(kept), gate.keys, gate.per_key)


def share(delta: float, keys: int) -> float:
    """The delta of each of so many independent keys that gives `delta` for all of them."""
    return -expm1(log1p(-delta) / keys)


def _log_one_minus(delta: float) -> float:
    return log1p(-delta) if delta < 1 else float("-inf")


def plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def factor_words(epsilon: float) -> str:
    """e^epsilon as people read it."""
    return f"{exp(epsilon):.3g}" if epsilon < 700 else "more than 1e304"
