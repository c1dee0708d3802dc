"""The tree is what a newcomer expects: imports go one way, by one name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("mechanisms", "transforms", "pipelines")


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def sources() -> list[Path]:
    return [path for folder in (*PACKAGES, "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_import_name_is_a_relative_link_to_the_folder(package: str) -> None:
    link = ROOT / "tidegate" / package
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{package}"


def test_every_import_goes_by_the_full_name() -> None:
    bare = [
        (path.relative_to(ROOT), name)
        for path in sources()
        for name in imports_of(path)
        if name.split(".")[0] in PACKAGES or name.startswith(".")
    ]
    assert not bare


@pytest.mark.parametrize(
    ("package", "never"),
    [
        ("mechanisms", ("apache_beam", "tidegate.transforms", "tidegate.pipelines", "os", "pathlib", "io")),
        ("transforms", ("tidegate.pipelines",)),
    ],
)
def test_imports_go_one_way(package: str, never: tuple[str, ...]) -> None:
    wrong = [
        (path.name, name)
        for path in (ROOT / package).glob("*.py")
        for name in imports_of(path)
        if any(name == barred or name.startswith(barred + ".") for barred in never)
    ]
    assert not wrong


def test_mechanisms_do_not_pull_in_beam() -> None:
    code = (
        "import sys, pkgutil, importlib, tidegate.mechanisms as m\n"
        "[importlib.import_module(f'tidegate.mechanisms.{x.name}') for x in pkgutil.iter_modules(m.__path__)]\n"
        "print('apache_beam' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
