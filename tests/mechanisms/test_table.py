"""Exact tables stay inside: they add up, and refuse every ordinary way out."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import pprint
import string
import traceback
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.coders import FastPrimitivesCoder, PickleCoder, registry
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.mechanisms import table as table_room
from tidegate.mechanisms.table import ExactTable, Rows
from tidegate.pipelines.sinks import FolderOfReleases, PublishFn, WriteReleases
from tidegate.transforms.coders import ExactTableCoder, register
from tidegate.transforms.contributions import Contributions
from tidegate.transforms.decode import Arrivals, DeadLetter, Decoded
from tidegate.transforms.problems import SafeError
from tidegate.transforms.rows import RowSums

KEY, COUNT = "canary-key-41f7", 47_110_815
# Beam has a cloudpickle of its own; the others are there or not.
PICKLERS = [
    importlib.import_module(name)
    for name in ("apache_beam.internal.cloudpickle.cloudpickle", "cloudpickle", "dill")
    if importlib.util.find_spec(name)
]


def secret() -> ExactTable:
    return ExactTable(pa.array([KEY, "other"]), np.array([COUNT, 3], np.int64))


def contributions() -> Contributions:
    code = np.zeros(1, np.int64)
    ids = np.array([[COUNT, COUNT]], np.uint64)
    return Contributions.gather(code, code, code, np.array([COUNT], np.int64), ids, pa.array([KEY]))


def held(table: ExactTable) -> dict[str, int]:
    return dict(zip(table.keys.to_pylist(), table.counts.tolist(), strict=True))


def assert_tells_nothing(text: str) -> None:
    assert KEY not in text
    assert str(COUNT) not in text
    assert f"{COUNT:,}" not in text


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_refuses_with_every_protocol(protocol: int) -> None:
    with pytest.raises(TypeError, match="an exact table cannot be pickled") as refused:
        pickle.dumps(secret(), protocol)
    assert_tells_nothing(str(refused.value))


@pytest.mark.parametrize("pickler", PICKLERS, ids=lambda pickler: str(pickler.__name__))
def test_other_picklers_refuse_alone_and_inside_of_other_things(pickler: Any) -> None:
    table = secret()
    for thing in (table, [table], {"a": table}, lambda: table):
        with pytest.raises(Exception, match="an exact table cannot be pickled") as refused:
            pickler.dumps(thing)
        assert_tells_nothing(str(refused.value))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copying_goes_the_same_way_and_is_refused(duplicate: Any) -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        duplicate(secret())


@pytest.mark.parametrize("coder", [PickleCoder(), FastPrimitivesCoder()], ids=lambda coder: type(coder).__name__)
def test_the_default_coders_of_beam_refuse(coder: Any) -> None:
    with pytest.raises(Exception, match="an exact table cannot be pickled") as refused:
        coder.encode(secret())
    assert_tells_nothing(str(refused.value))


def test_the_one_coder_for_it_carries_it_from_stage_to_stage() -> None:
    register()
    assert isinstance(registry.get_coder(ExactTable), ExactTableCoder)
    assert held(ExactTableCoder().decode(ExactTableCoder().encode(secret()))) == held(secret())


SHOWN = {
    "repr": repr,
    "str": str,
    "format": lambda thing: f"{thing}",
    "percent": lambda thing: f"{thing!s} {thing!r}",
    "template": lambda thing: string.Template("$it").substitute(it=thing),
    "in a list": lambda thing: str([thing]),
    "in a dict": lambda thing: pprint.pformat({"table": thing}),
}


@pytest.mark.parametrize("show", SHOWN.values(), ids=SHOWN.keys())
def test_printing_withholds(show: Any) -> None:
    letter = DeadLetter("bad_time", f"{KEY}.csv", COUNT, KEY)
    decoded = Decoded(contributions(), {0: Arrivals(COUNT, 0)}, [letter], 0, 0)
    for thing in (secret(), contributions(), RowSums(secret(), 0, COUNT, ""), letter):
        assert_tells_nothing(show(thing))
        assert "withheld" in show(thing)
    assert KEY not in show(decoded)


def test_a_dead_letter_tells_its_reason_and_no_more() -> None:
    assert repr(DeadLetter("bad_time", "a.csv", 1, KEY)) == "DeadLetter(bad_time, withheld)"


def test_a_traceback_that_shows_locals_withholds() -> None:
    def fail(table: ExactTable, rows: Contributions) -> None:
        raise RuntimeError

    try:
        fail(secret(), contributions())
    except RuntimeError as problem:
        shown = "".join(traceback.TracebackException.from_exception(problem, capture_locals=True).format())
    assert "table = ExactTable(withheld)" in shown
    assert_tells_nothing(shown.replace(str(Path(__file__)), ""))


ITERATED = {
    "for": lambda table: [*table],
    "list": list,
    "unpacking": lambda table: print(*table),
    "in": lambda table: KEY in table,
}


@pytest.mark.parametrize("iterate", ITERATED.values(), ids=ITERATED.keys())
def test_iterating_is_refused(iterate: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot be iterated|is not iterable"):
        iterate(secret())


def test_it_cannot_be_indexed() -> None:
    with pytest.raises(TypeError):
        secret()[0]  # type: ignore[index]


def test_an_array_of_it_holds_nothing_of_it() -> None:
    assert_tells_nothing(str(np.array([secret(), secret()], dtype=object)))


def test_its_length_is_that_of_its_keys_and_must_fit() -> None:
    assert len(secret()) == 2
    with pytest.raises(ValueError, match="one count a key") as refused:
        ExactTable(pa.array([KEY]), np.array([COUNT, 1], np.int64))
    assert_tells_nothing(str(refused.value))


tables = st.lists(st.dictionaries(st.text(max_size=3), st.integers(1, 2**40), max_size=6), max_size=5)


def table_of(counts: dict[str, int]) -> ExactTable:
    return ExactTable(pa.array(list(counts), pa.string()), np.array(list(counts.values()), np.int64))


@settings(max_examples=60, deadline=None)
@given(tables)
def test_merging_adds_up_and_forgets_the_order(parts: list[dict[str, int]]) -> None:
    expected: dict[str, int] = {}
    for part in parts:
        for key, count in part.items():
            expected[key] = expected.get(key, 0) + count
    assert held(ExactTable.merge([table_of(part) for part in parts])) == expected
    assert held(ExactTable.merge([table_of(part) for part in reversed(parts)])) == expected


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text(max_size=3), st.integers(1, 2**40), max_size=6), st.lists(st.text(max_size=3), unique=True)
)
def test_restricting_keeps_the_asked_keys_in_their_order(counts: dict[str, int], asked: list[str]) -> None:
    found = table_of(counts).restrict(pa.array(asked, pa.string()))
    assert list(held(found).items()) == [(key, counts[key]) for key in asked if key in counts]


def test_rows_in_parts_are_the_same_rows() -> None:
    one, two = (
        Rows(pa.array([key]), np.array([v]), np.array([v - 1]), np.array([v + 1]))
        for key, v in (("a", 1.0), ("b", 2.0))
    )
    both = Rows.concat([one, two])
    assert both.keys.to_pylist() == ["a", "b"]
    assert [both.values.tolist(), both.low.tolist(), both.high.tolist()] == [[1, 2], [0, 1], [2, 3]]
    assert len(Rows.concat([])) == 0


@pytest.mark.parametrize(
    "smuggled", [secret(), contributions(), {"key": KEY}, [COUNT], KEY], ids=lambda x: type(x).__name__
)
def test_publishing_takes_nothing_but_a_sealed_release(smuggled: Any, tmp_path: Path) -> None:
    with pytest.raises(
        SafeError, match=f"only a sealed release can be published, not {type(smuggled).__name__}"
    ) as refused:
        list(PublishFn(lambda: FolderOfReleases(str(tmp_path))).process(smuggled))
    assert_tells_nothing(str(refused.value))
    assert not list(tmp_path.iterdir())


def test_a_text_sink_of_beam_gets_nothing_of_it(tmp_path: Path) -> None:
    register()
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        made = pipeline | beam.Create([0]) | beam.Map(lambda _: secret()).with_output_types(ExactTable)
        _ = made | beam.io.WriteToText(str(tmp_path / "out"))
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir()).decode()
    assert written == "ExactTable(withheld)\n"


def test_our_own_sink_fails_on_it_without_quoting(tmp_path: Path) -> None:
    register()

    def run() -> None:
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            made = pipeline | beam.Create([0]) | beam.Map(lambda _: secret()).with_output_types(ExactTable)
            _ = made | WriteReleases(str(tmp_path / "out"))

    with pytest.raises(Exception, match="only a sealed release can be published") as refused:
        run()
    assert_tells_nothing(str(refused.value))
    assert not (tmp_path / "out").exists()


def test_more_text_than_strings_can_hold_becomes_large_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_room, "MOST_BYTES", 100)
    parts = [ExactTable(pa.array([f"key {place}" for place in range(n)]), np.ones(n, np.int64)) for n in (3, 50)]
    few, many = ExactTable.merge(parts[:1] * 2), ExactTable.merge(parts)
    assert (few.keys.type, many.keys.type) == (pa.string(), pa.large_string())
    assert dict(zip(many.keys.to_pylist(), many.counts.tolist(), strict=True)) == {
        f"key {place}": 2 if place < 3 else 1 for place in range(50)
    }
    again = ExactTable.merge([few, many])  # small ones and large ones
    assert again.keys.type == pa.large_string()
    assert again.counts.sum() == few.counts.sum() + many.counts.sum()
