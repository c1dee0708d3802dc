"""Gates, downstream mechanisms and preparation from a spec file to what people read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pipelines.test_cli import tidegate
from tidegate.pipelines.reader import read_releases
from tidegate.pipelines.simulate import Simulation, simulate
from tidegate.pipelines.spec import parse_spec
from tidegate.transforms.problems import SpecError

THEN = [
    {"mechanism": "mean", "column": "seconds", "low": 0, "high": 300, "epsilon": 1.0},
    {"mechanism": "quantiles", "column": "seconds", "low": 0, "high": 300, "at": [0.5, 0.9], "epsilon": 1.0},
    {"mechanism": "top-k", "k": 3, "epsilon": 0.5},
]


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream")
    simulate(folder, Simulation(events=30_000, units=2_000, keys=60, windows=2, files=2))
    return folder


def spec(stream: Path, folder: Path, **changes: Any) -> Path:
    fields: dict[str, Any] = {
        "stream": "searches",
        "source": {"files": str(stream / "events-*.parquet")},
        "columns": {"unit": "user", "key": "term", "time": "at"},
        "window": {"size": "1h", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T02:00:00Z"},
        "bound": {"keys": 3},
        "gate": {"epsilon": 1.0, "delta": 1e-6},
        "sink": {"files": str(folder / "releases")},
        "state": str(folder / "state"),
        **changes,
    }
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


@pytest.mark.parametrize("kind", ["avro", "parquet", "jsonl"])
def test_rows_without_a_value_or_a_range_are_the_same_in_every_format(stream: Path, tmp_path: Path, kind: str) -> None:
    path = spec(
        stream,
        tmp_path,
        gate={"epsilon": 1.0, "delta": 1e-6, "mechanism": "optimal-selection"},
        then=THEN,
        sink={"files": str(tmp_path / "releases"), "format": kind},
    )
    assert tidegate("run", path, "--quiet").code == 0
    table = read_releases(str(tmp_path / "releases"))
    rows = table.to_pylist()
    keys = [row for row in rows if row["mechanism"] == "optimal-selection"]
    assert len(keys) > 20
    assert all(row["value"] is row["low"] is row["high"] is None for row in keys)
    means = [row for row in rows if row["measure"] == "mean(seconds)"]
    assert {row["key"] for row in means} == {row["key"] for row in keys}
    assert all(0 <= row["low"] <= row["value"] <= row["high"] <= 300 for row in means)
    ranks = sorted(row["value"] for row in rows if row["measure"] == "rank")
    assert ranks == [1, 1, 2, 2, 3, 3]
    shown = tidegate("read", tmp_path / "releases", "--format", "jsonl")
    assert [json.loads(line)["value"] for line in shown.out.splitlines()] == [row["value"] for row in rows]
    seen = tidegate("read", tmp_path / "releases")
    assert seen.code == 0
    assert "quantile(seconds, 0.9)" in seen.text or "optimal-selection" in seen.text or "units" in seen.text
    again = tidegate("run", path)
    assert again.code == 0
    assert "published before" in again.err or "already" in again.err


def test_check_tells_what_each_mechanism_costs_and_the_honest_total(stream: Path, tmp_path: Path) -> None:
    path = spec(stream, tmp_path, gate={"epsilon": 1.0, "delta": 1e-6, "mechanism": "geometric-threshold"}, then=THEN)
    told = json.loads(tidegate("check", path, "--json").out)
    assert told["epsilon"] == 3.5
    # The threshold's delta is spent by new keys, the others' by old ones: the total is the dearer, not the sum.
    assert told["delta"] < 1.01e-6
    assert [item["mechanism"] for item in told["then"]] == ["mean", "quantiles", "top-k"]
    assert told["gate"]["threshold"] > 0
    assert "half_width" not in told["gate"]
    shown = tidegate("check", path).text
    assert "geometric-threshold: a key appears when its noisy count of units is" in shown
    assert "mean: mean(seconds), at epsilon 1" in shown


GATES: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "range": ({"mechanism": "range", "keys": ["a", "b"]}, ["half_width"], "2 listed keys appear"),
    "public": ({"mechanism": "public-keys", "keys": ["a"]}, ["half_width"], "all other keys are left out"),
    "second": (
        {"mechanism": "public-keys", "keys": ["a"], "otherwise": "truncated-geometric"},
        ["half_width"],
        "all other keys face a second gate",
    ),
    "optimal": ({"mechanism": "optimal-selection"}, [], "no counts are published"),
    "weights": ({"weights": {"a": 2}}, ["half_width", "threshold"], "noisy utility (weight times units)"),
    "default": ({}, ["half_width", "threshold"], "a key appears when its noisy count of units is"),
}


@pytest.mark.parametrize("name", GATES)
def test_check_gives_each_gates_threshold_and_half_width_as_far_as_it_has_them(
    stream: Path, tmp_path: Path, name: str
) -> None:
    changes, has, words = GATES[name]
    path = spec(stream, tmp_path, gate={"epsilon": 1.0, "delta": 1e-6, **changes})
    told = json.loads(tidegate("check", path, "--json").out)
    assert [field for field in ("half_width", "threshold") if field in told["gate"]] == has
    assert words in tidegate("check", path).text
    assert tidegate("plan", path).code == 0


def test_check_gives_thresholds_of_sums_as_numbers_not_in_steps(stream: Path, tmp_path: Path) -> None:
    measure = {"sum": "seconds", "low": 0, "high": 100, "resolution": 0.5}
    path = spec(stream, tmp_path, gate={"epsilon": 1.0, "delta": 1e-6, "measure": measure}, bound={"keys": 1})
    told = json.loads(tidegate("check", path, "--json").out)
    assert told["gate"]["measure"] == "sum(seconds)"
    # A unit counts for 100 at most: the threshold is about as many units times 100, in numbers of the column.
    assert 1000 < told["gate"]["threshold"] < 2500
    assert told["gate"]["half_width"] == told["gate"]["threshold"] - 0.5
    assert "at most 100 in each" in told["guarantee"]


def test_keys_and_weights_may_lie_in_files(stream: Path, tmp_path: Path) -> None:
    terms = ["harbour lights", "nobody searched for this"]
    (tmp_path / "keys.txt").write_text("\n".join(terms) + "\n\n")
    path = spec(
        stream,
        tmp_path,
        gate={"epsilon": 1.0, "delta": 1e-6, "mechanism": "public-keys", "keys": {"file": str(tmp_path / "keys.txt")}},
    )
    assert tidegate("run", path, "--quiet").code == 0
    rows = read_releases(str(tmp_path / "releases")).to_pylist()
    assert sorted(row["key"] for row in rows) == sorted(2 * terms)
    (tmp_path / "weights.csv").write_text('harbour lights,0\n"a, b",3\nalways,inf\n')
    path = spec(
        stream, tmp_path, gate={"epsilon": 1.0, "delta": 1e-6, "weights": {"file": str(tmp_path / "weights.csv")}}
    )
    told = json.loads(tidegate("check", path, "--json").out)
    assert (told["gate"]["heaviest_weight"], told["gate"]["public"]["public_keys"]) == (3, 1)


@pytest.mark.parametrize(
    ("gate", "content", "sentence"),
    [
        ({"mechanism": "public-keys", "keys": {"file": "gone.txt"}}, None, "gate.keys must be a file that can be read"),
        ({"mechanism": "public-keys", "keys": {"file": "list"}}, b"\xff\xfe\xfa", "gate.keys must be text in UTF-8"),
        ({"mechanism": "public-keys", "keys": {"file": "list"}}, b"a\na\n", "gate.keys must name each key once"),
        ({"weights": {"file": "list"}}, b"a,2\nb\n", "gate.weights must be lines of key,weight, and line 2"),
        ({"weights": {"file": "list"}}, b"a,2\na,3\n", "gate.weights must name each key once, and line 2"),
    ],
)
def test_a_list_that_cannot_be_read_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: dict[str, Any], content: bytes | None, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "list").write_bytes(content)
    path = spec(tmp_path, tmp_path, gate={"epsilon": 1.0, "delta": 1e-6, **gate})
    with pytest.raises(SpecError) as refused:
        parse_spec(path.read_text())
    assert str(refused.value).startswith(sentence)


def test_a_key_of_several_columns_is_listed_as_a_list() -> None:
    text = """
    stream: s
    columns: {unit: user, key: [term, country], time: at}
    window: {size: 1h, start: 2026-01-01T00:00:00Z, end: 2026-01-01T02:00:00Z}
    bound: {keys: 1}
    gate: {epsilon: 1.0, delta: 1e-6, mechanism: public-keys, keys: [[tides, "NO"]]}
    source: {files: "x.csv"}
    sink: {files: out/}
    """
    assert parse_spec(text).gate_mechanism.public == ('["tides","NO"]',)  # type: ignore[attr-defined]


def test_prepare_reads_the_columns_it_needs_and_says_which_are_missing(stream: Path, tmp_path: Path) -> None:
    prepare = {
        "derive": {"first": "split_part(term, ' ', 1)"},
        "where": "seconds > 5",
        "bucket": {"seconds": [10, 60]},
    }
    columns = {"unit": "user", "key": ["first", "seconds"], "time": "at"}
    path = spec(stream, tmp_path, prepare=prepare, columns=columns, gate={"epsilon": 10.0, "delta": 1e-6})
    assert tidegate("run", path, "--quiet").code == 0
    keys = {row["key"] for row in read_releases(str(tmp_path / "releases")).to_pylist()}
    assert {json.loads(key)[1] for key in keys} == {"below 10", "10 to 60", "60 and above"}
    path = spec(stream, tmp_path, prepare={"where": "secnds > 5"})
    answer = tidegate("check", path)
    assert answer.code == 2
    assert "prepare must be a column of" in answer.err
    assert "write seconds" in answer.err
