"""A replay publishes the same bytes: from other files, other formats, other places, on other numbers of workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tidegate.pipelines.job import run
from tidegate.pipelines.simulate import Simulation, simulate
from tidegate.pipelines.spec import Spec, parse_spec

SPEC = """
stream: searches
source: {{files: "{files}"}}
columns: {{unit: user, key: term, time: at}}
window: {{size: 1h, start: 2026-01-01T00:00:00Z, end: 2026-01-01T04:00:00Z}}
bound: {{keys: 2}}
gate: {{epsilon: 2.0, delta: 1e-6}}
sink: {{files: "{sink}"}}
dead_letters: "{dead}"
state: "{state}"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    simulate(folder / "stream", Simulation(events=30_000, units=2_000, keys=80, windows=4, keys_per_unit=5, files=3))
    run(spec(folder, "stream/events-*.parquet", "reference"))
    return folder


def spec(home: Path, files: str, sink: str) -> Spec:
    return parse_spec(SPEC.format(files=home / files, sink=home / sink, dead=home / "dead", state=home / "state"))


def published(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def events(home: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted((home / "stream").glob("events-*.parquet"))])


def as_text(table: pa.Table) -> pa.Table:
    return table.set_column(2, "at", pc.strftime(table["at"], "%Y-%m-%dT%H:%M:%SZ"))


def one_file(home: Path) -> str:
    pq.write_table(events(home), home / "one.parquet")
    return "one.parquet"


def shuffled_into_seven(home: Path) -> str:
    table = events(home)
    table = table.take(np.random.default_rng(3).permutation(len(table)))
    (home / "moved").mkdir(exist_ok=True)
    for number in range(7):
        pq.write_table(
            table.take(np.arange(number, len(table), 7)), home / "moved" / f"x{number}.parquet", row_group_size=999
        )
    return "moved/x*.parquet"


def csv(home: Path) -> str:
    pa.csv.write_csv(as_text(events(home)), home / "events.csv")
    return "events.csv"


def jsonl(home: Path) -> str:
    rows = as_text(events(home)).to_pylist()
    import json

    (home / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "events.jsonl"


def with_events_repeated(home: Path) -> str:
    pq.write_table(pa.concat_tables([events(home), events(home).slice(0, 9_000)]), home / "repeated.parquet")
    return "repeated.parquet"


@pytest.mark.parametrize("laid_out", [one_file, shuffled_into_seven, csv, jsonl, with_events_repeated])
def test_how_the_events_are_laid_out_does_not_matter(home: Path, laid_out: Callable[[Path], str]) -> None:
    sink = f"releases-{laid_out.__name__}"
    run(spec(home, laid_out(home), sink))
    assert published(home / sink) == published(home / "reference")
    assert len(published(home / sink)) == 8


@pytest.mark.parametrize("mode", ["multi_threading", "multi_processing"])
def test_the_number_of_workers_does_not_matter(home: Path, mode: str) -> None:
    options = ["--direct_num_workers=3", f"--direct_running_mode={mode}"]
    run(spec(home, "stream/events-*.parquet", mode), beam_options=options)
    assert published(home / mode) == published(home / "reference")


def test_a_longer_range_leaves_the_windows_that_are_out_as_they_are(home: Path) -> None:
    text = SPEC.replace("T00:00:00Z, end: 2026-01-01T04", "T00:00:00Z, end: 2026-01-01T06")
    paths = {
        "files": home / "stream/events-*.parquet",
        "sink": home / "longer",
        "dead": home / "d",
        "state": home / "state",
    }
    run(spec(home, "stream/events-*.parquet", "longer"))
    before = published(home / "longer")
    counters = run(parse_spec(text.format(**paths)))
    after = published(home / "longer")
    assert {name: after[name] for name in before} == before
    assert (counters["windows_unchanged"], counters["windows_published"]) == (4, 2)
