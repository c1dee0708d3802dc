"""Errors that people may read: nothing in them was taken from a record.

A refused spec becomes one sentence: the field, the rule, the value, and what to write instead. And since an error of a
library may quote the value it stumbled over, every stage that sees exact data hides such messages (`withheld`).
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

Method = TypeVar("Method", bound=Callable[..., Any])

# The rules of pydantic as authors of specs would put them.
_RULES = {
    "model_type": "must be a group of fields",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "string_type": "must be text",
    "string_too_short": "must be text of one character or more",
    "tuple_type": "must be a list",
}


class SafeError(Exception):
    """An error whose message was written for people and holds nothing of a record."""


class SpecError(SafeError, ValueError):
    """A spec that cannot be run, as one sentence for people."""


def withheld(stage: str) -> Callable[[Method], Method]:
    """Replace any error of a method by one that names the stage and the kind of error, and nothing else."""

    def hide(problem: Exception) -> SafeError:
        if isinstance(problem, SafeError):
            return problem
        return SafeError(
            f"{stage} failed with {type(problem).__name__}; the message is withheld, as it may quote a record"
        )

    def wrap(method: Method) -> Method:
        if inspect.isgeneratorfunction(method):

            @functools.wraps(method)
            def generate(*args: Any, **kwargs: Any) -> Any:
                problem: SafeError
                try:
                    yield from method(*args, **kwargs)
                    return
                except Exception as error:
                    problem = hide(error)
                # Raised out here, so that the original does not travel along as the context of the new one.
                raise problem

            return generate  # type: ignore[return-value]

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            problem: SafeError
            try:
                return method(*args, **kwargs)
            except Exception as error:
                problem = hide(error)
            raise problem

        return call  # type: ignore[return-value]

    return wrap


def sentence(model: type[BaseModel], refused: ValidationError) -> str:
    """The first thing to mend in the spec."""
    # A misspelt field is the likeliest reason for a missing one, so it is named first.
    errors = sorted(refused.errors(), key=lambda e: e["type"] not in ("extra_forbidden", "invalid_key"))
    return _one(model, errors[0])


def _one(model: type[BaseModel], error: ErrorDetails) -> str:
    place, kind, value = list(error["loc"]), error["type"], error["input"]
    if kind == "invalid_key":  # such as the number in `5: x`, which pydantic would have stand for a place in a list
        place[-1] = shown(value)
    name = _dotted(place)
    holder, field = _find(model, place)
    example = _example(holder, field)
    if kind in ("extra_forbidden", "invalid_key"):
        known = sorted(holder.model_fields)
        close = difflib.get_close_matches(str(field), known, n=1)
        hint = f"write {close[0]}" if close else f"the fields here are {', '.join(known)}"
        return f"{name} is not a field of the spec; {hint}"
    if kind == "missing":
        return f"{name} is required and missing; write {example}"
    if kind == "value_error":
        message = str(error["ctx"]["error"]) if "ctx" in error else error["msg"]
        if not place or message.startswith(name):
            return message
        return f"{name}.{message}" if _names_a_field(holder, field, message) else f"{name} {message}"
    ours = _RULES.get(kind, "").format(**error.get("ctx", {}))
    rule = ours or error["msg"].replace("Input should be", "must be")
    return f"{name} {rule}, not {shown(value)}; write {example}"


def shown(value: object) -> str:
    """A value of the spec as its author would recognise it, cut to a readable length."""
    text = {"None": "empty", "True": "true", "False": "false"}.get(repr(value), repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


def _dotted(place: list[int | str]) -> str:
    name = ""
    for part in place:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name or "the spec"


def _find(model: type[BaseModel], place: list[int | str]) -> tuple[type[BaseModel], str | None]:
    """The model that holds the field, and the field."""
    holder, field = model, None
    for part in place:
        if isinstance(part, int):
            continue
        if field is not None and field in holder.model_fields:
            holder = _model_in(holder.model_fields[field].annotation) or holder
        field = part
    return holder, field


def _model_in(annotation: Any) -> type[BaseModel] | None:
    arguments = get_args(annotation)
    if not arguments and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in arguments:
        found = _model_in(argument)
        if found:
            return found
    return None


def _example(holder: type[BaseModel], field: str | None) -> str:
    info = holder.model_fields.get(field or "")
    if info is not None and info.examples:
        return f"{field}: {info.examples[0]}"
    return f"{field}: and a value" if field else "a group of fields"


def _names_a_field(holder: type[BaseModel], field: str | None, message: str) -> bool:
    """Whether the message of a rule between fields begins with the field it is about."""
    inner = _model_in(holder.model_fields[field].annotation) if field in holder.model_fields else holder
    return inner is not None and message.split(maxsplit=1)[0].split(".")[0] in inner.model_fields
