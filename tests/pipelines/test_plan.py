"""`tidegate plan`: its numbers against formulas written out once more, against brute force, and against real draws."""

from __future__ import annotations

import json
import sys
from math import ceil, exp, expm1, log, log1p
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from tests.pipelines.test_cli import Answer, tidegate, write_spec
from tidegate.mechanisms.guarantee import compose
from tidegate.mechanisms.keyed import KeyedHash
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable
from tidegate.pipelines.plan import GATES, compared, first_count, plan
from tidegate.pipelines.plan_counts import Seen, parse_shape, read_counts
from tidegate.pipelines.plan_show import duration, percent, print_plan, short, terminal_curve
from tidegate.pipelines.spec import Spec, load_spec
from tidegate.transforms.problems import SpecError

THEN: list[dict[str, Any]] = [
    {"mechanism": "noisy-count", "epsilon": 0.5},
    {"mechanism": "mean", "epsilon": 0.5, "column": "spend", "low": 0, "high": 100},
]
COUNTS = [1, 1, 1, 3, 20, 45, 55, 58, 61, 62, 63, 66, 70, 80, 122, 123, 5000]


def spec_of(tmp_path: Path, **changes: Any) -> Spec:
    return load_spec(write_spec(tmp_path / "spec.yaml", **changes))


def told(*arguments: object) -> dict[str, Any]:
    answer = tidegate("plan", *arguments, "--json")
    assert (answer.code, answer.err) == (0, "")
    found: dict[str, Any] = json.loads(answer.out)
    return found


def truncated_survival(n: int, k: int, rate: float) -> float:
    """Pr[n + j > k], summed over the noise."""
    weights = [exp(-rate * abs(j)) for j in range(-k, k + 1)]
    return sum(weight for j, weight in zip(range(-k, k + 1), weights, strict=True) if n + j > k) / sum(weights)


# The gate.


def test_chances_are_those_of_the_noise(tmp_path: Path) -> None:
    report = told(write_spec(tmp_path / "spec.yaml"))
    for row in [*report["survival"], *report["curves"]["truncated-geometric"], *report["tails"]["truncated-geometric"]]:
        assert row["chance"] == pytest.approx(truncated_survival(row["count"], 61, 1 / 3), rel=1e-9, abs=1e-300)
    assert [row["count"] for row in report["survival"]] == [1, 23, 50, 57, 62, 67, 74]


def test_the_gates_stand_side_by_side_above_the_physical_limit(tmp_path: Path) -> None:
    gate = {"epsilon": 0.05, "delta": 1e-19}
    report = told(write_spec(tmp_path / "spec.yaml", gate=gate, bound={"keys": 1}))
    rows = {row["mechanism"]: row for row in report["gates"]}
    assert list(rows) == list(GATES)
    assert [(rows[name]["threshold"], rows[name]["half_width"], rows[name]["at_50"]) for name in GATES] == [
        (803, 802, 803),
        (863, None, 863),
        (None, None, 802),
    ]
    (limit,) = report["limit"]
    assert limit["at_50"] == ceil(log1p(0.5e19 * expm1(0.05)) / 0.05) == 802
    for row in rows.values():
        assert row["at_50"] >= limit["at_50"]
        assert row["at_99"] >= limit["at_99"] > row["at_50"] - 70
    # Between a half and 99 %, the chance to be hidden falls by e^-epsilon a unit at best.
    assert limit["at_99"] - limit["at_50"] == pytest.approx(log(0.5 / 0.01) / 0.05, abs=1.01)


@pytest.mark.parametrize("per_key", [1, 4])
def test_limits_hold_for_all_gates_with_more_keys_and_larger_contributions(tmp_path: Path, per_key: int) -> None:
    gate = {"epsilon": 1.0, "delta": 1e-9, "measure": "events"}
    report = plan(spec_of(tmp_path, gate=gate, bound={"keys": 3, "per_key": per_key}))
    anything, even = report["limit"]
    assert anything["at_50"] == (ceil(log1p(0.5e9 * expm1(1))) - 1) * per_key + 1
    for row in report["gates"]:
        assert row["at_50"] >= even["at_50"] > anything["at_50"]
        assert row["at_99"] >= even["at_99"] > anything["at_99"]
    (optimal,) = (row for row in report["gates"] if row["mechanism"] == "optimal-selection")
    assert optimal["at_50"] - even["at_50"] <= per_key


@pytest.mark.parametrize("chance", [1e-6, 0.5, 0.99, 1.0])
def test_the_first_count_is_found_by_going_through_all(tmp_path: Path, chance: float) -> None:
    for gate in compared(spec_of(tmp_path)).values():
        by_hand = next(n for n in range(1, 1000) if gate.survival(n) >= chance)
        assert first_count(gate.survival, chance) == by_hand


def test_a_chance_that_no_count_has_is_none() -> None:
    assert first_count(lambda _: 0.0, 0.5) is None
    assert first_count(lambda n: n / (n + 1), 1.5) is None


def test_a_gate_whose_table_would_be_huge_is_left_out_and_named(tmp_path: Path) -> None:
    spec = write_spec(tmp_path / "spec.yaml", gate={"epsilon": 1e-4, "delta": 1e-19})
    assert told(spec)["not_compared"] == ["optimal-selection"]
    assert "optimal-selection is left out" in tidegate("plan", spec).text


def test_listed_keys_are_told_apart(tmp_path: Path) -> None:
    listed = {"epsilon": 1.0, "delta": 1e-9, "keys": ["a", "b"]}
    alone = plan(spec_of(tmp_path, gate={"mechanism": "public-keys", **listed}), Seen("x", np.array([7.0, 900.0])))
    assert alone["survival"] == [{"count": 1, "chance": 0.0}]
    assert alone["notes"] == ["Of listed keys there are 2, sure to appear; the chances are those of the others"]
    assert alone["like"]["keys_unknown"]
    for mechanism, expected in (("public-keys", [1.0, 0.0, 1.0]), ("range", [1.0, 0.0, 1.0])):
        spec = spec_of(tmp_path, gate={"mechanism": mechanism, **listed})
        seen = Seen("x", np.array([7.0, 900.0, 100.0]), ["a", "c", "b"])
        assert plan(spec, seen)["like"]["gates"][0]["keys_expected"] == pytest.approx(sum(expected), abs=1e-6)


def test_a_sum_is_counted_in_its_own_numbers_not_in_steps(tmp_path: Path) -> None:
    measure = {"sum": "spend", "low": 0, "high": 10, "resolution": 0.5}
    report = plan(spec_of(tmp_path, gate={"epsilon": 1.0, "delta": 1e-9, "measure": measure}))
    whole = plan(spec_of(tmp_path, gate={"epsilon": 1.0, "delta": 1e-9, "measure": {**measure, "resolution": 10}}))
    assert report["measure"] == "sum(spend)"
    assert report["bounds"]["per_key"] == whole["bounds"]["per_key"] == 10
    # In steps of ten it is a count of units; finer steps come out a little below.
    assert whole["gates"][0]["threshold"] == 620
    assert 550 < report["gates"][0]["threshold"] < 620
    assert report["mechanisms"][0]["noise_scale"] == pytest.approx(30)


# What it costs.


def test_costs_and_the_total_beside_the_plain_sum(tmp_path: Path) -> None:
    report = told(write_spec(tmp_path / "spec.yaml", then=THEN))
    gate, count, mean = report["mechanisms"]
    assert [row["place"] for row in report["mechanisms"]] == ["gate", "then[0]", "then[1]"]
    assert (gate["half_width"], gate["noise_scale"]) == (61, pytest.approx(3))
    assert count["noise_scale"] == pytest.approx(6)
    assert (mean["in_units"], mean["noise_scale"]) == (True, pytest.approx(6))
    whole = report["guarantee"]
    assert whole["epsilon"] == pytest.approx(2.0)
    assert whole["delta_by_addition"] == pytest.approx(gate["delta"] + count["delta"] + mean["delta"])
    # No new key: every key costs something everywhere. All new: the gate alone.
    spec = load_spec(tmp_path / "spec.yaml")
    a_key = [mechanism.guarantee.a_key or 0.0 for mechanism in spec.mechanisms]
    assert whole["delta"] == pytest.approx(-expm1(3 * sum(log1p(-delta) for delta in a_key)), rel=1e-9)
    assert whole["delta"] < whole["delta_by_addition"]
    assert whole["delta"] == compose(*(mechanism.guarantee for mechanism in spec.mechanisms)).delta
    assert whole["all_windows"]["epsilon"] == pytest.approx(8.0)
    assert "Adding up the deltas would have said 2e-9" in tidegate("plan", tmp_path / "spec.yaml").text


# What a change would do.


@pytest.mark.parametrize("mechanism", GATES)
def test_what_a_change_would_do_is_what_a_changed_spec_does(tmp_path: Path, mechanism: str) -> None:
    def now(epsilon: float = 1.0, delta: float = 1e-9, keys: int = 4) -> dict[str, Any]:
        then = [{**THEN[0], "epsilon": epsilon / 2}]
        gate = {"mechanism": mechanism, "epsilon": epsilon, "delta": delta}
        return plan(spec_of(tmp_path, gate=gate, bound={"keys": keys}, then=then))

    changes = now()["what_if"]
    assert [row["epsilon"] for row in changes["epsilon"]] == [0.25, 0.5, 1, 2, 4]
    assert [row["delta"] for row in changes["delta"]] == [1e-12, 1e-9, 1e-6]
    assert [row["keys"] for row in changes["keys"]] == [1, 2, 4, 8]
    for field in ("epsilon", "delta", "keys"):
        assert [row["now"] for row in changes[field]].count(True) == 1
        for row in (changes[field][0], changes[field][-1]):
            other = now(**{field: row[field]})
            assert {name: row[name] for name in other["gates"][0]} == other["gates"][0]
            assert row["total_epsilon"] == other["guarantee"]["epsilon"]
            assert row["total_delta"] == other["guarantee"]["delta"]
            assert row["then"][0]["half_width"] == other["mechanisms"][1]["half_width"]


def test_a_change_that_cannot_be_is_a_sentence_and_delta_stays_below_one(tmp_path: Path) -> None:
    gate = {"epsilon": 1.0, "delta": 1e-30}
    assert "problem" in told(write_spec(tmp_path / "spec.yaml", gate=gate))["what_if"]["delta"][0]
    assert "delta 1e-33:" in tidegate("plan", tmp_path / "spec.yaml").text
    large = told(write_spec(tmp_path / "spec.yaml", gate={"epsilon": 1.0, "delta": 0.01}))
    assert [row["delta"] for row in large["what_if"]["delta"]] == [1e-5, 0.01]


def test_another_window_changes_what_a_key_gathers_and_what_a_unit_spends(tmp_path: Path) -> None:
    rows = told(write_spec(tmp_path / "spec.yaml"))["what_if"]["window"]
    assert [(row["size_seconds"], row["at_50_an_hour"], row["windows"]) for row in rows] == [
        (900, 62 * 4, 16),
        (1800, 62 * 2, 8),
        (3600, 62, 4),
        (7200, 31, 2),
        (14400, 15.5, 1),
    ]
    assert [row["epsilon_of_all"] for row in rows] == [16, 8, 4, 2, 1]
    assert all(row["at_50_a_day"] == 24 * row["at_50_an_hour"] for row in rows)
    window = {"size": "1h", "every": "15m", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T04:00:00Z"}
    sliding = told(write_spec(tmp_path / "spec.yaml", window=window))["what_if"]["window"]
    for row in sliding:
        size = row["size_seconds"]
        other = {**window, "size": f"{size}s", "every": f"{size // 4}s"}
        assert row["windows"] == spec_of(tmp_path, window=other).window.windows.count


# Counts that the planner may look at.


def test_what_would_be_seen_is_the_sum_of_chances(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    like = plan(spec, Seen("counts", np.array(COUNTS, dtype=float)))["like"]
    assert like["keys"] == len(COUNTS)
    assert like["volume"] == sum(COUNTS)
    for row, gate in zip(like["gates"], compared(spec).values(), strict=True):
        chances = [gate.survival(n) for n in COUNTS]
        assert row["keys_expected"] == pytest.approx(sum(chances), rel=1e-12)
        assert row["keys_deviation"] == pytest.approx(sum(p * (1 - p) for p in chances) ** 0.5, rel=1e-9)
        shown = sum(n * p for n, p in zip(COUNTS, chances, strict=True))
        assert row["share_of_volume"] == pytest.approx(shown / sum(COUNTS), rel=1e-12)
    assert sum(row["keys"] for row in like["classes"]) == len(COUNTS)
    total = sum(row["keys_expected"] for row in like["classes"])
    assert total == pytest.approx(like["gates"][0]["keys_expected"])
    for row in like["classes"]:
        for end in (row["fewest"], row["most"]):
            assert row["from_chance"] <= truncated_survival(int(end), 61, 1 / 3) <= row["to_chance"]


@pytest.mark.parametrize("mechanism", GATES)
def test_what_would_be_seen_is_what_a_real_release_shows(tmp_path: Path, mechanism: str) -> None:
    # 6.5 deviations are a false alarm once in 1e10; the seed is fixed.
    spec = spec_of(tmp_path, gate={"mechanism": mechanism, "epsilon": 1.0, "delta": 1e-9})
    counts = np.repeat(np.arange(40, 90), 200)
    keys = pa.array([str(place) for place in range(len(counts))])
    like = plan(spec, Seen("counts", counts.astype(float)))["like"]
    shown = spec.gate_mechanism.release(ExactTable(keys, counts), KeyedHash(bytes(32))(keys), Noise(b"p" * 32))
    expected, deviation = like["gates"][0]["keys_expected"], like["gates"][0]["keys_deviation"]
    assert abs(len(shown.keys) - expected) < 6.5 * deviation
    assert deviation < 0.02 * expected


def test_weights_are_looked_up_by_key(tmp_path: Path) -> None:
    gate = {"epsilon": 1.0, "delta": 1e-9, "weights": {"a": 3, "b": float("inf"), "c": 0}, "other_weight": 2}
    spec = spec_of(tmp_path, gate=gate)
    seen = Seen("counts", np.array([60.0, 1, 900, 90]), ["a", "b", "c", "d"])
    (row, *_) = plan(spec, seen)["like"]["gates"]
    k = spec.gate_mechanism.describe()["half_width"]
    by_hand = [truncated_survival(3 * 60, k, 1 / 9), 1.0, 0.0, truncated_survival(2 * 90, k, 1 / 9)]
    assert row["keys_expected"] == pytest.approx(sum(by_hand), rel=1e-9)
    assert row["share_of_volume"] == pytest.approx((60 * by_hand[0] + 1 + 90 * by_hand[3]) / 1051, rel=1e-9)


@pytest.mark.parametrize(
    "text",
    ['key,count\na,5\n"b, c",7\n', "a,5\nb,7\n", "count\n5\n7\n", "5\n7\n", "\ufeffkey,count\r\na,5\r\n\r\nb,7\r\n"],
    ids=["header", "no header", "one column", "one column, no header", "byte order mark"],
)
def test_counts_are_read_in_every_form(tmp_path: Path, text: str) -> None:
    path = tmp_path / "counts.csv"
    path.write_text(text, encoding="utf-8", newline="")
    seen = read_counts(path)
    assert seen.counts.tolist() == [5, 7]
    assert (seen.keys is None) == ("a" not in text)


def test_counts_are_read_from_parquet(tmp_path: Path) -> None:
    path = tmp_path / "counts.parquet"
    pq.write_table(pa.table({"term": ["a", "b"], "users": [5, 7]}), path)
    assert read_counts(path).counts.tolist() == [5, 7]
    pq.write_table(pa.table({"users": [5, 7]}), path)
    assert read_counts(path).keys is None


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "c.csv",
            "",
            "must hold at least one count, and c.csv holds none; write key,count or count alone, a key a row",
        ),
        ("c.csv", "a,b,3\n", "must have one or two columns, and row 1 of c.csv has 3; write key,count or count alone"),
        ("c.csv", "a,3\nb\n", "must have one or two columns, and row 2 of c.csv has 1; write key,count"),
        (
            "c.csv",
            "a,3\nsecret,many\n",
            "must have counts of 0 or more in its last column, and row 2 of c.csv has none",
        ),
        ("c.csv", "a,3\nb,-1\n", "must have counts of 0 or more in its last column, and row 2 of c.csv has none"),
        ("c.csv", "a,3\nb,nan\n", "must have counts of 0 or more in its last column, and row 2 of c.csv has none"),
        ("c.csv", "secret,3\nsecret,4\n", "must have each key once, and row 2 of c.csv repeats one; write the counts"),
        ("c.txt", "3\n", "must be a .csv or .parquet file, not c.txt; write counts.csv"),
        ("c.parquet", "3\n", "must be a file of key,count lines, and "),
    ],
)
def test_other_files_are_refused_in_one_sentence_that_tells_nothing(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    answer = tidegate("plan", write_spec(tmp_path / "spec.yaml"), "--like", tmp_path / name)
    assert (answer.code, answer.out) == (2, b"")
    assert answer.err.startswith(f"tidegate: --like {said}")
    assert "secret" not in answer.err
    assert answer.err.count("\n") == 1


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    for name in ("none.csv", "none.parquet"):
        answer = tidegate("plan", write_spec(tmp_path / "spec.yaml"), "--like", tmp_path / name)
        assert (answer.code, answer.out) == (2, b"")
        assert "cannot be read (No such file or directory); check the path" in answer.err


def test_a_shape_is_expected_counts(tmp_path: Path) -> None:
    seen = parse_shape("zipf:keys=1000,units=50000,exponent=1.1")
    harmonic = sum(rank**-1.1 for rank in range(1, 1001))
    assert seen.counts.tolist() == [round(50000 * rank**-1.1 / harmonic) for rank in range(1, 1001)]
    report = told(write_spec(tmp_path / "spec.yaml"), "--shape", "zipf:keys=1000,units=50000")
    assert report["like"]["volume"] == pytest.approx(50000, rel=0.01)


@pytest.mark.parametrize(
    "shape", ["flat:keys=3,units=4", "zipf", "zipf:keys=3", "zipf:keys=1.5,units=9", "zipf:keys=3,units=x", "zipf:k=3"]
)
def test_a_wrong_shape_is_one_sentence(shape: str) -> None:
    with pytest.raises(SpecError, match=r"^--shape must .*; write zipf:keys=100000,units=1000000,exponent=1.1$"):
        parse_shape(shape)


def test_exact_counts_are_for_the_planners_eyes(tmp_path: Path) -> None:
    (tmp_path / "counts.csv").write_text("\n".join(f"k{i},{n}" for i, n in enumerate(COUNTS)))
    spec = write_spec(tmp_path / "spec.yaml")
    answer = tidegate("plan", spec, "--like", tmp_path / "counts.csv")
    assert (
        "For the planner's eyes: computed on exact counts, so it is not private and must not be published."
        in answer.text
    )
    like = told(spec, "--like", tmp_path / "counts.csv")["like"]
    assert like["private"] is False
    assert "must not be published" in like["note"]
    assert "k16" not in answer.text


# How it looks.


def shown(report: dict[str, Any], width: int, encoding: str = "utf-8") -> list[str]:
    class Terminal:
        def __init__(self) -> None:
            self.encoding, self.text = encoding, ""

        def write(self, text: str) -> int:
            self.text += text
            return len(text)

        def flush(self) -> None:
            pass

    file = Terminal()
    print_plan(report, Console(file=file, width=width, color_system=None))  # type: ignore[arg-type]
    return file.text.splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal_and_loses_no_word(tmp_path: Path, width: int) -> None:
    report = plan(spec_of(tmp_path, then=THEN), parse_shape("zipf:keys=100000,units=1000000,exponent=1.1"))
    lines = shown(report, width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    text = " ".join(" ".join(lines).split())
    for words in (
        "no event was read",
        "Chance that a key appears, by its units in a window (truncated-geometric)",
        "> truncated-geometric 62 61 62 74",
        "geometric-threshold 65 - 65 77",
        "optimal-selection - - 61 73",
        "> 1h 62 1,488 4 8 ",
    ):
        assert words in text


def test_the_curve_rises_from_the_left_bottom_to_the_right_top(tmp_path: Path) -> None:
    curve = plan(spec_of(tmp_path))["curves"]["truncated-geometric"]
    for plain in (False, True):
        *rows, axis, ticks = terminal_curve(curve, 80, plain)
        assert all(len(line) <= 80 for line in (*rows, axis, ticks))
        assert (rows[0][:7], rows[-1][:7]) == (("100 % |", "  0 % |") if plain else ("100 % │", "  0 % │"))
        begins = [len(row[7:]) - len(row[7:].lstrip()) for row in rows]
        assert begins == sorted(begins, reverse=True)
        assert begins[-1] == 0
        # Half the height is crossed where half the keys appear.
        first, last = curve[0]["count"], curve[-1]["count"]
        assert first + (last - first) * begins[4] / 71 == pytest.approx(62, abs=1)
        assert ticks.split()[0] == str(first)
        assert ticks.split()[-1] == str(last)
    assert "".join(shown(plan(spec_of(tmp_path)), 80, "ascii")).isascii()


def test_numbers_are_as_people_read_them() -> None:
    assert [percent(p) for p in (0, 1e-9, 0.011, 0.5, 0.9995, 1)] == [
        "never",
        "1e-9",
        "1.1 %",
        "50 %",
        "99.9500 %",
        "100 %",
    ]
    assert [duration(s) for s in (900, 3600, 5400, 86400, 604800, 61)] == ["15m", "1h", "90m", "1d", "1w", "61s"]
    assert [short(n) for n in (None, 3, 15.5, 1234.5, 1e12)] == ["-", "3", "15.5", "1,234", "1e+12"]


def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    columns = {"unit": "user[/id]", "key": "term", "time": "at"}
    answer = tidegate("plan", write_spec(tmp_path / "spec.yaml", columns=columns))
    assert answer.code == 0
    assert "For everything one user[/id] does" in answer.text


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_drawn(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"curve.{suffix}"
    answer = tidegate("plan", write_spec(tmp_path / "spec.yaml"), "--plot", picture)
    assert (answer.code, answer.err) == (0, "")
    assert picture.read_bytes().startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    assert picture.stat().st_size > 20_000


@pytest.mark.parametrize(
    "gate",
    [
        {"mechanism": "public-keys", "epsilon": 1.0, "delta": 1e-9, "keys": ["$a$"]},
        {"mechanism": "range", "epsilon": 1.0, "delta": 1e-9, "keys": ["a"]},
        {"epsilon": 200.0, "delta": 0.3},
        {"epsilon": 1e-4, "delta": 1e-19, "measure": {"sum": "$x$", "low": -5, "high": 10}},
    ],
    ids=["public keys", "range", "a huge epsilon", "a sum"],
)
def test_every_gate_can_be_printed_and_drawn(tmp_path: Path, gate: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    answer = tidegate("plan", write_spec(tmp_path / "spec.yaml", gate=gate), "--plot", tmp_path / "curve.svg")
    assert (answer.code, answer.err) == (0, "")
    assert (tmp_path / "curve.svg").exists()


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    answer = tidegate("plan", write_spec(tmp_path / "spec.yaml"), "--plot", tmp_path / "curve.png")
    assert (answer.code, answer.out) == (2, b"")
    assert (
        answer.err == "tidegate: --plot needs matplotlib, which is not installed; write pip install 'tidegate[plots]'\n"
    )


def test_a_picture_of_another_kind_is_refused(tmp_path: Path) -> None:
    answer = tidegate("plan", write_spec(tmp_path / "spec.yaml"), "--plot", tmp_path / "curve.gif")
    assert answer == Answer(2, b"", "tidegate: --plot must be a .png or .svg file, not curve.gif; write curve.svg\n")


# The command.


def test_a_plan_reads_no_event_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "events-0.parquet").write_text("not a parquet file")
    answer = tidegate("plan", write_spec(tmp_path / "spec.yaml"))
    assert (answer.code, answer.err) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events", "spec.yaml"]


def test_figures_need_no_spec() -> None:
    answer = tidegate("plan", "--figures")
    assert (answer.code, answer.err) == (0, "")
    for number in ("1,750.96", "963.48", "884.73", "863", "802", "874.98", "1,289.45", "322.36", "315"):
        assert number in answer.text
    assert [row["exact"] for row in told("--figures")["figures"]][-1] == 315


@pytest.mark.parametrize("line", [(), ("--json",), ("--figures", "--shape", "zipf:keys=3,units=4")], ids=str)
def test_without_a_spec_the_command_line_is_wrong(line: tuple[str, ...]) -> None:
    answer = tidegate("plan", *line)
    assert (answer.code, answer.out) == (2, b"")
    assert "Missing argument 'SPEC'" in answer.err


def test_one_of_like_and_shape(tmp_path: Path) -> None:
    spec = write_spec(tmp_path / "spec.yaml")
    answer = tidegate("plan", spec, "--like", "x.csv", "--shape", "zipf:keys=3,units=4")
    assert (answer.code, answer.out) == (2, b"")
    assert "give one of them" in answer.err


def test_a_wrong_spec_is_one_sentence(tmp_path: Path) -> None:
    answer = tidegate("plan", write_spec(tmp_path / "spec.yaml", gate={"epsilon": -1, "delta": 1e-9}))
    assert (answer.code, answer.out) == (2, b"")
    assert answer.err.startswith("tidegate: gate.epsilon must be above 0")
