"""CSV with a header. Values may be quoted, also over several lines; nothing is guessed about types."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv

from tidegate.pipelines.formats.files import Item, Peek, located
from tidegate.pipelines.formats.lines import (
    HEAD_BYTES,
    LINES_A_ROW,
    count_lines,
    open_quote,
    parse,
    read_lines,
    read_some,
)
from tidegate.transforms.columns import ROW
from tidegate.transforms.decode import DeadLetter
from tidegate.transforms.problems import SafeError


def peek(path: str, file: BinaryIO) -> Peek:
    return Peek(_names(path, read_some(file, HEAD_BYTES)[0].split(b"\n")[0]), {})


def read(path: str, file: BinaryIO, columns: list[str], _: int | None) -> Iterator[Item]:
    names: list[str] = []
    for item in read_lines(path, file, header=True):
        if isinstance(item, DeadLetter):
            yield item
            continue
        row, block = item
        if row < 0:
            header, more, block = block.partition(b"\n")
            names, row = _names(path, header), 0
            if not more:
                continue
        present = [name for name in columns if name in names]
        yield from parse(block, row, partial(_fast, path, names, present), partial(_slow, path, names, present))


def _names(path: str, header: bytes) -> list[str]:
    try:
        with pa.csv.open_csv(io.BytesIO(header + b"\n")) as reader:
            return list(reader.schema.names)
    except (pa.ArrowException, UnicodeDecodeError) as problem:
        raise SafeError(f"{path} cannot be read as csv ({type(problem).__name__})") from None


def _fast(path: str, names: list[str], present: list[str], block: bytes, first: int) -> list[Item]:
    malformed: dict[int, str] = {}

    def skip(row: Any) -> str:
        malformed[row.number - 1] = row.text
        return "skip"

    table = pa.csv.read_csv(
        pa.BufferReader(block),
        read_options=pa.csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
        # Arrow shows only text to a handler, and complains aloud about anything else.
        parse_options=pa.csv.ParseOptions(invalid_row_handler=skip if _is_utf8(block) else None),
        convert_options=pa.csv.ConvertOptions(
            include_columns=present,
            # Bytes, since text that is not UTF-8 would fail the whole block.
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    lines = len(table) + len(malformed)
    if open_quote(block) or lines != count_lines(block):
        raise pa.ArrowInvalid("rows and lines do not go together")
    if malformed:
        table = table.append_column(ROW, pa.array(first + np.delete(np.arange(lines), list(malformed))))
    dead = (DeadLetter("malformed", path, first + place, text) for place, text in malformed.items())
    return [*(located(batch, path, first) for batch in table.combine_chunks().to_batches()), *dead]


def _is_utf8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _slow(path: str, names: list[str], present: list[str], lines: list[bytes], first: int) -> Iterator[Item]:
    rows, numbers, at = [], [], 0
    while at < len(lines):
        fields, used = _fields(lines, at)
        if len(fields) == len(names):
            rows.append([fields[names.index(name)] or None for name in present])
            numbers.append(first + at)
        elif lines[at].strip():
            # An open quote costs its own line, not all lines up to the next quote.
            yield DeadLetter("malformed", path, first + at, lines[at].decode(errors="backslashreplace"))
            used = 1
        at += used
    columns = [pa.array([row[place] for row in rows], pa.binary()) for place in range(len(present))]
    yield located(pa.RecordBatch.from_arrays([*columns, pa.array(numbers, pa.int64())], [*present, ROW]), path, first)


def _fields(lines: list[bytes], at: int) -> tuple[list[bytes], int]:
    """The fields of the row that begins there, and how many lines it takes; no fields if it makes no sense."""
    if b'"' not in lines[at]:
        return lines[at].removesuffix(b"\r").split(b","), 1
    csv.field_size_limit(sys.maxsize)
    # As lenient as Arrow within a line. Strict over several, as there a quote may be one that somebody forgot.
    for most, strict in ((1, False), (LINES_A_ROW, True)):
        # A row that takes the empty text at the end as well has no end.
        texts = [*(line.decode("latin-1") + "\n" for line in lines[at : at + most]), ""]
        reader = csv.reader(texts, strict=strict)
        try:
            fields = next(reader)
        except csv.Error:
            break
        if reader.line_num < len(texts):
            return [field.encode("latin-1") for field in fields], reader.line_num
    return [], 1
