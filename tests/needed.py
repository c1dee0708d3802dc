"""What a test needs beyond this package. Without it, it is left out by name; in CI that is a failure."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest


def leave_out(why: str) -> NoReturn:
    """Skip a test, or a whole file of them, where that is allowed."""
    if os.environ.get("CI"):
        pytest.fail(f"no test is left out in CI: {why}")
    pytest.skip(why, allow_module_level=True)


def needs(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        leave_out(f"needs {', '.join(missing)} on the PATH")


def needs_modules(*modules: str) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            leave_out(f"needs {module}; pip install '.[test,test-cloud]'")


def built_by(script: Path) -> str:
    """What a script of deploy/ puts into the cache, or finds there."""
    done = subprocess.run([str(script)], capture_output=True, text=True, check=False)
    if done.returncode:
        leave_out(done.stderr.strip().splitlines()[-1])
    return done.stdout.strip()
