"""Sinks: where releases go, and where dead letters go."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from tidegate.pipelines.publish import Format, publish
from tidegate.transforms.decode import DeadLetter
from tidegate.transforms.problems import SafeError, withheld
from tidegate.transforms.release import Release


class WriteReleases(beam.PTransform[Any, Any]):
    """Publishes releases in a folder, local or remote; gives the names of the windows it has seen through."""

    def __init__(self, folder: str, kind: Format = "avro") -> None:
        super().__init__()
        self._folder, self._kind = folder, kind

    def expand(self, releases: Any) -> Any:
        return releases | PublishInOrder([PublishFn(self._folder, self._kind)])


class PublishInOrder(beam.PTransform[Any, Any]):
    """Publishes every release in one sink after the other; gives the names of the windows that all of them have.

    A sink refuses a window that it has with another content, and what it refuses goes no further. Side by side, one sink
    could refuse a changed window while another, which had not got so far, takes it: two draws of one window would be out.
    """

    def __init__(self, publishers: Sequence[beam.DoFn]) -> None:
        super().__init__()
        self._publishers = list(publishers)

    def expand(self, releases: Any) -> Any:
        for number, publisher in enumerate(self._publishers, start=1):
            releases = releases | f"Publish {number}" >> beam.ParDo(publisher).with_output_types(Release)
        return releases | "Names" >> beam.Map(_name_of).with_output_types(str)


def _name_of(release: Release) -> str:
    return release.folder


class PublishFn(beam.DoFn):
    """Publishes a window, and passes it on."""

    def __init__(self, folder: str, kind: Format) -> None:
        self._folder, self._kind = folder, kind
        self._new = Metrics.counter("tidegate", "windows_published")
        self._old = Metrics.counter("tidegate", "windows_unchanged")

    @withheld("publishing")
    def process(self, release: Release) -> Iterator[Release]:
        if not isinstance(release, Release):
            raise SafeError(f"only a sealed release can be published, not {type(release).__name__}")
        (self._new if publish(release, self._folder, self._kind) else self._old).inc()
        yield release


class WriteDeadLetters(beam.PTransform[Any, Any]):
    """Keeps rows that could not be read, with the reason, in a local folder that only its owner can open."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    def expand(self, letters: Any) -> Any:
        return letters | "Keep" >> beam.ParDo(KeepFn(self._folder))


class KeepFn(beam.DoFn):
    """One file a bundle, named after its content, so that a retried bundle writes the same file again."""

    LETTERS_A_FILE = 100_000

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def start_bundle(self) -> None:
        self._lines: list[str] = []

    @withheld("keeping dead letters")
    def process(self, letter: DeadLetter) -> Iterator[Any]:
        self._lines.append(
            json.dumps(
                {"reason": letter.reason, "source": letter.source, "row": letter.row, "raw": letter.raw},
                ensure_ascii=False,
            )
        )
        if len(self._lines) >= self.LETTERS_A_FILE:
            self._write()
        return
        yield

    @withheld("keeping dead letters")
    def finish_bundle(self) -> None:
        if self._lines:
            self._write()

    def _write(self) -> None:
        # JSON escapes lone surrogates, which UTF-8 cannot carry.
        data = "".join(f"{line}\n" for line in self._lines).encode("utf-8", errors="backslashreplace")
        self._lines = []
        folder = Path(self._folder)
        try:
            make_private_folder(folder)
            path = folder / f"dead-{hashlib.sha256(data).hexdigest()[:16]}.jsonl"
            draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # two tries may write at the same moment
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            draft.replace(path)
        except OSError as problem:
            raise SafeError(
                f"dead letters could not be written to {folder} ({problem.strerror}); make room or mend the folder"
            ) from None


def make_private_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
