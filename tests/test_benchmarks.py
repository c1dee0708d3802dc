"""The benchmarks run, and say what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import mechanisms, release, stages
from tidegate.mechanisms.registry import names


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
