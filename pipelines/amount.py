"""How much there is to read, before it is read: told by the footers of files, else judged by how they begin.

From it follow the parts that a window is split into, and what progress says is left. Neither changes a release, so an
estimate will do, and none is no error.
"""

from __future__ import annotations

import gzip
import math
from io import BytesIO

from apache_beam.io.filesystems import FileSystems

from tidegate.pipelines.formats.files import open_file
from tidegate.pipelines.sources import Format
from tidegate.transforms.windows import Windows

_FOOTERS, _HEADS = 8, 2
_HEAD_BYTES, _AVRO_HEAD_BYTES = 1 << 20, 1 << 24  # of Avro whole blocks only, and they may be large
_ROWS_A_SHARD, _MOST_SHARDS = 1 << 27, 4096
"""A shard of a window is bounded in one piece, in the memory of one worker. Rows that repeat each other take none, so that
this is for the worst of cases: splitting costs time, too."""


def estimate_rows(pattern: str, kind: Format) -> int | None:
    """About how many rows the files of a pattern have; None where nobody can tell."""
    try:
        files = FileSystems.match([pattern])[0].metadata_list
        some = files[:: math.ceil(len(files) / (_FOOTERS if kind == "parquet" else _HEADS))]
        rows = sum(_rows(file.path, file.size_in_bytes, kind) for file in some)
        whole, seen = (sum(int(file.size_in_bytes) for file in part) for part in (files, some))
        return round(rows * whole / seen) or None
    except Exception:  # whatever is wrong with a file is for the run to say, or to pass over
        return None


def _rows(path: str, size: int, kind: Format) -> float:
    with open_file(path) as file:
        if kind == "parquet":
            from tidegate.pipelines.formats import parquet

            return parquet.count(path, file)
        head = file.read(_AVRO_HEAD_BYTES if kind == "avro" else _HEAD_BYTES)
        taken = file.fileobj.tell() if isinstance(file, gzip.GzipFile) and file.fileobj is not None else len(head)
        if not file.read(1):  # that was all of it
            taken = size
        rows = _avro_rows(head) if kind == "avro" else head.count(b"\n")
        return rows * size / taken


def _avro_rows(head: bytes) -> int:
    from tidegate.pipelines.formats.avro_reading import Damaged, read_batches

    return sum(0 if isinstance(item, Damaged) else len(item) for _, item in read_batches(BytesIO(head), ()))


def fitting_shards(least: int, rows: int | None, windows: Windows) -> int:
    """As few parts as there are workers, unless a window would be too large for one of them."""
    if rows is None or windows.endless:
        return least
    in_a_window = rows * (windows.size / windows.every) / windows.count
    return max(least, min(_MOST_SHARDS, math.ceil(in_a_window / _ROWS_A_SHARD)))
