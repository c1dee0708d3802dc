"""Publishing: a window is there whole or not at all, once and for all; and reading: never over a gap, never a wrong byte."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transforms.running import terms
from tidegate.pipelines import publish as publishing
from tidegate.pipelines.publish import MANIFEST, Format, PublishError, encode_rows, publish, read_manifest
from tidegate.pipelines.reader import ReadError, list_published, read_releases
from tidegate.transforms.coders import register
from tidegate.transforms.release import ROW_SCHEMA, Release
from tidegate.transforms.seal import manifest
from tidegate.transforms.terms import make_terms

FORMATS: list[Format] = ["avro", "parquet", "jsonl"]
DAY = {"size": "1h", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T04:00:00Z"}
Counts = Mapping[str, float]


def release(counts: Counts, number: int = 0, *, low: float = 1.0, **changes: Any) -> Release:
    """A sealed window with these counts."""
    agreed = make_terms(**terms(**{"window": DAY, **changes}))
    begin, end = agreed.window.windows.bounds(number)
    row = {
        "stream": agreed.stream,
        "window_start": begin,
        "window_end": end,
        "measure": "units",
        "mechanism": agreed.gate.mechanism,
        "epsilon": 1.0,
        "delta": 1e-5,
        "spec_digest": agreed.digest,
    }
    rows = [{**row, "key": key, "value": value, "low": low, "high": None} for key, value in sorted(counts.items())]
    table = pa.Table.from_pylist(rows, schema=ROW_SCHEMA)
    return Release(number, agreed.window.windows.folder(number), table, manifest(agreed, number, len(rows)))


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a folder, hidden ones too: its bytes and when it was last written."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_whole(place: Path) -> None:
    """A manifest and the one rows file that it names, and nothing else."""
    (named,) = json.loads((place / MANIFEST).read_bytes())["files"]
    assert {path.name for path in place.iterdir()} == {MANIFEST, named["name"]}
    assert hashlib.sha256((place / named["name"]).read_bytes()).hexdigest() == named["sha256"]


def counts(table: pa.Table) -> list[tuple[str, float]]:
    return list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


# Once and for all.


@pytest.mark.parametrize("kind", FORMATS)
def test_a_window_is_a_manifest_and_the_rows_it_names(tmp_path: Path, kind: Format) -> None:
    assert publish(release({"tide": 50, "moon": 40}), str(tmp_path), kind)
    (place,) = tmp_path.iterdir()
    assert place.name == "20260101T000000Z-20260101T010000Z"
    assert_whole(place)
    found = read_manifest(str(place))
    assert found is not None
    assert found["files"][0] | {"name": "", "sha256": ""} == {"name": "", "format": kind, "rows": 2, "sha256": ""}
    assert found["stream"] == "searches"


@pytest.mark.parametrize("kind", FORMATS)
def test_publishing_the_same_again_changes_nothing(tmp_path: Path, kind: Format) -> None:
    assert publish(release({"tide": 50}), str(tmp_path), kind)
    before = files(tmp_path)
    assert not publish(release({"tide": 50}), str(tmp_path), kind)
    assert files(tmp_path) == before


def test_the_same_release_in_another_format_or_range_is_the_same(tmp_path: Path) -> None:
    publish(release({"tide": 50}), str(tmp_path), "avro")
    before = files(tmp_path)
    assert not publish(release({"tide": 50}), str(tmp_path), "parquet")
    later = {**DAY, "start": "2025-12-31T22:00:00Z", "end": "2026-01-02T00:00:00Z", "grace": "5m"}
    assert not publish(release({"tide": 50}, 2, window=later), str(tmp_path), "avro")
    assert files(tmp_path) == before


def test_a_newer_version_in_other_words_may_publish_the_same_again(tmp_path: Path) -> None:
    publish(release({"tide": 50}), str(tmp_path), "avro")
    before = files(tmp_path)
    newer = release({"tide": 50})
    said = {**newer.manifest, "software": "tidegate 9", "guarantee": {"words": "the same, put differently"}}
    assert not publish(dataclasses.replace(newer, manifest=said), str(tmp_path), "avro")
    assert files(tmp_path) == before


OTHERS = {
    "another count": (release({"tide": 51}), "the events or the secret have changed since"),
    "another key": (release({"tides": 50}), "the events or the secret have changed since"),
    "no key": (release({}), "the events or the secret have changed since"),
    "another range of a value": (release({"tide": 50}, low=2.0), "the events or the secret have changed since"),
    "another stream": (release({"tide": 50}, stream="other"), "it belongs to the stream 'searches'"),
    "another epsilon": (
        release({"tide": 50}, gate={"epsilon": 2.0}),
        "released under other terms (its spec_digest differs)",
    ),
    "another bound": (release({"tide": 50}, bound={"keys": 9}), "released under other terms (its spec_digest differs)"),
}


@pytest.mark.parametrize(("other", "why"), OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.parametrize("kind", FORMATS)
def test_a_second_release_of_a_window_is_refused_and_leaves_no_trace(
    tmp_path: Path, other: Release, why: str, kind: Format
) -> None:
    publish(release({"tide": 50}), str(tmp_path), "avro")
    before = files(tmp_path)
    with pytest.raises(PublishError) as refused:
        publish(other, str(tmp_path), kind)
    said = str(refused.value)
    assert why in said
    assert "a second release of a window would weaken its privacy, so nothing was written" in said
    assert other.folder in said
    assert "tides" not in said
    assert files(tmp_path) == before


def test_empty_windows_of_two_streams_have_equal_rows_and_are_two_releases(tmp_path: Path) -> None:
    one, two = release({}), release({}, stream="other")
    assert encode_rows(one.rows, "avro") == encode_rows(two.rows, "avro")
    publish(one, str(tmp_path), "avro")
    before = files(tmp_path)
    with pytest.raises(PublishError, match="it belongs to the stream 'searches'"):
        publish(two, str(tmp_path), "avro")
    assert files(tmp_path) == before


def test_another_window_is_published_beside(tmp_path: Path) -> None:
    for window in range(4):
        assert publish(release({"tide": 50 + window}, window), str(tmp_path), "avro")
    assert len(list(tmp_path.iterdir())) == 4
    for place in tmp_path.iterdir():
        assert_whole(place)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff"])
def test_a_manifest_that_is_none_is_neither_overwritten_nor_quoted(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / release({}).folder
    place.mkdir()
    (place / MANIFEST).write_bytes(content)
    before = files(tmp_path)
    with pytest.raises(PublishError, match="is not a manifest of tidegate"):
        publish(release({"tide": 50}), str(tmp_path), "avro")
    assert files(tmp_path) == before


# Leftovers.


def test_what_a_killed_run_left_is_not_read_and_goes_when_the_window_is_published(tmp_path: Path) -> None:
    place = tmp_path / release({}).folder
    place.mkdir()
    left = ["rows-0123456789abcdef.avro", ".rows-0123456789abcdef.avro.12345678", f".{MANIFEST}.12345678"]
    for name in left:
        (place / name).write_bytes(b"left")
    with pytest.raises(ReadError, match="holds no releases"):
        read_releases(str(tmp_path))
    assert publish(release({"tide": 50}), str(tmp_path), "avro")
    assert_whole(place)


def test_leftovers_beside_a_published_window_go_when_it_is_published_again(tmp_path: Path) -> None:
    publish(release({"tide": 50}), str(tmp_path), "avro")
    before = files(tmp_path)
    place = tmp_path / release({}).folder
    (place / "rows-0123456789abcdef.avro").write_bytes(b"left by a run that was killed while another one published")
    assert not publish(release({"tide": 50}), str(tmp_path), "avro")
    assert files(tmp_path) == before


STEPS = ["_make_folder", "_write", "_commit", "_tidy"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_step_it_is_published_whole_or_not_and_can_be_repeated(
    tmp_path: Path, step: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """What no handler for errors takes."""

    real = getattr(publishing, step)

    def dying(*arguments: Any, **named: Any) -> None:
        if after:
            real(*arguments, **named)
        raise Killed

    monkeypatch.setattr(publishing, step, dying)
    with pytest.raises(Killed):
        publish(release({"tide": 50}), str(tmp_path), "avro")
    monkeypatch.undo()
    place = tmp_path / release({}).folder
    committed = (place / MANIFEST).exists()
    assert committed == (step == "_tidy" or (step == "_commit" and after))
    if committed:
        assert_whole(place)
    assert publish(release({"tide": 50}), str(tmp_path), "avro") == (not committed)
    assert_whole(place)
    assert counts(read_releases(str(tmp_path), allow_gaps=True)) == [("tide", 50)]


@pytest.mark.parametrize("fails", ["open", "replace", "link", "fsync", "makedirs"])
def test_a_disk_that_fails_publishes_nothing_and_names_the_window(
    tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some file")

    monkeypatch.setattr(publishing if fails == "open" else os, fails, full, raising=False)
    with pytest.raises(PublishError) as refused:
        publish(release({"tide": 50}), str(tmp_path), "avro")
    monkeypatch.undo()
    assert str(refused.value).startswith(
        f"window {release({}).folder} could not be written to {tmp_path} (No space left on device)"
    )
    assert not list(tmp_path.rglob(MANIFEST))
    assert publish(release({"tide": 50}), str(tmp_path), "avro")
    assert_whole(tmp_path / release({}).folder)


def test_a_file_where_the_folder_should_be_is_reported(tmp_path: Path) -> None:
    (tmp_path / "releases").write_text("in the way")
    with pytest.raises(PublishError, match=r"could not be written to .*releases \(Not a directory\)"):
        publish(release({"tide": 50}), str(tmp_path / "releases"), "avro")


# Two at a time.

PUBLISHERS, ROUNDS = 4, 20


def race(folder: Path, releases: list[Release], kinds: list[Format]) -> list[bool | PublishError]:
    """Publish all of them at the same moment."""
    start = threading.Barrier(len(releases))

    def one(item: Release, kind: Format) -> bool | PublishError:
        start.wait()
        try:
            return publish(item, str(folder), kind)
        except PublishError as refused:
            return refused

    with ThreadPoolExecutor(len(releases)) as pool:
        return list(pool.map(one, releases, kinds))


def test_of_different_releases_published_at_once_exactly_one_wins(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        releases = [release({"tide": 50 + each}) for each in range(PUBLISHERS)]
        results = race(folder, releases, [FORMATS[each % 3] for each in range(PUBLISHERS)])
        assert results.count(True) == 1
        assert all("second release" in str(result) for result in results if result is not True)
        assert_whole(folder / releases[0].folder)
        assert counts(read_releases(str(folder), allow_gaps=True)) == [("tide", 50 + results.index(True))]


def test_where_the_last_writer_wins_whoever_was_overwritten_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some stores cannot write on condition: both of two writers are told that they were first.
    other = release({"tide": 51})
    commit = publishing._commit

    def overwritten(place: str, data: bytes) -> bool:
        committed = commit(place, data)
        shutil.rmtree(place)
        monkeypatch.setattr(publishing, "_commit", commit)
        publish(other, str(tmp_path), "avro")
        return committed

    monkeypatch.setattr(publishing, "_commit", overwritten)
    with pytest.raises(PublishError, match="published already"):
        publish(release({"tide": 50}), str(tmp_path), "avro")
    assert counts(read_releases(str(tmp_path), allow_gaps=True)) == [("tide", 51.0)]


def test_of_equal_releases_published_at_once_one_is_new_and_none_fails(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        results = race(folder, [release({"tide": 50})] * PUBLISHERS, [FORMATS[number % 3], *FORMATS])
        assert sorted(results) == [False] * (PUBLISHERS - 1) + [True]  # type: ignore[type-var]
        assert_whole(folder / release({}).folder)


def test_empty_windows_of_two_streams_published_at_once_do_not_take_each_others_rows(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        results = race(folder, [release({}), release({}, stream="other")], ["avro", "avro"])
        assert results.count(True) == 1
        assert_whole(folder / release({}).folder)


def test_whoever_looks_while_windows_are_published_sees_whole_ones_only(tmp_path: Path) -> None:
    day = {**DAY, "end": "2026-01-02T00:00:00Z"}
    releases = [release({"tide": 50 + window, "moon": 40}, window, window=day) for window in range(24)]
    done = threading.Event()
    seen: set[int] = set()

    def look() -> None:
        while not done.is_set():
            if any(tmp_path.iterdir()) and list(tmp_path.glob(f"*/{MANIFEST}")):
                table = read_releases(str(tmp_path), allow_gaps=True)
                assert len(table) % 2 == 0
                seen.add(len(table) // 2)

    with ThreadPoolExecutor(2) as pool:
        looking = pool.submit(look)
        for item in releases:
            publish(item, str(tmp_path), "avro")
        done.set()
        looking.result()
    assert len(seen) > 1
    assert len(read_releases(str(tmp_path))) == 48


RIVAL = """
import sys, time
from pathlib import Path
from tests.pipelines.test_publish import race_alone
race_alone(Path(sys.argv[1]), int(sys.argv[2]))
"""
RIVAL_WINDOWS = 40


def race_alone(folder: Path, who: int) -> None:
    """Publish many windows as one of two processes that start together, with rows of one's own."""
    day = {**DAY, "end": "2026-01-03T00:00:00Z"}
    releases = [release({f"rival {who}": 50 + window}, window, window=day) for window in range(RIVAL_WINDOWS)]
    (folder / f"ready-{who}").touch()
    while len(list(folder.glob("ready-*"))) < 2:
        pass
    won = 0
    for item in releases:
        try:
            won += publish(item, str(folder / "releases"), "avro")
        except PublishError as refused:
            if "second release" not in str(refused):
                raise
    (folder / f"won-{who}").write_text(str(won))


def test_of_two_processes_each_window_has_one_winner(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-W", "ignore", "-c", RIVAL, str(tmp_path)]
    rivals = [subprocess.Popen([*command, str(who)], cwd=root, stderr=subprocess.PIPE) for who in range(2)]
    for rival in rivals:
        _, said = rival.communicate(timeout=120)
        assert rival.returncode == 0, said.decode()
    assert sum(int((tmp_path / f"won-{who}").read_text()) for who in range(2)) == RIVAL_WINDOWS
    for place in (tmp_path / "releases").iterdir():
        assert_whole(place)
    assert len(read_releases(str(tmp_path / "releases"), allow_gaps=True)) == RIVAL_WINDOWS


# Reading.


def published(folder: Path, windows: Iterable[int] = range(4), kind: Format = "avro", **changes: Any) -> Path:
    for window in windows:
        publish(release({"tide": 50 + window, "moon": 40 + window}, window, **changes), str(folder), kind)
    return folder


def test_all_formats_read_as_the_same_table(tmp_path: Path) -> None:
    tables = []
    for kind in FORMATS:
        folder = published(tmp_path / kind, kind=kind)
        publish(
            release({'say "hi"\n\\': 1, "ünï🌊": 2.5, "\0": -3}, 0, stream="other"),
            str(tmp_path / f"other-{kind}"),
            kind,
        )
        tables.append((read_releases(str(folder)), read_releases(str(tmp_path / f"other-{kind}"), allow_gaps=True)))
    for one, two in tables[1:]:
        assert one.equals(tables[0][0])
        assert two.equals(tables[0][1])
    assert tables[0][0].schema.equals(ROW_SCHEMA)
    assert counts(tables[0][1]) == [("\0", -3), ('say "hi"\n\\', 1), ("ünï🌊", 2.5)]
    assert set(tables[0][0]["high"].to_pylist()) == {None}


@settings(max_examples=12, deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.floats(-1e15, 1e15), max_size=5))
def test_rows_survive_every_format(values: dict[str, float]) -> None:
    sealed = release(values)
    for kind in FORMATS:
        assert encode_rows(sealed.rows, kind) == encode_rows(sealed.rows, kind)
        with TemporaryDirectory() as folder:
            publish(sealed, folder, kind)
            assert read_releases(folder, allow_gaps=True).equals(sealed.rows)


def test_windows_come_in_order_and_can_be_chosen(tmp_path: Path) -> None:
    folder = str(published(tmp_path, [2, 0, 3, 1]))
    assert [key for key, _ in counts(read_releases(folder))] == ["moon", "tide"] * 4
    starts = read_releases(folder)["window_start"].to_pylist()
    assert starts == sorted(starts)
    assert counts(read_releases(folder, keys=["tide", "never"])) == [("tide", 50 + window) for window in range(4)]
    one = datetime(2026, 1, 1, 2, tzinfo=UTC)
    for asked in (one, "2026-01-01T02:00:00Z", "2026-01-01T03:00:00+01:00", one.replace(tzinfo=None)):
        assert counts(read_releases(folder, windows=[asked], keys=["tide"])) == [("tide", 52)]


@pytest.mark.parametrize("asked", ["2026-01-01T00:30:00Z", "2026-01-01T04:00:00Z", "2025-12-31T23:00:00Z"])
def test_a_window_that_is_none_is_refused(tmp_path: Path, asked: str) -> None:
    with pytest.raises(ReadError, match=f"no window begins at {asked}; the first begins at 2026-01-01T00:00:00Z"):
        read_releases(str(published(tmp_path)), windows=[asked])


def test_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="'noon' is not an RFC 3339 time"):
        read_releases(str(published(tmp_path)), windows=["noon"])


GAPS = {
    "start": ([1, 2, 3], "the window that begins at 2026-01-01T00:00:00Z is missing;"),
    "middle": ([0, 1, 3], "the window that begins at 2026-01-01T02:00:00Z is missing;"),
    "end": ([0, 1, 2], "the window that begins at 2026-01-01T03:00:00Z is missing;"),
    "most": ([2], "the window that begins at 2026-01-01T00:00:00Z is missing and 2 more;"),
}


@pytest.mark.parametrize(("there", "said"), GAPS.values(), ids=GAPS.keys())
@pytest.mark.parametrize("how", ["never published", "no manifest", "no folder"])
def test_a_gap_is_never_read_over_unasked(tmp_path: Path, there: list[int], said: str, how: str) -> None:
    published(tmp_path, there if how == "never published" else range(4))
    for window in set(range(4)) - set(there):
        place = tmp_path / release({}, window).folder
        if how == "no manifest":
            (place / MANIFEST).unlink()
        elif how == "no folder":
            shutil.rmtree(place)
    with pytest.raises(ReadError) as refused:
        read_releases(str(tmp_path))
    assert said in str(refused.value)
    assert "--allow-gaps" in str(refused.value)
    first = [there[0]]
    with pytest.raises(ReadError):
        read_releases(str(tmp_path), windows=[f"2026-01-01T{first[0]:02d}:00:00Z"])
    assert len(read_releases(str(tmp_path), allow_gaps=True)) == 2 * len(there)


def test_a_folder_may_hold_several_ranges_of_a_stream(tmp_path: Path) -> None:
    published(tmp_path)
    published(tmp_path, range(6), window={**DAY, "end": "2026-01-01T06:00:00Z"})
    published(tmp_path, range(2), window={**DAY, "start": "2025-12-31T22:00:00Z", "end": "2026-01-01T00:00:00Z"})
    assert len(read_releases(str(tmp_path))) == 2 * 8
    # A later range that says more must be filled, and so must the time between two ranges.
    (tmp_path / release({}, 4, window={**DAY, "end": "2026-01-01T06:00:00Z"}).folder / MANIFEST).unlink()
    with pytest.raises(ReadError, match="begins at 2026-01-01T04:00:00Z is missing;"):
        read_releases(str(tmp_path))


def test_time_between_two_ranges_is_a_gap(tmp_path: Path) -> None:
    published(tmp_path)
    published(tmp_path, range(2), window={**DAY, "start": "2026-01-01T06:00:00Z", "end": "2026-01-01T08:00:00Z"})
    with pytest.raises(ReadError, match="begins at 2026-01-01T04:00:00Z is missing and 1 more"):
        read_releases(str(tmp_path))


def test_gaps_of_sliding_windows_are_seen(tmp_path: Path) -> None:
    sliding = {**DAY, "every": "30m"}
    published(tmp_path, range(7), window=sliding)
    assert len(read_releases(str(tmp_path))) == 14
    shutil.rmtree(tmp_path / release({}, 3, window=sliding).folder)
    with pytest.raises(ReadError, match="begins at 2026-01-01T01:30:00Z is missing;"):
        read_releases(str(tmp_path))


def test_windows_of_one_size_do_not_hide_that_one_of_another_size_is_missing(tmp_path: Path) -> None:
    published(tmp_path)
    published(tmp_path, range(2), window={**DAY, "size": "2h"})
    assert len(read_releases(str(tmp_path))) == 12
    shutil.rmtree(tmp_path / release({}, 1, window={**DAY, "size": "2h"}).folder)
    with pytest.raises(ReadError, match="begins at 2026-01-01T02:00:00Z is missing;"):
        read_releases(str(tmp_path))


def test_windows_that_begin_at_other_minutes_have_gaps_of_their_own(tmp_path: Path) -> None:
    published(tmp_path)
    shifted = {**DAY, "start": "2026-01-01T00:30:00Z", "end": "2026-01-01T03:30:00Z"}
    published(tmp_path, range(3), window=shifted)
    assert len(read_releases(str(tmp_path))) == 14
    shutil.rmtree(tmp_path / release({}, 1, window=shifted).folder)
    with pytest.raises(ReadError, match="begins at 2026-01-01T01:30:00Z is missing;"):
        read_releases(str(tmp_path))


def rows_file(folder: Path, window: int = 1) -> Path:
    (path,) = (folder / release({}, window).folder).glob("rows-*")
    return path


HARM = {
    "a changed byte": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"),
    "a byte more": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM.keys())
@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_is_not_what_its_manifest_says_is_refused_by_name(tmp_path: Path, harm: Any, kind: Format) -> None:
    path = rows_file(published(tmp_path, kind=kind))
    harm(path)
    with pytest.raises(ReadError, match=r"its SHA-256 differs") as refused:
        read_releases(str(tmp_path))
    assert path.name in str(refused.value)
    assert "tide" not in str(refused.value)


def test_a_file_that_is_gone_is_missed_by_name(tmp_path: Path) -> None:
    path = rows_file(published(tmp_path))
    path.unlink()
    with pytest.raises(ReadError, match=f"{path.name} cannot be read .*, although its manifest names it"):
        read_releases(str(tmp_path))


def test_a_rows_file_that_no_manifest_names_is_not_read(tmp_path: Path) -> None:
    path = rows_file(published(tmp_path))
    before = read_releases(str(tmp_path))
    shutil.copy(path, path.with_name("rows-0000000000000000.avro"))
    assert read_releases(str(tmp_path)).equals(before)


@pytest.mark.parametrize("lacks", ["stream", "window", "range", "files"])
def test_a_manifest_that_lacks_something_is_refused_by_name(tmp_path: Path, lacks: str) -> None:
    path = rows_file(published(tmp_path)).with_name(MANIFEST)
    content = json.loads(path.read_text())
    del content[lacks]
    path.write_text(json.dumps(content))
    with pytest.raises(ReadError, match=rf"{path.name} is not a whole manifest \(it lacks {lacks}\)"):
        list_published(str(tmp_path))


def test_releases_of_two_streams_in_one_folder_are_not_mixed(tmp_path: Path) -> None:
    published(tmp_path, [0, 1])
    published(tmp_path, [2, 3], stream="other")
    with pytest.raises(ReadError, match=r"holds releases of several streams \(other, searches\)"):
        read_releases(str(tmp_path))


@pytest.mark.parametrize(
    "make",
    [lambda path: path.mkdir(), lambda path: None, lambda path: path.write_text("x")],
    ids=["empty", "missing", "file"],
)
def test_a_folder_without_releases_is_refused_by_name(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "releases")
    with pytest.raises(ReadError, match="releases holds no releases"):
        read_releases(str(tmp_path / "releases"))


def test_a_window_of_no_rows_is_a_window(tmp_path: Path) -> None:
    for window in range(4):
        publish(release({}, window), str(tmp_path), "avro")
    assert len(list_published(str(tmp_path))) == 4
    assert read_releases(str(tmp_path)).equals(ROW_SCHEMA.empty_table())


def test_what_the_first_sink_refuses_never_reaches_the_second(tmp_path: Path) -> None:
    # A run dies between two sinks, and the events change: were the sinks side by side, the second would take another draw.
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    from tidegate.pipelines.sinks import FolderOfReleases, PublishInOrder

    first, second = tmp_path / "first", tmp_path / "second"
    publish(release({"tide": 7.0}), str(first), "avro")
    places = [partial(FolderOfReleases, str(first), "avro"), partial(FolderOfReleases, str(second), "jsonl")]

    def run(sealed: Release, keep_first: bool = False) -> None:
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            made = pipeline | beam.Create([sealed]).with_output_types(Release)
            _ = made | PublishInOrder(places, keep_first=keep_first)

    register()
    with pytest.raises(Exception, match="is published already"):
        run(release({"tide": 8.0}))
    assert not second.exists()
    # A live stream goes on with what is out: the second place gets the release that the first one has.
    run(release({"tide": 8.0}), keep_first=True)
    assert counts(read_releases(str(first), allow_gaps=True)) == [("tide", 7.0)]
    assert counts(read_releases(str(second), allow_gaps=True)) == [("tide", 7.0)]
    digests = [(read_manifest(str(place)) or {})["release_digest"] for place in (*first.iterdir(), *second.iterdir())]
    assert digests[0] == digests[1]
    run(release({"tide": 7.0}))
    with pytest.raises(Exception, match="under other terms"):
        run(release({"tide": 7.0}, gate={"epsilon": 2.0}), keep_first=True)


def test_reading_leaves_no_thread_of_arrow_behind(tmp_path: Path) -> None:
    # One that still holds a Python buffer when the interpreter ends aborts the process, in one run of ten or so.
    publish(release({"tide": 50}), str(tmp_path), "parquet")
    lines = (
        "import os, sys",
        "from tidegate.pipelines.reader import read_releases",
        "before = set(os.listdir('/proc/self/task'))",
        "assert len(read_releases(sys.argv[1], allow_gaps=True)) == 1",
        "print(len(set(os.listdir('/proc/self/task')) - before))",
    )
    line = [sys.executable, "-c", "\n".join(lines), str(tmp_path)]
    assert subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout == "0\n"
