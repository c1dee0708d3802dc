"""WriteKafka: releases into a topic, each window whole and once for whoever reads committed messages.

    key 20260101T000000Z-20260101T010000Z   kind=row        {"stream": "searches", "key": "tides", "value": 41, …}
    key 20260101T000000Z-20260101T010000Z   kind=row        …
    key 20260101T000000Z-20260101T010000Z   kind=manifest   {"release_digest": "…", "messages": {"rows": 2, …}, …}

A window's messages go into one partition in one transaction, with the manifest last. The transaction is named after the
window, so that Kafka shuts out whoever began it before: an earlier try that was taken for dead can no longer finish. After
that, before anything is written, the topic is read to its end: a window whose manifest is there already is left as it is if
it is the same release, and refused if it is another.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import apache_beam as beam
import pyarrow as pa
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from tidegate.pipelines.kafka.reader import (
    MANIFEST_KIND,
    ROW_KIND,
    CommittedLog,
    kind_of,
    messages_digest,
    read_manifest_value,
    read_window,
    window_of,
)
from tidegate.pipelines.kafka.settings import SECONDS_TO_ANSWER, check_address, client_options, error_name, reaching
from tidegate.pipelines.publish import PublishError, plain, refuse_another, release_digest
from tidegate.pipelines.sinks import PublishInOrder
from tidegate.transforms.problems import SpecError
from tidegate.transforms.release import Release

TRIES = 4
SECONDS_TO_COMMIT = 60.0


class WriteKafka(beam.PTransform[Any, Any]):
    """Publishes releases in a topic; gives the names of the windows it has seen through.

    Args:
      servers: Required. Where to connect first.
      topic: Required. A topic that keeps everything: retention.ms=-1, retention.bytes=-1, cleanup.policy=delete.
      security_file: Optional. A file of what is needed to connect, as for a source.
      keep_first: Optional, default False. As for WriteReleases.
    """

    def __init__(self, servers: str, topic: str, security_file: str | None = None, *, keep_first: bool = False) -> None:
        super().__init__()
        check_address(servers, topic)
        self._address, self._keep_first = (servers, topic, security_file), keep_first

    def expand(self, releases: Any) -> Any:
        check_topic(*self._address)
        return releases | PublishInOrder([partial(TopicOfReleases, *self._address)], keep_first=self._keep_first)


def check_topic(servers: str, topic: str, security_file: str | None = None) -> None:
    """A window is known to be published by its manifest alone, so a topic that forgets would take a second release of it."""
    with reaching(servers, topic):
        resource = ConfigResource(ResourceType.TOPIC, topic)
        admin = AdminClient(client_options(servers, security_file))  # by a name, as its answers end with it
        found = admin.describe_configs([resource])[resource].result(timeout=SECONDS_TO_ANSWER)
    for name, wanted in (("cleanup.policy", "delete"), ("retention.ms", "-1"), ("retention.bytes", "-1")):
        value = found[name].value
        if value != wanted:
            raise SpecError(
                f"topic {topic} must keep every message, and its {name} is {value}: a window whose manifest is gone could be "
                f"released a second time; set {name}={wanted}"
            )


class TopicOfReleases:
    """A topic as a place to publish, with a memory of what was seen to be published there."""

    def __init__(self, servers: str, topic: str, security_file: str | None = None) -> None:
        self._servers, self._name, self._security_file = servers, topic, security_file
        with reaching(servers, topic):
            self._log = CommittedLog(servers, topic, security_file)
        self._published: dict[str, dict[str, Any]] = {}

    def publish(self, release: Release) -> bool:
        """Publish a window; False if it was published before, with the same release. Safe to repeat at any point."""
        values = [json.dumps(plain(row), ensure_ascii=False).encode() for row in release.rows.to_pylist()]
        manifest = {
            **release.manifest,
            "release_digest": release_digest(release),
            "messages": {"rows": len(values), "sha256": messages_digest(values)},
        }
        reason = ""
        for number in range(TRIES):
            if number:
                # Two who publish the same window at once shut each other out; of different pauses one is the shorter.
                time.sleep(random.uniform(0.5, 1.5) * number)  # noqa: S311  (no secret hangs on it)
            try:
                return self._try_to_publish(release.folder, values, manifest)
            except KafkaException as problem:
                reason = error_name(problem)
        raise PublishError(
            f"window {release.folder} could not be written to topic {self._name} on {self._servers} ({reason}); see to the "
            f"servers and rights, then run again: a window that did get through is found and left as it is"
        )

    def _try_to_publish(self, window: str, values: list[bytes], manifest: Mapping[str, Any]) -> bool:
        if self._is_published(window, manifest, open_too=False):
            return False
        producer = self._producer(window)
        producer.init_transactions(SECONDS_TO_COMMIT)
        # Not before: only now is nobody left who could still publish this window.
        if self._is_published(window, manifest, open_too=True):
            return False
        try:
            producer.begin_transaction()
            partition = zlib.crc32(window.encode()) % self._log.partitions()
            for kind, value in (*((ROW_KIND, value) for value in values), (MANIFEST_KIND, _json(manifest))):
                self._produce(producer, partition, window, kind, value)
            producer.commit_transaction(SECONDS_TO_COMMIT)
        except KafkaException:
            with contextlib.suppress(KafkaException):  # else the next try does, or Kafka when its time is up
                producer.abort_transaction(SECONDS_TO_ANSWER)
            raise
        return True

    def published(self, window: str) -> tuple[Mapping[str, Any], pa.Table]:
        return read_window(self._servers, self._name, self._security_file, window)

    def newest(self) -> Mapping[str, Any] | None:
        with reaching(self._servers, self._name):
            found = [m for m in self._log.read_to_end(open_too=False) if kind_of(m) == MANIFEST_KIND]
        for message in found:
            self._remember(message)
        return read_manifest_value(max(found, key=window_of), self._name) if found else None

    def _remember(self, message: Message) -> None:
        self._published[window_of(message)] = _short(read_manifest_value(message, self._name))

    def _is_published(self, window: str, manifest: Mapping[str, Any], *, open_too: bool) -> bool:
        if window not in self._published:
            for message in self._log.read_to_end(open_too=open_too):
                if kind_of(message) == MANIFEST_KIND:
                    self._remember(message)
        if window not in self._published:
            return False
        refuse_another(self._published[window], manifest, f"{window} in topic {self._name}")
        return True

    def _producer(self, window: str) -> Producer:
        return Producer(
            {
                **client_options(self._servers, self._security_file),
                # Without the stream: of two streams that share a topic by mistake, only one is to have the window.
                "transactional.id": f"tidegate-{self._name}-{window}",
                "transaction.timeout.ms": 60_000,
                "compression.type": "zstd",
                "linger.ms": 5,
            }
        )

    def _produce(self, producer: Producer, partition: int, window: str, kind: str, value: bytes) -> None:
        while True:
            try:
                producer.produce(
                    self._name, value, window.encode(), partition=partition, headers=[("kind", kind.encode())]
                )
                return
            except BufferError:  # more rows than the client holds at a time
                producer.poll(0.1)

    def close(self) -> None:
        self._log.close()


def _json(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, ensure_ascii=False).encode()


def _short(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be known of a published window; there may be many."""
    return {name: manifest.get(name) for name in ("stream", "spec_digest", "release_digest")}
