"""How much a private release costs: ratios against the same count without privacy, measured side by side in one run.

    python -m benchmarks.release --sizes 1000000,10000000 --repeats 3 --out .bench/

Every measurement is a process of its own, so that start-up and memory belong to one contender. Contenders alternate
within each repetition and ratios are taken within it: on a shared machine seconds mean little, and the ratio of two
runs that follow each other means something. README.md says how to read the report.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.pages import Part, markdown

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("user", "term", "at")
TINY, WARM = 1_000, 3  # events of the runs that show what a pipeline costs whatever comes, and how many of them
ROWS_AT_MOST, ROWS_REPEATS = 1_000_000, 2  # one element a row takes minutes beyond, and is slow enough to be seen twice
OURS, ROWS, TUNED = "ours", "rows", "arrow-dictionaries"
PLAIN = ("arrow-threads", "arrow-single")
WORDS = {
    OURS: "ours: private release",
    "arrow-threads": "(a) pyarrow, threads",
    "arrow-single": "(a) pyarrow, one thread",
    TUNED: "(a') pyarrow on dictionaries",
    ROWS: "(b) Beam, one element a row",
}
Measured = dict[str, Any]
Run = Callable[[Path], int]


# What runs in a process of its own. Nothing heavy is imported outside these functions: imports are measured too.


def make_spec(data: Path, folder: Path) -> Any:
    """The job that is measured."""
    from tidegate.pipelines.spec import Spec

    return Spec.model_validate(
        {
            "stream": "benchmark",
            "columns": {"unit": "user", "key": "term", "time": "at"},
            "window": {"size": "1h", "start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"},
            "bound": {"keys": 3},
            "gate": {"epsilon": 1.0, "delta": 1e-9},
            "source": {"files": str(data / "events-*.parquet")},
            "sink": {"files": str(folder / "releases"), "format": "avro"},
            "state": str(folder / "state"),
        }
    )


def ours(scratch: Path) -> Run:
    from tidegate.pipelines.job import quiet_logging, run

    quiet_logging(verbose=False)

    def release(data: Path) -> int:
        # A new folder each time: a window that is published already would not be written again.
        counters = run(make_spec(data, Path(tempfile.mkdtemp(dir=scratch))))
        assert counters["windows_published"] == 24, counters
        return counters["rows_read"]

    return release


def arrow(threads: bool, dictionaries: bool) -> Run:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    coded = ["user", "term"] if dictionaries else None

    def count(data: Path) -> int:
        files = sorted(data.glob("events-*.parquet"))
        table = pa.concat_tables(pq.read_table(file, columns=list(COLUMNS), read_dictionary=coded) for file in files)
        table = table.unify_dictionaries().combine_chunks() if dictionaries else table
        table = table.set_column(2, "window", pc.floor_temporal(table["at"], unit="hour"))
        distinct = table.group_by(["window", "user", "term"], use_threads=threads).aggregate([])
        counts = distinct.group_by(["window", "term"], use_threads=threads).aggregate([([], "count_all")])
        return int(pc.sum(counts["count_all"]).as_py())

    return count


def rows() -> Run:
    """The usual count in Beam, to its advantage: without a sink, and with the window in the key, since this runner
    takes many times as long over elements in Beam's own fixed windows."""
    import apache_beam as beam
    from apache_beam.metrics import Metrics
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    pairs = Metrics.counter("benchmark", "pairs")

    def count(data: Path) -> int:
        pipeline = beam.Pipeline(runner=FnApiRunner())
        _ = (
            pipeline
            | beam.io.ReadFromParquet(str(data / "events-*.parquet"), columns=list(COLUMNS))
            | beam.Map(lambda row: ((int(row["at"].timestamp()) // 3600, row["term"]), row["user"]))
            | beam.Distinct()
            | beam.Keys()
            | beam.combiners.Count.PerElement()
            | beam.Map(lambda counted: pairs.inc(counted[1]))
        )
        result = pipeline.run()
        result.wait_until_finish()
        found = result.metrics().query()["counters"]
        return sum(counter.committed for counter in found if counter.key.metric.name == "pairs")

    return count


def measure(name: str, data: Path, tiny: Path) -> Measured:
    """One contender in this process, which is fresh: imports, a tiny run cold, some warm, and the run that counts."""
    logging.getLogger().setLevel(logging.CRITICAL)  # Beam complains while it is imported
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=data.parent) as scratch:
        if name == OURS:
            run = ours(Path(scratch))
        else:
            run = rows() if name == ROWS else arrow(name == "arrow-threads", name == TUNED)
        imports = time.perf_counter() - began
        seconds, processor = [], []
        for source in (tiny, *[tiny] * WARM, data):
            began, spent = time.perf_counter(), time.process_time()
            answer = run(source)
            seconds.append(time.perf_counter() - began)
            processor.append(time.process_time() - spent)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # The cold run is what a new process pays before its first event, the warm ones what is still in the measured run.
    cold, warm, whole = seconds[0], statistics.median(seconds[1:-1]), seconds[-1]
    startup, work = imports + cold, max(whole - warm, 1e-3)
    return {
        **{"t_import": imports, "t_startup": cold, "t_startup_warm": warm, "t_run": whole},
        **{"startup": startup, "work": work, "total": startup + work, "rss": peak, "answer": answer},
        "cpu": max(processor[-1] - statistics.median(processor[1:-1]), 1e-3),
    }


def prepare(data: Path, events: int) -> Measured:
    """Simulate, unless it has been done; a process of its own, since a child's peak memory begins with its parent's."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from tidegate.pipelines.simulate import Simulation, simulate

    wanted = Simulation(events=events, units=50_000, keys=20_000, windows=24, keys_per_unit=8)
    start, size = wanted.start.isoformat(), wanted.window_size.total_seconds()
    parameters = {**asdict(wanted), "start": start, "window_size": size}
    summary, truth = data / "simulation.json", data / "truth.parquet"
    if not truth.exists() or json.loads(summary.read_text())["parameters"] != parameters:
        simulate(data, wanted)
    for file in data.glob("events-*"):
        file.read_bytes()  # so that nobody is the first to read from the disk
    return {OURS: events, **dict.fromkeys((*PLAIN, TUNED, ROWS), pc.sum(pq.read_table(truth)["units"]).as_py())}


# What starts those processes and reports.


def child(task: str, data: Path, events: int) -> Measured:
    command = [sys.executable, "-m", "benchmarks.release", "--task", task, "--data", str(data), "--events", str(events)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    found: Measured = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(sizes: Sequence[int], repeats: int, out: Path, say: Callable[[str], None]) -> list[Measured]:
    """Every contender at every size, again and again; the order turns around each time."""
    folders = {events: data_folder(out, events) for events in (TINY, *sizes)}
    expected = {}
    for events, folder in folders.items():
        say(f"data: {events:,} events")
        expected[events] = child("prepare", folder, events)
    found = []
    for repeat in range(repeats):
        for events in sizes:
            names = [name for name in WORDS if name != ROWS or (events <= ROWS_AT_MOST and repeat < ROWS_REPEATS)]
            for name in names if repeat % 2 == 0 else reversed(names):
                one = child(name, folders[events], events)
                if one["answer"] != expected[events][name]:
                    raise RuntimeError(f"{name} found {one['answer']} of {events} events, not {expected[events][name]}")
                found.append({"contender": name, "events": events, "repeat": repeat, **one})
                say(f"{repeat + 1}/{repeats} {events:,} {name}: {one['startup']:.2f} + {one['work']:.2f} s")
    return found


def data_folder(out: Path, events: int) -> Path:
    return out.resolve() / "data" / f"events-{events}"


def summarise(found: Sequence[Measured]) -> Measured:
    """Medians and spreads: of seconds by contender and size, of ratios within the repetitions."""
    at = {((one["contender"], one["events"]), one["repeat"]): one for one in found}
    sizes = sorted({one["events"] for one in found})

    def ratio(over: tuple[str, int], under: tuple[str, int], field: str, scale: float = 1) -> list[float]:
        repeats = {repeat for _, repeat in at if (over, repeat) in at and (under, repeat) in at}
        return spread([at[over, repeat][field] / at[under, repeat][field] * scale for repeat in repeats])

    seconds, ratios = [], []
    for events in sizes:
        mine = {n: [one for one in found if one["contender"] == n and one["events"] == events] for n in WORDS}
        for name, ones in mine.items():
            if ones:
                fields = {f: spread([one[f] for one in ones]) for f in ("total", "startup", "work", "cpu", "rss")}
                seconds.append({"contender": name, "events": events, **fields})
        plain = min(PLAIN, key=lambda name: statistics.median(one["work"] for one in mine[name]))
        pairs = [(OURS, plain), (OURS, TUNED), *([(ROWS, OURS)] if mine[ROWS] else [])]
        for over, under in pairs:
            within = {f: ratio((over, events), (under, events), f) for f in ("total", "work", "cpu")}
            ratios.append({"over": over, "under": under, "events": events, **within})
    small, large = sizes[0], sizes[-1]
    growth = ratio((OURS, large), (OURS, small), "work", small / large)
    return {"seconds": seconds, "ratios": ratios, "growth": {"from": small, "to": large, "work": growth}}


def targets(summary: Measured) -> list[tuple[str, str, str]]:
    """(target, measured, yes or no). Judged by medians; plain pyarrow is the faster of with and without threads."""
    ratios = {(r["over"], r["under"] in PLAIN, r["events"]): r for r in summary["ratios"]}
    growth = summary["growth"]
    grown = growth["work"] if (growth["from"], growth["to"]) == (10**6, 10**7) else None
    against_rows, against_plain = ratios.get((ROWS, False, 10**6)), ratios.get((OURS, True, 10**7))
    judged: list[tuple[str, list[float] | None, Callable[[float], bool]]] = [
        ("(b)/ours ≥ 10 at 1M, in all", against_rows and against_rows["total"], lambda value: value >= 10),
        ("(b)/ours ≥ 10 at 1M, without start-up", against_rows and against_rows["work"], lambda value: value >= 10),
        ("ours/(a) ≤ 3 at 10M, in all", against_plain and against_plain["total"], lambda value: value <= 3),
        ("ours/(a) ≤ 3 at 10M, without start-up", against_plain and against_plain["work"], lambda value: value <= 3),
        ("cost per event at 10M ≤ that at 1M, without start-up", grown, lambda value: value <= 1),
    ]
    return [
        (words, shown(value), "yes" if holds(value[0]) else "NO") if value else (words, "not measured", "-")
        for words, value, holds in judged
    ]


def spread(values: Sequence[float]) -> list[float]:
    return [statistics.median(values), min(values), max(values)]


def shown(values: Sequence[float]) -> str:
    middle, low, high = (f"{value:.2f}" for value in values)
    return f"{middle} [{low}–{high}]"


def report(summary: Measured) -> list[Part]:
    """The tables: title, header, rows."""
    seconds = [
        [
            *(f"{row['events']:,}", WORDS[row["contender"]]),
            *(shown(row[field]) for field in ("total", "startup", "work", "cpu")),
            *(f"{row['events'] / row['work'][0]:,.0f}", f"{row['rss'][0] / 2**20:,.0f}"),
        ]
        for row in summary["seconds"]
    ]
    ratios = [
        [
            *(f"{row['events']:,}", f"{WORDS[row['over']]} / {WORDS[row['under']]}"),
            *(shown(row[field]) for field in ("total", "work", "cpu")),
        ]
        for row in summary["ratios"]
    ]
    growth = summary["growth"]
    words = f"cost per event of ours, / that at {growth['from']:,}"
    ratios.append([f"{growth['to']:,}", words, "", shown(growth["work"]), ""])
    header = ["events", "", "seconds in all", "start-up", "without it", "of processor", "events/s", "peak MiB"]
    return [
        ("Seconds: median [least–most]", header, seconds),
        ("Ratios within a repetition", ["events", "", "in all", "without start-up", "of processor"], ratios),
        ("Targets", ["target", "measured", "met"], targets(summary)),
    ]


def show(parts: Sequence[Part], file: Path) -> None:
    """The tables to standard output, and as Markdown to a file."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    for title, header, body in parts:
        table = Table(*header, title=escape(title))
        for row in body:
            table.add_row(*(escape(cell) for cell in row))
        # Wide enough for any row: a table that wraps in a log cannot be read.
        Console(width=None if sys.stdout.isatty() else 180).print(table)
    file.write_text("\n".join(markdown(parts)), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="1000000,10000000", help="events, as many numbers as you like")
    parser.add_argument("--repeats", default=3, type=int)
    parser.add_argument("--out", default=Path(".bench"), type=Path, help="for the report and the simulated data")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--events", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.task == "prepare":
        print(json.dumps(prepare(chosen.data, chosen.events)))
    elif chosen.task:
        print(json.dumps(measure(chosen.task, chosen.data, chosen.data.parent / f"events-{TINY}")))
    else:
        began = time.perf_counter()
        say = lambda words: print(f"[{time.perf_counter() - began:5.0f} s] {words}", file=sys.stderr)  # noqa: E731
        sizes = sorted({int(size) for size in chosen.sizes.split(",")})
        found = compare(sizes, chosen.repeats, chosen.out, say)
        summary = summarise(found)
        machine = {"processors": os.cpu_count(), "python": platform.python_version(), "platform": platform.platform()}
        written = {"machine": machine, **summary, "targets": targets(summary), "measurements": found}
        (chosen.out / "release.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
        show(report(summary), chosen.out / "release.md")


if __name__ == "__main__":
    main()
