"""What comes out under the same guarantee: how many keys, how much of the volume, and how far off."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.contenders import OPENDP, OURS, PDP_LOCAL, Contender
from benchmarks.peers.measuring import DELTA, KEYS, answer, execute, prepare, truth, utility_simulation
from benchmarks.peers.programs.job import Job
from benchmarks.peers.programs.tidegate_release import DEFAULT
from benchmarks.release import Measured


@dataclass(frozen=True)
class Way:
    """A contender and how it spends the guarantee; `why` is what decides how many keys it lets through."""

    contender: str
    mode: str
    words: str
    why: str


WAYS = (
    Way(OURS, DEFAULT, "tidegate", "one draw of bounded noise both selects and counts"),
    Way(
        OURS,
        "geometric-threshold",
        "tidegate, geometric-threshold",
        "one draw of unbounded noise both selects and counts",
    ),
    Way(
        OURS,
        "optimal-selection 0.5",
        "tidegate, optimal-selection and noisy-count, half each",
        "half of epsilon selects",
    ),
    Way(
        OURS,
        "optimal-selection 0.9",
        "tidegate, optimal-selection and noisy-count, 9 to 1",
        "nine tenths of epsilon select, and counts get what is left",
    ),
    Way(
        PDP_LOCAL,
        "local",
        "PipelineDP",
        "half of epsilon selects, by the optimal choice for one key, and half counts",
    ),
    Way(
        PDP_LOCAL,
        "local-threshold",
        "PipelineDP, post_aggregation_thresholding",
        "one draw of Laplace noise both selects and counts",
    ),
    Way(
        OPENDP[1],
        "core",
        "OpenDP, make_laplace_threshold",
        "one draw of integer Laplace noise both selects and counts",
    ),
)


def score(found: dict[str, float], exact: dict[str, int]) -> Measured:
    """Of one release. The error is of what is published, so it is that of keys which were let through."""
    errors = [abs(value - exact[key]) for key, value in found.items()]
    return {
        "keys": len(found),
        "volume": sum(exact[key] for key in found) / sum(exact.values()),
        "error": statistics.mean(errors) if errors else None,
    }


def compare(
    contenders: Sequence[Contender],
    epsilons: Sequence[float],
    draws: int,
    events: int,
    out: Path,
    say: Callable[[str], None],
) -> tuple[list[Measured], dict[str, str]]:
    """Every way at every epsilon, in means over several draws."""
    folder = out / "peers-data" / f"utility-{events}"
    file = prepare(folder, utility_simulation(events))
    exact, here = truth(folder), {contender.name: contender for contender in contenders}
    rows: list[Measured] = []
    failed: dict[str, str] = {}
    for way in WAYS:
        if way.contender not in here:
            continue
        say(f"utility: {way.words}, {len(epsilons)} guarantees, {draws} draws of each")
        with tempfile.TemporaryDirectory(dir=out) as scratch:
            outs = [(e, Path(scratch) / f"{place}-{draw}") for place, e in enumerate(epsilons) for draw in range(draws)]
            job = Job(str(file), tuple((e, str(path)) for e, path in outs), DELTA, KEYS, way.mode)
            try:
                execute(here[way.contender].release(job), Path(scratch) / "log")
            except RuntimeError as problem:
                if way.contender == OURS:
                    raise
                failed[way.words] = str(problem)
                say(f"{way.words} is left out: {problem}")
                continue
            scores = [(epsilon, score(answer(path), exact)) for epsilon, path in outs]
        for epsilon in epsilons:
            mine = [one for e, one in scores if e == epsilon]
            errors = [one["error"] for one in mine if one["error"] is not None]
            rows.append(
                {
                    **{"way": way.words, "contender": way.contender, "default": way.mode == DEFAULT},
                    **{"epsilon": epsilon, "draws": draws, "keys_there": len(exact), "why": way.why},
                    "keys": statistics.mean(one["keys"] for one in mine),
                    "keys_drawn": [one["keys"] for one in mine],
                    "volume": statistics.mean(one["volume"] for one in mine),
                    "error": statistics.mean(errors) if errors else None,
                }
            )
    return rows, failed


def shown_rows(rows: Sequence[Measured]) -> list[Measured]:
    """Peers, our default, and of our other gates those that let more keys through than it somewhere."""
    default = {row["epsilon"]: row["keys"] for row in rows if row["default"]}
    better = {row["way"] for row in rows if row["contender"] == OURS and row["keys"] > default[row["epsilon"]]}
    return [row for row in rows if row["contender"] != OURS or row["default"] or row["way"] in better]


def ahead_of_us(rows: Sequence[Measured]) -> list[str]:
    """Where somebody publishes more keys than our default does, and why."""
    default = {row["epsilon"]: row for row in rows if row["default"]}
    told = []
    for row in rows:
        ours = default[row["epsilon"]]
        if row["keys"] > ours["keys"]:
            why = row["why"] if _certainly_more(row, ours) else "too little to tell from luck with so few draws"
            keys = f"{row['keys']:.1f} keys where tidegate publishes {ours['keys']:.1f}"
            told.append(f"At epsilon {row['epsilon']:g}, {row['way']} publishes {keys}: {why}.")
    return told


def _certainly_more(row: Measured, ours: Measured) -> bool:
    """By more than three standard errors. For less, a reason would explain what may not be there."""
    drawn = row["keys_drawn"], ours["keys_drawn"]
    if min(map(len, drawn)) < 2:
        return False
    error = math.sqrt(sum(statistics.variance(keys) / len(keys) for keys in drawn))
    return bool(row["keys"] - ours["keys"] > 3 * error)
