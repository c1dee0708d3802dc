"""Reading ahead: a thread takes what comes next from a file while what it has taken is worked on.

Arrow reads and parses without Python's lock, so the two run side by side where there are two processors.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from dataclasses import dataclass
from queue import Full, Queue
from typing import TypeVar

Item = TypeVar("Item")

_SECONDS = 0.05
"""How soon the thread notices that nobody wants more."""


@dataclass(frozen=True)
class _Over:
    """There is no more, and why if it is not the end."""

    problem: BaseException | None = None


def ahead(items: Generator[Item], most: int = 2) -> Generator[Item]:
    """The same items in the same order, and the same error in its place; at most `most` wait to be taken."""
    waiting: Queue[Item | _Over] = Queue(most)
    enough = threading.Event()

    def offer(item: Item | _Over) -> bool:
        while not enough.is_set():
            with contextlib.suppress(Full):
                waiting.put(item, timeout=_SECONDS)
                return True
        return False

    def take() -> None:
        try:
            with contextlib.closing(items):
                for item in items:
                    if not offer(item):
                        return
            offer(_Over())
        except BaseException as problem:  # whatever it is, it belongs to whoever asked
            offer(_Over(problem))

    thread = threading.Thread(target=take, name="tidegate-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := waiting.get(), _Over):
            yield item
            del item  # or a batch would be kept for as long as the next one is waited for
        if item.problem is not None:
            raise item.problem
    finally:
        enough.set()
        thread.join()
