"""prepare: rows are filtered, derived and bucketed by SQL expressions, each row by itself, before anything is bounded.

The bounds hold since a unit can change no more than its own rows. `expressions` says which expressions are such, and DuckDB
runs them. Names of columns are as written, and upper and lower case differ, as everywhere in a spec. DuckDB does not tell
them apart, so an expression is given the columns it names and no others.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.transforms.columns import ROW
from tidegate.transforms.expressions import QUERY, columns_of, connect
from tidegate.transforms.problems import SafeError, shown, withheld

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_KINDS = ("derive", "where", "bucket", "truncate")
_MOST_EVENTS, _LARGEST, _PLACES = 1_000_000, 10**15, 9


@dataclass(frozen=True)
class Formula:
    """What a column becomes, or whether a row stays (then without a target): an expression, edges or a width."""

    target: str
    rule: str | tuple[float, ...] | float
    needs: tuple[str, ...]

    @property
    def sql(self) -> str:
        if isinstance(self.rule, str):
            return self.rule if self.target else f"CAST(({self.rule}) AS BOOLEAN)"
        column = '"' + self.target.replace('"', '""') + '"'
        bucket = _labels(column, self.rule) if isinstance(self.rule, tuple) else _lower_edge(column, self.rule)
        return f"CASE WHEN {column} IS NULL OR isnan(CAST({column} AS DOUBLE)) THEN NULL ELSE {bucket} END"

    def meaning(self) -> object:
        if isinstance(self.rule, tuple):
            return list(self.rule)
        return self.rule if isinstance(self.rule, str) else {"width": self.rule}


@dataclass(frozen=True)
class Step:
    """Formulas that all see the columns as they were before the step."""

    kind: str
    formulas: tuple[Formula, ...]

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for formula in self.formulas for name in formula.needs))


@dataclass(frozen=True)
class Preparation:
    """What a spec does to rows before they are counted."""

    steps: tuple[Step, ...] = ()
    truncate: int | None = None

    def __bool__(self) -> bool:
        return bool(self.steps) or self.truncate is not None

    @property
    def derived(self) -> frozenset[str]:
        """The columns that are made or replaced, by `derive` or `bucket`."""
        return frozenset(formula.target for step in self.steps for formula in step.formulas if formula.target)

    def sources(self, wanted: Sequence[str]) -> list[str]:
        """The columns a source must provide. Those of every expression, since one that fails on a row condemns it."""
        needed = list(wanted)
        for step in reversed(self.steps):
            made = {formula.target for formula in step.formulas}
            needed = [name for name in needed if name not in made] + list(step.needs)
        return list(dict.fromkeys([name for name in wanted if name in needed] + needed))

    def meaning(self) -> list[Any]:
        """The same for the same preparation however it was written; plain JSON, for a digest."""
        steps = [[step.kind, {part.target: part.meaning() for part in step.formulas}] for step in self.steps]
        return [*steps, *([] if self.truncate is None else [["truncate", self.truncate]])]


@dataclass(frozen=True)
class Prepared:
    """The rows that are left, where they stood in the batch, and where those stood on which an expression failed."""

    batch: pa.RecordBatch
    rows: Rows
    failed: Rows


def parse_prepare(value: object) -> Preparation:
    """The `prepare` of a spec, refused by a ValueError of one sentence unless every step is a function of one row."""
    steps: list[Step] = []
    truncate: int | None = None
    for field, kind, rule in _written(value):
        if kind == "truncate":
            if truncate is not None:
                raise ValueError(f"{field} must be given once, not again as {shown(rule)}; leave one of them out")
            if not isinstance(rule, int) or isinstance(rule, bool) or not 1 <= rule <= _MOST_EVENTS:
                raise ValueError(f"{field} must be a whole number up to {_MOST_EVENTS}, not {shown(rule)}; write 20")
            truncate = rule
        elif kind == "where":
            steps.append(Step(kind, (_expression(field, "", rule),)))
        else:
            make = _expression if kind == "derive" else _bucket
            parts = sorted(_named(field, rule).items())  # they do not see one another, so their order means nothing
            steps.append(Step(kind, tuple(make(f"{field}.{name}", name, part) for name, part in parts)))
    return Preparation(tuple(steps), truncate)


def _written(value: object) -> Iterator[tuple[str, str, object]]:
    """(field, kind, rule) of each step. A list is done as written; a group, whose order YAML does not keep, as `_KINDS`."""
    listed = isinstance(value, list)
    for place, part in enumerate(value if isinstance(value, list) else [{} if value is None else value]):
        name = f"prepare[{place}]" if listed else "prepare"
        if not isinstance(part, Mapping) or (listed and len(part) != 1):
            rule = "a group of one field" if listed else "a group of steps or a list of them"
            raise ValueError(f"{name} must be {rule}, not {shown(part)}; write where: and an expression")
        for kind in part:
            if kind not in _KINDS:
                close = difflib.get_close_matches(str(kind), _KINDS, n=1)
                hint = f"write {close[0]}" if close else f"the fields here are {', '.join(_KINDS)}"
                raise ValueError(f"{name}.{kind} is not a field of the spec; {hint}")
        for kind in _KINDS:
            if kind in part:
                yield f"{name}.{kind}", kind, part[kind]


def _named(field: str, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{field} must be a group of columns, not {shown(value)}; write a column and what it becomes")
    for name in value:
        if not isinstance(name, str) or not name or name == ROW:
            raise ValueError(f"{field} must name columns of the row, not {shown(name)}; write a name as text")
    return dict(value)


def _number(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
        raise ValueError(f"{field} must be made of numbers up to {_LARGEST:g}, not {shown(value)}; write 18 or 0.5")
    return int(value) if value == int(value) else value


def _bucket(field: str, name: str, rule: object) -> Formula:
    if isinstance(rule, Mapping) and list(rule) == ["width"]:
        width = _number(f"{field}.width", rule["width"])
        if width <= 0 or _places(width) > _PLACES:
            raise ValueError(
                f"{field}.width must be above zero and have {_PLACES} decimals at most, not {shown(width)}; write 10"
            )
        return Formula(name, width, (name,))
    if not isinstance(rule, list) or not rule:
        raise ValueError(f"{field} must be a list of edges or a width, not {shown(rule)}; write [18, 30] or width: 10")
    edges = tuple(_number(field, edge) for edge in rule)
    if any(low >= high for low, high in pairwise(edges)):
        raise ValueError(f"{field} must rise from edge to edge, not {shown(rule)}; write [18, 30]")
    return Formula(name, edges, (name,))


def _plain(number: float) -> str:
    return format(Decimal(repr(number)), "f")


def _places(number: float) -> int:
    return len(_plain(number).partition(".")[2])


def _labels(column: str, edges: tuple[float, ...]) -> str:
    names = [f"below {_plain(edges[0])}", *(f"{_plain(low)} to {_plain(high)}" for low, high in pairwise(edges))]
    whens = " ".join(
        f"WHEN CAST({column} AS DOUBLE) < CAST('{edge}' AS DOUBLE) THEN '{name}'"
        for edge, name in zip(edges, names, strict=True)
    )
    return f"CASE {whens} ELSE '{_plain(edges[-1])} and above' END"


def _lower_edge(column: str, width: float) -> str:
    """In decimals: to a computer 0.3 / 0.1 is less than 3, and 0.3 would fall into the bucket below its own."""
    value, step = (f"CAST({part} AS DECIMAL(38, {_PLACES}))" for part in (column, f"'{_plain(width)}'"))
    kind = f"DECIMAL(38, {_places(width)})" if _places(width) else "BIGINT"
    return f"CAST({value} - (({value} % {step}) + {step}) % {step} AS {kind})"


def _expression(field: str, target: str, text: object) -> Formula:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{field} must be an expression as text, not {shown(text)}; write a < 400")
    return Formula(target, text.strip(), columns_of(field, text.strip()))


class Preparer:
    """Prepares batches. What becomes of a row depends on that row and the types of its columns, and on nothing else."""

    def __init__(self, preparation: Preparation) -> None:
        self._steps = preparation.steps
        self._connection: Any = connect() if self._steps else None

    @withheld("prepare")
    def __call__(self, batch: pa.RecordBatch) -> Prepared:
        rows, failed = np.arange(len(batch)), [np.zeros(0, np.int64)]
        for step in self._steps:
            sound = _sound(batch, step.needs)
            failed.append(rows[~sound])
            batch, rows = _keep(batch, sound), rows[sound]
            values, fails = zip(*(self._evaluate(formula, batch) for formula in step.formulas), strict=True)
            keep = ~np.any(fails, axis=0)
            failed.append(rows[~keep])
            if step.kind == "where":
                keep &= values[0].cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)
            else:
                for formula, value in zip(step.formulas, values, strict=True):
                    batch = _put(batch, formula.target, value)
            batch, rows = _keep(batch, keep), rows[keep]
        return Prepared(batch, rows, np.sort(np.concatenate(failed)))

    def _evaluate(self, formula: Formula, batch: pa.RecordBatch) -> tuple[pa.Array, Mask]:
        """The value on every row, and the rows on which there is none, as the expression fails."""
        table = pa.table({name: _get(batch, name) for name in formula.needs} or {ROW: pa.nulls(len(batch))})
        found, fails = self._run(formula.sql, table), np.zeros(len(table), np.bool_)
        if found is None and self._fits(formula.sql, table):
            found, fails = self._apart(formula.sql, table)
        elif found is None:
            found, fails = pa.table({"value": pa.nulls(len(table))}), ~fails
        return found.column(0).combine_chunks(), fails

    def _apart(self, sql: str, table: pa.Table) -> tuple[pa.Table, Mask]:
        """The rows that fail apart from the others: TRY finds most kinds of failure, halving the rest."""
        tried = self._run(f"TRY({{'v': ({sql})}})", table)
        if tried is not None:
            column = tried.column(0).combine_chunks()
            return pa.table({"value": column.field(0)}), column.is_null().to_numpy(zero_copy_only=False)
        if len(table) <= 1:
            found = self._run(sql, table)
            none = pa.table({"value": pa.nulls(len(table))})
            return none if found is None else found, np.full(len(table), found is None)
        half = len(table) // 2
        values, fails = zip(*(self._apart(sql, part) for part in (table[:half], table[half:])), strict=True)
        return pa.concat_tables(values, promote_options="default"), np.concatenate(fails)

    def _fits(self, sql: str, table: pa.Table) -> bool:
        """Whether the expression can be bound to columns of these types, whatever rows they hold."""
        import duckdb

        try:
            self._connection.register("tidegate.rows", table.slice(0, 0)).sql(QUERY.format(sql))
        except duckdb.Error:
            return False
        return True

    def _run(self, sql: str, table: pa.Table) -> pa.Table | None:
        """The value on every row as a table of one column; None if DuckDB fails on any."""
        import duckdb

        try:
            self._connection.register("tidegate.rows", table)
            found = self._connection.sql(QUERY.format(sql)).to_arrow_table()
        except (duckdb.OutOfMemoryException, duckdb.InterruptException):  # they say nothing of the rows
            raise
        except (duckdb.FatalException, duckdb.InternalException):  # a function that fails unannounced ends the database
            self._connection = connect()
            return None
        except duckdb.Error:
            return None
        if len(found) != len(table):
            raise SafeError("prepare failed, as DuckDB gave back another number of rows than it was given")
        return found


def _get(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column for an expression: nulls if there is none, and no dictionary, as it may fail on an entry no row has."""
    if name not in batch.schema.names:
        return pa.nulls(len(batch))
    column = batch.column(batch.schema.names.index(name))
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _put(batch: pa.RecordBatch, name: str, value: pa.Array) -> pa.RecordBatch:
    if name in batch.schema.names:
        return batch.set_column(batch.schema.names.index(name), name, value)
    return batch.append_column(name, value)


def _keep(batch: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    if mask.all():
        return batch
    rows = np.flatnonzero(mask)
    return pa.RecordBatch.from_arrays([_take(column, rows) for column in batch.columns], schema=batch.schema)


def _take(column: pa.Array, rows: Rows) -> pa.Array:
    try:
        return column.take(pa.array(rows))
    except pa.ArrowNotImplementedError:  # views and runs
        return pa.concat_arrays([column.slice(0, 0), *(column.slice(row, 1) for row in rows.tolist())])


def _sound(batch: pa.RecordBatch, names: Sequence[str]) -> Mask:
    """The rows whose values are what their types promise: a text that is not UTF-8 would end DuckDB's database."""
    sound = np.ones(len(batch), np.bool_)
    for name in names:
        column = _get(batch, name)
        if "dictionary<" in str(column.type):  # inside a list or the like, where a broken entry is everybody's
            sound[:] = False
        _check(column, column, np.arange(len(batch)), sound)
    return sound


def _check(column: pa.Array, part: pa.Array, rows: Rows, sound: Mask) -> None:
    """Copies of ever fewer rows, since a slice of a list is refused for what lies outside it."""
    try:
        part.validate(full=True)
    except pa.ArrowInvalid:
        if len(rows) == 1 and part is not column:
            sound[rows] = False
            return
        for half in np.array_split(rows, min(2, len(rows))):
            _check(column, _take(column, half), half, sound)
