"""Messages as they come from a queue, an event each, read as the rows of a file are: many at once, into record batches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipelines.formats import jsonl
from tidegate.pipelines.formats.avro_writing import block_bytes, header_bytes
from tidegate.transforms.columns import ROW
from tidegate.transforms.decode import FIRST_ROW, DeadLetter
from tidegate.transforms.problems import SpecError

Places = npt.NDArray[np.int64]
Parsed = tuple[list[tuple[pa.RecordBatch, Places]], list[tuple[int, str]]]
"""Batches with the places of their rows among the values; the places of those that are malformed, with what they hold."""


def make_parser(
    kind: Literal["json", "avro"], schema_file: str | None, columns: list[str], schema_id: int | None = None
) -> Any:
    """What reads messages of a format: values → Parsed."""
    return AvroValues(Path(schema_file or ""), columns, schema_id) if kind == "avro" else JsonValues(columns)


class JsonValues:
    """Messages of a JSON object each, read as the lines of a file are: all at once, and a bad one costs itself."""

    def __init__(self, columns: list[str]) -> None:
        self._columns = columns

    def __call__(self, values: Sequence[bytes | None]) -> Parsed:
        lines, places, bad = [], [], []
        for place, value in enumerate(values):
            line = _one_line(value) if value is not None else None
            if line is None:
                bad.append((place, (value or b"").decode(errors="backslashreplace")))
            else:
                lines.append(line)
                places.append(place)
        found = []
        for item in jsonl.read("", BytesIO(b"\n".join([*lines, b""])), self._columns, None) if lines else ():
            if isinstance(item, DeadLetter):
                bad.append((places[item.row or 0], item.raw))
            else:
                found.append(_numbered(item))
        by_line = np.array(places, np.int64)
        return _joined([(batch, by_line[rows]) for batch, rows in found]), sorted(bad)


def _one_line(value: bytes) -> bytes | None:
    """A message as a line of its own; None if it is none. In an object that spans lines, a line's end is mere space."""
    if b"\n" in value:
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            return None
        value = value.replace(b"\n", b" ")
    return value if value.strip() else None


def _numbered(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Places]:
    """A batch of the formats' readers without its row numbers, and these."""
    if ROW in batch.schema.names:
        return batch.drop_columns([ROW]), batch.column(ROW).to_numpy()
    first = int(batch.schema.metadata[FIRST_ROW])
    return batch, np.arange(first, first + len(batch))


def _joined(found: list[tuple[pa.RecordBatch, Places]]) -> list[tuple[pa.RecordBatch, Places]]:
    """One batch for all rows of the same types: a bad row has the reader go piece by piece, and pieces travel badly."""
    groups: dict[Any, list[tuple[pa.RecordBatch, Places]]] = {}
    for batch, places in found:
        groups.setdefault(tuple((field.name, str(field.type)) for field in batch.schema), []).append((batch, places))
    joined = []
    for members in groups.values():
        schema = members[0][0].schema.remove_metadata()
        table = pa.Table.from_batches(
            [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch, _ in members]
        )
        joined.append((table.combine_chunks().to_batches()[0], np.concatenate([places for _, places in members])))
    return joined


class AvroValues:
    """Messages of an Avro record each, bare or in the single-object encoding, read as the blocks of a file are.

    A block ends where it says, so that damage costs the message it is in; and all of them are read in one go. With a schema
    registry, messages begin with the number of their schema, and one with another number than given is malformed: read by
    the wrong schema it might pass for something it is not.
    """

    _MARKER = b"tidegate messages"[:16]

    def __init__(self, schema_file: Path, columns: list[str], schema_id: int | None = None) -> None:
        from fastavro.schema import fingerprint, to_parsing_canonical_form

        from tidegate.pipelines.formats.avro_reading import AvroError, read_schema

        self._columns = columns
        self._registered = b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big")
        problem = "is no Avro schema of a record"
        try:
            schema = json.loads(schema_file.read_bytes())
            self._header = header_bytes(json.dumps(schema).encode(), b"null", self._MARKER)
            read_schema(BytesIO(self._header))
            digits = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
            self._single_object = b"\xc3\x01" + bytes.fromhex(digits)
            return
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        except (AvroError, ValueError, RecursionError, KeyError, TypeError):
            pass
        raise SpecError(f"schema_file {schema_file} {problem}; name the schema that the messages were written with")

    def __call__(self, values: Sequence[bytes | None]) -> Parsed:
        from tidegate.pipelines.formats.avro_reading import Damaged, read_batches

        parts, places, bad = [self._header], [], []
        for place, value in enumerate(values):
            if not value or not value.startswith(self._registered):
                bad.append((place, ""))
                continue
            body = value[len(self._registered) :].removeprefix(self._single_object)
            parts += block_bytes(1, body, self._MARKER)
            places.append(place)
        by_row, found, uncounted = np.array(places, np.int64), [], 0
        for first, item in read_batches(BytesIO(b"".join(parts)), self._columns):
            row = first + uncounted
            if isinstance(item, Damaged):
                bad.append((places[row], ""))
                uncounted += item.rows is None
            elif len(item):
                found.append((item, by_row[row : row + len(item)]))
        return _joined(found), sorted(bad)
