"""Finding mechanisms by name: built-in and third-party ones come through the same entry point group."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, cast

from tidegate.mechanisms.mechanism import Bounds, Mechanism, Role

GROUP = "tidegate.mechanisms"


class MechanismError(ValueError):
    """A mechanism that does not exist, or not with these parameters. `field` says which part of the spec is wrong."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


def names() -> list[str]:
    """All mechanisms on hand."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def build(name: str, roles: tuple[Role, ...], bounds: Bounds, parameters: Mapping[str, Any]) -> Mechanism:
    """The mechanism of that name, calibrated. Raises MechanismError with a sentence for people."""
    points = list(entry_points(group=GROUP, name=name))
    if not points:
        raise MechanismError(
            "mechanism", f"must be one of {', '.join(names())}, not {name!r}{_nearest(name, names())}"
        )
    if len({point.value for point in points}) > 1:
        places = ", ".join(sorted(point.value for point in points))
        raise MechanismError("mechanism", f"{name!r} is registered more than once ({places}); uninstall one of them")
    kind = points[0].load()
    role = getattr(kind, "role", None)
    if role not in roles:
        raise MechanismError("mechanism", f"{name!r} is a {role} mechanism, and here stands a {' or '.join(roles)} one")
    known = {p.name for p in inspect.signature(kind).parameters.values() if p.kind is p.KEYWORD_ONLY}
    for field in parameters:
        if field not in known:
            raise MechanismError(
                field, f"is not a parameter of {name}; it takes {', '.join(sorted(known))}{_nearest(field, sorted(known))}"
            )
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            if parameter.name not in parameters:
                raise MechanismError(parameter.name, f"is required by {name}; write {parameter.name}: and a value")
    try:
        return cast(Mechanism, kind(bounds, **parameters))
    except (ValueError, TypeError) as problem:
        sentence = str(problem)
        field = next((p for p in parameters if sentence.startswith(p)), "mechanism")
        raise MechanismError(field, sentence.removeprefix(field).strip()) from None


def _nearest(word: str, words: list[str]) -> str:
    close = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {close[0]}?" if close else ""
