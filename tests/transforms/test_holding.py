"""A window that is open is held in merged form: as much as is distinct in it. Once closed, it stays closed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.testing import test_stream
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming

from tests.transforms.running import T0, terms
from tidegate.mechanisms.table import ExactTable
from tidegate.transforms import PrivateReleases, Secret, make_terms
from tidegate.transforms.bound import BoundFn
from tidegate.transforms.closing import ClosingFn, HoldFn
from tidegate.transforms.coders import register
from tidegate.transforms.columns import rows_to_batches
from tidegate.transforms.contributions import Contributions
from tidegate.transforms.decode import DecodeFn
from tidegate.transforms.problems import SafeError
from tidegate.transforms.rows import DecodeRowsFn, RowSums, SumRowsFn
from tidegate.transforms.terms import Terms

PANE = PaneInfo(True, True, PaneInfoTiming.ON_TIME, 0, 0)
HOUR = IntervalWindow(T0, T0 + 3600)
EACH_ROW: dict[str, Any] = {"columns": {"unit": {"each": "row"}}, "bound": {"keys": 1}}
KINDS: dict[str, dict[str, Any]] = {
    "units": {},
    "events": {"gate": {"measure": "events"}, "bound": {"keys": 2, "per_key": 3}},
    "truncated": {"gate": {"measure": "events"}, "bound": {"keys": 2, "per_key": 3}, "prepare": {"truncate": 4}},
    "sums": {
        "gate": {"measure": {"sum": "worth", "low": 0, "high": 8}},
        "then": [{"mechanism": "histogram", "column": "worth", "edges": [0, 3, 8], "epsilon": 1.0}],
    },
    "rows": EACH_ROW,
}


@dataclass
class Bag:
    """As an engine keeps it: bytes in, bytes out."""

    parts: list[bytes] = field(default_factory=list)

    def read(self) -> list[bytes]:
        return list(self.parts)

    def add(self, part: bytes) -> None:
        assert isinstance(part, bytes)
        self.parts.append(part)

    def clear(self) -> None:
        self.parts.clear()

    def __len__(self) -> int:
        return sum(map(len, self.parts))


@dataclass
class Cell:
    """The state of one key and window."""

    held: Bag = field(default_factory=Bag)
    done: Bag = field(default_factory=Bag)
    value: Any = None
    timer: Any = None

    def read(self) -> Any:
        return self.value

    def write(self, value: Any) -> None:
        self.value = value

    def set(self, timestamp: Any) -> None:
        self.timer = timestamp


def stages(made: Terms, shards: int = 1) -> tuple[DecodeFn, ClosingFn, type]:
    secret = Secret.for_tests(1)
    register()
    if made.columns.unit is None:
        return DecodeRowsFn(made, secret, shards), SumRowsFn(made, shards), RowSums
    return DecodeFn(made, secret, shards), BoundFn(made, secret, shards), Contributions


def sent(bundles: list[list[dict[str, Any]]], made: Terms, shards: int = 1) -> Iterator[Any]:
    """What decoding sends of each bundle, all of it for the first window and shard."""
    decode, _, _ = stages(made, shards)
    decode.setup()
    for bundle in bundles:
        decode.start_bundle()
        for batch in rows_to_batches(bundle, ["user", "term", "at", "worth"]):
            list(decode.process(batch))
        yield from (element.value[1] for element in decode.finish_bundle() if element.value[0] == 0)


def hold(parts: list[Any], made: Terms, shards: int = 1) -> tuple[HoldFn, Cell, list[int]]:
    """A shard that holds these parts; how many bytes there were after each."""
    _, closing, kind = stages(made, shards)
    holding, cell, sizes = HoldFn(closing, kind), Cell(), list[int]()
    holding.setup()
    for part in parts:
        holding.process((0, part), HOUR, cell.held, cell.done, cell, cell)
        assert cell.timer == HOUR.max_timestamp()
        sizes.append(len(cell.held) + len(cell.done))
    return holding, cell, sizes


def closed(holding: HoldFn, cell: Cell) -> list[ExactTable]:
    return [table for _, table in holding.close(0, HOUR, cell.held, cell.done, cell)]


def as_dict(tables: list[ExactTable]) -> dict[str, Any]:
    whole = ExactTable.merge(tables)
    columns = [whole.counts.tolist(), *(column.tolist() for column in whole.totals.values())]
    columns += [column.to_pylist() for column in whole.spreads.values()]
    return dict(zip(whole.keys.to_pylist(), zip(*columns, strict=True), strict=True))


def bundles_of(number: int, rows: int, users: int, keys: int, seed: int = 1) -> list[list[dict[str, Any]]]:
    draw = random.Random(seed)
    return [
        [
            {
                "user": f"u{draw.randrange(users)}",
                "term": f"t{draw.randrange(keys)}",
                "at": T0,
                "worth": draw.randrange(9),
            }
            for _ in range(rows)
        ]
        for _ in range(number)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_that_was_held_closes_as_one_that_was_grouped(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HoldFn, "MERGE_AT", 5000)
    made = make_terms(**terms(**KINDS[kind]))
    parts = list(sent(bundles_of(40, 25, 30, 12), made))
    merges: list[int] = []
    _, closing, _ = stages(made)
    merge = type(closing).merge

    def seen(self: Any, some: Any) -> Any:
        merges.append(len(some))
        return merge(self, some)

    monkeypatch.setattr(type(closing), "merge", seen)
    holding, cell, _ = hold(parts, made)
    assert len(merges) > 3
    closing.setup()
    grouped = [table for _, table in closing.process((0, parts), PANE, HOUR)]
    assert as_dict(closed(holding, cell)) == as_dict(grouped)


@pytest.mark.parametrize("kind", ["units", "rows"])
def test_state_follows_what_is_distinct_and_not_events(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HoldFn, "MERGE_AT", 5000)
    made = make_terms(**terms(**KINDS[kind]))
    parts = list(sent(bundles_of(300, 50, 100, 20), made))
    _, _, sizes = hold(parts, made)
    early, late = max(sizes[:60]), max(sizes[60:])
    assert late < 1.2 * early
    assert late < sum(sizes[:1]) * len(parts) / 10  # which is what a grouping would keep


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_large_is_put_aside_and_counts_all_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HoldFn, "MERGE_AT", 3000)
    monkeypatch.setattr(HoldFn, "PUT_ASIDE_AT", 6000)
    made = make_terms(**terms(**KINDS[kind]))
    parts = list(sent(bundles_of(120, 25, 400, 400), made))
    holding, cell, _ = hold(parts, made)
    assert len(cell.done.parts) > 1
    assert max(map(len, cell.done.parts)) < 4 * 6000  # and no more is ever written at once
    _, closing, _ = stages(made)
    closing.setup()
    assert as_dict(closed(holding, cell)) == as_dict([table for _, table in closing.process((0, parts), PANE, HOUR)])


def test_a_unit_with_ever_new_keys_leaves_no_more_than_it_may_count_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HoldFn, "MERGE_AT", 5000)
    made = make_terms(**terms())
    parts = [
        part
        for number in range(200)
        for part in sent([[{"user": "ann", "term": f"{number}/{i}", "at": T0} for i in range(50)]], made)
    ]
    holding, cell, sizes = hold(parts, made)
    assert max(sizes) < 20_000
    (table,) = closed(holding, cell)
    assert len(table) == 3


def test_what_comes_after_the_end_changes_nothing_and_closes_nothing_again() -> None:
    made = make_terms(**terms())
    first, late = sent(bundles_of(2, 50, 30, 5), made)
    holding, cell, _ = hold([first], made)
    assert closed(holding, cell)
    holding.process((0, late), HOUR, cell.held, cell.done, cell, cell)
    assert not len(cell.held) + len(cell.done)
    assert not closed(holding, cell)


def test_what_was_begun_under_other_terms_is_refused_when_merged_and_when_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, others = make_terms(**terms()), make_terms(**terms(gate={"epsilon": 2.0}))
    (before,) = sent(bundles_of(1, 50, 30, 5), others)
    holding, cell, _ = hold([before], made)
    with pytest.raises(SafeError, match="begun under other terms"):
        closed(holding, cell)
    monkeypatch.setattr(HoldFn, "MERGE_AT", 1)
    with pytest.raises(SafeError, match="begun under other terms"):
        hold([before], made)
    (elsewhere,) = sent(bundles_of(1, 50, 1, 5), made, shards=1)
    monkeypatch.setattr(HoldFn, "MERGE_AT", 1 << 19)
    holding, cell, _ = hold([elsewhere], made, shards=4)
    with pytest.raises(SafeError, match="another number of shards"):
        closed(holding, cell)


@pytest.mark.parametrize(
    ("runner", "held"), [(FnApiRunner, False), (BundleBasedDirectRunner, False), (PortableRunner, True)]
)
def test_windows_are_held_where_a_stream_is_live(runner: Any, held: bool) -> None:
    pipeline = beam.Pipeline(runner=runner())
    _ = pipeline | test_stream.TestStream() | PrivateReleases(secret=Secret.for_tests(1), **terms())
    labels: list[str] = []

    class Look(beam.pipeline.PipelineVisitor):
        def visit_transform(self, node: Any) -> None:
            labels.append(node.full_label)

    pipeline.visit(Look())
    assert any("bound/Hold" in label for label in labels) == held
    assert any("bound/Together" in label for label in labels) != held
