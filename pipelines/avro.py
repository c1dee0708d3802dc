"""Columnar Avro: event files in as Arrow record batches, release tables out as bytes.

Reading takes the container apart here, inflates each block here, and hands runs of blocks to polars under a schema of
this module's making, in which every type is one that polars reads, and skips, without guessing. What polars cannot
read goes to fastavro: slower, same columns. Promises: memory is bounded by `target_bytes` and `LARGEST_BLOCK` whatever
the lengths in a file claim; damage after the header costs the blocks it touches, and is yielded in its place instead
of raised; no message carries content of the file.

Writing depends on the values of a table alone, not on its chunks, the clock or chance: equal tables, equal bytes.
"""

from __future__ import annotations

import bz2
import hashlib
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO, Literal, NamedTuple

import fastavro
import fastavro.schema
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

LARGEST_BLOCK = 1 << 28  # bytes, stored or inflated; a block that claims more is taken for damage

_MAGIC = b"Obj\x01"
_READ_AHEAD = 1 << 16
_ROWS_PER_BLOCK = 1 << 16
_ARROW = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
_WRITTEN = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.string(): "string",
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
}
# A Rust panic, which polars meets in many a damaged block, is no Exception.
_FAILURES = (Exception, pl.exceptions.PanicException)

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


class AvroError(ValueError):
    """The input is not an Avro file this module can read; one sentence, without content of the file."""


class _Mixed(ValueError):
    """The values of a union are of types that one Arrow column cannot hold."""


@dataclass(frozen=True)
class Damaged:
    """Rows that could not be read. Where `rows` is None nobody knows how many, and later row numbers leave them out."""

    first_row: int
    rows: int | None
    reason: Literal["truncated", "corrupt", "mixed"]


class _Block(NamedTuple):
    first_row: int
    rows: int
    payload: bytes


def read_schema(stream: BinaryIO) -> dict[str, Any]:
    """The schema the file was written with. Reads ahead: open the stream anew to read batches."""
    return _Container(stream).schema


def read_batches(
    stream: BinaryIO, columns: Sequence[str], target_bytes: int = 8 << 20
) -> Iterator[tuple[int, pa.RecordBatch] | Damaged]:
    """The asked columns the file has, as (number of the first row in the file, batch), with damage in its place."""
    container = _Container(stream)
    return _batches(container, _Decoder(container.schema, columns), target_bytes)


def _batches(
    container: _Container, decoder: _Decoder, target_bytes: int
) -> Iterator[tuple[int, pa.RecordBatch] | Damaged]:
    run: list[_Block] = []
    held = 0
    for block in container.blocks(decoder.least_bytes):
        if isinstance(block, _Block):
            run.append(block)
            held += len(block.payload)
            if held < target_bytes:
                continue
        yield from decoder.decode(run)
        run, held = [], 0
        if isinstance(block, Damaged):
            yield block
    yield from decoder.decode(run)


class _Container:
    """The framing of a file: a header, then blocks that each end in the marker the header gave."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._held, self._at = stream, b"", 0
        if self._take(4) != _MAGIC:
            raise AvroError("This is not an Avro file.")
        meta: dict[bytes, bytes] = {}
        try:
            while count := self._long():
                if count < 0:  # then the size in bytes follows
                    self._long()
                for _ in range(abs(count)):
                    key = self._take_all(self._long())
                    meta[key] = self._take_all(self._long())
            self._marker = self._take_all(16)
            self.schema: dict[str, Any] = json.loads(meta[b"avro.schema"])
        except (EOFError, KeyError, ValueError, RecursionError):
            raise AvroError("The header of this Avro file is cut short or damaged.") from None
        codec = meta.get(b"avro.codec", b"null").decode("latin-1")
        if codec not in _INFLATE:
            raise AvroError("This Avro file is compressed in a way that cannot be read here.")
        self._inflate = _INFLATE[codec]

    def blocks(self, least_bytes: int) -> Iterator[_Block | Damaged]:
        """Every block whose framing holds, inflated, given how few bytes a row can take."""
        row = 0
        while self._take(1):
            self._at -= 1
            try:
                rows, size = self._long(), self._long()
            except EOFError:
                yield Damaged(row, None, "truncated")
                return
            except ValueError:
                rows = size = -1
            data = self._take(size + 16) if 0 <= size <= LARGEST_BLOCK else b""
            if rows < 0 or len(data) != size + 16 or not data.endswith(self._marker):
                # The size may be what is wrong, so the search for the next block begins where this one did.
                self._at -= len(data)
                cut = 0 <= len(data) < size + 16 <= LARGEST_BLOCK + 16
                found = self._skip_past_marker()
                cut = cut and not found
                yield Damaged(row, rows if cut and rows >= 0 else None, "truncated" if cut else "corrupt")
                if not found:
                    return
                continue
            try:
                payload = self._inflate(data[:-16])
            except Exception:
                yield Damaged(row, rows, "corrupt")
                row += rows
                continue
            if rows * least_bytes > len(payload):  # polars would reserve room for all the rows, and abort
                yield Damaged(row, None, "corrupt")
                continue
            if rows or payload:
                yield _Block(row, rows, payload)
            row += rows

    def _take(self, size: int) -> bytes:
        """Up to `size` bytes, fewer only at the end; moving `_at` back by as many puts them back."""
        self._fill(size)
        piece = self._held[self._at : self._at + size]
        self._at += len(piece)
        return piece

    def _take_all(self, size: int) -> bytes:
        if not 0 <= size <= LARGEST_BLOCK:
            raise ValueError("length out of range")
        if len(piece := self._take(size)) < size:
            raise EOFError
        return piece

    def _fill(self, size: int) -> None:
        have = len(self._held) - self._at
        if have >= size:
            return
        pieces = [self._held[self._at :]]
        while have < size and (piece := self._stream.read(max(size - have, _READ_AHEAD))):
            pieces.append(piece)
            have += len(piece)
        self._held, self._at = b"".join(pieces), 0

    def _long(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._take_all(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise ValueError("a number of more than 64 bits")

    def _skip_past_marker(self) -> bool:
        while (found := self._held.find(self._marker, self._at)) < 0:
            self._at = max(self._at, len(self._held) - 15)
            have = len(self._held) - self._at
            self._fill(have + 1)
            if len(self._held) - self._at == have:
                return False
        self._at = found + 16
        return True


def _zlib(data: bytes) -> bytes:
    inflater = zlib.decompressobj(-15)
    return _whole(inflater.decompress(data, LARGEST_BLOCK), inflater.eof)


def _bzip2(data: bytes) -> bytes:
    inflater = bz2.BZ2Decompressor()
    return _whole(inflater.decompress(data, LARGEST_BLOCK), inflater.eof)


def _xz(data: bytes) -> bytes:
    inflater = lzma.LZMADecompressor()
    return _whole(inflater.decompress(data, LARGEST_BLOCK), inflater.eof)


def _zstandard(data: bytes) -> bytes:
    with pa.input_stream(pa.py_buffer(data), compression="zstd") as inflater:
        return _whole(inflater.read(LARGEST_BLOCK), not inflater.read(1))


def _snappy(data: bytes) -> bytes:
    size = _Container.__new__(_Container)
    raise NotImplementedError
