"""Pub/Sub: every message is a row or a dead letter, no row is late by being packed; against Google's own test server."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue

from tests.collecting import Collected
from tests.documents import ROOT
from tests.engines.test_kafka import SCHEMA, avro_message
from tests.needed import built_by, needs_modules
from tests.transforms.running import NEARLY_EXACT, T0, terms, values
from tidegate.pipelines.job import run
from tidegate.pipelines.spec import parse_spec
from tidegate.transforms import PrivateReleases, Release, Secret
from tidegate.transforms.columns import ROW
from tidegate.transforms.decode import DEAD, SOURCE, DeadLetter
from tidegate.transforms.problems import SpecError

needs_modules("google.cloud.pubsub")

from apache_beam.io.gcp.pubsub import PubsubMessage  # noqa: E402

from tidegate.pipelines import pubsub  # noqa: E402
from tidegate.pipelines.pubsub import ParseMessages, ReadPubSub  # noqa: E402

SUBSCRIPTION = "projects/the-tides/subscriptions/events"
HOUR = 3600


def message(number: int, attributes: dict[str, str] | None = None, **fields: Any) -> PubsubMessage:
    return PubsubMessage(json.dumps(fields).encode(), attributes or {}, message_id=str(number))


def rfc3339(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def parse(
    messages: list[Any], transform: ParseMessages
) -> tuple[list[tuple[pa.RecordBatch, float]], list[tuple[DeadLetter, float]]]:
    """What becomes of messages, and at which times."""

    def timed(item: Any, at: Any = beam.DoFn.TimestampParam) -> tuple[Any, float]:
        return item, at.micros / 1e6

    with Collected[Any]() as batches, Collected[Any]() as dead:
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            found = pipeline | beam.Create([TimestampedValue(*item) for item in messages]) | transform
            _ = found["batches"] | "batch times" >> beam.Map(timed) | "keep batches" >> batches.collect()
            _ = found[DEAD] | "letter times" >> beam.Map(timed) | "keep dead" >> dead.collect()
        return batches.items, dead.items


# Packing, without a server.


def test_a_bundle_is_one_batch_that_stands_where_its_earliest_message_stood() -> None:
    messages = [(message(100 + i, user=f"u{i}", term="t", other=i), T0 + 500 - i) for i in range(500)]
    messages[17] = (PubsubMessage(b"no json", {}, message_id="117"), T0 + 7)
    ((batch, at),), ((letter, letter_at),) = parse(messages, ParseMessages(SUBSCRIPTION, ["user", "term"]))
    assert batch.schema.names == ["user", "term", ROW]
    assert batch.schema.metadata[SOURCE].decode() == SUBSCRIPTION
    assert batch.column("user").to_pylist() == [f"u{i}" for i in range(500) if i != 17]
    assert batch.column(ROW).to_pylist() == [100 + i for i in range(500) if i != 17]
    assert at == T0 + 1
    assert (letter.reason, letter.source, letter.row, letter.raw) == ("malformed", SUBSCRIPTION, 117, "no json")
    assert letter_at == T0 + 7


@pytest.mark.parametrize(("limit", "size"), [("MESSAGES_A_BATCH", 10), ("BYTES_A_BATCH", 10 * 15)])
def test_a_large_bundle_is_several_batches_and_no_message_is_left(
    limit: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, limit, size)
    batches, dead = parse([(message(i, user=f"u{i:02d}"), T0 + i) for i in range(45)], ParseMessages("s", ["user"]))
    assert not dead
    assert [len(batch) for batch, _ in batches] == [10, 10, 10, 10, 5]
    assert [at for _, at in batches] == [T0, T0 + 10, T0 + 20, T0 + 30, T0 + 40]
    assert [user for batch, _ in batches for user in batch.column("user").to_pylist()] == [
        f"u{i:02d}" for i in range(45)
    ]


def test_the_time_is_the_attribute_whatever_the_message_says() -> None:
    messages = [
        (message(1, {"at": rfc3339(T0)}, user="a", at="1999-01-01T00:00:00Z"), T0),
        (message(2, {}, user="b", at=rfc3339(T0)), T0),
        (message(3, {"at": str(T0 * 1000)}, user="c"), T0),
    ]
    batches, _ = parse(messages, ParseMessages("s", ["user", "at"], time_attribute="at"))
    found = {row["user"]: row["at"] for batch, _ in batches for row in batch.to_pylist()}
    assert found == {"a": rfc3339(T0), "b": None, "c": str(T0 * 1000)}


def test_ids_that_are_no_numbers_do_no_harm() -> None:
    messages = [(PubsubMessage(b'{"user": "a"}', {}, message_id=name), T0) for name in ("m1", None, "9" * 30, "7")]
    ((batch, _),), _ = parse(messages, ParseMessages("s", ["user"]))
    assert batch.column(ROW).to_pylist() == [None, None, None, 7]


def test_avro_messages_are_read(tmp_path: Path) -> None:
    (tmp_path / "search.avsc").write_text(json.dumps(SCHEMA))
    data = [avro_message({"user": f"u{i}", "term": "t", "at": 1000 * i}, i % 2 == 0) for i in range(20)]
    messages = [(PubsubMessage(value, {}, message_id=str(i)), T0) for i, value in enumerate([*data, b"\x01", b""])]
    transform = ParseMessages("s", ["user", "term", "at"], "avro", str(tmp_path / "search.avsc"))
    batches, dead = parse(messages, transform)
    assert [user for batch, _ in batches for user in batch.column("user").to_pylist()] == [f"u{i}" for i in range(20)]
    assert [letter.row for letter, _ in dead] == [20, 21]
    with pytest.raises(SpecError, match="cannot be read"):
        ParseMessages("s", ["user"], "avro", str(tmp_path / "nosuch.avsc"))


# Windows, by the times that a stream tells.


def stream(parts: list[Any]) -> list[Release]:
    """The releases of messages that come with a watermark: a list of messages, or where the watermark is now."""
    source = test_stream.TestStream()
    for part in parts:
        source = source.add_elements(part) if isinstance(part, list) else source.advance_watermark_to(part)
    options = PipelineOptions([])
    options.view_as(StandardOptions).streaming = True
    with Collected[Release]() as sealed:
        with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
            parsed = (
                pipeline
                | source.advance_watermark_to_infinity()
                | ParseMessages(SUBSCRIPTION, ["user", "term", "at"], time_attribute="at")
            )
            _ = (
                parsed["batches"]
                | PrivateReleases(
                    secret=Secret.for_tests(1),
                    **terms(gate=NEARLY_EXACT, columns={"time_unit": None}, window={"grace": "10m"}),
                )
                | sealed.collect()
            )
        return sorted(sealed.items, key=lambda item: item.window)


def searches(count: int, at: int, name: str = "u") -> list[Any]:
    return [TimestampedValue(message(i, {"at": rfc3339(at)}, user=f"{name}{i}", term="tide"), at) for i in range(count)]


def test_a_window_takes_what_comes_within_its_grace_and_nothing_after() -> None:
    first, second = stream(
        [
            T0,
            searches(100, T0 + 10),
            T0 + HOUR + 300,  # the first window is over, and its grace is not
            [*searches(20, T0 + HOUR - 1, "straggler"), *searches(50, T0 + HOUR + 400)],
            T0 + HOUR + 700,
            [*searches(30, T0 + HOUR - 1, "too late"), *searches(7, T0 + HOUR + 800, "more")],
        ]
    )
    assert values(first) == {"tide": 120}
    assert values(second) == {"tide": 57}


def test_what_is_delivered_again_counts_once() -> None:
    first, _ = stream([T0, searches(100, T0 + 10), searches(100, T0 + 10)])
    assert values(first) == {"tide": 100}


# The runner.


@pytest.mark.parametrize("runner", ["direct", "prism", "flink"])
def test_a_runner_that_cannot_read_a_subscription_is_refused(runner: str, tmp_path: Path) -> None:
    spec = parse_spec(
        f"""
        stream: searches
        source: {{pubsub: {{subscription: {SUBSCRIPTION}}}}}
        columns: {{unit: user, key: term, time: at}}
        window: {{size: 1h, start: 2026-01-01T00:00:00Z}}
        bound: {{keys: 3}}
        gate: {{epsilon: 1.0, delta: 1e-9}}
        sink: {{files: {tmp_path}/releases/}}
        state: {tmp_path}/state
        """
    )
    assert spec.source.endless
    with pytest.raises(SpecError, match=f"--runner must be dataflow for a subscription of Pub/Sub.* not {runner}"):
        run(spec, runner=runner)


# A server.


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Google's test server, built once and kept in the cache."""
    program = built_by(ROOT / "deploy" / "pubsub" / "get")
    started = subprocess.Popen([program], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    try:
        with pytest.MonkeyPatch.context() as patch:
            address = started.stdout.readline().strip()
            patch.setenv("PUBSUB_EMULATOR_HOST", address)
            yield address
    finally:
        started.terminate()
        started.communicate(timeout=10)


@pytest.mark.slow
def test_every_message_of_a_subscription_is_a_row_or_a_dead_letter(server: str) -> None:
    from google.cloud import pubsub_v1

    count, times = 300, {f"u{i}": rfc3339(time.time() - i) for i in range(300)}
    topic = "projects/the-tides/topics/events"
    with pubsub_v1.SubscriberClient() as subscriber, Collected[pa.RecordBatch]() as batches, Collected[Any]() as dead:
        publisher = pubsub_v1.PublisherClient()
        publisher.create_topic(name=topic)
        subscriber.create_subscription(name=SUBSCRIPTION, topic=topic)
        sent = [
            publisher.publish(topic, json.dumps({"user": user, "term": "t", "other": 1}).encode(), at=at)
            for user, at in times.items()
        ]
        sent.append(publisher.publish(topic, b"no json", at=rfc3339(T0)))
        for future in sent:
            future.result(timeout=30)
        publisher.stop()
        options = PipelineOptions(["--streaming"])
        pipeline = beam.Pipeline(runner=BundleBasedDirectRunner(), options=options)
        found = pipeline | ReadPubSub(SUBSCRIPTION, ["user", "term", "at"], time_attribute="at")
        _ = found["batches"] | "keep batches" >> batches.collect()
        _ = found[DEAD] | "keep dead" >> dead.collect()
        running = pipeline.run()
        deadline = time.monotonic() + 90
        while sum(map(len, batches.items)) + len(dead.items) < count + 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)  # for one too many
        running.cancel()
        rows = [row for batch in batches.items for row in batch.to_pylist()]
        assert {row["user"]: row["at"] for row in rows} == times
        assert len(rows) == count
        assert len(batches.items) < count, "messages are packed, not passed on one by one"
        assert [(letter.reason, letter.source, letter.raw) for letter in dead.items] == [
            ("malformed", SUBSCRIPTION, "no json")
        ]
