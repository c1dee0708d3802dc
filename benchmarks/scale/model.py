"""What a run costs, as a few coefficients that are fitted to the measured runs, checked on them, and then stretched.

    processor = events · a + units, pairs and keys that a batch has · b, c, d + keys · e + windows · f       without start-up
    memory    = a base + pairs kept · m, and those of one window · n, and its keys · o          all windows open at once
    network   = elements · α + rows sent · β + their units and keys; then rows of exact tables · γ, rows published · δ

The stretched part is arithmetic on coefficients from one small machine. What it takes for granted is in `Load` and `Engine`,
and said with every number that comes of it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.peers.measuring import DELTA, EPSILON
from benchmarks.release import Measured
from benchmarks.scale.measuring import without_startup
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.truncated_geometric import TruncatedGeometric
from tidegate.transforms.closing import HoldFn

MILLION = 10**6
COSTS = {
    "events": "an event: read, and put into its window",
    "batch_units": "a unit in a batch: its text, its identifier, looked up when batches are merged",
    "batch_pairs": "a pair of unit and key in a batch: sorted, merged, bounded, sent",
    "batch_keys": "a key in a batch: its text, looked up when batches are merged",
    "keys": "a key of a window: count, digest, draw",
    "windows": "a window: all that Beam does for it, and putting it on the disk",
}
BATCH = 1 << 19  # rows, as Parquet is read
HELD = {
    "base": "whatever comes",
    "kept": "a million pairs that count, of all open windows: as they wait",
    "kept_in_window": "a million pairs that count, of one window: as it is released",
    "keys_in_window": "a million keys of one window",
}
# What an element is made of on its way to its shard, and what the coefficient is called.
TRAVELS = {"elements": "element", "sent_rows": "row", "sent_units": "unit", "sent_keys": "word"}
BY_UNIT, BY_KEY, BY_SHARD, BY_WINDOW = (
    "bound/Together",
    "count/Together by key",
    "gate/Together by shard",
    "seal/Whole window",
)
WHOLE = "whole windows/Together by window"  # the one grouping where a window has a single shard
SPREAD = "8"  # shards of the run that tells what the larger graph costs next to the simpler one
LEAST_RUNS = 2 * len(COSTS)  # with fewer, anything fits


@dataclass(frozen=True)
class Load:
    """What comes in. None of it is measured: it is the question."""

    events_a_second: float = 1e6
    keys: float = 1e9
    window: float = 3600.0  # seconds
    units: float = 5e8  # in a window
    kept: float = 3.0  # pairs of a unit that count
    release_within: float = 300.0  # seconds from the close of a window to its release


@dataclass(frozen=True)
class Engine:
    """Where it runs. None of it is measured either."""

    name: str
    bundle: float  # seconds; what comes within it is merged before it travels
    checkpoint: float | None  # seconds; None where the engine keeps state outside of workers
    busy: float = 0.6  # of a core, lest a burst pile up
    memory: float = 4 * 2**30  # a core


_ROUNDS = 100  # of what hangs on each other; they come to rest long before

# Flink's are the options that pipelines/runners.py sets.
ENGINES = (Engine("Flink", 0.2, 10.0), Engine("Dataflow", 1.0, None))


def medians(found: Sequence[Measured]) -> list[Measured]:
    """One row a case: medians over repetitions, without start-up."""
    cases: dict[tuple[str, str], list[Measured]] = {}
    for one in without_startup(found):
        cases.setdefault((one["sweep"], one["label"]), []).append(one)
    measured = ("seconds", "processor", "memory", "work", "processor_work", "startup", "processor_noise")
    return [
        {
            **ones[0],
            "rows": ones[0]["published"]["rows"],
            # With a single shard, every window also has an element without rows, so that silence is published.
            "elements": ones[0]["sent_elements"] + (ones[0]["windows"] if WHOLE in ones[0]["shuffled"] else 0),
            "by_unit": ones[0]["shuffled"].get(BY_UNIT, 0) + ones[0]["shuffled"].get(WHOLE, 0),
            **within_batches(ones[0]),
            "base": 1.0,
            **{f"{name}_in_window": ones[0][name] / ones[0]["windows"] for name in ("kept", "keys")},
            "runs": sum(one["runs"] for one in ones),
            **{field: statistics.median(one[field] for one in ones) for field in measured},
        }
        for ones in cases.values()
    ]


def within_batches(one: Measured) -> dict[str, float]:
    """Units, pairs and keys that differ within a batch, over all batches: expected, for draws with replacement.

    A batch has rows of one window or, where windows are smaller, of several.
    """
    stream, events, windows = one["stream"], one["events"], one["windows"]
    rows = min(BATCH, events)
    spans = max(1.0, rows * windows / events)  # windows in a batch

    def differ(of: float, drawn: float) -> float:
        return of * -math.expm1(-drawn / of)

    return {
        "batch_units": events / rows * differ(stream["units"], rows),
        "batch_pairs": events / rows * spans * differ(one["pairs"] / windows, rows / spans),
        "batch_keys": events / rows * differ(stream["keys"], rows),
    }


def fit(found: Sequence[Measured]) -> Measured | None:
    """The coefficients, and how far each run is from what they say; None if there are too few runs to tell."""
    rows = [row for row in medians(found) if row["processor_work"] > 0]
    if len(rows) < LEAST_RUNS:
        return None
    alike = [row for row in rows if row["sweep"] != "shards"]  # of one graph
    noise = statistics.median(row["processor_noise"] for row in rows)
    processor = _least_squares(alike, tuple(COSTS), [row["processor_work"] for row in alike], noise)
    by_unit = _least_squares(rows, tuple(TRAVELS), [row["by_unit"] for row in rows])
    tables = [row["shuffled"][BY_SHARD] / row["keys"] for row in rows if BY_SHARD in row["shuffled"]]
    sealed = [row["shuffled"][BY_WINDOW] / row["rows"] for row in rows if row["rows"] and BY_WINDOW in row["shuffled"]]
    graphs = {row["label"]: row["processor_work"] for row in rows if row["sweep"] == "shards"}
    wide = [one["published"]["bytes_a_row"] for one in found if one["published"]["bytes_a_row"]]
    memory = _least_squares(rows, tuple(HELD), [row["memory"] for row in rows])
    return {
        "processor": dict(zip(COSTS, processor, strict=True)),
        "network": {
            **dict(zip(TRAVELS.values(), by_unit, strict=True)),
            "key": statistics.median(tables) if tables else None,
            "published": statistics.median(sealed) if sealed else None,
        },
        "spread": graphs[SPREAD] / graphs["1"] if {SPREAD, "1"} <= graphs.keys() else None,
        "memory": dict(zip(HELD, memory, strict=True)),
        "sealed_row": statistics.median(wide) if wide else None,
        "pace": statistics.median(row["work"] / row["processor_work"] for row in rows),
        "checked": [
            {
                **{"sweep": row["sweep"], "label": row["label"]},
                "processor": row["processor_work"],
                "processor_said": float(np.dot(processor, [row[name] for name in COSTS])),
                "memory": row["memory"],
                "memory_said": float(np.dot(memory, [row[name] for name in HELD])),
                "network": row["by_unit"],
                "network_said": float(np.dot(by_unit, [row[name] for name in TRAVELS])),
            }
            for row in rows
        ],
    }


def memory_line(rows: Sequence[Measured]) -> Measured:
    """Bytes a pair, by a line through runs that differ in pairs; and the largest distance from it, as a share."""
    pairs, memory = np.array([row["kept"] for row in rows], float), np.array([row["memory"] for row in rows], float)
    if len(set(pairs.tolist())) < 2:
        return {"base": float(np.median(memory)), "pair": 0.0, "error": 0.0}
    pair, base = np.polyfit(pairs, memory, 1)
    error = float(np.max(np.abs(base + pair * pairs - memory) / memory))
    return {"base": float(base), "pair": float(pair), "error": error}


def _least_squares(
    rows: Sequence[Measured], names: Sequence[str], measured: Sequence[float], noise: float = 0.0
) -> list[float]:
    """Coefficients that are nowhere negative, with the least relative errors.

    Relative, since the largest run would else decide alone; but what is no larger than the noise has little to say. And no
    cost is negative, whatever noise would like.
    """
    weight = 1 / (np.array(measured, float) + noise)
    features = np.array([[row[name] for name in names] for row in rows], float) * weight[:, None]
    size = np.maximum(np.linalg.norm(features, axis=0), 1e-300)
    free = list(range(len(names)))
    while free:
        found: npt.NDArray[np.float64] = np.linalg.lstsq(
            (features / size)[:, free], np.array(measured, float) * weight, rcond=None
        )[0]
        if (found >= 0).all():
            break
        free.pop(int(np.argmin(found)))
    whole = np.zeros(len(names))
    whole[free] = found if free else 0.0
    return [float(value) for value in whole / size]


def threshold(load: Load) -> int:
    """Units that a key needs for even odds at the gate, as it is in all runs here."""
    bounds = Bounds(keys=int(load.kept), per_key=1)
    return int(TruncatedGeometric(bounds, epsilon=EPSILON, delta=DELTA).describe()["threshold"])


def stretch(fitted: Measured, load: Load, engine: Engine) -> Measured:
    """What the load would take there, if coefficients stay what they are. An extrapolation, all of it."""
    cost, net = fitted["processor"], fitted["network"]
    pair = fitted["memory"]["kept"] + fitted["memory"]["kept_in_window"]
    in_window = load.events_a_second * load.window
    kept = load.units * load.kept
    spread = fitted["spread"] or 1.0  # the runs are of the simpler graph, and this would be the larger one
    # Bundles are short, and two events of a unit, key or pair within one of them are rare: nearly every event has its own.
    row = sum(cost[name] for name in ("batch_units", "batch_pairs", "batch_keys"))
    release = load.keys * cost["keys"] * spread / load.release_within / engine.busy
    # One shard of one window is bounded in one place, in the memory of a core, with half of it for everything else.
    shards = max(1, math.ceil(min(in_window, 2 * kept) * pair / (engine.memory / 2)))
    # Beyond that much a shard is put aside in pieces, and pairs that come again are no longer merged with them.
    merged = net["row"] + net["unit"] / load.kept + net["word"]
    shards = max(shards, math.ceil(kept * merged / HoldFn.PUT_ASIDE_AT))
    # Of so few rows in a bundle hardly two have the unit or the key in common, so each brings its own. The more cores, the
    # fewer rows a bundle of each has, and the more bytes they take; the more bytes, the more is merged, and by more cores.
    cores = release
    for _ in range(_ROUNDS):
        rows_an_element = max(1.0, load.events_a_second * engine.bundle / max(cores, 1.0) / shards)
        bytes_a_row = net["row"] + net["unit"] + net["word"] + net["element"] / rows_an_element
        # An open window is merged when as many bytes have come as it had: with a row that comes, so many that were there.
        merged_again = 1 + bytes_a_row / merged
        streaming = load.events_a_second * (cost["events"] + row * (1 + merged_again)) * spread / engine.busy
        cores = streaming + release
    second = load.events_a_second * bytes_a_row
    return {
        "engine": engine.name,
        "cores_streaming": math.ceil(streaming),
        "cores_release": math.ceil(release),
        "shards": shards,
        "rows_an_element": rows_an_element,
        "bytes_a_row": bytes_a_row,
        "network": second,
        "state": min(2 * kept * merged, in_window * bytes_a_row),
        "state_grouped": in_window * bytes_a_row,
        # What came, and as much again of what was merged with it.
        "checkpoint": None if engine.checkpoint is None else 2 * engine.checkpoint * second,
        # A key has a row from every shard of units that touched it, and one more on the way to the gate.
        "tables": None if net["key"] is None else (min(kept, load.keys * shards) + load.keys) * net["key"],
    }
