"""A published window stays as it is, whoever publishes what, in whatever order; readers see whole windows or none."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.mechanisms.table import Rows
from tidegate.pipelines.publish import Format, PublishError, publish
from tidegate.pipelines.reader import ReadError, read_releases
from tidegate.pipelines.sinks import PublishFn
from tidegate.transforms import Release, SafeError, make_terms
from tidegate.transforms.seal import SealFn

TERMS: dict[str, Any] = {
    "stream": "searches",
    "columns": {"unit": "user", "key": "term", "time": "at"},
    "window": {"size": "1h", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T03:00:00Z"},
    "bound": {"keys": 3},
    "gate": {"epsilon": 1.0, "delta": 1e-5},
}


class OnlyPane:
    index, timing = 0, 1


def sealed(window: int = 0, shift: int = 0, **changes: Any) -> Release:
    """A release as the seal makes it."""
    terms = make_terms(**{**TERMS, **changes})
    values = pa.array([100.0 + shift, 200.0 + shift]).to_numpy()
    rows = Rows(pa.array(["b key", "a key"]), values, values - 33, values + 33)
    return next(iter(SealFn(terms).process((window, [(0, rows)]), OnlyPane())))


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


@pytest.mark.parametrize("kind", ["avro", "parquet", "jsonl"])
def test_what_is_read_is_what_was_sealed_in_order_of_keys(tmp_path: Path, kind: Format) -> None:
    for window in range(3):
        assert publish(sealed(window, shift=window), str(tmp_path), kind)
    table = read_releases(str(tmp_path))
    assert table.equals(pa.concat_tables([sealed(window, shift=window).rows for window in range(3)]).combine_chunks())
    assert table["key"].to_pylist() == ["a key", "b key"] * 3


def test_publishing_again_changes_nothing(tmp_path: Path) -> None:
    assert publish(sealed(), str(tmp_path), "avro")
    before = files(tmp_path)
    assert not publish(sealed(), str(tmp_path), "avro")
    assert not publish(sealed(), str(tmp_path), "parquet")
    assert files(tmp_path) == before


def test_a_newer_version_of_the_software_may_publish_again(tmp_path: Path) -> None:
    publish(sealed(), str(tmp_path), "avro")
    before = files(tmp_path)
    newer = sealed()
    said = {
        **newer.manifest,
        "software": "tidegate 9",
        "guarantee": {**newer.manifest["guarantee"], "words": "other words"},
    }
    assert not publish(replace(newer, manifest=said), str(tmp_path), "avro")
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (sealed(shift=1), "the events or the secret have changed since"),
        (sealed(gate={"epsilon": 2.0, "delta": 1e-5}), "it was released under other terms"),
        (sealed(stream="other"), "it belongs to the stream 'searches'"),
    ],
    ids=["rows", "terms", "stream"],
)
def test_another_release_of_a_published_window_is_refused(tmp_path: Path, other: Release, why: str) -> None:
    publish(sealed(), str(tmp_path), "avro")
    before = files(tmp_path)
    with pytest.raises(PublishError, match=f"is published already, and {why}"):
        publish(other, str(tmp_path), "avro")
    assert files(tmp_path) == before


def test_what_a_killed_run_left_is_neither_read_nor_kept(tmp_path: Path) -> None:
    place = tmp_path / sealed().folder
    publish(sealed(shift=5), str(tmp_path), "avro")
    (place / "manifest.json").unlink()
    (place / ".rows-half.avro.1234").write_bytes(b"half")
    with pytest.raises(ReadError, match="holds no releases"):
        read_releases(str(tmp_path))
    assert publish(sealed(), str(tmp_path), "avro")
    assert len(list(place.iterdir())) == 2
    assert read_releases(str(tmp_path), allow_gaps=True)["value"].to_pylist() == [200.0, 100.0]


def test_of_many_who_publish_at_once_one_wins_and_nothing_else_is_left(tmp_path: Path) -> None:
    for turn in range(20):
        sink = tmp_path / str(turn)
        won: list[int] = []
        barrier = threading.Barrier(4)

        def contend(shift: int, sink: Path = sink, barrier: threading.Barrier = barrier, won: list[int] = won) -> None:
            release = sealed(shift=shift)
            barrier.wait()
            try:
                if publish(release, str(sink), "avro"):
                    won.append(shift)
            except PublishError:
                pass

        threads = [threading.Thread(target=contend, args=(shift,)) for shift in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        # A last try of the winner sees the window through, and shows what there is.
        publish(sealed(shift=won[0]), str(sink), "avro")
        assert len(list((sink / sealed().folder).iterdir())) == 2
        assert read_releases(str(sink), allow_gaps=True)["value"].to_pylist() == [200.0 + won[0], 100.0 + won[0]]


def test_only_a_sealed_release_can_be_published(tmp_path: Path) -> None:
    with pytest.raises(SafeError, match="only a sealed release can be published, not dict"):
        list(PublishFn(str(tmp_path), "avro").process({"key": 1}))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_window_is_an_error_wherever_it_is(tmp_path: Path, missing: int) -> None:
    for window in {0, 1, 2} - {missing}:
        publish(sealed(window), str(tmp_path), "avro")
    with pytest.raises(ReadError, match=f"the window that begins at 2026-01-01T0{missing}:00:00Z is missing"):
        read_releases(str(tmp_path))
    assert len(read_releases(str(tmp_path), allow_gaps=True)) == 4


def test_a_window_in_which_nothing_passed_is_no_gap(tmp_path: Path) -> None:
    for window in range(3):
        quiet = sealed(window)
        publish(replace(quiet, rows=quiet.rows.slice(0, 0)), str(tmp_path), "avro")
    assert len(read_releases(str(tmp_path))) == 0


def test_rows_that_are_not_what_the_manifest_says_are_refused(tmp_path: Path) -> None:
    publish(sealed(), str(tmp_path), "jsonl")
    rows = next((tmp_path / sealed().folder).glob("rows-*"))
    rows.write_bytes(rows.read_bytes().replace(b"133", b"134"))
    with pytest.raises(ReadError, match="its SHA-256 differs"):
        read_releases(str(tmp_path), allow_gaps=True)


def test_windows_and_keys_can_be_chosen(tmp_path: Path) -> None:
    for window in range(3):
        publish(sealed(window, shift=window), str(tmp_path), "avro")
    some = read_releases(str(tmp_path), windows=["2026-01-01T01:00:00Z"], keys=["a key"])
    assert some["value"].to_pylist() == [201.0]
    with pytest.raises(ReadError, match="no window begins at 2026-01-01T09:00:00Z"):
        read_releases(str(tmp_path), windows=["2026-01-01T09:00:00Z"])
