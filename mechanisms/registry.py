"""Finding mechanisms by name: built-in and third-party ones come through the same entry point group."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, cast

from tidegate.mechanisms.mechanism import Bounds, Mechanism, Role

GROUP = "tidegate.mechanisms"


class MechanismError(ValueError):
    """A mechanism that does not exist, or not with these parameters. `field` says which part of the spec is wrong."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


def names(roles: tuple[Role, ...]) -> list[str]:
    """All mechanisms on hand for these roles."""
    return sorted({point.name for point in entry_points(group=GROUP) if getattr(point.load(), "role", None) in roles})


def build(
    name: str,
    roles: tuple[Role, ...],
    bounds: Bounds,
    parameters: Mapping[str, Any],
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> Mechanism:
    """The mechanism of that name, calibrated. Raises MechanismError with a sentence for people.

    `defaults` are given to mechanisms that take them.
    """
    points = _installed(name, tuple(sys.path))
    if not points:
        known = names(roles)
        if not known:
            raise MechanismError("mechanism", f"must be an installed {' or '.join(roles)} mechanism, not {name!r}")
        raise MechanismError("mechanism", f"must be one of {', '.join(known)}, not {name!r}{_nearest(name, known)}")
    if len({point.value for point in points}) > 1:
        places = ", ".join(sorted(point.value for point in points))
        raise MechanismError("mechanism", f"{name!r} is registered more than once ({places}); uninstall one of them")
    kind = points[0].load()
    role = getattr(kind, "role", None)
    if role not in roles:
        raise MechanismError("mechanism", f"{name!r} is a {role} mechanism, and here stands a {' or '.join(roles)} one")
    takes = {p.name: p for p in inspect.signature(kind).parameters.values() if p.kind is p.KEYWORD_ONLY}
    for field in parameters:
        if field not in takes:
            listed = sorted(takes)
            raise MechanismError(
                field, f"is not a parameter of {name}; it takes {', '.join(listed)}{_nearest(field, listed)}"
            )
    parameters = {**{field: value for field, value in defaults.items() if field in takes}, **parameters}
    for field, parameter in takes.items():
        if parameter.default is parameter.empty and field not in parameters:
            raise MechanismError(field, f"is required by {name}; write {field}: and a value")
    try:
        return cast(Mechanism, kind(bounds, **parameters))
    except (ValueError, TypeError) as problem:
        sentence = str(problem)
        field = next((p for p in parameters if sentence.startswith(p)), "mechanism")
        raise MechanismError(field, sentence.removeprefix(field).strip()) from None


@lru_cache
def _installed(name: str, _: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Whoever has that name. Looking through all packages takes a while, and what is installed changes with the path."""
    return tuple(entry_points(group=GROUP, name=name))


def _nearest(word: str, words: list[str]) -> str:
    close = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {close[0]}?" if close else ""
