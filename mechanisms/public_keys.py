"""A gate for keys that are known beforehand: listed keys always appear, also with nothing behind them.

Which keys appear then says nothing, so there is no threshold; every listed key gets noise on [-k, k] (`calibration`), hence
its range for certain. Keys that are not listed are left out, or, if asked for, fall to a second gate. That costs nothing
more: a key has the one noise or the other, and either keeps epsilon/keys and the same delta a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.mechanisms.calibration import bounded_noise, key_delta
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.mechanism import Bounds, Gate, Role
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable, Rows

MOST_KEYS = 1_000_000
Mask = npt.NDArray[np.bool_]


class PublicKeys:
    """Publish n + j for every listed key; the others are for `otherwise`, the name of a gate, or for nobody."""

    role: ClassVar[Role] = "gate"

    def __init__(
        self, bounds: Bounds, *, epsilon: float, delta: float, keys: Sequence[str], otherwise: str | None = None
    ) -> None:
        self.public = key_list(keys)
        if otherwise is not None:
            bounds = bounds.without_total()
        self.distribution = bounded_noise(epsilon, delta, bounds)
        self.half_width = self.distribution.k
        a_key = key_delta(self.half_width, self.distribution.rate, min(bounds.per_key, bounds.l1))
        self._listed = Listed(self.public)
        self._otherwise = None if otherwise is None else _second_gate(otherwise, bounds, epsilon, delta)
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, bounds.per_key, a_key, 0.0)
        if self._otherwise is not None:
            self.guarantee = self._otherwise.guarantee.beside(self.guarantee)

    def describe(self) -> Mapping[str, Any]:
        second = {} if self._otherwise is None else {"otherwise": dict(self._otherwise.describe())}
        return {
            "public_keys": len(self.public),
            "half_width": self.half_width,
            "noise_rate": float(self.distribution.rate),
            **second,
        }

    def survival(self, n: int) -> float:
        """The chance of a key that is not listed; the others are sure to appear."""
        return 0.0 if self._otherwise is None else self._otherwise.survival(n)

    def admits(self, keys: pa.Array) -> Mask | None:
        return None if self._otherwise is not None else self._listed.among(keys)

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        listed = self._listed.in_table(table.keys, ids)
        where = np.flatnonzero(listed)
        values = (table.counts[where] + self.distribution.draw(noise, ids[where])).astype(np.float64)
        rows = Rows(table.keys.take(pa.array(where)), values, values - self.half_width, values + self.half_width)
        if self._otherwise is None or len(where) == len(table):
            return rows
        others = np.flatnonzero(~listed)
        return Rows.concat([rows, self._otherwise.release(table.take(others), ids[others], noise)])


class Listed:
    """Telling listed keys from others. Every window brings the same ones again, so what was looked up is remembered."""

    _MOST = 4096

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = pa.array(keys, pa.string())
        self._known: set[tuple[int, bytes]] = set()

    def among(self, keys: pa.Array) -> Mask:
        found: Mask = pc.is_in(keys, value_set=self._keys).to_numpy(zero_copy_only=False)
        return found

    def in_table(self, keys: pa.Array, ids: Ids) -> Mask:
        """For keys with their identifiers, whose sum tells one set of keys from another but with probability 2^-128."""
        mark = len(keys), ids.sum(axis=0, dtype=np.uint64).tobytes()
        if mark in self._known:
            return np.ones(len(keys), np.bool_)
        found = self.among(keys)
        if found.all() and len(self._known) < self._MOST:
            self._known.add(mark)
        return found


def key_list(keys: Any) -> tuple[str, ...]:
    """Distinct keys of a list."""
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not keys:
        raise ValueError(f"keys must be a list of keys, not {str(keys)[:40]!r}; write [one, two]")
    if len(keys) > MOST_KEYS:
        raise ValueError(f"keys must be at most {MOST_KEYS} keys, not {len(keys)}; write fewer")
    if not all(isinstance(key, str) and key for key in keys):
        strange = next(key for key in keys if not isinstance(key, str) or not key)
        raise ValueError(f"keys must be texts that are not empty, and {strange!r} is none; write '{strange}'")
    if len(set(keys)) < len(keys):
        seen: set[str] = set()
        twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"keys must name each key once, and {twice!r} is there twice; leave one out")
    return tuple(keys)


def _second_gate(name: str, bounds: Bounds, epsilon: float, delta: float) -> Gate:
    from tidegate.mechanisms.registry import MechanismError, build  # the registry looks up this class too

    if not isinstance(name, str) or name in ("public-keys", "range"):
        raise ValueError(
            f"otherwise must be a gate for keys that nobody listed, not {name!r}; write truncated-geometric"
        )
    try:
        return cast(Gate, build(name, ("gate",), bounds, {"epsilon": epsilon, "delta": delta}))
    except MechanismError as problem:
        raise ValueError(f"otherwise {problem}") from None
