"""What every program is told, and how it answers."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """The same for all contenders: events in, bounds for each unit, a guarantee, and files for what is released.

    `draws` are pairs of an epsilon and a file; a run that is timed has one, and for utility there are many in one process.
    `mode` is one of several ways in which a program can spend the same guarantee.
    """

    events: str
    draws: tuple[tuple[float, str], ...]
    delta: float
    keys: int
    mode: str = ""

    @classmethod
    def from_arguments(cls) -> Job:
        return cls.read(sys.argv[1])

    @classmethod
    def read(cls, text: str) -> Job:
        told = json.loads(text)
        return cls(**{**told, "draws": tuple((float(epsilon), str(out)) for epsilon, out in told["draws"])})


NOTE = "TIDEGATE_BENCH_IMPORTED"


def imported() -> None:
    """Everything is imported: what comes now is the job. Noted on the clock that all processes of a machine share."""
    if note := os.environ.get(NOTE):
        Path(note).write_text(repr(time.monotonic()), encoding="ascii")


def write(keys: Iterable[str], values: Iterable[Any], out: str) -> None:
    """Whole numbers and fractions alike, so that all answers can be read by the same few lines."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"key": pa.array(keys, pa.string()), "value": pa.array(values).cast(pa.float64())}
    pq.write_table(pa.table(columns), out)
