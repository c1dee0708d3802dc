"""Windows: which ones an event is in, what they are called, and how they travel."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from apache_beam.transforms.trigger import AccumulationMode, DefaultTrigger
from apache_beam.transforms.window import FixedWindows, WindowFn
from apache_beam.utils.timestamp import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transforms.running import release, terms
from tidegate.transforms import SpecError
from tidegate.transforms.columns import rows_to_batches
from tidegate.transforms.decode import Decoder
from tidegate.transforms.terms import make_terms
from tidegate.transforms.windows import MICROS, Windows

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 1, 1, tzinfo=UTC)
T0 = int(START.timestamp()) * MICROS


@st.composite
def grids(draw: st.DrawFn) -> Windows:
    """Fixed and sliding windows, with and without grace, from before 1970 on."""
    every = draw(st.sampled_from([1, 7, 60, 900, 3600, 86400]))
    overlap = draw(st.integers(1, 5))
    grace = draw(st.sampled_from([0, 1, every, 10 * every, 599]))
    start = EPOCH + timedelta(seconds=draw(st.integers(-2_000_000_000, 4_000_000_000)))
    length = (draw(st.integers(1, 6)) - 1 + overlap) * every
    return Windows.between(start, start + timedelta(seconds=length), every * overlap, every, grace)


@st.composite
def grids_and_times(draw: st.DrawFn) -> tuple[Windows, list[int]]:
    windows = draw(grids())
    span = windows.count * windows.every + windows.size
    near = [windows.start + index * windows.every for index in range(windows.count + windows.size // windows.every + 1)]
    time = st.one_of(
        st.integers(windows.start - span, windows.start + span),
        st.builds(lambda edge, off: edge + off, st.sampled_from(near), st.integers(-2, 2)),
    )
    return windows, draw(st.lists(time, max_size=20))


def holding(windows: Windows, time: int) -> list[int]:
    """The windows that hold a moment, by looking at every one of them."""
    moment = EPOCH + timedelta(microseconds=time)
    bounds = [windows.bounds(index) for index in range(windows.count)]
    return [index for index, (begin, end) in enumerate(bounds) if begin <= moment < end]


@settings(max_examples=150, deadline=None)
@given(grids_and_times())
def test_an_event_is_in_every_window_that_holds_its_time_and_in_no_other(drawn: tuple[Windows, list[int]]) -> None:
    windows, times = drawn
    rows, found = windows.assign(np.array(times, np.int64))
    expected = sorted((row, index) for row, time in enumerate(times) for index in holding(windows, time))
    assert sorted(zip(rows.tolist(), found.tolist(), strict=True)) == expected


@settings(max_examples=150, deadline=None)
@given(grids(), st.data())
def test_the_carrier_of_an_event_stands_for_its_window(windows: Windows, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, windows.count - 1))
    begin = windows.start + index * windows.every
    time = data.draw(st.integers(begin, begin + windows.size - 1))
    timestamp = windows.carrier_timestamp(index, time)
    carrier = carrier_of(windows, timestamp)
    assert windows.carried(carrier) == index
    assert timestamp.micros >= time
    # An event is on time for its window exactly until the grace after its end is over.
    assert carrier.end.micros == begin + windows.size + windows.grace
    assert carrier.start.micros <= timestamp.micros < carrier.end.micros


def carrier_of(windows: Windows, timestamp: Timestamp) -> Any:
    fixed = windows.into_carriers().windowing.windowfn
    (carrier,) = fixed.assign(WindowFn.AssignContext(timestamp))
    return carrier


@settings(max_examples=60, deadline=None)
@given(grids())
def test_ticks_find_the_carrier_of_every_window(windows: Windows) -> None:
    # They know no event, so they stand at the start of the range.
    carriers = [carrier_of(windows, windows.carrier_timestamp(index, windows.start)) for index in range(windows.count)]
    assert [windows.carried(carrier) for carrier in carriers] == list(range(windows.count))


@settings(max_examples=60, deadline=None)
@given(grids())
def test_windows_have_the_asked_size_distance_and_range(windows: Windows) -> None:
    bounds = [windows.bounds(index) for index in range(windows.count)]
    assert all(end - begin == timedelta(microseconds=windows.size) for begin, end in bounds)
    steps = {later - earlier for (earlier, _), (later, _) in pairwise(bounds)}
    assert steps <= {timedelta(microseconds=windows.every)}
    assert bounds[0][0] == EPOCH + timedelta(microseconds=windows.start)


def test_the_carriers_fire_once_and_take_nothing_late() -> None:
    windowing = Windows(T0, 4, 3600 * MICROS, 900 * MICROS, 60 * MICROS).into_carriers().windowing
    assert isinstance(windowing.windowfn, FixedWindows)
    assert windowing.windowfn.size.micros == 900 * MICROS
    assert isinstance(windowing.triggerfn, DefaultTrigger)
    assert windowing.accumulation_mode == AccumulationMode.DISCARDING
    assert windowing.allowed_lateness.micros == 0


def test_a_folder_is_named_after_its_window_in_utc() -> None:
    windows = Windows.between(START, START + timedelta(days=1), 3600, 900, 0)
    assert windows.folder(0) == "20260101T000000Z-20260101T010000Z"
    assert windows.folder(windows.count - 1) == "20260101T230000Z-20260102T000000Z"


@settings(max_examples=60, deadline=None)
@given(grids())
def test_folder_names_are_distinct_in_order_and_plain(windows: Windows) -> None:
    names = [windows.folder(index) for index in range(windows.count)]
    assert names == sorted(set(names))
    assert all(re.fullmatch(r"\d{8}T\d{6}Z-\d{8}T\d{6}Z", name) for name in names)


@pytest.mark.parametrize(
    ("hours", "size", "every", "count"),
    [(24, 3600, 3600, 24), (24, 3600, 900, 93), (1, 3600, 3600, 1), (1, 3600, 900, 1), (2, 3600, 1800, 3)],
)
def test_the_range_holds_whole_windows_only(hours: int, size: int, every: int, count: int) -> None:
    windows = Windows.between(START, START + timedelta(hours=hours), size, every, 0)
    assert windows.count == count
    assert windows.bounds(count - 1)[1] == START + timedelta(hours=hours)


def test_a_start_with_another_offset_is_the_same_moment() -> None:
    east = START.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert (
        Windows.between(east, east + timedelta(hours=2), 3600, 3600, 0).folder(0) == "20260101T000000Z-20260101T010000Z"
    )


@pytest.mark.parametrize(
    ("time", "windows"),
    [
        (T0 - 1, []),
        (T0, [0]),
        (T0 + 3600 * MICROS - 1, [0]),
        (T0 + 3600 * MICROS, [1]),
        (T0 + 2 * 3600 * MICROS - 1, [1]),
        (T0 + 2 * 3600 * MICROS, []),
        (-(2**62), []),
        (2**62, []),
    ],
)
def test_the_start_of_a_window_belongs_to_it_and_its_end_to_the_next(time: int, windows: list[int]) -> None:
    grid = Windows.between(START, START + timedelta(hours=2), 3600, 3600, 0)
    assert grid.assign(np.array([time]))[1].tolist() == windows


@pytest.mark.parametrize(("every", "inside"), [("1h", [1, 1]), ("15m", [1, 1, 1, 1, 1])])
def test_events_outside_the_range_are_counted_once_and_in_no_window(every: str, inside: list[int]) -> None:
    decoder = Decoder(make_terms(**terms(window={"every": every})), bytes(32))
    seconds = T0 // MICROS
    times = [seconds - 1, seconds + 7200, seconds - 10**8, seconds + 10**8, seconds + 3599, seconds + 3600]
    rows = [{"user": "ann", "term": "tide", "at": time} for time in times]
    (batch,) = rows_to_batches(rows, ["user", "term", "at"])
    decoded = decoder(batch)
    assert (decoded.outside, decoded.dead) == (4, [])
    assert decoded.contributions.window.tolist() == list(range(len(inside)))


def test_endless_windows_go_on_and_end_nowhere() -> None:
    windows = Windows.between(START, None, 60, 60, 0)
    assert windows.end is None
    century = (datetime(2090, 1, 1, tzinfo=UTC) - START) // timedelta(microseconds=1)
    rows, found = windows.assign(np.array([windows.start - 1, windows.start, windows.start + century]))
    assert rows.tolist() == [1, 2]
    assert windows.bounds(int(found[1]))[0] == datetime(2090, 1, 1, tzinfo=UTC)


def test_without_an_end_events_must_not_come_to_one() -> None:
    with pytest.raises(SpecError, match="is required for events that come to an end"):
        release([], window={"size": "1h", "start": "2026-01-01T00:00:00Z", "end": None})
