"""Reading releases back from a topic: whole windows only, each once, as their manifests say.

A window is written in one transaction, rows first, manifest last. A reader of committed messages sees all of it or nothing.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidegate.pipelines.kafka.settings import SECONDS_TO_ANSWER, check_address, client_options, reaching
from tidegate.pipelines.reader import ReadError, as_sealed
from tidegate.transforms.release import ROW_SCHEMA

ROW_KIND, MANIFEST_KIND = "row", "manifest"
SECONDS_OF_PATIENCE = 150.0
"""Longer than a transaction may stay open: whoever left one open is given up on by then, and the topic can be read on."""

_MESSAGES_A_POLL = 10_000


def read_topic(servers: str, topic: str, security_file: str | None = None) -> list[tuple[dict[str, Any], pa.Table]]:
    """The windows that are published in a topic, in order: the manifest of each and its rows.

    Raises ReadError if a window is not what its manifest says or was published twice.
    """
    return _windows(servers, topic, security_file, None)


def read_window(servers: str, topic: str, security_file: str | None, window: str) -> tuple[dict[str, Any], pa.Table]:
    """The manifest and the rows of one window that is published in a topic, as they were sealed."""
    found = _windows(servers, topic, security_file, window)
    if not found:
        raise ReadError(f"window {window} is not in topic {topic}, although it was published there")
    manifest, rows = found[0]
    return as_sealed(manifest), rows


def _windows(
    servers: str, topic: str, security_file: str | None, only: str | None
) -> list[tuple[dict[str, Any], pa.Table]]:
    rows: dict[str, list[bytes]] = {}
    manifests: dict[str, dict[str, Any]] = {}
    with reaching(servers, topic):
        log = CommittedLog(servers, topic, security_file)
        try:
            for message in log.read_to_end(open_too=False):
                window = window_of(message)
                if only is not None and window != only:
                    continue
                if kind_of(message) == ROW_KIND:
                    rows.setdefault(window, []).append(message.value() or b"")
                elif kind_of(message) == MANIFEST_KIND:
                    if window in manifests:
                        raise ReadError(f"topic {topic} holds window {window} twice; only one of them can be relied on")
                    manifests[window] = read_manifest_value(message, topic)
        finally:
            log.close()
    lone = sorted(rows.keys() - manifests.keys())
    if lone:
        raise ReadError(
            f"topic {topic} holds rows of window {lone[0]} without a manifest; it was not written by tidegate"
        )
    return [
        (manifest, _table(manifest, rows.get(window, []), f"window {window} in topic {topic}"))
        for window, manifest in sorted(manifests.items())
    ]


def _table(manifest: dict[str, Any], values: list[bytes], name: str) -> pa.Table:
    said = manifest.get("messages")
    if not isinstance(said, dict) or len(values) != said.get("rows"):
        raise ReadError(
            f"{name} has {len(values)} rows, which is not what its manifest says; publish it anew elsewhere"
        )
    if messages_digest(values) != said.get("sha256"):
        raise ReadError(f"{name} is not what its manifest says (its SHA-256 differs); publish it anew elsewhere")
    rows = [json.loads(value) for value in values]
    for row in rows:
        for end in ("window_start", "window_end"):
            row[end] = datetime.fromisoformat(row[end])
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


def messages_digest(values: list[bytes]) -> str:
    """Names the rows of a window as they stand in messages: the SHA-256 of the file that has one of them a line."""
    return hashlib.sha256(b"".join(value + b"\n" for value in values)).hexdigest()


def window_of(message: Message) -> str:
    return (message.key() or b"").decode(errors="replace")


def kind_of(message: Message) -> str:
    headers: Any = dict(message.headers() or {})
    return (headers.get("kind") or b"").decode(errors="replace")


def read_manifest_value(message: Message, topic: str) -> dict[str, Any]:
    try:
        found = json.loads(message.value() or b"")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ReadError(f"topic {topic} holds a manifest of window {window_of(message)} that cannot be read")
    return found


class CommittedLog:
    """The committed messages of a topic from its beginning, read on from where it was left with every call."""

    def __init__(self, servers: str, topic: str, security_file: str | None) -> None:
        check_address(servers, topic)
        self._topic = topic
        options = {
            **client_options(servers, security_file),
            "group.id": f"tidegate-{topic}",  # asked for, though no group is ever joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
        }
        self._consumer = Consumer({**options, "isolation.level": "read_committed"})
        self._ends = Consumer({**options, "isolation.level": "read_uncommitted"})  # sees what is in open transactions
        self._next: dict[int, int] = {}
        self._assigned: set[int] = set()

    def partitions(self) -> int:
        found = self._ends.list_topics(self._topic, timeout=SECONDS_TO_ANSWER).topics[self._topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return len(found.partitions)

    def read_to_end(self, *, open_too: bool) -> Iterator[Message]:
        """What is committed until now; with `open_too`, also what becomes of the transactions that are open now.

        A transaction that is open hides what others commit behind it, until it has ended.
        """
        ends = {}
        for number in range(self.partitions()):
            place = TopicPartition(self._topic, number)
            client = self._ends if open_too else self._consumer
            low, ends[number] = client.get_watermark_offsets(place, timeout=SECONDS_TO_ANSWER)
            self._next.setdefault(number, low)
        if ends.keys() - self._assigned:
            self._assigned = set(ends)
            self._consumer.assign([TopicPartition(self._topic, number, self._next[number]) for number in ends])
        deadline = time.monotonic() + SECONDS_OF_PATIENCE
        while any(self._next[number] < end for number, end in ends.items()):
            if time.monotonic() > deadline:
                raise ReadError(
                    f"topic {self._topic} could not be read to its end within {SECONDS_OF_PATIENCE:.0f} seconds; "
                    f"see to its servers and to transactions that hang, then try again"
                )
            for message in self._consumer.consume(_MESSAGES_A_POLL, timeout=0.05):
                error, number = message.error(), message.partition() or 0
                if error is None:
                    self._next[number] = (message.offset() or 0) + 1
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._next[number] = max(self._next[number], message.offset() or 0)
                elif not error.retriable():
                    raise KafkaException(error)

    def close(self) -> None:
        self._consumer.close()
        self._ends.close()
