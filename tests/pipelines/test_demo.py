"""What `tidegate demo` shows is so, and it says so when it is not."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from rich.console import Console

from tidegate.pipelines import demo, show
from tidegate.pipelines.cli import command
from tidegate.pipelines.demo import DAY, Day, load_day, refuse_broken_promises, run_demo, spec_text
from tidegate.pipelines.reader import read_releases
from tidegate.pipelines.simulate import simulate
from tidegate.pipelines.spec import Spec, load_spec, parse_spec
from tidegate.transforms.problems import SafeError

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "searches.yaml"
SMALL = replace(DAY, events=40_000, units=4_000, keys=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo that has been run, with what it said in `said.txt`."""
    folder = tmp_path_factory.mktemp("demo")
    out = on_paper(80)
    run_demo(folder, out=out)
    (folder / "said.txt").write_text(words(out), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def spec(folder: Path) -> Spec:
    return load_spec(folder / "searches.yaml")


@pytest.fixture(scope="module")
def day(folder: Path, spec: Spec) -> Day:
    return load_day(spec, folder / "stream" / "truth.parquet")


def on_paper(width: int) -> Console:
    return Console(file=io.StringIO(), width=width)


def words(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def plant(path: Path, spoil: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(spoil(pq.read_table(path)), path)


def test_the_example_is_what_the_demo_runs(spec: Spec) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert text == spec_text(Path("demo"))
    example = parse_spec(text)
    assert example.digest == spec.digest
    assert example.window == spec.window
    assert (spec.bound.keys, spec.gate.epsilon, spec.gate.delta, spec.window.windows.count) == (3, 1.0, 1e-9, 24)


def test_it_leaves_what_it_speaks_of(folder: Path) -> None:
    for name in ("stream/truth.parquet", "releases", "state/secret", "searches.yaml"):
        assert (folder / name).exists()
    assert list((folder / "dead").glob("*.jsonl"))
    picture = (folder / "demo.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 50_000


def test_it_says_what_a_reader_finds(folder: Path, day: Day) -> None:
    said, rows = (folder / "said.txt").read_text(encoding="utf-8"), len(read_releases(str(folder / "releases")))
    assert rows > 300
    assert f"✓ {rows} of {rows} published ranges contain the true count" in said
    assert "✓ no term was published that nobody searched for" in said
    assert "416,000 rows read" in said
    assert "4,000 dead letters" in said
    assert "24 windows released" in said
    assert f"{rows} rows released" in said
    assert "epsilon 1, delta 1e-9 for everything one user does in one hour" in said
    assert "a real stream has no such column" in said
    assert f"tidegate check {folder}/searches.yaml" in said


def test_ranges_hold_by_a_join_that_shares_no_code(folder: Path) -> None:
    released = read_releases(str(folder / "releases")).select(["window_start", "key", "value", "low", "high"])
    truth = pq.read_table(folder / "stream" / "truth.parquet").select(["window_start", "key", "units"])
    joined = released.join(truth, ["window_start", "key"], join_type="left outer")
    assert len(joined) == len(released)
    assert joined["units"].null_count == 0
    assert pc.all(pc.less_equal(joined["low"], joined["units"])).as_py()
    assert pc.all(pc.greater_equal(joined["high"], joined["units"])).as_py()
    assert pc.any(pc.not_equal(joined["value"], joined["units"])).as_py()  # there is noise at all


def test_the_chosen_terms_are_what_they_are_called(day: Day) -> None:
    chosen = {why.split()[0]: index for index, why in show.choose(day)}
    assert set(chosen) == {"popular", "born", "gone", "away", "near"}
    assert len(show.choose(day)) == 6
    alive, shown = day.truth > 0, day.published
    assert shown[chosen["popular"]].all()
    assert not alive[chosen["born"], 0]
    assert alive[chosen["born"], -1]
    assert alive[chosen["gone"], 0]
    assert not alive[chosen["gone"], -1]
    assert alive[chosen["away"], [0, -1]].all()
    assert not alive[chosen["away"]].all()
    assert alive[chosen["near"]].all()
    assert 3 <= shown[chosen["near"]].sum() <= 21


def test_the_universe_adds_up(day: Day) -> None:
    counts = show.universe(day)
    assert (counts["searched for"] == counts["published"] + counts["suppressed"]).all()
    change = counts["first seen"] + counts["came back"] - counts["dropped out"]
    assert (np.diff(counts["published"]) == change[1:]).all()
    assert counts["first seen"].sum() + counts["published"][0] == day.published.any(axis=1).sum()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_it_fits_the_terminal_and_leaves_no_escapes_elsewhere(spec: Spec, day: Day, width: int) -> None:
    out = on_paper(width)
    show.print_day(spec, day, {"rows_read": 416_000, "dead_bad_time": 4_000, "windows_published": 24}, out)
    show.print_check(day, out)
    lines = words(out).splitlines()
    assert "\x1b" not in words(out)
    assert "…" not in words(out)
    assert max(map(len, lines)) <= width
    assert len(lines) == (41 if width == 80 else 40)  # nothing wraps but the head of a column


def test_a_console_without_unicode_is_spoken_to_in_ascii(spec: Spec, day: Day) -> None:
    paper = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    out = Console(file=paper, width=80)
    show.print_day(spec, day, {}, out)
    show.print_check(day, out)


def test_a_wrong_truth_is_noticed(folder: Path, spec: Spec, day: Day, tmp_path: Path) -> None:
    refuse_broken_promises(day)
    key = day.keys[show.choose(day)[0][0]]

    def raise_one(truth: pa.Table) -> pa.Table:
        units = truth["units"].to_pylist()
        units[truth["key"].to_pylist().index(key)] += 2 * day.half_width + 1
        return truth.set_column(truth.schema.get_field_index("units"), "units", pa.array(units))

    def forget_one(truth: pa.Table) -> pa.Table:
        return truth.filter(pc.not_equal(truth["key"], key))

    for spoil, sentence in ((raise_one, "1 of .* ranges do not hold"), (forget_one, "24 of .* searched for by nobody")):
        truth = tmp_path / "truth.parquet"
        truth.write_bytes((folder / "stream" / "truth.parquet").read_bytes())
        plant(truth, spoil)
        planted = load_day(spec, truth)
        with pytest.raises(SafeError, match=sentence):
            refuse_broken_promises(planted)
        out = on_paper(80)
        show.print_check(planted, out)
        assert "✗" in words(out)


def test_it_runs_again_and_fails_with_a_wrong_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A secret of real releases must not be touched: the demo would show its noise to anybody.
    monkeypatch.setenv("TIDEGATE_SECRET_FILE", str(tmp_path / "precious"))
    place = tmp_path / "new" / "demo"
    run_demo(place, SMALL, on_paper(80))
    (place / "notes.txt").write_text("mine")
    monkeypatch.setattr(demo, "simulate", spoilt_simulate(simulate))
    out = on_paper(80)
    with pytest.raises(SafeError, match="the promise is broken"):
        run_demo(place, SMALL, out)
    assert "✗" in words(out)
    assert not (place / "demo.png").exists()  # its title would be a lie
    monkeypatch.undo()
    monkeypatch.setenv("TIDEGATE_SECRET_FILE", str(tmp_path / "precious"))
    run_demo(place, SMALL, on_paper(80))
    assert (place / "demo.png").exists()
    assert (place / "notes.txt").read_text() == "mine"
    assert os.environ["TIDEGATE_SECRET_FILE"] == str(tmp_path / "precious")


def spoilt_simulate(make: Callable[..., None]) -> Callable[..., None]:
    def spoilt(out: Path, *others: Any) -> None:
        make(out, *others)
        plant(out / "truth.parquet", lambda truth: truth.set_column(3, "units", pc.add(truth["units"], 1000)))

    return spoilt


def test_it_leaves_alone_what_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "stream").mkdir()
    (tmp_path / "stream" / "work.txt").write_text("mine")
    told = CliRunner().invoke(command, ["demo", str(tmp_path)])
    assert isinstance(told.exception, SafeError)
    assert "not a demo's" in str(told.exception)
    assert [path.name for path in tmp_path.rglob("*")] == ["stream", "work.txt"]
    for place, sentence in ((tmp_path / "stream" / "work.txt", "is a file"), (tmp_path / "[a]", "must do without")):
        with pytest.raises(SafeError, match=sentence):
            run_demo(place, SMALL, on_paper(80))


def test_an_edited_spec_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    for name in (".tidegate-demo", "searches.yaml"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with (tmp_path / "searches.yaml").open("a") as spec:
        spec.write("# my note\n")
    with pytest.raises(SafeError, match="has been changed"):
        run_demo(tmp_path, SMALL, on_paper(80))


def test_without_matplotlib_it_says_how_to_get_it(
    spec: Spec, day: Day, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    err = on_paper(200)
    assert not demo._draw(spec, day, tmp_path / "demo.png", err)
    assert "pip install 'tidegate[plots]'" in words(err)
