"""The process of a command keeps memory that it was given, and respects what was set from outside."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# Arrays of 64 MiB that come and go, as those of batches do; what is printed is pages that the system had to clear for them.
COME_AND_GO = """
import resource
{first}
import numpy as np
import pyarrow as pa
def come_and_go():
    for _ in range(10):
        np.ones(1 << 23)
        pa.array(np.arange(1 << 16)).cast(pa.string())
come_and_go()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
come_and_go()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, pa.default_memory_pool().backend_name)
"""
KEEPING = "from tidegate.pipelines.process import keep_memory; keep_memory()"


def printed(code: str, **environment: str) -> list[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "ARROW_"))}
    # Huge pages would hide most of what is counted.
    given = {**plain, "NUMPY_MADVISE_HUGEPAGE": "0", **environment}
    done = subprocess.run([sys.executable, "-c", code], env=given, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another libc has other ways")
def test_memory_that_comes_and_goes_is_cleared_once() -> None:
    usual, _ = printed(COME_AND_GO.format(first=""))
    kept, pool = printed(COME_AND_GO.format(first=KEEPING))
    assert pool == "system"
    assert int(usual) > 10 * (1 << 26) // 4096 // 2  # or there would be nothing to gain
    assert int(kept) < int(usual) / 20


def test_what_was_set_from_outside_stays() -> None:
    usual, pool = printed(COME_AND_GO.format(first=KEEPING), MALLOC_ARENA_MAX="2", ARROW_DEFAULT_MEMORY_POOL="mimalloc")
    assert pool == "mimalloc"
    assert int(usual) > 10 * (1 << 26) // 4096 // 2


def test_a_libc_without_options_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.pipelines.process import keep_memory

    def nothing(_: None) -> object:
        return object()

    monkeypatch.setattr(ctypes, "CDLL", nothing)
    for name in ("ARROW_DEFAULT_MEMORY_POOL", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    keep_memory()
