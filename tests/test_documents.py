"""What the README and the examples tell people to type works, in the order they tell it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate
from tests.documents import ROOT, commands_in, files_in


def run(command: str, folder: Path) -> str:
    # The command as typed, with this environment's programs first; no secret from outside.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment.pop("TIDEGATE_SECRET_FILE", None)
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_readme_does_what_it_says(tmp_path: Path) -> None:
    for name, content in files_in("README.md").items():
        (tmp_path / name).write_text(content)
    commands = commands_in("README.md")
    assert commands[:3] == ["make demo", "make test", "pip install ."]
    outputs = [run(command, tmp_path) for command in commands[3:]]
    assert len(outputs) == 6
    assert "Chance that a key appears" in outputs[1]
    assert "Gates side by side" in outputs[2]
    measures = set(tidegate.read_releases(str(tmp_path / "releases"))["measure"].to_pylist())
    assert measures == {"units", "mean(seconds)", "quantile(seconds, 0.5)", "quantile(seconds, 0.9)", "rank"}
    assert len((tmp_path / "releases.csv").read_text().splitlines()) == 1 + len(
        tidegate.read_releases(str(tmp_path / "releases"))
    )
    assert "20260101T080000Z-20260101T090000Z [{'key': 'tide tables'" in run("python own_pipeline.py", tmp_path)
    assert "window_start" in run("python reading.py", tmp_path)


def test_make_demo_and_make_test_exist_and_ci_runs_the_readmes_test_command() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {"demo", "test", "bench"} <= set(targets)
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("make test")


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "docs/privacy.md",
        "docs/mechanisms.md",
        "docs/spec.md",
        "docs/operations.md",
        "docs/performance.md",
        "deploy/README.md",
        "benchmarks/README.md",
    ],
)
def test_links_and_named_files_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    named = re.findall(r"`((?:tests|docs|examples|benchmarks|pipelines|transforms|mechanisms)/[\w./-]+)`", text)
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    missing += [name for name in named if not (ROOT / name).exists()]
    assert not missing


@pytest.mark.slow
def test_the_flights_of_2013_are_released_day_by_day(tmp_path: Path) -> None:
    run(
        f"python {ROOT}/examples/get_flights.py flights/ && tidegate run --quiet {ROOT}/examples/flights.yaml", tmp_path
    )
    rows = tidegate.read_releases(str(tmp_path / "flights" / "releases"))
    assert len(set(rows["window_start"].to_pylist())) > 360
    assert {"ORD", "ATL", "LAX"} <= set(rows["key"].to_pylist())
    # Every range holds the exact count of distinct aircraft, wherever no aircraft exceeds its bound of two destinations.
    exact = _distinct_aircraft(tmp_path / "flights" / "flights.csv")
    checked = 0
    for row in rows.to_pylist():
        units, affected = exact[row["window_start"].strftime("%Y-%m-%d"), row["key"]]
        if not affected:
            assert row["low"] <= units <= row["high"]
            checked += 1
    assert checked > 1000


def _distinct_aircraft(path: Path) -> dict[tuple[str, str], tuple[int, bool]]:
    """(day, destination) → distinct aircraft, and whether one of them flew to more than two destinations that day."""
    import csv
    from collections import defaultdict
    from datetime import datetime, timedelta

    went: dict[tuple[str, str], set[str]] = defaultdict(set)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["tailnum"] not in ("", "NA"):
                at = datetime.fromisoformat(row["time_hour"].replace("Z", "+00:00")) - timedelta(hours=5)
                went[at.strftime("%Y-%m-%d"), row["tailnum"]].add(row["dest"])
    aircraft: dict[tuple[str, str], list[int]] = defaultdict(list)
    for (day, _), destinations in went.items():
        for destination in destinations:
            aircraft[day, destination].append(len(destinations))
    return {place: (len(numbers), max(numbers) > 2) for place, numbers in aircraft.items()}


def test_the_schema_of_released_rows_is_the_documented_one() -> None:
    from tidegate.transforms import ROW_SCHEMA

    assert ROW_SCHEMA.names == [
        "stream",
        "window_start",
        "window_end",
        "measure",
        "key",
        "value",
        "low",
        "high",
        "mechanism",
        "epsilon",
        "delta",
        "spec_digest",
    ]
