"""Counts that a planner may look at: exact ones from a file, or those of a made-up shape."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.transforms.problems import SpecError

LARGEST_COUNT = 2**50
_MOST_KEYS = 10_000_000


@dataclass(frozen=True)
class Seen:
    """Exact counts of one window, in the gate's measure, and their keys where these are known."""

    name: str
    counts: npt.NDArray[np.float64]
    keys: Sequence[str] | None = None


def read_counts(path: Path) -> Seen:
    """Exact counts of one window from a file of `key,count` or `count`, a key a line."""
    try:
        if path.suffix == ".parquet":
            with path.open("rb") as file:
                # On this thread alone: threads of Arrow's pool may still hold the file when the command ends, and abort it.
                table = pq.ParquetFile(file).read(use_threads=False)
            columns = [table.column(place) for place in range(table.num_columns)]
            rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
        elif path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8-sig") as lines:
                rows = [tuple(row) for row in csv.reader(lines) if row]
            if rows and _count(rows[0][-1]) is None:
                rows = rows[1:]  # a header
        else:
            raise SpecError(f"--like must be a .csv or .parquet file, not {path.name}; write counts.csv")
    except (UnicodeDecodeError, csv.Error, pa.ArrowInvalid):
        raise SpecError(
            f"--like must be a file of key,count lines, and {path} cannot be read as one; mend it"
        ) from None
    except OSError as problem:
        raise SpecError(f"--like {path} cannot be read ({problem.strerror}); check the path") from None
    return _seen(path.name, rows)


def _seen(name: str, rows: Sequence[tuple[Any, ...]]) -> Seen:
    """Rows are named by their number, never by what is in them."""
    write = "write key,count or count alone, a key a row"
    if not rows:
        raise SpecError(f"--like must hold at least one count, and {name} holds none; {write}")
    columns, keys, counts = len(rows[0]), [], np.empty(len(rows))
    known: set[str] = set()
    for number, row in enumerate(rows):
        if len(row) != columns or columns not in (1, 2):
            raise SpecError(
                f"--like must have one or two columns, and row {number + 1} of {name} has {len(row)}; {write}"
            )
        count = _count(row[-1])
        if count is None:
            raise SpecError(
                f"--like must have counts of 0 or more in its last column, and row {number + 1} of {name} has none; {write}"
            )
        counts[number] = count
        if columns == 2:
            keys.append(str(row[0]))
            if keys[-1] in known:
                raise SpecError(
                    f"--like must have each key once, and row {number + 1} of {name} repeats one; "
                    f"write the counts of one window"
                )
            known.add(keys[-1])
    return Seen(name, counts, keys or None)


def _count(given: Any) -> float | None:
    try:
        number = float(given)
    except (TypeError, ValueError):
        return None
    return number if isfinite(number) and 0 <= number <= LARGEST_COUNT and not isinstance(given, bool) else None


def parse_shape(text: str) -> Seen:
    """zipf:keys=100000,units=1000000,exponent=1.1 → what each key is expected to have, rounded."""
    kind, _, rest = text.partition(":")
    example = "write zipf:keys=100000,units=1000000,exponent=1.1"
    given = {"exponent": 1.0}
    for part in rest.split(",") if rest else []:
        name, _, value = part.partition("=")
        number = _count(value)
        if name not in ("keys", "units", "exponent") or number is None:
            raise SpecError(f"--shape must have keys, units and exponent as numbers, not {part!r}; {example}")
        given[name] = number
    if kind != "zipf" or not {"keys", "units"} <= set(given):
        raise SpecError(f"--shape must be zipf with keys and units, not {text!r}; {example}")
    if not 1 <= given["keys"] <= _MOST_KEYS or given["keys"] % 1:
        raise SpecError(f"--shape must have 1 to {_MOST_KEYS} keys, not {given['keys']:g}; {example}")
    weights = np.arange(1, given["keys"] + 1) ** -given["exponent"]
    return Seen(text, np.rint(given["units"] * weights / weights.sum()))
