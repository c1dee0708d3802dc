"""tidegate, many times in one process: what is published under several guarantees and gates.

What is timed is not this but the command, `tidegate run`; both run the same job. `spec` is the job of either.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.programs.job import Job, write

DEFAULT = "truncated-geometric"


def gates(mode: str, epsilon: float, delta: float) -> dict[str, Any]:
    """The whole guarantee on one gate, or, as `optimal-selection 0.5`, that share of it on keys and the rest on counts."""
    name, _, share = mode.partition(" ")
    if not share:
        return {"gate": {"mechanism": name, "epsilon": epsilon, "delta": delta}}
    rest = {"epsilon": epsilon * (1 - float(share)), "delta": delta / 2}
    return {
        "gate": {"mechanism": name, "epsilon": epsilon * float(share), "delta": delta / 2},
        "then": [{"mechanism": "noisy-count", **rest}],
    }


def spec(job: Job, epsilon: float, folder: Path) -> dict[str, Any]:
    """A new folder each time: a window that is published already would not be drawn again."""
    return {
        "stream": "peers",
        "columns": {"unit": "user", "key": "term", "time": "at"},
        "window": {"size": "1h", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T01:00:00Z"},
        "bound": {"keys": job.keys, "per_key": 1},
        **gates(job.mode or DEFAULT, epsilon, job.delta),
        "source": {"files": job.events},
        "sink": {"files": str(folder / "releases"), "format": "parquet"},
        "state": str(folder / "state"),
    }


def collect(folder: Path, out: str) -> None:
    """The counts of a release: the gate's own, unless the gate publishes keys alone."""
    import pyarrow.compute as pc

    import tidegate

    rows = tidegate.read_releases(str(folder / "releases"))
    rows = rows.filter(pc.is_valid(rows["value"]))
    write(rows["key"].to_pylist(), rows["value"].to_pylist(), out)


def main() -> None:
    from tidegate.pipelines.job import quiet_logging, run
    from tidegate.pipelines.spec import Spec

    quiet_logging(verbose=False)
    job = Job.from_arguments()
    for epsilon, out in job.draws:
        with tempfile.TemporaryDirectory() as scratch:
            run(Spec.model_validate(spec(job, epsilon, Path(scratch))))
            collect(Path(scratch), out)


if __name__ == "__main__":
    main()
