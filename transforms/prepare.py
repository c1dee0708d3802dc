"""prepare: rows are filtered, derived and bucketed by SQL expressions, each row by itself, before anything is bounded.

DuckDB reads and runs the expressions, so there is no language of our own. What it may run is decided when a spec is
parsed: functions of one row and nothing else. The bounds hold since a unit can change no more than its own rows; a
`where` that looked at a sum, the clock or a file would let it, or a second run, change what becomes of others'.

Names of columns are as written, and upper and lower case differ, as everywhere in a spec. DuckDB does not tell them
apart, so an expression is given the columns it names and no others.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.transforms.columns import ROW
from tidegate.transforms.problems import SafeError, shown, withheld

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_KINDS = ("where", "derive", "bucket", "truncate")
_LONGEST, _MOST_EVENTS, _LARGEST, _PLACES = 10_000, 1_000_000, 10**15, 9
_QUERY = 'SELECT ({}) AS "value" FROM "tidegate.rows"'
_NODES = {"BETWEEN", "CASE", "CAST", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "LAMBDA", "OPERATOR", "TYPE"}
# A macro may stand for anything; what these stand for is an expression of their arguments.
_MACROS = {"array_to_string", "date_add", "days_in_month", "fdiv", "fmod", "if", "list_append", "list_avg"}
_MACROS |= {"list_count", "list_max", "list_min", "list_prepend", "list_reverse", "list_sum", "nullif", "split_part"}
_OTHERS = "one unit's rows would change what becomes of another's, and the bounds would no longer hold"
_REPLAY = "the same row would not always come to the same, and a second run would release other numbers than the first"
_PLACE = "what becomes of a row would depend on where it is read"
_WHY = {
    "subquery": f"a subquery looks beyond it: {_OTHERS}",
    "star": f"* is whatever columns a source has: {_PLACE}",
    "positional_reference": f"# is whichever column a source has there: {_PLACE}",
    "parameter": f"a parameter comes from elsewhere: {_PLACE}",
    "aggregate": f"{{}} is an aggregate: {_OTHERS}",
    "window": f"{{}} is a window function: {_OTHERS}",
    "table": "{} is a table function: rows would come from elsewhere, and the bounds would no longer hold",
    "macro": "{} is a macro: what it stands for may look at more than the row",
    "volatile": f"{{}} changes from call to call or does more than compute: {_REPLAY}",
    "consistent_within_query": f"{{}} changes from run to run: {_REPLAY}",
    "clock": f"{{}} reads the clock: {_REPLAY}",
    "session": f"{{}} reads what surrounds it: {_PLACE}",
    "by name": f"{{}} may call an aggregate that draws at random: {_REPLAY}",
}
# What DuckDB lists as consistent, or not at all, and is no function of the row; age(x) is that of today.
_REFUSED = {
    **dict.fromkeys(("age", "current_localtime", "current_localtimestamp"), "clock"),
    **dict.fromkeys(("alias", "getenv", "index_key", "json_serialize_plan"), "session"),
    **dict.fromkeys(("aggregate", "array_aggr", "array_aggregate", "list_aggr", "list_aggregate"), "by name"),
}
# Functions that need no parentheses. Not `user`: it is a column here, as one that is named is always there (`_get`).
_BARE = {
    **dict.fromkeys(("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"), "clock"),
    **dict.fromkeys(("current_catalog", "current_role", "current_schema", "current_user", "session_user"), "session"),
}
_PARSING = threading.Lock()


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
    """What a spec does to rows before they are counted, in the order written."""

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
    """(field, kind, rule) of each step, from either form."""
    listed = isinstance(value, list)
    for place, part in enumerate(value if isinstance(value, list) else [{} if value is None else value]):
        name = f"prepare[{place}]" if listed else "prepare"
        if not isinstance(part, Mapping) or (listed and len(part) != 1):
            rule = "a group of one field" if listed else "a group of steps or a list of them"
            raise ValueError(f"{name} must be {rule}, not {shown(part)}; write where: and an expression")
        for kind, rule in part.items():
            if kind not in _KINDS:
                close = difflib.get_close_matches(str(kind), _KINDS, n=1)
                hint = f"write {close[0]}" if close else f"the fields here are {', '.join(_KINDS)}"
                raise ValueError(f"{name}.{kind} is not a field of the spec; {hint}")
            yield f"{name}.{kind}", kind, rule


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
    if len(text) > _LONGEST:
        raise ValueError(f"{field} must be at most {_LONGEST} characters long, not {len(text)}; write a shorter one")
    needs = tuple(dict.fromkeys(_columns_of(field, _parse(field, text.strip()))))
    alike = {name.casefold(): name for name in needs}
    for name in needs:
        if (other := alike[name.casefold()]) != name:
            raise ValueError(
                f"{field} must not name columns that differ in case alone, and {name} and {other} do; "
                f"derive one under another name first"
            )
    return Formula(target, text.strip(), needs)


def _parse(field: str, text: str) -> Any:
    """The tree of an expression, taken from the very query that will be run."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "''", text)
    if "--" in bare or "/*" in bare or re.search(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", text.replace("\r\n", "\n")):
        raise ValueError(f"{field} must be free of comments and control characters, not {shown(text)}; leave them out")
    # Alone, and in its place: what reaches beyond its own parentheses cannot be read, or differently, in one of them.
    inner, outer = (_tree(query).get("select_list", []) for query in (f"SELECT {text}", _QUERY.format(text)))
    if len(inner) != 1 or inner[0]["alias"] or [{**inner[0], "alias": "value"}] != outer:
        raise ValueError(f"{field} must be one expression that DuckDB can read, not {shown(text)}; write a < 400")
    return inner[0]


def _tree(query: str) -> dict[str, Any]:
    """A query as DuckDB parses it, but for the places of things in its text; empty if it is not one query."""
    import duckdb

    try:
        with _PARSING:
            tree = _parser().execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0][0]
        found = json.loads(tree, object_hook=lambda node: {k: node[k] for k in node if "query_location" not in k})
    except (duckdb.Error, RecursionError):
        return {}
    return dict(found["statements"][0]["node"]) if not found["error"] and len(found["statements"]) == 1 else {}


def _columns_of(field: str, node: Any, bound: frozenset[str] = frozenset()) -> Iterator[str]:
    """The columns a tree refers to. Whatever a part of it is called, it is visited, and refused unless known."""
    if isinstance(node, list):
        for part in node:
            yield from _columns_of(field, part, bound)
    if not isinstance(node, dict):
        return
    kind = node.get("class")
    if kind == "COLUMN_REF":  # what follows the first name is a field of that column
        if node["column_names"][0].lower() not in bound:
            yield _column(field, node["column_names"][0])
        return
    if kind == "LAMBDA" and node.get("syntax_type") == "SINGLE_ARROW":
        raise ValueError(f"{field} must do without ->, which may mean two things; write lambda x: or json_extract")
    if kind == "LAMBDA":
        bound |= {name.lower() for name in _columns_of(field, node["lhs"])}
    elif kind in ("FUNCTION", "TYPE"):
        _check_name(field, kind.lower(), node)
    elif kind not in (None, *_NODES) or node.get("type") in ("GROUPING_FUNCTION", "OPERATOR_UNPACK"):
        _refuse(field, str(kind), node.get("function_name") or node["type"])
    for part in node.values():
        yield from _columns_of(field, part, bound)


def _column(field: str, name: str) -> str:
    if name.lower() in _BARE:
        _refuse(field, _BARE[name.lower()], name)
    if name == ROW:
        raise ValueError(f"{field} must not name {ROW}, as {_OTHERS}; write an expression of the row's own columns")
    return name


def _check_name(field: str, kind: str, node: Mapping[str, Any]) -> None:
    """A function, or a type, by what DuckDB has under its name."""
    name, known = str(node[f"{kind}_name"]).lower(), _catalogue()[kind]
    if node.get("schema") or node.get("catalog"):
        raise ValueError(f"{field} must name the {kind} {name} without a dot before it; write {name} alone")
    if name not in known:
        close = difflib.get_close_matches(name, [other for other, why in known.items() if not why], n=1)
        hint = f"write {close[0]}" if close else f"write one of DuckDB's {kind}s"
        raise ValueError(f"{field} must use a {kind} that exists, not {name}; {hint}")
    if known[name]:
        _refuse(field, known[name], name)
    if node.get("distinct") or node.get("filter") or (node.get("order_bys") or {}).get("orders"):
        _refuse(field, "aggregate", f"{name} with DISTINCT, FILTER or ORDER BY")


def _refuse(field: str, kind: str, name: str) -> NoReturn:
    why = _WHY.get(kind.lower(), f"{{}} is not known to be one: {_OTHERS}").format(name)
    raise ValueError(f"{field} must be a function of one row, and {why}; write an expression of the row's own columns")


def _connect() -> DuckDBPyConnection:
    """A database in memory that reaches nothing outside and is the same on every machine."""
    import duckdb

    off = ("enable_external_access", "autoload_known_extensions", "autoinstall_known_extensions")
    connection = duckdb.connect(":memory:", config={"threads": 1, **dict.fromkeys(off, False)})
    with contextlib.suppress(duckdb.Error):  # where it was built without time zones
        connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET max_expression_depth = 100")  # more than people write, less than Python can descend
    connection.execute("SET lock_configuration = true")
    return connection


@functools.cache
def _parser() -> DuckDBPyConnection:
    return _connect()


@functools.cache
def _catalogue() -> dict[str, dict[str, str]]:
    """Functions and types by name, each with the reason to refuse it or none: one bad overload is enough."""
    with _PARSING:
        listed = "SELECT lower(function_name), function_type, stability FROM duckdb_functions()"
        overloads = _parser().execute(listed).fetchall()
        types = _parser().execute("SELECT lower(type_name) FROM duckdb_types()").fetchall()
    functions: dict[str, str] = {}
    for name, kind, stability in overloads:
        why = stability if kind == "scalar" else {"table_macro": "table", "pragma": "session"}.get(kind, kind)
        if name in _MACROS or why == "CONSISTENT":
            why = "session" if name.startswith("__") else ""
        functions[name] = functions.get(name) or why
    return {"function": functions | _REFUSED, "type": {name: "" for (name,) in types}}


class Preparer:
    """Prepares batches. What becomes of a row depends on that row and the types of its columns, and on nothing else."""

    def __init__(self, preparation: Preparation) -> None:
        self._steps = preparation.steps
        self._connection: Any = _connect() if self._steps else None

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
            self._connection.register("tidegate.rows", table.slice(0, 0)).sql(_QUERY.format(sql))
        except duckdb.Error:
            return False
        return True

    def _run(self, sql: str, table: pa.Table) -> pa.Table | None:
        """The value on every row as a table of one column; None if DuckDB fails on any."""
        import duckdb

        try:
            self._connection.register("tidegate.rows", table)
            found = self._connection.sql(_QUERY.format(sql)).to_arrow_table()
        except (duckdb.OutOfMemoryException, duckdb.InterruptException):  # they say nothing of the rows
            raise
        except (duckdb.FatalException, duckdb.InternalException):  # a function that fails unannounced ends the database
            self._connection = _connect()
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
