"""Tables for people: in Markdown, and between the markers of a page in docs/."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

Part = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Title, header and rows."""

END = "<!-- end -->"


def begin(name: str) -> str:
    return f"<!-- table: {name} -->"


def markdown(parts: Sequence[Part]) -> list[str]:
    """Lines of all tables."""
    lines = []
    for title, header, body in parts:
        lines += [f"### {title}", "", *(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *body)), ""]
    return lines


def fill(page: Path, filled: Mapping[str, str]) -> None:
    """Put each text between its markers. Raises ValueError where the page has none."""
    text = page.read_text(encoding="utf-8")
    for name, inside in filled.items():
        if not re.search(f"{begin(name)}\n.*?{END}", text, flags=re.DOTALL):
            raise ValueError(f"{page} must have a line {begin(name)} and, after it, {END}")
        before, rest = text.split(begin(name), 1)
        _, after = rest.split(END, 1)
        text = f"{before}{begin(name)}\n{inside}{END}{after}"
    page.write_text(text, encoding="utf-8")
