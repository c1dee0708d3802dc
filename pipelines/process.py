"""How the process of a command is set up, before anything large is imported.

None of it changes what is released. Each was measured: docs/performance.md says what it brings.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""As malloc.h of glibc has them."""


@contextmanager
def prepared() -> Iterator[None]:
    """Memory that was used once is used again, and garbage is looked for when there may be some."""
    keep_memory()
    # Importing Beam makes hundreds of thousands of objects that stay; looking through them again and again is a fifth of it.
    gc.set_threshold(50_000)
    try:
        yield
    finally:
        gc.freeze()  # and once more at the very end, for nothing: a third of a second


def keep_memory() -> None:
    """Let all arrays live in one heap that keeps what is freed, so that the system need not clear it for the next one.

    Work goes batch by batch, and arrays of megabytes come and go with each of them. By default they are given back to the
    system at once: then clearing pages is up to half of a run. What was set from outside stays.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # nobody multiplies matrices here, and its threads wait awake
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # no glibc: another libc, another system
        return
    set_option(_ARENA_MAX, 1)
    set_option(_MMAP_THRESHOLD, 1 << 30)
    set_option(_TRIM_THRESHOLD, -1)
