"""Utilities: a key's own count times a public weight decides whether it appears.

A weight says how much a key matters, or how safe it is to show: 0 keeps it out whatever its count, a whole number
multiplies its count before the gate looks at it, infinity lets it in always, zeros included (0 wins over infinity by
being the last word of whoever writes the list). Weights are part of the terms, never of the data.

Why it is private. Key i's utility is w(i) n(i), a function of its own count alone. One unit changes it by at most w(i)
c, so the inner gate, calibrated to the heaviest finite weight, keeps epsilon/keys on every key; a key of infinite
weight gets the noise of a public key, which keeps the same. A utility that looks at other keys too (a share, a rank) is
another matter: there a single unit moves every key's utility at once, and a bound on each alone says nothing about
their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isfinite, isinf
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mechanism import Bounds, Gate, Role, public_keys_of
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.public_keys import PublicKeys
from tidegate.mechanisms.table import ExactTable, Ints, Rows

LARGEST_WEIGHT = 1_000_000
_ALWAYS = -1


class Weighted:
    """A gate on utilities, made of a gate on counts."""

    role: ClassVar[Role] = "gate"

    def __init__(
        self,
        bounds: Bounds,
        make_gate: Callable[[Bounds], Gate],
        weights: Mapping[str, float],
        other_weight: float,
        *,
        epsilon: float,
        delta: float,
    ) -> None:
        self._others = _weight("other_weight", other_weight)
        if self._others == _ALWAYS:
            raise ValueError("other_weight must be finite, as nobody knows the other keys; write 1")
        self._weights = {_key(key): _weight(f"weights of {key!r}", weight) for key, weight in weights.items()}
        heaviest = max([self._others, *self._weights.values()])
        public = [key for key, weight in self._weights.items() if weight == _ALWAYS]
        if heaviest <= 0 and not public:
            raise ValueError("weights must let some key in, and all are 0; write a weight of 1 or more, or .inf")
        self._heaviest = max(1, heaviest)
        if public:
            bounds = bounds.without_total()
        self._gate = make_gate(
            Bounds(
                bounds.keys,
                bounds.per_key * self._heaviest,
                None if bounds.total is None else bounds.total * self._heaviest,
                None if bounds.swing is None else bounds.swing * self._heaviest,
            )
        )
        if public_keys_of(self._gate):
            raise ValueError("weights must belong to a gate that has no public keys of its own; leave them out")
        self._public = PublicKeys(bounds, epsilon=epsilon, delta=delta, keys=public) if public else None
        self.public = self._public.public if self._public else ()
        self._listed = pa.array(list(self._weights), pa.string())
        self._by_place = np.array([*self._weights.values(), self._others], dtype=np.int64)
        inner = self._gate.guarantee
        if self._public is not None:
            inner = inner.beside(self._public.guarantee)
        self.guarantee = replace(inner, per_key=bounds.per_key)

    def describe(self) -> Mapping[str, Any]:
        inner = dict(self._gate.describe())
        known = {} if self._public is None else {"public": dict(self._public.describe())}
        # Thresholds and widths hold for utilities; a key of weight w has its count within half_width / w.
        return {**inner, "heaviest_weight": self._heaviest, "other_weight": self._others, **known}

    def survival(self, n: int) -> float:
        """The chance of a key that has no weight of its own."""
        return self._gate.survival(n * self._others) if self._others else 0.0

    def admits(self, keys: pa.Array) -> npt.NDArray[np.bool_] | None:
        if self._others and 0 not in self._weights.values():
            return None
        admitted: npt.NDArray[np.bool_] = self._of(keys) != 0
        return admitted

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        weight = self._of(table.keys)
        finite = np.flatnonzero(weight > 0)
        weighed = ExactTable(table.keys.take(pa.array(finite)), table.counts[finite] * weight[finite])
        shown = _unweighed(self._gate.release(weighed, ids[finite], noise), self._of)
        if self._public is None:
            return shown
        always = np.flatnonzero(weight == _ALWAYS)
        return Rows.concat([shown, self._public.release(table.take(always), ids[always], noise)])

    def _of(self, keys: pa.Array) -> Ints:
        place = pc.index_in(keys, value_set=self._listed).fill_null(len(self._listed))
        found: Ints = self._by_place[place.to_numpy(zero_copy_only=False)]
        return found


def _unweighed(rows: Rows, weights_of: Callable[[pa.Array], Ints]) -> Rows:
    """Utilities back to counts. The exact count is whole, so the ends of its range can be rounded inwards."""
    weight = weights_of(rows.keys).astype(np.float64)
    return Rows(rows.keys, rows.values / weight, np.ceil(rows.low / weight), np.floor(rows.high / weight), rows.part)


def _key(key: Any) -> str:
    if not isinstance(key, str) or not key:
        raise ValueError(f"weights must be of keys that are texts, and {key!r} is none; write '{key}': 1")
    return key


def _weight(name: str, weight: Any) -> int:
    if isinstance(weight, float) and isinf(weight) and weight > 0:
        return _ALWAYS
    number = not isinstance(weight, bool) and isinstance(weight, (int, float)) and isfinite(weight)
    if not number or weight != int(weight) or not 0 <= weight <= LARGEST_WEIGHT:
        raise ValueError(f"{name} must be a whole number from 0 to {LARGEST_WEIGHT} or .inf, not {weight!r}; write 1")
    return int(weight)
