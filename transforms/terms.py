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
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticKnownError

from tidegate.mechanisms.guarantee import Guarantee, compose
from tidegate.mechanisms.mechanism import Bounds, Gate, Mechanism, measures_of, needs_of
from tidegate.mechanisms.registry import MechanismError, build
from tidegate.mechanisms.values import Slot, Spread, Statistic
from tidegate.mechanisms.weighted import Weighted
from tidegate.transforms.measure import Measure, parse_measure
from tidegate.transforms.prepare import Preparation, parse_prepare
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
        whole = value.astimezone(UTC).replace(microsecond=0)
        raise ValueError(f"must be a whole second, not {value.isoformat()}; write {_rfc(whole)}")
    return value.astimezone(UTC)


def _stream_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", value):
        raise ValueError(
            f"must be a name of letters, digits, '_', '-' and '.', at most 128, not {shown(value)}; write searches"
        )
    return value


EACH_ROW = {"each": "row"}


def _unit(value: object) -> object:
    """A column; or None, for which a spec has to spell out that every row stands for itself."""
    if value == EACH_ROW:
        return None
    if value is None:
        raise PydanticKnownError("string_type")
    if isinstance(value, dict):
        raise ValueError(f"must be a column or each row by itself, not {shown(value)}; write user, or {{each: row}}")
    return value


def _key_columns(value: object) -> object:
    columns = [value] if isinstance(value, str) else value
    if not isinstance(columns, list) or not columns or not all(isinstance(c, str) and c for c in columns):
        raise ValueError(f"must be a column or a list of columns, not {shown(value)}; write term or [term, country]")
    if len(set(columns)) != len(columns):
        raise ValueError(f"must name each column once, not {shown(value)}; leave the repeated one out")
    return tuple(columns)


def _key_text(value: object) -> object:
    """A key of several columns is written as a list of their texts."""
    if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
        return json.dumps(list(value), ensure_ascii=False, separators=(",", ":"))
    return value


def _key_texts(value: object) -> object:
    return [_key_text(key) for key in value] if isinstance(value, list) else value


def _own_utility(value: object) -> object:
    if value is not None and value != "own":
        raise ValueError(
            f"must be a key's own measure times a public weight, and {shown(value)} looks at other keys: one unit would "
            f"change every key's utility at once, and no bound on a single one keeps epsilon; write weights: {{key: 2}}"
        )
    return value


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

    unit: Annotated[str | None, BeforeValidator(_unit)] = Field(min_length=1, examples=["user"])
    key: Annotated[tuple[str, ...], BeforeValidator(_key_columns)] = Field(examples=["term"])
    time: str = Field(min_length=1, examples=["at"])
    time_unit: Literal["s", "ms", "us"] | None = Field(default=None, examples=["ms"])
    missing: tuple[str, ...] = Field(default=(), examples=["[NA]"])
    max_key_bytes: Whole = Field(default=1024, ge=1, le=65536, examples=["1024"])

    @property
    def one_unit(self) -> str:
        """What is protected, as one calls it."""
        return self.unit or "row"

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
    end: Instant | None = Field(default=None, examples=["2026-01-02T00:00:00Z"])

    @model_validator(mode="after")
    def _fits(self) -> Window:
        step = self.every or self.size
        if step > self.size:
            raise ValueError(
                f"every must be at most size, or events between windows are lost, "
                f"and {step} s is more than {self.size} s; write {self.size}s or less"
            )
        if self.size % step:
            fits = math.gcd(step, self.size)
            raise ValueError(f"every must divide size, and {step} s does not divide {self.size} s; write {fits}s")
        if self.end is None:
            return self
        span = int((self.end - self.start).total_seconds())
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
    def horizon(self) -> int:
        """How many windows what is spent is added up over: all of them, or those of a day where there is no last one."""
        return max(1, 86_400 // (self.every or self.size)) if self.windows.endless else self.windows.count

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

    measure: Annotated[SkipValidation[Measure], BeforeValidator(parse_measure)] = Field(
        default=Measure(), examples=["units"]
    )
    mechanism: str = Field(default="truncated-geometric", examples=["truncated-geometric"])
    delta: Number = Field(gt=0, lt=1, examples=["1e-9"])
    weights: dict[str, Number] | None = Field(default=None, min_length=1, examples=["{one: 2, another: 0}"])
    other_weight: Number = Field(default=1, examples=["1"])
    utility: Annotated[str | None, BeforeValidator(_own_utility)] = Field(default=None, examples=["own"])

    @model_validator(mode="before")
    @classmethod
    def _keys_of_several_columns(cls, data: Any) -> Any:
        return {**data, "keys": _key_texts(data["keys"])} if isinstance(data, dict) and "keys" in data else data

    @model_validator(mode="after")
    def _weights_fit(self) -> GateTerms:
        if self.weights is None and "other_weight" in self.model_fields_set:
            raise ValueError("other_weight must stand beside weights, and there are none; write weights: {key: 2}")
        if self.weights is not None and self.mechanism in ("public-keys", "range"):
            raise ValueError(
                f"weights must belong to a gate with a threshold, and {self.mechanism} has none; leave them out, "
                f"or write mechanism: truncated-geometric and a weight of .inf for public keys"
            )
        return self


class ThenTerms(MechanismTerms):
    """A mechanism that runs on the keys the gate let through."""

    mechanism: str = Field(examples=["name-of-a-mechanism"])
    delta: Number | None = Field(default=None, ge=0, lt=1, examples=["1e-9"])
    name: str | None = Field(default=None, min_length=1, max_length=128, examples=["spend"])


class Terms(Part):
    """What every release of a stream means."""

    stream: Annotated[str, AfterValidator(_stream_name)] = Field(examples=["searches"])
    columns: Columns = Field(examples=["{unit: user, key: term, time: at}"])
    window: Window = Field(examples=["{size: 1h, start: 2026-01-01T00:00:00Z, end: 2026-01-02T00:00:00Z}"])
    bound: Bound = Field(examples=["{keys: 3}"])
    gate: GateTerms = Field(examples=["{epsilon: 1.0, delta: 1e-9}"])
    then: tuple[ThenTerms, ...] = Field(default=(), examples=["[]"])
    prepare: Annotated[SkipValidation[Preparation], BeforeValidator(parse_prepare)] = Field(
        default=parse_prepare(None), examples=['{where: "status < 400"}']
    )

    @model_validator(mode="before")
    @classmethod
    def _bound_of_a_row(cls, data: Any) -> Any:
        """A row has one key, and there is nothing to say about it."""
        columns = data.get("columns") if isinstance(data, dict) else None
        if isinstance(columns, dict) and columns.get("unit") == EACH_ROW and "bound" not in data:
            return {**data, "bound": {"keys": 1}}
        return data

    @model_validator(mode="after")
    def _agree(self) -> Terms:
        if self.columns.unit is None:
            self._check_rows()
        if self.gate.measure.kind != "events" and self.bound.per_key != 1:
            why = "a unit counts once a key" if self.gate.measure.kind == "units" else "low and high bound a unit's sum"
            raise ValueError(
                f"bound.per_key must be 1 when gate.measure is {self.gate.measure.label}, not {self.bound.per_key}: {why}; "
                f"write per_key: 1, or measure: events"
            )
        try:
            _ = self.mechanisms
        except MechanismError as problem:
            raise ValueError(f"{problem.field} {problem}") from None
        try:
            _ = self.guarantee
        except ValueError as problem:
            raise ValueError(f"gate.{problem}") from None
        self._check_names()
        self._check_values()
        return self

    def _check_rows(self) -> None:
        for name, given in (("keys", self.bound.keys), ("per_key", self.bound.per_key)):
            if given != 1:
                raise ValueError(
                    f"bound.{name} must be 1 where each row is a unit, which has one key, not {given}; leave bound out"
                )
        if self.prepare.truncate is not None:
            raise ValueError(
                f"prepare.truncate must be left out where each row is a unit, not {self.prepare.truncate}, since there is "
                f"nothing to cut; leave it out"
            )

    def _check_names(self) -> None:
        """Rows of different meaning must be told apart by their measure."""
        seen: dict[str, int] = {}
        for index in range(len(self.then)):
            for measure in self.measures(index + 1):
                if measure in seen:
                    raise ValueError(
                        f"then[{index}].name is needed, since then[{seen[measure]}] publishes {measure} too; "
                        f"write name: and another word"
                    )
                seen[measure] = index

    def _check_values(self) -> None:
        for slot in self.slots:
            if slot.column in (self.columns.unit, self.columns.time):
                raise ValueError(
                    f"columns.{'unit' if slot.column == self.columns.unit else 'time'} must not be summed or averaged, and "
                    f"{slot.column!r} is; write another column"
                )

    @property
    def protects(self) -> str:
        """Whom the promise is made to."""
        if self.columns.unit is None:
            return "one row, and not all rows of a person"
        return f"everything one {self.columns.unit} does in one window"

    @property
    def horizon(self) -> int:
        """How many windows what is spent on a unit is added up over: those of the range or of a day, or those a row is in."""
        if self.columns.unit is None:
            return self.window.size // (self.window.every or self.window.size)
        return self.window.horizon

    @property
    def bounds(self) -> Bounds:
        """What one unit can change of the gate's measure, in its steps."""
        most = self.prepare.truncate
        keys = self.bound.keys if most is None else min(self.bound.keys, most)
        value = self.gate.measure.value
        if value is not None:
            return Bounds(keys, value.reach, swing=max(value.high, 0) - min(value.low, 0))
        return Bounds(keys, self.bound.per_key, most if self.gate.measure.kind == "events" else None)

    @cached_property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The gate first, then the downstream ones, calibrated."""
        built: list[Mechanism] = [self._build_gate()]
        for index, terms in enumerate(self.then):
            built.append(
                _build(f"then[{index}]", terms, ("per-key", "per-window"), self.bounds, {"delta": self._share_of_delta})
            )
        return tuple(built)

    def _build_gate(self) -> Mechanism:
        gate = self.gate
        if gate.weights is None:
            return _build("gate", gate, ("gate",), self.bounds)
        try:
            return Weighted(
                self.bounds,
                lambda bounds: cast(Gate, _build("gate", gate, ("gate",), bounds)),
                gate.weights,
                gate.other_weight,
                epsilon=gate.epsilon,
                delta=gate.delta,
            )
        except MechanismError:
            raise
        except ValueError as problem:
            field, _, rest = str(problem).partition(" ")
            raise MechanismError(f"gate.{field}", rest) from None

    @property
    def _share_of_delta(self) -> float:
        """What a downstream mechanism gets unless it says otherwise: all of them together as much as the gate."""
        return self.gate.delta / max(1, len(self.then))

    @property
    def gate_mechanism(self) -> Gate:
        return cast(Gate, self.mechanisms[0])

    def mechanism_name(self, number: int) -> str:
        return self.gate.mechanism if number == 0 else self.then[number - 1].mechanism

    def measures(self, number: int) -> tuple[str, ...]:
        """What the numbers of a mechanism are called in rows."""
        if number == 0:
            return (self.gate.measure.label,)
        terms, own = self.then[number - 1], measures_of(self.mechanisms[number], self.mechanism_name(number))
        if terms.name is None:
            return own
        return (terms.name,) if len(own) == 1 else tuple(f"{terms.name} {measure}" for measure in own)

    @cached_property
    def needs(self) -> tuple[Statistic | Spread, ...]:
        """What downstream mechanisms ask of the exact table, beyond the gate's measure."""
        return tuple(dict.fromkeys(need for mechanism in self.mechanisms[1:] for need in needs_of(mechanism)))

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """What is gathered of value columns for each unit and key."""
        values = [need.value for need in self.needs if need.value is not None]
        if self.gate.measure.value is not None:
            values.append(self.gate.measure.value)
        return tuple(dict.fromkeys(slot for value in values for slot in value.slots))

    @property
    def event_columns(self) -> list[str]:
        """What a source must give: unit, keys, time, values, and what preparation makes them of."""
        values = [slot.column for slot in self.slots if slot.column]
        unit = [] if self.columns.unit is None else [self.columns.unit]
        wanted = [*unit, *self.columns.key, self.columns.time, *values]
        return self.prepare.sources(list(dict.fromkeys(wanted)))

    @cached_property
    def guarantee(self) -> Guarantee:
        """What one window's whole release promises."""
        whole = compose(*(mechanism.guarantee for mechanism in self.mechanisms))
        value = self.gate.measure.value
        per_key = self.bounds.per_key if value is None else value.number(value.reach)
        return replace(whole, keys=self.bounds.keys, per_key=per_key)

    def __getstate__(self) -> dict[Any, Any]:
        """Terms travel to every worker as they were written; calibrated mechanisms, which may be large, are made there."""
        state = super().__getstate__()
        fields = {name: value for name, value in state["__dict__"].items() if name in type(self).model_fields}
        return {**state, "__dict__": fields}

    @cached_property
    def digest(self) -> str:
        """Names the meaning of a release: equal digests, secrets and data give equal bytes.

        Start, end and grace are left out, but for the grid they imply: extending a stream by a day, or waiting longer for
        stragglers, must not make new releases of the windows that are out already.
        """
        step = self.window.every or self.window.size
        meaning: dict[str, Any] = {
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
            "gate": {
                "measure": self.gate.measure.meaning(),
                "mechanism": self.gate.mechanism,
                **self.gate.parameters(),
            },
            "then": [{"mechanism": item.mechanism, **item.parameters()} for item in self.then],
        }
        if self.gate.weights is not None:
            meaning["weights"] = {"keys": self.gate.weights, "others": self.gate.other_weight}
        if self.prepare:
            meaning["prepare"] = self.prepare.meaning()
        canonical = json.dumps(meaning, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


def make_terms(**fields: Any) -> Terms:
    """Terms from plain values, as a spec file would have them. Raises SpecError with one sentence."""
    try:
        return Terms.model_validate(fields)
    except ValidationError as refused:
        raise SpecError(sentence(Terms, refused)) from None


def _build(
    place: str, terms: MechanismTerms, roles: Any, bounds: Bounds, defaults: dict[str, Any] | None = None
) -> Mechanism:
    fields = type(terms).model_fields
    try:
        return build(terms.mechanism, roles, bounds, terms.parameters(), defaults or {})
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
