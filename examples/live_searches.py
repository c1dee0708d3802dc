"""Searches as they happen: an endless stream into a topic of Kafka, some terms rising and falling as you watch.

python examples/live_searches.py localhost:9092 searches --rate 2000
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from datetime import UTC, datetime

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

TERMS = [
    "tide tables",
    "moon phase",
    "storm warning",
    "ferry times",
    "fish market",
    "beach webcam",
    "lighthouse tour",
    "surf forecast",
]


def event(rng: random.Random) -> dict[str, str]:
    """One search of now. Each term has its own minute of fame; a few people search for what nobody else does."""
    now = time.time()
    weights = [1.05 + math.sin(now / 20 + 2 * math.pi * place / len(TERMS)) for place in range(len(TERMS))]
    rare = rng.random() < 0.01
    term = f"my secret {rng.randrange(10**9)}" if rare else rng.choices(TERMS, weights)[0]
    return {"user": f"u{rng.randrange(20_000)}", "term": term, "at": datetime.fromtimestamp(now, UTC).isoformat()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers")
    parser.add_argument("topic")
    parser.add_argument("--rate", type=int, default=2000, help="events a second")
    parser.add_argument("--partitions", type=int, default=2)
    options = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": options.servers})
    if options.topic not in admin.list_topics(timeout=15).topics:
        admin.create_topics([NewTopic(options.topic, options.partitions)])[options.topic].result(timeout=30)
    producer, rng, number = Producer({"bootstrap.servers": options.servers, "linger.ms": 20}), random.Random(), 0  # noqa: S311  (events, not noise)
    while True:
        began = time.time()
        for _ in range(max(1, options.rate // 20)):
            producer.produce(options.topic, json.dumps(event(rng)), partition=number % options.partitions)
            number += 1
        producer.poll(0)
        time.sleep(max(0.0, 0.05 - (time.time() - began)))


if __name__ == "__main__":
    main()
