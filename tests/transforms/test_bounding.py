"""A unit counts in at most so many keys a window, and so much in each, whatever bundles and files it is spread over."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transforms.running import NEARLY_EXACT, T0, release, values
from tidegate.mechanisms.keyed import KeyedHash
from tidegate.mechanisms.mechanism import Bounds
from tidegate.transforms.bounding import Bounder, Gathering
from tidegate.transforms.contributions import Contributions, from_batch, to_batch


def busy_units(units: int = 200, keys: int = 20) -> list[dict[str, Any]]:
    """Every unit touches every key in the first window, key by key, so that a bundle holds all units and few keys."""
    return [{"user": f"u{u}", "term": f"t{k}", "at": T0 + k} for k in range(keys) for u in range(units)]


@pytest.mark.parametrize("bundles", [1, 5])
def test_a_unit_counts_in_so_many_keys_across_bundles(bundles: int) -> None:
    counted = values(release(busy_units(), bundles=bundles, gate=NEARLY_EXACT)[0])
    # 200 units of 3 keys each; all 20 keys have about 30, far above the gate of this epsilon.
    assert len(counted) == 20
    assert sum(counted.values()) == 200 * 3


def test_a_unit_is_bounded_in_every_window_on_its_own() -> None:
    twice = busy_units() + [event | {"at": event["at"] + 3600} for event in busy_units()]
    found = release(twice, gate=NEARLY_EXACT)
    assert [sum(values(item).values()) for item in found] == [600, 600]


@pytest.mark.parametrize(("per_key", "expected"), [(1, 50.0), (2, 100.0), (5, 250.0), (9, 350.0)])
def test_events_count_up_to_the_bound_of_a_key(per_key: int, expected: float) -> None:
    # 50 units do the same thing seven times each, in three bundles.
    events = [{"user": f"u{u}", "term": "t", "at": T0 + i} for i in range(7) for u in range(50)]
    found = release(
        events,
        bundles=3,
        bound={"keys": 1, "per_key": per_key},
        gate={**NEARLY_EXACT, "epsilon": 1000.0, "measure": "events"},
    )
    assert values(found[0]) == {"t": expected}


Row = tuple[int, int, int]
rows = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 9)), max_size=80)
UNITS = KeyedHash(b"u" * 32)(pa.array([f"u{i}" for i in range(5)]))
KEYS = pa.array([f"k{i}" for i in range(10)])


def contributions(events: list[Row]) -> Contributions:
    window, unit, key = (
        (np.array(column, dtype=np.int64) for column in zip(*events, strict=True))
        if events
        else (np.zeros(0, np.int64),) * 3
    )
    return Contributions.gather(window, unit, key, None, UNITS, KEYS)


def of_many(events: list[Row]) -> Contributions:
    """The same for any number of units."""
    window, unit, key = (np.array(column, dtype=np.int64) for column in zip(*events, strict=True))
    codes, places = np.unique(unit, return_inverse=True)
    ids = np.stack([codes, codes], axis=1).astype(np.uint64)
    return Contributions.gather(window, places, key, None, ids, pa.array([f"k{n}" for n in range(60)])).capped(1)


def as_dict(found: Contributions) -> dict[tuple[int, bytes, str], int]:
    counts = found.count if found.count is not None else np.ones(len(found), np.int64)
    keys = found.keys.to_pylist()
    return {
        (int(w), found.units[u].tobytes(), keys[k]): int(c)
        for w, u, k, c in zip(found.window, found.unit, found.key, counts, strict=True)
    }


@given(rows, st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(0, 80), max_size=3))
@settings(max_examples=200, deadline=None)
def test_bounding_parts_and_then_the_whole_equals_bounding_the_whole(
    events: list[Row], keys: int, per_key: int, cuts: list[int]
) -> None:
    bounder = Bounder(b"b" * 32, Bounds(keys, per_key), 0)
    whole = as_dict(bounder(contributions(events)))
    edges = [0, *sorted(cuts), len(events)]
    parts = [events[begin:end] for begin, end in pairwise(edges)]
    gathering = Gathering(bounder)
    for part in reversed(parts):
        gathering.add(from_batch(to_batch(bounder(contributions(part)))))
    merged = gathering.drain()
    assert as_dict(merged) == whole if merged is not None else not whole


@given(rows, st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_bounds_hold_and_nothing_is_made_up(events: list[Row], keys: int, per_key: int) -> None:
    bounded = as_dict(Bounder(b"b" * 32, Bounds(keys, per_key), 0)(contributions(events)))
    touched: dict[tuple[int, bytes], set[str]] = {}
    exact: dict[tuple[int, bytes, str], int] = {}
    for window, unit, key in events:
        exact[window, UNITS[unit].tobytes(), f"k{key}"] = exact.get((window, UNITS[unit].tobytes(), f"k{key}"), 0) + 1
    for (window, pseudonym, name), count in bounded.items():
        touched.setdefault((window, pseudonym), set()).add(name)
        assert count == min(exact[window, pseudonym, name], per_key)
    everything: dict[tuple[int, bytes], set[str]] = {}
    for window, pseudonym, name in exact:
        everything.setdefault((window, pseudonym), set()).add(name)
    assert {who: min(len(names), keys) for who, names in everything.items()} == {
        who: len(names) for who, names in touched.items()
    }


@given(rows, st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_shards_partition_the_rows_by_unit(events: list[Row], shards: int) -> None:
    whole = contributions(events)
    parts = list(whole.split(shards))
    together: dict[tuple[int, bytes, str], int] = {}
    place: dict[bytes, int] = {}
    for window, shard, part in parts:
        assert set(part.window.tolist()) == {window}
        for row, count in as_dict(part).items():
            assert row not in together
            together[row] = count
            assert place.setdefault(row[1], shard) == shard
    assert together == as_dict(whole)


def test_ranks_that_agree_in_their_leading_bits_are_decided_by_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # Give every row the same leading rank bits: the packed sort cannot tell them apart, the full ranks can.
    bounder = Bounder(b"b" * 32, Bounds(2, 1), 0)
    real = bounder._rank
    monkeypatch.setattr(bounder, "_rank", lambda block: real(block) & np.uint64(0xFF))
    events = [(0, u, k) for u in range(5) for k in range(10)]
    kept = as_dict(bounder(contributions(events)))
    assert len(kept) == 5 * 2
    halves = [as_dict(bounder(contributions(events[begin::2]))) for begin in (0, 1)]
    assert all(row in halves[0] or row in halves[1] for row in kept)


def test_windows_units_and_keys_too_many_for_one_number_are_sorted_all_the_same() -> None:
    # 2^22 windows and dictionaries of 2^22 entries do not fit 63 bits; the slow way must give the same rows.
    from tidegate.transforms.contributions import _Extent, _group

    rng = np.random.default_rng(0)
    window, unit, key = rng.integers(0, 3, 500), rng.integers(0, 5, 500), rng.integers(0, 7, 500)
    count = rng.integers(1, 4, 500)
    whole: list[Any] = [(window, unit, key)]
    parts: list[Any] = [
        (window[part], unit[part].astype(np.int32), key[part]) for part in (slice(0, 200), slice(200, None))
    ]
    slow = _group(whole, _Extent(500, 2, 2**31, 2**31), in_order=False)
    for in_order, rows in product((True, False), (whole, parts)):
        fast = _group(rows, _Extent(500, 2, 5, 7), in_order)
        for name in ("window", "unit", "key", "first"):
            assert np.array_equal(getattr(fast, name), getattr(slow, name))
    assert np.array_equal(_group(parts, _Extent(500, 2, 2**31, 2**31), in_order=False).key, slow.key)
    fast = _group(parts, _Extent(500, 2, 5, 7), in_order=True)
    assert np.array_equal(fast.reduce(count, "sum"), slow.reduce(count, "sum"))
    assert np.array_equal(fast.reduce(count, "max"), slow.reduce(count, "max"))


def test_memory_follows_distinct_rows_not_events(monkeypatch: pytest.MonkeyPatch) -> None:
    # The same 50 rows arrive 200 times over; what is held at any time is a small multiple of 50, not 10,000.
    monkeypatch.setattr(Gathering, "FIRST_COMPACTION", 120)
    gathering = Gathering(Bounder(b"b" * 32, Bounds(10, 1), 0))
    most = 0
    for _ in range(200):
        gathering.add(contributions([(0, u, k) for u in range(5) for k in range(10)]).capped(1))
        most = max(most, len(gathering))
    assert most <= 120
    whole = gathering.drain()
    assert whole is not None
    assert len(whole) == 50
    assert len(gathering) == 0


def test_windows_that_have_come_to_rest_are_given_back_and_not_merged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gathering, "FIRST_COMPACTION", 100)
    bounder = Bounder(b"b" * 32, Bounds(3, 1), 0)
    gathering = Gathering(bounder)
    events = [[(hour, u, k) for u in range(30) for k in range(5)] for hour in range(10)]
    events[6] += [(0, 99, 7), (0, 3, 8)]  # and some that come late, one of them of a unit that was there
    given = []
    for part in events:
        given.append(gathering.add(of_many(part)))
        assert len(gathering) <= 300
    sent = [part for part in (*given, gathering.drain()) if part is not None]
    assert len(sent) > 5
    assert all(len(part.units) <= 31 for part in sent)  # nobody of another window is carried along
    whole = of_many([row for part in events for row in part])
    assert as_dict(bounder(Contributions.merge(sent))) == as_dict(bounder(whole))


def test_rows_are_merged_when_they_have_doubled_and_not_once_more_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gathering, "FIRST_COMPACTION", 100)
    merged: list[int] = []
    merge = Contributions.merge

    def counted(parts: Sequence[Contributions]) -> Contributions:
        merged.append(sum(map(len, parts)))
        return merge(parts)

    monkeypatch.setattr(Contributions, "merge", staticmethod(counted))
    gathering = Gathering(Bounder(b"b" * 32, Bounds(3, 1), 0))
    for part in range(8):
        gathering.add(of_many([(0, 1000 * part + u, k) for u in range(25) for k in range(2)]))
    whole = gathering.drain()
    assert whole is not None
    assert len(whole) == 400
    assert merged == [100, 200, 400]


@pytest.mark.parametrize(
    "ids",
    [[[1, 1], [1, 2], [3, 1], [1, 1], [1, 2]], [[5, 1], [2, 9], [5, 1]], [[7, 7]]],
    ids=["half alike", "apart", "one"],
)
def test_identifiers_are_told_apart_by_all_of_their_bits(ids: list[list[int]]) -> None:
    from tidegate.transforms.contributions import _distinct

    found, place = _distinct(np.array(ids, np.uint64))
    assert found.tolist() == list(map(list, dict.fromkeys(map(tuple, ids))))
    assert found[place].tolist() == ids
