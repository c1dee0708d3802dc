"""Where each row is a unit: every row counts once, for one key, and the releases hang on nothing else."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transforms.running import NEARLY_EXACT, T0, release, terms, values
from tidegate.transforms import Release, Secret, make_terms, rows
from tidegate.transforms.coders import ReleaseCoder, RowSumsCoder
from tidegate.transforms.columns import rows_to_batches
from tidegate.transforms.problems import SafeError, SpecError
from tidegate.transforms.rows import DecodeRowsFn, RowSums, SumRowsFn
from tidegate.transforms.terms import Terms

Rows = list[dict[str, Any]]
EACH: dict[str, Any] = {"columns": {"unit": {"each": "row"}}, "bound": {"keys": 1}}
PANE = PaneInfo(True, True, PaneInfoTiming.ON_TIME, 0, 0)


def agreed(**changes: Any) -> Terms:
    return make_terms(**terms(**{**EACH, **changes}))


def events(seed: int = 1) -> Rows:
    """Few keys with many rows each; the last key is rare. Two windows, and nobody is named."""
    draw = random.Random(seed)
    keys = [f"t{min(int(draw.expovariate(0.4)), 9)}" for _ in range(4000)] + ["rare"]
    return [{"term": key, "at": T0 + 3600 * (place % 2) + place % 3000} for place, key in enumerate(keys)]


def true_counts(given: Rows) -> list[Counter[str]]:
    return [Counter(row["term"] for row in given if (row["at"] - T0) // 3600 == window) for window in (0, 1)]


def as_bytes(releases: list[Release]) -> list[bytes]:
    return [ReleaseCoder().encode(found) for found in releases]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("measure", ["units", "events"])
def test_every_row_counts_once(shards: int, measure: str) -> None:
    found = release(events(), shards=shards, **EACH, gate={**NEARLY_EXACT, "measure": measure})
    for one, exact in zip(found, true_counts(events()), strict=True):
        assert values(one) == {key: count for key, count in exact.items() if count > 1}


def test_rows_that_say_the_same_are_still_two() -> None:
    row = {"user": "ann", "term": "tide", "at": T0}
    (first, _) = release([row] * 50, **EACH, gate=NEARLY_EXACT)
    assert values(first) == {"tide": 50}


def test_shards_bundles_and_order_do_not_matter() -> None:
    shuffled = events()
    random.Random(3).shuffle(shuffled)
    reference = as_bytes(release(events(), shards=3, **EACH))
    assert as_bytes(release(events(), shards=1, **EACH)) == reference
    assert as_bytes(release(shuffled, shards=7, bundles=4, **EACH)) == reference


def test_small_bundles_hold_little(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = as_bytes(release(events(), **EACH))
    monkeypatch.setattr(rows, "_KEYS_MERGED", 4)
    monkeypatch.setattr(rows, "_KEYS_HELD", 6)
    assert as_bytes(release(events(), **EACH)) == reference


@pytest.mark.parametrize("shards", [1, 3])
def test_sums_and_averages_are_of_rows(shards: int) -> None:
    given = [{"term": "tide", "at": T0, "paid": paid} for paid in [1, 2, 3, 100] * 25]
    asked: dict[str, Any] = {
        "gate": {**NEARLY_EXACT, "measure": {"sum": "paid", "low": 0, "high": 10, "resolution": 1}},
        "then": [{"mechanism": "histogram", "epsilon": 200.0, "column": "paid", "edges": [0, 2, 50, 200]}],
    }
    (first, _) = release(given, shards=shards, **EACH, **asked)
    told = [(row["measure"], row["value"]) for row in first.rows.to_pylist()]
    assert ("sum(paid)", 25 * (1 + 2 + 3 + 10)) in told
    assert sorted(value for measure, value in told if measure != "sum(paid)") == [25, 25, 50]


@pytest.mark.parametrize("shards", [1, 3])
def test_public_keys_are_there_with_and_without_rows(shards: int) -> None:
    gate = {"mechanism": "public-keys", "keys": ["t0", "nobody"], **NEARLY_EXACT}
    for one, exact in zip(release(events(), shards=shards, **EACH, gate=gate), true_counts(events()), strict=True):
        assert values(one) == {"t0": exact["t0"], "nobody": 0}


def test_a_row_without_a_key_is_a_dead_letter_and_one_without_a_unit_is_none() -> None:
    given: Rows = [{"user": None, "term": "tide", "at": T0}] * 40 + [{"user": "ann", "term": None, "at": T0}] * 40
    (first, _) = release(given, **EACH, gate=NEARLY_EXACT)
    assert values(first) == {"tide": 40}


# What travels.


def sent(given: Rows, made: Terms, shards: int = 3) -> list[tuple[int, RowSums]]:
    stage = DecodeRowsFn(made, Secret.for_tests(1), shards)
    stage.setup()
    stage.start_bundle()
    for batch in rows_to_batches(given, ["term", "at"]):
        assert not list(stage.process(batch))
    wire = RowSumsCoder()
    return [(value.value[0], wire.decode(wire.encode(value.value[1]))) for value in stage.finish_bundle()]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 7199)), min_size=1, max_size=60), st.data())
def test_one_row_more_or_less_changes_one_key_by_one(told: list[tuple[str, int]], data: st.DataObject) -> None:
    given = [{"term": term, "at": T0 + second} for term, second in told]
    out = data.draw(st.integers(0, len(given) - 1))

    def table(some: Rows) -> Counter[tuple[int, str]]:
        found: Counter[tuple[int, str]] = Counter()
        for _, sums in sent(some, agreed()):
            counts = zip(sums.table.keys.to_pylist(), sums.table.counts.tolist(), strict=True)
            found.update({(sums.window, key): count for key, count in counts})
        return found

    more, less = table(given), table(given[:out] + given[out + 1 :])
    term, second = told[out]
    assert more - less == Counter({(second // 3600, term): 1})
    assert not less - more


def test_what_travels_is_a_row_a_key_and_every_event_is_told_of_once() -> None:
    parts = [sums for _, sums in sent(events(), agreed())]
    exact = true_counts(events())
    assert sum(len(sums) for sums in parts) == len(exact[0]) + len(exact[1])
    assert [sum(sums.events for sums in parts if sums.window == window) for window in (0, 1)] == [
        one.total() for one in exact
    ]


def test_what_was_made_under_other_terms_is_not_counted_under_these() -> None:
    given = [{"term": "tide", "at": T0}]
    stage, carrier = SumRowsFn(agreed(), 3), IntervalWindow(T0, T0 + 3600)
    for shard, sums in sent(given, agreed()):
        ((number, table),) = stage.process((shard, [sums, sums]), PANE, carrier)
        assert (number, table.counts.tolist()) == (shard, [2])
    for made, shards in ((agreed(gate={"epsilon": 2.0}), 3), (agreed(), 4)):
        for shard, sums in sent(given, made, shards):
            with pytest.raises(SafeError, match="begun under other terms or with another number of shards"):
                list(stage.process((shard, [sums]), PANE, carrier))


# What a spec may say.


def test_a_row_needs_no_bound_and_allows_no_other() -> None:
    plain = {name: value for name, value in terms(**EACH).items() if name != "bound"}
    made = make_terms(**plain)
    assert made.digest == agreed().digest
    assert made.digest != make_terms(**terms(bound={"keys": 1})).digest
    assert (made.guarantee.keys, made.guarantee.per_key) == (1, 1)
    for changes, sentence in (
        (
            {"bound": {"keys": 3}},
            "bound.keys must be 1 where each row is a unit, which has one key, not 3; leave bound out",
        ),
        ({"prepare": {"truncate": 4}}, "prepare.truncate must be left out where each row is a unit, not 4"),
        (
            {"columns": {"unit": {"each": "user"}}},
            r"columns.unit must be a column or each row by itself.*write user, or",
        ),
        ({"columns": {"unit": None}}, "columns.unit must be"),
        ({"columns": {"unit": ""}}, "columns.unit must be"),
    ):
        with pytest.raises(SpecError, match=sentence):
            agreed(**changes)


def test_a_column_that_is_called_row_is_a_column() -> None:
    made = make_terms(**terms(columns={"unit": "row"}))
    assert made.protects == "everything one row does in one window"
    assert agreed().protects == "one row, and not all rows of a person"


def test_a_row_spends_in_the_windows_it_is_in() -> None:
    assert agreed().horizon == 1
    assert agreed(window={"every": "15m"}).horizon == 4
    assert make_terms(**terms()).horizon == 2
