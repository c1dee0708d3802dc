"""Parquet: a row group at a time, text as dictionaries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.pipelines.formats.files import DAMAGE, Item, Peek, located
from tidegate.transforms.decode import DeadLetter
from tidegate.transforms.problems import SafeError

_ROWS_A_BATCH = 1 << 19


def peek(path: str, file: BinaryIO) -> Peek:
    schema = _open(path, file, []).schema_arrow
    return Peek(schema.names, dict(zip(schema.names, schema.types, strict=True)))


def groups(path: str, file: BinaryIO) -> int:
    """How many parts of the file can be read on their own."""
    return int(_open(path, file, []).num_row_groups)


def count(path: str, file: BinaryIO) -> int:
    """How many rows the footer promises."""
    return int(_open(path, file, []).metadata.num_rows)


def read(path: str, file: BinaryIO, columns: list[str], group: int | None) -> Iterator[Item]:
    parquet = _open(path, file, columns[:-1])
    present = [name for name in columns if name in parquet.schema_arrow.names]
    for number in range(parquet.num_row_groups) if group is None else [group]:
        rows = sum(parquet.metadata.row_group(earlier).num_rows for earlier in range(number))
        try:
            for batch in parquet.iter_batches(_ROWS_A_BATCH, row_groups=[number], columns=present):
                yield located(batch, path, rows)
                rows += len(batch)
        except (pa.ArrowException, OSError, *DAMAGE) as problem:
            if getattr(problem, "errno", None):  # of the system, not of Arrow
                raise
            yield DeadLetter("unreadable", path, rows, "")


def _open(path: str, file: BinaryIO, columns: list[str]) -> pq.ParquetFile:
    try:
        parquet = pq.ParquetFile(file)
        present = {parquet.schema.column(place).path for place in range(len(parquet.schema))}.intersection(columns)
        # Text comes as dictionaries, the form in which decoding wants it.
        return pq.ParquetFile(file, metadata=parquet.metadata, read_dictionary=present) if present else parquet
    except (pa.ArrowException, OSError, *DAMAGE) as problem:
        raise SafeError(f"{path} cannot be opened as parquet ({type(problem).__name__})") from None
