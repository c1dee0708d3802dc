"""Kafka, against a real broker: every message is a row or a dead letter, every window published is whole and there once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import apache_beam as beam
import fastavro
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.io.restriction_trackers import OffsetRange
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.sdf_utils import (
    RestrictionTrackerView,
    ThreadsafeRestrictionTracker,
    ThreadsafeWatermarkEstimator,
)
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from confluent_kafka import Producer

from tests.collecting import Collected
from tests.engines.broker import Broker, running_broker
from tests.pipelines.test_publish import release
from tests.transforms.running import T0, terms
from tidegate.pipelines.formats.messages import AvroValues, JsonValues
from tidegate.pipelines.kafka.reader import CommittedLog, read_topic
from tidegate.pipelines.kafka.settings import KafkaSource, client_options
from tidegate.pipelines.kafka.sink import TopicOfReleases, WriteKafka
from tidegate.pipelines.kafka.source import (
    FOREVER,
    EventTime,
    PartitionTracker,
    ReadForeverFn,
    ReadKafka,
    Tide,
    list_parts,
)
from tidegate.pipelines.publish import PublishError, to_jsonl
from tidegate.pipelines.reader import ReadError
from tidegate.pipelines.sources import ReadFiles
from tidegate.transforms import PrivateReleases, Release, Secret
from tidegate.transforms.columns import ROW
from tidegate.transforms.decode import DEAD, FIRST_ROW, SOURCE, DeadLetter
from tidegate.transforms.problems import SafeError, SpecError

SECOND = 1_000_000
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Search",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "term", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as running:
        yield running


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def read(
    settings: KafkaSource, columns: list[str], unit: str | None = "s"
) -> tuple[list[pa.RecordBatch], list[DeadLetter]]:
    with Collected[pa.RecordBatch]() as batches, Collected[DeadLetter]() as dead:
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            found = pipeline | ReadKafka(settings, columns, "at", unit)
            _ = found["batches"] | "keep batches" >> batches.collect()
            _ = found[DEAD] | "keep dead" >> dead.collect()
        return batches.items, dead.items


def places(batches: list[pa.RecordBatch]) -> list[tuple[str, int]]:
    """Partition and offset of every row."""
    return [
        (batch.schema.metadata[SOURCE].decode(), offset)
        for batch in batches
        for offset in batch.column(ROW).to_pylist()
    ]


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


# Parsing, without a broker.


def test_json_a_bad_message_costs_itself() -> None:
    values: list[bytes | None] = [line(user=f"u{i}", at=i) for i in range(1000)]
    bad = {
        3: b"{",
        4: None,
        5: b"",
        6: b" \n",
        7: b"[1]",
        8: b'{"user": "a\nb"}',
        9: b"{}{}",
        10: b"}\n{",
        999: b"\xff",
    }
    for place, value in bad.items():
        values[place] = value
    values[20] = json.dumps({"user": "spread", "at": 20}, indent=2).encode()
    batches, dead = JsonValues(["user", "at"])(values)
    assert [place for place, _ in dead] == sorted(bad)
    assert sorted(place for _, rows in batches for place in rows) == sorted(set(range(1000)) - bad.keys())
    assert len(batches) == 1
    for batch, rows in batches:
        for user, at, place in zip(*(column.to_pylist() for column in batch.columns), rows, strict=True):
            assert (user, at) == ("spread" if place == 20 else f"u{place}", place)


def test_json_types_may_differ_from_message_to_message() -> None:
    users = ["a", 1, 2.5, True, None, ["list"], {"an": "object"}, 2**70, "ü", ""]
    batches, dead = JsonValues(["user", "at"])([line(user=user, at="2026-01-01T00:00:00Z", other=1) for user in users])
    assert not dead
    assert sorted(place for _, rows in batches for place in rows) == list(range(len(users)))
    assert all(batch.schema.names == ["user", "at"] for batch, _ in batches)


def avro_message(record: dict[str, Any], single_object: bool = False) -> bytes:
    sink = BytesIO()
    if single_object:
        digits = fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(SCHEMA), "CRC-64-AVRO")
        sink.write(b"\xc3\x01" + bytes.fromhex(digits))
    fastavro.schemaless_writer(sink, SCHEMA, record)
    return sink.getvalue()


def test_avro_a_bad_message_costs_itself(tmp_path: Path) -> None:
    (tmp_path / "search.avsc").write_text(json.dumps(SCHEMA))
    values: list[bytes | None] = [
        avro_message({"user": f"u{i}", "term": None if i % 2 else "t", "at": 1000 * i}, i % 3 == 0) for i in range(500)
    ]
    bad = {0: b"\x04a", 1: None, 2: b"", 3: b"\x02", 100: (values[100] or b"") + b"x", 101: b"\xff" * 30, 499: b"\x00"}
    for place, value in bad.items():
        values[place] = value
    batches, dead = AvroValues(tmp_path / "search.avsc", ["user", "at"])(values)
    assert [place for place, _ in dead] == sorted(bad)
    assert sorted(place for _, rows in batches for place in rows) == sorted(set(range(500)) - bad.keys())
    for batch, rows in batches:
        assert batch.column("user").to_pylist() == [f"u{place}" for place in rows]
        assert batch.column("at").cast(pa.int64()).to_pylist() == [1000 * place for place in rows]


def test_avro_with_a_registry_takes_messages_of_the_named_schema_only(tmp_path: Path) -> None:
    (tmp_path / "search.avsc").write_text(json.dumps(SCHEMA))
    bare = [avro_message({"user": f"u{i}", "term": "t", "at": i}) for i in range(6)]
    headers = [b"\0\0\0\0\x2a", b"\0\0\0\0\x2b", b"\x01\0\0\0\x2a", b"", b"\0\0\0\0\x2a", b"\0\0\0"]
    values = [header + value for header, value in zip(headers, bare, strict=True)]
    batches, dead = AvroValues(tmp_path / "search.avsc", ["user"], 42)(values)
    assert [place for place, _ in dead] == [1, 2, 3, 5]
    assert [user for batch, _ in batches for user in batch.column("user").to_pylist()] == ["u0", "u4"]


def test_avro_needs_a_schema_that_can_be_used(tmp_path: Path) -> None:
    for content, complaint in ((None, "cannot be read"), ("{", "no Avro schema"), ('"string"', "no Avro schema")):
        path = tmp_path / "schema.avsc"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(content)
        with pytest.raises(SpecError, match=complaint):
            AvroValues(path, ["user"])


def test_event_times_come_from_the_column_or_else_from_the_message() -> None:
    stamps = np.array([7, 8, 9], np.int64) * SECOND
    numbers = pa.RecordBatch.from_pydict({"at": pa.array([1, None, 3])})
    times, readable = EventTime("at", "s").of(numbers, stamps)
    assert (times // SECOND).tolist() == [1, 8, 3]
    assert readable.tolist() == [True, False, True]
    texts = pa.RecordBatch.from_pydict(
        {"at": pa.array(["1970-01-01T00:00:01Z", "yesterday", "1970-01-01T00:00:03+00:00"])}
    )
    assert EventTime("at", None).of(texts, stamps)[0].tolist() == times.tolist()
    without = pa.RecordBatch.from_pydict({"else": pa.array([1, 2, 3])})
    assert EventTime("at", "s").of(without, stamps)[0].tolist() == stamps.tolist()


# The watermark, without a broker.


def tide(out_of_order: float = 10, idle_after: float = 30, arrived: int = 0) -> Tide:
    return Tide((MIN_TIMESTAMP.micros, arrived), out_of_order, idle_after)


def test_the_watermark_trails_the_newest_event() -> None:
    water = tide()
    assert water.current_watermark() == MIN_TIMESTAMP
    water.saw(100 * SECOND, now=1000 * SECOND)
    assert water.current_watermark().micros == 90 * SECOND
    water.saw(50 * SECOND, now=1001 * SECOND)
    assert water.current_watermark().micros == 90 * SECOND, "an older event moves nothing back"
    water.saw(100_000 * SECOND, now=1002 * SECOND)
    assert water.current_watermark().micros == 992 * SECOND, "a time in the future counts as now"


def test_an_idle_partition_follows_the_clock() -> None:
    water = tide(arrived=1000 * SECOND)
    assert not water.is_idle(1029 * SECOND)
    assert water.is_idle(1030 * SECOND)
    water.quiet(1030 * SECOND)
    assert water.current_watermark().micros == 1020 * SECOND
    water.saw(500 * SECOND, now=1031 * SECOND)
    assert water.current_watermark().micros == 1020 * SECOND
    assert not water.is_idle(1060 * SECOND)
    again = Tide(water.get_estimator_state(), 10, 30)
    assert again.current_watermark() == water.current_watermark()
    assert again.is_idle(1061 * SECOND)


def test_a_partition_is_told_to_stop_but_never_to_share() -> None:
    tracker = PartitionTracker(OffsetRange(0, FOREVER))
    assert not tracker.is_bounded()
    assert tracker.try_claim(9)
    assert tracker.try_split(0.5) is None
    done, left = tracker.try_split(0)
    assert (done, left) == (OffsetRange(0, 10), OffsetRange(10, FOREVER))
    assert not tracker.try_claim(10)
    tracker.check_done()


# Settings.


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [
        ("sasl.password=hunter2\n", 0o640, "owner only.*chmod 600"),
        ("sasl.password hunter2\n", 0o600, "line 1 has no ="),
        ("\ngroup.id=hunter2\n", 0o600, "line 2 is none"),
        ("plugin.library.paths=hunter2\n", 0o600, "line 1 is none"),
        (None, 0, "cannot be read"),
    ],
)
def test_a_security_file_is_private_and_about_connecting(
    tmp_path: Path, content: str | None, mode: int, complaint: str
) -> None:
    path = tmp_path / "security"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(SpecError, match=complaint) as refused:
        client_options("nowhere:1", str(path))
    assert "hunter2" not in str(refused.value)


def test_a_security_file_is_read_where_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "security"
    path.write_text("# how to get in\nsecurity.protocol=SASL_SSL\nsasl.password = a=b \n")
    path.chmod(0o600)
    options = client_options("nowhere:1", str(path))
    assert (options["security.protocol"], options["sasl.password"]) == ("SASL_SSL", "a=b")
    assert "a=b" not in repr(KafkaSource("nowhere:1", "t", security_file=str(path)))


def test_an_error_of_the_client_does_not_quote_an_option(tmp_path: Path) -> None:
    path = tmp_path / "security"
    path.write_text("security.protocol=hunter2\n")
    path.chmod(0o600)
    with pytest.raises(SafeError) as refused:
        list_parts(KafkaSource("nowhere:1", "t", security_file=str(path)))
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"servers": ""}, "servers must be text"),
        ({"topic": " "}, "topic must be text"),
        ({"format": "xml"}, "format must be json or avro"),
        ({"format": "avro"}, "schema_file is"),
        ({"schema_file": "x"}, "schema_file is"),
        ({"out_of_order": -1}, "out_of_order must be seconds"),
        ({"idle_after": float("nan")}, "idle_after must be seconds"),
    ],
)
def test_settings_are_refused_in_a_sentence(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        KafkaSource(**{"servers": "a:1", "topic": "t", **changes})


# The source.


def test_every_message_is_a_row_or_a_dead_letter(broker: Broker) -> None:
    topic = broker.topic(3)
    for partition in range(3):
        values: list[bytes | None] = [line(user=f"u{i}", at=T0 + i, other=i) for i in range(5000 * (partition + 1))]
        values[17], values[-1] = b"no json", None
        broker.write(topic, values, partition)
    batches, dead = read(KafkaSource(broker.servers, topic, until_latest=True), ["user"])
    expected = {(f"{topic}/{partition}", i) for partition in range(3) for i in range(5000 * (partition + 1))}
    letters = [(letter.source, letter.row) for letter in dead]
    assert {letter.reason for letter in dead} == {"malformed"}
    assert sorted(letters) == sorted((f"{topic}/{p}", i) for p in range(3) for i in (17, 5000 * (p + 1) - 1))
    assert Counter([*places(batches), *letters]) == Counter(expected)
    assert all(set(batch.schema.names) == {"user", "at", ROW} for batch in batches)
    assert all(int(batch.schema.metadata[FIRST_ROW]) == batch.column(ROW)[0].as_py() for batch in batches)
    assert all(row["at"] == T0 + row[ROW] and row["user"] == f"u{row[ROW]}" for row in rows_of(batches))


def test_reading_ends_where_the_topic_ended(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.write(topic, [line(user="a", at=T0)] * 10)
    transform = ReadKafka(KafkaSource(broker.servers, topic, until_latest=True), ["user"], "at", "s")
    with Collected[pa.RecordBatch]() as batches:
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            _ = (pipeline | transform)["batches"] | batches.collect()
            broker.write(topic, [line(user="late", at=T0)] * 10)
        assert sum(map(len, batches.items)) == 10


def test_avro_messages_are_read(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "search.avsc").write_text(json.dumps(SCHEMA))
    topic = broker.topic()
    records = [{"user": f"u{i}", "term": "t", "at": 1000 * (T0 + i)} for i in range(300)]
    broker.write(topic, [*(avro_message(record, i % 2 == 0) for i, record in enumerate(records)), b"\x01"])
    settings = KafkaSource(
        broker.servers, topic, format="avro", schema_file=str(tmp_path / "search.avsc"), until_latest=True
    )
    batches, dead = read(settings, ["user", "term"], None)
    assert [letter.row for letter in dead] == [300]
    assert {row["user"] for row in rows_of(batches)} == {record["user"] for record in records}
    assert batches[0].column("at").type == pa.timestamp("ms", "UTC")


def test_messages_of_transactions_end_a_topic_too(broker: Broker) -> None:
    topic = broker.topic()
    publishing = TopicOfReleases(broker.servers, topic)
    publishing.publish(release({"a": 1}))
    publishing.close()
    batches, dead = read(KafkaSource(broker.servers, topic, until_latest=True), ["stream"])
    assert sum(map(len, batches)) == 2
    assert not dead


def test_a_topic_that_is_not_there_is_named(broker: Broker) -> None:
    with pytest.raises(SafeError, match=r"topic nosuch on .* cannot be reached \(UNKNOWN_TOPIC_OR_PART\)"):
        list_parts(KafkaSource(broker.servers, "nosuch"))


class Live:
    """A partition read as an engine would: call by call, each going on where the last one stopped."""

    def __init__(self, settings: KafkaSource) -> None:
        self.fn = ReadForeverFn(settings, ["user", "at"], EventTime("at", "s"))
        self.fn.setup()
        (self.part,) = list_parts(settings)
        self.restriction = self.fn.initial_restriction(self.part)
        self.state = self.fn.initial_estimator_state(self.part, self.restriction)

    def call(self) -> list[Any]:
        tracker = ThreadsafeRestrictionTracker(self.fn.create_tracker(self.restriction))
        water = ThreadsafeWatermarkEstimator(self.fn.create_watermark_estimator(self.state))
        out = list(self.fn.process(self.part, RestrictionTrackerView(tracker), water))
        tracker.check_done()
        deferred: Any = tracker.deferred_status()
        self.restriction, self.state = deferred[0], water.get_estimator_state()
        return out

    def until(self, done: Callable[[list[Any]], bool]) -> list[Any]:
        out: list[Any] = []
        deadline = time.monotonic() + 60
        while not done(out):
            assert time.monotonic() < deadline
            out += self.call()
        return out

    @property
    def watermark(self) -> int:
        return int(self.state[0])


def test_a_live_partition_goes_on_and_its_watermark_follows(broker: Broker) -> None:
    topic = broker.topic()
    live = Live(KafkaSource(broker.servers, topic, out_of_order=5, idle_after=3600))
    live.call()
    assert live.watermark == MIN_TIMESTAMP.micros
    values = [line(user="a", at=T0 + 100), line(user="b", at=T0 + 90), line(user="c", at="never")]
    broker.write(topic, values, stamps=[1000 * (T0 + 5000)] * 3)
    out = live.until(lambda out: sum(len(item.value) for item in out) == 3)
    found = {tuple(item.value.column("user").to_pylist()): item.timestamp.micros // SECOND for item in out}
    assert found == {("a", "b"): T0 + 90, ("c",): T0 + 5000}, "where the earliest row stands, or else the message"
    assert live.watermark == (T0 + 95) * SECOND
    assert live.restriction == OffsetRange(3, FOREVER)
    live.fn.teardown()
    live.fn.setup()  # as after a crash: another consumer goes on at the same place
    broker.write(topic, [line(user="d", at=T0 + 10), line(user="e", at=T0 + 200)])
    out = live.until(lambda out: sum(len(item.value) for item in out) == 2)
    assert [item.value.column("user").to_pylist() for item in out] == [["d"], ["e"]], "a late row travels by itself"
    assert [item.timestamp.micros // SECOND for item in out] == [T0 + 10, T0 + 200]
    assert live.watermark == (T0 + 195) * SECOND
    live.fn.teardown()


@pytest.mark.slow
def test_a_silent_partition_lets_windows_close_but_a_dead_broker_does_not(broker: Broker) -> None:
    topic = broker.topic()
    live = Live(KafkaSource(broker.servers, topic, out_of_order=5, idle_after=1))
    live.until(lambda _: live.watermark > MIN_TIMESTAMP.micros)
    assert abs(live.watermark / SECOND - (time.time() - 5)) < 5
    broker.kill()
    try:
        before = live.watermark
        time.sleep(1.5)
        for _ in range(3):
            live.call()
        assert live.watermark == before
    finally:
        broker.start()
    broker.write(topic, [line(user="a", at=T0)])
    assert len(live.until(lambda out: bool(out))) == 1
    live.fn.teardown()


# The sink.


def rows_written(broker: Broker, topic: str) -> list[list[str]]:
    return [table["key"].to_pylist() for _, table in read_topic(broker.servers, topic)]


def end_of(broker: Broker, topic: str) -> list[int]:
    log = CommittedLog(broker.servers, topic, None)
    list(log.read_to_end(open_too=True))  # Kafka answers a commit before it has put its mark behind it
    log.close()
    return [part.stop for part in list_parts(KafkaSource(broker.servers, topic, until_latest=True))]


def test_a_window_is_published_once(broker: Broker) -> None:
    topic = broker.topic(3)
    publishing = TopicOfReleases(broker.servers, topic)
    releases = [release({"a": 1, "b": 2.5}), release({}, 1), release({"c": 3}, 2)]
    assert [publishing.publish(each) for each in releases] == [True, True, True]
    end = end_of(broker, topic)
    assert [publishing.publish(each) for each in releases] == [False, False, False]
    another = TopicOfReleases(broker.servers, topic)  # another process, which has to look
    assert [another.publish(each) for each in releases] == [False, False, False]
    assert end_of(broker, topic) == end, "nothing was added, not even a mark"
    found = read_topic(broker.servers, topic)
    assert [to_jsonl(table) for _, table in found] == [to_jsonl(each.rows) for each in releases]
    assert [manifest["window"] for manifest, _ in found] == [each.manifest["window"] for each in releases]


def test_another_release_of_a_window_is_refused(broker: Broker) -> None:
    topic = broker.topic()
    TopicOfReleases(broker.servers, topic).publish(release({"a": 1}))
    end = end_of(broker, topic)
    with pytest.raises(PublishError, match=f"in topic {topic} is published already, and the events or the secret"):
        TopicOfReleases(broker.servers, topic).publish(release({"a": 2}))
    with pytest.raises(PublishError, match="other terms"):
        TopicOfReleases(broker.servers, topic).publish(release({"a": 1}, bound={"keys": 4}))
    with pytest.raises(PublishError, match="belongs to the stream 'searches'"):
        TopicOfReleases(broker.servers, topic).publish(release({"a": 1}, stream="other"))
    assert end_of(broker, topic) == end


KILLED = """
import os, sys
from confluent_kafka import Producer
from tests.pipelines.test_publish import release
from tidegate.pipelines.kafka import sink

class Stopping:
    def __init__(self, options):
        self._producer = Producer(options)
    def __getattr__(self, name):
        return getattr(self._producer, name)
    def commit_transaction(self, *_):
        assert self._producer.flush(30) == 0
        print("written", flush=True)
        if sys.argv[3] == "exit":
            os._exit(9)
        sys.stdin.read()  # until killed
        self._producer.commit_transaction(30)

sink.Producer = Stopping
sink.TRIES = 1
sink.TopicOfReleases(sys.argv[1], sys.argv[2]).publish(release({"a": 1, "b": 2}, int(sys.argv[4])))
"""


def half_way(broker: Broker, topic: str, how: str, window: int = 0) -> subprocess.Popen[str]:
    """A process that has written a window and not committed it."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, broker.servers, topic, how, str(window)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    return process


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_what_a_killed_process_wrote_is_never_seen_and_the_next_one_publishes_once(broker: Broker, how: str) -> None:
    topic = broker.topic()
    process = half_way(broker, topic, how)
    if how == "kill":
        os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert read_topic(broker.servers, topic) == []
    assert TopicOfReleases(broker.servers, topic).publish(release({"a": 1, "b": 2}))
    assert not TopicOfReleases(broker.servers, topic).publish(release({"a": 1, "b": 2}))
    assert rows_written(broker, topic) == [["a", "b"]]
    assert end_of(broker, topic) > [5], "the rows of the first try are in the log, and hidden"


def test_a_process_that_was_taken_for_dead_cannot_finish(broker: Broker) -> None:
    topic = broker.topic()
    process = half_way(broker, topic, "wait")
    assert TopicOfReleases(broker.servers, topic).publish(release({"a": 1, "b": 2}))
    _, told = process.communicate("")
    assert process.returncode != 0
    assert "PublishError" in told
    assert rows_written(broker, topic) == [["a", "b"]]


def test_what_an_open_transaction_hides_is_waited_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.topic()
    other = Producer({"bootstrap.servers": broker.servers, "transactional.id": f"other-{topic}"})
    other.init_transactions(60)
    other.begin_transaction()
    other.produce(topic, b"{}")
    assert other.flush(30) == 0
    with monkeypatch.context() as patched:  # as if it had looked before the other one began
        patched.setattr(TopicOfReleases, "_is_published", lambda *_, **__: False)
        assert TopicOfReleases(broker.servers, topic).publish(release({"a": 1}))
    assert read_topic(broker.servers, topic) == [], "committed, and hidden behind what is open"
    with ThreadPoolExecutor() as pool:
        again = pool.submit(TopicOfReleases(broker.servers, topic).publish, release({"a": 1}))
        time.sleep(2)
        assert not again.done()
        other.abort_transaction(60)
        assert again.result(60) is False
    assert rows_written(broker, topic) == [["a"]]


def test_two_who_publish_at_once_publish_once(broker: Broker) -> None:
    topic = broker.topic()
    both = [TopicOfReleases(broker.servers, topic) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        new = list(pool.map(lambda each: each.publish(release({"a": 1})), both))
    assert sorted(new) == [False, True]
    assert rows_written(broker, topic) == [["a"]]


@pytest.mark.slow
def test_a_broker_that_is_killed_forgets_nothing(broker: Broker) -> None:
    topic = broker.topic()
    publishing = TopicOfReleases(broker.servers, topic)
    assert publishing.publish(release({"a": 1}))
    half_way(broker, topic, "exit", 1).communicate()
    broker.kill()
    broker.start()
    assert not publishing.publish(release({"a": 1}))
    assert publishing.publish(release({"b": 1}, 1))
    assert not TopicOfReleases(broker.servers, topic).publish(release({"b": 1}, 1))
    assert rows_written(broker, topic) == [["a"], ["b"]]


def test_a_published_window_can_be_handed_on_as_it_was_sealed(broker: Broker) -> None:
    topic = broker.topic()
    sealed = release({"a": 1, "b": 2.5})
    place = TopicOfReleases(broker.servers, topic)
    assert place.newest() is None
    for each in (sealed, release({"c": 3}, 1)):
        place.publish(each)
    manifest, rows = place.published(sealed.folder)
    assert manifest == sealed.manifest
    assert rows.equals(sealed.rows)
    assert (TopicOfReleases(broker.servers, topic).newest() or {})["window"]["start"] == "2026-01-01T01:00:00Z"


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"retention.ms": "1000"}, "retention.ms is 1000"),
        ({"cleanup.policy": "compact"}, "cleanup.policy is compact"),
    ],
)
def test_a_topic_that_forgets_is_refused(broker: Broker, config: dict[str, str], complaint: str) -> None:
    topic = broker.topic(1, config)
    with pytest.raises(SpecError, match=complaint):
        _ = beam.Pipeline() | beam.Create([]) | WriteKafka(broker.servers, topic)


def test_a_window_that_is_not_what_its_manifest_says_is_not_read(broker: Broker) -> None:
    topic = broker.topic()
    sealed = release({"a": 1, "b": 2})
    TopicOfReleases(broker.servers, topic).publish(sealed)
    meddler = Producer({"bootstrap.servers": broker.servers})
    meddler.produce(topic, b"{}", sealed.folder.encode(), headers=[("kind", b"row")])
    assert meddler.flush(30) == 0
    with pytest.raises(ReadError, match="has 3 rows, which is not what its manifest says"):
        read_topic(broker.servers, topic)


# From end to end.


@pytest.mark.slow
def test_events_of_a_topic_give_the_releases_that_files_give(broker: Broker, tmp_path: Path) -> None:
    numbers = np.random.default_rng(1)
    events = [
        line(user=f"u{numbers.integers(300)}", term=f"t{numbers.integers(20)}", at=T0 + int(numbers.integers(7200)))
        for _ in range(6000)
    ]
    events += [b"malformed", line(user="x", at=T0), line(user="y", term="t1", at="soon")]
    source, sink = broker.topic(3), broker.topic(2)
    for partition in range(3):
        broker.write(source, events[partition::3], partition)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(events))
    agreed: dict[str, Any] = {**terms(gate={"epsilon": 2.0, "delta": 1e-3}), "secret": Secret.for_tests(3)}
    with Collected[Release]() as by_file, Collected[str]() as windows:
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            lines = pipeline | "files" >> ReadFiles([str(path)], "jsonl", ["user", "term", "at"])
            _ = lines["batches"] | "of files" >> PrivateReleases(**agreed) | "keep releases" >> by_file.collect()
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            settings = KafkaSource(broker.servers, source, until_latest=True)
            messages = pipeline | ReadKafka(settings, ["user", "term"], "at", "s")
            releases = messages["batches"] | PrivateReleases(**agreed)
            _ = releases | WriteKafka(broker.servers, sink) | windows.collect()
        expected = sorted(by_file.items, key=lambda each: each.window)
        assert sorted(windows.items) == [each.folder for each in expected]
    found = read_topic(broker.servers, sink)
    assert sum(len(table) for _, table in found) > 10
    assert [to_jsonl(table) for _, table in found] == [to_jsonl(each.rows) for each in expected]
    for (manifest, _), each in zip(found, expected, strict=True):
        assert {name: manifest[name] for name in each.manifest} == each.manifest


@pytest.mark.slow
def test_two_hundred_thousand_records(broker: Broker) -> None:
    topic = broker.topic(2)
    for partition in range(2):
        values = [
            line(user=f"u{i % 5000}", term=f"t{i % 300}", at=T0 + i % 7200, page=i, note="x" * 60)
            for i in range(100_000)
        ]
        broker.write(topic, values, partition)
    begun = time.perf_counter()
    batches, dead = read(KafkaSource(broker.servers, topic, until_latest=True), ["user", "term"])
    took = time.perf_counter() - begun
    assert len(places(batches)) == len(set(places(batches))) == 200_000
    assert not dead
    print(f"\nReadKafka: 200,000 records in {took:.1f} s, {200_000 / took:,.0f} records/s, {len(batches)} batches")


# Behind TLS and a password.


@pytest.mark.long
def test_a_topic_behind_tls_and_a_password_is_read_and_written(broker: Broker, tmp_path: Path) -> None:
    password = "pa55 of the test"  # noqa: S105
    certificate = broker.restart_behind_tls(tmp_path, "tidegate", password)
    events, releases = broker.topic(), broker.topic()
    broker.write(events, [b'{"user": "u1", "term": "tide"}'] * 3)
    known = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "tidegate",
        "sasl.password": password,
        "ssl.ca.location": str(certificate),
    }

    def security(name: str, **changes: str) -> str:
        path = tmp_path / name
        path.write_text("".join(f"{key}={value}\n" for key, value in {**known, **changes}.items()))
        path.chmod(0o600)
        return str(path)

    good = security("good.properties")
    batches, _ = read(KafkaSource(broker.closed, events, until_latest=True, security_file=good), ["user", "term"])
    assert sum(map(len, batches)) == 3
    place = TopicOfReleases(broker.closed, releases, good)
    assert place.publish(release({"a": 1}))
    assert not place.publish(release({"a": 1}))
    assert len(read_topic(broker.closed, releases, good)) == 1
    for wrong in (
        security("wrong.properties", **{"sasl.password": "another"}),
        security("plain.properties", **{"security.protocol": "PLAINTEXT"}),
    ):
        with pytest.raises(SafeError) as refused:
            list_parts(KafkaSource(broker.closed, events, until_latest=True, security_file=wrong))
        assert broker.closed in str(refused.value)
        assert "another" not in str(refused.value)
        assert password not in str(refused.value)
