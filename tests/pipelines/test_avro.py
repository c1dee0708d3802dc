"""What reading and writing Avro promise, checked against fastavro and against files broken by hand."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.pipelines.formats import avro_reading, avro_writing
from tidegate.pipelines.formats.avro_reading import AvroError, Damaged, decode_table, read_batches, read_schema
from tidegate.pipelines.formats.avro_writing import encode

UTC = pa.timestamp("us", "UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017  (UTC is the name of a type here)
MARKER = bytes(range(100, 116))
EVENT = {
    "type": "record",
    "name": "event",
    "fields": [{"name": "user", "type": "string"}, {"name": "at", "type": "long"}, {"name": "on", "type": "boolean"}],
}
EVENTS = [{"user": f"ann-{i}", "at": (-3) ** i, "on": i % 2 == 0} for i in range(30)]


def long(value: int) -> bytes:
    number = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def container(schema: Any, blocks: list[tuple[int, bytes]], codec: str = "null") -> bytes:
    words = (b"avro.schema", json.dumps(schema).encode(), b"avro.codec", codec.encode())
    meta = b"".join(long(len(word)) + word for word in words)
    body = b"".join(long(rows) + long(len(data)) + data + MARKER for rows, data in blocks)
    return b"Obj\x01" + long(2) + meta + long(0) + MARKER + body


def record(*types: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(types)]}


def written(schema: Any, rows: list[Any], codec: str = "null", block: int = 1 << 14) -> bytes:
    file = io.BytesIO()
    fastavro.writer(file, schema, rows, codec=codec, sync_interval=block, sync_marker=MARKER)
    return file.getvalue()


def places(data: bytes) -> list[tuple[int, int, int, int]]:
    """Of each block of a whole file: first row, rows, start, end."""
    found, row = [], 0
    for block in fastavro.block_reader(io.BytesIO(data)):
        found.append((row, block.num_records, block.offset, block.offset + block.size))
        row += block.num_records
    return found


def payload_of(data: bytes) -> bytes:
    (block,) = fastavro.block_reader(io.BytesIO(data))
    return bytes(block.bytes_.getvalue())


class Pipe(io.RawIOBase):
    """A stream that cannot seek and gives a little at a time."""

    def __init__(self, data: bytes, most: int = 1000) -> None:
        self.left, self.given, self.most = data, 0, most

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "reads without bound"
        size = min(size, self.most)
        piece, self.left = self.left[:size], self.left[size:]
        self.given += len(piece)
        return piece


def read(
    data: bytes, columns: list[str], target_bytes: int = 8 << 20, most: int = 1000
) -> tuple[dict[int, dict[str, Any]], list[Damaged]]:
    """The rows by number, and the damage."""
    rows: dict[int, dict[str, Any]] = {}
    damage = []
    for first, item in read_batches(Pipe(data, most), columns, target_bytes):  # type: ignore[arg-type]
        if isinstance(item, Damaged):
            assert first == item.first_row
            damage.append(item)
        else:
            assert not rows.keys() & range(first, first + item.num_rows)
            rows |= dict(enumerate(item.to_pylist(), first))
    return rows, damage


@pytest.fixture
def no_fastavro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastavro, "schemaless_reader", None)


# Writing


INTS = st.integers(-(2**63), 2**63 - 1)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.text() | st.text(min_size=60, max_size=70) | st.sampled_from(["", "é" * 5000]),
    pa.int64(): INTS | st.sampled_from([0, -1, 63, 64, -64, -65, 2**63 - 1, -(2**63)]),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float64(): INTS.map(lambda bits: struct.unpack("<d", struct.pack("<q", bits))[0]) | st.floats(),
    UTC: INTS,
    pa.bool_(): st.booleans(),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    size = draw(st.integers(0, 12))
    fields, arrays = [], []
    for i, type_ in enumerate(draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=6))):
        nullable = draw(st.booleans())
        values = VALUES[type_] | st.none() if nullable else VALUES[type_]
        fields.append(pa.field(f"c{i}", type_, nullable))
        arrays.append(pa.array(draw(st.lists(values, min_size=size, max_size=size)), type_))
    return pa.table(arrays, schema=pa.schema(fields))


def bits(value: Any) -> Any:
    return struct.pack("<d", value) if isinstance(value, float) else value


def as_numbers(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with times as numbers, which unlike datetimes hold all of them, and doubles as bits."""
    fields = [f.with_type(pa.int64()) if f.type == UTC else f for f in table.schema]
    return [{name: bits(value) for name, value in row.items()} for row in table.cast(pa.schema(fields)).to_pylist()]


def by_fastavro(data: bytes) -> list[dict[str, Any]]:
    """The same, by the other reader, which is kept from making datetimes."""
    file = fastavro.reader(io.BytesIO(data.replace(b"timestamp-micros", b"timestamp-nobody")))
    return [{name: bits(value) for name, value in row.items()} for row in file]


@given(tables(), st.sampled_from(["null", "deflate"]))
@settings(deadline=None)
def test_fastavro_reads_what_is_written(table: pa.Table, codec: Any) -> None:
    assert by_fastavro(encode(table, "rows", "a.b", codec)) == as_numbers(table)


@given(tables(), st.sampled_from(["null", "deflate"]))
@settings(deadline=None)
def test_a_table_comes_back_with_its_types(table: pa.Table, codec: Any) -> None:
    back = decode_table(encode(table, "rows", "a.b", codec))
    assert back.schema == table.schema
    assert [field.nullable for field in back.schema] == [field.nullable for field in table.schema]
    assert as_numbers(back) == as_numbers(table)


@given(tables(), st.integers(0, 12))
@settings(deadline=None)
def test_the_bytes_depend_on_nothing_but_the_values(table: pa.Table, at: int) -> None:
    pieces = pa.concat_tables([table.slice(0, at), table.slice(at)])
    again = pa.concat_tables([table, table]).combine_chunks().slice(table.num_rows)
    assert encode(table, "rows", "a") == encode(table, "rows", "a") == encode(pieces, "rows", "a")
    assert encode(table, "rows", "a") == encode(again, "rows", "a")


def test_what_lies_under_a_null_is_not_written() -> None:
    under = [pa.py_buffer(b"\x05"), pa.py_buffer(struct.pack("<4i", 0, 1, 7, 8)), pa.py_buffer(b"asecretb")]
    table = pa.table({"text": pa.StringArray.from_buffers(3, under[1], under[2], under[0])})
    assert table["text"].to_pylist() == ["a", None, "b"]
    assert encode(table, "rows", "a") == encode(pa.table({"text": ["a", None, "b"]}), "rows", "a")


def test_the_marker_is_the_digest_of_schema_and_payload() -> None:
    data = encode(pa.table({"n": range(70_000)}), "rows", "a")
    blocks = list(fastavro.block_reader(io.BytesIO(data)))
    assert [block.num_records for block in blocks] == [65_536, 4_464]
    summary = hashlib.sha256(json.dumps(read_schema(io.BytesIO(data)), separators=(",", ":")).encode())
    for block in blocks:
        summary.update(block.bytes_.getvalue())
    assert data.endswith(summary.digest()[:16])
    assert data.count(summary.digest()[:16]) == 3


def test_rows_of_long_values_go_into_blocks_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_writing, "LARGEST_BLOCK", 1 << 16)
    table = pa.table({"text": [f"{i}" * 1500 for i in range(40)]})
    data = encode(table, "rows", "a")
    assert all(rows <= 4 for _, rows, _, _ in places(data))
    assert decode_table(data) == table


def test_the_schema_says_what_the_table_is() -> None:
    fields = [pa.field("at", UTC, False), pa.field("key", pa.string()), pa.field("n", pa.int32(), False)]
    data = encode(pa.schema(fields).empty_table(), "Row", "a.b", doc="Noisy counts.")
    assert list(fastavro.reader(io.BytesIO(data))) == []
    assert decode_table(data) == pa.schema(fields).empty_table()
    assert read_schema(io.BytesIO(data)) == {
        "type": "record",
        "name": "Row",
        "namespace": "a.b",
        "doc": "Noisy counts.",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "key", "type": ["null", "string"]},
            {"name": "n", "type": "int"},
        ],
    }


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"x": pa.array([1], pa.uint8())}),
        pa.table({"x": pa.array(["a"], pa.large_string())}),
        pa.table({"x": pa.array([1], pa.timestamp("us"))}),
        pa.table({"x": pa.array([1], pa.timestamp("ms", "UTC"))}),
        pa.table({"x": [[1]]}),
        pa.table({"x": [None]}, schema=pa.schema([pa.field("x", pa.int64(), False)])),
        pa.table({"x-y": [1]}),
        pa.table([[1], [2]], names=["x", "x"]),
        pa.table({}),
    ],
)
def test_other_tables_are_refused_in_a_sentence(table: pa.Table) -> None:
    with pytest.raises(ValueError, match=r"^[^.]+\.$"):
        encode(table, "rows", "a")


# Reading


DAY = timedelta(days=1)
ENUM = {"type": "enum", "name": "e", "symbols": ["B", "A", "C"]}
FLAT: list[tuple[Any, list[Any], pa.DataType]] = [
    ("boolean", [True, False], pa.bool_()),
    ("int", [0, -(2**31), 2**31 - 1], pa.int32()),
    ("long", [0, -(2**63), 2**63 - 1], pa.int64()),
    ("float", [0.5, float("-inf")], pa.float32()),
    ("double", [0.1, float("inf")], pa.float64()),
    ("bytes", [b"\xff\0", b""], pa.binary()),
    ("string", ["é漢\0", ""], pa.string()),
    ({"type": "fixed", "name": "f", "size": 3}, [b"\xff\0a", b"abc"], pa.binary()),
    (ENUM, ["A", "C", "B"], pa.string()),
    ({"type": "string", "logicalType": "uuid"}, ["00000000-0000-0000-0000-000000000005"], pa.string()),
    ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, [Decimal("-1.23")], pa.decimal128(9, 2)),
    (
        {"type": "fixed", "name": "d", "size": 5, "logicalType": "decimal", "precision": 9, "scale": 2},
        [Decimal("-1.23")],
        pa.decimal128(9, 2),
    ),
    ({"type": "int", "logicalType": "date"}, [(EPOCH - DAY).date(), (EPOCH + DAY).date()], pa.date32()),
    ({"type": "int", "logicalType": "time-millis"}, [(EPOCH + DAY / 3).time()], pa.time32("ms")),
    ({"type": "long", "logicalType": "time-micros"}, [(EPOCH + DAY / 7).time()], pa.time64("us")),
    ({"type": "long", "logicalType": "timestamp-millis"}, [EPOCH - DAY / 3, EPOCH], pa.timestamp("ms", "UTC")),
    ({"type": "long", "logicalType": "timestamp-micros"}, [EPOCH - DAY / 7, EPOCH], UTC),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, [datetime(1950, 1, 1)], pa.timestamp("ms")),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, [datetime(1950, 1, 1)], pa.timestamp("us")),
    ({"type": "long", "logicalType": "unheard-of"}, [7], pa.int64()),
]
NESTED: list[tuple[Any, list[Any], pa.DataType]] = [
    ({"type": "array", "items": ["string", "null"]}, [["a", None], []], pa.list_(pa.string())),
    ({"type": "map", "values": "long"}, [{"k": 1, "l": 2}, {}], pa.map_(pa.string(), pa.int64())),
    (
        {
            "type": "record",
            "name": "n",
            "fields": [{"name": "e", "type": ENUM}, {"name": "i", "type": ["null", "int"]}],
        },
        [{"e": "C", "i": None}, {"e": "B", "i": 4}],
        pa.struct({"e": pa.string(), "i": pa.int32()}),
    ),
    ("null", [None, None], pa.null()),
]
NAMES = [
    str(avro_type.get("logicalType", avro_type["type"]) if isinstance(avro_type, dict) else avro_type)
    for avro_type, _, _ in FLAT + NESTED
]


def whole(data: bytes, columns: list[str]) -> pa.RecordBatch:
    """The one sound batch of a small file."""
    ((first, batch),) = read_batches(io.BytesIO(data), columns)
    assert first == 0
    assert not isinstance(batch, Damaged)
    batch.validate(full=True)
    return batch


def only(data: bytes, column: str) -> pa.Array:
    return whole(data, [column])[column]


@pytest.mark.parametrize(("avro_type", "values", "arrow_type"), FLAT + NESTED, ids=NAMES)
@pytest.mark.parametrize(
    "union", [lambda t: t, lambda t: ["null", t], lambda t: [t, "null"]], ids=["", "null?", "?null"]
)
def test_a_column_has_the_type_and_values_that_were_written(
    avro_type: Any, values: list[Any], arrow_type: pa.DataType, union: Callable[[Any], Any]
) -> None:
    if avro_type != "null" and isinstance(avro_type := union(avro_type), list):
        values = [None, *values, None]
    column = only(written(record("long", avro_type), [{"f0": 0, "f1": value} for value in values]), "f1")
    assert column.type == arrow_type
    assert column.to_pylist() == [
        list(v.items()) if pa.types.is_map(arrow_type) and v is not None else v for v in values
    ]


def nullable(avro_type: Any) -> Any:
    """A union with null, by name where the type has one and so must not be spelled out twice."""
    return (
        "null"
        if avro_type == "null"
        else ["null", avro_type.get("name", avro_type) if isinstance(avro_type, dict) else avro_type]
    )


@pytest.mark.usefixtures("no_fastavro")
@pytest.mark.parametrize(("neighbour", "values", "_"), FLAT + NESTED, ids=NAMES)
def test_a_flat_column_needs_no_fastavro_whatever_stands_before_it(neighbour: Any, values: list[Any], _: Any) -> None:
    for asked, asked_values, _ in FLAT:
        kind = {**asked, "name": "other"} if isinstance(asked, dict) and "name" in asked else asked
        rows = [{"f0": value, "f1": value, "f2": last, "f3": 1} for value in values for last in asked_values]
        column = only(written(record(neighbour, nullable(neighbour), kind, "long"), rows), "f2")
        assert column.to_pylist() == [row["f2"] for row in rows]


@pytest.mark.parametrize("beside", ["long", ["long", "string"]], ids=["polars", "fastavro"])
def test_times_out_of_the_range_of_python_are_read(beside: Any) -> None:
    times = [2**63 - 1, -(2**63), 0]
    types = [{"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros", "nanos")]
    rows = [{"f0": 1, "f1": time, "f2": time, "f3": time} for time in times]
    payload = payload_of(written(record(beside, "long", "long", "long"), rows))
    for i, unit in enumerate(("ms", "us", "ns"), 1):
        column = only(container(record(beside, *types), [(3, payload)]), f"f{i}")
        assert column.type == pa.timestamp(unit, "UTC")
        assert column.cast(pa.int64()).to_pylist() == times


@pytest.mark.parametrize(
    ("union", "values", "arrow_type"),
    [
        (["long", "double"], [1, 2.5], pa.float64()),
        (["null", "int", "long"], [None, 1, 2**40], pa.int64()),
        (["null", "long", "string"], [None, "a", "b"], pa.string()),
        (["long"], [1, 2], pa.int64()),
    ],
)
def test_a_union_becomes_the_one_type_that_holds_its_values(union: Any, values: list[Any], arrow_type: Any) -> None:
    column = only(written(record("string", union), [{"f0": "", "f1": value} for value in values]), "f1")
    assert column.type == arrow_type
    assert column.to_pylist() == values


@pytest.mark.parametrize(
    ("union", "values"),
    [
        (["long", "string"], [1, "a"]),
        (["bytes", "string"], [b"a", "a"]),
        (["boolean", "long"], [True, 1]),
        (["long", "double"], [2**53 + 1, 0.5]),
    ],
)
def test_values_that_no_type_holds_are_damage_where_they_meet_and_there_alone(union: Any, values: list[Any]) -> None:
    alone = [{"f0": "", "f1": values[0]}] * 2
    both = [{"f0": "", "f1": value} for value in values]
    schema = record("string", union)
    blocks = [(2, payload_of(written(schema, rows))) for rows in (alone, both, alone)]
    rows, damage = read(container(schema, blocks), ["f1"])
    assert damage == [Damaged(2, 2, "mixed")]
    assert rows == {i: {"f1": values[0]} for i in (0, 1, 4, 5)}
    rows, damage = read(container(schema, blocks), ["f0"])
    assert (len(rows), damage) == (6, [])


def squeezed(codec: str, payload: bytes) -> bytes:
    if codec == "snappy":
        raw = pa.compress(payload, codec="snappy", asbytes=True)
        return bytes(raw) + zlib.crc32(payload).to_bytes(4, "big")
    return bytes(pa.compress(payload, codec="zstd", asbytes=True))


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy", "zstandard"])
def test_every_codec_is_read_and_its_damage_kept_apart(codec: str) -> None:
    data = written(EVENT, EVENTS, "null" if codec in ("snappy", "zstandard") else codec, block=100)
    if codec in ("snappy", "zstandard"):
        blocks = fastavro.block_reader(io.BytesIO(data))
        data = container(EVENT, [(b.num_records, squeezed(codec, b.bytes_.getvalue())) for b in blocks], codec)
    assert read(data, ["user", "at", "on"]) == (dict(enumerate(EVENTS)), [])
    assert read(data, ["at"], target_bytes=1) == ({i: {"at": event["at"]} for i, event in enumerate(EVENTS)}, [])
    if codec != "null":
        second = data.index(MARKER, data.index(MARKER, data.index(MARKER) + 16) + 16)  # the end of the second block
        rows, (damage,) = read(data[: second - 8] + b"\xff\xff\xff\xff" + data[second - 4 :], ["at"])
        assert damage == Damaged(damage.first_row, damage.rows, "corrupt")
        lost = range(damage.first_row, damage.first_row + (damage.rows or 0))
        assert len(lost) > 0
        assert rows == {i: {"at": event["at"]} for i, event in enumerate(EVENTS) if i not in lost}


def test_columns_come_as_asked_and_those_the_file_lacks_do_not_come() -> None:
    data = written(EVENT, EVENTS)
    assert whole(data, ["on", "nobody", "user", "on"]).column_names == ["on", "user"]
    nothing = whole(data, ["nobody"])
    assert (nothing.column_names, nothing.num_rows) == ([], len(EVENTS))


def test_rows_are_numbered_through_the_file_whatever_the_size_of_batches() -> None:
    data = written(EVENT, EVENTS, block=1)
    for target in (1, 40, 200, 1 << 20):
        assert read(data, ["user"], target)[0] == {i: {"user": event["user"]} for i, event in enumerate(EVENTS)}


@pytest.mark.parametrize(("more", "bound"), [([], 300_000), ([{"name": "u", "type": ["long", "string"]}], 100_000)])
def test_a_batch_is_out_before_much_more_than_its_bytes_is_in(more: list[Any], bound: int) -> None:
    schema = {**EVENT, "fields": [*EVENT["fields"], *more]}
    pipe = Pipe(written(schema, [{**event, "u": 1} for event in EVENTS] * 2000, block=1000))
    next(read_batches(pipe, ["user"], target_bytes=200_000))  # type: ignore[arg-type]
    assert pipe.given < bound < len(pipe.left)


def test_a_file_without_rows_has_no_batches() -> None:
    assert list(read_batches(io.BytesIO(written(EVENT, [])), ["user"])) == []
    assert read_schema(io.BytesIO(written(EVENT, [])))["fields"] == EVENT["fields"]


# Damage


LIST = {"type": "record", "name": "l", "fields": [{"name": "more", "type": ["null", "l"]}]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PAR1 and so on",
        b"Obj\x01" + b"\xff" * 30,
        container(EVENT, [], "lzw-secret"),
        container("long", []),
        container(["long"], []),
        container({"type": "record", "name": "r"}, []),
        container(record("secret"), []),
        container(record(LIST), []),
        container(record(), []),
        container(record("null"), []),
        container(record({"type": "array", "items": "null"}, "long"), []),
        container({**record("long", "long"), "fields": [{"name": "a", "type": "long"}] * 2}, []),
        b"Obj\x01" + long(1) + long(11) + b"avro.schema" + long(8) + b'{"secret' + long(0) + MARKER,
        b"Obj\x01" + long(1) + long(11) + b"avro.schema" + long(1 << 60) + b"secret",
        *(container(EVENT, [])[:size] for size in range(0, len(container(EVENT, [])), 7)),
        container(EVENT, [])[:-1],
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_a_sentence_that_tells_nothing_of_it(data: bytes) -> None:
    for act in (read_schema, lambda stream: list(read_batches(stream, ["user"])), lambda stream: decode_table(data)):
        with pytest.raises(AvroError, match=r"^[^.]+\.$") as error:
            act(io.BytesIO(data))
        assert "secret" not in str(error.value)
        assert error.value.__cause__ is None
        assert error.value.__context__ is None or error.value.__suppress_context__


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_wherever_a_file_is_cut_all_earlier_blocks_are_read(codec: str) -> None:
    data = written(EVENT, EVENTS, codec, block=100)
    blocks = places(data)
    assert len(blocks) > 3
    for size in range(blocks[0][2], len(data) + 1):
        before = [rows for _, rows, _, end in blocks if end <= size]
        inside = size not in [blocks[0][2], *(end for *_, end in blocks)]
        rows, damage = read(data[:size], ["user", "at", "on"])
        assert rows == dict(enumerate(EVENTS[: sum(before)]))
        assert [(each.first_row, each.reason) for each in damage] == [(sum(before), "truncated")] * inside
        with pytest.raises(AvroError) if inside else nullcontext():
            decode_table(data[:size])


@pytest.mark.parametrize("asked", [["user", "at", "on"], ["on"]])
@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_flipped_byte_in_a_payload_costs_its_block_at_most(codec: str, asked: list[str]) -> None:
    data = written(EVENT, EVENTS[:18], codec, block=50)
    blocks = places(data)
    assert len(blocks) > 2
    first, count, start, end = blocks[1]
    others = {i: {name: event[name] for name in asked} for i, event in enumerate(EVENTS[:18])}
    others = {i: row for i, row in others.items() if not first <= i < first + count}
    head = next(head for head in range(2, 12) if data[start:].startswith(long(count) + long(end - 16 - start - head)))
    for at in range(start + head, end - 16):
        for flip in (0x01, 0x80, 0xFF):
            broken = bytearray(data)
            broken[at] ^= flip
            rows, damage = read(bytes(broken), asked)
            assert damage in ([], [Damaged(first, count, "corrupt")], [Damaged(first, None, "corrupt")])
            shift = count if damage == [Damaged(first, None, "corrupt")] else 0
            kept = {i if i < first else i + shift: row for i, row in rows.items()}
            assert others.items() <= kept.items()
            assert len(rows) == 18 - (count if damage else 0)


@pytest.mark.parametrize("what", ["rows", "size", "marker"])
@pytest.mark.parametrize("flip", [0x01, 0x02, 0x40, 0x80, 0xFF])
def test_after_broken_framing_reading_goes_on_behind_the_next_marker(what: str, flip: int) -> None:
    data = bytearray(written(EVENT, EVENTS, block=60))
    blocks = places(bytes(data))
    _, _, start, end = blocks[1]
    data[{"rows": start, "size": start + 1, "marker": end - 9}[what]] ^= flip
    rows, damage = read(bytes(data), ["user"])
    users = [row["user"] for row in rows.values()]
    lost = blocks[1:3] if what == "marker" else blocks[1:2]
    gone = {EVENTS[i]["user"] for first, count, _, _ in lost for i in range(first, first + count)}
    assert set(users) >= {event["user"] for event in EVENTS} - gone
    assert [each.first_row for each in damage] == [blocks[1][0]]
    assert damage[0].reason == "corrupt"


@pytest.mark.parametrize("rows", [-1, 3, 5, 1 << 20, 1 << 33, 1 << 40, 1 << 62])
def test_a_block_that_claims_other_rows_than_it_has_is_damage_and_asks_for_no_memory(rows: int) -> None:
    payload = b"".join(long(len(e["user"])) + e["user"].encode() + long(e["at"]) + b"\x01" for e in EVENTS[:4])
    data = container(EVENT, [(4, payload), (rows, payload), (4, payload)])
    for target in (1, 1 << 20):
        found, (damage,) = read(data, ["user"], target)
        assert damage.first_row == 4
        assert damage.rows == (rows if 0 <= rows <= 5 else None)  # more is not even tried
        assert [row["user"] for row in found.values()] == [event["user"] for event in EVENTS[:4]] * 2


@pytest.mark.parametrize("beside", ["long", ["long", "string"]], ids=["polars", "fastavro"])
@pytest.mark.parametrize("rest", [b"\0", b"\0\0\0", b"\0\2\0", b"\2\0\0\0", b"a"])
def test_bytes_behind_the_last_row_of_a_block_are_damage(beside: Any, rest: bytes) -> None:
    row = payload_of(written(record(beside, ["null", "string"]), [{"f0": 0, "f1": None}]))
    blocks = [(1, row), (1, row + rest), (1, row)]
    for target in (1, 1 << 20):
        rows, damage = read(container(record(beside, ["null", "string"]), blocks), ["f1"], target)
        assert (rows, damage) == ({0: {"f1": None}, 2: {"f1": None}}, [Damaged(1, 1, "corrupt")])


@pytest.mark.parametrize(
    ("types", "values"),
    [
        (["string", "boolean"], ["ann", True]),
        ([["null", "long"], "long", "boolean"], [2**40, 2**40, True]),
        ([["string", "null"], "boolean"], [None, True]),
        (["boolean", ENUM, "int", "boolean"], [True, "A", -7, True]),
        (["double", "boolean"], [0.0, True]),
        ([{"type": "map", "values": "long"}, "boolean"], [{"a": 1}, True]),
        ([["null", "boolean"], "boolean"], [True, True]),
        ([["long", "string"], "boolean"], ["ann", True]),
    ],
)
def test_rows_out_of_step_do_not_run_on_into_the_next_block(types: list[Any], values: list[Any]) -> None:
    schema, row = record(*types), {f"f{i}": value for i, value in enumerate(values)}
    payload = payload_of(written(schema, [row] * 3))
    wrong = [payload[:size] for size in range(len(payload))]
    wrong += [payload + payload[:size] for size in range(1, len(payload))]
    for each in wrong:
        blocks = [(3, payload), (3, each), (3, payload)]
        rows, damage = read(container(schema, blocks), [f"f{len(types) - 1}"])
        assert [(d.first_row, d.reason) for d in damage] == [(3, "corrupt")]
        assert list(rows.values()) == [{f"f{len(types) - 1}": True}] * 6


def test_the_next_marker_is_found_wherever_the_reads_cut_it() -> None:
    good = long(1) + b"a"
    for size in range(200, 250):
        broken = long(1) + long(-1) + b"x" * size + MARKER
        data = container(record("string"), [(1, good)]) + broken + long(1) + long(len(good)) + good + MARKER
        assert read(data, ["f0"], most=50) == ({0: {"f0": "a"}, 1: {"f0": "a"}}, [Damaged(1, None, "corrupt")])


def test_a_wrong_checksum_is_damage() -> None:
    right = squeezed("snappy", long(1) + b"a")
    wrong = right[:-5] + b"b" + right[-4:]
    data = container(record("string"), [(1, right), (1, wrong), (1, right)], "snappy")
    assert read(data, ["f0"]) == ({0: {"f0": "a"}, 2: {"f0": "a"}}, [Damaged(1, 1, "corrupt")])


@pytest.mark.parametrize(
    ("avro_type", "payload"),
    [
        ("int", long(1 << 31)),
        (ENUM, long(3)),
        (ENUM, long(-1)),
        ("string", long(1) + b"\xff"),
        ("string", long(-1)),
        ("string", long(1 << 62)),
        ("long", b"\xff" * 11),
        ("double", bytes(7)),
        ({"type": "array", "items": "long"}, long(1 << 62) + long(1)),
        ({"type": "map", "values": "long"}, long(-5) + long(1 << 40)),
    ],
)
def test_a_value_that_its_type_has_not_is_damage(avro_type: Any, payload: bytes) -> None:
    good = bytes(8) if avro_type == "double" else b"\0"
    for columns in (["f0", "f1"], ["f1"]):
        data = container(record("long", avro_type), [(1, b"\0" + good), (1, b"\0" + payload), (1, b"\0" + good)])
        rows, damage = read(data, columns)
        assert damage == [Damaged(1, 1, "corrupt")]
        assert rows.keys() == {0, 2}


def test_a_block_too_large_to_hold_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zlib.compress(long(5000) + b"a" * 5000)[2:-4]
    small = zlib.compress(long(3) + b"abc")[2:-4]
    data = container(record("string"), [(1, small), (1, bomb), (1, small)], "deflate")
    assert len(read(data, ["f0"])[0]) == 3
    monkeypatch.setattr(avro_reading, "LARGEST_BLOCK", 1000)
    assert read(data, ["f0"]) == ({0: {"f0": "abc"}, 2: {"f0": "abc"}}, [Damaged(1, 1, "corrupt")])
    stored = container(record("string"), [(1, long(3) + b"abc"), (1, long(5000) + b"a" * 5000), (1, long(3) + b"abc")])
    assert read(stored, ["f0"]) == ({0: {"f0": "abc"}, 1: {"f0": "abc"}}, [Damaged(1, None, "corrupt")])


@given(
    st.lists(st.binary(max_size=60) | st.just(MARKER) | st.sampled_from([b"\x02\x0a", b"\0", b"\xff" * 9]), max_size=8)
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_behind_the_header_raises(pieces: list[bytes]) -> None:
    for schema in (EVENT, record(["long", "string"], {"type": "map", "values": "bytes"})):
        for _, item in read_batches(io.BytesIO(container(schema, []) + b"".join(pieces)), ["user", "f0", "f1"]):
            assert isinstance(item, Damaged) or item.num_rows > 0


def test_a_sound_block_that_polars_fails_is_read_by_fastavro(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise pl.exceptions.PanicException

    found = read_batches(io.BytesIO(written(EVENT, EVENTS, block=100)), ["user", "at"], target_bytes=1)
    items = [next(found)]
    monkeypatch.setattr(pl, "read_avro", fails)
    items.extend(found)
    assert len(items) > 2
    rows = [row for _, batch in items if not isinstance(batch, Damaged) for row in batch.to_pylist()]
    assert rows == [{"user": event["user"], "at": event["at"]} for event in EVENTS]


def test_a_decimal_longer_than_polars_takes_is_read_by_fastavro() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    data = container(record(decimal), [(1, long(20) + b"\xff" * 19 + b"\x85"), (1, long(1) + b"\x07")])
    rows, damage = read(data, ["f0"])
    assert ([row["f0"] for row in rows.values()], damage) == ([Decimal("-1.23"), Decimal("0.07")], [])


def test_running_out_of_memory_is_not_taken_for_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError

    found = read_batches(io.BytesIO(written(EVENT, EVENTS, block=100)), ["user"], target_bytes=1)
    next(found)
    monkeypatch.setattr(pl, "read_avro", fails)
    with pytest.raises(MemoryError):
        next(found)
