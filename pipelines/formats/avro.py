"""Avro, as files of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from tidegate.pipelines.formats.avro_reading import AvroError, Damaged, read_batches, read_schema
from tidegate.pipelines.formats.files import DAMAGE, Item, Peek, located, open_file
from tidegate.transforms.decode import DeadLetter
from tidegate.transforms.problems import SafeError


def peek(_: str, file: BinaryIO) -> Peek:
    fields = read_schema(file)["fields"]
    return Peek([field["name"] for field in fields], _types(fields))


def read(path: str, file: BinaryIO, columns: list[str], _: int | None) -> Iterator[Item]:
    try:
        read_schema(file)
    except AvroError:
        raise SafeError(f"{path} cannot be opened as avro") from None
    with open_file(path) as again:
        try:
            for first_row, item in read_batches(again, columns):
                if isinstance(item, Damaged):
                    yield DeadLetter(item.reason, path, first_row, "")
                else:
                    yield located(item, path, first_row)
        except DAMAGE:
            yield DeadLetter("truncated", path, None, "")


def _types(fields: Sequence[Any]) -> dict[str, pa.DataType]:
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
