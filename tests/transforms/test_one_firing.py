"""Every window is released once: on time, within grace, out of order, too late, or without a single event."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.testing import test_stream
from apache_beam.transforms import trigger
from apache_beam.transforms.window import FixedWindows, GlobalWindows, Sessions, SlidingWindows, TimestampedValue

from tests.collecting import Collected
from tidegate.transforms import PrivateReleases, Release, Secret, SpecError

START = datetime(2026, 1, 1, tzinfo=UTC)
T0 = int(START.timestamp())
# At this epsilon the noise is nil but with probability 1e-20, so a released value is the exact count; 30 units pass.
TERMS: dict[str, Any] = {
    "stream": "firing",
    "columns": {"unit": "user", "key": "term", "time": "at", "time_unit": "s"},
    "window": {"size": "60s", "grace": "10s", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T00:04:00Z"},
    "bound": {"keys": 1},
    "gate": {"epsilon": 100.0, "delta": 1e-9},
}


def events(second: int, users: range, term: str = "tide") -> list[TimestampedValue]:
    return [TimestampedValue({"user": f"u{user}", "term": term, "at": T0 + second}, T0 + second) for user in users]


def released(stream: test_stream.TestStream, before: Any = None, terms: dict[str, Any] | None = None) -> list[Release]:
    options = PipelineOptions()
    options.view_as(StandardOptions).streaming = True
    with Collected[Release]() as sealed:
        with beam.Pipeline(options=options) as pipeline:
            source = pipeline | stream
            source = source | "before" >> before if before is not None else source
            _ = source | PrivateReleases(secret=Secret.for_tests(1), **(terms or TERMS)) | sealed.collect()
        return sorted(sealed.items, key=lambda release: release.window)


def counts(releases: list[Release]) -> list[dict[str, float]]:
    return [dict(zip(r.rows["key"].to_pylist(), r.rows["value"].to_pylist(), strict=True)) for r in releases]


def test_windows_fire_once_on_time_and_empty_ones_too() -> None:
    stream = (
        test_stream.TestStream()
        .advance_watermark_to(T0)
        .add_elements(events(5, range(30)))
        .advance_watermark_to(T0 + 75)
        .add_elements(events(130, range(40)))
        .advance_watermark_to_infinity()
    )
    assert counts(released(stream)) == [{"tide": 30.0}, {}, {"tide": 40.0}, {}]


def test_an_event_within_grace_counts_although_its_window_has_ended() -> None:
    stream = (
        test_stream.TestStream()
        .advance_watermark_to(T0)
        .add_elements(events(5, range(30)))
        .advance_watermark_to(T0 + 69)
        .add_elements(events(59, range(30, 50)))
        .advance_watermark_to_infinity()
    )
    assert counts(released(stream))[0] == {"tide": 50.0}


@pytest.mark.parametrize("watermark", [70, 71, 200])
def test_an_event_after_grace_is_dropped_and_does_not_fire_its_window_again(watermark: int) -> None:
    # 70 is the very end of the carrier, where the direct runner lets an element through and fires a late pane.
    stream = (
        test_stream.TestStream()
        .advance_watermark_to(T0)
        .add_elements(events(5, range(30)))
        .advance_watermark_to(T0 + watermark)
        .add_elements(events(59, range(30, 90)))
        .add_elements(events(59, range(30, 90), term="other"))
        .advance_watermark_to_infinity()
    )
    releases = released(stream)
    assert [release.window for release in releases] == [0, 1, 2, 3]
    assert counts(releases)[0] == {"tide": 30.0}


def test_order_of_arrival_does_not_matter_while_the_window_is_open() -> None:
    orderly, disorderly = (
        test_stream.TestStream().advance_watermark_to(T0),
        test_stream.TestStream().advance_watermark_to(T0),
    )
    for second in (5, 20, 70, 100):
        orderly.add_elements(events(second, range(second, second + 40)))
    for second in (100, 5, 70, 20):
        disorderly.add_elements(events(second, range(second, second + 40)))
    one = released(orderly.advance_watermark_to_infinity())
    other = released(disorderly.advance_watermark_to_infinity())
    assert [r.rows.equals(s.rows) and r.manifest == s.manifest for r, s in zip(one, other, strict=True)] == [True] * 4
    assert counts(one)[0] == {"tide": 55.0}


def test_sliding_windows_fire_once_each_and_each_counts_its_own_events() -> None:
    terms = TERMS | {"window": TERMS["window"] | {"every": "30s"}}
    stream = (
        test_stream.TestStream()
        .advance_watermark_to(T0)
        .add_elements(events(5, range(30)))
        .advance_watermark_to(T0 + 40)
        .add_elements(events(45, range(50)))
        .advance_watermark_to_infinity()
    )
    # Windows start every 30 s: second 5 lies in window 0 only, second 45 in windows 0 and 1.
    assert counts(released(stream, terms=terms)) == [{"tide": 50.0}, {"tide": 50.0}, {}, {}, {}, {}, {}]


@pytest.mark.parametrize(
    "carried_in",
    [
        beam.WindowInto(FixedWindows(7)),
        beam.WindowInto(SlidingWindows(600, 100)),
        beam.WindowInto(Sessions(5)),
        beam.WindowInto(
            GlobalWindows(),
            trigger=trigger.Repeatedly(trigger.AfterCount(1)),
            accumulation_mode=trigger.AccumulationMode.DISCARDING,
        ),
        beam.WindowInto(
            FixedWindows(3600),
            trigger=trigger.AfterWatermark(early=trigger.AfterCount(1), late=trigger.AfterCount(1)),
            accumulation_mode=trigger.AccumulationMode.DISCARDING,
            allowed_lateness=86400,
        ),
    ],
    ids=["fixed", "sliding", "sessions", "repeated trigger", "early, late and lateness"],
)
def test_whatever_windows_the_caller_carries_in_each_of_ours_fires_once(carried_in: Any) -> None:
    stream = (
        test_stream.TestStream()
        .advance_watermark_to(T0)
        .add_elements(events(5, range(30)))
        .add_elements(events(6, range(30, 50)))
        .advance_watermark_to(T0 + 100)
        .add_elements(events(7, range(50, 90)))
        .advance_watermark_to_infinity()
    )
    releases = released(stream, before=carried_in)
    assert [release.window for release in releases] == [0, 1, 2, 3]
    assert counts(releases)[0] == {"tide": 50.0}


def test_windows_that_would_feed_events_in_twice_are_refused_at_construction() -> None:
    accumulating = beam.WindowInto(
        FixedWindows(60),
        trigger=trigger.Repeatedly(trigger.AfterCount(1)),
        accumulation_mode=trigger.AccumulationMode.ACCUMULATING,
    )
    pipeline = beam.Pipeline()
    source = pipeline | beam.Create([{}]) | accumulating
    with pytest.raises(SpecError, match=r"fire more than once and accumulate.*write accumulation_mode"):
        _ = source | PrivateReleases(secret=Secret.for_tests(1), **TERMS)
