"""Sources: files in, record batches of the named columns out, a dead letter for what cannot be parsed.

A reader yields columns as the file has them; judging values is decoding's work. Damage inside a file costs the rows it
touches and no more; a file that cannot be opened at all fails the run by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Literal

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics

from tidegate.pipelines.formats.ahead import ahead
from tidegate.pipelines.formats.files import Item, Peek, open_file
from tidegate.pipelines.remote import reach
from tidegate.transforms.coders import register, typed
from tidegate.transforms.decode import DEAD, DeadLetter
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


def guess_format(path: str) -> Format | None:
    """The format that a file's suffix tells, compressed or not."""
    name = path.lower().removesuffix(".gz")
    return next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), None)


def match_files(pattern: str) -> list[str]:
    """All files of a pattern, in order; at least one."""
    reach()
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
    """Files → {"batches": record batches of the named columns, "dead": DeadLetter}.

    With `spread`, parts of files go to all workers there are; where there is only one, it costs start-up for nothing.
    """

    def __init__(self, files: Sequence[str], kind: Format, columns: Sequence[str], *, spread: bool = True) -> None:
        super().__init__()
        self._files, self._kind, self._columns, self._spread = list(files), kind, list(columns), spread
        register()

    def expand(self, pipeline: Any) -> Any:
        if self._spread:
            return pipeline | "Files" >> beam.Create(self._files) | "Read" >> _Read(self._kind, self._columns)
        reader = ReadAllFn(self._files, self._kind, self._columns)
        return _read_by(reader, pipeline | "Files" >> beam.Impulse())


class _Read(beam.PTransform[Any, Any]):
    """Names of files → what is in them, a part of a file at a time."""

    def __init__(self, kind: Format, columns: list[str]) -> None:
        super().__init__()
        self._kind, self._columns = kind, columns

    def expand(self, names: Any) -> Any:
        parts = (
            names
            | "Parts" >> beam.FlatMap(_parts, self._kind).with_output_types(tuple[str, int | None])
            | "Spread" >> beam.Reshuffle()
        )
        return _read_by(ReadFn(self._kind, self._columns), parts)


def _read_by(reader: ReadFn, parts: Any) -> Any:
    rows = beam.ParDo(reader).with_output_types(pa.RecordBatch).with_outputs(DEAD, main="batches")
    return typed(parts | "Rows" >> rows, **{DEAD: DeadLetter})


class FollowFiles(beam.PTransform[Any, Any]):
    """The files of a pattern as they appear, for ever → the same as ReadFiles.

    The stream is as late as its files: a window takes in what is in a file that appears before its grace is over.
    """

    def __init__(self, pattern: str, kind: Format, columns: Sequence[str], seconds: float = 5.0) -> None:
        super().__init__()
        self._pattern, self._kind, self._columns, self._seconds = pattern, kind, list(columns), seconds
        register()

    def expand(self, pipeline: Any) -> Any:
        from apache_beam.io.fileio import MatchContinuously  # slow to import, and seldom needed

        return (
            pipeline
            | "Appear" >> MatchContinuously(self._pattern, interval=self._seconds)
            | "Names" >> beam.Map(_path_of).with_output_types(str)
            | "Read" >> _Read(self._kind, self._columns)
        )


def _path_of(found: Any) -> str:
    return str(found.path)


class ReadFn(beam.DoFn):
    """Reads one part of a file."""

    def __init__(self, kind: Format, columns: list[str]) -> None:
        self._kind, self._columns = kind, columns

    @withheld("reading")
    def process(self, part: tuple[str, int | None]) -> Iterator[Any]:
        yield from self._read([part])

    def _read(self, parts: Iterable[tuple[str, int | None]]) -> Iterator[Any]:
        """One part after the other, the next one while the last is worked on."""
        all_items = (item for path, group in parts for item in read_file(path, self._kind, self._columns, group))
        with closing(ahead(all_items)) as items:
            for item in items:
                if isinstance(item, DeadLetter):
                    Metrics.counter("tidegate", f"dead_{item.reason}").inc()
                    yield beam.pvalue.TaggedOutput(DEAD, item)
                else:
                    yield item


class ReadAllFn(ReadFn):
    """Reads all files, one after the other."""

    def __init__(self, files: list[str], kind: Format, columns: list[str]) -> None:
        super().__init__(kind, columns)
        self._files = files

    @withheld("reading")
    def process(self, _: object) -> Iterator[Any]:
        yield from self._read((path, None) for path in self._files)


@withheld("reading")
def _parts(path: str, kind: Format) -> Iterator[tuple[str, int | None]]:
    """What can be read on its own: row groups of Parquet, else whole files."""
    if kind == "parquet":
        with open_file(path) as file:
            for group in range(_format(kind).groups(path, file)):
                yield path, group
    else:
        yield path, None


def read_file(path: str, kind: Format, columns: Sequence[str], group: int | None = None) -> Generator[Item]:
    """The batches of a file, or of one of its row groups."""
    with open_file(path) as file:
        try:
            yield from _format(kind).read(path, file, list(columns), group)
        except OSError as problem:
            raise SafeError(f"{path} cannot be read ({problem.strerror or type(problem).__name__})") from None


def peek(path: str, kind: Format) -> Peek:
    """The columns of a file, from its schema, header or first row."""
    with open_file(path) as file:
        try:
            found: Peek = _format(kind).peek(path, file)
            return found
        except SafeError:
            raise
        except Exception as problem:
            raise SafeError(f"{path} cannot be read as {kind} ({type(problem).__name__})") from None


def _format(kind: Format) -> Any:
    """Loaded when needed: what reads Avro takes a while to import."""
    return importlib.import_module(f"tidegate.pipelines.formats.{kind}")
