"""Which SQL expressions look at one row and nothing else.

DuckDB reads and runs them, so there is no language of our own. What it may run is decided when a spec is parsed: a `where`
that looked at a sum, the clock or a file would let a unit, or a second run, change what becomes of others' rows. The tree
that is checked is DuckDB's own, of the very query that is run; a part of it that is not known to be harmless is refused.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import re
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from tidegate.transforms.columns import ROW
from tidegate.transforms.problems import shown

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_LONGEST = 10_000
QUERY = 'SELECT ({}) AS "value" FROM "tidegate.rows"'
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
    **dict.fromkeys(("alias", "current_setting", "getenv", "getvariable"), "session"),
    **dict.fromkeys(("index_key", "json_serialize_plan"), "session"),
    **dict.fromkeys(("aggregate", "array_aggr", "array_aggregate", "list_aggr", "list_aggregate"), "by name"),
}
# Functions that need no parentheses. Not `user`: it is a column here, as one that is named is always there (`_get`).
_BARE = {
    **dict.fromkeys(("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"), "clock"),
    **dict.fromkeys(("current_catalog", "current_role", "current_schema", "current_user", "session_user"), "session"),
}
_PARSING = threading.Lock()


def columns_of(field: str, text: str) -> tuple[str, ...]:
    """The columns that an expression needs; refused by a ValueError of one sentence unless it is one of a single row."""
    if len(text) > _LONGEST:
        raise ValueError(f"{field} must be at most {_LONGEST} characters long, not {len(text)}; write a shorter one")
    needs = tuple(dict.fromkeys(_columns_of(field, _parse(field, text))))
    alike = {name.casefold(): name for name in needs}
    for name in needs:
        if (other := alike[name.casefold()]) != name:
            raise ValueError(
                f"{field} must not name columns that differ in case alone, and {name} and {other} do; "
                f"derive one under another name first"
            )
    return needs


def _parse(field: str, text: str) -> Any:
    """The tree of an expression, taken from the very query that will be run."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "''", text)
    if "--" in bare or "/*" in bare or re.search(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", text.replace("\r\n", "\n")):
        raise ValueError(f"{field} must be free of comments and control characters, not {shown(text)}; leave them out")
    # Alone, and in its place: what reaches beyond its own parentheses cannot be read, or differently, in one of them.
    inner, outer = (_tree(query).get("select_list", []) for query in (f"SELECT {text}", QUERY.format(text)))
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


def connect() -> DuckDBPyConnection:
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
    return connect()


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
