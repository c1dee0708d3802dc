"""What a mechanism is: the one interface between a window's exact table and what may be published of it.

A mechanism is given its parameters and the bounds on a unit's contribution, knows its guarantee before it sees data, and
releases in three steps that map onto any distributed engine:

    summarize(table) for every shard   →   merge, in any order   →   release(summary, noise), the only step that draws

A *per-key* mechanism needs no merging: every shard is released on its own. A *gate* is a per-key mechanism that decides
which keys appear. Mechanisms are registered under the entry point group `tidegate.mechanisms` (see `registry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.keyed import Ids
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable, Rows

Role = Literal["gate", "per-key", "per-window"]


@dataclass(frozen=True)
class Bounds:
    """What one unit can change in one window: at most `keys` keys, by at most `per_key` each."""

    keys: int
    per_key: int


class Mechanism(Protocol):
    """Everything that publishes. Built as `Class(bounds, epsilon=…, delta=…, **parameters of its own)`."""

    role: ClassVar[Role]
    guarantee: Guarantee

    def describe(self) -> Mapping[str, Any]:
        """Public numbers for manifests and `tidegate check`: widths, thresholds, noise scales."""


class PerKeyMechanism(Mechanism, Protocol):
    """Releases a shard from that shard alone; a key's noise is addressed by its identifier."""

    def release(self, table: ExactTable, ids: Ids, noise: Noise) -> Rows:
        """Publish a shard. `ids` are the keys' identifiers, one a row of the table."""


class Gate(PerKeyMechanism, Protocol):
    """Decides which keys appear; the keys of its rows are the universe that later mechanisms run on."""

    def survival(self, n: int) -> float:
        """The chance that a key with exact count n appears."""


class PerWindowMechanism(Mechanism, Protocol):
    """Releases a window from a summary merged over its shards. A summary is bytes, since it travels between workers."""

    def summarize(self, table: ExactTable) -> bytes:
        """The part of one shard."""

    def merge(self, left: bytes, right: bytes) -> bytes:
        """Associative and commutative."""

    def release(self, summary: bytes, noise: Noise) -> Rows:
        """Publish the window."""
