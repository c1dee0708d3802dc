"""The `tidegate` command: what it writes where, what it says, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
import shutil
import stat
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

from tidegate.pipelines import job
from tidegate.pipelines.cli import command, main
from tidegate.pipelines.publish import publish
from tidegate.pipelines.simulate import Simulation, simulate
from tidegate.pipelines.spec import parse_spec
from tidegate.transforms.release import ROW_SCHEMA, Release
from tidegate.transforms.seal import manifest
from tidegate.version import __version__

WINDOWS = 4
ROWS = 20_000
STARTS = [f"2026-01-01T{hour:02d}:00:00Z" for hour in range(WINDOWS)]
Row = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """How a command ended and what it wrote."""

    code: object
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Standard output as words, whatever the width of the terminal."""
        return " ".join(self.out.decode().split())


def tidegate(*arguments: object) -> Answer:
    """The command in this process: Beam takes seconds to import."""
    out, err = io.BytesIO(), io.BytesIO()
    streams = [io.TextIOWrapper(raw, encoding="utf-8", write_through=True) for raw in (out, err)]
    code: object = 0
    level = logging.getLogger().level
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        patch.setattr(sys, "argv", ["tidegate", *map(str, arguments)])
        patch.delenv("TIDEGATE_SECRET_FILE", raising=False)
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        finally:
            logging.getLogger().setLevel(level)
    return Answer(code, out.getvalue(), err.getvalue().decode())


def really(*arguments: object) -> Answer:
    """The command as people start it, down to the file descriptors."""
    line = [sys.executable, "-m", "tidegate", *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, check=False)
    return Answer(done.returncode, done.stdout, done.stderr.decode())


def write_spec(path: Path, **changes: Any) -> Path:
    """A spec whose folders lie beside it; None leaves a field out."""
    here = path.parent
    fields = {
        "stream": "searches",
        "columns": {"unit": "user", "key": "term", "time": "at"},
        "window": {"size": "1h", "start": STARTS[0], "end": f"2026-01-01T{WINDOWS:02d}:00:00Z"},
        "bound": {"keys": 3},
        "gate": {"epsilon": 1.0, "delta": 1e-9},
        "source": {"files": f"{here}/events/events-*.parquet"},
        "sink": {"files": f"{here}/releases"},
        "dead_letters": f"{here}/dead",
        "state": f"{here}/state",
    }
    fields.update(changes)
    path.write_text(yaml.safe_dump({name: value for name, value in fields.items() if value is not None}))
    return path


@dataclass(frozen=True)
class Place:
    """A folder with events, a spec, and what a run of it released and said."""

    folder: Path
    first_run: Answer

    @property
    def spec(self) -> Path:
        return self.folder / "spec.yaml"

    @property
    def releases(self) -> Path:
        return self.folder / "releases"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("place")
    simulate(folder / "events", Simulation(events=ROWS, units=2_000, keys=40, windows=WINDOWS, files=2))
    return Place(folder, really("run", write_spec(folder / "spec.yaml")))


@pytest.fixture(scope="module")
def rows(place: Place) -> list[Row]:
    """All released rows, read by somebody else's reader."""
    found: list[Row] = []
    for file in sorted(place.releases.glob("*/rows-*.avro")):
        with file.open("rb") as stream:
            found.extend(row for row in fastavro.reader(stream) if isinstance(row, dict))
    return found


@pytest.fixture
def copy(place: Place, tmp_path: Path) -> Path:
    """The releases, to do harm to."""
    return Path(shutil.copytree(place.releases, tmp_path / "releases"))


def window_folders(releases: Path) -> list[Path]:
    return sorted(releases.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Help.


@pytest.mark.parametrize("name", sorted(command.commands))
def test_every_command_explains_itself_with_examples(name: str) -> None:
    answer = tidegate(name, "--help")
    assert (answer.code, answer.err) == (0, "")
    _, examples, lines = answer.out.decode().partition("Examples:\n")
    assert examples, answer.text
    assert f"  tidegate {name}" in lines


def test_the_command_itself_lists_its_commands_and_where_to_start() -> None:
    answer = tidegate("-h")
    assert answer.code == 0
    assert set(re.findall(r"^  (\w+) ", answer.out.decode(), re.MULTILINE)) >= {"check", "read", "run", "simulate"}
    assert "Start with: tidegate simulate" in answer.text


def test_python_dash_m_tells_the_version() -> None:
    assert really("--version") == Answer(0, f"tidegate, version {__version__}\n".encode(), "")


@pytest.mark.parametrize("line", [("flood",), ("run",), ("run", "spec.yaml", "--direct_num_workers=2")], ids=str)
def test_a_wrong_command_line_ends_with_2(line: tuple[str, ...]) -> None:
    answer = tidegate(*line)
    assert (answer.code, answer.out) == (2, b"")
    assert "Error:" in answer.err


# check


@pytest.mark.parametrize(
    ("epsilon", "delta", "keys", "half_width"), [(1.0, 1e-9, 3, 61), (1.0, 1e-5, 1, 11), (0.05, 1e-19, 1, 802)]
)
def test_check_tells_programs_what_a_spec_promises(
    tmp_path: Path, epsilon: float, delta: float, keys: int, half_width: int
) -> None:
    gate = {"epsilon": epsilon, "delta": delta}
    answer = tidegate("check", write_spec(tmp_path / "spec.yaml", gate=gate, bound={"keys": keys}), "--json")
    assert (answer.code, answer.err) == (0, "")
    told = json.loads(answer.out)
    assert told["gate"]["half_width"] == half_width
    assert told["gate"]["threshold"] == half_width + 1
    assert (told["epsilon"], told["delta"], told["unit"], told["windows"]) == (epsilon, delta, "user", WINDOWS)
    assert told["bound"] == {"keys": keys, "per_key": 1}
    assert told["all_windows"]["epsilon"] == pytest.approx(epsilon * WINDOWS)
    assert told["window"]["start"] == STARTS[0]


def test_check_tells_at_which_counts_a_key_is_likely_to_appear(place: Place) -> None:
    survival = json.loads(tidegate("check", place.spec, "--json").out)["survival"]
    counts, chances = [item["count"] for item in survival], [item["chance"] for item in survival]
    assert counts[0] == 1
    assert counts == sorted(set(counts))
    assert chances == sorted(chances)
    assert 0 < chances[0] <= 1e-9
    # The noise is symmetric, so a key right at the threshold has a chance of a little more than a half.
    (at_threshold,) = (item["chance"] for item in survival if item["count"] == 62)
    assert 0.5 < at_threshold < 0.6


def test_check_tells_people_the_threshold_and_the_chances(place: Place) -> None:
    answer = tidegate("check", place.spec)
    assert (answer.code, answer.err) == (0, "")
    assert "searches: a private release for each of 4 windows" in answer.text
    assert "Protects everything one user does in one window" in answer.text
    assert "a key appears when its noisy count of units is 62 or more" in answer.text
    assert "every published number is within 61 of the truth, for certain" in answer.text
    assert "Chance that a key appears, by its units in a window" in answer.text
    for item in json.loads(tidegate("check", place.spec, "--json").out)["survival"]:
        assert re.search(rf" {item['count']} . [\d.e-]+( %)? ", answer.text)
    assert "2 source files found" in answer.text


def test_check_notes_that_no_files_are_there_yet(tmp_path: Path) -> None:
    spec = write_spec(tmp_path / "spec.yaml", dead_letters=None)
    answer = tidegate("check", spec)
    assert (answer.code, answer.err) == (0, "")
    assert "note source.files must match at least one file, and nothing matches" in answer.text
    assert "note dead_letters is not set" in answer.text
    assert "0 source files found" in answer.text
    told = json.loads(tidegate("check", spec, "--json").out)
    assert told["source_files"] == 0
    assert len(told["warnings"]) == 2


def test_check_shows_names_as_they_are_written(tmp_path: Path) -> None:
    columns = {"unit": "user[/id]", "key": "term", "time": "at"}
    source = {"files": f"{tmp_path}/[a-z]*.csv"}
    answer = tidegate("check", write_spec(tmp_path / "spec.yaml", columns=columns, source=source))
    assert answer.code == 0
    assert "everything one user[/id] does in one window" in answer.text
    assert "[a-z]*.csv" in answer.text


def test_check_refuses_a_column_that_is_not_there(place: Place, tmp_path: Path) -> None:
    spec = write_spec(
        tmp_path / "spec.yaml",
        columns={"unit": "user", "key": "search_term", "time": "at"},
        source={"files": f"{place.folder}/events/events-*.parquet"},
    )
    answer = tidegate("check", spec)
    assert (answer.code, answer.out) == (2, b"")
    assert answer.err == (
        f"tidegate: columns.key must be a column of {place.folder}/events/events-00000.parquet, "
        f"and 'search_term' is not one; the columns there are user, term, at, seconds\n"
    )


def test_check_leaves_nothing_behind(tmp_path: Path) -> None:
    tidegate("check", write_spec(tmp_path / "spec.yaml"))
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"]


# run


def test_run_releases_every_window_and_tells_the_operator_on_standard_error(place: Place) -> None:
    assert place.first_run.code == 0
    assert place.first_run.out == b""
    assert place.first_run.err == (
        f"released {WINDOWS} windows to {place.releases}\nfor the operator: {ROWS:,} rows read\n"
    )
    assert [folder.name for folder in window_folders(place.releases)] == [
        f"20260101T{hour:02d}0000Z-20260101T{hour + 1:02d}0000Z" for hour in range(WINDOWS)
    ]


def test_run_keeps_its_state_to_its_owner_and_its_progress_to_itself(place: Place) -> None:
    state = place.folder / "state"
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert [path.name for path in state.iterdir()] == ["secret"]
    assert stat.S_IMODE((state / "secret").stat().st_mode) == 0o600


def test_run_again_changes_nothing_and_says_so(place: Place) -> None:
    before = contents(place.releases)
    answer = tidegate("run", place.spec)
    assert (answer.code, answer.out) == (0, b"")
    assert f"released 0 windows to {place.releases}, {WINDOWS} were there already\n" in answer.err
    assert contents(place.releases) == before


def test_run_on_other_events_refuses_a_second_release_and_changes_no_byte(place: Place, tmp_path: Path) -> None:
    events = Path(shutil.copytree(place.folder / "events", tmp_path / "events"))
    for file in events.glob("events-*.parquet"):
        table = pq.read_table(file)
        pq.write_table(table.slice(len(table) // 2), file)
    spec = write_spec(
        tmp_path / "spec.yaml",
        sink={"files": str(place.releases)},
        state=str(place.folder / "state"),
        dead_letters=None,
    )
    before = contents(place.releases)
    answer = tidegate("run", spec)
    assert (answer.code, answer.out) == (1, b"")
    note, sentence = answer.err.splitlines()
    assert note.startswith("note dead_letters is not set: rows that cannot be read are counted, not kept;")
    assert re.match(
        rf"tidegate: window {re.escape(str(place.releases))}/20260101T\d{{6}}Z-20260101T\d{{6}}Z is published already, "
        r"and the events or the secret have changed since; a second release of a window would weaken its privacy, "
        r"so nothing was written: restore what has changed, or name another stream and sink",
        sentence,
    )
    assert contents(place.releases) == before


def test_run_under_other_terms_refuses_a_second_release(place: Place, tmp_path: Path) -> None:
    spec = write_spec(
        tmp_path / "spec.yaml",
        gate={"epsilon": 2.0, "delta": 1e-9},
        source={"files": f"{place.folder}/events/events-*.parquet"},
        sink={"files": str(place.releases)},
        state=str(place.folder / "state"),
    )
    before = contents(place.releases)
    answer = tidegate("run", "--quiet", spec)
    assert (answer.code, answer.out) == (1, b"")
    assert "it was released under other terms (its spec_digest differs)" in answer.err
    assert contents(place.releases) == before


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_releases_say_the_same_in_every_format_of_the_sink(
    place: Place, rows: list[Row], tmp_path: Path, kind: str
) -> None:
    spec = write_spec(
        tmp_path / "spec.yaml",
        source={"files": f"{place.folder}/events/events-*.parquet"},
        sink={"files": str(tmp_path / "releases"), "format": kind},
        state=str(place.folder / "state"),
    )
    assert tidegate("run", "--quiet", spec) == Answer(0, b"", "")
    answer = tidegate("read", tmp_path / "releases", "--format", "jsonl")
    assert from_jsonl(answer.out) == rows


def test_run_says_in_a_sentence_that_its_state_is_no_folder(place: Place, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    answer = tidegate("run", write_spec(tmp_path / "spec.yaml"))
    assert (answer.code, answer.out) == (2, b"")
    assert answer.err == (
        f"tidegate: state must be a folder that can be written, and {tmp_path}/state is none (File exists); "
        f"write another folder\n"
    )


def test_run_says_when_it_was_interrupted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "run", interrupted)
    answer = tidegate("run", "--quiet", place.spec)
    assert (answer.code, answer.out) == (130, b"")
    assert answer.err.strip() == (
        "tidegate: interrupted; windows that are published stay, nothing else was left visible: run again to go on"
    )


# read


def from_jsonl(data: bytes) -> list[Row]:
    return [typed(json.loads(line)) for line in data.decode().splitlines()]


def from_csv(data: bytes) -> list[Row]:
    return [typed(row) for row in csv.DictReader(io.StringIO(data.decode(), newline=""))]


def from_parquet(data: bytes) -> list[Row]:
    return list(pq.read_table(pa.BufferReader(data)).to_pylist())


def from_avro(data: bytes) -> list[Row]:
    return [row for row in fastavro.reader(io.BytesIO(data)) if isinstance(row, dict)]


def typed(row: Row) -> Row:
    """A row of a format that knows no times, or not even numbers."""
    times = {name: instant(row[name]) for name in ("window_start", "window_end")}
    return {**row, **times, **{name: float(row[name]) for name in ("value", "low", "high", "epsilon", "delta")}}


def instant(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


READERS = {"jsonl": from_jsonl, "csv": from_csv, "parquet": from_parquet, "avro": from_avro}


@pytest.mark.parametrize("kind", READERS)
def test_read_gives_the_same_rows_in_every_format(place: Place, rows: list[Row], kind: str) -> None:
    assert len({row["window_start"] for row in rows}) == WINDOWS
    assert {name for row in rows for name in row} == set(ROW_SCHEMA.names)
    answer = tidegate("read", place.releases, "--format", kind)
    assert (answer.code, answer.err) == (0, "")
    assert READERS[kind](answer.out) == rows


def test_read_writes_to_a_file_instead(place: Place, rows: list[Row], tmp_path: Path) -> None:
    answer = tidegate("read", place.releases, "--format", "parquet", "--out", tmp_path / "rows.parquet")
    assert answer == Answer(0, b"", "")
    assert from_parquet((tmp_path / "rows.parquet").read_bytes()) == rows


def test_read_shows_people_a_table(place: Place, rows: list[Row]) -> None:
    answer = tidegate("read", place.releases, "--limit", 5)
    assert (answer.code, answer.err) == (0, "")
    assert f"{len(rows)} released rows, the first 5" in answer.text
    assert answer.out.decode().count(STARTS[0]) == 5
    first = rows[0]
    assert f"{first['value']:.0f}" in answer.text
    assert f"{first['low']:.0f} to {first['high']:.0f}" in answer.text


def test_read_shows_a_key_as_it_is_and_sends_nothing_to_the_terminal(tmp_path: Path) -> None:
    keys = ["[/red]", "[bold]tide[/bold]", "bell \a and \x1b[31m colour"]
    terms = parse_spec(
        write_spec(tmp_path / "spec.yaml", window={"size": "1h", "start": STARTS[0], "end": STARTS[1]}).read_text()
    )
    begin, end = terms.window.windows.bounds(0)
    same = {"stream": "searches", "window_start": begin, "window_end": end, "measure": "units", "value": 99.0}
    rest = {"low": 38.0, "high": 160.0, "mechanism": "truncated-geometric", "epsilon": 1.0, "delta": 1e-9}
    table = pa.Table.from_pylist(
        [{"key": key, "spec_digest": terms.digest, **same, **rest} for key in keys], schema=ROW_SCHEMA
    )
    release = Release(0, terms.window.windows.folder(0), table, manifest(terms, 0, len(table)))
    assert publish(release, str(tmp_path / "releases"), "avro")

    answer = tidegate("read", tmp_path / "releases")
    assert answer.code == 0
    assert "[/red]" in answer.text
    assert "[bold]tide[/bold]" in answer.text
    assert b"\a" not in answer.out
    assert b"\x1b" not in answer.out
    assert [row["key"] for row in from_jsonl(tidegate("read", tmp_path / "releases", "--format", "jsonl").out)] == keys


def test_read_keeps_to_the_windows_and_keys_it_is_asked_for(place: Place, rows: list[Row]) -> None:
    def read(*options: str) -> list[Row]:
        return from_jsonl(tidegate("read", place.releases, "--format", "jsonl", *options).out)

    some = [row for row in rows if row["window_start"] == instant(STARTS[1])]
    assert some
    assert read("--window", STARTS[1]) == some
    assert read("--window", "2026-01-01T03:00:00+02:00") == some
    two = [row for row in rows if row["window_start"] in (instant(STARTS[0]), instant(STARTS[3]))]
    assert read("--window", STARTS[3], "--window", STARTS[0]) == two
    key, other = rows[0]["key"], rows[1]["key"]
    assert read("--key", key) == [row for row in rows if row["key"] == key]
    assert read("--key", key, "--key", other) == [row for row in rows if row["key"] in (key, other)]
    assert read("--key", key, "--window", STARTS[1]) == [row for row in some if row["key"] == key]
    assert read("--key", "nobody searched for this") == []


@pytest.mark.parametrize(
    ("window", "sentence"),
    [
        (
            "2026-01-01T09:00:00Z",
            "no window begins at 2026-01-01T09:00:00Z; the first begins at 2026-01-01T00:00:00Z, "
            "the last at 2026-01-01T03:00:00Z",
        ),
        ("noon", "'noon' is not an RFC 3339 time; write 2026-01-01T00:00:00Z"),
    ],
)
def test_read_says_which_windows_there_are_if_asked_for_another(place: Place, window: str, sentence: str) -> None:
    assert tidegate("read", place.releases, "--window", window) == Answer(1, b"", f"tidegate: {sentence}\n")


@pytest.mark.parametrize(("gone", "missing"), [([0], 0), ([2], 2), ([3], 3), ([1, 2], 1)], ids=str)
def test_read_does_not_pass_over_a_missing_window(copy: Path, rows: list[Row], gone: list[int], missing: int) -> None:
    for window in gone:
        (window_folders(copy)[window] / "manifest.json").unlink()
    more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
    answer = tidegate("read", copy, "--format", "jsonl")
    assert (answer.code, answer.out) == (1, b"")
    assert answer.err == (
        f"tidegate: the window that begins at {STARTS[missing]} is missing{more}; its run has not finished or has "
        f"failed: run it again, or read what there is with --allow-gaps (allow_gaps=True)\n"
    )

    answer = tidegate("read", copy, "--format", "jsonl", "--allow-gaps")
    assert (answer.code, answer.err) == (0, "")
    lost = [instant(STARTS[window]) for window in gone]
    assert from_jsonl(answer.out) == [row for row in rows if row["window_start"] not in lost]


def test_read_refuses_rows_that_were_tampered_with(copy: Path) -> None:
    (file,) = window_folders(copy)[1].glob("rows-*.avro")
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    sentence = f"{file} is not what its manifest says (its SHA-256 differs); restore it from a copy"
    assert tidegate("read", copy) == Answer(1, b"", f"tidegate: {sentence}\n")


def test_read_refuses_a_window_whose_rows_are_gone(copy: Path) -> None:
    (file,) = window_folders(copy)[1].glob("rows-*.avro")
    file.unlink()
    answer = tidegate("read", copy)
    assert (answer.code, answer.out) == (1, b"")
    assert re.fullmatch(
        rf"tidegate: {re.escape(str(file))} cannot be read \(\w+\), although its manifest names it\n", answer.err
    )


def test_read_refuses_a_manifest_that_is_none(copy: Path) -> None:
    path = window_folders(copy)[1] / "manifest.json"
    path.write_text("[]")
    sentence = f"{path} is not a manifest of tidegate; move the folder away, or name another sink"
    assert tidegate("read", copy) == Answer(1, b"", f"tidegate: {sentence}\n")


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_read_says_that_a_folder_holds_no_releases(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    sentence = f"{tmp_path / name} holds no releases; name the folder or topic that a spec has as its sink"
    assert tidegate("read", tmp_path / name) == Answer(1, b"", f"tidegate: {sentence}\n")


def test_read_says_where_it_could_not_write(place: Place, tmp_path: Path) -> None:
    answer = tidegate("read", place.releases, "--out", tmp_path / "absent" / "rows.jsonl")
    assert answer == Answer(1, b"", f"tidegate: No such file or directory: {tmp_path}/absent/rows.jsonl\n")


# simulate


def test_simulate_writes_events_and_truth_and_says_where(tmp_path: Path) -> None:
    line = ("--events", 500, "--units", 50, "--keys", 10, "--windows", 3, "--files", 1, "--format", "csv")
    answer = tidegate("simulate", tmp_path / "out", *line)
    assert (answer.code, answer.out) == (0, b"")
    assert answer.err.endswith(f"events and truth are in {tmp_path}/out\n")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "events-00000.csv",
        "simulation.json",
        "truth.parquet",
    ]
    truth = pq.read_table(tmp_path / "out" / "truth.parquet")
    assert pc.sum(truth["events"]).as_py() == 500


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (("--events", "0"), "events must be a whole number from 1 to 1000000000, not 0; write events=1."),
        (("--churn", "2"), "churn must be a share from 0 to 1, not 2.0; write churn=0.05."),
        (("--files", "99"), "files must be at most windows (24), not 99; write files=24."),
        (
            ("--window-size", "1 hour"),
            "--window-size must be a whole number and a unit of s, m, h, d or w, not '1 hour'; write 15m or 1h",
        ),
        (("--window-size", "999999w"), "--window-size must be at most 36500d, not '999999w'; write 15m or 1h"),
        (("--start", "noon"), "--start must be an RFC 3339 time, not 'noon'; write 2026-01-01T00:00:00Z"),
        (
            ("--start", "2026-01-01T12:00:00"),
            "--start must say its offset from UTC, and 2026-01-01T12:00:00 does not; write 2026-01-01T12:00:00Z",
        ),
    ],
    ids=" ".join,
)
def test_simulate_refuses_a_bad_parameter_with_a_sentence(tmp_path: Path, line: tuple[str, ...], sentence: str) -> None:
    assert tidegate("simulate", tmp_path / "out", *line) == Answer(2, b"", f"tidegate: {sentence}\n")
    assert not (tmp_path / "out").exists()


def test_simulate_does_not_touch_a_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("ten years of work")
    answer = tidegate("simulate", tmp_path)
    assert (answer.code, answer.out) == (2, b"")
    assert "out must be a new or empty folder" in answer.err
    assert (tmp_path / "thesis.txt").read_text() == "ten years of work"
