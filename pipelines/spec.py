"""The spec of a job: the terms of its releases, where events come from, and where releases go.

Everything that can be wrong is found before anything is read, and said in one sentence.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pyarrow as pa
import yaml
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from tidegate.mechanisms.mechanism import needs_of
from tidegate.pipelines import key_lists, sources
from tidegate.transforms.problems import SpecError, sentence, shown
from tidegate.transforms.secret import Secret
from tidegate.transforms.terms import Duration, Part, Terms

LARGE_DELTA = 1e-5
AnyPart = TypeVar("AnyPart", bound=Part)


def _need_schema(kind: str, schema_file: str | None) -> None:
    if (kind == "avro") != (schema_file is not None):
        raise ValueError(
            "schema_file is for messages in avro, and required for them; write format: avro and schema_file: event.avsc"
        )


def _one_of(part: Part, kinds: Sequence[str], example: str, several: str) -> None:
    """Exactly one kind of place must be named."""
    named = [kind for kind in kinds if getattr(part, kind) is not None]
    if len(named) != 1:
        here = f"{' and '.join(named)}; {several}" if named else f"none; write {example}"
        raise ValueError(f"must have one of {', '.join(kinds[:-1])} and {kinds[-1]}, and here is {here}")


class KafkaTopic(Part):
    """Where a topic is, and the file that holds what is needed to connect."""

    servers: str = Field(min_length=1, examples=["localhost:9092"])
    topic: str = Field(min_length=1, examples=["events"])
    security: str | None = Field(default=None, min_length=1, examples=["kafka.properties"])


class KafkaEvents(KafkaTopic):
    """A topic of events; without `until` it has no end."""

    format: Literal["json", "avro"] = Field(default="json", examples=["json"])
    schema_file: str | None = Field(default=None, min_length=1, examples=["event.avsc"])
    schema_id: int | None = Field(default=None, ge=0, lt=2**32, examples=["42"])
    group: str | None = Field(default=None, min_length=1, examples=["tidegate"])
    out_of_order: Duration = Field(default=30, examples=["30s"])
    idle_after: Duration = Field(default=60, examples=["60s"])
    until: Literal["latest"] | None = Field(default=None, examples=["latest"])

    @model_validator(mode="after")
    def _schema(self) -> KafkaEvents:
        _need_schema(self.format, self.schema_file)
        if self.schema_id is not None and self.schema_file is None:
            raise ValueError("schema_id is for messages in avro, beside schema_file; leave it out, or write both")
        return self


class PubSubEvents(Part):
    """A subscription of Google Cloud Pub/Sub; it has no end."""

    subscription: str = Field(examples=["projects/my-project/subscriptions/events"])
    format: Literal["json", "avro"] = Field(default="json", examples=["json"])
    schema_file: str | None = Field(default=None, min_length=1, examples=["event.avsc"])
    time_attribute: str | None = Field(default=None, min_length=1, examples=["at"])

    @field_validator("subscription")
    @classmethod
    def _whole_name(cls, name: str) -> str:
        if not re.fullmatch(r"projects/[a-z][a-z0-9:.-]{4,61}[a-z0-9]/subscriptions/[\w.~+%-]+", name):
            raise ValueError(
                f"must be projects/PROJECT/subscriptions/NAME, not {shown(name)}; "
                f"write projects/my-project/subscriptions/events"
            )
        return name

    @model_validator(mode="after")
    def _schema(self) -> PubSubEvents:
        _need_schema(self.format, self.schema_file)
        return self


class Source(Part):
    """Files of events, of which a pattern may match many, a topic, or a subscription."""

    files: str | None = Field(default=None, min_length=1, examples=['"data/*.parquet"'])
    format: Literal["parquet", "avro", "jsonl", "csv"] | None = Field(default=None, examples=["parquet"])
    follow: bool = Field(default=False, examples=["true"])
    kafka: KafkaEvents | None = Field(default=None, examples=["{servers: localhost:9092, topic: events}"])
    pubsub: PubSubEvents | None = Field(
        default=None, examples=["{subscription: projects/my-project/subscriptions/events}"]
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Source:
        _one_of(self, ("files", "kafka", "pubsub"), 'files: "data/*.parquet"', "leave one out")
        kind = "kafka" if self.kafka is not None else "pubsub"
        if self.files is None and self.format is not None:
            raise ValueError(f"format must stand within {kind}, not beside it; write {kind}: {{format: json, …}}")
        if self.files is None and self.follow:
            until = " unless until: latest is said" if self.kafka is not None else ""
            raise ValueError(f"follow is for files, and {kind} is followed{until}; leave it out")
        if self.files is not None and self.format is None and sources.guess_format(self.files) is None:
            raise ValueError(
                f"format is needed, since the suffix of {self.files!r} does not tell it; "
                f"write format: parquet, avro, jsonl or csv"
            )
        return self

    @property
    def kind(self) -> sources.Format:
        kind = self.format or sources.guess_format(self.files or "")
        assert kind is not None  # noqa: S101  (the validator has seen to it)
        return kind

    @property
    def endless(self) -> bool:
        if self.kafka is not None:
            return self.kafka.until is None
        return self.follow or self.pubsub is not None


class BigQueryTable(Part):
    """A table of releases."""

    table: str = Field(examples=["my-project.my_dataset.releases"])

    @field_validator("table")
    @classmethod
    def _whole_name(cls, name: str) -> str:
        if not re.fullmatch(r"[a-z0-9:.-]+(?<![.])\.\w+\.[\w-]+", name, re.ASCII):
            raise ValueError(f"must be project.dataset.table, not {shown(name)}; write my-project.my_dataset.releases")
        return name


class Sink(Part):
    """A folder of releases, a topic or a table of them."""

    files: str | None = Field(default=None, min_length=1, examples=["releases/"])
    format: Literal["avro", "parquet", "jsonl"] = Field(default="avro", examples=["avro"])
    kafka: KafkaTopic | None = Field(default=None, examples=["{servers: localhost:9092, topic: releases}"])
    bigquery: BigQueryTable | None = Field(default=None, examples=["{table: my-project.my_dataset.releases}"])

    @model_validator(mode="after")
    def _one_kind(self) -> Sink:
        _one_of(self, ("files", "kafka", "bigquery"), "files: releases/", "write a list of sinks")
        if self.files is not None and any(sign in self.files for sign in "*?["):
            raise ValueError(
                f"files must be a plain folder, without the signs of a pattern, not {shown(self.files)}; write releases/"
            )
        return self

    @property
    def place(self) -> str:
        """As people would name it."""
        if self.kafka is not None:
            return f"topic {self.kafka.topic}"
        return f"table {self.bigquery.table}" if self.bigquery is not None else self.files or ""


def _at(part: AnyPart, *fields: str) -> AnyPart:
    """With these paths made absolute, but for those that are not on this machine."""
    paths = {field: getattr(part, field) for field in fields}
    return part.model_copy(
        update={field: str(Path(path).absolute()) for field, path in paths.items() if path and "://" not in path}
    )


def _as_list(value: object) -> object:
    return value if isinstance(value, (list, tuple)) else [value]


class Spec(Terms):
    """A whole job."""

    source: Source = Field(examples=['{files: "data/*.parquet"}'])
    sink: Annotated[tuple[Sink, ...], BeforeValidator(_as_list)] = Field(min_length=1, examples=["{files: releases/}"])
    dead_letters: str | None = Field(default=None, min_length=1, examples=["dead/"])
    state: str = Field(default=".tidegate/", min_length=1, examples=[".tidegate/"])

    @model_validator(mode="after")
    def _ends(self) -> Spec:
        if self.window.end is None and not self.source.endless:
            what = "files, which come" if self.source.files else "what is read until: latest, and comes"
            raise ValueError(
                f"window.end is required for {what} to an end, or nobody knows the last window; "
                f"write end: 2026-01-02T00:00:00Z"
            )
        return self

    @model_validator(mode="after")
    def _time_of_messages(self) -> Spec:
        attribute = None if self.source.pubsub is None else self.source.pubsub.time_attribute
        if attribute is None:
            return self
        if self.columns.time != attribute:
            raise ValueError(
                f"columns.time must name source.pubsub.time_attribute, which is where an event's time then is, and "
                f"{self.columns.time!r} is not {attribute!r}; write time: {attribute}"
            )
        if self.columns.time_unit not in (None, "ms"):
            raise ValueError(
                f"columns.time_unit must be ms for a time_attribute, in which Pub/Sub's readers take whole numbers for "
                f"milliseconds, not {shown(self.columns.time_unit)}; write time_unit: ms, or leave it out for RFC 3339"
            )
        return self

    @model_validator(mode="after")
    def _apart(self) -> Spec:
        single = len(self.sink) == 1
        places: dict[str, str | None] = {"state": self.state}
        for number, sink in enumerate(self.sink):
            places["sink.files" if single else f"sink[{number}].files"] = sink.files
        places["dead_letters"] = self.dead_letters
        seen: dict[str, str] = {}
        for field, place in places.items():
            if place is None:
                continue
            if "://" in place and not field.startswith("sink"):
                raise ValueError(
                    f"{field} must be a local folder, which can be closed to others, not {shown(place)}; "
                    f"write a path on this machine"
                )
            for other, taken in seen.items():
                if _overlap(place, taken):
                    raise ValueError(
                        f"{field} must be apart from {other}, as they are for different eyes, "
                        f"and {shown(place)} is not apart from {shown(taken)}; write another folder"
                    )
            seen[field] = place
        return self

    def with_absolute_paths(self) -> Spec:
        """The same job from any working folder of this machine."""
        source, kafka, pubsub = self.source, self.source.kafka, self.source.pubsub
        if kafka is not None:
            kafka = _at(kafka, "security", "schema_file")
        if pubsub is not None:
            pubsub = _at(pubsub, "schema_file")
        source = _at(source, "files").model_copy(update={"kafka": kafka, "pubsub": pubsub})
        sinks = tuple(
            _at(sink, "files").model_copy(update={"kafka": sink.kafka and _at(sink.kafka, "security")})
            for sink in self.sink
        )
        return _at(self, "dead_letters", "state").model_copy(update={"source": source, "sink": sinks})

    def warnings(self) -> list[str]:
        """What is allowed and yet likely a mistake."""
        found = []
        if self.gate.delta > LARGE_DELTA:
            found.append(
                f"gate.delta is {self.gate.delta:g}: of 1/delta = {1 / self.gate.delta:,.0f} units in a window, about one "
                f"may be shown to be there; choose it well below 1/(units in a window), such as 1e-9"
            )
        if self.guarantee.epsilon > 10:
            of_gate = self.guarantee.epsilon == self.gate.epsilon
            found.append(
                f"{'gate.epsilon' if of_gate else 'the epsilon of gate and then together'} is "
                f"{self.guarantee.epsilon:g}: above 10 the promise means little; 0.1 to 4 is usual"
            )
        if self.columns.unit is None:
            found.append(
                "columns.unit is each row: one row is protected, and somebody with ten of them by ten times epsilon; name "
                "the column of people, devices or accounts if there is one"
            )
        overlap = self.window.size // (self.window.every or self.window.size)
        if overlap > 1:
            found.append(
                f"windows overlap: every event is in {overlap} of them, and what is spent on a unit adds up over these"
            )
        if self.dead_letters is None:
            found.append(
                "dead_letters is not set: rows that cannot be read are counted, not kept; write dead_letters: dead/"
            )
        return found


def load_spec(path: Path) -> Spec:
    """The spec in a file. Raises SpecError with one sentence; reads no events."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise SpecError(f"the spec {path} cannot be read ({problem.strerror}); check the path") from None
    except UnicodeDecodeError:
        raise SpecError(f"the spec {path} must be YAML in UTF-8, and it is not UTF-8; save it as UTF-8") from None
    return parse_spec(text, str(path))


def parse_spec(text: str, name: str = "the spec") -> Spec:
    try:
        data = yaml.load(text, Loader=_Loader)  # noqa: S506  (a SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else "it"
        told = [getattr(problem, part, None) for part in ("context", "problem", "reason")]
        what = ", ".join(part for part in told if part) or "it cannot be parsed"
        raise SpecError(f"{name} must be YAML, and {where} is not ({what}); mend it") from None
    if not isinstance(data, dict):
        raise SpecError(f"{name} must be a group of fields, not {shown(data)}; write stream: searches and so on")
    try:
        return Spec.model_validate(key_lists.fill_in(data))
    except ValidationError as refused:
        said = sentence(Spec, refused)
        # A sink that stands alone is not the first of a list to whoever wrote it.
        raise SpecError(said if isinstance(data.get("sink"), list) else said.replace("sink[0]", "sink")) from None


def check_source(spec: Spec) -> list[str]:
    """The files of the source, once the first one's columns are what the spec says. Reads its schema, no event."""
    if spec.source.files is None:
        return []
    try:
        files = sources.match_files(spec.source.files)
    except SpecError as problem:
        if spec.source.follow and "nothing matches" in str(problem):
            return []  # they are yet to appear
        raise
    seen = sources.peek(files[0], spec.source.kind)
    for name in spec.event_columns:
        if seen.names and name not in seen.names:
            close = difflib.get_close_matches(name, seen.names, n=1)
            hint = f"write {close[0]}" if close else f"the columns there are {', '.join(seen.names[:20])}"
            raise SpecError(f"{_field_of(spec, name)} must be a column of {files[0]}, and {name!r} is not one; {hint}")
    kind = None if spec.columns.time in spec.prepare.derived else seen.types.get(spec.columns.time)
    if kind is not None and pa.types.is_integer(kind) and spec.columns.time_unit is None:
        raise SpecError(
            f"columns.time_unit is required, since {spec.columns.time!r} holds whole numbers; write time_unit: s, ms or us"
        )
    if kind is not None and (pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_nested(kind)):
        raise SpecError(
            f"columns.time must hold RFC 3339 text, timestamps or whole numbers, and {spec.columns.time!r} is {kind}; "
            f"write another column"
        )
    return files


def _field_of(spec: Spec, name: str) -> str:
    """Where the spec asks for a column."""
    if name == spec.columns.unit:
        return "columns.unit"
    if name in spec.columns.key:
        return "columns.key"
    if name == spec.columns.time:
        return "columns.time"
    if spec.gate.measure.value is not None and name == spec.gate.measure.value.column:
        return "gate.measure"
    for index, mechanism in enumerate(spec.mechanisms[1:]):
        if any(need.value is not None and need.value.column == name for need in needs_of(mechanism)):
            return f"then[{index}].column"
    return "prepare"


def open_secret(spec: Spec) -> Secret:
    return Secret.make_or_open(Path(spec.state))


def _overlap(place: str, other: str) -> bool:
    """Whether one folder is or holds the other, by whatever way they are written."""
    one, two = (Path(folder) if "://" in folder else Path(folder).resolve() for folder in (place, other))
    return one.is_relative_to(two) or two.is_relative_to(one)


class _Loader(yaml.SafeLoader):
    """Refuses a field that is written twice, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the field {key.value} is written twice", key.start_mark
                )
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


# Times stay as they are written: what is wrong with one is for the terms to say.
_Loader.yaml_implicit_resolvers = {
    first: [kind for kind in kinds if kind[0] != "tag:yaml.org,2002:timestamp"]
    for first, kinds in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
