"""JSON lines: an object a line; columns that nobody asked for are passed over."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.json

from tidegate.pipelines.formats.files import Item, Peek, located
from tidegate.pipelines.formats.lines import HEAD_BYTES, LINES_A_PIECE, count_lines, parse, read_lines, read_some
from tidegate.transforms.columns import ROW, rows_to_batches
from tidegate.transforms.decode import DeadLetter

_OBJECT = re.compile(rb"(\xef\xbb\xbf)?\s*\{")


def peek(_: str, file: BinaryIO) -> Peek:
    row = _first_object(read_some(file, HEAD_BYTES)[0].split(b"\n"))
    return Peek(list(row), {name: pa.scalar(value).type for name, value in row.items() if _is_number(value)})


def _first_object(lines: Sequence[bytes]) -> dict[str, Any]:
    """The first row that can be read; a bad one before it is a dead letter later, not a reason to stop."""
    for line in lines[:LINES_A_PIECE]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            return row
    return {}


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def read(path: str, file: BinaryIO, columns: list[str], _: int | None) -> Iterator[Item]:
    schema = None
    for item in read_lines(path, file):
        if isinstance(item, DeadLetter):
            yield item
        else:
            line, block = item
            schema = schema or _guess_schema(block, columns)
            yield from parse(block, line, partial(_fast, path, schema), partial(_slow, path, schema))


def _guess_schema(block: bytes, columns: list[str]) -> pa.Schema:
    """The columns' types in the first row that can be read; rows that differ are read one by one."""
    row = _first_object(block.split(b"\n", LINES_A_PIECE))
    whole = {name for name in columns if isinstance(row.get(name), int) and not isinstance(row[name], bool)}
    return pa.schema([(name, pa.int64() if name in whole else pa.string()) for name in columns])


def _fast(path: str, schema: pa.Schema, block: bytes, first: int) -> list[Item]:
    if not _OBJECT.match(block):  # a block that begins with a bare null would crash Arrow
        raise pa.ArrowInvalid("a row that is no object")
    table = pa.json.read_json(
        pa.BufferReader(block),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=max(len(block) + 1, 1024)),
        parse_options=pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    # Arrow skips blank lines, and takes several objects in a line or an object in several lines.
    between = block.count(b"}\n{") + block.count(b"}\r\n{")
    if not len(table) == count_lines(block) == between + 1:
        raise pa.ArrowInvalid("rows and lines do not go together")
    batches = table.combine_chunks().to_batches()
    return [located(part, path, first) for batch in batches for part in _nulls_apart(batch, first)]


def _nulls_apart(batch: pa.RecordBatch, first: int) -> Iterator[pa.RecordBatch]:
    """Rows that lack a value by themselves, with a column of no type for it, as they have it when read one by one.

    So the types of a row do not hang on whether some other row of its block could be read in columns.
    """
    lacking = [column.is_null().to_numpy(zero_copy_only=False) for column in batch.columns]
    if not any(column.null_count for column in batch.columns):
        yield batch
        return
    patterns = np.stack(lacking, axis=1)
    for pattern in np.unique(patterns, axis=0):
        rows = np.flatnonzero((patterns == pattern).all(axis=1))
        columns = {
            name: pa.nulls(len(rows)) if lacks else column.take(pa.array(rows))
            for name, column, lacks in zip(batch.schema.names, batch.columns, pattern, strict=True)
        }
        yield pa.RecordBatch.from_pydict({**columns, ROW: pa.array(rows + first)})


def _fast_of_any(path: str, schema: pa.Schema, line: bytes, number: int) -> list[Item]:
    for each in (schema, pa.schema([(name, pa.string()) for name in schema.names])):
        with contextlib.suppress(pa.ArrowInvalid):
            return _fast(path, each, line, number)
    return []


def _whole(digits: str) -> int | str:
    return int(digits) if len(digits) < 1000 else digits  # which Python refuses to read, for it takes long


def _slow(path: str, schema: pa.Schema, lines: list[bytes], first: int) -> Iterator[Item]:
    rows, numbers = [], []
    for number, line in enumerate(lines, start=first):
        if not line.strip():
            continue
        items: list[Item] = []
        try:
            # What is not UTF-8 is for decoding to find, as it may be in a column that nobody asked for.
            row = json.loads(line.decode(errors="surrogateescape").removeprefix("\ufeff"), parse_int=_whole)
            row = {} if row is None else row  # as Arrow has it
        except ValueError:
            row = None
        except RecursionError:  # only of Python's parser
            row, items = None, _fast_of_any(path, schema, line, number)
        if isinstance(row, dict):
            rows.append(row)
            numbers.append(number)
        else:
            yield from items or [DeadLetter("malformed", path, number, line.decode(errors="backslashreplace"))]
    for batch in rows_to_batches(rows, schema.names, numbers):
        yield located(batch, path, first)
