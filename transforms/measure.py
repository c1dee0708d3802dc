"""What a gate counts of a key: its units, their events, or the sum of a column, clipped for each unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tidegate.mechanisms.values import Value
from tidegate.transforms.problems import shown

_EXAMPLE = "write units, events, or {sum: amount, low: 0, high: 100}"
_FIELDS = ("sum", "low", "high", "resolution")


@dataclass(frozen=True)
class Measure:
    """Units, events, or a sum in fixed point."""

    kind: Literal["units", "events", "sum"] = "units"
    value: Value | None = None

    @property
    def label(self) -> str:
        return self.kind if self.value is None else f"sum({self.value.column})"

    def shown(self, steps: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        return np.asarray(steps, np.float64) if self.value is None else self.value.shown(steps)

    def meaning(self) -> Any:
        """For people, manifests and digests: as a spec would have it."""
        if self.value is None:
            return self.kind
        low, high = (self.value.number(end) for end in (self.value.low, self.value.high))
        return {"sum": self.value.column, "low": low, "high": high, "resolution": float(self.value.resolution)}


def parse_measure(given: object) -> Measure:
    if isinstance(given, Measure):
        return given
    if given in ("units", "events"):
        return Measure("units" if given == "units" else "events")
    if not isinstance(given, Mapping) or "sum" not in given:
        raise ValueError(f"must be units, events or the sum of a column, not {shown(given)}; {_EXAMPLE}")
    for field in given:
        if field not in _FIELDS:
            raise ValueError(f"must have the fields {', '.join(_FIELDS)}, not {shown(field)}; {_EXAMPLE}")
    for field in ("low", "high"):
        if field not in given:
            raise ValueError(
                f"must say {field}, what a unit counts for at {'least' if field == 'low' else 'most'}; {_EXAMPLE}"
            )
    try:
        return Measure("sum", Value.parse(given["sum"], given["low"], given["high"], given.get("resolution"), "sum"))
    except ValueError as problem:
        raise ValueError(f"must be a sum in fixed point, and its {problem}") from None
