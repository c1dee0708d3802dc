"""ReadKafka: the messages of a topic as record batches, thousands to an element, with a watermark that follows the events.

How far a partition has been read is kept by the engine, in the restriction of a splittable DoFn, and nowhere else: what a
checkpoint holds and what was read before it go together, and nothing is committed to Kafka.

Every partition is a branch of its own that is never split: an engine may lose the watermark of a part that it splits off.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.io.iobase import WatermarkEstimator
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.metrics import Metrics
from apache_beam.transforms.core import RestrictionProvider, WatermarkEstimatorProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Duration, Timestamp
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidegate.pipelines.formats.messages import make_parser
from tidegate.pipelines.kafka.settings import SECONDS_TO_ANSWER, KafkaSource, client_options, reaching
from tidegate.transforms.coders import register, typed
from tidegate.transforms.columns import ROW, read_time
from tidegate.transforms.decode import DEAD, FIRST_ROW, SOURCE, DeadLetter
from tidegate.transforms.problems import SafeError, withheld

MESSAGES_A_POLL = 20_000
SECONDS_A_POLL = 0.2
SECONDS_A_CALL = 0.5  # then the engine has its turn: to checkpoint, and to learn of the watermark
SECONDS_OF_PATIENCE = 120.0
FOREVER = 2**63 - 1
Micros = npt.NDArray[np.int64]


class Part(NamedTuple):
    """A partition, and which of its offsets to read."""

    partition: int
    start: int
    stop: int


class ReadKafka(beam.PTransform[Any, Any]):
    """A topic → {"batches": record batches of the named columns, "dead": DeadLetter}.

    Args:
      settings: Required. The topic.
      columns: Required. The fields of a message that are wanted.
      time_column: Required. The one that says when an event was; the watermark follows it.
      time_unit: Required if times are numbers: s, ms, us or ns.

    Partitions are listed when the pipeline is made: those added later are read by the next run.
    """

    def __init__(
        self, settings: KafkaSource, columns: Sequence[str], time_column: str, time_unit: str | None = None
    ) -> None:
        super().__init__()
        self._settings = settings
        self._columns = list(dict.fromkeys((*columns, time_column)))
        self._time = EventTime(time_column, time_unit)
        # Refuses a schema that cannot be used before anything runs.
        make_parser(settings.format, settings.schema_file, self._columns, settings.schema_id)
        register()

    def expand(self, pipeline: Any) -> Any:
        kind = ReadUntilLatestFn if self._settings.until_latest else ReadForeverFn
        parts = []
        for part in list_parts(self._settings):
            read = (
                pipeline
                | f"Partition {part.partition}" >> beam.Create([part])
                | f"Read {part.partition}"
                >> beam.ParDo(kind(self._settings, self._columns, self._time))
                .with_output_types(pa.RecordBatch)
                .with_outputs(DEAD, main="batches")
            )
            parts.append(typed(read, **{DEAD: DeadLetter}))
        return {
            name: [part[name] for part in parts] | f"All {name}" >> beam.Flatten(pipeline=pipeline.pipeline)
            for name in ("batches", DEAD)
        }


def list_parts(settings: KafkaSource) -> list[Part]:
    """The partitions of the topic and what is in them now."""
    consumer = _consumer(settings)
    try:
        with reaching(settings.servers, settings.topic):
            found = consumer.list_topics(settings.topic, timeout=SECONDS_TO_ANSWER).topics[settings.topic]
            if found.error is not None:
                raise KafkaException(found.error)
            parts = []
            for number in sorted(found.partitions):
                place = TopicPartition(settings.topic, number)
                low, high = consumer.get_watermark_offsets(place, timeout=SECONDS_TO_ANSWER)
                parts.append(Part(number, low, high if settings.until_latest else FOREVER))
            return parts
    finally:
        consumer.close()


def _consumer(settings: KafkaSource) -> Consumer:
    options = {
        **client_options(settings.servers, settings.security_file),
        "group.id": settings.group or f"tidegate-{settings.topic}",  # asked for, though no group is ever joined
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",  # rather than pass over what was deleted before it was read
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 100,
        "queued.max.messages.kbytes": 32 << 10,
    }
    with reaching(settings.servers, settings.topic):
        return Consumer(options)


# The watermark.


class Tide(WatermarkEstimator):
    """How far the events of a partition have come: the newest so far, less what they may be out of order.

    It is an estimate, and three things keep a single record from spoiling it. A time in the future counts as now. A row whose
    time cannot be read has no say. And silence counts only if the partition was seen to hold nothing more: a server that is
    down is no reason to close windows on what it has yet to deliver.
    """

    def __init__(self, state: tuple[int, int], out_of_order: float, idle_after: float) -> None:
        self._watermark, self._arrived = state
        self._slack, self._patience = int(out_of_order * 1e6), int(idle_after * 1e6)

    def observe_timestamp(self, timestamp: Timestamp) -> None:
        """Where a batch stands is where its earliest row stands; that tells nothing of the next one."""

    def current_watermark(self) -> Timestamp:
        return Timestamp(micros=self._watermark)

    def get_estimator_state(self) -> tuple[int, int]:
        return self._watermark, self._arrived

    def saw(self, newest: int, now: int) -> None:
        """Events arrived, the newest of them at that time."""
        self._arrived = now
        self._watermark = max(self._watermark, min(newest, now) - self._slack)

    def is_idle(self, now: int) -> bool:
        return now - self._arrived >= self._patience

    def quiet(self, now: int) -> None:
        """Nothing has come for long, and there is nothing more."""
        self._watermark = max(self._watermark, now - self._slack)


class PartitionTracker(OffsetRestrictionTracker):
    """Offsets of one partition, in order, by one reader: it may be told to stop and go on later, never to share."""

    def try_split(self, fraction_of_remainder: float) -> Any:
        return super().try_split(0) if fraction_of_remainder == 0 else None

    def is_bounded(self) -> bool:
        return bool(self.current_restriction().stop != FOREVER)


def now_in_micros() -> int:
    return time.time_ns() // 1000


# Reading.

_TRACKER, _TIDE = beam.DoFn.RestrictionParam(), beam.DoFn.WatermarkEstimatorParam()


class _ReadPartFn(beam.DoFn, RestrictionProvider, WatermarkEstimatorProvider):
    """Reads a partition."""

    def __init__(self, settings: KafkaSource, columns: list[str], event_time: EventTime) -> None:
        self._settings, self._columns, self._time = settings, columns, event_time

    def initial_restriction(self, element: Part) -> OffsetRange:
        return OffsetRange(element.start, element.stop)

    def create_tracker(self, restriction: OffsetRange) -> PartitionTracker:
        return PartitionTracker(restriction)

    def restriction_size(self, _: Part, restriction: OffsetRange) -> int:
        return int(restriction.size()) if restriction.stop != FOREVER else 1 << 20

    def truncate(self, _: Part, restriction: OffsetRange) -> Any:
        """A pipeline that is drained finishes what has an end."""
        return restriction if restriction.stop != FOREVER else None

    def initial_estimator_state(self, _: Part, __: OffsetRange) -> tuple[int, int]:
        return MIN_TIMESTAMP.micros, now_in_micros()

    def create_watermark_estimator(self, estimator_state: tuple[int, int]) -> Tide:
        return Tide(estimator_state, self._settings.out_of_order, self._settings.idle_after)

    @withheld("reading")
    def setup(self) -> None:
        settings = self._settings
        self._parse = make_parser(settings.format, settings.schema_file, self._columns, settings.schema_id)
        self._open: dict[int, Partition] = {}

    def teardown(self) -> None:
        for partition in getattr(self, "_open", {}).values():
            partition.close()

    def _partition(self, number: int, offset: int) -> Partition:
        if number not in self._open:
            self._open[number] = Partition(self._settings, number)
        self._open[number].go_to(offset)
        return self._open[number]

    def _outputs(self, messages: list[Message], source: str, tide: Any, timeless: bool) -> Iterator[Any]:
        """What a poll brought, and the watermark after it."""
        values, bad = self._parse([message.value() for message in messages])
        offsets = np.array([message.offset() for message in messages], np.int64)
        now = now_in_micros()
        stamps = np.array([_stamp(message, now) for message in messages], np.int64)
        for place, raw in bad:
            Metrics.counter("tidegate", "dead_malformed").inc()
            letter = DeadLetter("malformed", source, int(offsets[place]), raw)
            yield beam.pvalue.TaggedOutput(DEAD, TimestampedValue(letter, Timestamp(micros=int(stamps[place]))))
        newest: list[int] = []
        passed = tide.current_watermark().micros
        for batch, places in values:
            times, readable = self._time.of(batch, stamps[places])
            newest += [int(times[readable].max())] if readable.any() else []
            whole = batch.append_column(ROW, pa.array(offsets[places]))
            # Apart, as a row that is late already cannot hold the watermark for the others.
            for rows in (np.flatnonzero(times < passed), np.flatnonzero(times >= passed)):
                if len(rows):
                    some = whole if len(rows) == len(whole) else whole.take(pa.array(rows))
                    earliest = Timestamp(micros=int(times[rows].min()))
                    yield TimestampedValue(_located(some, source, int(offsets[places[rows[0]]])), earliest)
        if newest and not timeless:
            tide.saw(max(newest), now)


class ReadUntilLatestFn(_ReadPartFn):
    """Reads a partition to where it ended when the run began; nothing can be late, so the watermark waits for the end."""

    @withheld("reading")
    def process(
        self,
        part: Part,
        tracker: Any = _TRACKER,
        tide: Any = _TIDE,
    ) -> Iterator[Any]:
        wanted = tracker.current_restriction()
        if wanted.start >= wanted.stop:
            return
        partition = self._partition(part.partition, wanted.start)
        waited = time.monotonic()
        while partition.next < wanted.stop:
            messages = [message for message in partition.poll() if message.offset() < wanted.stop]
            if messages:
                waited = time.monotonic()
                if not tracker.try_claim(messages[-1].offset()):
                    return
                yield from self._outputs(messages, partition.name, tide, timeless=True)
            elif time.monotonic() - waited > SECONDS_OF_PATIENCE and partition.next < wanted.stop:
                raise SafeError(
                    f"{partition.name} was to be read up to offset {wanted.stop} and nothing came for "
                    f"{SECONDS_OF_PATIENCE:.0f} seconds; see to the servers, then run again"
                )
        tracker.try_claim(wanted.stop)  # the last offsets may be marks of Kafka's own, which nobody gets to see


class ReadForeverFn(_ReadPartFn):
    """Reads a partition as it grows."""

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    @withheld("reading")
    def process(
        self,
        part: Part,
        tracker: Any = _TRACKER,
        tide: Any = _TIDE,
    ) -> Iterator[Any]:
        partition = self._partition(part.partition, tracker.current_restriction().start)
        begun = time.monotonic()
        while True:
            messages = partition.poll()
            if messages:
                if not tracker.try_claim(messages[-1].offset()):
                    return
                yield from self._outputs(messages, partition.name, tide, timeless=False)
            now = now_in_micros()
            if not messages and tide.is_idle(now) and partition.is_read_to_its_end():
                tide.quiet(now)
            if not messages or time.monotonic() - begun > SECONDS_A_CALL:
                tracker.defer_remainder(Duration(seconds=0 if messages else SECONDS_A_POLL))
                return


class Partition:
    """A partition as read by one consumer, in order."""

    def __init__(self, settings: KafkaSource, number: int) -> None:
        self._settings, self._number = settings, number
        self._consumer = _consumer(settings)
        self._ended = False
        self.name = f"{settings.topic}/{number}"
        self.next = -1

    def go_to(self, offset: int) -> None:
        """Where the engine wants to go on; mostly where this is anyway."""
        if offset != self.next:
            self.next, self._ended = offset, False
            with reaching(self._settings.servers, self._settings.topic):
                self._consumer.assign([TopicPartition(self._settings.topic, self._number, offset)])

    def poll(self) -> list[Message]:
        with reaching(self._settings.servers, self._settings.topic):
            found = self._consumer.consume(MESSAGES_A_POLL, timeout=SECONDS_A_POLL)
        messages = []
        for message in found:
            error = message.error()
            if error is None:
                messages.append(message)
                self.next, self._ended = (message.offset() or 0) + 1, False
            elif error.code() == KafkaError._PARTITION_EOF:
                self.next, self._ended = max(self.next, message.offset() or 0), True
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise SafeError(
                    f"{self.name} no longer holds offset {self.next}, so records were deleted before they were read; "
                    f"begin anew with what there is, and let the topic keep its records for longer (retention.ms)"
                )
            elif not error.retriable():
                raise SafeError(f"{self.name} cannot be read ({error.name()}); check the topic and rights to it")
        return messages

    def is_read_to_its_end(self) -> bool:
        """Whether the server, asked now, has nothing beyond what was read."""
        if not self._ended:
            return False
        try:
            place = TopicPartition(self._settings.topic, self._number)
            _, high = self._consumer.get_watermark_offsets(place, timeout=SECONDS_A_CALL)
        except KafkaException:
            return False
        return bool(high <= self.next)

    def close(self) -> None:
        self._consumer.close()


def _stamp(message: Message, now: int) -> int:
    """When the message was written, as far as anybody knows."""
    stamp = message.timestamp()[1] * 1000
    return stamp if 0 <= stamp <= now else now


def _located(batch: pa.RecordBatch, source: str, first: int) -> pa.RecordBatch:
    return batch.replace_schema_metadata({SOURCE: source.encode(), FIRST_ROW: str(first).encode()})


@dataclass(frozen=True)
class EventTime:
    """When events were."""

    column: str
    unit: str | None

    def of(self, batch: pa.RecordBatch, stamps: Micros) -> tuple[Micros, npt.NDArray[np.bool_]]:
        """The rows' times, where they can be read; elsewhere their messages' times, to have a place in the stream."""
        if self.column not in batch.schema.names:
            return stamps, np.zeros(len(batch), np.bool_)
        times, fault = read_time(batch.column(self.column), self.unit)
        return np.where(fault == 0, times, stamps), fault == 0
