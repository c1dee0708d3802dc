"""What tests of clouds need."""

from __future__ import annotations

import importlib
import os

import pytest


def needs_package(module: str, package: str) -> None:
    """Skip where a package is missing, and say which; where everything should be there, that is a failure."""
    try:
        importlib.import_module(module)
    except ImportError:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"needs {package}; pip install '.[test-cloud]'", allow_module_level=True)
