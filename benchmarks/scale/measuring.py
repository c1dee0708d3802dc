"""Runs one after the other, each a process of its own, and what each of them took."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.peers.measuring import DELTA, EPSILON, execute
from benchmarks.release import Measured
from benchmarks.scale.streams import START, Made, make
from benchmarks.scale.sweeps import STARTUP, TINY, Case

SHORT, SHORT_RUNS = 2 * 10**6, 5


@dataclass(frozen=True)
class Place:
    """Where runs happen: with which interpreter, in how many processes of the direct runner, with files in which folders."""

    python: str
    workers: int
    cache: Path
    scratch: Path


def spec(case: Case, files: str, folder: Path) -> Measured:
    return {
        "stream": "scale",
        "source": {"files": files},
        "columns": {"unit": "user", "key": "term", "time": "at"},
        "window": {"size": "1h", "start": START.isoformat(), "end": case.stream.end.isoformat()},
        "bound": {"keys": case.bound},
        "gate": {"mechanism": "truncated-geometric", "epsilon": EPSILON, "delta": DELTA},
        "sink": {"files": str(folder / "releases"), "format": "parquet"},
        "state": str(folder / "state"),
    }


def measure(case: Case, made: Made, place: Place) -> Measured:
    """One run of the whole command. Raises RuntimeError if it fails or leaves out a window."""
    with tempfile.TemporaryDirectory(dir=place.scratch) as name:
        folder = Path(name)
        path, counts = folder / "spec.yaml", folder / "counts.json"
        path.write_text(json.dumps(spec(case, made.files, folder)), encoding="utf-8")  # JSON is YAML
        command = [place.python, "-m", "benchmarks.scale.program", str(counts), "run", "--quiet", str(path)]
        if case.shards is not None:
            command += ["--shards", str(case.shards)]
        if place.workers > 1:
            command += ["--", f"--direct_num_workers={place.workers}", "--direct_running_mode=multi_processing"]
        ran = execute(command, folder / "log")
        published = _published(folder / "releases")
        if published["windows"] != case.stream.windows:
            raise RuntimeError(f"{case.name} published {published['windows']} of {case.stream.windows} windows")
        counted: Measured = json.loads(counts.read_text(encoding="utf-8"))
    return {
        **{"sweep": case.sweep, "label": case.label, "events": case.stream.events, "windows": case.stream.windows},
        **{"bound": case.bound, "stream": asdict(case.stream)},
        **{"pairs": made.pairs, "kept": made.kept(case.bound), "keys": made.keys},
        **asdict(ran),
        "shuffled": {"/".join(name.split("/")[-2:]): size for name, size in counted["shuffled"].items()},
        **{f"sent_{name}": counted["sent"].get(name, 0) for name in ("rows", "elements", "units", "keys")},
        "encoded_rows": counted["sent"].get("encoded rows", 0),
        "published": published,
    }


def _published(folder: Path) -> Measured:
    """Windows and rows, and how many bytes a sealed row has in memory."""
    import pyarrow.parquet as pq

    manifests = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*/manifest.json")]
    rows = [manifest["rows"] for manifest in manifests]
    fullest = max(folder.glob("*/*.parquet"), key=lambda path: path.stat().st_size, default=None)
    table = None if fullest is None else pq.read_table(fullest)
    size = table.nbytes / len(table) if table is not None and len(table) else None
    return {"windows": len(manifests), "rows": sum(rows), "bytes_a_row": size}


def compare(
    chosen: Sequence[Case],
    repeats: int,
    place: Place,
    say: Callable[[str], None],
    keep: Callable[[list[Measured], dict[str, str]], None] = lambda *_: None,
) -> tuple[list[Measured], dict[str, str]]:
    """Every case, again and again, and why some are missing; the order turns around each time, start-up first.

    `keep` gets all that is measured so far, since somebody may have to stop before the end.
    """
    made = {}
    for number, case in enumerate((TINY, *chosen), start=1):
        if case.stream not in made:
            say(f"data {number}/{len(chosen) + 1}: {case.stream.events:,} events for {case.name}")
            made[case.stream] = make(case.stream, place.cache)
    found: list[Measured] = []
    failed: dict[str, str] = {}
    for repeat in range(repeats):
        queue = [case for case in (chosen if repeat % 2 == 0 else reversed(chosen)) if case.name not in failed]
        for number, case in enumerate(queue, start=1):
            try:
                for one in (TINY, case) * _times(case):
                    ran = measure(one, made[one.stream], place)
                    found.append({"repeat": repeat, **ran})
                    keep(found, failed)
            except RuntimeError as problem:
                # A size that is too much is an answer, too, and the others are still of use.
                failed[case.name] = str(problem)
                say(f"{case.name} is left out from here on: {problem}")
                continue
            took = found[-1]
            left = estimate(found, [*queue[number:], *(list(chosen) * (repeats - repeat - 1))])
            say(
                f"{repeat + 1}/{repeats} {case.name}: {took['seconds']:.1f} s, {took['processor']:.1f} s of processor, "
                f"{took['memory'] / 2**20:,.0f} MiB; about {left / 60:.0f} min left"
            )
    return found, failed


def estimate(found: Sequence[Measured], queue: Sequence[Case]) -> float:
    """Seconds that are left: what a case took before, or what its events would take at the usual pace."""
    startup = statistics.median(one["seconds"] for one in found if one["sweep"] == STARTUP)
    runs = [one for one in found if one["sweep"] != STARTUP]
    pace = statistics.median(max(one["seconds"] - startup, 0) / one["events"] for one in runs)
    seen = {(one["sweep"], one["label"]): one["seconds"] for one in runs}

    def again(case: Case) -> float:
        whole = seen.get((case.sweep, case.label), startup + pace * case.stream.events)
        return float((startup + whole) * _times(case))

    return sum(map(again, queue))


def _times(case: Case) -> int:
    """What is over as soon as it has started is seen more often: it is the difference of two numbers nearly alike."""
    return SHORT_RUNS if case.stream.events <= SHORT else 1


def without_startup(found: Sequence[Measured]) -> list[Measured]:
    """One row a case and repetition, with that repetition's start-up taken off: of seconds and processor time.

    `noise` and `processor_noise` are how far the start-ups of the repetition lie apart: what is not larger says nothing.
    """
    cases: dict[tuple[str, str, int], list[Measured]] = {}
    for one in found:
        cases.setdefault((one["sweep"], one["label"], one["repeat"]), []).append(one)
    rows = []
    for (sweep, _, repeat), ones in cases.items():
        starts = cases.get((TINY.sweep, TINY.label, repeat))
        if sweep == STARTUP or not starts:
            continue
        row = {**ones[0], "runs": len(ones)}
        row |= {field: statistics.median(one[field] for one in ones) for field in ("seconds", "processor", "memory")}
        for field, startup, work, noise in (
            ("seconds", "startup", "work", "noise"),
            ("processor", "startup_processor", "processor_work", "processor_noise"),
        ):
            times = sorted(one[field] for one in starts)
            row[startup] = statistics.median(times)
            row[work] = row[field] - row[startup]
            # The middle half of them: one start-up that had to wait would else drown everything.
            row[noise] = times[3 * len(times) // 4] - times[len(times) // 4]
        rows.append(row)
    return rows
