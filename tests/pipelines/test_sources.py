"""Sources: damage costs the rows it touches and no more; a file that cannot be read at all fails by name."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apache_beam as beam
import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collecting import Collected
from tidegate.pipelines.formats import lines as lines_format
from tidegate.pipelines.formats import parquet as parquet_format
from tidegate.pipelines.simulate import FORMATS, Simulation, simulate
from tidegate.pipelines.sources import Format, ReadFiles, guess_format, match_files, peek, read_file
from tidegate.transforms.columns import ROW, Fault, read_text
from tidegate.transforms.contributions import Contributions
from tidegate.transforms.decode import DEAD, FIRST_ROW, SOURCE, DeadLetter, Decoder
from tidegate.transforms.problems import SafeError, SpecError
from tidegate.transforms.terms import make_terms

COLUMNS = ["user", "term", "at"]
AT = "2026-01-01T00:30:00Z"
CANARY = "canary-8c1d"
Outcome = dict[int | None, Any]
Events = list[dict[str, Any]]


def decoder() -> Decoder:
    terms = make_terms(
        stream="searches",
        columns={"unit": "user", "key": "term", "time": "at"},
        window={"size": "1h", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T06:00:00Z"},
        bound={"keys": 3, "per_key": 1000},
        gate={"measure": "events", "epsilon": 1.0, "delta": 1e-5},
    )
    return Decoder(terms, bytes(32))


def kind_of(path: Path) -> Format:
    kind = guess_format(str(path))
    assert kind is not None
    return kind


def outcome(path: Path, kind: Format | None = None, group: int | None = None) -> Outcome:
    """What became of every row, by its number: who and what, or the reason why not."""
    found: Outcome = {}

    def note(row: int | None, what: Any) -> None:
        assert row not in found, f"two things became of row {row}"
        found[row] = what

    for item in read_file(str(path), kind or kind_of(path), COLUMNS, group):
        if isinstance(item, DeadLetter):
            assert item.source == str(path)
            note(item.row, item.reason)
            continue
        assert item.schema.metadata[SOURCE].decode() == str(path)
        first = int(item.schema.metadata[FIRST_ROW])
        named = ROW in item.schema.names
        numbers = item.column(ROW).to_pylist() if named else range(first, first + len(item))
        dead = {letter.row: letter.reason for letter in decoder()(item).dead}
        columns = [texts(item, name) for name in COLUMNS[:2]]
        for number, *row in zip(numbers, *columns, strict=True):
            note(number, dead.get(number) or tuple(row))
    return found


def texts(batch: pa.RecordBatch, name: str) -> list[str]:
    """A column as it is counted."""
    if name not in batch.schema.names:
        return [""] * len(batch)
    read = read_text(batch.column(name), Fault.missing_key, 1 << 20)
    return [read.values[int(code)].as_py() for code in read.codes]


def letters(path: Path, kind: Format | None = None) -> list[DeadLetter]:
    """The dead letters of reading, without those of decoding."""
    return [item for item in read_file(str(path), kind or kind_of(path), COLUMNS) if isinstance(item, DeadLetter)]


def events(count: int, first: int = 0) -> Events:
    return [{"user": f"u{number}", "term": f"t{number % 7}", "at": AT} for number in range(first, first + count)]


def expected(rows: Iterable[dict[str, Any]], first: int = 0) -> Outcome:
    return {number: (row["user"], row["term"]) for number, row in enumerate(rows, start=first)}


def jsonl(rows: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def csv(rows: Iterable[dict[str, Any]], header: str = "user,term,at") -> bytes:
    return f"{header}\n".encode() + b"".join(f"{row['user']},{row['term']},{row['at']}\n".encode() for row in rows)


def parquet(rows: Events, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, **options)
    return sink.getvalue()


def avro(rows: Events, names: Iterable[str] = COLUMNS, block: int = 16000) -> bytes:
    fields = [{"name": name, "type": ["null", "string"]} for name in names]
    sink = io.BytesIO()
    fastavro.writer(sink, {"type": "record", "name": "e", "fields": fields}, rows, sync_interval=block)
    return sink.getvalue()


WRITTEN: dict[str, Any] = {
    "parquet": parquet,
    "avro": avro,
    "jsonl": jsonl,
    "csv": csv,
    "ndjson": jsonl,
    "json": jsonl,
    "jsonl.gz": lambda rows: gzip.compress(jsonl(rows)),
    "csv.gz": lambda rows: gzip.compress(csv(rows)),
    "CSV.GZ": lambda rows: gzip.compress(csv(rows)),
    "avro.gz": lambda rows: gzip.compress(avro(rows)),
    "parquet.gz": lambda rows: gzip.compress(parquet(rows)),
}


@pytest.fixture
def file(tmp_path: Path) -> Any:
    """Puts bytes into a file."""
    count = iter(range(10**6))

    def write(data: bytes, suffix: str) -> Path:
        path = tmp_path / f"events-{next(count)}.{suffix}"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("suffix", WRITTEN)
def test_every_format_gives_the_same_rows_and_columns(file: Any, suffix: str) -> None:
    path = file(WRITTEN[suffix](events(500)), suffix)
    assert outcome(path) == expected(events(500))
    assert peek(str(path), kind_of(path)).names == COLUMNS


@pytest.mark.parametrize("suffix", ["parquet", "avro", "jsonl", "csv", "csv.gz"])
def test_a_file_of_no_rows_is_no_trouble(file: Any, suffix: str) -> None:
    data = pa.BufferOutputStream()
    pq.write_table(pa.schema([(name, pa.string()) for name in COLUMNS]).empty_table(), data)
    path = file(data.getvalue().to_pybytes() if suffix == "parquet" else WRITTEN[suffix]([]), suffix)
    assert outcome(path) == {}


@pytest.mark.parametrize(
    ("name", "kind"), [("a.CSV", "csv"), ("b/*.jsonl.gz", "jsonl"), ("a.avro", "avro"), ("a.txt", None)]
)
def test_a_suffix_tells_the_format(name: str, kind: str | None) -> None:
    assert guess_format(name) == kind


def test_a_pattern_gives_its_files_in_order_and_at_least_one(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).touch()
    assert match_files(f"{tmp_path}/*.csv") == [f"{tmp_path}/a.csv", f"{tmp_path}/b.csv"]
    with pytest.raises(SpecError, match="nothing matches "):
        match_files(f"{tmp_path}/nope-*.csv")


# A stream with bad rows, in every format.

SIMULATED: dict[str, Any] = {"events": 1500, "units": 200, "keys": 40, "windows": 6, "files": 2}


def touched(folder: Path) -> tuple[Counter[Any], list[DeadLetter]]:
    """All contributions of a simulation's files, and all dead letters, of reading and of decoding."""
    found: Counter[Any] = Counter()
    dead: list[DeadLetter] = []
    for path in sorted(folder.glob("events-*")):
        for item in read_file(str(path), kind_of(path), COLUMNS):
            if isinstance(item, DeadLetter):
                dead.append(item)
                continue
            decoded = decoder()(item)
            dead += decoded.dead
            found.update(as_counts(decoded.contributions))
    return found, dead


def as_counts(rows: Contributions) -> dict[Any, int]:
    counts = np.ones(len(rows), np.int64) if rows.count is None else rows.count
    keys = rows.keys.to_pylist()
    return {
        (int(window), unit.tobytes(), keys[key]): int(count)
        for window, unit, key, count in zip(rows.window, rows.units[rows.unit], rows.key, counts, strict=True)
    }


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Counter[Any]:
    folder = tmp_path_factory.mktemp("clean")
    simulate(folder, Simulation(**SIMULATED))
    found, dead = touched(folder)
    assert not dead
    assert found.total() == SIMULATED["events"]
    return found


@pytest.mark.parametrize(("kind", "block"), [*((kind, None) for kind in FORMATS), ("jsonl", 1000), ("csv", 1000)])
def test_every_bad_row_is_a_dead_letter_and_every_good_one_survives(
    tmp_path: Path, clean: Counter[Any], kind: str, block: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block:
        monkeypatch.setattr(lines_format, "BLOCK_BYTES", block)
    simulate(tmp_path, Simulation(**SIMULATED, format=kind, bad=0.1))
    found, dead = touched(tmp_path)
    assert len(dead) == json.loads((tmp_path / "simulation.json").read_text())["bad"] == 150
    assert found == clean
    places = [(letter.source, letter.row) for letter in dead]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_dead_letters_name_the_lines_that_are_bad(tmp_path: Path, kind: str) -> None:
    simulate(tmp_path, Simulation(**SIMULATED, format=kind, bad=0.1))
    for path in tmp_path.glob("events-*"):
        lines = path.read_bytes().split(b"\n")[1 if kind == "csv" else 0 : -1]
        for row, what in outcome(path).items():
            assert row is not None
            clue = {"malformed": None, "invalid_utf8": b"\xff", "oversized": b"rrrr", "bad_time": None}
            if isinstance(what, tuple):
                assert what[1].encode() in lines[row]
            elif clue.get(what):
                assert clue[what] in lines[row]  # type: ignore[operator]


# Lines of JSON.

GOOD = {"user": "ann", "term": "tide", "at": AT}
GOOD_LINE = json.dumps(GOOD).encode()
DEEP = b"[" * 100_000 + b"]" * 100_000
OTHER = b'{"user": "ann", "term": "tide", "at": "%s", "other": %%s}' % AT.encode()
JSON_LINES: dict[str, tuple[bytes, Any]] = {
    "good": (GOOD_LINE, ("ann", "tide")),
    "spaces": (b'  {"at" : "%s" , "term":"tide","user":"ann"}  ' % AT.encode(), ("ann", "tide")),
    "carriage return": (GOOD_LINE + b"\r", ("ann", "tide")),
    "escapes": (b'{"user": "\\u0061nn", "term": "\\ud83c\\udf0a\\n\\"", "at": "%s"}' % AT.encode(), ("ann", '🌊\n"')),
    "blank": (b"", None),
    "only spaces": (b" \t\r", None),
    "cut off": (b'{"user": "ann", "term": "ti', "malformed"),
    "not json": (b"user=ann", "malformed"),
    "two objects": (GOOD_LINE + GOOD_LINE, "malformed"),
    "half an object": (GOOD_LINE[:20], "malformed"),
    "the other half": (GOOD_LINE[20:], "malformed"),
    "comma behind": (GOOD_LINE + b",", "malformed"),
    "comma inside": (GOOD_LINE[:-1] + b",}", "malformed"),
    "single quotes": (b"{'user': 'ann'}", "malformed"),
    "raw control character": (b'{"user": "a\tnn", "term": "tide", "at": "%s"}' % AT.encode(), "malformed"),
    "array": (b"[" + GOOD_LINE + b"]", "malformed"),
    "null": (b"null", "missing_unit"),
    "number": (b"5", "malformed"),
    "text": (b'"ann"', "malformed"),
    "zero bytes": (b"\0\0\0", "malformed"),
    "empty object": (b"{}", "missing_unit"),
    "lacks the unit": (b'{"term": "tide", "at": "%s"}' % AT.encode(), "missing_unit"),
    "lacks the key": (b'{"user": "ann", "at": "%s"}' % AT.encode(), "missing_key"),
    "null time": (b'{"user": "ann", "term": "tide", "at": null}', "missing_time"),
    "number as unit": (b'{"user": 5, "term": "tide", "at": "%s"}' % AT.encode(), ("5", "tide")),
    "whole float": (b'{"user": 5.0, "term": "tide", "at": "%s"}' % AT.encode(), ("5", "tide")),
    "fraction": (b'{"user": 5.5, "term": "tide", "at": "%s"}' % AT.encode(), "wrong_type"),
    "truth": (b'{"user": true, "term": "tide", "at": "%s"}' % AT.encode(), ("true", "tide")),
    "huge number": (b'{"user": %d, "term": "tide", "at": "%s"}' % (10**40, AT.encode()), (str(10**40), "tide")),
    "list": (b'{"user": ["ann"], "term": "tide", "at": "%s"}' % AT.encode(), "wrong_type"),
    "object": (b'{"user": "ann", "term": {"a": {"b": []}}, "at": "%s"}' % AT.encode(), "wrong_type"),
    "deep list": (b'{"user": %s, "term": "tide", "at": "%s"}' % (b"[" * 300 + b"]" * 300, AT.encode()), "wrong_type"),
    "deeper list": (b'{"user": %s, "term": "tide", "at": "%s"}' % (DEEP, AT.encode()), "malformed"),
    "number as time": (b'{"user": "ann", "term": "tide", "at": 1767225600}', "time_without_unit"),
    "not utf-8": (b'{"user": "ann", "term": "\xff", "at": "%s"}' % AT.encode(), "invalid_utf8"),
    "broken and not utf-8": (b'{"user": "\xff', "malformed"),
    "half a surrogate pair": (b'{"user": "\\ud800", "term": "tide", "at": "%s"}' % AT.encode(), "invalid_utf8"),
    "not utf-8 elsewhere": (OTHER % b'"\xff"', ("ann", "tide")),
    "deep elsewhere": (OTHER % DEEP, ("ann", "tide")),
    "huge elsewhere": (OTHER % (b"9" * 5000), ("ann", "tide")),
    "surrogate elsewhere": (OTHER % b'"\\ud800"', ("ann", "tide")),
    "repeated field": (b'{"user": "bob", "user": "ann", "term": "tide", "at": "%s"}' % AT.encode(), ("ann", "tide")),
}


@pytest.mark.parametrize(("line", "what"), JSON_LINES.values(), ids=JSON_LINES.keys())
@pytest.mark.parametrize(
    "before",
    [[], [GOOD_LINE], [b"broken"], [b'{"user": 1, "term": 1, "at": 1}']],
    ids=["first", "good", "bad", "numbers"],
)
def test_a_line_of_json_is_judged_by_itself(file: Any, line: bytes, what: Any, before: list[bytes]) -> None:
    path = file(b"\n".join([*before, line, GOOD_LINE, b""]), "jsonl")
    found = outcome(path)
    here = len(before)
    assert found.get(here) == what
    assert found[here + 1] == ("ann", "tide")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.sampled_from([line for line in JSON_LINES.values() if len(line[0]) < 1000]), max_size=20),
    block=st.sampled_from([7, 64, 1 << 20]),
    piece=st.sampled_from([1, 3, 128]),
    end=st.sampled_from([b"", b"\n"]),
)
def test_blocks_may_end_anywhere_and_no_line_of_json_spoils_another(
    file: Any, lines: list[tuple[bytes, Any]], block: int, piece: int, end: bytes
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_format, "BLOCK_BYTES", block)
        patch.setattr(lines_format, "LINES_A_PIECE", piece)
        found = outcome(file(b"\n".join(line for line, _ in lines) + end, "jsonl"))
    assert found == {number: what for number, (_, what) in enumerate(lines) if what is not None}


def test_a_byte_order_mark_before_json_is_skipped(file: Any) -> None:
    assert outcome(file(b"\xef\xbb\xbf" + GOOD_LINE + b"\nbroken\n", "jsonl")) == {0: ("ann", "tide"), 1: "malformed"}
    assert outcome(file(b"\xef\xbb\xbf" + GOOD_LINE, "jsonl")) == {0: ("ann", "tide")}


def test_whole_numbers_may_turn_up_after_text_and_text_after_numbers(file: Any) -> None:
    rows = [{"user": user, "term": 7, "at": AT} for user in (1, "b", 10**30, None, 4)]
    assert outcome(file(jsonl(rows), "jsonl")) == {
        0: ("1", "7"),
        1: ("b", "7"),
        2: (str(10**30), "7"),
        3: "missing_unit",
        4: ("4", "7"),
    }


def test_a_broken_line_is_kept_for_the_operator(file: Any) -> None:
    (letter,) = letters(file(b'{"user": "\xff' + CANARY.encode() + b"\n" + GOOD_LINE, "jsonl"))
    assert letter.raw == '{"user": "\\xff' + CANARY


# Lines of CSV.

CSV_LINES: dict[str, tuple[bytes, Any]] = {
    "good": (b"ann,tide,%s" % AT.encode(), ("ann", "tide")),
    "carriage return": (b"ann,tide,%s\r" % AT.encode(), ("ann", "tide")),
    "spaces stay": (b" ann, tide,%s" % AT.encode(), (" ann", " tide")),
    "quotes": (b'"ann","tide","%s"' % AT.encode(), ("ann", "tide")),
    "comma in quotes": (b'"a,nn","ti,de",%s' % AT.encode(), ("a,nn", "ti,de")),
    "quotes in quotes": (b'"a""nn","""",%s' % AT.encode(), ('a"nn', '"')),
    "text behind quotes": (b'"a"nn,tide,%s' % AT.encode(), ("ann", "tide")),
    "quote inside": (b'a"nn,ti"de,%s' % AT.encode(), ('a"nn', 'ti"de')),
    "zero byte": (b"a\0nn,tide,%s" % AT.encode(), ("a\0nn", "tide")),
    "blank": (b"", None),
    "blank with return": (b"\r", None),
    "no unit": (b",tide,%s" % AT.encode(), "missing_unit"),
    "empty quotes": (b'"",tide,%s' % AT.encode(), "missing_unit"),
    "no key": (b"ann,,%s" % AT.encode(), "missing_key"),
    "no time": (b"ann,tide,", "missing_time"),
    "bad time": (b"ann,tide,soon", "bad_time"),
    "too few": (b"ann,tide", "malformed"),
    "too many": (b"ann,tide,%s,1" % AT.encode(), "malformed"),
    "one field": (b"ann", "malformed"),
    "unit is not utf-8": (b"\xff,tide,%s" % AT.encode(), "invalid_utf8"),
    "key is not utf-8": (b"ann,\xff\xfe,%s" % AT.encode(), "invalid_utf8"),
    "time is not utf-8": (b"ann,tide,\xff", "invalid_utf8"),
    "too few and not utf-8": (b"ann,\xff", "malformed"),
    "too many and not utf-8": (b"\xff,\xff,\xff,\xff", "malformed"),
}
# A quote that somebody forgot to close, or to write twice.
OPEN_LINES: dict[str, tuple[bytes, Any]] = {
    "open": (b'ann,"tide,%s' % AT.encode(), "malformed"),
    "open at the end": (b'ann,tide,"%s' % AT.encode(), "malformed"),
    "open at the start": (b'"ann,tide,%s' % AT.encode(), "malformed"),
    "open and not utf-8": (b'\xff,"tide,%s' % AT.encode(), "malformed"),
}
# A value with line ends in it takes several lines.
LONG_LINES: dict[str, tuple[bytes, Any]] = {
    "line end in a value": (b'ann,"ti\nde",%s' % AT.encode(), ("ann", "ti\nde")),
    "many line ends": (b'"ann\r\n\n\n,",tide,"%s"' % AT.encode(), ("ann\r\n\n\n,", "tide")),
}


def csv_of(lines: Iterable[bytes]) -> bytes:
    return b"\n".join([b"user,term,at", *lines])


def csv_rows(lines: list[tuple[bytes, Any]]) -> Outcome:
    """A row's number is that of its first line, without the header."""
    found: Outcome = {}
    number = 0
    for line, what in lines:
        if what is not None:
            found[number] = what
        number += line.count(b"\n") + 1
    return found


ALL_CSV = {**CSV_LINES, **OPEN_LINES, **LONG_LINES}


@pytest.mark.parametrize("line", ALL_CSV.values(), ids=ALL_CSV.keys())
@pytest.mark.parametrize("before", ["good", "too few", "too few and not utf-8"])
def test_a_line_of_csv_is_judged_by_itself(file: Any, line: tuple[bytes, Any], before: str) -> None:
    lines = [line, ALL_CSV[before], line, ALL_CSV["good"]]
    assert outcome(file(csv_of(line for line, _ in lines) + b"\n", "csv")) == csv_rows(lines)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.one_of(
        st.lists(st.sampled_from([*CSV_LINES.values(), *LONG_LINES.values()]), max_size=20),
        st.lists(
            st.sampled_from([*(CSV_LINES[name] for name in CSV_LINES if "quote" not in name), *OPEN_LINES.values()]),
            max_size=20,
        ),
    ),
    block=st.sampled_from([64, 100, 1 << 20]),  # a value with line ends must fit into one
    piece=st.sampled_from([1, 3, 128]),
    end=st.sampled_from([b"", b"\n"]),
)
def test_blocks_may_end_anywhere_and_no_line_of_csv_spoils_another(
    file: Any, lines: list[tuple[bytes, Any]], block: int, piece: int, end: bytes
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_format, "BLOCK_BYTES", block)
        patch.setattr(lines_format, "LINES_A_PIECE", piece)
        assert outcome(file(csv_of(line for line, _ in lines) + end, "csv")) == csv_rows(lines)


def test_windows_line_ends_and_a_byte_order_mark_are_no_part_of_a_table(file: Any) -> None:
    data = b"\xef\xbb\xbf" + csv(events(3)).replace(b"\n", b"\r\n")
    path = file(data, "csv")
    assert outcome(path) == expected(events(3))
    assert peek(str(path), "csv").names == COLUMNS


def test_columns_may_stand_in_any_order_and_among_others(file: Any) -> None:
    path = file(b'x,at,"term",y,user\n\xff,%s,tide,"a,b",ann\n1,%s,moon,,bob\n' % (AT.encode(), AT.encode()), "csv")
    assert outcome(path) == {0: ("ann", "tide"), 1: ("bob", "moon")}


@pytest.mark.parametrize("data", [b"user,term,at", b"user,term,at\n", b"user,term,at\r\n\r\n"])
def test_a_header_alone_is_a_table_of_no_rows(file: Any, data: bytes) -> None:
    assert outcome(file(data, "csv")) == {}


def test_a_malformed_line_is_kept_for_the_operator(file: Any) -> None:
    (one, two) = letters(file(csv_of([b"a," + CANARY.encode(), b"\xff," + CANARY.encode()]), "csv"))
    assert {one.raw, two.raw} == {f"a,{CANARY}", f"\\xff,{CANARY}"}


# Files that are cut short or damaged.


@pytest.mark.parametrize("suffix", ["jsonl.gz", "csv.gz"])
@pytest.mark.parametrize("cut", [0.3, 0.999])
@pytest.mark.parametrize("block", [1 << 12, 1 << 23])
def test_rows_before_the_end_of_a_gzip_file_that_is_cut_short_survive(
    file: Any, suffix: str, cut: float, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_format, "BLOCK_BYTES", block)
    rows = [{**event, "user": os.urandom(8).hex()} for event in events(2000)]
    whole = WRITTEN[suffix](rows)
    data = whole[: int(len(whole) * cut)]
    inflated = zlib.decompressobj(31).decompress(data)
    complete = inflated.count(b"\n") - suffix.startswith("csv")
    assert 0 < complete < 2000
    assert outcome(file(data, suffix)) == {**expected(rows[:complete]), complete: "truncated"}


@pytest.mark.parametrize("suffix", ["jsonl.gz", "csv.gz"])
def test_a_gzip_file_that_lacks_nothing_but_its_checksum_is_reported(file: Any, suffix: str) -> None:
    whole = WRITTEN[suffix](events(100))
    assert outcome(file(whole[:-8], suffix)) == {**expected(events(100)), 100: "truncated"}
    wrong = whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:]
    assert outcome(file(wrong, suffix)) == {**expected(events(100)), 100: "corrupt"}


def test_gzip_files_may_be_strung_together_and_empty(file: Any) -> None:
    both = gzip.compress(jsonl(events(3))) + gzip.compress(jsonl(events(3, first=3)))
    assert outcome(file(both, "jsonl.gz")) == expected(events(6))
    assert outcome(file(b"", "jsonl.gz")) == {}


def test_a_truncated_gzip_file_can_still_be_looked_at(file: Any) -> None:
    for suffix in ("csv.gz", "jsonl.gz"):
        whole = WRITTEN[suffix](events(5000))
        assert peek(str(file(whole[:-100], suffix)), kind_of(Path(f"a.{suffix}"))).names == COLUMNS


@pytest.mark.parametrize("suffix", ["avro", "avro.gz"])
def test_rows_before_the_end_of_an_avro_file_that_is_cut_short_survive(file: Any, suffix: str) -> None:
    rows = events(5000)
    whole = avro(rows, block=2000)
    cut = gzip.compress(whole)[:-20] if suffix == "avro.gz" else whole[:-1000]
    found = outcome(file(cut, suffix))
    dead = [what for what in found.values() if not isinstance(what, tuple)]
    assert dead == ["truncated"]
    survivors = {row: what for row, what in found.items() if isinstance(what, tuple)}
    assert len(survivors) > 4000 or suffix == "avro.gz"
    assert survivors.items() <= expected(rows).items()


def test_a_damaged_block_of_avro_costs_its_rows_only(file: Any) -> None:
    rows = events(5000)
    data = bytearray(avro(rows, block=2000))
    data[len(data) // 2 : len(data) // 2 + 4] = b"\xff" * 4
    found = outcome(file(bytes(data), "avro"))
    survivors = {row: what for row, what in found.items() if isinstance(what, tuple)}
    assert 4000 < len(survivors) < 5000
    assert "corrupt" in found.values()


def damaged_parquet(rows: Events, group: int, column: int) -> bytes:
    """A file with nonsense in the pages of one column of one row group."""
    data = bytearray(parquet(rows, row_group_size=100))
    chunk = pq.ParquetFile(io.BytesIO(bytes(data))).metadata.row_group(group).column(column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = b"\x15" * chunk.total_compressed_size
    return bytes(data)


@pytest.mark.parametrize("column", range(3))
def test_a_damaged_page_of_parquet_costs_its_row_group_only(file: Any, column: int) -> None:
    rows = events(1000)
    path = file(damaged_parquet(rows, 4, column), "parquet")
    survivors = {row: what for row, what in expected(rows).items() if row is not None and not 400 <= row < 500}
    assert outcome(path) == {**survivors, 400: "unreadable"}
    assert outcome(path, group=4) == {400: "unreadable"}
    assert outcome(path, group=5) == {
        row: what for row, what in survivors.items() if row is not None and 500 <= row < 600
    }


def test_a_row_group_knows_its_row_numbers(file: Any) -> None:
    path = file(parquet([{**event, "at": "soon"} for event in events(250)], row_group_size=100), "parquet")
    assert outcome(path, group=2) == dict.fromkeys(range(200, 250), "bad_time")


def test_a_large_row_group_comes_in_parts_with_the_right_numbers(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_format, "_ROWS_A_BATCH", 30)
    rows = [{**event, "user": None if number % 3 else event["user"]} for number, event in enumerate(events(250))]
    found = outcome(file(parquet(rows, row_group_size=100), "parquet"))
    assert found == {
        number: "missing_unit" if number % 3 else (f"u{number}", f"t{number % 7}") for number in range(250)
    }


def test_text_of_parquet_that_is_not_utf8_costs_its_row_only(file: Any) -> None:
    table = pa.table({"user": ["a", "b"], "term": pa.array([b"\xff", b"tide"]).view(pa.string()), "at": [AT, AT]})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    assert outcome(file(sink.getvalue(), "parquet")) == {0: "invalid_utf8", 1: ("b", "tide")}


# Files that lack something, or cannot be read at all.


@pytest.mark.parametrize("suffix", ["parquet", "avro", "jsonl", "csv", "csv.gz"])
@pytest.mark.parametrize("lacking", [["term"], ["at"], ["user", "term", "at"]], ids="+".join)
def test_a_file_without_a_column_gives_dead_letters_that_say_so(file: Any, suffix: str, lacking: list[str]) -> None:
    names = [name for name in ("user", "term", "at", "other") if name not in lacking]
    rows = [{name: {**event, "other": "x"}[name] for name in names} for event in events(3)]
    line = ",".join(names).encode()
    data = {
        "parquet": lambda: parquet(rows),
        "avro": lambda: avro(rows, names),
        "jsonl": lambda: jsonl(rows),
        "csv": lambda: b"\n".join([line, *(",".join(row.values()).encode() for row in rows)]),
        "csv.gz": lambda: gzip.compress(b"\n".join([line, *(",".join(row.values()).encode() for row in rows)])),
    }[suffix]()
    # JSON has no columns, only rows that lack a value.
    lacks = {"user": "missing_unit", "term": "missing_key", "at": "missing_time"}[lacking[0]]
    reason = lacks if suffix == "jsonl" else "missing_column"
    found = [letter for part in decoded_parts(file(data, suffix)) for letter in part]
    assert [(letter.reason, letter.row) for letter in found] == [(reason, number) for number in range(3)]


def decoded_parts(path: Path) -> Iterator[list[DeadLetter]]:
    for item in read_file(str(path), kind_of(path), COLUMNS):
        assert not isinstance(item, DeadLetter)
        yield decoder()(item).dead


def test_a_column_of_parquet_that_is_a_list_is_of_the_wrong_type(file: Any) -> None:
    path = file(parquet([{"user": ["ann"], "term": "tide", "at": AT}]), "parquet")
    assert outcome(path) == {0: "wrong_type"}


KINDS: list[Format] = ["parquet", "avro", "jsonl", "csv"]


def assert_fails_by_name(path: Path, kind: Format) -> None:
    for attempt in (lambda: peek(str(path), kind), lambda: list(read_file(str(path), kind, COLUMNS))):
        with pytest.raises(SafeError) as refused:
            attempt()
        assert str(path) in str(refused.value)
        assert CANARY not in str(refused.value).replace(str(path), "")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_be_opened_fails_by_name(tmp_path: Path, kind: Format) -> None:
    (tmp_path / "file").write_text(CANARY)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file" / "below", tmp_path / "loop"):
        assert_fails_by_name(path, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_may_not_be_read_fails_by_name(
    tmp_path: Path, kind: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(WRITTEN[kind](events(3)))
    path.chmod(0)
    if os.geteuid() == 0:  # who may read everything

        def refuse(*_: Any, **__: Any) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), CANARY)

        monkeypatch.setattr(FileSystems, "open", refuse)
    assert_fails_by_name(path, kind)


@pytest.mark.parametrize("suffix", ["parquet", "avro", "csv.gz", "jsonl.gz"])
def test_a_file_of_another_format_fails_by_name(file: Any, suffix: str) -> None:
    for data in (CANARY.encode() * 100, b"PAR1" + CANARY.encode() + b"PAR1", b"Obj\x01" + CANARY.encode(), b"\x1f\x8b"):
        path = file(data, suffix)
        assert_fails_by_name(path, kind_of(path))


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_a_parquet_file_that_is_cut_short_fails_by_name(file: Any, keep: float) -> None:
    whole = parquet([{**event, "term": CANARY} for event in events(1000)])
    assert_fails_by_name(file(whole[: int(len(whole) * keep)], "parquet"), "parquet")


def test_an_avro_file_that_ends_in_its_header_fails_by_name(file: Any) -> None:
    assert_fails_by_name(file(avro(events(3))[:50], "avro"), "avro")


@pytest.mark.parametrize("data", [b"\n", b"\xff\xfe,term,at\n"], ids=["blank", "not utf-8"])
def test_a_header_that_is_none_fails_by_name(file: Any, data: bytes) -> None:
    assert_fails_by_name(file(data, "csv"), "csv")


class Unreliable(io.BufferedReader):
    """A file on a disk or a network that stops working."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() >= 4096:
            raise OSError(errno.EIO, os.strerror(errno.EIO), CANARY)
        return super().read(min(size, 4096) if size and size > 0 else size)

    read1 = read


@pytest.mark.parametrize("suffix", ["parquet", "avro", "jsonl", "csv", "csv.gz"])
def test_a_disk_that_fails_is_no_damage_of_a_file_and_fails_the_run(
    file: Any, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Were it a dead letter, rows that are there would be left out of a release.
    rows = [{**event, "user": os.urandom(8).hex()} for event in events(5000)]
    path = file(WRITTEN[suffix](rows), suffix)
    monkeypatch.setattr(FileSystems, "open", lambda name, **_: Unreliable(io.FileIO(name)))
    with pytest.raises(SafeError) as refused:
        list(read_file(str(path), kind_of(path), COLUMNS))
    assert str(path) in str(refused.value)
    assert CANARY not in str(refused.value)


# Looking before reading.


def test_a_bad_first_line_does_not_hide_the_columns(file: Any) -> None:
    path = file(b'broken\n\n[1]\n\xff\n%s\n{"user": "ann", "at": 5}\n' % (b'{"a":' + DEEP), "jsonl")
    assert peek(str(path), "jsonl").names == ["user", "at"]


def test_a_file_without_any_row_tells_no_columns(file: Any) -> None:
    assert peek(str(file(b"", "jsonl")), "jsonl").names == []
    assert peek(str(file(b"broken\n", "jsonl")), "jsonl").names == []


def test_types_are_told_where_the_format_has_them(file: Any) -> None:
    path = file(parquet([{"user": "ann", "at": 5}]), "parquet")
    assert peek(str(path), "parquet").types == {"user": pa.string(), "at": pa.int64()}


# Through a pipeline.


@contextmanager
def reading(files: list[Path], kind: Format) -> Iterator[tuple[list[Any], list[DeadLetter]]]:
    with Collected[Any]() as batches, Collected[DeadLetter]() as dead:
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            read = pipeline | ReadFiles([str(path) for path in files], kind, COLUMNS)
            _ = read["batches"] | "batches" >> batches.collect()
            _ = read[DEAD] | "dead" >> dead.collect()
        yield batches.items, dead.items


def test_a_pipeline_reads_all_files_and_row_groups_and_tells_dead_letters_apart(file: Any) -> None:
    paths = [file(damaged_parquet(events(300), 1, 0), "parquet"), file(parquet(events(50, first=300)), "parquet")]
    with reading(paths, "parquet") as (batches, dead):
        users = sorted(user for batch in batches for user in texts(batch, "user"))
    assert users == sorted(f"u{number}" for number in (*range(100), *range(200, 350)))
    assert [(letter.reason, letter.source, letter.row) for letter in dead] == [("unreadable", str(paths[0]), 100)]


def test_a_pipeline_fails_with_the_name_of_the_file_and_none_of_its_content(file: Any) -> None:
    bad = file(b"Obj\x01" + CANARY.encode(), "avro")

    def run() -> None:
        with reading([file(avro(events(3)), "avro"), bad], "avro"):
            pass

    with pytest.raises(Exception, match=f"{bad.name} cannot be opened as avro") as failed:
        run()
    assert CANARY not in str(failed.value)


STRANGE = {
    "text where numbers are": b'{"user": "z", "n": "12", "t": "a"}',
    "no text at all": b'{"user": "z", "n": 1, "t": "\\ud800"}',
    "a number beyond 64 bits": b'{"user": "z", "n": 99999999999999999999999, "t": "a"}',
    "no object": b"[]",
    "a point in a number": b'{"user": "z", "n": 0.5, "t": "a"}',
}


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE.keys())
@pytest.mark.parametrize("place", [0, 20])
def test_the_types_of_a_row_are_its_own_whatever_row_stands_beside_it(
    tmp_path: Path, strange: bytes, place: int
) -> None:
    # Expressions in prepare can tell types apart: one unit's row must not change what becomes of another's.
    lines = [
        b'{"user": "u%d", "n": %s, "t": %s}' % (i, [b"7", b"null"][i % 2], [b'"x"', b"null"][i % 3 == 0])
        for i in range(40)
    ]

    def types(name: str, rows: list[bytes]) -> dict[str, tuple[str, str]]:
        (tmp_path / name).write_bytes(b"\n".join(rows) + b"\n")
        found: dict[str, tuple[str, str]] = {}
        for batch in read_file(str(tmp_path / name), "jsonl", ["user", "n", "t"]):
            if isinstance(batch, pa.RecordBatch):
                kinds = str(batch.schema.field("n").type), str(batch.schema.field("t").type)
                found |= {row["user"]: kinds for row in batch.select(["user"]).to_pylist() if row["user"] != "z"}
        return found

    plain = types("plain.jsonl", lines)
    assert set(plain.values()) == {("int64", "string"), ("int64", "null"), ("null", "string"), ("null", "null")}
    assert types("strange.jsonl", [*lines[:place], strange, *lines[place:]]) == plain
