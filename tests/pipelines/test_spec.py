"""What a spec may say; whatever it may not is answered by one sentence, and the sentence is part of the promise."""

from __future__ import annotations

import copy
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tidegate.pipelines.cli import main
from tidegate.pipelines.runners import choose
from tidegate.pipelines.spec import Spec, check_source, load_spec, open_secret, parse_spec
from tidegate.transforms.problems import SpecError
from tidegate.transforms.secret import VARIABLE

GOOD: dict[str, Any] = {
    "stream": "searches",
    "columns": {"unit": "user", "key": "term", "time": "at"},
    "window": {"size": "1h", "start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"},
    "bound": {"keys": 3},
    "gate": {"epsilon": 1.0, "delta": 1e-9},
    "source": {"files": "data/*.parquet"},
    "sink": {"files": "releases/"},
    "dead_letters": "dead/",
}
GONE = object()
LINES = """\
stream: searches
columns: {unit: user, key: term, time: at}
window: {size: 1h, start: 2026-01-01T00:00:00Z, end: 2026-01-02T00:00:00Z}
bound: {keys: 3}
gate: {epsilon: 1.0, delta: 1e-9}
source: {files: "data/*.parquet"}
sink: {files: releases/}
"""


def spec_with(changes: Mapping[str, Any]) -> str:
    """The good spec as YAML, with other values at these dotted places."""
    fields = copy.deepcopy(GOOD)
    for place, value in changes.items():
        *groups, name = place.split(".")
        holder = fields
        for group in groups:
            holder = holder[group]
        holder[name] = value
        if value is GONE:
            del holder[name]
    return yaml.safe_dump(fields, sort_keys=False)


@dataclass(frozen=True)
class Case:
    """A wrong spec, or a good one among wrong surroundings, and the sentence that says so."""

    name: str
    sentence: str
    spec: str | bytes | None
    arrange: Callable[[Path], object] = lambda folder: None
    attempt: Callable[[Path], object] = load_spec
    command: tuple[str, ...] = ("check", "spec.yaml")
    environment: dict[str, str] = field(default_factory=dict)

    def lay_out(self, folder: Path) -> None:
        if isinstance(self.spec, str):
            (folder / "spec.yaml").write_text(self.spec, encoding="utf-8")
        elif isinstance(self.spec, bytes):
            (folder / "spec.yaml").write_bytes(self.spec)
        self.arrange(folder)


DURATION = "must be a whole number and a unit of s, m, h, d or w"
NAME = "must be a name of letters, digits, '_', '-' and '.', at most 128"
KEY = "must be a column or a list of columns"
EYES = "as they are for different eyes"
TOP = "bound, columns, dead_letters, gate, prepare, sink, source, state, stream, then, window"
SUBSCRIPTION = "projects/my-project/subscriptions/events"
WINDOW = "window: {size: 1h, start: 2026-01-01T00:00:00Z, end: 2026-01-02T00:00:00Z}"

# What is changed in the good spec, and the sentence that answers it.
FIELDS: list[tuple[str, dict[str, Any], str]] = [
    # epsilon and delta
    ("epsilon zero", {"gate.epsilon": 0}, "gate.epsilon must be above 0, not 0; write epsilon: 1.0"),
    ("epsilon negative", {"gate.epsilon": -1.5}, "gate.epsilon must be above 0, not -1.5; write epsilon: 1.0"),
    (
        "epsilon not a number",
        {"gate.epsilon": float("nan")},
        "gate.epsilon must be a finite number, not nan; write epsilon: 1.0",
    ),
    (
        "epsilon infinite",
        {"gate.epsilon": float("inf")},
        "gate.epsilon must be a finite number, not inf; write epsilon: 1.0",
    ),
    ("epsilon in words", {"gate.epsilon": "much"}, "gate.epsilon must be a number, not 'much'; write epsilon: 1.0"),
    ("epsilon yes", {"gate.epsilon": True}, "gate.epsilon must be a number, not true; write epsilon: 1.0"),
    ("epsilon left empty", {"gate.epsilon": None}, "gate.epsilon must be a number, not empty; write epsilon: 1.0"),
    (
        "epsilon beyond arithmetic",
        {"gate.epsilon": 1e-300},
        "gate.epsilon must be at least 1e-30 and finite, not 1e-300; write a number such as 1.0",
    ),
    ("epsilon missing", {"gate.epsilon": GONE}, "gate.epsilon is required and missing; write epsilon: 1.0"),
    ("delta zero", {"gate.delta": 0}, "gate.delta must be above 0, not 0; write delta: 1e-9"),
    ("delta one", {"gate.delta": 1}, "gate.delta must be below 1, not 1; write delta: 1e-9"),
    ("delta two", {"gate.delta": 2}, "gate.delta must be below 1, not 2; write delta: 1e-9"),
    ("delta negative", {"gate.delta": -0.5}, "gate.delta must be above 0, not -0.5; write delta: 1e-9"),
    ("delta not a number", {"gate.delta": float("nan")}, "gate.delta must be below 1, not nan; write delta: 1e-9"),
    (
        "delta beyond noise",
        {"gate.delta": 1e-40},
        "gate.delta 1e-40 is below what 128-bit noise can promise for 3 keys; write at least 1e-30",
    ),
    ("delta missing", {"gate.delta": GONE}, "gate.delta is required and missing; write delta: 1e-9"),
    # the gate and what follows
    ("gate missing", {"gate": GONE}, "gate is required and missing; write gate: {epsilon: 1.0, delta: 1e-9}"),
    ("gate a number", {"gate": 1}, "gate must be a group of fields, not 1; write gate: {epsilon: 1.0, delta: 1e-9}"),
    (
        "measure unknown",
        {"gate.measure": "users"},
        "gate.measure must be units, events or the sum of a column, not 'users'; "
        "write units, events, or {sum: amount, low: 0, high: 100}",
    ),
    (
        "mechanism unknown",
        {"gate.mechanism": "laplace"},
        "gate.mechanism must be one of geometric-threshold, optimal-selection, public-keys, range, truncated-geometric, "
        "not 'laplace'; write truncated-geometric",
    ),
    (
        "mechanism misspelt",
        {"gate.mechanism": "truncated-geometrik"},
        "gate.mechanism must be one of geometric-threshold, optimal-selection, public-keys, range, truncated-geometric, "
        "not 'truncated-geometrik'; "
        "did you mean truncated-geometric?",
    ),
    (
        "mechanism not text",
        {"gate.mechanism": 5},
        "gate.mechanism must be text, not 5; write mechanism: truncated-geometric",
    ),
    (
        "parameter unknown",
        {"gate.sigma": 1},
        "gate.sigma is not a parameter of truncated-geometric; it takes delta, epsilon",
    ),
    (
        "parameter misspelt",
        {"gate.epsilom": 1},
        "gate.epsilom is not a parameter of truncated-geometric; it takes delta, epsilon; did you mean epsilon?",
    ),
    (
        "field of the gate misspelt",
        {"gate.mesure": "units"},
        "gate.mesure is not a parameter of truncated-geometric; it takes delta, epsilon; did you mean measure?",
    ),
    ("then not a list", {"then": "count"}, "then must be a list, not 'count'; write then: []"),
    ("then a list of words", {"then": ["count"]}, "then[0] must be a group of fields, not 'count'; write then: []"),
    (
        "then without a mechanism",
        {"then": [{"epsilon": 1}]},
        "then[0].mechanism is required and missing; write mechanism: name-of-a-mechanism",
    ),
    (
        "then without epsilon",
        {"then": [{"mechanism": "count"}]},
        "then[0].epsilon is required and missing; write epsilon: 1.0",
    ),
    (
        "then with an unknown mechanism",
        {"then": [{"mechanism": "count", "epsilon": 1}]},
        "then[0].mechanism must be one of choose, histogram, mean, noisy-count, quantiles, sum, top-k, variance, "
        "not 'count'; did you mean noisy-count?",
    ),
    (
        "then with a gate",
        {"then": [{"mechanism": "truncated-geometric", "epsilon": 1, "delta": 1e-9}]},
        "then[0].mechanism 'truncated-geometric' is a gate mechanism, and here stands a per-key or per-window one; "
        "leave it out",
    ),
    # fields nobody knows
    ("field unknown", {"budget": 1}, f"budget is not a field of the spec; the fields here are {TOP}"),
    ("field misspelt", {"dead_leters": "dead/"}, "dead_leters is not a field of the spec; write dead_letters"),
    (
        "required field misspelt",
        {"stream": GONE, "streem": "searches"},
        "streem is not a field of the spec; write stream",
    ),
    (
        "nested field unknown",
        {"columns.colour": "red"},
        "columns.colour is not a field of the spec; the fields here are key, max_key_bytes, missing, time, time_unit, unit",
    ),
    ("nested field misspelt", {"window.grase": "5m"}, "window.grase is not a field of the spec; write grace"),
    ("field of the source misspelt", {"source.file": "x"}, "source.file is not a field of the spec; write files"),
    ("field of the sink misspelt", {"sink.fromat": "avro"}, "sink.fromat is not a field of the spec; write format"),
    # the stream
    ("stream missing", {"stream": GONE}, "stream is required and missing; write stream: searches"),
    ("stream empty", {"stream": ""}, f"stream {NAME}, not ''; write searches"),
    ("stream with a slash", {"stream": "web/searches"}, f"stream {NAME}, not 'web/searches'; write searches"),
    ("stream too long", {"stream": "s" * 129}, f"stream {NAME}, not '{'s' * 56}...; write searches"),
    ("stream a number", {"stream": 5}, "stream must be text, not 5; write stream: searches"),
    # columns
    (
        "columns missing",
        {"columns": GONE},
        "columns is required and missing; write columns: {unit: user, key: term, time: at}",
    ),
    (
        "columns a word",
        {"columns": "user"},
        "columns must be a group of fields, not 'user'; write columns: {unit: user, key: term, time: at}",
    ),
    ("unit missing", {"columns.unit": GONE}, "columns.unit is required and missing; write unit: user"),
    (
        "unit empty",
        {"columns.unit": ""},
        "columns.unit must be text of one character or more, not ''; write unit: user",
    ),
    (
        "unit the key",
        {"columns.unit": "term"},
        "columns.unit must not be a key column too, and 'term' is both: every key would name its unit; "
        "write another column",
    ),
    ("key missing", {"columns.key": GONE}, "columns.key is required and missing; write key: term"),
    ("key list empty", {"columns.key": []}, f"columns.key {KEY}, not []; write term or [term, country]"),
    (
        "key repeated",
        {"columns.key": ["term", "term"]},
        "columns.key must name each column once, not ['term', 'term']; leave the repeated one out",
    ),
    (
        "key not text",
        {"columns.key": ["term", 5]},
        f"columns.key {KEY}, not ['term', 5]; write term or [term, country]",
    ),
    ("time missing", {"columns.time": GONE}, "columns.time is required and missing; write time: at"),
    (
        "time the unit",
        {"columns.time": "user"},
        "columns.time must be a column of its own, and 'user' is the unit too; write another column",
    ),
    (
        "time a key",
        {"columns.key": ["term", "at"]},
        "columns.time must be a column of its own, and 'at' is the key too; write another column",
    ),
    (
        "time unit unknown",
        {"columns.time_unit": "ns"},
        "columns.time_unit must be 's', 'ms' or 'us', not 'ns'; write time_unit: ms",
    ),
    (
        "keys of no bytes",
        {"columns.max_key_bytes": 0},
        "columns.max_key_bytes must be at least 1, not 0; write max_key_bytes: 1024",
    ),
    (
        "keys of too many bytes",
        {"columns.max_key_bytes": 65537},
        "columns.max_key_bytes must be at most 65536, not 65537; write max_key_bytes: 1024",
    ),
    # windows
    ("window missing", {"window": GONE}, f"window is required and missing; write {WINDOW}"),
    ("window a duration", {"window": "1h"}, f"window must be a group of fields, not '1h'; write {WINDOW}"),
    ("size missing", {"window.size": GONE}, "window.size is required and missing; write size: 1h"),
    ("size zero", {"window.size": "0h"}, "window.size must be above zero, not 0; write 15m or 1h"),
    ("size negative", {"window.size": "-1h"}, f"window.size {DURATION}, not '-1h'; write 15m or 1h"),
    ("size without a unit", {"window.size": 60}, f"window.size {DURATION}, not 60; write 15m or 1h"),
    ("size fractional", {"window.size": "1.5h"}, f"window.size {DURATION}, not '1.5h'; write 15m or 1h"),
    (
        "size of ages",
        {"window.size": "999999999w"},
        "window.size must be at most 36500d, not '999999999w'; write 15m or 1h",
    ),
    (
        "every beyond size",
        {"window.every": "2h"},
        "window.every must be at most size, or events between windows are lost, and 7200 s is more than 3600 s; "
        "write 3600s or less",
    ),
    (
        "every no divisor",
        {"window.every": "25m"},
        "window.every must divide size, and 1500 s does not divide 3600 s; write 300s",
    ),
    ("grace negative", {"window.grace": "-5m"}, f"window.grace {DURATION}, not '-5m'; write 15m or 1h"),
    (
        "start missing",
        {"window.start": GONE},
        "window.start is required and missing; write start: 2026-01-01T00:00:00Z",
    ),
    (
        "start without an offset",
        {"window.start": "2026-01-01T08:00:00"},
        "window.start must say its offset from UTC, and 2026-01-01T08:00:00 does not; write 2026-01-01T08:00:00Z",
    ),
    (
        "start a date",
        {"window.start": "2026-01-01"},
        "window.start must say its offset from UTC, and 2026-01-01T00:00:00 does not; write 2026-01-01T00:00:00Z",
    ),
    (
        "start with a fraction",
        {"window.start": "2026-01-01T02:00:00.500+02:00"},
        "window.start must be a whole second, not 2026-01-01T02:00:00.500000+02:00; write 2026-01-01T00:00:00Z",
    ),
    (
        "start not a time",
        {"window.start": "yesterday"},
        "window.start must be an RFC 3339 time, not 'yesterday'; write 2026-01-01T00:00:00Z",
    ),
    (
        "start in antiquity",
        {"window.start": "0001-01-01T00:00:00+14:00"},
        "window.start must be in the years 1900 to 2199, not 0001-01-01T00:00:00+14:00; write 2026-01-01T00:00:00Z",
    ),
    (
        "end missing",
        {"window.end": GONE},
        "window.end is required for files, which come to an end, or nobody knows the last window; "
        "write end: 2026-01-02T00:00:00Z",
    ),
    (
        "end before start",
        {"window.end": "2025-12-31T00:00:00Z"},
        "window.end must be after start, and 2025-12-31T00:00:00Z is not after 2026-01-01T00:00:00Z; write a later end",
    ),
    (
        "end at start",
        {"window.end": "2026-01-01T00:00:00Z"},
        "window.end must be after start, and 2026-01-01T00:00:00Z is not after 2026-01-01T00:00:00Z; write a later end",
    ),
    (
        "end within the first window",
        {"window.end": "2026-01-01T00:30:00Z"},
        "window.end must be where a window ends, and none of 3600 s every 3600 s from start on ends at "
        "2026-01-01T00:30:00Z; write 2026-01-01T01:00:00Z",
    ),
    (
        "end within a later window",
        {"window.end": "2026-01-01T02:40:00Z", "window.every": "15m"},
        "window.end must be where a window ends, and none of 3600 s every 900 s from start on ends at "
        "2026-01-01T02:40:00Z; write 2026-01-01T02:30:00Z",
    ),
    (
        "windows too many",
        {"window.size": "1s", "window.end": "2026-03-01T00:00:00Z"},
        "window.size must give at most 4194304 windows in all, not 5097600; write a larger one",
    ),
    (
        "overlapping windows too many",
        {"window.every": "1s", "window.end": "2026-03-01T00:00:00Z"},
        "window.every must give at most 4194304 windows in all, not 5094001; write a larger one",
    ),
    # bounds
    ("bound missing", {"bound": GONE}, "bound is required and missing; write bound: {keys: 3}"),
    ("keys missing", {"bound.keys": GONE}, "bound.keys is required and missing; write keys: 3"),
    ("keys zero", {"bound.keys": 0}, "bound.keys must be at least 1, not 0; write keys: 3"),
    ("keys negative", {"bound.keys": -3}, "bound.keys must be at least 1, not -3; write keys: 3"),
    ("keys fractional", {"bound.keys": 1.5}, "bound.keys must be a whole number, not 1.5; write keys: 3"),
    ("keys in words", {"bound.keys": "many"}, "bound.keys must be a whole number, not 'many'; write keys: 3"),
    ("keys too many", {"bound.keys": 1000001}, "bound.keys must be at most 1000000, not 1000001; write keys: 3"),
    ("per_key zero", {"bound.per_key": 0}, "bound.per_key must be at least 1, not 0; write per_key: 1"),
    (
        "per_key where units are counted",
        {"bound.per_key": 5},
        "bound.per_key must be 1 when gate.measure is units, not 5: a unit counts once a key; "
        "write per_key: 1, or measure: events",
    ),
    # where events come from and where releases go
    ("source missing", {"source": GONE}, 'source is required and missing; write source: {files: "data/*.parquet"}'),
    (
        "source files missing",
        {"source.files": GONE},
        'source must have one of files, kafka and pubsub, and here is none; write files: "data/*.parquet"',
    ),
    (
        "source files empty",
        {"source.files": ""},
        "source.files must be text of one character or more, not ''; write files: \"data/*.parquet\"",
    ),
    (
        "source format not to be guessed",
        {"source.files": "data/*"},
        "source.format is needed, since the suffix of 'data/*' does not tell it; "
        "write format: parquet, avro, jsonl or csv",
    ),
    (
        "source format unknown",
        {"source.format": "orc"},
        "source.format must be 'parquet', 'avro', 'jsonl' or 'csv', not 'orc'; write format: parquet",
    ),
    (
        "source of two kinds",
        {"source.pubsub": {"subscription": SUBSCRIPTION}},
        "source must have one of files, kafka and pubsub, and here is files and pubsub; leave one out",
    ),
    (
        "subscription missing",
        {"source": {"pubsub": {}}},
        f"source.pubsub.subscription is required and missing; write subscription: {SUBSCRIPTION}",
    ),
    (
        "subscription without its project",
        {"source": {"pubsub": {"subscription": "events"}}},
        f"source.pubsub.subscription must be projects/PROJECT/subscriptions/NAME, not 'events'; write {SUBSCRIPTION}",
    ),
    (
        "number of a schema without the schema",
        {"source": {"kafka": {"servers": "localhost:9092", "topic": "events", "schema_id": 42}}},
        "source.kafka.schema_id is for messages in avro, beside schema_file; leave it out, or write both",
    ),
    (
        "subscription in avro without a schema",
        {"source": {"pubsub": {"subscription": SUBSCRIPTION, "format": "avro"}}},
        "source.pubsub.schema_file is for messages in avro, and required for them; "
        "write format: avro and schema_file: event.avsc",
    ),
    (
        "format beside a subscription",
        {"source": {"pubsub": {"subscription": SUBSCRIPTION}, "format": "avro"}},
        "source.format must stand within pubsub, not beside it; write pubsub: {format: json, …}",
    ),
    (
        "subscription that is followed",
        {"source": {"pubsub": {"subscription": SUBSCRIPTION}, "follow": True}},
        "source.follow is for files, and pubsub is followed; leave it out",
    ),
    (
        "topic that is followed",
        {"source": {"kafka": {"servers": "a:1", "topic": "t"}, "follow": True}},
        "source.follow is for files, and kafka is followed unless until: latest is said; leave it out",
    ),
    (
        "time of a subscription's messages elsewhere",
        {"source": {"pubsub": {"subscription": SUBSCRIPTION, "time_attribute": "happened"}}},
        "columns.time must name source.pubsub.time_attribute, which is where an event's time then is, "
        "and 'at' is not 'happened'; write time: happened",
    ),
    (
        "time of a subscription's messages in seconds",
        {"source": {"pubsub": {"subscription": SUBSCRIPTION, "time_attribute": "at"}}, "columns.time_unit": "s"},
        "columns.time_unit must be ms for a time_attribute, in which Pub/Sub's readers take whole numbers for milliseconds, "
        "not 's'; write time_unit: ms, or leave it out for RFC 3339",
    ),
    (
        "table without its dataset",
        {"sink": {"bigquery": {"table": "releases"}}},
        "sink.bigquery.table must be project.dataset.table, not 'releases'; write my-project.my_dataset.releases",
    ),
    (
        "table with a quote",
        {"sink": {"bigquery": {"table": "my-project.data.a`b"}}},
        "sink.bigquery.table must be project.dataset.table, not 'my-project.data.a`b'; write my-project.my_dataset.releases",
    ),
    (
        "sink of two kinds",
        {"sink.bigquery": {"table": "my-project.data.releases"}},
        "sink must have one of files, kafka and bigquery, and here is files and bigquery; write a list of sinks",
    ),
    ("sink missing", {"sink": GONE}, "sink is required and missing; write sink: {files: releases/}"),
    (
        "sink files missing",
        {"sink.files": GONE},
        "sink must have one of files, kafka and bigquery, and here is none; write files: releases/",
    ),
    (
        "sink format unknown",
        {"sink.format": "csv"},
        "sink.format must be 'avro', 'parquet' or 'jsonl', not 'csv'; write format: avro",
    ),
    (
        "sink the state",
        {"sink.files": ".tidegate"},
        f"sink.files must be apart from state, {EYES}, and '.tidegate' is not apart from '.tidegate/'; "
        "write another folder",
    ),
    (
        "sink inside the state",
        {"sink.files": ".tidegate/releases"},
        f"sink.files must be apart from state, {EYES}, and '.tidegate/releases' is not apart from '.tidegate/'; "
        "write another folder",
    ),
    (
        "sink the state by a detour",
        {"state": "elsewhere/../releases"},
        f"sink.files must be apart from state, {EYES}, and 'releases/' is not apart from 'elsewhere/../releases'; "
        "write another folder",
    ),
    (
        "sink the dead letters",
        {"sink.files": "dead"},
        f"dead_letters must be apart from sink.files, {EYES}, and 'dead/' is not apart from 'dead'; "
        "write another folder",
    ),
    (
        "sink inside the dead letters",
        {"sink.files": "dead/releases"},
        f"dead_letters must be apart from sink.files, {EYES}, and 'dead/' is not apart from 'dead/releases'; "
        "write another folder",
    ),
    (
        "dead letters inside the sink",
        {"dead_letters": "releases/dead"},
        f"dead_letters must be apart from sink.files, {EYES}, and 'releases/dead' is not apart from 'releases/'; "
        "write another folder",
    ),
    (
        "dead letters inside the state",
        {"dead_letters": ".tidegate/dead"},
        f"dead_letters must be apart from state, {EYES}, and '.tidegate/dead' is not apart from '.tidegate/'; "
        "write another folder",
    ),
    (
        "dead letters remote",
        {"dead_letters": "gs://bucket/dead"},
        "dead_letters must be a local folder, which can be closed to others, not 'gs://bucket/dead'; "
        "write a path on this machine",
    ),
    (
        "dead letters nowhere",
        {"dead_letters": ""},
        "dead_letters must be text of one character or more, not ''; write dead_letters: dead/",
    ),
    (
        "state remote",
        {"state": "gs://bucket/state"},
        "state must be a local folder, which can be closed to others, not 'gs://bucket/state'; "
        "write a path on this machine",
    ),
    # the first of several
    (
        "two things wrong",
        {"gate.epsilon": 0, "bound.keys": 0},
        "bound.keys must be at least 1, not 0; write keys: 3",
    ),
]

# Files that are no spec at all.
TEXTS: list[tuple[str, str | bytes | None, str]] = [
    (
        "field written twice",
        f"{LINES}stream: visits\n",
        "spec.yaml must be YAML, and line 8 is not (the field stream is written twice); mend it",
    ),
    (
        "nested field written twice",
        LINES.replace("{keys: 3}", "{keys: 3, keys: 4}"),
        "spec.yaml must be YAML, and line 4 is not (the field keys is written twice); mend it",
    ),
    (
        "not YAML",
        f"{LINES}then: [\n",
        "spec.yaml must be YAML, and line 9 is not "
        "(while parsing a flow node, expected the node content, but found '<stream end>'); mend it",
    ),
    (
        "pattern without quotes",
        LINES.replace('"data/*.parquet"', "*.parquet"),
        "spec.yaml must be YAML, and line 6 is not "
        "(while scanning an alias, expected alphabetic or numeric character, but found '.'); mend it",
    ),
    (
        "two documents",
        f"{LINES}---\n{LINES}",
        "spec.yaml must be YAML, and line 8 is not "
        "(expected a single document in the stream, but found another document); mend it",
    ),
    (
        "control characters",
        "stream: \0",
        "spec.yaml must be YAML, and it is not (special characters are not allowed); mend it",
    ),
    (
        "field a number",
        f"{LINES}5: five\n",
        f"5 is not a field of the spec; the fields here are {TOP}",
    ),
    (
        "time in the thirteenth month",
        LINES.replace("2026-01-01T", "2026-13-01T"),
        "window.start must be an RFC 3339 time, not '2026-13-01T00:00:00Z'; write 2026-01-01T00:00:00Z",
    ),
    (
        "list",
        "- stream\n- searches\n",
        "spec.yaml must be a group of fields, not ['stream', 'searches']; write stream: searches and so on",
    ),
    ("word", "searches", "spec.yaml must be a group of fields, not 'searches'; write stream: searches and so on"),
    ("empty", "", "spec.yaml must be a group of fields, not empty; write stream: searches and so on"),
    ("absent", None, "the spec spec.yaml cannot be read (No such file or directory); check the path"),
    (
        "not UTF-8",
        LINES.replace("searches", "Brücke").encode("latin-1"),
        "the spec spec.yaml must be YAML in UTF-8, and it is not UTF-8; save it as UTF-8",
    ),
]


def write_parquet(folder: Path) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    columns = {"user": ["u1"], "term": ["tide"], "at": [at], "number": [5], "share": [0.5]}
    (folder / "data").mkdir()
    pq.write_table(pa.table(columns), folder / "data" / "events.parquet")


def write_csv(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "events.csv").write_text("user,term,at\nu1,tide,2026-01-01T00:00:00Z\n")


def write_jsonl(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "events.jsonl").write_text('{"user": "u1", "term": "tide", "at": "2026-01-01T00:00:00Z"}\n')


def write_avro(folder: Path) -> None:
    fields = [{"name": name, "type": "string"} for name in ("user", "term", "at")]
    (folder / "data").mkdir()
    with (folder / "data" / "events.avro").open("wb") as stream:
        rows = [{"user": "u1", "term": "tide", "at": "2026-01-01T00:00:00Z"}]
        fastavro.writer(stream, {"type": "record", "name": "Event", "fields": fields}, rows)


# Events that are not what a spec says they are.
SOURCES: list[tuple[str, Callable[[Path], None], dict[str, Any], str]] = [
    (
        "no files",
        lambda folder: None,
        {},
        "source.files must match at least one file, and nothing matches data/*.parquet; check the path",
    ),
    (
        "no such file system",
        lambda folder: None,
        {"source.files": "carrier-pigeon://events.csv"},
        "source.files cannot be listed at carrier-pigeon://events.csv (ValueError); check the path",
    ),
    (
        "no such unit in parquet",
        write_parquet,
        {"columns.unit": "users"},
        "columns.unit must be a column of data/events.parquet, and 'users' is not one; write user",
    ),
    (
        "no such key in parquet",
        write_parquet,
        {"columns.key": ["term", "country"]},
        "columns.key must be a column of data/events.parquet, and 'country' is not one; "
        "the columns there are user, term, at, number, share",
    ),
    (
        "no such key in csv",
        write_csv,
        {"source.files": "data/*.csv", "columns.key": "terms"},
        "columns.key must be a column of data/events.csv, and 'terms' is not one; write term",
    ),
    (
        "no such time in jsonl",
        write_jsonl,
        {"source.files": "data/*.jsonl", "columns.time": "att"},
        "columns.time must be a column of data/events.jsonl, and 'att' is not one; write at",
    ),
    (
        "no such unit in avro",
        write_avro,
        {"source.files": "data/*.avro", "columns.unit": "usr"},
        "columns.unit must be a column of data/events.avro, and 'usr' is not one; write user",
    ),
    (
        "no such time in avro",
        write_avro,
        {"source.files": "data/*.avro", "columns.time": "when"},
        "columns.time must be a column of data/events.avro, and 'when' is not one; "
        "the columns there are user, term, at",
    ),
    (
        "whole numbers without a time unit",
        write_parquet,
        {"columns.time": "number"},
        "columns.time_unit is required, since 'number' holds whole numbers; write time_unit: s, ms or us",
    ),
    (
        "fractions for times",
        write_parquet,
        {"columns.time": "share"},
        "columns.time must hold RFC 3339 text, timestamps or whole numbers, and 'share' is double; "
        "write another column",
    ),
]


def write_secret(text: str, mode: int = 0o600) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_parquet(folder)
        (folder / ".tidegate").mkdir()
        secret = folder / ".tidegate" / "secret"
        secret.write_text(text)
        secret.chmod(mode)

    return write


def state_is_a_file(folder: Path) -> None:
    write_parquet(folder)
    (folder / ".tidegate").write_text("")


DIGITS = (
    "the secret file .tidegate/secret must hold 64 hexadecimal digits and nothing else; "
    "restore it from your backup, or move it away to start a new stream of draws"
)
SECRETS: list[tuple[str, Callable[[Path], None], dict[str, str], str]] = [
    (
        "secret open to others",
        write_secret("ab" * 32, mode=0o644),
        {},
        "the secret file .tidegate/secret must be readable by its owner only, and its mode is 0644; "
        "run chmod 600 .tidegate/secret",
    ),
    ("secret not hexadecimal", write_secret("tide" * 16), {}, DIGITS),
    ("secret too short", write_secret("ab" * 31), {}, DIGITS),
    (
        "secret named and absent",
        write_parquet,
        {VARIABLE: "vault/secret"},
        "the secret file vault/secret cannot be read (No such file or directory); "
        "name a readable one in TIDEGATE_SECRET_FILE",
    ),
    (
        "state a file",
        state_is_a_file,
        {},
        "state must be a folder that can be written, and .tidegate cannot (File exists); "
        "name another folder, or a secret file in TIDEGATE_SECRET_FILE",
    ),
]

# A runner, options for Beam, and the sentence.
OPTIONS: list[tuple[str, str, tuple[str, ...], str]] = [
    (
        "Beam option unknown",
        "direct",
        ("--tide_level=5",),
        "Beam has no option --tide_level=5; leave it out, or check its spelling",
    ),
    (
        "Beam option abbreviated",
        "direct",
        ("--allow_unsafe_trigger",),
        "Beam has no option --allow_unsafe_trigger; leave it out, or check its spelling",
    ),
    (
        "triggers unsafe",
        "direct",
        ("--allow_unsafe_triggers",),
        "the Beam option --allow_unsafe_triggers is refused: it lets a window fire again, and every firing would be "
        "a release of its own; leave it out",
    ),
    (
        "runner among Beam's options",
        "direct",
        ("--runner=DirectRunner",),
        "the Beam option --runner is refused: the runner is named before the --; leave it out",
    ),
    (
        "runner no name",
        "the fast one",
        (),
        "--runner must be direct, prism, flink, dataflow or the name of a Beam runner, not 'the fast one'; write direct",
    ),
]

RUN = ("run", "--quiet", "spec.yaml")
CASES = [
    *(Case(name, sentence, spec_with(changes)) for name, changes, sentence in FIELDS),
    *(Case(f"file: {name}", sentence, text) for name, text, sentence in TEXTS),
    *(
        Case(name, sentence, spec_with(changes), write, lambda path: check_source(load_spec(path)), RUN)
        for name, write, changes, sentence in SOURCES
    ),
    *(
        Case(name, sentence, spec_with({}), write, lambda path: open_secret(load_spec(path)), RUN, environment)
        for name, write, environment, sentence in SECRETS
    ),
    *(
        Case(
            name,
            sentence,
            spec_with({}),
            write_parquet,
            lambda _, runner=runner, options=options: choose(runner, options, endless=False),  # type: ignore[misc]
            ("run", "--quiet", "--runner", runner, "spec.yaml", "--", *options),
        )
        for name, runner, options, sentence in OPTIONS
    ),
]
ONCE_MORE_FOR_REAL = (
    "epsilon zero",
    "file: absent",
    "no such key in csv",
    "secret open to others",
    "triggers unsafe",
)


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without the caller's secret, and with the loudness that the command turns down put back."""
    monkeypatch.delenv(VARIABLE, raising=False)
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of a text file only the first line is read
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_wrong_is_said_in_one_sentence_and_ends_the_command_with_2(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    case.lay_out(tmp_path)

    with pytest.raises(SpecError) as refused:
        case.attempt(Path("spec.yaml"))
    assert str(refused.value) == case.sentence

    monkeypatch.setattr(sys, "argv", ["tidegate", *case.command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"tidegate: {case.sentence}\n")
    assert not (tmp_path / "releases").exists()


def test_every_sentence_is_one_line_and_says_what_to_do() -> None:
    for case in CASES:
        rule, _, remedy = case.sentence.partition("; ")
        assert rule, case.name
        assert remedy, case.name
        assert case.sentence.isprintable(), case.name
        assert not case.sentence.endswith("."), case.name


def test_there_are_at_least_sixty_ways_to_go_wrong() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
    assert len({(case.spec, case.arrange, case.command) for case in CASES}) >= 60


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, subprocess.CompletedProcess[str]]:
    """What the installed command answers; all at once, since most of the time is Beam's import."""
    chosen = [case for case in CASES if case.name in ONCE_MORE_FOR_REAL]

    def ask(case: Case) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("wrong")
        case.lay_out(folder)
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE} | case.environment
        command = [sys.executable, "-m", "tidegate", *case.command]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(len(chosen)) as pool:
        return dict(zip((case.name for case in chosen), pool.map(ask, chosen), strict=True))


@pytest.mark.parametrize("name", ONCE_MORE_FOR_REAL)
def test_the_real_command_says_the_same(name: str, answers: dict[str, subprocess.CompletedProcess[str]]) -> None:
    (case,) = (case for case in CASES if case.name == name)
    answer = answers[name]
    assert (answer.returncode, answer.stdout, answer.stderr) == (2, "", f"tidegate: {case.sentence}\n")


# What is right.


def loaded(changes: Mapping[str, Any]) -> Spec:
    return parse_spec(spec_with(changes))


def test_the_good_spec_loads_from_a_file_without_a_note(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(spec_with({}))
    spec = load_spec(tmp_path / "spec.yaml")
    assert spec.stream == "searches"
    assert spec.warnings() == []
    assert (spec.state, spec.sink[0].format, spec.gate.mechanism) == (".tidegate/", "avro", "truncated-geometric")


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(LINES, encoding="utf-8-sig")
    assert load_spec(tmp_path / "spec.yaml").stream == "searches"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(LINES, lambda spec: spec.gate.delta == 1e-9, id="1e-9, which YAML takes for text"),
        pytest.param(
            LINES.replace("delta: 1e-9", 'delta: "0.000000001"'),
            lambda spec: spec.gate.delta == 1e-9,
            id="text of digits",
        ),
        pytest.param(LINES, lambda spec: spec.columns.key == ("term",), id="one key column"),
        pytest.param(
            LINES.replace("key: term", "key: [term, country]"),
            lambda spec: spec.event_columns == ["user", "term", "country", "at"],
            id="several key columns",
        ),
        pytest.param(
            LINES.replace("size: 1h", "size: 1h, every: 15m"),
            lambda spec: spec.window.windows.count == 23 * 4 + 1,
            id="overlapping windows",
        ),
        pytest.param(
            LINES.replace("2026-01-01T00:00:00Z", '"2026-01-01T00:00:00Z"'),
            lambda spec: spec.window.start == datetime(2026, 1, 1, tzinfo=UTC),
            id="a quoted time",
        ),
        pytest.param(
            LINES.replace("2026-01-01T00:00:00Z", "2026-01-01T02:00:00+02:00"),
            lambda spec: spec.window.start.isoformat() == "2026-01-01T00:00:00+00:00",
            id="a time with an offset becomes UTC",
        ),
        pytest.param(
            LINES.replace("2026-01-01T00:00:00Z", "2026-01-01 00:00:00z"),
            lambda spec: spec.window.start.isoformat() == "2026-01-01T00:00:00+00:00",
            id="a time in the other spelling of RFC 3339",
        ),
        pytest.param(
            LINES.replace("{keys: 3}", "{keys: 3, per_key: 5}").replace("delta:", "measure: events, delta:"),
            lambda spec: (spec.bounds.per_key, spec.gate.measure.kind) == (5, "events"),
            id="several events a key",
        ),
        pytest.param(
            LINES.replace("*.parquet", "*.jsonl.gz"),
            lambda spec: spec.source.kind == "jsonl",
            id="a format told by suffix",
        ),
        pytest.param(
            LINES.replace('"data/*.parquet"', '"data/*", format: csv'),
            lambda spec: spec.source.kind == "csv",
            id="a format told by name",
        ),
        pytest.param(
            LINES.replace("releases/", "gs://bucket/releases"),
            lambda spec: spec.sink[0].files == "gs://bucket/releases",
            id="a remote sink",
        ),
        pytest.param(
            LINES.replace("gate: {", "gate: {<<: {measure: events}, "),
            lambda spec: spec.gate.measure.kind == "events",
            id="a merged group",
        ),
        pytest.param(
            f"{LINES}dead_letters: releases-dead/\n",
            lambda spec: spec.dead_letters == "releases-dead/",
            id="a neighbour whose name begins alike",
        ),
    ],
)
def test_a_good_spec_means_what_it_says(text: str, told: Callable[[Spec], bool]) -> None:
    assert told(parse_spec(text))


@pytest.mark.parametrize(
    ("changes", "warnings"),
    [
        pytest.param(
            {"gate.delta": 1e-4},
            [
                "gate.delta is 0.0001: of 1/delta = 10,000 units in a window, about one may be shown to be there; "
                "choose it well below 1/(units in a window), such as 1e-9"
            ],
            id="delta above 1e-5",
        ),
        pytest.param({"gate.delta": 1e-5}, [], id="delta at 1e-5"),
        pytest.param(
            {"gate.epsilon": 12},
            ["gate.epsilon is 12: above 10 the promise means little; 0.1 to 4 is usual"],
            id="epsilon above 10",
        ),
        pytest.param({"gate.epsilon": 10}, [], id="epsilon at 10"),
        pytest.param(
            {"window.every": "15m"},
            ["windows overlap: every event is in 4 of them, and what is spent on a unit adds up over these"],
            id="overlapping windows",
        ),
        pytest.param({"window.every": "1h"}, [], id="windows side by side"),
        pytest.param(
            {"dead_letters": GONE},
            ["dead_letters is not set: rows that cannot be read are counted, not kept; write dead_letters: dead/"],
            id="no dead letters",
        ),
    ],
)
def test_what_is_allowed_and_likely_a_mistake_is_noted(changes: dict[str, Any], warnings: list[str]) -> None:
    assert loaded(changes).warnings() == warnings


def test_several_likely_mistakes_are_all_noted() -> None:
    changes = {"gate.delta": 0.1, "gate.epsilon": 99, "window.every": "30m", "dead_letters": GONE}
    assert len(loaded(changes).warnings()) == 4


# The digest of the terms: equal where releases mean the same.


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"source.files": "archive/*.avro"}, id="source"),
        pytest.param({"sink.files": "elsewhere/", "sink.format": "jsonl"}, id="sink"),
        pytest.param({"state": "private/"}, id="state"),
        pytest.param({"dead_letters": GONE}, id="dead_letters"),
        pytest.param({"window.grace": "10m"}, id="grace"),
        pytest.param({"window.end": "2026-02-01T00:00:00Z"}, id="a later end"),
        pytest.param({"window.start": "2025-12-01T05:00:00Z"}, id="an earlier start on the same grid"),
        pytest.param({"window.start": "2026-01-01T02:00:00+02:00"}, id="the same start in another zone"),
        pytest.param({"window.size": "60m"}, id="the same size in another unit"),
        pytest.param({"window.every": "1h"}, id="the usual every, written"),
        pytest.param({"columns.time_unit": "ms"}, id="time_unit"),
        pytest.param({"columns.key": ["term"]}, id="one key column, in a list"),
        pytest.param({"gate.measure": "units", "gate.mechanism": "truncated-geometric"}, id="the usual gate, written"),
        pytest.param({"gate.epsilon": "1", "gate.delta": "1e-9"}, id="numbers as text"),
    ],
)
def test_the_digest_stays_where_the_meaning_stays(changes: dict[str, Any]) -> None:
    assert loaded(changes).digest == loaded({}).digest


@pytest.mark.parametrize(
    ("changes", "beside"),
    [
        pytest.param({"stream": "visits"}, {}, id="stream"),
        pytest.param({"columns.unit": "household"}, {}, id="unit"),
        pytest.param({"columns.key": "country"}, {}, id="key"),
        pytest.param({"columns.key": ["country", "term"]}, {"columns.key": ["term", "country"]}, id="order of keys"),
        pytest.param({"columns.time": "seen"}, {}, id="time"),
        pytest.param({"columns.max_key_bytes": 64}, {}, id="max_key_bytes"),
        pytest.param({"window.size": "2h"}, {}, id="size"),
        pytest.param({"window.every": "30m"}, {}, id="every"),
        pytest.param(
            {"window.start": "2026-01-01T00:30:00Z", "window.end": "2026-01-02T00:30:00Z"}, {}, id="offset of the grid"
        ),
        pytest.param({"bound.keys": 4}, {}, id="keys"),
        pytest.param({"gate.measure": "events", "bound.per_key": 5}, {"gate.measure": "events"}, id="per_key"),
        pytest.param({"gate.measure": "events"}, {}, id="measure"),
        pytest.param({"gate.epsilon": 1.0000001}, {}, id="epsilon"),
        pytest.param({"gate.delta": 1.0000001e-9}, {}, id="delta"),
    ],
)
def test_the_digest_changes_with_the_meaning(changes: dict[str, Any], beside: dict[str, Any]) -> None:
    assert loaded(changes).digest != loaded(beside).digest
