"""Nothing exact ever leaves: planted values show up in no log, metric, manifest, error or file name, at any log level."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SPEC = """
stream: canaries
source: {files: "in/*.jsonl"}
columns: {unit: user, key: term, time: at}
window: {size: 1h, start: 2026-01-01T00:00:00Z, end: 2026-01-01T03:00:00Z}
prepare: {where: "amount::int >= 0"}
bound: {keys: 3, per_key: 7}
gate: {measure: events, epsilon: 1.0, delta: 1e-9}
then:
  - {mechanism: sum, column: amount, low: 0, high: 10, epsilon: 1.0}
  - {mechanism: quantiles, column: amount, low: 0, high: 10, buckets: 8, epsilon: 1.0}
  - {mechanism: choose, epsilon: 1.0}
sink: {files: releases/}
dead_letters: dead/
"""
UNIT, KEY, RARE_TIME, BROKEN = "canary-unit-77f3", "canary-key-5a1c", "canary-time-0b9e", "canary-line-d24e"
AMOUNT = "canary-amount-3c61"
CANARIES = (UNIT, KEY, RARE_TIME, BROKEN, AMOUNT)
EXACT_COUNT = 4391
"""Units of the one key that is published; a number that occurs nowhere else."""

# Everything that Python, Beam and we have to say goes to one file; then metrics, as an operator's dashboard would get them.
RUN = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, force=True)
from pathlib import Path
from tidegate.pipelines.job import run
from tidegate.pipelines.spec import load_spec
{plant}
try:
    print("COUNTERS", run(load_spec(Path("spec.yaml"))))
except Exception:
    import traceback
    traceback.print_exc(file=sys.stdout)
    print("FAILED")
"""
FAILING = """
import pyarrow as pa
from tidegate.{module} import {name} as planted_in
def stumble(*arguments, **named):
    raise pa.ArrowInvalid("could not convert '{unit}' touching '{key}' {count} times")
planted_in.{method} = stumble
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "spec.yaml").write_text(SPEC)
    rows: list[dict[str, str | None]] = [
        {"user": f"u{i}", "term": "popular", "at": "2026-01-01T00:30:00Z", "amount": "1"} for i in range(EXACT_COUNT)
    ]
    rows += [{"user": UNIT, "term": "popular", "at": "2026-01-01T01:30:00Z", "amount": "1"}] * 3
    rows += [{"user": f"{UNIT}-{i}", "term": KEY, "at": "2026-01-01T00:10:00Z", "amount": "1"} for i in range(5)]
    rows += [{"user": UNIT, "term": KEY, "at": RARE_TIME, "amount": "1"}]
    rows += [{"user": None, "term": KEY, "at": "2026-01-01T00:10:00Z", "amount": "1"}]
    rows += [{"user": UNIT, "term": KEY, "at": "2026-01-01T00:10:00Z", "amount": AMOUNT}]
    lines = [json.dumps(row) for row in rows] + [f'{{"user": "{BROKEN}']
    (tmp_path / "in" / "events.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def run(folder: Path, plant: str = "") -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TIDEGATE_SECRET_FILE"}
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(plant=plant)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout + done.stderr


def everything_outside(folder: Path) -> dict[str, str]:
    """File names and contents of all that the run left, but for its input and the dead letters."""
    found = {}
    for path in folder.rglob("*"):
        place = path.relative_to(folder)
        if place.parts[0] not in ("in", "dead") and path.is_file():
            found[str(place)] = path.read_bytes().decode("utf-8", errors="replace")
    return found


def test_a_run_at_debug_level_tells_nothing(folder: Path) -> None:
    said = run(folder)
    assert "COUNTERS" in said
    assert "DEBUG" in said
    left = everything_outside(folder)
    assert len([name for name in left if name.endswith("manifest.json")]) == 3
    for canary in CANARIES:
        assert canary not in said
        assert not [name for name, content in left.items() if canary in name or canary in content]
    assert str(EXACT_COUNT) not in said
    assert not [name for name, content in left.items() if str(EXACT_COUNT) in content and "rows-" not in name]


def test_dead_letters_are_whole_and_closed_to_others(folder: Path) -> None:
    run(folder)
    assert (folder / "dead").stat().st_mode & 0o077 == 0
    files = list((folder / "dead").iterdir())
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
    letters = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert sorted(letter["reason"] for letter in letters) == ["bad_time", "malformed", "missing_unit", "not_prepared"]
    assert any(RARE_TIME in letter["raw"] for letter in letters)
    assert any(BROKEN in letter["raw"] for letter in letters)
    assert not [path for path in files for canary in CANARIES if canary in path.name]


@pytest.mark.parametrize(
    ("module", "name", "method"),
    [
        ("transforms.decode", "Decoder", "__call__"),
        ("transforms.contributions", "Contributions", "count_keys"),
        ("mechanisms.keyed", "KeyedHash", "digest"),
        ("mechanisms.truncated_geometric", "TruncatedGeometric", "release"),
        ("transforms.prepare", "Preparer", "__call__"),
        ("mechanisms.sum", "Sum", "release"),
        ("mechanisms.choose", "Choose", "summarize"),
        ("mechanisms.choose", "Choose", "release"),
    ],
)
def test_an_error_of_a_library_that_quotes_a_record_is_withheld(
    folder: Path, module: str, name: str, method: str
) -> None:
    said = run(folder, FAILING.format(module=module, name=name, method=method, unit=UNIT, key=KEY, count=EXACT_COUNT))
    assert "FAILED" in said
    assert "the message is withheld" in said
    for canary in (*CANARIES, str(EXACT_COUNT)):
        assert canary not in said
    assert not list((folder / "releases").glob("*/manifest.json"))


def test_the_canaries_would_be_seen(folder: Path) -> None:
    # The same error in a place that is not guarded: if this did not show, the tests above would show nothing.
    said = run(
        folder,
        FAILING.format(module="pipelines.spec", name="Spec", method="warnings", unit=UNIT, key=KEY, count=1)
        + "\ntry:\n    load_spec(Path('spec.yaml')).warnings()\nexcept Exception:\n    logging.exception('unguarded')\n",
    )
    assert UNIT in said
