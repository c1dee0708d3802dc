"""Lists of keys that lie in files: public keys, one a line, and weights, a key and its weight a line.

They become part of the terms when the spec is read, content and all: a list that changes is another release.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from tidegate.transforms.problems import SpecError, shown

LARGEST_BYTES = 256 * 2**20


def fill_in(data: Any) -> Any:
    """The spec as data, with the files that its gate names read in."""
    gate = data.get("gate") if isinstance(data, dict) else None
    if not isinstance(gate, dict):
        return data
    filled = dict(gate)
    if _names_file(gate.get("keys")):
        filled["keys"] = read_keys(gate["keys"]["file"])
    if _names_file(gate.get("weights")):
        filled["weights"] = read_weights(gate["weights"]["file"])
    return {**data, "gate": filled}


def _names_file(value: Any) -> bool:
    """`{file: path}`; a weight for a key of that name would be a number."""
    return isinstance(value, dict) and set(value) == {"file"} and isinstance(value["file"], str)


def read_keys(path: str) -> list[str]:
    """One key a line; a key of several columns is a JSON array. Empty lines do not count."""
    return [_key(line) for line in _text("gate.keys", path).splitlines() if line.strip()]


def read_weights(path: str) -> dict[str, float]:
    """Lines of key,weight as in CSV; inf lets a key in always, 0 keeps it out."""
    weights: dict[str, float] = {}
    for number, row in enumerate(csv.reader(_text("gate.weights", path).splitlines()), start=1):
        if not row:
            continue
        try:
            key, weight = _key(row[0]), float(row[1])
        except (IndexError, ValueError):
            raise SpecError(
                f"gate.weights must be lines of key,weight, and line {number} of {path} is not; write tides,2"
            ) from None
        if key in weights:
            raise SpecError(f"gate.weights must name each key once, and line {number} of {path} repeats one; drop it")
        weights[key] = weight
    return weights


def _key(text: str) -> str:
    if text.startswith("["):
        try:
            parts = json.loads(text)
        except ValueError:
            return text
        return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    return text


def _text(field: str, path: str) -> str:
    try:
        if Path(path).stat().st_size > LARGEST_BYTES:
            raise SpecError(f"{field} must be a file of at most {LARGEST_BYTES} bytes, not {path}; write fewer keys")
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise SpecError(f"{field} must be a file that can be read, not {shown(path)} ({problem.strerror})") from None
    except UnicodeDecodeError:
        raise SpecError(f"{field} must be text in UTF-8, and {path} is not; save it as UTF-8") from None
