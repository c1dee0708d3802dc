"""Reading columns of any sensible type as text or as time, judging every row, without looking at rows one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Codes = npt.NDArray[np.int64]
Faults = npt.NDArray[np.uint8]


class Fault(IntEnum):
    """Why a row cannot be counted. The names are the reasons that dead letters and counters give."""

    none = 0
    missing_column = 1
    missing_unit = 2
    empty_unit = 3
    missing_key = 4
    missing_time = 5
    wrong_type = 6
    invalid_utf8 = 7
    oversized = 8
    bad_time = 9
    time_without_offset = 10
    time_without_unit = 11
    time_out_of_range = 12
    missing_value = 13
    bad_value = 14
    not_prepared = 15


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A time outside these is a mistake of unit or a placeholder, not an event; and it keeps all sums inside 64 bits.
_OLDEST = (datetime(1900, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_NEWEST = (datetime(2200, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_TICKS_A_MICRO = {"ns": 1000}
_MICROS_A_TICK = {"s": 1_000_000, "ms": 1000, "us": 1}
# Arrow reads minutes, seconds and the parts of an offset as optional, so they are optional here.
_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?([Zz]|([+-])(\d\d)(?::?(\d\d))?)?", re.ASCII
)
_DECIMAL = r"^\s*[+-]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})([eE][+-]?\d{1,3})?\s*$"
_LIKELY_RFC3339 = (
    r"^\d{4}-((0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
    r"T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$"
)


ROW = "tidegate.row"
"""An optional column of a raw batch: the row's number where it came from."""


def rows_to_batches(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], numbers: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Plain rows as record batches: one, if they agree on types, else one for each mix of types.

    So a row of a strange type spoils no other: it ends up in a batch whose column is of that type, and is judged there.
    """
    numbers = range(len(rows)) if numbers is None else numbers
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(tuple(_kind(row.get(name)) for name in names), []).append(place)
    for places in groups.values():
        columns = {name: _column([rows[place].get(name) for place in places]) for name in names}
        yield pa.RecordBatch.from_pydict({**columns, ROW: pa.array([numbers[place] for place in places], pa.int64())})


def _kind(value: Any) -> Any:
    """All of a value that has a say in which type Arrow finds for its column: a row's types are its own alone.

    Expressions in `prepare` can tell types apart; were they to hang on other rows, so would what becomes of this one.
    """
    if isinstance(value, Decimal):
        _, digits, exponent = value.as_tuple()
        return Decimal, exponent, len(digits)
    if isinstance(value, datetime):
        return datetime, value.tzinfo
    if isinstance(value, str):
        return str, value.isascii() or _is_unicode(value)
    return (int, value.bit_length() < 64) if type(value) is int else type(value)


def _is_unicode(text: str) -> bool:
    """Whether it can be written in UTF-8, as half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _column(values: list[Any]) -> pa.Array:
    """Values of one kind; those that Arrow has no room for as something that is judged as they should be."""
    try:
        column = pa.array(values)
        if not pa.types.is_nested(column.type):
            return column
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        if isinstance(values[0], int):  # beyond 64 bits
            return pa.array([str(value) for value in values])
        if isinstance(values[0], str):  # half a surrogate pair, which no UTF-8 has
            return pa.array([value.encode(errors="surrogatepass") for value in values])
    return pa.array([[_words(value)] for value in values])  # a list is of the wrong type wherever it stands


def _words(value: object) -> str:
    try:
        return repr(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"


@dataclass(frozen=True)
class TextColumn:
    """A column as codes into texts, and a fault for each row (its code is then meaningless)."""

    codes: Codes
    values: pa.Array
    fault: Faults

    @staticmethod
    def absent(rows: int) -> TextColumn:
        return _all(rows, Fault.missing_column)


def _all(rows: int, fault: Fault) -> TextColumn:
    return TextColumn(np.zeros(rows, np.int64), pa.array([""], pa.string()), np.full(rows, fault, np.uint8))


def read_text(
    column: pa.Array,
    missing: Fault,
    limit: int,
    empty: Fault = Fault.none,
    blanks: Sequence[str] = (),
    *,
    distinct: bool = True,
) -> TextColumn:
    """Text, or anything with one obvious text: integers, booleans, dates. `limit` is in bytes; `blanks` mean missing.

    Different values may have one text (1 and 1.0), and a dictionary may repeat itself: without `distinct` so may the texts.
    """
    rows = len(column)
    if pa.types.is_null(column.type) or rows == 0:
        return _all(rows, missing)
    if not pa.types.is_dictionary(column.type):
        try:
            column = column.dictionary_encode()
        except pa.ArrowException:
            return _all(rows, Fault.wrong_type)
    if not len(column.dictionary):
        return _all(rows, missing)
    texts, fault_of_value = _texts(column.dictionary, missing)
    lengths = pc.binary_length(texts).to_numpy(zero_copy_only=False)
    fault_of_value[(fault_of_value == 0) & (lengths > limit)] = Fault.oversized
    if blanks:
        blank = pc.is_in(texts, value_set=pa.array(list(blanks), pa.string())).to_numpy(zero_copy_only=False)
        fault_of_value[(fault_of_value == 0) & blank] = missing
    if empty:
        fault_of_value[(fault_of_value == 0) & (lengths == 0)] = empty
    if fault_of_value.any():  # nobody is to carry or identify these, long as they may be
        texts = pc.if_else(pa.array(fault_of_value == 0), texts, "")
    indices = column.indices.fill_null(0) if column.indices.null_count else column.indices
    codes = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    # Looking something up for every row is most of the work here, and seldom needed.
    fault = fault_of_value[codes] if fault_of_value.any() else np.zeros(rows, np.uint8)
    if column.indices.null_count:
        fault[column.indices.is_null().to_numpy(zero_copy_only=False)] = missing
    if distinct and len((once := texts.dictionary_encode()).dictionary) < len(texts):
        return TextColumn(once.indices.to_numpy().astype(np.int64)[codes], once.dictionary, fault)
    return TextColumn(codes, texts, fault)


def _texts(values: pa.Array, missing: Fault) -> tuple[pa.Array, Faults]:
    """Distinct values as text; those that have none are "" with a fault."""
    kind, fault = values.type, np.zeros(len(values), np.uint8)
    if values.null_count:
        fault[values.is_null().to_numpy(zero_copy_only=False)] = missing
    if pa.types.is_floating(kind):
        # Whole numbers arrive as floats where a column had gaps; anything else is no identifier.
        numbers = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
        whole = np.isfinite(numbers) & (np.abs(numbers) < 2**53) & (np.floor(numbers) == numbers)
        fault[(fault == 0) & ~whole] = Fault.wrong_type
        return pa.array(np.where(whole, numbers, 0).astype(np.int64)).cast(pa.string()), fault
    if _is_text(kind):
        texts, invalid = _utf8(values)
        fault[(fault == 0) & invalid] = Fault.invalid_utf8
        return texts, fault
    if (
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_decimal(kind)
    ):
        try:
            return values.cast(pa.string()).fill_null(""), fault
        except pa.ArrowInvalid:  # a timezone that nobody knows
            pass
    return pa.array([""] * len(values), pa.string()), np.full(len(values), Fault.wrong_type, np.uint8)


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _utf8(values: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Text of text or bytes, and which values are not UTF-8."""
    try:
        values.validate(full=True)  # text may hold anything until it is checked
        return values.cast(pa.string()).fill_null(""), np.zeros(len(values), np.bool_)
    except pa.ArrowInvalid:
        pass
    texts, invalid = [], np.zeros(len(values), np.bool_)
    for place, value in enumerate(values.cast(pa.large_binary())):
        raw = value.as_py() or b""
        try:
            texts.append(raw.decode())
        except UnicodeDecodeError:
            texts.append("")
            invalid[place] = True
    return pa.array(texts, pa.string()), invalid


def join_keys(parts: Sequence[TextColumn], limit: int) -> TextColumn:
    """Several key columns as one key: the JSON array of their texts, compact and unambiguous."""
    fault = parts[0].fault.copy()
    for part in parts[1:]:
        fault = np.where(fault > 0, fault, part.fault).astype(np.uint8)
    # Combine two columns at a time and renumber, so that codes stay small.
    codes, members = parts[0].codes, [np.arange(len(parts[0].values))]
    for part in parts[1:]:
        pairs = pa.array(codes * len(part.values) + part.codes).dictionary_encode()
        left, right = np.divmod(pairs.dictionary.to_numpy(), len(part.values))
        members = [*(member[left] for member in members), right]
        codes = pairs.indices.to_numpy().astype(np.int64)
    quoted = [_quote(part.values).take(pa.array(member)) for part, member in zip(parts, members, strict=True)]
    joined = pc.binary_join_element_wise(*quoted, ",")
    values = pc.binary_join_element_wise("[", joined, "]", "")
    too_long = pc.binary_length(values).to_numpy(zero_copy_only=False) > limit
    fault = np.where((fault == 0) & too_long[codes], Fault.oversized, fault).astype(np.uint8)
    return TextColumn(codes, values, fault)


def _quote(values: pa.Array) -> pa.Array:
    """Texts as JSON strings."""
    escaped = pc.replace_substring(pc.replace_substring(values, "\\", "\\\\"), '"', '\\"')
    quoted = pc.binary_join_element_wise('"', escaped, '"', "")
    control = pc.match_substring_regex(values, "[\\x00-\\x1f]")
    if pc.any(control).as_py():
        rare = [json.dumps(value.as_py(), ensure_ascii=False) for value in values.filter(control)]
        quoted = pc.replace_with_mask(quoted, control, pa.array(rare, pa.string()))
    return quoted


def read_number(column: pa.Array) -> tuple[npt.NDArray[np.float64], Faults]:
    """Finite numbers, and a fault for each row. Text is read as a decimal number."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    fault = np.zeros(len(column), np.uint8)
    if column.null_count:
        fault[column.is_null().to_numpy(zero_copy_only=False)] = Fault.missing_value
    kind = column.type
    if _is_text(kind):
        texts, invalid = _utf8(column)
        fault[(fault == 0) & invalid] = Fault.invalid_utf8
        # Not left to the cast alone, which has only one verdict for all rows.
        decimal = pc.match_substring_regex(texts, _DECIMAL).to_numpy(zero_copy_only=False)
        fault[(fault == 0) & ~decimal] = Fault.bad_value
        numbers = pc.if_else(pa.array(fault == 0), pc.utf8_trim_whitespace(texts), "0").cast(pa.float64())
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = column.cast(pa.float64(), safe=False)
    else:
        wrong = Fault.missing_value if pa.types.is_null(kind) else Fault.wrong_type
        return np.zeros(len(column)), np.where(fault > 0, fault, wrong).astype(np.uint8)
    found = numbers.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
    finite = np.isfinite(found)
    fault[(fault == 0) & ~finite] = Fault.bad_value
    return np.where(finite, found, 0.0), fault


def read_time(column: pa.Array, unit: str | None) -> tuple[Codes, Faults]:
    """Microseconds since 1970 in UTC, and a fault for each row."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    fault = np.zeros(len(column), np.uint8)
    if column.null_count:
        fault[column.is_null().to_numpy(zero_copy_only=False)] = Fault.missing_time
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64), np.full(len(column), Fault.missing_time, np.uint8)
    if pa.types.is_timestamp(kind):
        return _scaled(column.cast(pa.int64()), kind.unit, fault)
    if pa.types.is_integer(kind):
        if unit is None:
            return np.zeros(len(column), np.int64), np.where(fault > 0, fault, Fault.time_without_unit).astype(np.uint8)
        return _scaled(column, unit, fault)
    if _is_text(kind):
        texts, invalid = _utf8(column)
        fault[(fault == 0) & invalid] = Fault.invalid_utf8
        return _read_numbers(texts, unit, fault) if unit else _read_rfc3339(texts, fault)
    return np.zeros(len(column), np.int64), np.where(fault > 0, fault, Fault.wrong_type).astype(np.uint8)


def _scaled(ticks: pa.Array, unit: str, fault: Faults) -> tuple[Codes, Faults]:
    """Ticks of a unit as microseconds, where the result is a plausible date."""
    if ticks.null_count:
        ticks = ticks.fill_null(0)
    numbers = ticks.to_numpy(zero_copy_only=False)
    if unit in _TICKS_A_MICRO:
        numbers, factor = np.floor_divide(numbers, _TICKS_A_MICRO[unit]), 1
    else:
        factor = _MICROS_A_TICK[unit]
    oldest, newest = _OLDEST // factor, _NEWEST // factor
    if not len(numbers) or numbers.min() < oldest or numbers.max() >= newest:
        plausible = (numbers >= oldest) & (numbers < newest)
        fault[(fault == 0) & ~plausible] = Fault.time_out_of_range
        numbers = np.where(plausible, numbers, 0)
    numbers = numbers.astype(np.int64, copy=False)
    return numbers if factor == 1 else numbers * factor, fault


def _read_numbers(texts: pa.Array, unit: str, fault: Faults) -> tuple[Codes, Faults]:
    # Not left to the cast, which takes hexadecimal too, and has only one verdict for all rows.
    digits = pc.match_substring_regex(texts, r"^-?\d+$").to_numpy(zero_copy_only=False)
    fault[(fault == 0) & ~digits] = Fault.bad_time
    fault[(fault == 0) & (pc.binary_length(texts).to_numpy(zero_copy_only=False) > 18)] = Fault.time_out_of_range
    return _scaled(pc.if_else(pa.array(fault == 0), texts, "0").cast(pa.int64()), unit, fault)


def _read_rfc3339(texts: pa.Array, fault: Faults) -> tuple[Codes, Faults]:
    present = texts if not fault.any() else pc.if_else(pa.array(fault == 0), texts, "1970-01-01T00:00:00Z")
    for unit in ("us", "ns"):  # whole files may have nine decimals; everything else is decided below
        try:
            return _scaled(present.cast(pa.timestamp(unit, "UTC")).cast(pa.int64()), unit, fault)
        except pa.ArrowInvalid:
            pass
    likely = pc.match_substring_regex(present, _LIKELY_RFC3339)
    micros, fault = _scaled(
        pc.if_else(likely, present, "1970-01-01T00:00:00Z").cast(pa.timestamp("us", "UTC")).cast(pa.int64()),
        "us",
        fault,
    )
    micros = micros.copy()  # they may be Arrow's own
    for row in np.flatnonzero(~likely.to_numpy(zero_copy_only=False)):
        micros[row], fault[row] = _read_one_rfc3339(present[row].as_py())
    return micros, fault


def _read_one_rfc3339(text: str) -> tuple[int, Fault]:
    found = _RFC3339.fullmatch(text)
    if not found:
        return 0, Fault.bad_time
    *date_and_clock, fraction, offset, sign, hours, minutes = found.groups()
    if offset is None:
        return 0, Fault.time_without_offset
    year, month, day, hour, minute, second = (int(part or 0) for part in date_and_clock)
    leap = second == 60  # a leap second is the last moment of its minute
    try:
        moment = datetime(year, month, day, hour, minute, 59 if leap else second, tzinfo=UTC)
        shift = time(int(hours or 0), int(minutes or 0))
    except ValueError:
        return 0, Fault.bad_time
    micros = 999_999 if leap else int((fraction or "0").ljust(6, "0")[:6])
    value = (moment - _EPOCH) // timedelta(microseconds=1) + micros
    value -= (-1 if sign == "-" else 1) * (60 * shift.hour + shift.minute) * 60_000_000
    if not _OLDEST <= value < _NEWEST:
        return 0, Fault.time_out_of_range
    return value, Fault.none
