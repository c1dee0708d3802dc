"""The benchmarks run, and say what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pytest

from benchmarks import mechanisms, pages, release, stages
from benchmarks.peers import __main__ as peers
from benchmarks.peers import contenders, measuring, report, utility
from benchmarks.peers.programs.job import Job
from benchmarks.peers.programs.tidegate_release import spec
from benchmarks.scale import __main__ as scale
from benchmarks.scale import measuring as scale_measuring
from benchmarks.scale import model, streams, sweeps
from benchmarks.scale import report as scale_report
from tidegate.mechanisms.registry import names
from tidegate.pipelines.spec import Spec
from tidegate.transforms.closing import HoldFn


def measured(contender: str, events: int, repeat: int, startup: float, work: float) -> dict[str, Any]:
    times = {"startup": startup, "work": work, "total": startup + work, "cpu": work, "rss": 2**20}
    return {"contender": contender, "events": events, "repeat": repeat, **times}


def made_up(slow: float) -> list[dict[str, Any]]:
    """Two repetitions, the second on a machine that is ten times slower."""
    million, ten = 10**6, 10**7
    found = []
    for repeat, load in enumerate((1.0, 10.0)):
        for events, ours in ((million, 0.5), (ten, 4.0 * slow)):
            seconds = {
                "ours": ours,
                "arrow-threads": ours * 2,
                "arrow-single": ours / 2 / slow,
                "arrow-dictionaries": 1.0,
            }
            for name, work in seconds.items():
                found.append(measured(name, events, repeat, load * 0.5, load * work))
        found.append(measured("rows", million, repeat, load * 2.0, load * 18.0))
    return found


def test_ratios_are_within_repetitions_and_against_the_faster_of_two() -> None:
    summary = release.summarise(made_up(1.0))
    ratios = {(row["over"], row["under"], row["events"]): row for row in summary["ratios"]}
    assert ratios["ours", "arrow-single", 10**7]["work"] == [2.0, 2.0, 2.0]
    assert ratios["rows", "ours", 10**6]["total"] == [20.0, 20.0, 20.0]
    assert summary["growth"]["work"] == pytest.approx([0.8] * 3)
    seconds = {(row["contender"], row["events"]): row for row in summary["seconds"]}
    assert seconds["ours", 10**6]["work"] == [2.75, 0.5, 5.0]


def test_targets_are_judged_by_what_was_measured() -> None:
    assert [met for _, _, met in release.targets(release.summarise(made_up(1.0)))] == ["yes"] * 5
    assert [met for _, _, met in release.targets(release.summarise(made_up(2.0)))] == ["yes", "yes", "NO", "NO", "NO"]
    elsewhere = [one | {"events": one["events"] // 10} for one in made_up(1.0)]
    assert [met for _, _, met in release.targets(release.summarise(elsewhere))] == ["-"] * 5


@pytest.mark.slow
def test_release_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release.main(["--sizes", "2000", "--repeats", "1", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "release.json").read_text())
    assert {one["contender"] for one in written["measurements"]} == set(release.WORDS)
    for one in written["measurements"]:
        assert one["total"] > one["startup"] > one["t_import"] > 0
        assert one["rss"] > 2**20
    assert [met for _, _, met in written["targets"]] == ["-"] * 5
    assert "| 2,000 | ours: private release |" in (tmp_path / "release.md").read_text()
    captured = capsys.readouterr()
    assert "[least–most]" in captured.out
    assert "1/1 2,000 rows" in captured.err


@pytest.mark.slow
def test_stages_come_to_the_releases_of_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages.main(["--size", "3000", "--repeats", "1", "--out", str(tmp_path)])
    seconds = json.loads((tmp_path / "stages.json").read_text())["seconds"]
    assert {"read", "decode", "gate: draw", "seal", "publish: encode", "the real job"} <= set(seconds)
    assert "all stages" in capsys.readouterr().out


def test_every_mechanism_is_measured_next_to_the_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mechanisms.main(["--keys", "500", "--repeats", "2", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "mechanisms.json").read_text())["rows"]
    assert rows[0]["mechanism"] == mechanisms.BASE
    assert (rows[0]["ratio"], rows[0]["least"], rows[0]["most"]) == (1.0, 1.0, 1.0)
    assert all(row["least"] <= row["ratio"] <= row["most"] for row in rows)
    # All built-in mechanisms are there.
    measured_names = {contender.name for contender in mechanisms.contenders(["a"])}
    assert measured_names == set(names(("gate", "per-key", "per-window")))
    assert "of the count's time" in capsys.readouterr().out
    assert "MISSED" in mechanisms.as_table([{**rows[1], "ratio": 99.0}], 500)


# Peers: seconds of work at a million events, and at ten million, with a start-up of two seconds for everybody.
PEERS = {"tidegate": 1.0, "pipeline-dp-beam": 160.0, "pipeline-dp-local": 20.0, "beam-rows": 30.0}
PEERS_TEN = {"tidegate": 6.0, "opendp-context": 90.0, "opendp-core": 80.0, "duckdb": 5.0, "pyarrow": 4.5}


def ran(contender: str, events: int, repeat: int, seconds: float) -> dict[str, Any]:
    times = {"seconds": seconds, "imports": 0.0, "processor": seconds, "memory": 2**20}
    return {"contender": contender, "events": events, "repeat": repeat, **times}


def made_up_peers(slow: float) -> list[dict[str, Any]]:
    """Two repetitions, the second on a machine that is ten times slower; ours takes `slow` times as long as it might."""
    found = []
    for repeat, load in enumerate((1.0, 10.0)):
        for name in contenders.WORDS:
            found.append(ran(name, measuring.TINY, repeat, load * 2.0))
            for events, works in ((10**6, {**PEERS, "opendp-core": 3.0, "opendp-context": 9.0}), (10**7, PEERS_TEN)):
                if name in works:
                    work = works[name] * (slow if name == contenders.OURS else 1.0)
                    found.append(ran(name, events, repeat, load * (2.0 + work)))
    return found


def test_ratios_to_peers_are_within_repetitions_with_and_without_start_up() -> None:
    summary = report.summarise(made_up_peers(1.0))
    ratios = {(row["contender"], row["events"]): row for row in summary["ratios"]}
    assert ratios["pipeline-dp-beam", 10**6]["seconds"] == [54.0] * 3
    assert ratios["pipeline-dp-beam", 10**6]["work"] == [160.0] * 3
    assert ratios["duckdb", 10**7]["work"] == pytest.approx([5 / 6] * 3)
    seconds = {(row["contender"], row["events"]): row for row in summary["seconds"]}
    assert seconds["tidegate", 10**6]["work"] == [5.5, 1.0, 10.0]


def test_a_ratio_of_nothing_but_start_up_is_not_given() -> None:
    found = [one | {"seconds": 2.0} if one["contender"] == "duckdb" else one for one in made_up_peers(1.0)]
    (row,) = [row for row in report.summarise(found)["ratios"] if row["contender"] == "duckdb"]
    assert row["work"] is None
    assert row["seconds"] is not None
    # A single start-up of ours that hid all of its work would make everybody else look slow.
    hidden = [
        one | {"seconds": 30.0} if (one["contender"], one["events"], one["repeat"]) == ("tidegate", 100, 0) else one
        for one in made_up_peers(1.0)
    ]
    assert all(row["work"] is None for row in report.summarise(hidden)["ratios"])
    assert {met for words, _, met in report.targets(report.summarise(hidden)) if "without" in words} == {"-"}


def test_targets_against_peers_are_judged_by_what_was_measured() -> None:
    # Of two floors and of two ways of OpenDP the faster one counts.
    assert [met for _, _, met in report.targets(report.summarise(made_up_peers(1.0)))] == ["met"] * 12
    missed = [met for _, _, met in report.targets(report.summarise(made_up_peers(4.0)))]
    assert missed == [
        "MISSED",
        "MISSED",
        "MISSED",
        "met",
        "met",
        "MISSED",
        *("MISSED", "met", "MISSED", "met", "met", "MISSED"),
    ]
    others = [one | {"events": one["events"] // 10 if one["events"] > 100 else 100} for one in made_up_peers(1.0)]
    assert [met for _, _, met in report.targets(report.summarise(others))][:2] == ["-", "-"]


def published(way: str, *drawn: int, default: bool = False) -> dict[str, Any]:
    other = {"contender": "tidegate", "default": default, "epsilon": 1.0, "why": "it is better"}
    return {**other, "way": way, "keys": sum(drawn) / len(drawn), "keys_drawn": list(drawn)}


def test_who_publishes_more_is_said_and_a_reason_is_given_only_beyond_the_spread() -> None:
    default = published("default", 48, 50, 52, default=True)
    rows = [default, published("lucky", 49, 53, 54), published("better", 69, 70, 71), published("worse", 40, 45, 50)]
    lucky, better = utility.ahead_of_us(rows)
    assert "lucky publishes 52.0 keys where tidegate publishes 50.0: too little to tell from luck" in lucky
    assert better.endswith("it is better.")
    assert [row["way"] for row in utility.shown_rows(rows)] == ["default", "lucky", "better"]
    assert not utility.ahead_of_us([default, rows[-1]])
    (once,) = utility.ahead_of_us([published("default", 50, default=True), published("better", 70)])
    assert "luck" in once


def test_a_release_is_scored_against_the_truth() -> None:
    assert utility.score({"a": 52.0, "b": 24.0}, {"a": 50, "b": 30, "c": 20}) == {
        "keys": 2,
        "volume": 0.8,
        "error": 4.0,
    }
    assert utility.score({}, {"a": 1})["error"] is None


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("way", [way for way in utility.WAYS if way.contender == "tidegate"], ids=lambda way: way.mode)
def test_all_of_our_ways_keep_the_same_guarantee(way: utility.Way, epsilon: float, tmp_path: Path) -> None:
    job = Job("events.parquet", (), measuring.DELTA, measuring.KEYS, way.mode)
    promised = Spec.model_validate(spec(job, epsilon, tmp_path)).guarantee
    assert promised.epsilon == pytest.approx(epsilon)
    assert promised.delta <= measuring.DELTA


def test_a_page_is_filled_between_its_markers_and_another_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{pages.begin('one')}\nold\n{pages.END}\nafter\n")
    for _ in range(2):
        pages.fill(page, {"one": "new\n"})
        assert page.read_text() == f"before\n{pages.begin('one')}\nnew\n{pages.END}\nafter\n"
    with pytest.raises(ValueError, match="must have a line"):
        pages.fill(page, {"another": "new\n"})
    assert pages.begin(report.SECTION) in peers.PAGE.read_text()
    assert pages.begin("stages") in stages.PAGE.read_text()


def test_memory_is_that_of_a_process_and_its_children(tmp_path: Path) -> None:
    if not Path("/proc").exists():
        pytest.skip("needs /proc")
    child = "import time; kept = b'x' * 100_000_000; time.sleep(0.5)"
    parent = f"import subprocess, sys; kept = b'x' * 50_000_000; subprocess.run([sys.executable, '-c', {child!r}])"
    one = measuring.execute([sys.executable, "-c", parent], tmp_path / "log")
    assert 150_000_000 < one.memory < 300_000_000
    assert one.seconds > 0.5
    with pytest.raises(RuntimeError, match=r"ended with code 1: .*what went wrong"):
        measuring.execute([sys.executable, "-c", "raise ValueError('what went wrong')"], tmp_path / "log")


def test_peers_says_what_is_wrong_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--only", "tidegate,nobody"], ["--only", "duckdb"], ["--quick", "--write-docs"]):
        with pytest.raises(SystemExit):
            peers.main(options)
    told = capsys.readouterr().err
    assert "not nobody" in told
    assert "must have tidegate in it" in told
    assert "leave out --quick" in told


@pytest.mark.slow
def test_peers_benchmark_runs_and_exact_contenders_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peers.main(["--quick", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "peers.json").read_text())
    # A contender that found other counts than the true ones would have been an error.
    assert {one["contender"] for one in written["measurements"]} == set(peers.QUICK_NAMES)
    assert not written["left_out"]
    for one in written["measurements"]:
        assert 0 < one["imports"] < one["seconds"]
        assert one["memory"] > 2**24
    assert [met for _, _, met in written["targets"]] == ["-"] * 12
    assert {row["way"] for row in written["utility"]} == {w.words for w in utility.WAYS if w.contender == "tidegate"}
    assert all(0 < row["volume"] < 1 and row["keys"] > 0 for row in written["utility"])
    markdown = (tmp_path / "peers.md").read_text()
    assert "| 2,000 | tidegate run | 1 |" in markdown
    assert "![" in markdown
    assert (tmp_path / "peers.svg").read_text().startswith("<?xml")
    captured = capsys.readouterr()
    assert "DuckDB; not private" in captured.out
    assert "1/1 2,000 beam-rows" in captured.err
    # What was measured once can be shown again.
    peers.main(["--from-json", str(tmp_path / "peers.json"), "--out", str(tmp_path / "again")])
    assert (tmp_path / "again" / "peers.md").read_text() == markdown


def test_a_peer_is_installed_once_and_left_out_with_the_reason_where_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_CACHE", str(tmp_path))
    commands: list[list[str]] = []

    def install(command: list[str], **_: Any) -> None:
        commands.append(command)
        contenders.PIPELINE_DP.folder.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(subprocess, "run", install)
    for _ in range(2):
        contenders.PIPELINE_DP.prepare(print)
    assert [command[2] for command in commands] == ["venv", "pip"]
    assert contenders.PIPELINE_DP.folder == tmp_path / "peers" / "pipeline-dp-0.3.1"
    assert f"apache-beam=={version('apache-beam')}" in commands[1]

    def refuse(command: list[str], **_: Any) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", refuse)
    ready, left_out = contenders.prepared(["pipeline-dp-local", "opendp-core"], print)
    assert [contender.name for contender in ready] == ["pipeline-dp-local"]
    assert "could not be made" in left_out["opendp-core"]
    with pytest.raises(subprocess.CalledProcessError):
        contenders.prepared(["tidegate"], print)


# Scale: coefficients that made-up runs are made of, and that must be found again.
COSTS = {
    **{"events": 1e-7, "batch_units": 1e-6, "batch_pairs": 2e-7, "batch_keys": 9e-7},
    **{"keys": 2e-6, "windows": 5e-3},
}


def made_up_scale(
    dearer: float = 1.0, per_event_memory: float = 0.0, hot: float = 1.0, start_ups: tuple[float, ...] = (4.0,)
) -> list[dict[str, Any]]:
    """Two repetitions, the second on a machine that is ten times slower."""
    found = []
    for repeat, load in enumerate((1.0, 10.0)):
        for case in sweeps.cases(sweeps.LARGEST, 10 * sweeps.MILLION):
            stream, large = case.stream, case.label == "100,000,000" and case.sweep == "events"
            kept = min(stream.events, stream.units * min(case.bound, stream.keys_per_unit) * stream.windows)
            numbers = {"events": stream.events, "sent_rows": kept, "keys": stream.keys * stream.windows}
            numbers |= {"rows": stream.keys // 10, "windows": stream.windows}
            one = {"stream": asdict(stream), "events": stream.events, "windows": stream.windows, "pairs": kept}
            counted = {**numbers, **model.within_batches(one)}
            work = sum(cost * counted[name] for name, cost in COSTS.items())
            work *= (dearer if large else 1.0) * (hot if "half" in case.label else 1.0)
            units = min(kept, stream.units * stream.windows)
            moved = {
                model.BY_UNIT: 1000 * stream.windows + 12 * kept + 16 * units + 17 * numbers["keys"],
                model.BY_WINDOW: 30 * numbers["rows"],
            }
            moved |= dict.fromkeys((model.BY_KEY, model.BY_SHARD), 10 * numbers["keys"])
            found.append(
                {
                    **{
                        "stream": asdict(stream),
                        "repeat": repeat,
                        "sweep": case.sweep,
                        "label": case.label,
                        "bound": case.bound,
                    },
                    **{"seconds": load * (4 + work), "processor": 4 + work, "pairs": kept, "kept": kept},
                    **{"events": stream.events, "windows": stream.windows, "keys": numbers["keys"]},
                    "memory": 2**28 + 100 * kept + per_event_memory * stream.events,
                    **{"shuffled": moved, "sent_rows": kept, "sent_elements": stream.windows, "encoded_rows": kept},
                    **{"sent_units": units, "sent_keys": numbers["keys"]},
                    "published": {"windows": stream.windows, "rows": numbers["rows"], "bytes_a_row": 200.0},
                }
            )
        tiny = {"sweep": sweeps.TINY.sweep, "label": sweeps.TINY.label, "published": {"bytes_a_row": None}}
        found += [{**tiny, "repeat": repeat, "seconds": load * s, "processor": s, "memory": 2**28} for s in start_ups]
    return found


def judged(found: list[dict[str, Any]]) -> list[str]:
    return [met for _, _, met in scale_report.verdicts(found)]


def test_verdicts_of_scale_are_judged_by_what_was_measured() -> None:
    assert judged(made_up_scale()) == ["met"] * 12
    assert judged(made_up_scale(dearer=2.0))[:4] == ["MISSED"] * 4
    assert judged(made_up_scale(hot=1.6))[-4:] == ["MISSED"] * 4
    assert judged(made_up_scale(per_event_memory=100.0))[4:8] == ["MISSED", "met", "MISSED", "MISSED"]
    small = [one for one in made_up_scale() if one["sweep"] in (sweeps.STARTUP, "units")]
    assert judged(small) == [*["-"] * 5, "met", *["-"] * 6]
    ended = [one for one in made_up_scale() if one["label"] != "100,000,000"]
    assert scale_report.verdicts(ended, ["events: 100,000,000"])[4][2] == "MISSED"
    # Start-ups that differ by more than a run takes beside them say nothing, for or against.
    noisy = scale_report.verdicts(made_up_scale(start_ups=(1.0, 4.0, 4.0, 60.0)))
    assert noisy[0][1:] == ("too noisy to tell", "-")


def test_the_cost_model_finds_the_costs_and_is_held_against_the_runs() -> None:
    fitted = model.fit(made_up_scale())
    assert fitted is not None
    assert fitted["processor"] == pytest.approx(COSTS, rel=1e-3)
    travels = [fitted["network"][name] for name in model.TRAVELS.values()]
    assert travels == pytest.approx([1000, 12, 16, 17], rel=1e-3)
    assert fitted["memory"]["kept"] == pytest.approx(100)
    assert all(row["processor_said"] == pytest.approx(row["processor"], rel=1e-3) for row in fitted["checked"])
    assert model.fit(made_up_scale()[:5]) is None
    load = model.Load(events_a_second=1e6, window=3600)
    flink, dataflow = (model.stretch(fitted, load, engine) for engine in model.ENGINES)
    # An event is read, and its row handled as it comes; when its window is merged, once more with all that is there.
    rows = 1e6 * 0.2 / (flink["cores_streaming"] + flink["cores_release"]) / flink["shards"]
    assert flink["rows_an_element"] == pytest.approx(rows, rel=0.1)
    again = 1 + (12 + 16 + 17 + 1000 / rows) / (12 + 16 / 3 + 17)
    assert flink["cores_streaming"] == pytest.approx(1e6 * (1e-7 + (1 + again) * 2.1e-6) / 0.6, rel=0.5)
    assert dataflow["cores_streaming"] < flink["cores_streaming"]  # longer bundles, less around the rows
    assert flink["shards"] == pytest.approx(1.5e9 * (12 + 16 / 3 + 17) / HoldFn.PUT_ASIDE_AT, rel=0.01)
    wide = model.stretch({**fitted, "memory": {**fitted["memory"], "kept": 2000.0}}, load, model.ENGINES[0])
    assert wide["shards"] == pytest.approx(2 * 1.5e9 * 2000 / 2**31, rel=0.01)
    assert 0 < flink["state"] <= flink["state_grouped"]
    assert dataflow["checkpoint"] is None


def test_no_cost_is_below_zero() -> None:
    rows = [{"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 1.0}, {"a": 3.0, "b": 1.0}]
    assert model._least_squares(rows, ("a", "b"), [1.0, 3.0, 5.0])[1] == 0.0


def test_a_stream_is_made_once_and_counts_its_pairs(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    hots: list[Literal["", "unit", "key"]] = ["", "unit", "key"]
    for hot in hots:
        stream = streams.Stream(3_000, 3, 50, 40, 4, "evenly" if hot else "as they come", hot)
        made = streams.make(stream, tmp_path)
        files = list(tmp_path.glob(f"{stream.folder}/*.parquet"))
        rows = pa.concat_tables(map(pq.read_table, files)).to_pylist()
        pairs = {(row["at"].hour, row["user"], row["term"]) for row in rows}
        crowds: dict[tuple[int, str], int] = {}
        for hour, user, _ in pairs:
            crowds[hour, user] = crowds.get((hour, user), 0) + 1
        assert (len(rows), made.pairs) == (3_000, len(pairs))
        assert made.keys == len({(hour, term) for hour, _, term in pairs})
        assert made.kept(3) == sum(min(size, 3) for size in crowds.values())
        assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
        share = max(
            sum(row[name] == value for row in rows)
            for name, value in (("user", "u00000000"), ("term", "term 00000000"))
        )
        assert (1_300 < share < 1_900) == bool(hot)
        (tmp_path / stream.folder / "untouched").touch()
        assert streams.make(stream, tmp_path) == made
        assert (tmp_path / stream.folder / "untouched").exists()


def test_scale_says_what_is_wrong_with_its_options_and_its_page_has_markers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (["--sweep", "events,nothing"], ["--quick", "--write-docs"], ["--base", "10"], ["--repeats", "0"]):
        with pytest.raises(SystemExit):
            scale.main(options)
    told = capsys.readouterr().err
    assert "not nothing" in told
    assert "leave out --quick" in told
    assert "at least 10000" in told
    page = tmp_path / "scale.md"
    page.write_text(scale.PAGE.read_text())
    pages.fill(page, dict.fromkeys(scale_report.SECTIONS, "filled\n"))
    assert page.read_text().count("filled\n<!-- end -->") == len(scale_report.SECTIONS)
    with pytest.raises(ValueError, match="must have a line"):
        pages.fill(page, {"something else": "filled"})


@pytest.mark.slow
def test_scale_benchmark_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEGATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(scale_measuring, "SHORT_RUNS", 1)
    scale.main(["--quick", "--sweep", "skew", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "scale.json").read_text())
    runs = [one for one in written["measurements"] if one["sweep"] != sweeps.STARTUP]
    assert {one["sweep"] for one in runs} == {"skew"}
    for one in runs:
        assert one["published"]["windows"] == one["windows"]
        # Every pair that counts travels at least once, in more bytes than it has.
        assert one["sent_rows"] >= one["kept"] > 0
        assert one["encoded_rows"] >= one["sent_rows"]
        assert one["shuffled"][model.WHOLE] > 12 * one["sent_rows"]
        assert one["memory"] > 2**24
    assert "one unit has half" in (tmp_path / "scale.md").read_text()
    assert (tmp_path / "scale.svg").read_text().startswith("<?xml")
    captured = capsys.readouterr()
    assert "min left" in captured.err
    scale.main(["--from-json", str(tmp_path / "scale.json"), "--out", str(tmp_path / "again")])
    assert (tmp_path / "again" / "scale.md").read_text() == (tmp_path / "scale.md").read_text()
    scale.main(["--clean"])
    assert not (tmp_path / "cache" / "scale").exists()
