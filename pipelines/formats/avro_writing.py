"""Release tables as Avro files, a column at a time: no loop over rows.

What is written depends on the values of a table alone, not on its chunks, the clock or chance: equal tables, equal bytes.
With the codec deflate this holds for one version of zlib; the marker and what is deflated are the same with any.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

LARGEST_BLOCK = 1 << 28  # bytes, stored or inflated; a block that claims more is taken for damage

_ROWS_PER_BLOCK = 1 << 16
_AVRO: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.string(): "string",
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
}

_Longs = npt.NDArray[np.int64]
_Piece = tuple[npt.NDArray[np.uint8], _Longs, _Longs]


def encode(
    table: pa.Table, name: str, namespace: str, codec: Literal["null", "deflate"] = "deflate", doc: str = ""
) -> bytes:
    """The table as an Avro file, in which nullable fields are unions with null."""
    for word in (name, *namespace.split("."), *table.column_names):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", word):
            raise ValueError(f"{word!r} is not a name in Avro.")
    if codec not in ("null", "deflate"):
        raise ValueError("A table is written with the codec null or deflate.")
    if len(set(table.column_names)) < max(1, table.num_columns):
        raise ValueError("An Avro record has one field or more, each of another name.")
    fields = [{"name": field.name, "type": _avro_type(field, table[field.name])} for field in table.schema]
    record = {"type": "record", "name": name, "namespace": namespace, **({"doc": doc} if doc else {}), "fields": fields}
    schema = json.dumps(record, separators=(",", ":")).encode()
    digest = hashlib.sha256(schema)
    rows: list[int] = []

    def payloads() -> Iterator[bytes]:
        for start in range(0, table.num_rows, _ROWS_PER_BLOCK):
            for number, payload in _payloads(table.slice(start, _ROWS_PER_BLOCK)):
                digest.update(payload)
                rows.append(number)
                yield payload

    stored = _deflate if codec == "deflate" else bytes
    if table.num_rows > _ROWS_PER_BLOCK:
        with ThreadPoolExecutor() as pool:  # deflating takes longer than all the rest, and lets it run meanwhile
            blocks = list(pool.map(stored, payloads()))
    else:
        blocks = list(map(stored, payloads()))
    marker = digest.digest()[:16]
    parts = (part for number, block in zip(rows, blocks, strict=True) for part in block_bytes(number, block, marker))
    return b"".join((header_bytes(schema, codec.encode(), marker), *parts))


def _deflate(payload: bytes) -> bytes:
    deflater = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflater.compress(payload) + deflater.flush()


def _avro_type(field: pa.Field, column: pa.ChunkedArray) -> Any:
    if field.type not in _AVRO:
        raise ValueError(f"Column {field.name!r} is of a type, {field.type}, that is not written to Avro.")
    if not field.nullable and column.null_count:
        raise ValueError(f"Column {field.name!r} has nulls, which its field rules out.")
    return ["null", _AVRO[field.type]] if field.nullable else _AVRO[field.type]


def header_bytes(schema: bytes, codec: bytes, marker: bytes) -> bytes:
    meta = (b"avro.schema", schema, b"avro.codec", codec)
    return b"Obj\x01" + long_bytes(2) + b"".join(long_bytes(len(word)) + word for word in meta) + long_bytes(0) + marker


def block_bytes(rows: int, data: bytes, marker: bytes) -> tuple[bytes, ...]:
    return long_bytes(rows), long_bytes(len(data)), data, marker


def long_bytes(value: int) -> bytes:
    rest, digits = (value << 1) ^ (value >> 63), bytearray()
    while rest > 0x7F:
        digits.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*digits, rest])


def _payloads(table: pa.Table) -> Iterator[tuple[int, bytes]]:
    """The rows as payloads, more than one if their values are so long that a reader would refuse the block."""
    payload, half = _payload(table), table.num_rows // 2
    if len(payload) <= LARGEST_BLOCK // 16 or not half:
        yield table.num_rows, payload
    else:
        yield from _payloads(table.slice(0, half))
        yield from _payloads(table.slice(half))


def _payload(table: pa.Table) -> bytes:
    """The records of a block: each field's bytes, of all rows at once, put where each row's record has them."""
    columns = zip(table.columns, table.schema, strict=True)
    pieces = [piece for column, field in columns for piece in _pieces(column.combine_chunks(), field.nullable)]
    sizes = np.sum([length for _, _, length in pieces], axis=0)
    ends = np.cumsum(sizes)
    at = ends - sizes
    out = np.empty(ends[-1], np.uint8)
    for source, start, length in pieces:
        # Bytes move as windows of one width, so the loop is over widths, of which there are few.
        for width in np.unique(length[length > 0]).tolist():
            rows = np.flatnonzero(length == width)
            _windows(out, width)[at[rows]] = _windows(source, width)[start[rows]]
        at += length
    return out.tobytes()


def _windows(data: npt.NDArray[np.uint8], width: int) -> npt.NDArray[np.void]:
    windows: npt.NDArray[np.void] = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    return windows


def _pieces(array: pa.Array, nullable: bool) -> Iterator[_Piece]:
    """The parts of a field in turn, each as bytes with every row's start and length among them."""
    rows, (_, values, *rest) = len(array), array.buffers()
    here = slice(array.offset, array.offset + rows)
    ones = np.ones(rows, np.int64)
    present = np.asarray(array.is_valid().cast(pa.int8())).astype(np.int64) if array.null_count else ones
    if nullable:
        yield np.array([0, 2], np.uint8), present, ones
    if array.type == pa.bool_():
        bits = np.asarray(array.fill_null(False).cast(pa.int8())).astype(np.int64)
        yield np.array([0, 1], np.uint8), bits, present
    elif array.type == pa.float64():
        yield np.frombuffer(values, np.uint8), 8 * np.arange(here.start, here.stop), 8 * present
    elif array.type == pa.string():
        offsets = np.frombuffer(values, np.int32)[here.start : here.stop + 1].astype(np.int64)
        length = np.diff(offsets) * present
        source, start, width = _varints(length)
        yield source, start, width * present
        yield np.frombuffer(rest[0] or b"\0", np.uint8), offsets[:-1], length
    else:
        numbers = np.frombuffer(values, np.int32 if array.type == pa.int32() else np.int64)[here]
        source, start, width = _varints(numbers.astype(np.int64))
        yield source, start, width * present


def _varints(values: _Longs) -> _Piece:
    rest = ((values << 1) ^ (values >> 63)).view(np.uint64)
    most = max(1, -(-int(rest.max()).bit_length() // 7))
    digits = np.empty((len(values), most), np.uint8)
    length = np.ones(len(values), np.int64)
    for i in range(most):
        digit, rest = rest & np.uint64(0x7F), rest >> np.uint64(7)
        digits[:, i] = digit | (rest > 0).astype(np.uint64) << np.uint64(7)
        length += rest > 0
    return digits.reshape(-1), np.arange(0, digits.size, most), length
