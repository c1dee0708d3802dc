"""Preparing rows: only functions of one row are let in, and what becomes of a row depends on nothing beside it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
import traceback
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.transforms.columns import ROW
from tidegate.transforms.prepare import Preparation, Prepared, Preparer, parse_prepare
from tidegate.transforms.problems import SafeError

OTHERS = "one unit's rows would change what becomes of another's, and the bounds would no longer hold"
REPLAY = "the same row would not always come to the same, and a second run would release other numbers than the first"
PLACE = "what becomes of a row would depend on where it is read"
NOON = datetime(2026, 1, 1, 12, 34, 56)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()}
    )


def prepare(spec: object, **columns: Any) -> Prepared:
    return Preparer(parse_prepare(spec))(batch(**columns))


def value_of(expression: str, **columns: Any) -> Any:
    """What an expression comes to on one row."""
    prepared = prepare({"derive": {"result": expression}}, **columns)
    assert len(prepared.failed) == 0
    (result,) = prepared.batch.column("result").to_pylist()
    return result


def refusal(spec: object) -> str:
    with pytest.raises(ValueError, match="prepare") as refused:
        parse_prepare(spec)
    message = str(refused.value)
    assert "\n" not in message
    assert "; " in message, "the sentence must say what to write instead"
    return message


def not_utf8(values: list[bytes]) -> pa.Array:
    """Text that is none: Arrow does not look before it is asked to."""
    return pa.StringArray.from_buffers(len(values), *pa.array(values).buffers()[1:])


def of_one_row(why: str) -> str:
    return f"prepare.where must be a function of one row, and {why}; write an expression of the row's own columns"


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("sum(x) > 1", f"sum is an aggregate: {OTHERS}"),
        ("SUM(x) > 1", f"sum is an aggregate: {OTHERS}"),
        ("count(*) > 1", f"count_star is an aggregate: {OTHERS}"),
        ("x = max(x)", f"max is an aggregate: {OTHERS}"),
        ("coalesce(y, first(x))", f"first is an aggregate: {OTHERS}"),
        ("list_transform(l, lambda e: sum(e))", f"sum is an aggregate: {OTHERS}"),
        ("sum(x) filter (where y) > 1", f"sum is an aggregate: {OTHERS}"),
        ("lower(distinct x) = ''", f"lower with DISTINCT, FILTER or ORDER BY is an aggregate: {OTHERS}"),
        ("row_number() over () < 9", f"row_number is a window function: {OTHERS}"),
        ("sum(x) over (partition by u) < 9", f"sum is a window function: {OTHERS}"),
        ("lag(x) = x", f"lag is a window function: {OTHERS}"),
        ("x = (select 1)", f"a subquery looks beyond it: {OTHERS}"),
        ("exists (select 1)", f"a subquery looks beyond it: {OTHERS}"),
        ("x in (select 1)", f"a subquery looks beyond it: {OTHERS}"),
        ("case when x then 1 else (select 1) end", f"a subquery looks beyond it: {OTHERS}"),
        ("x in (1, 2, (select 3))", f"a subquery looks beyond it: {OTHERS}"),
        ("grouping(x) = 1", f"GROUPING_FUNCTION is not known to be one: {OTHERS}"),
        ("x collate nocase = 'a'", f"COLLATE is not known to be one: {OTHERS}"),
        ("random() < 0.5", f"random changes from call to call or does more than compute: {REPLAY}"),
        ("uuid() = x", f"uuid changes from call to call or does more than compute: {REPLAY}"),
        ("nextval('s') = 1", f"nextval changes from call to call or does more than compute: {REPLAY}"),
        ("error('x')", f"error changes from call to call or does more than compute: {REPLAY}"),
        ("now() > t", f"now changes from run to run: {REPLAY}"),
        ("today() > t", f"today changes from run to run: {REPLAY}"),
        ("getvariable('x') = 1", f"getvariable reads what surrounds it: {PLACE}"),
        ("current_setting('threads') = x", f"current_setting reads what surrounds it: {PLACE}"),
        ("current_date > t", f"current_date reads the clock: {REPLAY}"),
        ("CURRENT_TIMESTAMP > t", f"CURRENT_TIMESTAMP reads the clock: {REPLAY}"),
        ("age(t) > interval 1 day", f"age reads the clock: {REPLAY}"),
        ("current_localtimestamp() > t", f"current_localtimestamp reads the clock: {REPLAY}"),
        ("getenv('HOME') = x", "getenv reads what surrounds it: what becomes of a row would depend on where it is read"),
        ("current_user = x", "current_user reads what surrounds it: what becomes of a row would depend on where it is read"),
        ("ago(x) < t", "ago is a macro: what it stands for may look at more than the row"),
        ("pg_sleep(9)", "pg_sleep is a macro: what it stands for may look at more than the row"),
        ("list_aggregate(l, 'sum') > 1", f"list_aggregate may call an aggregate that draws at random: {REPLAY}"),
        *(
            (f"{name}('/etc/hostname') = x", f"{name} is a table function: rows would come from elsewhere, and the bounds "
             f"would no longer hold")
            for name in ("read_text", "read_csv", "read_parquet", "unnest", "query", "range", "generate_series", "repeat")
        ),
        ("$1 = x", "a parameter comes from elsewhere: what becomes of a row would depend on where it is read"),
        ("? = x", "a parameter comes from elsewhere: what becomes of a row would depend on where it is read"),
        ("#1 = x", "# is whichever column a source has there: what becomes of a row would depend on where it is read"),
        ("columns(*) = x", "* is whatever columns a source has: what becomes of a row would depend on where it is read"),
        ("*", "* is whatever columns a source has: what becomes of a row would depend on where it is read"),
    ],
)  # fmt: skip
def test_what_is_no_function_of_one_row_is_refused_and_the_sentence_says_why(expression: str, why: str) -> None:
    assert refusal({"where": expression}) == of_one_row(why)
    assert refusal([{"derive": {"y": expression}}]).startswith(
        "prepare[0].derive.y must be a function of one row, and "
    )


@pytest.mark.parametrize(
    "expression",
    [
        "1) FROM x",
        '1) AS "value" FROM "tidegate.rows" UNION ALL SELECT (2',
        '1) AS "value" FROM "tidegate.rows" WHERE (true',
        "1), (2",
        "1) + (2",
        "1; select 2",
        "1;",
        "x, y",
        "x as y",
        "x from t",
        "x union select 1",
        "x limit 1",
        "x where true",
        "x order by 1",
        "distinct x",
        "select 1",
        "drop table x",
        "lower(x",
        "x + * y",
        "(" * 300 + "x" + ")" * 300,
        "not " * 1000 + "x",
    ],
)
def test_only_one_expression_is_read(expression: str) -> None:
    assert refusal({"where": expression}).startswith("prepare.where must be one expression that DuckDB can read, not ")


@pytest.mark.parametrize("expression", ["1) FROM x; --", "x -- y", "x /* y */", "x\0y", "x = '\ud800'", "x\x1b"])
def test_comments_and_control_characters_are_refused(expression: str) -> None:
    assert refusal({"where": expression}).startswith("prepare.where must be free of comments and control characters")


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (5, "prepare must be a group of steps or a list of them, not 5; write where: and an expression"),
        ([5], "prepare[0] must be a group of one field, not 5; write where: and an expression"),
        ([{}], "prepare[0] must be a group of one field, not {}; write where: and an expression"),
        ({"wher": "x"}, "prepare.wher is not a field of the spec; write where"),
        ({"q": "x"}, "prepare.q is not a field of the spec; the fields here are derive, where, bucket, truncate"),
        ({"where": 5}, "prepare.where must be an expression as text, not 5; write a < 400"),
        ({"where": None}, "prepare.where must be an expression as text, not empty; write a < 400"),
        ({"where": "  "}, "prepare.where must be an expression as text, not '  '; write a < 400"),
        (
            {"where": "x" * 10_001},
            "prepare.where must be at most 10000 characters long, not 10001; write a shorter one",
        ),
        ({"where": "lowr(x) = 'a'"}, "prepare.where must use a function that exists, not lowr; write lower"),
        ({"where": "qzzz(x)"}, "prepare.where must use a function that exists, not qzzz; write one of DuckDB's functions"),
        ({"where": "x::intger = 1"}, "prepare.where must use a type that exists, not intger; write integer"),
        ({"where": "main.lower(x)"}, "prepare.where must name the function lower without a dot before it; write lower alone"),
        (
            {"where": "x -> 'y'"},
            "prepare.where must do without ->, which may mean two things; write lambda x: or json_extract",
        ),
        (
            {"where": "Age > 1 and age > 1"},
            "prepare.where must not name columns that differ in case alone, and Age and age do; "
            "derive one under another name first",
        ),
        (
            {"where": f'"{ROW}" < 5'},
            f"prepare.where must not name {ROW}, as {OTHERS}; write an expression of the row's own columns",
        ),
        ({"derive": {}}, "prepare.derive must be a group of columns, not {}; write a column and what it becomes"),
        ({"derive": {"": "x"}}, "prepare.derive must name columns of the row, not ''; write a name as text"),
        ({"derive": {5: "x"}}, "prepare.derive must name columns of the row, not 5; write a name as text"),
        ({"derive": {ROW: "x"}}, f"prepare.derive must name columns of the row, not {ROW!r}; write a name as text"),
        ({"derive": {"y": 1}}, "prepare.derive.y must be an expression as text, not 1; write a < 400"),
        ({"bucket": {"x": 1}}, "prepare.bucket.x must be a list of edges or a width, not 1; write [18, 30] or width: 10"),
        ({"bucket": {"x": []}}, "prepare.bucket.x must be a list of edges or a width, not []; write [18, 30] or width: 10"),
        ({"bucket": {"x": [2, 1]}}, "prepare.bucket.x must rise from edge to edge, not [2, 1]; write [18, 30]"),
        ({"bucket": {"x": [1, 1.0]}}, "prepare.bucket.x must rise from edge to edge, not [1, 1.0]; write [18, 30]"),
        ({"bucket": {"x": ["1"]}}, "prepare.bucket.x must be made of numbers up to 1e+15, not '1'; write 18 or 0.5"),
        ({"bucket": {"x": [True]}}, "prepare.bucket.x must be made of numbers up to 1e+15, not true; write 18 or 0.5"),
        ({"bucket": {"x": [float("nan")]}}, "prepare.bucket.x must be made of numbers up to 1e+15, not nan; write 18 or 0.5"),
        (
            {"bucket": {"x": {"width": 0}}},
            "prepare.bucket.x.width must be above zero and have 9 decimals at most, not 0; write 10",
        ),
        (
            {"bucket": {"x": {"width": 1e-10}}},
            "prepare.bucket.x.width must be above zero and have 9 decimals at most, not 1e-10; write 10",
        ),
        *(
            ({"truncate": value}, f"prepare.truncate must be a whole number up to 1000000, not {text}; write 20")
            for value, text in ((0, "0"), (1_000_001, "1000001"), (True, "true"), (2.0, "2.0"), ("3", "'3'"))
        ),
        (
            [{"truncate": 1}, {"truncate": 2}],
            "prepare[1].truncate must be given once, not again as 2; leave one of them out",
        ),
    ],
)  # fmt: skip
def test_a_refused_spec_is_one_sentence(spec: object, sentence: str) -> None:
    assert refusal(spec) == sentence


@pytest.mark.parametrize(
    ("expression", "columns", "result"),
    [
        ("regexp_extract(url, '//([^/]+)', 1)", {"url": "https://example.no/a"}, "example.no"),
        ("case when x < 5 then 'low' else 'high' end", {"x": 3}, "low"),
        ("coalesce(x, y)", {"x": None, "y": 7}, 7),
        ("cast(x as integer) + 1", {"x": "41"}, 42),
        ("try_cast(x as integer)", {"x": "abc"}, None),
        ("try(x::int)", {"x": "abc"}, None),
        ("date_trunc('hour', t)", {"t": NOON}, NOON.replace(minute=0, second=0)),
        ("extract(hour from t at time zone 'Europe/Oslo' at time zone 'UTC')", {"t": NOON}, 11),
        ("t + interval 1 day > t", {"t": NOON}, True),
        ("strftime(t, '%Y-%m')", {"t": NOON}, "2026-01"),
        ("upper(trim(x)) || '-' || length(x)", {"x": " a "}, "A-3"),
        ("x like 'a%' and x ilike 'A_' and x ~ 'a.' and x similar to 'a.'", {"x": "ab"}, True),
        ("x between 1 and 3 and x not in (2, 9) and x is not null", {"x": 3}, True),
        ("nullif(split_part(x, '.', 2), '')", {"x": "a.b"}, "b"),
        ("if(x > 1, 'many', 'one')", {"x": 2}, "many"),
        ("list_transform(l, lambda e: e + x)", {"l": [1, 2], "x": 10}, [11, 12]),
        ("[e * 2 for e in l if e > 1]", {"l": [1, 2, 3]}, [4, 6]),
        ("list_sum(l)::bigint + len(l) + l[1]", {"l": [1, 2]}, 6),
        ("list_reduce(l, lambda a, b: a + b)", {"l": [1, 2, 3]}, 6),
        ("s.inner.name || (s).inner.name", {"s": {"inner": {"name": "n"}}}, "nn"),
        ("json_extract_string(j, '$.a.b')", {"j": '{"a": {"b": "c"}}'}, "c"),
        ("(j->>'a')::decimal(4, 2)", {"j": '{"a": 1.5}'}, Decimal("1.50")),
        ("{'a': x}.a + map {'k': x}['k']", {"x": 2}, 4),
        ("x::hugeint * x", {"x": 2**62}, Decimal(2**124)),
        ("'-- no comment /* either */' || x", {"x": "!"}, "-- no comment /* either */!"),
        ('"a ""b""" + 1', {'a "b"': 1}, 2),
        ("user", {"user": "u"}, "u"),
        ("rowid", {"rowid": 5}, 5),
        ("nowhere is null", {"x": 1}, True),
        ("user", {"x": 1}, None),
        ("lower(" * 60 + "x" + ")" * 60, {"x": "A"}, "a"),
    ],
)
def test_functions_of_one_row_are_computed(expression: str, columns: dict[str, Any], result: Any) -> None:
    assert value_of(expression, **{name: [value] for name, value in columns.items()}) == result


def test_nothing_to_prepare() -> None:
    empty: object
    for empty in (None, {}, []):
        assert parse_prepare(empty) == Preparation()
        assert not parse_prepare(empty)
        assert parse_prepare(empty).meaning() == []
    assert parse_prepare({"truncate": 1})
    assert parse_prepare({"where": "x"})
    given_batch = batch(x=[1, 2])
    prepared = Preparer(parse_prepare({"truncate": 1}))(given_batch)
    assert prepared.batch is given_batch
    assert prepared.rows.tolist() == [0, 1]


def test_a_list_applies_in_the_order_written_and_a_group_in_an_order_of_its_own() -> None:
    first = prepare([{"derive": {"x": "x * 10"}}, {"where": "x < 10"}], x=[0, 1])
    last = prepare([{"where": "x < 10"}, {"derive": {"x": "x * 10"}}], x=[0, 1])
    assert (first.batch.to_pydict(), first.rows.tolist()) == ({"x": [0]}, [0])
    assert (last.batch.to_pydict(), last.rows.tolist()) == ({"x": [0, 10]}, [0, 1])
    assert prepare({"derive": {"x": "x * 10"}, "where": "x < 10"}, x=[0, 1]).batch == first.batch
    # A group's order does not survive every tool that writes YAML.
    assert prepare({"where": "x < 10", "derive": {"x": "x * 10"}}, x=[0, 1]).batch == first.batch


def test_the_columns_of_one_derive_do_not_see_one_another() -> None:
    assert prepare({"derive": {"x": "y", "y": "x"}}, x=[1], y=[2]).batch.to_pydict() == {"x": [2], "y": [1]}


def test_a_step_sees_what_an_earlier_one_made() -> None:
    spec = [
        {"derive": {"a": "x + 1"}},
        {"where": "a > 2"},
        {"derive": {"b": "a * 2"}},
        {"bucket": {"b": [7]}},
        {"where": "b = '7 and above'"},
    ]
    assert prepare(spec, x=[1, 2, 3]).batch.to_pydict() == {"x": [3], "a": [4], "b": ["7 and above"]}


def test_where_keeps_rows_in_order_and_leaves_null_out() -> None:
    prepared = prepare({"where": "x > 1"}, x=[5, None, 1, 2])
    assert (prepared.rows.tolist(), prepared.failed.tolist()) == ([0, 3], [])
    assert prepared.rows.dtype == prepared.failed.dtype == np.int64
    assert prepared.batch.to_pydict() == {"x": [5, 2]}


def test_buckets_by_edges() -> None:
    values = [-5, 17.9, 18, 29, 30, 50, 1e18, float("inf"), None, float("nan")]
    labels = [
        "below 18",
        "below 18",
        "18 to 30",
        "18 to 30",
        "30 to 50",
        "50 and above",
        "50 and above",
        "50 and above",
    ]
    assert prepare({"bucket": {"x": [18, 30, 50]}}, x=values).batch.to_pydict() == {"x": [*labels, None, None]}
    assert prepare({"bucket": {"x": [-0.5]}}, x=["-0.6", "-0.5"]).batch.to_pydict() == {
        "x": ["below -0.5", "-0.5 and above"]
    }


def test_buckets_by_width() -> None:
    whole = prepare({"bucket": {"x": {"width": 10}}}, x=[0, 9, 10, -1, -10, -11, None, 2**62 + 3])
    assert whole.batch.to_pydict() == {"x": [0, 0, 10, -10, -10, -20, None, (2**62 + 3) // 10 * 10]}
    assert whole.batch.schema.field("x").type == pa.int64()
    assert prepare({"bucket": {"x": {"width": 10}}}, x=[9.99, -0.01, float("nan")]).batch.to_pydict() == {
        "x": [0, -10, None]
    }
    parts = prepare({"bucket": {"x": {"width": 0.1}}}, x=[0.3, 0.35, -0.3, -0.31, 0.7, None])
    assert [None if part is None else str(part) for part in parts.batch.column("x").to_pylist()] == [
        "0.3", "0.3", "-0.3", "-0.4", "0.7", None
    ]  # fmt: skip


def test_what_no_bucket_can_hold_fails() -> None:
    prepared = prepare({"bucket": {"x": [18], "y": {"width": 5}}}, x=["1", "abc", "2", "3"], y=[1.0, 2.0, 1e300, 7.0])
    assert prepared.failed.tolist() == [1, 2]
    assert prepared.batch.to_pydict() == {"x": ["below 18", "below 18"], "y": [0, 5]}


@pytest.mark.parametrize(
    ("expression", "columns", "failed"),
    [
        ("x::int", {"x": ["1", "abc", None, "9999999999"]}, [1, 3]),
        ("x * x", {"x": [1, 2**62, None, 3]}, [1]),
        ("regexp_extract('q', x)", {"x": ["(", "q", None]}, [0]),
        ("date_trunc(p, t)", {"p": ["day", "eon"], "t": [NOON, NOON]}, [1]),
        ("x::json", {"x": ["{", "{}"]}, [0]),
        # Two that TRY lets through.
        ("timezone(z, t)", {"z": ["UTC", "Nope", None, "Europe/Oslo"], "t": [NOON] * 4}, [1]),
        ("list_reduce(l, lambda a, b: a + b)", {"l": [[1], [], None, [2, 3], []]}, [1, 4]),
        # Broken text, which would end the database.
        ("upper(x)", {"x": not_utf8([b"ok", b"\xff", b"\xc3"])}, [1, 2]),
        ("l[1]", {"l": pa.ListArray.from_arrays([0, 1, 2], not_utf8([b"\xff", b"ok"]))}, [0]),
        # Wrong for every row, whatever it holds.
        ("lower(x, x)", {"x": ["a", None]}, [0, 1]),
        ("s.y", {"s": ["a", "b"]}, [0, 1]),
        ("len(l)", {"l": pa.ListArray.from_arrays([0, 1, 2], pa.array(["a", "b"]).dictionary_encode())}, [0, 1]),
        ("h + 1", {"h": pa.array(np.ones(2, np.float16))}, [0, 1]),
        ("cast('abc' as int)", {"x": [1, 2]}, [0, 1]),
    ],
)
def test_exactly_the_rows_on_which_an_expression_fails_are_set_aside(
    expression: str, columns: dict[str, Any], failed: list[int]
) -> None:
    one = Preparer(parse_prepare({"derive": {"y": expression}}))
    whole = batch(**columns)
    prepared = one(whole)
    assert prepared.failed.tolist() == failed
    assert prepared.rows.tolist() == [row for row in range(len(whole)) if row not in failed]
    assert [len(one(whole.slice(row, 1)).failed) for row in range(len(whole))] == [
        int(row in failed) for row in range(len(whole))
    ]


def test_a_row_that_an_earlier_step_left_out_cannot_fail() -> None:
    prepared = prepare([{"where": "x <> 'abc'"}, {"where": "x::int > 1"}], x=["abc", "1", "2", "def"])
    assert (prepared.rows.tolist(), prepared.failed.tolist()) == ([2], [3])


def test_failed_rows_are_in_order_whichever_step_they_failed_in() -> None:
    prepared = prepare([{"where": "x::int > 1"}, {"where": "y::int > 1"}], x=["2", "2", "abc"], y=["abc", "2", "2"])
    assert (prepared.rows.tolist(), prepared.failed.tolist()) == ([1], [0, 2])


def test_guarded_casts_do_not_fail() -> None:
    prepared = prepare({"derive": {"y": "case when x <> '' and x::int > 3 then 1 else 0 end"}}, x=["", "4"] * 5000)
    assert len(prepared.failed) == 0
    assert prepared.batch.column("y").to_pylist() == [0, 1] * 5000


def test_entries_of_a_dictionary_that_no_row_has_do_not_matter() -> None:
    column = pa.DictionaryArray.from_arrays([0, 2], ["1", "abc", "5"])
    prepared = prepare({"where": "x::int > 1"}, x=column)
    assert (prepared.rows.tolist(), prepared.failed.tolist()) == ([1], [])
    broken = pa.DictionaryArray.from_arrays([1, 1], not_utf8([b"\xff", b"ok"]))
    assert prepare({"where": "upper(x) = 'OK'"}, x=broken).rows.tolist() == [0, 1]


def test_a_database_that_ended_is_replaced() -> None:
    # Unchecked, as a function of DuckDB with a bug of its own would have it.
    preparer = Preparer(parse_prepare({"derive": {"y": "upper(x)"}}))
    found, fails = preparer._evaluate(
        parse_prepare({"derive": {"y": "upper(x)"}}).steps[0].formulas[0], batch(x=not_utf8([b"a", b"\xff", b"b"]))
    )
    assert (found.to_pylist(), fails.tolist()) == (["A", None, "B"], [False, True, False])
    assert preparer(batch(x=["c"])).batch.column("y").to_pylist() == ["C"]


def test_other_columns_pass_through_as_they_are() -> None:
    columns = {
        "d": pa.array(["a", "b", "c"]).dictionary_encode(),
        "half": pa.array(np.array([1, 2, 3], np.float16)),
        "wide": pa.array([Decimal(1), None, Decimal(3)], pa.decimal256(60, 2)),
        "view": pa.array(["a", None, "c"], pa.string_view()),
        "runs": pa.RunEndEncodedArray.from_arrays([2, 3], ["x", "y"]),
        "broken": not_utf8([b"\xff", b"\xff", b"\xff"]),
        "t": pa.array([1, 2, 3], pa.timestamp("ns", "Nowhere/Land")),
        "Keep": pa.array([1, 2, 3]),
        "keep": pa.array([True, False, True]),
        ROW: pa.array([7, 8, 9], pa.int64()),
    }
    given_batch = batch(**columns).replace_schema_metadata({b"tidegate.source": b"somewhere"})
    prepared = Preparer(parse_prepare({"where": "keep", "derive": {"new": "1"}}))(given_batch)
    assert prepared.rows.tolist() == [0, 2]
    assert prepared.batch.schema.names == [*columns, "new"]
    assert prepared.batch.schema.metadata == {b"tidegate.source": b"somewhere"}
    for name, column in columns.items():
        kept = prepared.batch.column(name)
        assert kept.type == column.type
        assert len(kept) == 2
        if name not in ("broken", "t"):
            assert kept.to_pylist() == [column[0].as_py(), column[2].as_py()]
    assert prepared.batch.column("broken").cast(pa.binary()).to_pylist() == [b"\xff", b"\xff"]
    assert prepared.batch.column("t").cast(pa.int64()).to_pylist() == [1, 3]


def test_columns_that_differ_in_case_are_not_mixed_up() -> None:
    for text, kept in (("age > 1", [0]), ("Age > 1", [1]), ('"AGE" > 1', [])):
        assert prepare({"where": text}, Age=[1, 2], age=[2, 1]).rows.tolist() == kept
    prepared = prepare({"derive": {"a": "age", "b": "Age"}}, Age=[1], age=[2])
    assert prepared.batch.to_pydict() == {"Age": [1], "age": [2], "a": [2], "b": [1]}


def test_an_empty_batch_has_the_derived_columns_too() -> None:
    prepared = prepare({"where": "x > 1", "derive": {"y": "x + 1"}}, x=pa.array([], pa.int64()))
    assert prepared.batch.schema.names == ["x", "y"]
    assert prepared.batch.schema.field("y").type == pa.int64()
    assert len(prepared.rows) == len(prepared.failed) == 0


def test_sources_are_traced_back_to_what_expressions_refer_to() -> None:
    preparation = parse_prepare(
        [
            {"derive": {"host": "regexp_extract(url, '//([^/]+)', 1)"}},
            {"derive": {"site": "coalesce(host, referrer.host)", "n": "list_transform(l, lambda e: e + k)"}},
            {"where": "country = 'NO' and site <> ''"},
            {"bucket": {"age": [18]}},
        ]
    )
    assert preparation.sources(["site", "user", "age"]) == ["user", "age", "country", "l", "k", "referrer", "url"]
    assert preparation.derived == {"host", "site", "n", "age"}
    assert parse_prepare(None).sources(["b", "a", "b"]) == ["b", "a"]
    assert parse_prepare({"derive": {"x": "upper(x)"}}).sources(["x", "u"]) == ["x", "u"]


def test_meaning_is_the_same_however_it_is_written() -> None:
    one = parse_prepare({"truncate": 20, "where": " x < 1 ", "bucket": {"b": {"width": 10.0}, "a": [1.0, 2.5]}})
    two = parse_prepare([{"where": "x < 1"}, {"bucket": {"a": [1, 2.5], "b": {"width": 10}}}, {"truncate": 20}])
    assert one == two
    assert hash(one) == hash(two)
    assert json.dumps(one.meaning()) == json.dumps(two.meaning())
    assert json.loads(json.dumps(one.meaning())) == [
        ["where", {"": "x < 1"}],
        ["bucket", {"a": [1, 2.5], "b": {"width": 10}}],
        ["truncate", 20],
    ]
    others: list[Any] = [
        {"truncate": 21, "where": "x < 1", "bucket": {"b": {"width": 10}, "a": [1, 2.5]}},
        [{"bucket": {"b": {"width": 10}, "a": [1, 2.5]}}, {"where": "x < 1"}, {"truncate": 20}],
        {"truncate": 20, "where": "x < 2", "bucket": {"b": {"width": 10}, "a": [1, 2.5]}},
        {"truncate": 20, "where": "x < 1", "bucket": {"b": [10], "a": [1, 2.5]}},
    ]
    assert len({json.dumps(parse_prepare(other).meaning()) for other in others} | {json.dumps(one.meaning())}) == 5


def test_a_preparation_travels() -> None:
    preparation = parse_prepare({"where": "x > 1", "bucket": {"x": [2]}, "truncate": 3})
    again = pickle.loads(pickle.dumps(preparation))  # noqa: S301
    assert again == preparation
    assert again.truncate == 3
    assert Preparer(again)(batch(x=[1, 2])).batch.to_pydict() == {"x": ["2 and above"]}


def test_duckdb_is_not_imported_before_it_is_needed() -> None:
    script = (
        "import sys; from tidegate.transforms.prepare import Preparer, parse_prepare; "
        "Preparer(parse_prepare({'truncate': 2})); parse_prepare({'bucket': {'x': [1]}}); "
        "sys.exit('duckdb' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_database_reaches_nothing_outside(tmp_path: Any) -> None:
    (tmp_path / "x.csv").write_text("a\n1\n")
    outside = pa.table({"a": [1]})
    connection = Preparer(parse_prepare({"where": "x"}))._connection
    for query in (
        f"FROM '{tmp_path}/x.csv'",
        f"COPY (SELECT 1) TO '{tmp_path}/y.csv'",
        f"ATTACH '{tmp_path}/z.db'",
        "SET threads = 2",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "FROM outside",
    ):
        with pytest.raises(Exception, match=r"disabled|locked|not exist|configuration"):
            connection.execute(query)
    assert len(outside) == 1
    assert connection.sql("SELECT current_setting('TimeZone'), current_setting('threads')").fetchall() == [("UTC", 1)]


def test_an_error_never_quotes_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb

    preparer = Preparer(parse_prepare({"where": "x::int > 1"}))

    canary = f"{2**77:x}"

    def fail(*_: object) -> None:
        raise duckdb.OutOfMemoryException(f"could not allocate {canary}")

    monkeypatch.setattr(preparer, "_connection", type("Broken", (), {"register": fail, "sql": fail})())
    with pytest.raises(SafeError) as problem:
        preparer(batch(x=[canary]))
    shown = "".join(traceback.format_exception(problem.value))
    assert "OutOfMemoryException" in str(problem.value)
    assert canary not in shown
    assert problem.value.__context__ is None


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "x": st.one_of(st.none(), st.integers(-50, 50).map(str), st.sampled_from(["", "abc", "1e2", "9" * 30])),
            "z": st.sampled_from(["UTC", "Europe/Oslo", "Nope", None]),
            "n": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        }
    ),
    max_size=30,
)
SCHEMA = pa.schema({"x": pa.string(), "z": pa.string(), "n": pa.int64()})
STEPS = Preparer(
    parse_prepare(
        [
            {"where": "x is distinct from '7'"},
            {"derive": {"y": "x::int * 2", "t": "timezone(z, timestamp '2026-01-01')", "m": "n + 1"}},
            {"where": "y <> 4 or y is null"},
            {"bucket": {"y": [-10, 0, 10], "n": {"width": 1000}}},
        ]
    )
)


def outcomes(rows: list[dict[str, Any]]) -> list[Any]:
    """What became of each row: its values, "failed" or "left out"."""
    prepared = STEPS(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    result: list[Any] = ["left out"] * len(rows)
    for row, values in zip(prepared.rows, prepared.batch.to_pylist(), strict=True):
        result[row] = values
    for row in prepared.failed:
        assert result[row] == "left out", "a row is either prepared or failed"
        result[row] = "failed"
    return result


@settings(max_examples=60, deadline=None)
@given(ROWS, st.data())
def test_what_becomes_of_a_row_does_not_depend_on_the_others(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    whole = outcomes(rows)
    order = data.draw(st.permutations(range(len(rows))))
    assert outcomes([rows[place] for place in order]) == [whole[place] for place in order]
    cut = data.draw(st.integers(0, len(rows)))
    assert outcomes(rows[:cut]) + outcomes(rows[cut:]) == whole


def test_what_becomes_of_a_row_is_the_same_in_a_batch_of_many_chunks() -> None:
    rows = [{"x": str(n % 23 - 7) if n % 101 else "abc", "z": "UTC", "n": n} for n in range(10_000)]
    whole = outcomes(rows)
    assert whole == [result for begin in range(0, len(rows), 777) for result in outcomes(rows[begin : begin + 777])]
    assert whole.count("failed") == len(range(0, 10_000, 101))


def test_a_million_rows_take_no_time() -> None:
    status = np.arange(1_000_000) % 600
    urls = pa.array([f"https://host{n}.example/page" for n in range(1000)]).take(pa.array(status))
    preparer = Preparer(
        parse_prepare({"where": "status < 400", "derive": {"host": "regexp_extract(url, '//([^/]+)', 1)"}})
    )
    begin = time.process_time()
    prepared = preparer(pa.RecordBatch.from_arrays([pa.array(status), urls], ["status", "url"]))
    assert time.process_time() - begin < 3
    assert np.array_equal(prepared.rows, np.flatnonzero(status < 400))
    assert prepared.batch.column("host")[-1].as_py() == f"host{status[prepared.rows[-1]]}.example"
