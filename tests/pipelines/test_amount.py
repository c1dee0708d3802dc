"""Amounts: what files hold is known or guessed before they are read, and never at the cost of a run."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.pipelines.amount import estimate_rows, fitting_shards
from tidegate.pipelines.formats.avro_writing import encode
from tidegate.pipelines.sources import Format
from tidegate.transforms.windows import Windows

ROWS = 40_000
TABLE = pa.table(
    {"user": [f"user {i % 977}" for i in range(ROWS)], "term": [f"term {i % 31} of many" for i in range(ROWS)]}
)


def write(path: Path, kind: Format) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in TABLE.to_pylist()).encode()
    if kind == "parquet":
        pq.write_table(TABLE, path)
    elif kind == "avro":
        path.write_bytes(encode(TABLE, "event", "tides", "null"))
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines))
    else:
        path.write_bytes(lines)


@pytest.mark.parametrize(
    ("name", "kind", "off"),
    [("a.parquet", "parquet", 0.0), ("a.avro", "avro", 0.1), ("a.jsonl", "jsonl", 0.02), ("a.jsonl.gz", "jsonl", 0.25)],
)
def test_rows_are_known_or_guessed(tmp_path: Path, name: str, kind: Format, off: float) -> None:
    for copy in range(11):  # more than are looked into
        write(tmp_path / f"{copy}-{name}", kind)
    assert estimate_rows(str(tmp_path / f"*-{name}"), kind) == pytest.approx(11 * ROWS, rel=off)


def test_a_short_file_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,term\nann,tide\nben,moon\n")
    assert estimate_rows(str(tmp_path / "a.csv"), "csv") == 3  # its header is taken for a row


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more"])
def test_what_cannot_be_guessed_is_no_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    assert estimate_rows(str(tmp_path / "a.parquet"), "parquet") is None
    assert estimate_rows(str(tmp_path / "nothing*"), "parquet") is None


def test_a_window_that_is_too_large_for_one_worker_is_split() -> None:
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    day = Windows.between(start, end, 3600, 3600, 0)
    assert fitting_shards(1, None, day) == 1
    assert fitting_shards(1, 24 * 2**27, day) == 1
    assert fitting_shards(1, 24 * 2**27 + 1, day) == 2
    assert fitting_shards(8, 24 * 2**28, day) == 8
    assert fitting_shards(1, 10**15, day) == 4096
    assert fitting_shards(1, 24 * 2**27, Windows.between(start, end, 7200, 3600, 0)) > 1
    assert fitting_shards(8, 10**15, Windows.between(start, None, 3600, 3600, 0)) == 8
