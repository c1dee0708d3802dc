"""Live traffic with a known truth, and readers that look at everything that is published, all the time."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.engines.broker import Broker
from tidegate.pipelines.kafka.reader import kind_of, window_of

USERS, TERMS = 20_000, 40


@dataclass(frozen=True)
class Mix:
    """What part of the messages is sent twice, comes far too late, or is no record at all."""

    twice: float = 0.05
    late: float = 0.05
    malformed: float = 0.10
    late_by: float = 60.0


class Traffic(threading.Thread):
    """Searches of now, at a steady rate, into all partitions of a topic.

    `truth` holds the users of every (window, term), as a release without noise would count them, and `rows` how many messages
    each window has. What comes too late comes only once `stragglers` is set: until windows close, nothing is late.
    """

    def __init__(
        self, broker: Broker, topic: str, partitions: int, rate: int, window: int, mix: Mix | None = None
    ) -> None:
        super().__init__(daemon=True)
        self._broker, self._topic, self._partitions, self._rate = broker, topic, partitions, rate
        self._window, self._mix = window, mix or Mix()
        self._ending = threading.Event()
        self.truth: dict[tuple[int, str], set[str]] = defaultdict(set)
        self.rows: Counter[int] = Counter()
        self.sent: Counter[str] = Counter()
        self.stragglers = threading.Event()
        self.undelivered = 0
        self.first_window = 0

    def run(self) -> None:
        # Idempotent, so that an outage of the broker neither loses a message nor changes their order.
        producer = Producer(
            {
                "bootstrap.servers": self._broker.servers,
                "enable.idempotence": True,
                "linger.ms": 10,
                "message.timeout.ms": 600_000,
                "queue.buffering.max.messages": 2_000_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        rng = random.Random(1)
        began, number = time.time(), 0
        self.first_window = int(began) // self._window
        while not self._ending.is_set():
            while number < (time.time() - began) * self._rate:
                for message in self._made(rng):
                    producer.produce(self._topic, message, partition=number % self._partitions)
                    number += 1
            producer.poll(0)
            time.sleep(0.01)
        self.undelivered = producer.flush(120)

    def stop(self) -> None:
        self._ending.set()
        self.join()
        assert self.undelivered == 0

    def _made(self, rng: random.Random) -> list[bytes]:
        kind, at = rng.random(), time.time()
        if kind < self._mix.malformed:
            self.sent["malformed"] += 1
            return [b'{"user": "u1", "term": ']
        user, term = f"u{rng.randrange(USERS)}", f"t{min(int(rng.expovariate(0.15)), TERMS)}"
        kind -= self._mix.malformed
        if kind < self._mix.late and self.stragglers.is_set():
            self.sent["late"] += 1
            return [_message(user, "late", at - self._mix.late_by)]
        self.truth[int(at) // self._window, term].add(user)
        twice = 0 <= kind - self._mix.late < self._mix.twice
        self.rows[int(at) // self._window] += 1 + twice
        self.sent["good"] += 1
        self.sent["again"] += twice
        return [_message(user, term, at)] * (1 + twice)


def _message(user: str, term: str, at: float) -> bytes:
    return json.dumps({"user": user, "term": term, "at": datetime.fromtimestamp(at, UTC).isoformat()}).encode()


@dataclass
class Seen:
    """What a reader saw of a window: when first, and every content it ever had."""

    at: float
    contents: set[str] = field(default_factory=set)
    rows: dict[str, float] = field(default_factory=dict)


class FolderWatch(threading.Thread):
    """Reads every published window of a folder, every 100 ms, as a reader that trusts manifests would."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder, self._ending = folder, threading.Event()
        self._stamps: dict[str, int] = {}
        self.windows: dict[str, Seen] = {}
        self.troubles: list[str] = []

    def run(self) -> None:
        while not self._ending.is_set():
            self.look()
            time.sleep(0.1)
        self.look()

    def stop(self) -> None:
        self._ending.set()
        self.join()

    def look(self) -> None:
        for manifest in self._folder.glob("*/manifest.json"):
            name = manifest.parent.name
            stamp = manifest.stat().st_mtime_ns
            known = {path.name for path in manifest.parent.iterdir() if not path.name.startswith(".")}
            if self._stamps.get(name) == stamp and len(known) == 2:
                continue  # looked at, and nobody has touched it
            self._stamps[name] = stamp
            try:
                self._read(name, manifest)
            except (ValueError, KeyError, OSError) as problem:
                self.troubles.append(f"{name}: {problem!r}")

    def _read(self, name: str, manifest: Path) -> None:
        said = json.loads(manifest.read_bytes())
        (file,) = said["files"]
        data = (manifest.parent / file["name"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != file["sha256"]:
            raise ValueError("the rows are not what the manifest says")
        rows = [json.loads(line) for line in data.splitlines()]
        if len(rows) != said["rows"]:
            raise ValueError("rows are missing")
        seen = self.windows.setdefault(name, Seen(time.time()))
        seen.contents.add(said["release_digest"])
        seen.rows = {row["key"]: row["value"] for row in rows}


class TopicWatch(threading.Thread):
    """Reads a topic of releases as a consumer of committed messages, all along."""

    def __init__(self, broker: Broker, topic: str) -> None:
        super().__init__(daemon=True)
        self._broker, self._topic, self._ending = broker, topic, threading.Event()
        self.windows: dict[str, Seen] = {}
        self.troubles: list[str] = []
        self._rows: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._broker.servers,
                "group.id": "watch",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        ending = 0
        while ending < 20:
            found = consumer.consume(1000, 0.1)
            ending = ending + 1 if self._ending.is_set() and not found else 0
            for message in found:
                error = message.error()
                if error is None:
                    self._take(message)
                elif not error.retriable() and error.code() not in (
                    KafkaError._ALL_BROKERS_DOWN,
                    KafkaError._TRANSPORT,
                ):
                    self.troubles.append(str(error))
        consumer.close()
        self.troubles += [f"{name}: rows without a manifest" for name in self._rows]

    def stop(self) -> None:
        self._ending.set()
        self.join()

    def _take(self, message: Any) -> None:
        name, value = window_of(message), json.loads(message.value())
        if kind_of(message) == "row":
            self._rows[name].append(value)
            return
        if name in self.windows:
            self.troubles.append(f"{name}: a second manifest")
        rows = self._rows.pop(name, [])
        if len(rows) != value["rows"]:
            self.troubles.append(f"{name}: {len(rows)} rows, and its manifest says {value['rows']}")
        seen = self.windows.setdefault(name, Seen(time.time()))
        seen.contents.add(value["release_digest"])
        seen.rows = {row["key"]: row["value"] for row in rows}
