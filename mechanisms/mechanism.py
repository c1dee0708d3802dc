"""What a mechanism is: the one interface between a window's exact table and what may be published of it.

A mechanism is given its parameters and the bounds on a unit's contribution, knows its guarantee before it sees data, and
releases in three steps that map onto any distributed engine:

    summarize(table) for every shard   →   merge, in any order   →   release(summary, noise), the only step that draws

A *per-key* mechanism needs no merging: every shard is released on its own. A *gate* is a per-key mechanism that decides
which keys appear. Mechanisms are registered under the entry point group `tidegate.mechanisms` (see `registry`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable, Rows
from tidegate.mechanisms.values import Spread, Statistic

Role = Literal["gate", "per-key", "per-window"]


@dataclass(frozen=True)
class Bounds:
    """What one unit can change in one window: at most `keys` keys, by at most `per_key` each, in steps of the measure.

    `total`, where it is given, bounds the changes of all keys together. A unit that can lower a measure too (a sum with
    negative values) has `swing`, the distance between the most it can add and the most it can take away.
    """

    keys: int
    per_key: int
    total: int | None = None
    swing: int | None = None

    def without_total(self) -> Bounds:
        """For two mechanisms that each see some of a unit's keys: the total bounds what each takes, not both together."""
        return replace(self, total=None)

    @property
    def l1(self) -> int:
        """The most that all keys together can change by."""
        whole = self.keys * self.per_key
        return whole if self.total is None else min(whole, self.total)

    @property
    def apart(self) -> int:
        """The most that the difference of two keys can change by."""
        return self.per_key if self.swing is None else self.swing


class Mechanism(Protocol):
    """Everything that publishes. Built as `Class(bounds, epsilon=…, delta=…, **parameters of its own)`.

    Optional attributes, for mechanisms that need more than the key's count:

    * `needs`: a tuple of `Statistic` and `Spread`, found in the table's `totals` and `spreads` by their names (without it, a
      per-key mechanism works on `counts`, and publishes in their steps);
    * `measures`: what its numbers are called, where it publishes several a key (`Rows.part` is an index into it).
    """

    role: ClassVar[Role]
    guarantee: Guarantee

    def describe(self) -> Mapping[str, Any]:
        """Public numbers for manifests and `tidegate check`: widths, thresholds, noise scales."""


class PerKeyMechanism(Mechanism, Protocol):
    """Releases a shard from that shard alone; a key's noise is addressed by its identifier."""

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        """Publish a shard. `ids` are the keys' identifiers, one a row of the table."""


class Gate(PerKeyMechanism, Protocol):
    """Decides which keys appear; the keys of its rows are the universe that later mechanisms run on.

    Optional: `public`, the keys that appear whatever the data say, so that every window's table holds them; and
    `admits(keys)`, a mask of the keys that it may publish at all, so that others need not be counted.
    """

    def survival(self, n: int) -> float:
        """The chance that a key with exact count n appears."""


class PerWindowMechanism(Mechanism, Protocol):
    """Releases a window from a summary merged over its shards. A summary is bytes, since it travels between workers."""

    def summarize(self, table: ExactTable) -> bytes:
        """The part of one shard."""

    def merge(self, left: bytes, right: bytes) -> bytes:
        """Associative and commutative."""

    def release(self, summary: bytes, identify: Identify, noise: Noise) -> Rows:
        """Publish the window. `identify` gives keys the identifiers that address their noise."""


class Identify(Protocol):
    """Keys → identifiers."""

    def __call__(self, strings: pa.Array, /) -> Ids: ...


def needs_of(mechanism: Mechanism) -> tuple[Statistic | Spread, ...]:
    return tuple(getattr(mechanism, "needs", ()))


def measures_of(mechanism: Mechanism, name: str) -> tuple[str, ...]:
    return tuple(getattr(mechanism, "measures", (name,)))


def public_keys_of(gate: Gate) -> Sequence[str]:
    return tuple(getattr(gate, "public", ()))


def admitted_by(gate: Gate, keys: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Which keys the gate may publish, or None for all."""
    admits = getattr(gate, "admits", None)
    return None if admits is None else admits(keys)
