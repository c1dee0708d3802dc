"""Reading columns: every row is judged on its own, whatever stands beside it and however the column is laid out."""

from __future__ import annotations

import json
import re
from calendar import timegm
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidegate.transforms.coders import RawBatchCoder
from tidegate.transforms.columns import ROW, Fault, join_keys, read_text, read_time, rows_to_batches

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MICRO = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONED = re.compile(
    r"(.{4})-(..)-(..)[Tt ](..)(?::(..)(?::(..)(?:\.(.+?))?)?)?(?:([Zz])|([+-])(..)(?::?(..))?)?", re.ASCII
)


def micros(instant: datetime) -> int:
    return (instant - EPOCH) // MICRO


def times(values: Sequence[Any] | pa.Array, unit: str | None = None) -> list[int | str]:
    """Each row's microseconds, or the name of its fault."""
    column = values if isinstance(values, pa.Array) else pa.array(list(values))
    found, fault = read_time(column, unit)
    return [int(time) if ok == 0 else Fault(ok).name for time, ok in zip(found, fault, strict=True)]


def texts(column: pa.Array, limit: int = 1024, empty: Fault = Fault.none) -> list[tuple[str, str] | str]:
    """Each row's text, or the name of its fault."""
    read = read_text(column, Fault.missing_key, limit, empty)
    assert len(read.codes) == len(read.fault) == len(column)
    assert len(set(read.values.to_pylist())) == len(read.values), "the dictionary repeats itself"
    return [
        read.values[int(code)].as_py() if ok == 0 else f"!{Fault(ok).name}"
        for code, ok in zip(read.codes, read.fault, strict=True)
    ]


def reference_time(text: str) -> int | str:
    """RFC 3339 a row at a time; minutes, seconds and the minutes of the offset may be left out."""
    found = ZONED.fullmatch(text)
    if not found:
        return "bad_time"
    *numbers, fraction, _, sign, _, _ = found.groups()
    offset = found.groups()[9:]
    if not all(re.fullmatch("[0-9]+", part) for part in (*numbers, fraction, *offset) if part is not None):
        return "bad_time"
    if not found[8] and not sign:
        return "time_without_offset"
    year, month, day, hour, minute, second = (int(part or 0) for part in numbers)
    shift = 60 * int(offset[0] or 0) + int(offset[1] or 0)
    leap_year = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = [31, 28 + leap_year, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    real = 1 <= month <= 12 and 1 <= day <= days[month - 1] and hour < 24 and minute < 60 and second <= 60
    if not real or int(offset[0] or 0) > 23 or int(offset[1] or 0) > 59:
        return "bad_time"
    if not 1900 <= year < 2200 and year not in (1899, 2200):
        return "time_out_of_range"
    seconds = timegm((year, month, day, hour, minute, min(second, 59))) - (-60 if sign == "-" else 60) * shift
    whole = seconds * 1_000_000 + (999_999 if second == 60 else int((fraction or "0").ljust(6, "0")[:6]))
    if not micros(datetime(1900, 1, 1, tzinfo=UTC)) <= whole < micros(datetime(2200, 1, 1, tzinfo=UTC)):
        return "time_out_of_range"
    return whole


GOOD_TIMES = [
    ("2026-01-01T12:00:00Z", NOON),
    ("2026-01-01t12:00:00z", NOON),
    ("2026-01-01 12:00:00Z", NOON),
    ("2026-01-01T12:00:00+00:00", NOON),
    ("2026-01-01T12:00:00-00:00", NOON),
    ("2026-01-01T14:00:00+02:00", NOON),
    ("2026-01-01T17:30:00+05:30", NOON),
    ("2025-12-31T23:00:00-13:00", NOON),
    ("2026-01-02T11:59:00+23:59", NOON),
    ("2026-01-01t07:00:00-05:00", NOON),
    ("2026-01-01T12:00:00.5Z", NOON + 500_000 * MICRO),
    ("2026-01-01T12:00:00.000001z", NOON + MICRO),
    ("2026-01-01T12:00:00.0000019Z", NOON + MICRO),
    ("2026-01-01T12:00:00.999999999+00:00", NOON + 999_999 * MICRO),
    ("2024-02-29T23:59:59Z", datetime(2024, 2, 29, 23, 59, 59, tzinfo=UTC)),
    ("2000-02-29T00:00:00Z", datetime(2000, 2, 29, tzinfo=UTC)),
    ("2026-04-30T00:00:00Z", datetime(2026, 4, 30, tzinfo=UTC)),
    ("2026-12-31T23:59:59Z", datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ("2016-12-31T23:59:60Z", datetime(2017, 1, 1, tzinfo=UTC) - MICRO),
    ("2016-12-31T23:59:60.5Z", datetime(2017, 1, 1, tzinfo=UTC) - MICRO),
    ("2017-01-01T00:59:60+01:00", datetime(2017, 1, 1, tzinfo=UTC) - MICRO),
    ("1900-01-01T00:00:00Z", datetime(1900, 1, 1, tzinfo=UTC)),
    ("2199-12-31T23:59:59.999999Z", datetime(2200, 1, 1, tzinfo=UTC) - MICRO),
    ("1969-12-31T23:59:59.999999Z", EPOCH - MICRO),
]
BAD_TIMES = [
    ("", "bad_time"),
    ("yesterday", "bad_time"),
    ("2026-01-01", "bad_time"),
    ("12:00:00Z", "bad_time"),
    ("20260101T120000Z", "bad_time"),
    (" 2026-01-01T12:00:00Z", "bad_time"),
    ("2026-01-01T12:00:00Z ", "bad_time"),
    ("2026-01-01T12:00:00Z\n", "bad_time"),
    ("2026-01-01T12:00:00.Z", "bad_time"),
    ("2026-01-01T12:00:00,5Z", "bad_time"),
    ("2026-02-30T12:00:00Z", "bad_time"),
    ("2026-02-29T12:00:00Z", "bad_time"),
    ("1900-02-29T12:00:00Z", "bad_time"),
    ("2026-04-31T12:00:00Z", "bad_time"),
    ("2026-13-01T12:00:00Z", "bad_time"),
    ("2026-00-01T12:00:00Z", "bad_time"),
    ("2026-01-00T12:00:00Z", "bad_time"),
    ("2026-01-01T24:00:00Z", "bad_time"),
    ("2026-01-01t24:00:00z", "bad_time"),
    ("2026-01-01T12:60:00Z", "bad_time"),
    ("2026-01-01T12:00:61Z", "bad_time"),
    ("2026-01-01T12:00:00+24:00", "bad_time"),
    ("2026-01-01T12:00:00+12:60", "bad_time"),
    ("2026-01-01T12:00:00UTC", "bad_time"),
    ("2026-01-01T12:00:00[UTC]", "bad_time"),
    ("２０２６-01-01T12:00:00Z", "bad_time"),
    ("+9999-12-31T23:59:59Z", "bad_time"),
    ("-9999-01-01T00:00:00Z", "bad_time"),
    ("0000-00-00T00:00:00Z", "bad_time"),
    ("1767268800", "bad_time"),
    ("NaN", "bad_time"),
    ("2026-01-01T12:00:00", "time_without_offset"),
    ("2026-01-01 12:00:00.123456789", "time_without_offset"),
    ("2026-02-30T12:00:00", "time_without_offset"),
    ("0000-01-01T00:00:00Z", "time_out_of_range"),
    ("0001-01-01T00:00:00Z", "time_out_of_range"),
    ("1899-12-31T23:59:59Z", "time_out_of_range"),
    ("2200-01-01T00:00:00Z", "time_out_of_range"),
    ("9999-12-31T23:59:59Z", "time_out_of_range"),
    ("9999-12-31T23:59:59.999999999z", "time_out_of_range"),
    ("9999-12-31T23:59:59-23:59", "time_out_of_range"),
]


@pytest.mark.parametrize(("text", "instant"), GOOD_TIMES)
def test_a_time_is_read_alone_and_in_bad_company(text: str, instant: datetime) -> None:
    assert times([text]) == [micros(instant)]
    assert times([text, "garbage"])[0] == micros(instant)


@pytest.mark.parametrize(("text", "fault"), BAD_TIMES)
def test_what_is_no_time_is_refused_alone_and_in_good_company(text: str, fault: str) -> None:
    assert times([text]) == [fault]
    assert times(["2026-01-01T12:00:00Z", text, "2026-01-01T12:00:00.123456789Z"])[1] == fault


@pytest.mark.parametrize("digits", range(1, 10))
def test_fractions_of_any_length_are_cut_to_microseconds(digits: int) -> None:
    fraction = "987654321"[:digits]
    expected = micros(NOON) + int(fraction.ljust(6, "0")[:6])
    assert times([f"2026-01-01T12:00:00.{fraction}Z"]) == [expected]
    assert times([f"2026-01-01T12:00:00.{fraction}Z", "x", "2026-01-01T12:00:00Z"]) == [
        expected,
        "bad_time",
        micros(NOON),
    ]


@pytest.mark.parametrize("month", range(1, 13))
def test_a_month_has_the_days_it_has(month: int) -> None:
    days = [f"2026-{month:02d}-{day:02d}T00:00:00Z" for day in range(28, 33)]
    assert times(days) == [reference_time(day) for day in days]
    last = (date(2026 + month // 12, month % 12 + 1, 1) - timedelta(days=1)).day
    assert [time != "bad_time" for time in times(days)] == [day <= last for day in range(28, 33)]


instants = st.datetimes(datetime(1850, 1, 1), datetime(2250, 1, 1))
spellings = st.builds(
    lambda at, clock, t, digits, offset: (
        at.strftime(clock).replace("T", t).replace(".%", f".{digits}" if digits else "") + offset
    ),
    st.one_of(instants, st.datetimes()),
    st.sampled_from(
        ["%Y-%m-%dT%H:%M:%S.%%", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H", "%Y-%m-%d", "%Y-%m-%dT%H:%M:60"]
    ),
    st.sampled_from("Tt "),
    st.text("0123456789", max_size=10),
    st.one_of(
        st.sampled_from(["Z", "z", "", "+00:00", "-23:59", "+24:00", "+0530", "-08", "+5:30", "+05:3", "Z0"]),
        st.builds("{}{:02d}:{:02d}".format, st.sampled_from("+-"), st.integers(0, 30), st.integers(0, 70)),
    ),
)
mutations = st.builds(
    lambda text, place, piece, cut: text[: place % (len(text) + 1)] + piece + text[place % (len(text) + 1) + cut :],
    spellings,
    st.integers(0, 40),
    st.sampled_from(["", "0", "9", "T", "Z", ":", ".", "-", "+", " ", "\n", "\0", "٣", "x"]),
    st.integers(0, 2),
)
time_texts = st.lists(
    st.one_of(spellings, spellings, mutations, st.text(max_size=8), st.none()), min_size=1, max_size=12
)


@settings(max_examples=300, deadline=None)
@given(time_texts)
@example(["2026-01-01T12:00Z"])
@example(["2026-01-01T12:00Z", "garbage"])
@example(["2026-01-01T12:00:00.1234567+0200", "2026-01-01T12Z"])
@example(["2026-01-01T12:00:00.1234567+0200", "x"])
def test_times_agree_with_a_row_by_row_reading(values: list[str | None]) -> None:
    expected = ["missing_time" if text is None else reference_time(text) for text in values]
    assert times(pa.array(values, pa.string())) == expected


@settings(max_examples=100, deadline=None)
@given(time_texts, st.sampled_from(["s", "ms", "us"]), st.lists(st.integers(-(2**70), 2**70)))
@example(["0x10"], "s", [])
@example(["9223372036854775807", "x"], "s", [])
@example(["0000000000000000000000001767225600"], "s", [])
@example(["-5", "+5", "5 ", "1e3", "٣", ""], "s", [])
def test_digits_agree_with_a_row_by_row_reading(values: list[str | None], unit: str, more: list[int]) -> None:
    def reference(text: str | None) -> int | str:
        if text is None or not re.fullmatch("-?[0-9]+", text):
            return "missing_time" if text is None else "bad_time"
        return scaled(int(text), unit) if len(text) <= 18 else "time_out_of_range"

    column = [*values, *map(str, more)]
    assert times(pa.array(column, pa.string()), unit) == [reference(text) for text in column]


def scaled(number: int, unit: str) -> int | str:
    time = number * {"s": 1_000_000, "ms": 1000, "us": 1}[unit] if unit != "ns" else number // 1000
    plausible = micros(datetime(1900, 1, 1, tzinfo=UTC)) <= time < micros(datetime(2200, 1, 1, tzinfo=UTC))
    return time if plausible else "time_out_of_range"


INTEGERS = {kind: pa.type_for_alias(kind) for kind in ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")}


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_whole_numbers_of_any_width_are_times_of_the_unit(kind: str, unit: str) -> None:
    bits = int(kind.strip("uint"))
    low, high = (0, 2**bits - 1) if kind.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    edges = [number for text in ("1900", "2026", "2200") for number in edge_numbers(text, unit)]
    numbers: list[int | None] = [low, 0, 1, None, high, *(number for number in edges if low <= number <= high)]
    expected = [scaled(number, unit) if number is not None else "missing_time" for number in numbers]
    assert times(pa.array(numbers, INTEGERS[kind]), unit) == expected


def edge_numbers(year: str, unit: str) -> list[int]:
    edge = micros(datetime(int(year), 1, 1, tzinfo=UTC)) // {"s": 1_000_000, "ms": 1000, "us": 1}[unit]
    return [edge - 1, edge, edge + 1]


@pytest.mark.parametrize("kind", INTEGERS)
def test_whole_numbers_without_a_unit_are_refused(kind: str) -> None:
    assert times(pa.array([0, 1, None], INTEGERS[kind])) == ["time_without_unit", "time_without_unit", "missing_time"]


@pytest.mark.parametrize("zone", [None, "UTC", "+05:30", "Europe/Berlin", "Mars/Olympus_Mons"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("time_unit", [None, "s"])
def test_timestamps_are_what_they_are_in_every_unit_and_zone(
    unit: str, zone: str | None, time_unit: str | None
) -> None:
    ticks = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    noon = int(NOON.timestamp()) * ticks
    column = pa.array([noon, noon + 1, -1, None, 2**63 - 1, -(2**63) + 1], pa.int64()).cast(pa.timestamp(unit, zone))
    expected = [scaled(tick, unit) for tick in (noon, noon + 1, -1)]
    extremes = [scaled(tick, unit) for tick in (2**63 - 1, -(2**63) + 1)]
    assert times(column, time_unit) == [*expected, "missing_time", *extremes]
    assert extremes == ["time_out_of_range"] * 2


WRONG_TIMES = {
    "float": pa.array([1.5, None]),
    "whole float": pa.array([1767268800.0, None]),
    "bool": pa.array([True, None]),
    "list": pa.array([["2026-01-01T12:00:00Z"], None]),
    "struct": pa.array([{"at": "2026-01-01T12:00:00Z"}, None]),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    "date": pa.array([date(2026, 1, 1), None]),
    "duration": pa.array([timedelta(1), None]),
    "decimal": pa.array([Decimal("1767268800"), None]),
}


@pytest.mark.parametrize("column", WRONG_TIMES.values(), ids=WRONG_TIMES.keys())
@pytest.mark.parametrize("unit", [None, "s"])
def test_columns_that_hold_no_times_are_of_the_wrong_type(column: Any, unit: str | None) -> None:
    assert times(column, unit) == ["wrong_type", "missing_time"]


def test_a_column_of_nothing_lacks_its_times() -> None:
    assert times(pa.nulls(2)) == ["missing_time"] * 2
    assert times(pa.array([], pa.string())) == []


TEXT_KINDS = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()]


@pytest.mark.parametrize("kind", TEXT_KINDS, ids=str)
def test_the_kind_of_text_does_not_matter(kind: Any) -> None:
    column = pa.array(["2026-01-01T12:00:00Z", None, "x"]).cast(kind)
    assert times(column) == [micros(NOON), "missing_time", "bad_time"]
    assert texts(column) == ["2026-01-01T12:00:00Z", "!missing_key", "x"]


def not_utf8(kind: Any) -> pa.Array:
    """A good value, a bad one, a null and a bad one, as a column that nobody has checked."""
    column = pa.array(
        [b"good", b"\xff\xfe", None, b"\xed\xa0\x80"], pa.large_binary() if "large" in str(kind) else pa.binary()
    )
    return column.view(kind)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("encoded", [False, True], ids=["plain", "dictionary"])
def test_bytes_that_are_not_utf8_spoil_their_own_row_only(kind: Any, encoded: bool) -> None:
    column = not_utf8(kind).dictionary_encode() if encoded else not_utf8(kind)
    assert texts(column) == ["good", "!invalid_utf8", "!missing_key", "!invalid_utf8"]
    assert times(column) == ["bad_time", "invalid_utf8", "missing_time", "invalid_utf8"]
    assert times(column, "s") == ["bad_time", "invalid_utf8", "missing_time", "invalid_utf8"]


def test_bytes_of_fixed_size_are_text_too() -> None:
    assert texts(pa.array([b"ab", None, b"\xff\xff"], pa.binary(2))) == ["ab", "!missing_key", "!invalid_utf8"]


@pytest.mark.parametrize("sign", ["a", "ä", "€", "🌊"])
def test_the_limit_is_in_bytes(sign: str) -> None:
    size = len(sign.encode())
    column = pa.array([sign * 4, sign * 5])
    assert texts(column, limit=4 * size) == [sign * 4, "!oversized"]
    assert texts(column, limit=5 * size - 1) == [sign * 4, "!oversized"]
    assert texts(column, limit=5 * size) == [sign * 4, sign * 5]


def test_the_empty_text_is_a_text_unless_it_may_not_be() -> None:
    column = pa.array(["", "a", None])
    assert texts(column) == ["", "a", "!missing_key"]
    assert texts(column, empty=Fault.empty_unit) == ["!empty_unit", "a", "!missing_key"]


OBVIOUS = {
    "int8": (pa.array([-5, 7, None], pa.int8()), ["-5", "7"]),
    "int64": (pa.array([-(2**63), 2**63 - 1, None]), [str(-(2**63)), str(2**63 - 1)]),
    "uint64": (pa.array([0, 2**64 - 1, None], pa.uint64()), ["0", str(2**64 - 1)]),
    "bool": (pa.array([True, False, None]), ["true", "false"]),
    "date": (pa.array([date(2026, 1, 31), date(1, 1, 1), None]), ["2026-01-31", "0001-01-01"]),
    "decimal": (pa.array([Decimal("1.50"), Decimal("-0.01"), None]), ["1.50", "-0.01"]),
    "whole floats": (pa.array([5.0, -0.0, None]), ["5", "0"]),
    "whole floats of 32 bits": (pa.array([5.0, 1e6, None], pa.float32()), ["5", "1000000"]),
    "timestamp": (pa.array([NOON, EPOCH, None]), ["2026-01-01 12:00:00.000000Z", "1970-01-01 00:00:00.000000Z"]),
}


@pytest.mark.parametrize(("column", "expected"), OBVIOUS.values(), ids=OBVIOUS.keys())
@pytest.mark.parametrize("encoded", [False, True], ids=["plain", "dictionary"])
def test_values_with_one_obvious_text_have_it(column: Any, expected: list[str], encoded: bool) -> None:
    assert texts(column.dictionary_encode() if encoded else column) == [*expected, "!missing_key"]


def test_floats_that_are_not_whole_are_no_names() -> None:
    column = pa.array([1.0, 1.5, float("nan"), float("inf"), -float("inf"), 2.0**53, 2.0**53 - 1, None])
    refused = ["!wrong_type"] * 5
    assert texts(column) == ["1", *refused, str(2**53 - 1), "!missing_key"]


WRONG_TEXTS = {
    "list": pa.array([["a"], ["b"]]),
    "struct": pa.array([{"a": 1}, {"a": 2}]),
    "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    "duration": pa.array([timedelta(1), timedelta(2)]),
    "time of day": pa.array([1, 2], pa.time64("us")),
    "unknown zone": pa.array([1, 2], pa.timestamp("s", "Mars/Olympus_Mons")),
}


@pytest.mark.parametrize("column", WRONG_TEXTS.values(), ids=WRONG_TEXTS.keys())
def test_values_without_an_obvious_text_are_of_the_wrong_type(column: Any) -> None:
    assert texts(column) == ["!wrong_type"] * 2


def test_a_column_of_nothing_lacks_its_texts() -> None:
    assert texts(pa.nulls(2)) == ["!missing_key"] * 2
    assert texts(pa.array([None, None], pa.string())) == ["!missing_key"] * 2
    assert texts(pa.array([], pa.string())) == []


def test_a_dictionary_may_repeat_itself_hold_nulls_and_more_than_is_used() -> None:
    dictionary = pa.array(["a", "b", "a", None, "never used", "b"])
    column = pa.DictionaryArray.from_arrays(pa.array([2, 0, None, 3, 1, 5, 2], pa.int8()), dictionary)
    assert texts(column) == ["a", "a", "!missing_key", "!missing_key", "b", "b", "a"]
    assert texts(column.slice(1, 4)) == ["a", "!missing_key", "!missing_key", "b"]
    moments = pa.array(["2026-01-01T12:00:00Z", "x", None, "2026-01-01T12:00:00Z"])
    column = pa.DictionaryArray.from_arrays(pa.array([3, 0, 1, 2, None], pa.uint16()), moments)
    assert times(column) == [micros(NOON), micros(NOON), "bad_time", "missing_time", "missing_time"]


def test_a_dictionary_of_nothing_lacks_its_texts() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int32()), pa.array([], pa.string()))
    assert texts(column) == ["!missing_key"] * 2


def test_values_of_one_text_share_one_code() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array([1.0, 1.0]))
    assert len(set(read_text(column, Fault.missing_key, 10).codes.tolist())) == 1


nasty = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from('"\\/,[]\n\t\0\x1f\x7f\u2028é🌊')), max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(2, 3).flatmap(
        lambda width: st.lists(st.lists(nasty, min_size=width, max_size=width), min_size=1, max_size=8)
    )
)
def test_a_composite_key_is_the_json_array_of_its_parts(rows: list[list[str]]) -> None:
    parts = [read_text(pa.array(column, pa.string()), Fault.missing_key, 1024) for column in zip(*rows, strict=True)]
    joined = join_keys(parts, 1024)
    assert not joined.fault.any()
    found = [joined.values[int(code)].as_py() for code in joined.codes]
    assert found == [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    assert len(set(joined.values.to_pylist())) == len(joined.values)


def test_the_parts_of_a_composite_key_fail_and_fit_together() -> None:
    first = read_text(pa.array(["ab", None, "abcd", "a", "x"]), Fault.missing_key, 9)
    second = read_text(pa.array(["c", "c", "cdef", None, "y" * 10]), Fault.missing_key, 9)
    joined = join_keys([first, second], 10)
    assert [Fault(fault).name for fault in joined.fault] == [
        "none",
        "missing_key",
        "oversized",
        "missing_key",
        "oversized",
    ]
    assert joined.values[int(joined.codes[0])].as_py() == '["ab","c"]'
    assert join_keys([first, second], 9).fault[0] == Fault.oversized


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.one_of(st.none(), nasty), st.one_of(st.none(), nasty)), max_size=8), st.integers(5, 20))
def test_a_composite_key_fails_with_its_first_part_that_fails(
    rows: list[tuple[str | None, str | None]], limit: int
) -> None:
    def judge(row: tuple[str | None, str | None]) -> str:
        for part in row:
            if part is None:
                return "missing_key"
            if len(part.encode()) > limit:
                return "oversized"
        return (
            "oversized" if len(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()) > limit else "none"
        )

    columns = [pa.array([row[place] for row in rows], pa.string()) for place in range(2)]
    joined = join_keys([read_text(column, Fault.missing_key, limit) for column in columns], limit)
    assert [Fault(fault).name for fault in joined.fault] == [judge(row) for row in rows]


def judged(rows: list[dict[str, Any]], unit: str | None = None) -> dict[int, tuple[Any, Any]]:
    """By row number, what plain rows are read as: the text of `x` and the time of `t`."""
    found: dict[int, tuple[Any, Any]] = {}
    for batch in rows_to_batches(rows, ["x", "t"]):
        batch = RawBatchCoder().decode(RawBatchCoder().encode(batch))
        for number, text, time in zip(
            batch.column(ROW).to_pylist(), texts(batch.column("x")), times(batch.column("t"), unit), strict=True
        ):
            assert number not in found
            found[number] = (text, time)
    return found


deep: Any = "end"
for _ in range(500):
    deep = [deep]
PLAIN_VALUES: list[tuple[Any, str]] = [
    ("text", "text"),
    ("", ""),
    (5, "5"),
    (-(2**63), str(-(2**63))),
    (2**63, str(2**63)),
    (10**40, str(10**40)),
    (True, "true"),
    (5.0, "5"),
    (5.5, "!wrong_type"),
    (float("nan"), "!wrong_type"),
    (None, "!missing_key"),
    (b"bytes", "bytes"),
    (b"\xff", "!invalid_utf8"),
    ("\ud800", "!invalid_utf8"),
    ("\udcc3\udca9", "!invalid_utf8"),
    ([], "!wrong_type"),
    (["a"], "!wrong_type"),
    ([1, "a"], "!wrong_type"),
    ([10**40], "!wrong_type"),
    ({}, "!wrong_type"),
    ({"a": {"b": 1}}, "!wrong_type"),
    ({"a": "\ud800"}, "!wrong_type"),
    (deep, "!wrong_type"),
    (object(), "!wrong_type"),
    (date(2026, 1, 31), "2026-01-31"),
    (Decimal("1.50"), "1.50"),
    (Decimal("1.5"), "1.5"),
    (Decimal("NaN"), "!wrong_type"),
    (Decimal("1e100"), "!wrong_type"),
    (NOON, "2026-01-01 12:00:00.000000Z"),
    (NOON.replace(tzinfo=None), "2026-01-01 12:00:00.000000"),
]


@pytest.mark.parametrize(("value", "text"), PLAIN_VALUES, ids=lambda value: type(value).__name__)
def test_a_plain_value_is_read_alone_as_in_any_company(value: Any, text: str) -> None:
    assert judged([{"x": value, "t": NOON}]) == {0: (text, micros(NOON))}


def test_no_plain_value_has_a_say_in_what_another_one_is() -> None:
    rows = [{"x": value, "t": time} for value, _ in PLAIN_VALUES for time in (NOON, "x", None)]
    expected = [(text, time) for _, text in PLAIN_VALUES for time in (micros(NOON), "bad_time", "missing_time")]
    assert judged(rows) == dict(enumerate(expected))
    assert judged(rows[::-1]) == dict(enumerate(expected[::-1]))


def test_plain_times_with_and_without_offsets_do_not_mix() -> None:
    zone = timezone(timedelta(hours=5))
    rows = [
        {"x": "a", "t": time} for time in (NOON, NOON.astimezone(zone), NOON.replace(tzinfo=None), 10**30, True, 1.0)
    ]
    found = [time for _, time in judged(rows, "s").values()]
    assert sorted(map(str, found)) == sorted(
        [str(micros(NOON))] * 3 + ["time_out_of_range", "wrong_type", "wrong_type"]
    )


def test_rows_without_a_column_lack_its_value() -> None:
    assert judged([{"x": "a"}, {"t": NOON}, {}]) == {
        0: ("a", "missing_time"),
        1: ("!missing_key", micros(NOON)),
        2: ("!missing_key", "missing_time"),
    }


def test_rows_keep_the_numbers_they_are_given() -> None:
    batches = list(rows_to_batches([{"x": 1}, {"x": "a"}, {"x": 2}], ["x"], [70, 71, 72]))
    assert sorted((row[ROW], row["x"]) for batch in batches for row in batch.to_pylist() if row["x"] != "a") == [
        (70, 1),
        (72, 2),
    ]
    assert [row[ROW] for batch in batches for row in batch.to_pylist() if row["x"] == "a"] == [71]


def test_large_columns_are_read_as_small_ones() -> None:
    values = [f"t{number % 97}" for number in range(20_000)]
    read = read_text(pa.array(values), Fault.missing_key, 10)
    assert np.array(read.values.to_pylist())[read.codes].tolist() == values


def test_texts_that_mean_missing_are_missing_and_no_other() -> None:
    read = read_text(pa.array(["NA", "na", "", None, "NAN"]), Fault.missing_key, 10, blanks=["NA", ""])
    assert [Fault(fault).name for fault in read.fault] == ["missing_key", "none", "missing_key", "missing_key", "none"]
