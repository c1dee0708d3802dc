"""What all formats share: opening a file, what is read from it, and where that came from."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias, cast

import pyarrow as pa
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from tidegate.transforms.decode import FIRST_ROW, SOURCE, DeadLetter
from tidegate.transforms.problems import SafeError

Item: TypeAlias = pa.RecordBatch | DeadLetter
# What a file raises that is cut short or damaged, unlike one that cannot be reached, which is not to be passed over.
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)


@dataclass(frozen=True)
class Peek:
    """What the head of a file tells: its columns, and their types where the format has types."""

    names: list[str]
    types: dict[str, pa.DataType]


@contextlib.contextmanager
def open_file(path: str) -> Iterator[BinaryIO]:
    zipped = path.lower().endswith(".gz")
    try:
        # Beam would take a gzip file that is cut short for a whole one.
        raw = FileSystems.open(
            path, compression_type=CompressionTypes.UNCOMPRESSED if zipped else CompressionTypes.AUTO
        )
    except Exception as problem:
        raise SafeError(f"{path} cannot be opened ({type(problem).__name__})") from None
    with raw:
        if not zipped:
            yield raw
            return
        with gzip.GzipFile(fileobj=raw) as file:
            try:
                file.peek(1)
            except DAMAGE:
                raise SafeError(f"{path} cannot be opened, as it is not compressed with gzip or damaged") from None
            yield cast(BinaryIO, file)


def located(batch: pa.RecordBatch, path: str, first_row: int) -> pa.RecordBatch:
    return batch.replace_schema_metadata({SOURCE: path.encode(), FIRST_ROW: str(first_row).encode()})
