"""The terms of a release: what is protected, counted and published. Everything that gives a release its meaning.

Where events come from and where releases go is not here (see `pipelines.spec`): a replay from an archive has the same
terms, hence the same digest, hence the same bytes.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import math
import re
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticKnownError

from tidegate.mechanisms.guarantee import Guarantee, compose
from tidegate.mechanisms.mechanism import Bounds, Gate, Mechanism
from tidegate.mechanisms.registry import MechanismError, build
from tidegate.transforms.problems import SpecError, sentence, shown
from tidegate.transforms.windows import Windows

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONGEST_DAYS = 36500
MEANING = 1
"""Raised when the same terms come to mean something else, so that old and new releases never share a draw."""


def parse_duration(value: object) -> int:
    """'15m' → 900 seconds."""
    if isinstance(value, timedelta):
        value = f"{int(value.total_seconds())}s" if not value.microseconds else value
    found = re.fullmatch(r"(\d{1,9})([smhdw])", value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"must be a whole number and a unit of s, m, h, d or w, not {shown(value)}; write 15m or 1h")
    seconds = int(found[1]) * _SECONDS[found[2]]
    if seconds > _LONGEST_DAYS * _SECONDS["d"]:
        raise ValueError(f"must be at most {_LONGEST_DAYS}d, not {shown(value)}; write 15m or 1h")
    return seconds


def _positive(seconds: int) -> int:
    if seconds <= 0:
        raise ValueError("must be above zero, not 0; write 15m or 1h")
    return seconds


def parse_instant(value: object) -> datetime:
    """'2026-01-01T02:00:00+02:00' → midnight in UTC."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", value))
    if not isinstance(value, datetime):
        raise ValueError(f"must be an RFC 3339 time, not {shown(value)}; write 2026-01-01T00:00:00Z")
    if value.tzinfo is None:
        raise ValueError(f"must say its offset from UTC, and {value.isoformat()} does not; write {value.isoformat()}Z")
    if not 1900 <= value.year < 2200:  # as for events
        raise ValueError(f"must be in the years 1900 to 2199, not {value.isoformat()}; write 2026-01-01T00:00:00Z")
    if value.microsecond:
        whole = value.astimezone(timezone.utc).replace(microsecond=0)
        raise ValueError(f"must be a whole second, not {value.isoformat()}; write {_rfc(whole)}")
    return value.astimezone(timezone.utc)


def _stream_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", value):
        raise ValueError(
            f"must be a name of letters, digits, '_', '-' and '.', at most 128, not {shown(value)}; write searches"
        )
    return value


def _key_columns(value: object) -> object:
    columns = [value] if isinstance(value, str) else value
    if not isinstance(columns, list) or not columns or not all(isinstance(c, str) and c for c in columns):
        raise ValueError(f"must be a column or a list of columns, not {shown(value)}; write term or [term, country]")
    if len(set(columns)) != len(columns):
        raise ValueError(f"must name each column once, not {shown(value)}; leave the repeated one out")
    return tuple(columns)


def _no_truth_value(value: object) -> object:
    """`keys: yes` is a slip, although Python would count it as 1."""
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


Whole = Annotated[int, BeforeValidator(_no_truth_value)]
Number = Annotated[float, BeforeValidator(_no_truth_value)]
Duration = Annotated[int, BeforeValidator(parse_duration)]
PositiveDuration = Annotated[int, BeforeValidator(parse_duration), AfterValidator(_positive)]
Instant = Annotated[datetime, BeforeValidator(parse_instant)]


class Part(BaseModel):
    """A group of the spec: unknown fields are refused, nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Columns(Part):
    """Which column of an event is what."""

    unit: str = Field(min_length=1, examples=["user"])
    key: Annotated[tuple[str, ...], BeforeValidator(_key_columns)] = Field(examples=["term"])
    time: str = Field(min_length=1, examples=["at"])
    time_unit: Literal["s", "ms", "us"] | None = Field(default=None, examples=["ms"])
    missing: tuple[str, ...] = Field(default=(), examples=["[NA]"])
    max_key_bytes: Whole = Field(default=1024, ge=1, le=65536, examples=["1024"])

    @model_validator(mode="after")
    def _distinct(self) -> Columns:
        if self.unit in self.key:
            raise ValueError(
                f"unit must not be a key column too, and {self.unit!r} is both: every key would name its unit; "
                f"write another column"
            )
        if self.time in (self.unit, *self.key):
            other = "unit" if self.time == self.unit else "key"
            raise ValueError(
                f"time must be a column of its own, and {self.time!r} is the {other} too; write another column"
            )
        return self


class Window(Part):
    """Which windows exist. Decided here, never by the data: a window that appears because somebody did something leaks."""

    size: PositiveDuration = Field(examples=["1h"])
    every: PositiveDuration | None = Field(default=None, examples=["15m"])
    grace: Duration = Field(default=0, examples=["5m"])
    start: Instant = Field(examples=["2026-01-01T00:00:00Z"])
    end: Instant = Field(examples=["2026-01-02T00:00:00Z"])

    @model_validator(mode="after")
    def _fits(self) -> Window:
        step, span = self.every or self.size, int((self.end - self.start).total_seconds())
        if step > self.size:
            raise ValueError(
                f"every must be at most size, or events between windows are lost, "
                f"and {step} s is more than {self.size} s; write {self.size}s or less"
            )
        if self.size % step:
            fits = math.gcd(step, self.size)
            raise ValueError(f"every must divide size, and {step} s does not divide {self.size} s; write {fits}s")
        if span <= 0:
            raise ValueError(
                f"end must be after start, and {_rfc(self.end)} is not after {_rfc(self.start)}; write a later end"
            )
        if span < self.size or span % step:
            nearest = self.start + timedelta(seconds=max(self.size, span // step * step))
            raise ValueError(
                f"end must be where a window ends, and none of {self.size} s every {step} s from start on "
                f"ends at {_rfc(self.end)}; write {_rfc(nearest)}"
            )
        count = (span - self.size) // step + 1
        if count > 2**22:
            field = "every" if self.every else "size"
            raise ValueError(f"{field} must give at most {2**22} windows in all, not {count}; write a larger one")
        return self

    @property
    def windows(self) -> Windows:
        return Windows.between(self.start, self.end, self.size, self.every or self.size, self.grace)


class Bound(Part):
    """What one unit can count for in one window."""

    keys: Whole = Field(ge=1, le=1_000_000, examples=["3"])
    per_key: Whole = Field(default=1, ge=1, le=1_000_000, examples=["1"])


class MechanismTerms(BaseModel):
    """A mechanism by name; fields that are not listed are parameters of its own, checked by it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    mechanism: str
    epsilon: Number = Field(gt=0, allow_inf_nan=False, examples=["1.0"])

    def parameters(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in ("epsilon", "delta") if name in self.model_fields_set}
        return fields | (self.model_extra or {})


class GateTerms(MechanismTerms):
    """What decides which keys appear, and publishes their counts."""

    measure: Literal["units", "events"] = Field(default="units", examples=["units"])
    mechanism: str = Field(default="truncated-geometric", examples=["truncated-geometric"])
    delta: Number = Field(gt=0, lt=1, examples=["1e-9"])


class ThenTerms(MechanismTerms):
    """A mechanism that runs on the keys the gate let through."""

    mechanism: str = Field(examples=["name-of-a-mechanism"])
    delta: Number = Field(default=0.0, ge=0, lt=1, examples=["1e-9"])


class Terms(Part):
    """What every release of a stream means."""

    stream: Annotated[str, AfterValidator(_stream_name)] = Field(examples=["searches"])
    columns: Columns = Field(examples=["{unit: user, key: term, time: at}"])
    window: Window = Field(examples=["{size: 1h, start: 2026-01-01T00:00:00Z, end: 2026-01-02T00:00:00Z}"])
    bound: Bound = Field(examples=["{keys: 3}"])
    gate: GateTerms = Field(examples=["{epsilon: 1.0, delta: 1e-9}"])
    then: tuple[ThenTerms, ...] = Field(default=(), examples=["[]"])

    @model_validator(mode="after")
    def _agree(self) -> Terms:
        if self.gate.measure == "units" and self.bound.per_key != 1:
            raise ValueError(
                f"bound.per_key must be 1 when gate.measure is units, not {self.bound.per_key}: a unit counts once a key; "
                f"write per_key: 1, or measure: events"
            )
        try:
            _ = self.mechanisms
        except MechanismError as problem:
            raise ValueError(f"{problem.field} {problem}") from None
        return self

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.bound.keys, self.bound.per_key)

    @cached_property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The gate first, then the downstream ones, calibrated."""
        built = [_build("gate", self.gate, ("gate",), self.bounds)]
        for index, terms in enumerate(self.then):
            built.append(_build(f"then[{index}]", terms, ("per-key", "per-window"), self.bounds))
        return tuple(built)

    @property
    def gate_mechanism(self) -> Gate:
        return cast(Gate, self.mechanisms[0])

    @property
    def guarantee(self) -> Guarantee:
        """What one window's whole release promises."""
        return compose(mechanism.guarantee for mechanism in self.mechanisms)

    @cached_property
    def digest(self) -> str:
        """Names the meaning of a release: equal digests, secrets and data give equal bytes.

        Start, end and grace are left out, but for the grid they imply: extending a stream by a day, or waiting longer for
        stragglers, must not make new releases of the windows that are out already.
        """
        step = self.window.every or self.window.size
        meaning = {
            "meaning": MEANING,
            "stream": self.stream,
            "columns": {"unit": self.columns.unit, "key": self.columns.key, "time": self.columns.time},
            "missing": sorted(self.columns.missing),
            "max_key_bytes": self.columns.max_key_bytes,
            "window": {
                "size": self.window.size,
                "every": step,
                "origin": int(self.window.start.timestamp()) % step,
            },
            "bound": self.bound.model_dump(),
            "gate": {"measure": self.gate.measure, "mechanism": self.gate.mechanism, **self.gate.parameters()},
            "then": [{"mechanism": item.mechanism, **item.parameters()} for item in self.then],
        }
        canonical = json.dumps(meaning, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


def make_terms(**fields: Any) -> Terms:
    """Terms from plain values, as a spec file would have them. Raises SpecError with one sentence."""
    try:
        return Terms.model_validate(fields)
    except ValidationError as refused:
        raise SpecError(sentence(Terms, refused)) from None


def _build(place: str, terms: MechanismTerms, roles: Any, bounds: Bounds) -> Mechanism:
    fields = type(terms).model_fields
    try:
        return build(terms.mechanism, roles, bounds, terms.parameters())
    except MechanismError as problem:
        field, sentence = problem.field, str(problem)
        near = [] if field in fields else difflib.get_close_matches(field, fields, n=1)
        if near and "did you mean" not in sentence:
            sentence += f"; did you mean {near[0]}?"
        elif ";" not in sentence:
            usual = fields["mechanism"]
            sentence += "; leave it out" if usual.is_required() else f"; write {usual.default}"
    raise MechanismError(f"{place}.{field}", sentence)


def _rfc(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")
