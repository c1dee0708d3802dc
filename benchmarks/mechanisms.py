"""What each gate and each downstream mechanism costs, next to the plain noisy count of the same table.

    python -m benchmarks.mechanisms --keys 1000000 --repeats 5 --out .bench/

All mechanisms release the same exact table, alternating within each repetition; a ratio is taken between two releases of the
same repetition. The table has the totals and spreads that the mechanisms ask for, made of several million units' values.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.mechanisms.keyed import KeyedHash
from tidegate.mechanisms.mechanism import Bounds, needs_of
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.registry import build
from tidegate.mechanisms.table import ExactTable, make_spread, sum_by
from tidegate.mechanisms.values import Spread

BOUNDS = Bounds(3, 1)
COLUMN = {"column": "amount", "low": 0, "high": 100}
BASE = "noisy-count"


@dataclass(frozen=True)
class Contender:
    """A mechanism and how much of the count's time it may take, if a target was set; `numbers` it publishes a key."""

    label: str
    name: str
    parameters: dict[str, Any]
    target: float | None = None
    numbers: int = 1


def contenders(listed: list[str]) -> list[Contender]:
    return [
        Contender("noisy-count", "noisy-count", {}),
        Contender("gate truncated-geometric", "truncated-geometric", {}, 3),
        Contender("gate geometric-threshold", "geometric-threshold", {}, 3),
        Contender("gate optimal-selection", "optimal-selection", {}, 3),
        Contender("gate public-keys, all listed", "public-keys", {"keys": listed}, 3),
        Contender("gate range, all listed", "range", {"keys": listed}, 3),
        Contender("sum", "sum", COLUMN, 3),
        Contender("mean", "mean", COLUMN, 3),
        Contender("variance", "variance", COLUMN, 3),
        Contender("histogram of 4 buckets", "histogram", {"column": "amount", "edges": [0, 10, 20, 50, 100]}, None, 4),
        Contender("quantiles: median", "quantiles", COLUMN, 10),
        Contender("quantiles: 0.25, 0.5, 0.9", "quantiles", {**COLUMN, "at": [0.25, 0.5, 0.9]}, 10, 3),
        Contender("choose", "choose", {}, 10),
        Contender("choose, exponential", "choose", {"method": "exponential"}, 10),
        Contender("top-k, k = 10", "top-k", {"k": 10}, 10),
    ]


def make_table(keys: int, mechanisms: Sequence[Any], seed: int = 0) -> ExactTable:
    """A long tail: most keys have few units, some have many."""
    rng = np.random.default_rng(seed)
    counts = 1 + np.minimum(rng.pareto(1.2, keys) * 3, 1e5).astype(np.int64)
    key = np.repeat(np.arange(keys), np.minimum(counts, 50))
    gathered: dict[Any, Any] = {}
    totals, spreads = {}, {}
    for need in {need for mechanism in mechanisms for need in needs_of(mechanism)}:
        if need.value is not None:
            for slot in need.value.slots:
                ones = np.ones(len(key), np.int64)
                gathered[slot] = ones if not slot.column else rng.integers(need.value.low, need.value.high, len(key))
        if isinstance(need, Spread):
            spreads[need.name] = make_spread(key, need.of_units(gathered), np.ones(len(key), np.int64), keys)
        else:
            totals[need.name] = sum_by(key, need.of_units(gathered, len(key)), keys)
    return ExactTable(names(keys), counts, totals, spreads)


def names(keys: int) -> pa.Array:
    return pa.array([f"https://example.org/page/{number}" for number in range(keys)])


def runner(mechanism: Any, table: ExactTable, identify: KeyedHash) -> Callable[[], int]:
    """From the exact table to rows: the keys are identified, then released."""
    noise = Noise(b"n" * 32)
    if mechanism.role == "per-window":
        return lambda: len(mechanism.release(mechanism.summarize(table), identify, noise))
    return lambda: len(mechanism.release(table, identify(table.keys), noise))


def measure(keys: int, repeats: int) -> list[dict[str, Any]]:
    listed = names(keys).to_pylist()
    tried = contenders(listed)
    found = [_build(contender) for contender in tried]
    identify = KeyedHash(b"i" * 32)
    table = make_table(keys, found)
    runs = [runner(mechanism, table, identify) for mechanism in found]
    for run in runs:
        run()  # tables of coins are made once, in a worker's first release
    seconds: list[list[float]] = [[] for _ in runs]
    for repeat in range(repeats):
        print(f"repetition {repeat + 1} of {repeats}", file=sys.stderr)
        for place, run in enumerate(runs):
            began = time.perf_counter()
            run()
            seconds[place].append(time.perf_counter() - began)
    base = seconds[[contender.label for contender in tried].index(BASE)]
    return [
        {
            "mechanism": contender.label,
            "numbers": contender.numbers,
            "seconds": statistics.median(times),
            "ratio": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            "target": contender.target,
        }
        for contender, times in zip(tried, seconds, strict=True)
        for ratios in [[mine / its for mine, its in zip(times, base, strict=True)]]
    ]


def _build(contender: Contender) -> Any:
    parameters = {"epsilon": 1.0, "delta": 1e-9, **contender.parameters}
    return build(contender.name, ("gate", "per-key", "per-window"), BOUNDS, parameters)


def as_table(rows: list[dict[str, Any]], keys: int) -> str:
    lines = [
        f"One release of {keys:,} keys; ratios to {BASE} in the same repetition: median (least to most).",
        "",
        "| mechanism | seconds | of the count's time | target | |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
        target = "" if row["target"] is None else f"{row['target']:g}"
        verdict = "" if row["target"] is None else "met" if row["ratio"] <= row["target"] else "MISSED"
        ratio = f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"
        lines.append(f"| {row['mechanism']} | {row['seconds']:.3f} | {ratio} | {target} | {verdict} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(".bench"))
    options = parser.parse_args(arguments)
    rows = measure(options.keys, options.repeats)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "mechanisms.json").write_text(json.dumps({"keys": options.keys, "rows": rows}, indent=2))
    table = as_table(rows, options.keys)
    (options.out / "mechanisms.md").write_text(table + "\n")
    print(table)


if __name__ == "__main__":
    main()
