"""Getting elements out of a pipeline under test."""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import Any, ClassVar, Generic, TypeVar

import apache_beam as beam

Item = TypeVar("Item")


class Collected(Generic[Item]):
    """Collects the elements of a PCollection on runners that work in this process."""

    _shelves: ClassVar[dict[str, list[Any]]] = {}

    def __enter__(self) -> Collected[Item]:
        self._name = uuid.uuid4().hex
        self._shelves[self._name] = []
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        del self._shelves[self._name]

    @property
    def items(self) -> list[Item]:
        return list(self._shelves[self._name])

    def collect(self) -> Any:
        name = self._name

        def put(item: Any) -> None:
            # Looked up by name where it runs: the function is pickled on its way there, and a list would be copied.
            from tests.collecting import Collected as Shelves

            Shelves._shelves[name].append(item)

        return beam.Map(put)
