"""Sources: files in, record batches of the named columns out, a dead letter for what cannot be parsed.

A reader yields columns as the file has them; judging values is decoding's work. Damage inside a file costs the rows it
touches and no more; a file that cannot be opened at all fails the run by name.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, TypeAlias

import apache_beam as beam
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics

from tidegate.pipelines import avro
from tidegate.transforms.coders import register
from tidegate.transforms.columns import rows_to_batches
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
Item: TypeAlias = pa.RecordBatch | DeadLetter


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
            .with_output_types(pa.RecordBatch, dead=DeadLetter)
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
        yield from readers[kind](path, file, list(columns), group)


def open_file(path: str) -> BinaryIO:
    try:
        return FileSystems.open(path)  # type: ignore[no-any-return]
    except Exception as problem:
        raise SafeError(f"{path} cannot be opened ({type(problem).__name__})") from None


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
            lines = file.read(_HEAD_BYTES).split(b"\n")
            if kind == "csv":
                with pa.csv.open_csv(io.BytesIO(lines[0] + b"\n")) as reader:
                    return Peek(reader.schema.names, {})
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
        # Text comes as dictionaries, the form in which decoding wants it.
        return pq.ParquetFile(file, read_dictionary=columns)
    except (pa.ArrowException, OSError) as problem:
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
        except (pa.ArrowException, OSError):
            yield DeadLetter("unreadable", path, rows, "")


def _read_avro(path: str, file: BinaryIO, columns: list[str], _: int | None) -> Iterator[Item]:
    try:
        avro.read_schema(file)
    except avro.AvroError:
        raise SafeError(f"{path} cannot be opened as avro") from None
    with open_file(path) as again:
        for first_row, item in avro.read_batches(again, columns):
            if isinstance(item, avro.Damaged):
                yield DeadLetter(item.reason, path, first_row, "")
            else:
                yield _located(item, path, first_row)


def _read_csv(path: str, file: BinaryIO, columns: list[str], _: int | None) -> Iterator[Item]:
    malformed: list[DeadLetter] = []

    def skip(row: Any) -> str:
        malformed.append(DeadLetter("malformed", path, row.number, row.text))
        return "skip"

    names = peek(path, "csv").names
    present = [name for name in columns if name in names]
    rows = 0
    try:
        with pa.csv.open_csv(
            file,
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            parse_options=pa.csv.ParseOptions(invalid_row_handler=skip),
            convert_options=pa.csv.ConvertOptions(
                include_columns=present,
                # Bytes, since text that is not UTF-8 would fail the whole block.
                column_types=dict.fromkeys(present, pa.binary()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        ) as reader:
            while True:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    break
                yield _located(batch, path, rows)
                rows += len(batch)
                yield from malformed
                malformed.clear()
    except (pa.ArrowException, OSError, EOFError):
        yield DeadLetter("truncated", path, rows, "")
    yield from malformed


def _read_jsonl(path: str, file: BinaryIO, columns: list[str], _: int | None) -> Iterator[Item]:
    line, rest, schema = 0, b"", None
    while True:
        try:
            block = file.read(_BLOCK_BYTES)
        except (OSError, EOFError, ValueError) as problem:
            del problem
            yield DeadLetter("truncated", path, line, "")
            block = b""
        if not block:
            break
        whole, newline, tail = (rest + block).rpartition(b"\n")
        if newline:
            schema = schema or _guess_schema(whole, columns)
            yield from _parse_jsonl(path, whole, line, schema, columns)
            line += whole.count(b"\n") + 1
        rest = tail
    if rest.strip():
        yield from _parse_jsonl(path, rest, line, schema or _guess_schema(rest, columns), columns)


def _guess_schema(block: bytes, columns: list[str]) -> pa.Schema:
    """The columns' types in the first row that can be read; rows that differ are read one by one."""
    row = _first_object(block.split(b"\n", _LINES_A_PIECE))
    whole = {name for name in columns if isinstance(row.get(name), int) and not isinstance(row[name], bool)}
    return pa.schema([(name, pa.int64() if name in whole else pa.string()) for name in columns])


def _parse_jsonl(path: str, block: bytes, line: int, schema: pa.Schema, columns: list[str]) -> Iterator[Item]:
    """A block in one go; if a row in it is bad, in pieces; and the piece with the bad row, row by row."""
    try:
        yield _located(_fast_json(block, schema), path, line)
        return
    except pa.ArrowInvalid:
        pass
    lines = block.split(b"\n")
    for begin in range(0, len(lines), _LINES_A_PIECE):
        piece = lines[begin : begin + _LINES_A_PIECE]
        try:
            yield _located(_fast_json(b"\n".join(piece), schema), path, line + begin)
        except pa.ArrowInvalid:
            yield from _slow_json(path, piece, line + begin, columns)


def _fast_json(block: bytes, schema: pa.Schema) -> pa.RecordBatch:
    if not block.strip():
        return pa.RecordBatch.from_pydict(
            {name: pa.array([], kind) for name, kind in zip(schema.names, schema.types, strict=True)}
        )
    table = pa.json.read_json(
        pa.BufferReader(block),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=max(len(block) + 1, 1024)),
        parse_options=pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    return table.combine_chunks().to_batches()[0]


def _slow_json(path: str, lines: list[bytes], first: int, columns: list[str]) -> Iterator[Item]:
    rows, numbers = [], []
    for number, line in enumerate(lines, start=first):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode())
        except UnicodeDecodeError:
            yield DeadLetter("invalid_utf8", path, number, line.decode(errors="backslashreplace"))
            continue
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
            numbers.append(number)
        else:
            yield DeadLetter("malformed", path, number, line.decode(errors="backslashreplace"))
    for batch in rows_to_batches(rows, columns, numbers):
        yield _located(batch, path, first)
