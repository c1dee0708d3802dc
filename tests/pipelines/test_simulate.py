"""What `tidegate simulate` promises, checked by readers that share no code with it."""

from __future__ import annotations

import gzip
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tidegate.pipelines.simulate import FORMATS, Simulation, simulate

SMALL = {"events": 8_000, "units": 300, "keys": 60, "windows": 12}
DIRT = {"bad": 0.05, "duplicates": 0.05, "late": 0.05, "outside": 0.02}
TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}(Z|[+-]\d{2}:\d{2})")
START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def made(out: Path, **fields: Any) -> Simulation:
    simulation = Simulation(**{**SMALL, **fields})
    simulate(out, simulation)
    return simulation


def raw(path: Path) -> list[Any]:
    """Every row of a file: a dict, or the bytes of a line that is none."""
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    if path.suffix == ".avro":
        with path.open("rb") as stream:
            return list(fastavro.reader(stream))
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = data.removesuffix(b"\n").split(b"\n")
    return [line_of(line) for line in (lines[1:] if ".csv" in path.name else lines)]


def line_of(line: bytes) -> Any:
    try:
        text = line.decode()
        return (
            json.loads(text)
            if text.startswith("{")
            else dict(zip(("user", "term", "at", "seconds"), text.split(","), strict=True))
        )
    except ValueError:
        return line


def good(row: Any) -> tuple[str, str, datetime] | None:
    if not isinstance(row, dict) or not row["user"] or row["term"] is None or len(row["term"]) > 1024:
        return None
    at = row["at"]
    if isinstance(at, str):
        if not TIME.fullmatch(at) or at.startswith("0000"):
            return None
        at = datetime.fromisoformat(at.replace("Z", "+00:00"))
    return row["user"], row["term"], at.astimezone(UTC)


def events(out: Path) -> list[tuple[int, str, str, datetime]]:
    """The good rows of all files, each with the number of its file."""
    rows = ((file, good(row)) for file, path in enumerate(sorted(out.glob("events-*"))) for row in raw(path))
    return [(file, *row) for file, row in rows if row is not None]


def in_range(out: Path, windows: int = SMALL["windows"]) -> pa.Table:
    rows = [(file, user, key, (at - START) // HOUR, at) for file, user, key, at in events(out)]
    names = ("file", "user", "key", "window", "at")
    columns = dict(zip(names, zip(*(row for row in rows if 0 <= row[3] < windows), strict=True), strict=True))
    return pa.table({name: pa.array(column) for name, column in columns.items()})


def counted(table: pa.Table) -> set[tuple[Any, ...]]:
    groups = table.group_by(["window", "key"]).aggregate([("user", "count_distinct"), ("user", "count")])
    return {
        (START + HOUR * row["window"], START + HOUR * (row["window"] + 1), row["key"], *list(row.values())[2:])
        for row in groups.select(["window", "key", "user_count_distinct", "user_count"]).to_pylist()
    }


def truth(out: Path) -> list[tuple[Any, ...]]:
    table = pq.read_table(out / "truth.parquet")
    assert table.column_names == ["window_start", "window_end", "key", "units", "events"]
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize("dirt", [{}, DIRT], ids=["clean", "dirty"])
@pytest.mark.parametrize("form", FORMATS)
def test_the_truth_is_what_counting_the_files_gives(tmp_path: Path, form: str, dirt: dict[str, float]) -> None:
    made(tmp_path, format=form, **dirt)
    told = truth(tmp_path)
    assert len(told) == len(set(told)) > SMALL["windows"]
    assert set(told) == counted(in_range(tmp_path))


@pytest.mark.parametrize("form", FORMATS)
def test_every_row_is_accounted_for(tmp_path: Path, form: str) -> None:
    simulation = made(tmp_path, format=form, **DIRT)
    summary = json.loads((tmp_path / "simulation.json").read_text())
    rows, table = [row for path in sorted(tmp_path.glob("events-*")) for row in raw(path)], in_range(tmp_path)
    once = table.group_by(["user", "key", "at"]).aggregate([])
    late = pc.sum(pc.greater(table["file"], pc.divide(table["window"], simulation.windows // simulation.files)))

    assert (summary["bad"], summary["duplicates"], summary["late"], summary["outside"]) == (400, 400, 400, 160)
    assert summary["parameters"]["events"] == once.num_rows == SMALL["events"]
    assert summary["rows"] == len(rows)
    assert summary["bad"] == sum(good(row) is None for row in rows)
    assert summary["duplicates"] == table.num_rows - once.num_rows
    assert summary["late"] == late.as_py()
    assert summary["outside"] == len(events(tmp_path)) - table.num_rows


@pytest.mark.parametrize(("form", "lines"), [("parquet", 0), ("avro", 0), ("jsonl", 2), ("csv", 3)])
def test_bad_rows_are_of_every_kind_the_format_can_hold(tmp_path: Path, form: str, lines: int) -> None:
    made(tmp_path, format=form, bad=0.05)
    bad = [row for path in tmp_path.glob("events-*") for row in raw(path) if good(row) is None]
    values = {value for row in bad if isinstance(row, dict) for value in row.values()}
    assert values > {"", "yesterday", "2026-01-01T12:00:00.000000", "0000-00-00T00:00:00Z"}
    assert any(isinstance(value, str) and len(value) == 2048 for value in values)
    assert (None in values) == (form != "csv")
    assert len({row for row in bad if isinstance(row, bytes)}) == lines
    assert any(b"\xff" in row for row in bad if isinstance(row, bytes)) == (lines > 0)


@pytest.mark.parametrize("bound", [1, 3])
def test_no_unit_has_more_keys_in_a_window_than_said(tmp_path: Path, bound: int) -> None:
    made(tmp_path, keys_per_unit=bound)
    keys = in_range(tmp_path).group_by(["window", "user"]).aggregate([("key", "count_distinct")])
    assert pc.max(keys["key_count_distinct"]).as_py() == bound


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_simulation_gives_the_same_bytes_and_another_seed_others(tmp_path: Path, form: str) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        made(tmp_path / name, format=form, seed=seed, **DIRT)
    a, b, c = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "abc")
    assert a == b
    assert sorted(a) == [*(f"events-0000{file}.{form}" for file in range(4)), "simulation.json", "truth.parquet"]
    assert all(a[name] != c[name] for name in a)


def test_dirt_and_format_leave_the_good_rows_alone(tmp_path: Path) -> None:
    made(tmp_path / "clean")
    made(tmp_path / "dirty", format="csv.gz", files=3, **DIRT | {"duplicates": 0})
    assert truth(tmp_path / "clean") == truth(tmp_path / "dirty")


def test_popular_keys_are_born_die_and_return(tmp_path: Path) -> None:
    simulate(tmp_path, Simulation())
    table = pq.read_table(tmp_path / "truth.parquet")
    best = table.group_by("key").aggregate([("units", "max")]).sort_by([("units_max", "descending")])
    starts = [START + HOUR * window for window in range(24)]
    pairs = {(row["key"], row["window_start"]) for row in table.to_pylist()}
    lives = ["".join(".x"[(key, start) in pairs] for start in starts) for key in best["key"][:36].to_pylist()]
    for shape in (r"x+", r"\.+x+", r"x+\.+", r"\.+x+\.+", r"x+\.+x+"):
        assert any(re.fullmatch(shape, life) for life in lives), (shape, lives)


def test_parquet_and_avro_hold_timestamps_unless_some_are_bad(tmp_path: Path) -> None:
    made(tmp_path)
    assert pq.read_schema(tmp_path / "events-00000.parquet").field("at").type == pa.timestamp("us", tz="UTC")
    made(tmp_path, bad=0.1)
    assert pq.read_schema(tmp_path / "events-00000.parquet").field("at").type == pa.string()
    texts = [row["at"] for row in raw(tmp_path / "events-00000.parquet")]
    assert 0.005 < sum(text.endswith(("+02:00", "-05:00", "+05:30")) for text in texts) / len(texts) < 0.1


def test_an_earlier_simulation_is_replaced_and_anything_else_is_kept(tmp_path: Path) -> None:
    made(tmp_path, files=6, format="csv")
    made(tmp_path, files=2)
    assert {path.name for path in tmp_path.glob("events-*")} == {"events-00000.parquet", "events-00001.parquet"}
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"^out must be [^.]*notes\.txt in it; write [^.]*\.$"):
        made(tmp_path)
    (tmp_path / "notes.txt").unlink()
    (tmp_path / "simulation.json").unlink()
    with pytest.raises(ValueError, match="out must be"):
        made(tmp_path)
    assert len(truth(tmp_path)) > 0


def test_a_run_that_fails_leaves_no_truth_and_can_be_repeated(tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError(f"{done} of {total}")

    with pytest.raises(RuntimeError, match="1 of 12"):
        simulate(tmp_path, Simulation(windows=12), fail)
    assert not (tmp_path / "truth.parquet").exists()
    made(tmp_path)
    assert set(truth(tmp_path)) == counted(in_range(tmp_path))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("events", 0), ("units", -1), ("keys", 0), ("keys", 1.5), ("windows", 0), ("keys_per_unit", 0), ("files", 25),
        ("skew", -1), ("churn", 1.5), ("bad", -0.1), ("duplicates", float("nan")), ("late", 2), ("outside", -1),
        ("format", "xml"), ("seed", -1), ("window_size", timedelta(0)), ("start", datetime(2026, 1, 1)),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_with_its_value_in_one_sentence(field: str, value: Any) -> None:
    shown = value.isoformat() if isinstance(value, datetime) else str(value)
    with pytest.raises(ValueError, match=rf"^{field} must be .*, not {re.escape(shown)}; write .*\.$") as error:
        Simulation(**{field: value})
    assert ". " not in str(error.value)


def test_late_rows_need_a_later_file() -> None:
    with pytest.raises(ValueError, match="late must be 0 when"):
        Simulation(late=0.1, files=1)


@pytest.mark.parametrize("fields", [{"events": 1}, {"windows": 1, "files": 1}, {"keys": 1, "units": 1}, {"churn": 1.0}])
def test_the_smallest_streams_are_streams_too(tmp_path: Path, fields: dict[str, Any]) -> None:
    simulation = made(tmp_path, **fields)
    assert sum(row[4] for row in truth(tmp_path)) == simulation.events
    assert set(truth(tmp_path)) == counted(in_range(tmp_path, simulation.windows))


def test_a_million_events_are_written_in_bounded_row_groups(tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    simulate(tmp_path, Simulation(events=1_100_000, windows=1, files=1), lambda *at: done.append(at))
    metadata = pq.read_metadata(tmp_path / "events-00000.parquet")
    assert metadata.num_rows == pc.sum(pq.read_table(tmp_path / "truth.parquet")["events"]).as_py() == 1_100_000
    assert max(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)) <= 1_000_000
    assert done == [(1, 1)]


@pytest.mark.parametrize("form", FORMATS)
def test_every_search_has_a_number_that_repeats_with_it(tmp_path: Path, form: str) -> None:
    made(tmp_path, format=form, duplicates=0.1)
    rows = [row for path in sorted(tmp_path.glob("events-*")) for row in raw(path)]
    seconds: dict[tuple[str, str, str], set[int]] = {}
    for row in rows:
        seconds.setdefault((row["user"], row["term"], str(row["at"])), set()).add(int(row["seconds"]))
    assert all(len(found) == 1 for found in seconds.values())
    every = sorted(value for found in seconds.values() for value in found)
    assert 1 <= every[0] < 10
    assert 200 < every[-1] <= 481
