"""Columnar Avro: files in, Arrow record batches out.

Reading takes the container apart and inflates its blocks here, then hands runs of blocks to polars under a schema of
this module's making, in which every type is one that polars reads, and skips, without guessing. What polars cannot
read goes to fastavro: slower, same columns. Promises: memory is bounded by `target_bytes` and `LARGEST_BLOCK` whatever
lengths a file claims; damage after the header costs the blocks it touches and is yielded in its place, never raised;
no message carries content of the file.
"""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO, Literal, NamedTuple

import fastavro
import fastavro.schema
import numpy as np
import polars as pl
import pyarrow as pa

from tidegate.pipelines.formats.avro_writing import LARGEST_BLOCK, block_bytes, header_bytes, long_bytes

_INFLATERS: dict[bytes, Any] = {
    b"deflate": lambda: zlib.decompressobj(-zlib.MAX_WBITS),
    b"bzip2": bz2.BZ2Decompressor,
    b"xz": lzma.LZMADecompressor,
}
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
    "int date": pa.date32(),
    "int time-millis": pa.time32("ms"),
    "long time-micros": pa.time64("us"),
} | {
    f"long {local}timestamp-{word}": pa.timestamp(unit, zone)
    for local, zone in (("", "UTC"), ("local-", None))
    for word, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
}
# A Rust panic, which is how polars meets much damage, is no Exception.
_FAILURES = (Exception, pl.exceptions.PanicException)


class AvroError(ValueError):
    """The input is not an Avro file that can be read here."""


class _MixedError(ValueError):
    """A union has values that no one Arrow type holds as they are."""


@dataclass(frozen=True)
class Damaged:
    """Rows that could not be read, as many as their block claims. None: no telling; later row numbers leave them out."""

    first_row: int
    rows: int | None
    reason: Literal["truncated", "corrupt", "mixed"]


class _Block(NamedTuple):
    first_row: int
    rows: int
    payload: bytes


def read_schema(stream: BinaryIO) -> dict[str, Any]:
    """The schema the file was written with, if its batches can be read. Reads ahead: to read them, open it anew."""
    schema = _Container(stream).schema
    _Decoder(schema, ())
    return schema


def read_batches(
    stream: BinaryIO, columns: Sequence[str], target_bytes: int = 8 << 20
) -> Iterator[tuple[int, pa.RecordBatch | Damaged]]:
    """Those columns that the file has, in batches, with damage in its place, each with the number of its first row."""
    container = _Container(stream)
    decoder = _Decoder(container.schema, columns)
    run: list[_Block] = []
    held = 0
    for block in container.blocks(decoder.least_bytes):
        if isinstance(block, _Block):
            run.append(block)
            held += len(block.payload)
            if held * decoder.weight < target_bytes:
                continue
        yield from decoder.decode(run)
        run, held = [], 0
        if isinstance(block, Damaged):
            yield block.first_row, block
    yield from decoder.decode(run)


def decode_table(data: bytes) -> pa.Table:
    """The table that `encode` wrote."""
    schema = read_schema(BytesIO(data))
    names = [field["name"] for field in schema["fields"]]
    batches = []
    for _, batch in (*_Decoder(schema, names).decode([_Block(0, 0, b"")]), *read_batches(BytesIO(data), names)):
        if isinstance(batch, Damaged):
            raise AvroError("This Avro file is damaged.")
        batches.append(batch)
    return pa.Table.from_batches(batches)


class _Container:
    """The framing of a file: a header, then blocks that each end in the marker the header gave."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._held, self._at = stream, b"", 0
        if self._take(4) != b"Obj\x01":
            raise AvroError("This is not an Avro file.")
        meta: dict[bytes, bytes] = {}
        try:
            while count := self._long():
                if count < 0:  # then a size in bytes follows
                    self._long()
                for _ in range(abs(count)):
                    key = self._word()
                    meta[key] = self._word()
            self._marker = self._take(16)
            self.schema: dict[str, Any] = json.loads(meta[b"avro.schema"])
        except (EOFError, KeyError, ValueError, RecursionError):
            self._marker = b""
        if len(self._marker) < 16:
            raise AvroError("The header of this Avro file is cut short or damaged.")
        self._codec = meta.get(b"avro.codec", b"null")
        if self._codec not in {b"null", b"snappy", b"zstandard", *_INFLATERS}:
            raise AvroError("This Avro file is compressed in a way that cannot be read here.")
        if not isinstance(self.schema, dict) or not isinstance(self.schema.get("fields"), list):
            raise AvroError("This Avro file holds something other than records.")

    def blocks(self, least_bytes: int) -> Iterator[_Block | Damaged]:
        """Every block, inflated, or what is wrong with it; a row is known to take `least_bytes` or more."""
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
            plausible = rows >= 0 and 0 <= size <= LARGEST_BLOCK
            data = self._take(size + 16) if plausible else b""
            cut = plausible and len(data) < size + 16
            if not plausible or cut or not data.endswith(self._marker):
                self._at -= len(data)  # the size may be what is wrong, and the next block begin among these bytes
                found = self._skip_past_marker()
                yield Damaged(row, rows, "truncated") if cut and not found else Damaged(row, None, "corrupt")
                if not found:
                    return
                continue
            try:
                payload = _inflate(self._codec, data[:-16])
            except MemoryError:
                raise
            except Exception:
                yield Damaged(row, rows, "corrupt")
            else:
                if rows * least_bytes > len(payload):  # polars would reserve memory for so many rows, and abort
                    yield Damaged(row, None, "corrupt")
                    continue
                if rows or payload:
                    yield _Block(row, rows, payload)
            row += rows

    def _take(self, size: int) -> bytes:
        """So many bytes, fewer only at the end; `_at` moved back by their number puts them back."""
        have = len(self._held) - self._at
        if have < size:
            pieces = [self._held[self._at :]]
            while have < size and (piece := self._stream.read(max(size - have, 1 << 16))):
                pieces.append(piece)
                have += len(piece)
            self._held, self._at = b"".join(pieces), 0
        piece = self._held[self._at : self._at + size]
        self._at += len(piece)
        return piece

    def _long(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            if not (byte := self._take(1)):
                raise EOFError
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise ValueError("a number of more than 64 bits")

    def _word(self) -> bytes:
        size = self._long()
        if not 0 <= size <= LARGEST_BLOCK or len(word := self._take(size)) < size:
            raise EOFError
        return word

    def _skip_past_marker(self) -> bool:
        while (found := self._held.find(self._marker, self._at)) < 0:
            self._at = max(self._at, len(self._held) - 15)
            if len(self._take(16)) < 16:
                return False
            self._at -= 16
        self._at = found + 16
        return True


def _inflate(codec: bytes, data: bytes) -> bytes:
    """The payload of a block, if it is whole and no larger than a block may be."""
    if codec == b"null":
        return data
    if codec == b"snappy":  # begins with its size, seven bits to a byte, and ends with a checksum
        digits = data[: next(i for i, byte in enumerate(data, 1) if byte < 0x80)]
        size = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(digits))
        payload = pa.Codec("snappy").decompress(data[:-4], min(size, LARGEST_BLOCK), asbytes=True)
        whole = zlib.crc32(payload) == int.from_bytes(data[-4:], "big")
    elif codec == b"zstandard":
        with pa.input_stream(pa.py_buffer(data), compression="zstd") as stream:
            payload, whole = stream.read(LARGEST_BLOCK), not stream.read(1)
    else:
        inflater = _INFLATERS[codec]()
        payload = inflater.decompress(data, LARGEST_BLOCK)
        whole = inflater.eof
    if not whole:
        raise ValueError("a payload cut short or too large")
    return bytes(payload)


class _Column(NamedTuple):
    """A column of the file: as polars is to see it, if at all, and as it comes out, if not only the values tell."""

    alias: str
    plain: Any
    sample: bytes
    type: pa.DataType | None
    nullable: bool
    symbols: list[str]

    @classmethod
    def of(cls, alias: str, avro: Any) -> _Column:
        values = [branch for branch in _branches(avro) if branch["type"] != "null"]
        symbols = values[0].get("symbols", []) if len(values) == 1 else []
        return cls(alias, *_plain(avro, alias), _arrow_type(avro), values != _branches(avro), symbols)

    @property
    def flat(self) -> bool:
        return self.sample != b"" and self.type is not None and not pa.types.is_nested(self.type)

    def from_polars(self, array: pa.Array) -> pa.Array:
        if self.symbols:
            return pa.array(self.symbols, pa.string()).take(array)
        narrow = self.type in (pa.int32(), pa.date32(), pa.time32("ms"))
        return (array.cast(pa.int32()) if narrow else array).cast(self.type)  # refuses what does not fit

    def from_python(self, values: list[Any]) -> pa.Array:
        if self.type is not None:
            return pa.array(values, self.type)
        kinds = {type(value) for value in values if value is not None}
        if len(kinds) > 1 and kinds != {int, float}:  # or Arrow would make bytes of text that stands beside bytes
            raise _MixedError
        try:
            return pa.array(values)
        except pa.ArrowException:
            raise _MixedError from None


class _Decoder:
    """Turns the blocks of a file into batches of the asked columns."""

    def __init__(self, schema: dict[str, Any], names: Sequence[str]) -> None:
        try:
            fields = enumerate(fastavro.schema.expand_schema(schema)["fields"])
            columns = {field["name"]: _Column.of(f"c{i}", field["type"]) for i, field in fields}
            # Logical types are left to Arrow, since Python's own types do not hold all of their values.
            bare = json.loads(json.dumps(schema), object_hook=_without_logical_type)
            self._parsed = fastavro.parse_schema({"type": "array", "items": bare})
        except Exception:
            raise AvroError("The schema of this Avro file is invalid, recursive, or makes room for nothing.") from None
        self.least_bytes = sum(column.sample != b"" for column in columns.values())
        if not self.least_bytes or len(columns) < len(schema["fields"]):
            raise AvroError("The records of this Avro file are empty or have two fields of one name.")
        self._asked = {name: columns[name] for name in names if name in columns}
        self.weight, self._decoders = 16, [self._by_fastavro]  # Python objects take many times their bytes in the file
        if all(column.plain for column in columns.values()) and all(column.flat for column in self._asked.values()):
            with suppress(*_FAILURES):  # decimals can be too wide for polars, and samples impossible to tell
                self._prepare_polars(list(columns.values()))

    def _prepare_polars(self, columns: list[_Column]) -> None:
        fields = [{"name": column.alias, "type": column.plain} for column in columns]
        schema = json.dumps({"type": "record", "name": "c", "fields": fields})
        self._header = header_bytes(schema.encode(), b"null", bytes(16))
        self._sample = b"".join(column.sample for column in columns)
        # The columns to know a sample by: those it begins with, as far as one that no bytes look like by chance.
        telling = next(i for i, column in enumerate(columns, 1) if len(set(column.sample)) > 3)
        self._leading = [column.alias for column in columns[:telling] if column.sample]
        self._sample_frame = self._frame(1, self._sample)
        # fastavro may read what polars does not, such as long decimals; but it takes symbol number -1 for the last one.
        lenient = [] if any(column.symbols for column in self._asked.values()) else self._decoders
        self.weight, self._decoders = 1, [self._by_polars, *lenient]

    def decode(self, run: list[_Block]) -> Iterator[tuple[int, pa.RecordBatch | Damaged]]:
        """The run as one batch; if that fails, its halves, down to the bad blocks, so that only those are lost."""
        if not run:
            return
        for decoder in self._decoders:
            try:
                batch = decoder(run)
            except MemoryError:
                raise
            except _FAILURES as failure:
                reason: Literal["corrupt", "mixed"] = "mixed" if isinstance(failure, _MixedError) else "corrupt"
            else:
                yield run[0].first_row, batch
                return
            if half := len(run) // 2:
                yield from self.decode(run[:half])
                yield from self.decode(run[half:])
                return
        yield run[0].first_row, Damaged(run[0].first_row, run[0].rows, reason)

    def _by_polars(self, run: list[_Block]) -> pa.RecordBatch:
        # polars is slow on small blocks, so they are made one. Behind each goes a sample record, which comes out in its
        # place only if the block before it was read to its end and no further: damage stays in its block.
        ends = np.cumsum([block.rows + 1 for block in run])
        frame = self._frame(int(ends[-1]), b"".join(part for block in run for part in (block.payload, self._sample)))
        samples = frame.select(self._leading)[ends - 1]
        if not samples.equals(self._sample_frame.select(self._leading)[0 * ends]):
            raise ValueError("rows out of step")
        kept = np.ones(frame.height, np.bool_)
        kept[ends - 1] = False
        frame = frame.filter(pl.Series(kept))
        arrays = [column.from_polars(frame[column.alias].to_arrow()) for column in self._asked.values()]
        return _batch(frame.height, self._asked, arrays)

    def _frame(self, rows: int, payload: bytes) -> pl.DataFrame:
        file = BytesIO(b"".join((self._header, *block_bytes(rows, payload, bytes(16)))))
        aliases = dict.fromkeys((*self._leading, *(column.alias for column in self._asked.values())))
        return pl.read_avro(file, columns=list(aliases))

    def _by_fastavro(self, run: list[_Block]) -> pa.RecordBatch:
        # Each block is read as one array, and all columns: a reader's schema would make bytes of text beside bytes.
        records: list[dict[str, Any]] = []
        for block in run:
            file = BytesIO((long_bytes(block.rows) if block.rows else b"") + block.payload + long_bytes(0))
            found = fastavro.schemaless_reader(file, self._parsed, None)
            if len(found) != block.rows or file.read(1):
                raise ValueError("more than these rows")
            records += found
        arrays = [column.from_python([record[name] for record in records]) for name, column in self._asked.items()]
        return _batch(len(records), self._asked, arrays)


def _batch(rows: int, columns: dict[str, _Column], arrays: list[pa.Array]) -> pa.RecordBatch:
    fields = zip(columns.items(), arrays, strict=True)
    record = pa.struct([pa.field(name, array.type, column.nullable) for (name, column), array in fields])
    # By way of a struct, which keeps its length even without columns.
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(record, rows, [None], children=arrays))


def _branches(avro: Any) -> list[dict[str, Any]]:
    return [each if isinstance(each, dict) else {"type": each} for each in (avro if isinstance(avro, list) else [avro])]


def _arrow_type(avro: Any) -> pa.DataType | None:
    values = [branch for branch in _branches(avro) if branch["type"] != "null"] or [{"type": "null"}]
    if len(values) > 1:
        return None
    kind, logical = values[0]["type"], values[0].get("logicalType")
    if kind == "record":
        fields = {field["name"]: _arrow_type(field["type"]) for field in values[0]["fields"]}
        return None if None in fields.values() else pa.struct(fields.items())
    if kind in ("array", "map"):
        item = _arrow_type(values[0]["items" if kind == "array" else "values"])
        return None if item is None else pa.list_(item) if kind == "array" else pa.map_(pa.string(), item)
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision = values[0]["precision"]
        return pa.decimal128(precision, values[0].get("scale", 0)) if precision <= 38 else None
    return _ARROW.get(f"{kind} {logical}", _ARROW[kind])


def _plain(avro: Any, name: str) -> tuple[Any, bytes]:
    """A type of the same bytes that polars reads and skips, or None; and the bytes of some value of it.

    Raises for types of which a few bytes can claim values without end, beside or within one another.
    """
    if isinstance(avro, list):
        types, samples = zip(*(("null", b"") if each == "null" else _plain(each, name) for each in avro), strict=True)
        readable = len(avro) == 2 and "null" in avro and None not in types
        last = len(avro) - 1 if avro[0] == "null" else 0
        return (list(types) if readable else None), long_bytes(last) + samples[last]
    (kind,) = _branches(avro)
    decimal = kind if kind.get("logicalType") == "decimal" else {}
    match kind["type"]:
        case "record":
            inner = [(f"{name}_{i}", *_plain(field["type"], f"{name}_{i}")) for i, field in enumerate(kind["fields"])]
            record = {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t, _ in inner]}
            return (None if None in [t for _, t, _ in inner] else record), b"".join(sample for *_, sample in inner)
        case "map":  # which is an array of pairs
            pair = {"type": "record", "fields": [{"type": "string"}, {"type": kind["values"]}]}
            return _plain({"type": "array", "items": pair}, name)
        case "array":
            items, sample = _plain(kind["items"], name)
            if not sample:
                raise ValueError("an array of nothing")
            return items and {"type": "array", "items": items}, long_bytes(1) + sample + long_bytes(0)
        case "fixed" | "null":
            size = kind.get("size", 0)
            sample = (b"\0" if decimal else b"~sample~") * size
            return {**decimal, "type": "fixed", "name": name, "size": size}, sample[:size]
        case "int" | "long" | "enum" as number:
            own = zlib.crc32(name.encode()) >> 2 | 1 << 29  # so that no other column's sample is taken for this one's
            return "long", long_bytes({"int": own, "long": own << 32 | own, "enum": 0}[number])
        case "boolean" | "float" | "double" as other:
            return other, {"boolean": b"\1", "float": b"~sam", "double": b"~sample~"}[other]
        case "bytes" | "string" as text:
            return {**decimal, "type": text}, b"\2\0" if decimal else b"\x10~sample~"
    raise ValueError("a type within itself")


def _without_logical_type(avro: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in avro.items() if key != "logicalType" or value == "decimal"}
