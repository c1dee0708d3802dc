"""Reading ahead: the same items and errors as without it, never far ahead, and no thread that outlives it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator

import pytest

from tidegate.pipelines.formats.ahead import ahead


def numbers(count: int, taken: list[int], problem: BaseException | None = None) -> Generator[int]:
    for number in range(count):
        taken.append(number)
        yield number
    if problem is not None:
        raise problem


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive() -> int:
    return sum(thread.name == "tidegate-ahead" for thread in threading.enumerate())


def test_all_items_in_order() -> None:
    assert list(ahead(numbers(100, []))) == list(range(100))
    assert list(ahead(numbers(0, []))) == []
    assert alive() == 0


def test_it_reads_while_nobody_asks_but_not_far() -> None:
    taken: list[int] = []
    items = ahead(numbers(100, taken), most=2)
    assert next(items) == 0
    eventually(lambda: len(taken) == 4)  # one in use, two waiting, one at the door
    time.sleep(0.2)
    assert len(taken) == 4
    items.close()


def test_an_error_comes_in_its_place() -> None:
    items = ahead(numbers(3, [], OSError(5, "gone")))
    assert [next(items), next(items), next(items)] == [0, 1, 2]
    with pytest.raises(OSError, match="gone"):
        next(items)
    assert alive() == 0


def test_giving_up_ends_the_thread_and_closes_the_file() -> None:
    closed = threading.Event()

    def file() -> Generator[int]:
        try:
            yield from range(1000)
        finally:
            closed.set()

    items = ahead(file())
    assert next(items) == 0
    items.close()
    assert closed.is_set()
    assert alive() == 0
