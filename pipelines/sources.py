"""Sources: files in, record batches of the named columns out, a dead letter for what cannot be parsed.

A reader yields columns as the file has them; judging values is decoding's work. Damage inside a file costs the rows it
touches and no more; a file that cannot be opened at all fails the run by name.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Literal, TypeAlias, cast

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics

from tidegate.pipelines import avro
from tidegate.transforms.coders import register
from tidegate.transforms.columns import ROW, rows_to_batches
from tidegate.transforms.decode import DEAD, FIRST_ROW, SOURCE, DeadLetter
from tidegate.transforms.problems import SafeError, SpecError, withheld

Format = Literal["parquet", "avro", "jsonl", "csv"]
SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".avro": "avro",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
}
_BLOCK_BYTES = 8 << 20
_HEAD_BYTES = 1 << 20
_ROWS_A_BATCH = 1 << 19
_LINES_A_PIECE = 128
_LINES_A_ROW = 128
_OBJECT = re.compile(rb"(\xef\xbb\xbf)?\s*\{")
# What a file raises that is cut short or damaged, unlike one that cannot be reached, which is not to be passed over.
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)
Item: TypeAlias = pa.RecordBatch | DeadLetter
Fast: TypeAlias = Callable[[bytes, int], list[Item]]
Slow: TypeAlias = Callable[[list[bytes], int], Iterator[Item]]


def guess_format(path: str) -> Format | None:
    """The format that a file's suffix tells, compressed or not."""
    name = path.lower().removesuffix(".gz")
    return next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), None)


def match_files(pattern: str) -> list[str]:
    """All files of a pattern, in order; at least one."""
    try:
        found = FileSystems.match([pattern])[0].metadata_list
    except Exception as problem:
        raise SpecError(
            f"source.files cannot be listed at {pattern} ({type(problem).__name__}); check the path"
        ) from None
    files = sorted(item.path for item in found)
    if not files:
        raise SpecError(f"source.files must match at least one file, and nothing matches {pattern}; check the path")
    return files


class ReadFiles(beam.PTransform[Any, Any]):
    """Files → {"batches": record batches of the named columns, "dead": DeadLetter}."""

    def __init__(self, files: Sequence[str], kind: Format, columns: Sequence[str]) -> None:
        super().__init__()
        self._files, self._kind, self._columns = list(files), kind, list(columns)
        register()

    def expand(self, pipeline: Any) -> Any:
        return (
            pipeline
            | "Files" >> beam.Create(self._files)
            | "Parts" >> beam.FlatMap(_parts, self._kind)
            | "Spread" >> beam.Reshuffle()
            | "Read"
            >> beam.ParDo(ReadFn(self._kind, self._columns))
            .with_output_types(pa.RecordBatch)
            .with_outputs(DEAD, main="batches")
        )


class ReadFn(beam.DoFn):
    """Reads one part of a file."""

    def __init__(self, kind: Format, columns: list[str]) -> None:
        self._kind, self._columns = kind, columns

    @withheld("reading")
    def process(self, part: tuple[str, int | None]) -> Iterator[Any]:
        path, group = part
        for item in read_file(path, self._kind, self._columns, group):
            if isinstance(item, DeadLetter):
                Metrics.counter("tidegate", f"dead_{item.reason}").inc()
                yield beam.pvalue.TaggedOutput(DEAD, item)
            else:
                yield item


def _parts(path: str, kind: Format) -> Iterator[tuple[str, int | None]]:
    """What can be read on its own: row groups of Parquet, else whole files."""
    if kind == "parquet":
        with open_file(path) as file:
            for group in range(_open_parquet(path, file, []).num_row_groups):
                yield path, group
    else:
        yield path, None


def read_file(path: str, kind: Format, columns: Sequence[str], group: int | None = None) -> Iterator[Item]:
    """The batches of a file, or of one of its row groups."""
    with open_file(path) as file:
        readers = {"parquet": _read_parquet, "csv": _read_csv, "jsonl": _read_jsonl, "avro": _read_avro}
        try:
            yield from readers[kind](path, file, list(columns), group)
        except OSError as problem:
            raise SafeError(f"{path} cannot be read ({problem.strerror or type(problem).__name__})") from None


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
            except _DAMAGE:
                raise SafeError(f"{path} cannot be opened, as it is not compressed with gzip or damaged") from None
            yield cast(BinaryIO, file)


@dataclass(frozen=True)
class Peek:
    """What the head of a file tells: its columns, and their types where the format has types."""

    names: list[str]
    types: dict[str, pa.DataType]


def peek(path: str, kind: Format) -> Peek:
    """The columns of a file, from its schema, header or first row."""
    with open_file(path) as file:
        try:
            if kind == "parquet":
                schema = _open_parquet(path, file, []).schema_arrow
                return Peek(schema.names, dict(zip(schema.names, schema.types, strict=True)))
            if kind == "avro":
                fields = avro.read_schema(file)["fields"]
                return Peek([field["name"] for field in fields], _avro_types(fields))
            lines = _read_some(file, _HEAD_BYTES)[0].split(b"\n")
            if kind == "csv":
                return Peek(_csv_names(path, lines[0]), {})
            row = _first_object(lines)
            return Peek(list(row), {name: pa.scalar(value).type for name, value in row.items() if _is_number(value)})
        except SafeError:
            raise
        except Exception as problem:
            raise SafeError(f"{path} cannot be read as {kind} ({type(problem).__name__})") from None


def _avro_types(fields: Sequence[Any]) -> dict[str, pa.DataType]:
    """The numeric columns of a schema that carry no further meaning, such as that of a timestamp."""
    known = {
        "int": pa.int64(),
        "long": pa.int64(),
        "float": pa.float64(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
    }
    types = {}
    for field in fields:
        branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
        for branch in branches:
            if isinstance(branch, str) and branch in known:
                types[field["name"]] = known[branch]
    return types


def _first_object(lines: Sequence[bytes]) -> dict[str, Any]:
    """The first row that can be read; a bad one before it is a dead letter later, not a reason to stop."""
    for line in lines[:_LINES_A_PIECE]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            return row
    return {}


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _open_parquet(path: str, file: BinaryIO, columns: list[str]) -> pq.ParquetFile:
    try:
        parquet = pq.ParquetFile(file)
        present = {parquet.schema.column(place).path for place in range(len(parquet.schema))}.intersection(columns)
        # Text comes as dictionaries, the form in which decoding wants it.
        return pq.ParquetFile(file, metadata=parquet.metadata, read_dictionary=present) if present else parquet
    except (pa.ArrowException, OSError, *_DAMAGE) as problem:
        raise SafeError(f"{path} cannot be opened as parquet ({type(problem).__name__})") from None


def _located(batch: pa.RecordBatch, path: str, first_row: int) -> pa.RecordBatch:
    return batch.replace_schema_metadata({SOURCE: path.encode(), FIRST_ROW: str(first_row).encode()})


def _read_parquet(path: str, file: BinaryIO, columns: list[str], group: int | None) -> Iterator[Item]:
    parquet = _open_parquet(path, file, columns[:-1])
    present = [name for name in columns if name in parquet.schema_arrow.names]
    for number in range(parquet.num_row_groups) if group is None else [group]:
        rows = sum(parquet.metadata.row_group(earlier).num_rows for earlier in range(number))
        try:
            for batch in parquet.iter_batches(_ROWS_A_BATCH, row_groups=[number], columns=present):
                yield _located(batch, path, rows)
                rows += len(batch)
        except (pa.ArrowException, OSError, *_DAMAGE) as problem:
            if getattr(problem, "errno", None):  # of the system, not of Arrow
                raise
            yield DeadLetter("unreadable", path, rows, "")


def _read_avro(path: str, file: BinaryIO, columns: list[str], _: int | None) -> Iterator[Item]:
    try:
        avro.read_schema(file)
    except avro.AvroError:
        raise SafeError(f"{path} cannot be opened as avro") from None
    with open_file(path) as again:
        try:
            for first_row, item in avro.read_batches(again, columns):
                if isinstance(item, avro.Damaged):
                    yield DeadLetter(item.reason, path, first_row, "")
                else:
                    yield _located(item, path, first_row)
        except _DAMAGE:
            yield DeadLetter("truncated", path, None, "")


def _read_csv(path: str, file: BinaryIO, columns: list[str], _: int | None) -> Iterator[Item]:
    names: list[str] = []
    for item in _read_lines(path, file, header=True):
        if isinstance(item, DeadLetter):
            yield item
            continue
        row, block = item
        if row < 0:
            header, more, block = block.partition(b"\n")
            names, row = _csv_names(path, header), 0
            if not more:
                continue
        present = [name for name in columns if name in names]
        yield from _parse(
            block, row, partial(_fast_csv, path, names, present), partial(_slow_csv, path, names, present)
        )


def _csv_names(path: str, header: bytes) -> list[str]:
    try:
        with pa.csv.open_csv(io.BytesIO(header + b"\n")) as reader:
            return list(reader.schema.names)
    except (pa.ArrowException, UnicodeDecodeError) as problem:
        raise SafeError(f"{path} cannot be read as csv ({type(problem).__name__})") from None


def _fast_csv(path: str, names: list[str], present: list[str], block: bytes, first: int) -> list[Item]:
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
    if _open_quote(block) or lines != _count_lines(block):
        raise pa.ArrowInvalid("rows and lines do not go together")
    if malformed:
        table = table.append_column(ROW, pa.array(first + np.delete(np.arange(lines), list(malformed))))
    dead = (DeadLetter("malformed", path, first + place, text) for place, text in malformed.items())
    return [*(_located(batch, path, first) for batch in table.combine_chunks().to_batches()), *dead]


def _is_utf8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _slow_csv(path: str, names: list[str], present: list[str], lines: list[bytes], first: int) -> Iterator[Item]:
    rows, numbers, at = [], [], 0
    while at < len(lines):
        fields, used = _csv_fields(lines, at)
        if len(fields) == len(names):
            rows.append([fields[names.index(name)] or None for name in present])
            numbers.append(first + at)
        elif lines[at].strip():
            # An open quote costs its own line, not all lines up to the next quote.
            yield DeadLetter("malformed", path, first + at, lines[at].decode(errors="backslashreplace"))
            used = 1
        at += used
    columns = [pa.array([row[place] for row in rows], pa.binary()) for place in range(len(present))]
    yield _located(pa.RecordBatch.from_arrays([*columns, pa.array(numbers, pa.int64())], [*present, ROW]), path, first)


def _csv_fields(lines: list[bytes], at: int) -> tuple[list[bytes], int]:
    """The fields of the row that begins there, and how many lines it takes; no fields if it makes no sense."""
    if b'"' not in lines[at]:
        return lines[at].removesuffix(b"\r").split(b","), 1
    csv.field_size_limit(sys.maxsize)
    # As lenient as Arrow within a line. Strict over several, as there a quote may be one that somebody forgot.
    for most, strict in ((1, False), (_LINES_A_ROW, True)):
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


def _read_lines(path: str, file: BinaryIO, header: bool = False) -> Iterator[tuple[int, bytes] | DeadLetter]:
    """Whole lines, many at a time, and the number of the first; a header is number -1. Damage is the end of a file."""
    line, rest, damage = -1 if header else 0, b"", ""
    while not damage:
        some, damage = _read_some(file, _BLOCK_BYTES)
        if not some:
            break
        whole, newline, tail = (rest + some).rpartition(b"\n")
        if header and not damage and len(whole) < 2 * _BLOCK_BYTES and _open_quote(whole):
            # A value may go on in the next block: leave its line for that one.
            before, newline, _ = whole[: whole.rfind(b'"')].rpartition(b"\n")
            whole, tail = before, (rest + some)[len(before + newline) :]
        if newline:
            yield line, whole
            line += whole.count(b"\n") + 1
        rest = tail
    if damage:
        yield DeadLetter(damage, path, max(line, 0), rest.decode(errors="backslashreplace"))
    elif rest:
        yield line, rest.removesuffix(b"\n")


def _read_some(file: BinaryIO, size: int) -> tuple[bytes, str]:
    """So many bytes, fewer at the end or before damage; and what damage, if any."""
    read = getattr(file, "read1", file.read)  # which gives what there is before it stumbles
    pieces: list[bytes] = []
    try:
        while size > 0 and (piece := read(size)):
            pieces.append(piece)
            size -= len(piece)
    except _DAMAGE as problem:
        return b"".join(pieces), "truncated" if isinstance(problem, EOFError) else "corrupt"
    return b"".join(pieces), ""


def _parse(block: bytes, line: int, fast: Fast, slow: Slow) -> Iterator[Item]:
    """A block in one go; if a row in it is bad, in pieces; and the piece with the bad row, row by row."""
    try:
        yield from fast(block, line)
        return
    except pa.ArrowInvalid:
        lines = block.split(b"\n")
    begin = 0
    while piece := lines[begin : begin + _LINES_A_PIECE]:
        for more in lines[begin + len(piece) : begin + len(piece) + _LINES_A_ROW]:
            if not _open_quote(b"".join(piece)):
                break
            piece.append(more)  # rather than cut a value in two
        try:
            yield from fast(b"\n".join(piece), line + begin)
        except pa.ArrowInvalid:
            yield from slow(piece, line + begin)
        begin += len(piece)


def _open_quote(text: bytes) -> bool:
    return bool(np.count_nonzero(np.frombuffer(text, np.uint8) == ord('"')) % 2)


def _count_lines(block: bytes) -> int:
    return block.count(b"\n") + 1


def _read_jsonl(path: str, file: BinaryIO, columns: list[str], _: int | None) -> Iterator[Item]:
    schema = None
    for item in _read_lines(path, file):
        if isinstance(item, DeadLetter):
            yield item
        else:
            line, block = item
            schema = schema or _guess_schema(block, columns)
            yield from _parse(block, line, partial(_fast_json, path, schema), partial(_slow_json, path, schema))


def _guess_schema(block: bytes, columns: list[str]) -> pa.Schema:
    """The columns' types in the first row that can be read; rows that differ are read one by one."""
    row = _first_object(block.split(b"\n", _LINES_A_PIECE))
    whole = {name for name in columns if isinstance(row.get(name), int) and not isinstance(row[name], bool)}
    return pa.schema([(name, pa.int64() if name in whole else pa.string()) for name in columns])


def _fast_json(path: str, schema: pa.Schema, block: bytes, first: int) -> list[Item]:
    if not _OBJECT.match(block):  # a block that begins with a bare null would crash Arrow
        raise pa.ArrowInvalid("a row that is no object")
    table = pa.json.read_json(
        pa.BufferReader(block),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=max(len(block) + 1, 1024)),
        parse_options=pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    # Arrow skips blank lines, and takes several objects in a line or an object in several lines.
    between = block.count(b"}\n{") + block.count(b"}\r\n{")
    if not len(table) == _count_lines(block) == between + 1:
        raise pa.ArrowInvalid("rows and lines do not go together")
    return [_located(batch, path, first) for batch in table.combine_chunks().to_batches()]


def _fast_json_of_any(path: str, schema: pa.Schema, line: bytes, number: int) -> list[Item]:
    for each in (schema, pa.schema([(name, pa.string()) for name in schema.names])):
        with contextlib.suppress(pa.ArrowInvalid):
            return _fast_json(path, each, line, number)
    return []


def _whole(digits: str) -> int | str:
    return int(digits) if len(digits) < 1000 else digits  # which Python refuses to read, for it takes long


def _slow_json(path: str, schema: pa.Schema, lines: list[bytes], first: int) -> Iterator[Item]:
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
            row, items = None, _fast_json_of_any(path, schema, line, number)
        if isinstance(row, dict):
            rows.append(row)
            numbers.append(number)
        else:
            yield from items or [DeadLetter("malformed", path, number, line.decode(errors="backslashreplace"))]
    for batch in rows_to_batches(rows, schema.names, numbers):
        yield _located(batch, path, first)
