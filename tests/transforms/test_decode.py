"""decode: every row is counted or becomes a dead letter that says why and where; no row has a say in another's fate."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transforms.running import T0, release, terms
from tidegate.mechanisms.keyed import KeyedHash, derive_key
from tidegate.transforms import decode
from tidegate.transforms.bound import BoundFn
from tidegate.transforms.coders import ContributionsCoder
from tidegate.transforms.columns import ROW, rows_to_batches
from tidegate.transforms.contributions import Contributions
from tidegate.transforms.decode import FIRST_ROW, SOURCE, DeadLetter, Decoded, DecodeFn, Decoder
from tidegate.transforms.problems import SafeError
from tidegate.transforms.secret import Secret
from tidegate.transforms.terms import Terms, make_terms

KEY = bytes(range(32))
COLUMNS = ["user", "term", "at"]
PER_KEY, LIMIT = 3, 24
COUNTING: dict[str, Any] = {
    "gate": {"measure": "events"},
    "bound": {"per_key": PER_KEY},
    "columns": {"time_unit": None, "max_key_bytes": LIMIT},
}
NOON = "2026-01-01T00:30:00Z"
Rows = list[dict[str, Any]]
Counted = dict[tuple[int, bytes, str], int]


def agreed(**changes: Any) -> Terms:
    return make_terms(**terms(**{**COUNTING, "columns": {**COUNTING["columns"], **changes}}))


def unit_id(user: str) -> bytes:
    return KeyedHash(derive_key(KEY, "units"))(pa.array([user])).tobytes()


def counted(parts: Iterable[Contributions]) -> Counted:
    """Who touched what in which window, and how often."""
    parts = list(parts)
    if not parts:
        return {}
    whole = Contributions.merge(parts).capped(PER_KEY)
    counts = whole.count if whole.count is not None else np.ones(len(whole), np.int64)
    units, keys = whole.units[whole.unit], whole.keys.to_pylist()
    found = {
        (int(window), unit.tobytes(), keys[key]): int(count)
        for window, unit, key, count in zip(whole.window, units, whole.key, counts, strict=True)
    }
    assert len(found) == len(whole)
    return found


def located(columns: dict[str, Any], source: str = "a.parquet", first: int = 100) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pydict(columns)
    return batch.replace_schema_metadata({SOURCE: source.encode(), FIRST_ROW: str(first).encode()})


def decoded(rows: Rows, **changes: Any) -> list[Decoded]:
    return [Decoder(agreed(**changes), KEY)(batch) for batch in rows_to_batches(rows, COLUMNS)]


def reasons(found: Iterable[Decoded]) -> dict[int | None, str]:
    return {letter.row: letter.reason for part in found for letter in part.dead}


GOOD: dict[str, list[str]] = {
    "user": ["ann", "bob", "\0", "ä" * 100],
    "term": ["tide", "", "moon", "x" * LIMIT, "🌊" * (LIMIT // 4)],
    "at": [NOON, "2026-01-01T01:30:00+01:00", "2026-01-01T01:59:59.999999999z", "2026-01-01t00:00:00Z"],
}
WINDOWS = dict(zip(GOOD["at"], (0, 0, 1, 0), strict=True))
OUTSIDE = ["2025-12-31T23:59:59.999999Z", "2026-01-01T02:00:00Z", "1900-01-01T00:00:00Z"]
BAD: dict[str, list[tuple[str | None, str]]] = {
    "user": [(None, "missing_unit"), ("", "empty_unit")],
    "term": [(None, "missing_key"), ("x" * (LIMIT + 1), "oversized"), ("🌊" * (LIMIT // 4 + 1), "oversized")],
    "at": [
        (None, "missing_time"),
        ("soon", "bad_time"),
        ("2026-01-01T00:30:00", "time_without_offset"),
        ("9999-12-31T00:00:00Z", "time_out_of_range"),
    ],
}


@st.composite
def values(draw: st.DrawFn, column: str, often_bad: bool) -> tuple[str | None, str]:
    """A value of a column, and what is wrong with it."""
    good = [(value, "") for value in (*GOOD[column], *(OUTSIDE if column == "at" else ()))]
    chosen: tuple[str | None, str] = draw(st.sampled_from([*good, *(BAD[column] if often_bad else [])]))
    return chosen


rows_and_reasons = st.lists(st.tuples(*(values(column, True) for column in COLUMNS)), min_size=1, max_size=25)


@settings(max_examples=100, deadline=None)
@given(rows_and_reasons, st.booleans())
def test_a_row_is_counted_or_a_dead_letter_with_reason_number_and_source(
    rows: list[tuple[tuple[str | None, str], ...]], encoded: bool
) -> None:
    columns: dict[str, Any] = {
        name: pa.array([row[place][0] for row in rows], pa.string()) for place, name in enumerate(COLUMNS)
    }
    if encoded:
        columns = {name: column.dictionary_encode() for name, column in columns.items()}
    found = Decoder(agreed(), KEY)(located(columns))
    # The first column that fails gives the reason: unit, then key, then time.
    why = [next((reason for _, reason in row if reason), "") for row in rows]
    expected = [(reason, "a.parquet", 100 + number) for number, reason in enumerate(why) if reason]
    assert [(letter.reason, letter.source, letter.row) for letter in found.dead] == expected
    for letter in found.dead:
        assert letter.row is not None
        assert list(json.loads(letter.raw).values()) == [value for value, _ in rows[letter.row - 100]]
    good = [[value for value, _ in row] for row, reason in zip(rows, why, strict=True) if not reason]
    inside = [(user, term, at) for user, term, at in good if at in WINDOWS]
    assert found.outside == len(good) - len(inside)
    exact = Counter((WINDOWS[str(at)], unit_id(str(user)), str(term)) for user, term, at in inside)
    assert counted([found.contributions]) == {each: min(PER_KEY, count) for each, count in exact.items()}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(*(values(column, False) for column in COLUMNS)), max_size=10),
    st.lists(st.tuples(st.integers(0, 10), st.sampled_from(COLUMNS), st.data()), max_size=6),
    st.lists(
        st.tuples(
            st.integers(0, 20),
            st.sampled_from(COLUMNS),
            st.sampled_from([None, 1.5, [1], {"a": [None]}, object(), b"\xff", "\ud800", [10**30], float("nan"), [[]]]),
        ),
        max_size=6,
    ),
)
def test_a_bad_row_never_affects_another(
    good: list[tuple[tuple[str, str], ...]],
    bad: list[tuple[int, str, st.DataObject]],
    strange: list[tuple[int, str, Any]],
) -> None:
    rows: Rows = [{name: value for name, (value, _) in zip(COLUMNS, row, strict=True)} for row in good]
    dirty = list(rows)
    for place, column, data in bad:
        value = data.draw(st.sampled_from(BAD[column]))[0]
        dirty.insert(place % (len(dirty) + 1), {"user": "ann", "term": "tide", "at": NOON, column: value})
    for place, column, value in strange:
        dirty.insert(place % (len(dirty) + 1), {"user": "ann", "term": "tide", "at": NOON, column: value})
    clean, mixed = decoded(rows), decoded(dirty)
    assert counted(part.contributions for part in mixed) == (
        counted(part.contributions for part in clean) if rows else {}
    )
    assert sum(part.outside for part in mixed) == sum(part.outside for part in clean)
    assert sum(len(part.dead) for part in mixed) == len(bad) + len(strange)


WRONG: list[tuple[str, Any, str]] = [
    ("user", pa.array([1.5]), "wrong_type"),
    ("user", pa.array([["ann"]]), "wrong_type"),
    ("user", pa.array([{"name": "ann"}]), "wrong_type"),
    ("user", pa.nulls(1), "missing_unit"),
    ("user", pa.array([b"\xff"]), "invalid_utf8"),
    ("user", pa.array([b"\xff"]).view(pa.string()), "invalid_utf8"),
    ("user", pa.array([b"\xff"]).view(pa.string()).dictionary_encode(), "invalid_utf8"),
    ("term", pa.array([1.5]), "wrong_type"),
    ("term", pa.array([["tide"]]), "wrong_type"),
    ("term", pa.ListArray.from_arrays([0, 1], pa.array([b"\xff"]).view(pa.string())), "wrong_type"),
    ("term", pa.array([{"a": 1}]), "wrong_type"),
    ("term", pa.array([timedelta(1)]), "wrong_type"),
    ("term", pa.array([1], pa.timestamp("s", "Mars/Olympus_Mons")), "wrong_type"),
    ("term", pa.nulls(1), "missing_key"),
    ("at", pa.array([1.5]), "wrong_type"),
    ("at", pa.array([True]), "wrong_type"),
    ("at", pa.array([[NOON]]), "wrong_type"),
    ("at", pa.array([{"a": NOON}]), "wrong_type"),
    ("at", pa.array([date(2026, 1, 1)]), "wrong_type"),
    ("at", pa.array([2**31 - 1], pa.int32()).view(pa.date32()), "wrong_type"),
    ("at", pa.array([T0]), "time_without_unit"),
    ("at", pa.array([2**64 - 1], pa.uint64()), "time_without_unit"),
    ("at", pa.array([2**62], pa.timestamp("s")), "time_out_of_range"),
    ("at", pa.array([1], pa.timestamp("ns", "Mars/Olympus_Mons")), ""),
    ("at", pa.array([b"\xff"]), "invalid_utf8"),
    ("at", pa.nulls(1), "missing_time"),
]


@pytest.mark.parametrize(("column", "value", "reason"), WRONG, ids=lambda value: str(getattr(value, "type", value)))
def test_a_value_of_the_wrong_type_is_a_dead_letter_and_can_be_written_down(
    column: str, value: Any, reason: str
) -> None:
    columns = {"user": ["ann"], "term": ["tide"], "at": [NOON], column: value}
    found = Decoder(agreed(), KEY)(located(columns, first=7))
    assert [(letter.reason, letter.row) for letter in found.dead] == ([(reason, 7)] if reason else [])
    for letter in found.dead:
        assert json.loads(letter.raw).keys() == set(COLUMNS)
        letter.raw.encode()


@pytest.mark.parametrize("column", COLUMNS)
def test_every_row_of_a_batch_without_a_column_lacks_it(column: str) -> None:
    columns = {"user": ["ann", "bob"], "term": ["tide", "moon"], "at": [NOON, "soon"]}
    del columns[column]
    found = Decoder(agreed(), KEY)(located(columns))
    assert [(letter.reason, letter.row) for letter in found.dead] == [("missing_column", 100), ("missing_column", 101)]
    assert not len(found.contributions)


def test_a_batch_of_no_rows_and_one_of_no_columns_are_no_trouble() -> None:
    empty = Decoder(agreed(), KEY)(located({name: pa.array([], pa.string()) for name in COLUMNS}))
    assert (len(empty.contributions), empty.dead, empty.outside) == (0, [], 0)
    bare = located({"other": ["a", "b"]}).select([])
    assert [letter.reason for letter in Decoder(agreed(), KEY)(bare).dead] == ["missing_column"] * 2


def test_other_columns_are_not_looked_at() -> None:
    columns = {"user": ["ann"], "term": ["tide"], "at": [NOON], "other": pa.array([b"\xff"]).view(pa.string())}
    assert counted([Decoder(agreed(), KEY)(located(columns)).contributions]) == {(0, unit_id("ann"), "tide"): 1}


def test_a_composite_key_is_the_json_array_of_its_parts_and_fails_as_one() -> None:
    batch = located(
        {
            "user": ["ann"] * 6,
            "term": ['say "hi"', "back\\slash", "line\nend", "moon", None, "x" * 20],
            "country": pa.array([1, 2, 3, None, 5, 6]),
            "at": [NOON] * 6,
        }
    )
    found = Decoder(agreed(key=["term", "country"]), KEY)(batch)
    keys = [
        json.dumps(parts, separators=(",", ":"))
        for parts in (['say "hi"', "1"], ["back\\slash", "2"], ["line\nend", "3"])
    ]
    assert counted([found.contributions]) == {(0, unit_id("ann"), key): 1 for key in keys}
    assert [letter.reason for letter in found.dead] == ["missing_key", "missing_key", "oversized"]


def test_what_is_too_long_is_not_carried_along() -> None:
    rows = [{"user": "u" * 10**6, "term": "x" * 10**6, "at": NOON}, {"user": "ann", "term": "tide", "at": NOON}]
    (found,) = decoded(rows)
    assert found.contributions.keys.nbytes < 100
    assert reasons([found]) == {0: "oversized"}


def test_the_unit_is_held_to_a_limit_of_its_own() -> None:
    rows = [{"user": "u" * 65536, "term": "tide", "at": NOON}, {"user": "u" * 65537, "term": "tide", "at": NOON}]
    found = decoded(rows, max_key_bytes=4)
    assert reasons(found) == {1: "oversized"}


@pytest.mark.parametrize(
    ("limit", "sign", "fits"), [(8, "a", 8), (8, "ä", 4), (8, "€", 2), (8, "🌊", 2), (65536, "🌊", 16384)]
)
def test_a_key_may_have_as_many_bytes_as_agreed_and_not_one_more(limit: int, sign: str, fits: int) -> None:
    rows = [{"user": "ann", "term": sign * size, "at": NOON} for size in (fits, fits + 1)]
    found = decoded(rows, max_key_bytes=limit)
    assert reasons(found) == {1: "oversized"}
    assert counted(part.contributions for part in found) == {(0, unit_id("ann"), sign * fits): 1}


def test_names_that_mean_missing_are_missing() -> None:
    rows = [{"user": user, "term": term, "at": NOON} for user, term in (("NA", "a"), ("ann", "NA"), ("ann", "a"))]
    assert reasons(decoded(rows, missing=["NA"])) == {
        0: "missing_unit",
        1: "missing_key",
    }


def test_units_are_one_whatever_type_their_names_have() -> None:
    rows = [{"user": user, "term": "tide", "at": NOON} for user in (5, "5", 5.0, b"5")]
    found = decoded(rows)
    assert len(found) == 4
    assert counted(part.contributions for part in found) == {(0, unit_id("5"), "tide"): PER_KEY}


def test_the_earliest_event_of_every_window_is_known() -> None:
    rows = [
        {"user": "ann", "term": "tide", "at": at}
        for at in ("2026-01-01T00:30:00Z", "2026-01-01T00:20:00Z", "2026-01-01T01:01:00Z")
    ]
    (found,) = decoded(rows)
    seen = {window: (came.events, came.earliest // 1_000_000 - T0) for window, came in found.windows.items()}
    assert seen == {0: (2, 20 * 60), 1: (1, 61 * 60)}


def test_events_far_apart_need_no_room_for_the_windows_between_them() -> None:
    # Endless windows of a second, and two events a century and a half apart.
    from tidegate.transforms.decode import _arrivals

    window, times = np.array([0, 5_000_000_000, 5_000_000_000]), np.array([7, 9, 8])
    assert _arrivals(window, times) == {0: (1, 7), 5_000_000_000: (2, 8)}
    assert _arrivals(np.array([3, 4, 3]), np.array([5, 6, 4])) == {3: (2, 4), 4: (1, 6)}
    assert _arrivals(np.array([], np.int64), np.array([], np.int64)) == {}


def test_rows_of_a_large_batch_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_ROWS_A_BATCH", 4)
    batch = located({"user": ["ann", None] * 5, "term": ["tide"] * 10, "at": [NOON] * 10}, first=1000)
    parts = [decode._slice(batch, begin) for begin in range(0, 10, 4)]
    letters = [letter for part in parts for letter in Decoder(agreed(), KEY)(part).dead]
    assert [letter.row for letter in letters] == [1001, 1003, 1005, 1007, 1009]
    assert {letter.source for letter in letters} == {"a.parquet"}


def test_a_column_of_row_numbers_goes_before_the_number_of_the_first() -> None:
    batch = located({"user": [None, "ann", None], "term": ["tide"] * 3, "at": [NOON] * 3, ROW: [11, 12, 19]})
    found = Decoder(agreed(), KEY)(batch)
    assert [letter.row for letter in found.dead] == [11, 19]
    assert all(ROW not in json.loads(letter.raw) for letter in found.dead)


EVENTS: Rows = [
    {
        "user": f"u{number % 50}",
        "term": f"t{number % 3}",
        "at": datetime(2026, 1, 1, number % 2, number % 60, tzinfo=UTC),
    }
    for number in range(300)
]


def spelled() -> dict[str, list[Any]]:
    """The same events in the forms that columns come in."""
    texts = [{**event, "at": event["at"].isoformat()} for event in EVENTS]
    seconds = [{**event, "at": int(event["at"].timestamp())} for event in EVENTS]
    whole = pa.RecordBatch.from_pylist(EVENTS)
    return {
        "dicts of times": EVENTS,
        "dicts of text": texts,
        "dicts of seconds": seconds,
        "a batch": [whole],
        "many batches": [whole.slice(begin, 37) for begin in range(0, len(EVENTS), 37)],
        "dictionaries": [
            pa.RecordBatch.from_pydict(
                {
                    name: column.dictionary_encode()
                    for name, column in zip(whole.schema.names, whole.columns, strict=True)
                }
            )
        ],
        "bytes": [
            pa.RecordBatch.from_pydict(
                {name: pa.RecordBatch.from_pylist(texts).column(name).cast(pa.binary()) for name in COLUMNS}
            )
        ],
    }


@pytest.mark.parametrize("form", spelled().keys())
def test_events_contribute_the_same_in_whatever_form_they_come(form: str) -> None:
    def contributions(items: list[Any], unit: str | None) -> Counted:
        batches = items if isinstance(items[0], pa.RecordBatch) else rows_to_batches(items, COLUMNS)
        parts = [Decoder(agreed(time_unit=unit), KEY)(batch) for batch in batches]
        assert not any(part.dead or part.outside for part in parts)
        return counted(part.contributions for part in parts)

    exact = Counter((event["at"].hour, unit_id(event["user"]), event["term"]) for event in EVENTS)
    found = contributions(spelled()[form], "s" if form == "dicts of seconds" else None)
    assert found == {each: min(PER_KEY, count) for each, count in exact.items()}


def test_a_stream_with_strange_rows_is_released_like_the_stream_without() -> None:
    clean: Rows = [{"user": f"u{number}", "term": "tide", "at": T0} for number in range(60)]
    strange: list[Any] = [None, "", 1.5, ["a"], {"a": 1}, b"\xff", 10**30, float("nan"), True]
    dirt: Rows = [{"user": user, "term": ["a"], "at": T0} for user in strange]
    dirt += [{"user": "ann", "term": "moon", "at": at} for at in strange if at is not True]
    dirt += [{}, {"user": "ann"}, {"term": "tide"}]
    with_dirt, without = release([*dirt, *clean]), release(clean)
    assert [item.rows for item in with_dirt] == [item.rows for item in without]
    assert len(without[0].rows)


def test_a_dead_letter_holds_what_the_operator_needs() -> None:
    letter = DeadLetter("bad_time", "a.csv", 3, '{"user": "ann"}')
    assert (letter.reason, letter.source, letter.row, letter.raw) == ("bad_time", "a.csv", 3, '{"user": "ann"}')


# What travels.


def sent(rows: Rows, made: Terms, shards: int = 3) -> list[tuple[int, Contributions]]:
    """What a bundle of these rows sends to bounding, as it arrives there."""
    stage = DecodeFn(made, Secret.for_tests(1), shards)
    stage.setup()
    stage.start_bundle()
    for batch in rows_to_batches(rows, COLUMNS):
        assert not list(stage.process(batch))
    wire = ContributionsCoder()
    return [(value.value[0], wire.decode(wire.encode(value.value[1]))) for value in stage.finish_bundle()]


def test_every_event_is_told_of_once_and_under_its_terms() -> None:
    # Two windows, many shards, and units whose events are more than what they may contribute.
    rows = [
        {"user": f"u{i % 7}", "term": f"t{i % 5}", "at": f"2026-01-01T0{i % 2}:30:00Z", "more": i} for i in range(100)
    ]
    parts = [part for _, part in sent(rows, agreed())]
    assert len(parts) > 2
    assert sum(part.events for part in parts) == 100
    for window in (0, 1):
        assert sum(part.events for part in parts if part.window[0] == window) == 50
    assert {part.terms for part in parts} == {f"{agreed().digest}/3"}


def test_what_was_made_under_other_terms_is_not_counted_under_these() -> None:
    rows = [{"user": "ann", "term": "tide", "at": NOON}]
    stage = BoundFn(agreed(), Secret.for_tests(1), shards=3)
    stage.setup()
    pane = PaneInfo(True, True, PaneInfoTiming.ON_TIME, 0, 0)
    carrier = IntervalWindow(T0, T0 + 3600)
    for shard, part in sent(rows, agreed()):
        assert list(stage.process((shard, [part]), pane, carrier))
    others: list[dict[str, Any]] = [
        {"gate": {"epsilon": 2.0, "measure": "events"}},
        {"window": {"start": "2025-12-31T22:00:00Z"}},  # the same terms, but windows have other numbers
    ]
    for change in others:
        made = make_terms(**terms(**{**COUNTING, "columns": {**COUNTING["columns"]}, **change}))
        for shard, part in sent(rows, made):
            with pytest.raises(SafeError, match="begun under other terms"):
                list(stage.process((shard, [part]), pane, carrier))
    for shard, part in sent(rows, agreed(), shards=4):  # where the unit may have gone to another shard before
        with pytest.raises(SafeError, match="another number of shards"):
            list(stage.process((shard, [part]), pane, carrier))
    aside = IntervalWindow(T0, T0 + 1800)
    with pytest.raises(SafeError, match=r"begun under another window\.size"):
        list(stage.process((0, []), pane, aside))


def test_a_unit_that_its_column_spells_twice_is_one_unit() -> None:
    users = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 1], pa.int32()), pa.array(["ann", "ann", "ben"]))
    columns = {"user": users, "term": pa.array(["tide", "tide", "tide", "moon"]), "at": pa.array([NOON] * 4)}
    decoded = Decoder(agreed(), KEY)(pa.RecordBatch.from_pydict(columns))
    assert len(decoded.contributions.units) == 2
    assert counted([decoded.contributions]) == {
        (0, unit_id("ann"), "tide"): 2,
        (0, unit_id("ann"), "moon"): 1,
        (0, unit_id("ben"), "tide"): 1,
    }
