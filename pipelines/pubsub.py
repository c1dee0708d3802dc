"""ReadPubSub: the messages of a subscription as record batches, many to an element.

Beam reads the subscription and keeps the watermark. Here messages are put together and parsed at once, as a message an
element would cost more than all that is done with it.

When an event was is told by an attribute of its message, which the watermark follows too, or by a column of what it holds.
In the second case the watermark follows the time of publishing: a window takes in what is published before its grace is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.io.gcp.pubsub import PubsubMessage, ReadFromPubSub
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from tidegate.pipelines.formats.messages import make_parser
from tidegate.transforms.coders import register, typed
from tidegate.transforms.columns import ROW
from tidegate.transforms.decode import DEAD, SOURCE, DeadLetter
from tidegate.transforms.problems import withheld

MESSAGES_A_BATCH = 20_000
BYTES_A_BATCH = 16 << 20
_TIMESTAMP = beam.DoFn.TimestampParam


class ReadPubSub(beam.PTransform[Any, Any]):
    """A subscription → {"batches": record batches of the named columns, "dead": DeadLetter}, for ever.

    Args:
      subscription: Required. As projects/PROJECT/subscriptions/NAME.
      columns: Required. The fields of a message that are wanted.
      kind: Optional, default json. What a message holds: a JSON object, or an Avro record.
      schema_file: Required for avro. The file of the schema that the records were written with.
      time_attribute: Optional. The attribute that says when an event was; it becomes the column of that name.
    """

    def __init__(
        self,
        subscription: str,
        columns: Sequence[str],
        kind: Literal["json", "avro"] = "json",
        schema_file: str | None = None,
        time_attribute: str | None = None,
    ) -> None:
        super().__init__()
        self._subscription, self._attribute = subscription, time_attribute
        self._parse = ParseMessages(subscription, columns, kind, schema_file, time_attribute)

    def expand(self, pipeline: Any) -> Any:
        messages = pipeline | "Receive" >> ReadFromPubSub(
            subscription=self._subscription, with_attributes=True, timestamp_attribute=self._attribute
        )
        return messages | "Parse" >> self._parse


class ParseMessages(beam.PTransform[Any, Any]):
    """Messages, at the times that the watermark goes by → the same as ReadPubSub."""

    def __init__(
        self,
        source: str,
        columns: Sequence[str],
        kind: Literal["json", "avro"] = "json",
        schema_file: str | None = None,
        time_attribute: str | None = None,
    ) -> None:
        super().__init__()
        wanted = [name for name in columns if name != time_attribute]
        make_parser(kind, schema_file, wanted)  # refuses a schema that cannot be used before anything runs
        self._fn = ParseFn(source, wanted, kind, schema_file, time_attribute)
        register()

    def expand(self, messages: Any) -> Any:
        parsed = messages | "Batch" >> beam.ParDo(self._fn).with_output_types(pa.RecordBatch).with_outputs(
            DEAD, main="batches"
        )
        return typed(parsed, **{DEAD: DeadLetter})


class ParseFn(beam.DoFn):
    """Puts the messages of a bundle together.

    Until a bundle is done, its messages hold the watermark; after that, what was made of them does. So a batch stands
    where its earliest message stood, and no row can become late by being packed.
    """

    def __init__(
        self,
        source: str,
        columns: list[str],
        kind: Literal["json", "avro"],
        schema_file: str | None,
        time_attribute: str | None,
    ) -> None:
        self._source, self._format, self._attribute = source, (kind, schema_file, columns), time_attribute

    @withheld("reading")
    def setup(self) -> None:
        self._parse = make_parser(*self._format)

    def start_bundle(self) -> None:
        self._messages: list[PubsubMessage] = []
        self._stamps: list[int] = []
        self._bytes = 0

    @withheld("reading")
    def process(self, message: PubsubMessage, timestamp: Any = _TIMESTAMP) -> Iterator[Any]:
        self._messages.append(message)
        self._stamps.append(timestamp.micros)
        self._bytes += len(message.data or b"")
        if len(self._messages) >= MESSAGES_A_BATCH or self._bytes >= BYTES_A_BATCH:
            yield from self._drain()

    @withheld("reading")
    def finish_bundle(self) -> Iterator[Any]:
        if self._messages:
            yield from self._drain()

    def _drain(self) -> Iterator[Any]:
        messages, stamps = self._messages, np.array(self._stamps, np.int64)
        self.start_bundle()
        numbers = _numbers([message.message_id for message in messages])
        values, bad = self._parse([message.data for message in messages])
        for place, raw in bad:
            Metrics.counter("tidegate", "dead_malformed").inc()
            letter = DeadLetter("malformed", self._source, numbers[place].as_py(), raw)
            yield beam.pvalue.TaggedOutput(DEAD, _standing(letter, stamps[place]))
        times = None
        if self._attribute is not None:
            times = pa.array([(message.attributes or {}).get(self._attribute) for message in messages], pa.string())
        for batch, places in values:
            rows = pa.array(places)
            if times is not None:
                batch = batch.append_column(self._attribute, times.take(rows))
            batch = batch.append_column(ROW, numbers.take(rows))
            yield _standing(batch.replace_schema_metadata({SOURCE: self._source.encode()}), stamps[places].min())


def _standing(value: Any, micros: int) -> WindowedValue:
    return WindowedValue(value, Timestamp(micros=int(micros)), (GlobalWindow(),))


def _numbers(ids: list[str | None]) -> pa.Array:
    """The messages' ids, for a dead letter to be found by: Pub/Sub's are numbers, an emulator's need not be."""
    texts = pa.array(ids, pa.string())
    return pc.if_else(pc.match_substring_regex(texts, r"^\d{1,18}$"), texts, pa.scalar(None, pa.string())).cast(
        pa.int64()
    )
