"""Sinks: where releases go, and where dead letters go."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import apache_beam as beam
import pyarrow as pa
from apache_beam.metrics import Metrics

from tidegate.pipelines.publish import AnotherReleaseError, Format, publish
from tidegate.pipelines.reader import newest_in_folder, read_published
from tidegate.transforms.decode import DeadLetter
from tidegate.transforms.problems import SafeError, withheld
from tidegate.transforms.release import Release


class Place(Protocol):
    """Where windows are published, each once and for all."""

    def publish(self, release: Release) -> bool:
        """Publish a window; False if it was published before, with the same release. Safe to repeat at any point."""

    def published(self, window: str) -> tuple[Mapping[str, Any], pa.Table]:
        """The manifest and the rows of a window that is published."""

    def newest(self) -> Mapping[str, Any] | None:
        """The manifest of the latest window, if there is any."""

    def close(self) -> None:
        """Let go of connections."""


class FolderOfReleases:
    """A folder as a place to publish, local or remote."""

    def __init__(self, folder: str, kind: Format = "avro") -> None:
        self._folder, self._kind = folder, kind

    def publish(self, release: Release) -> bool:
        return publish(release, self._folder, self._kind)

    def published(self, window: str) -> tuple[Mapping[str, Any], pa.Table]:
        return read_published(self._folder, window)

    def newest(self) -> Mapping[str, Any] | None:
        return newest_in_folder(self._folder)

    def close(self) -> None:
        pass


class WriteReleases(beam.PTransform[Any, Any]):
    """Publishes releases in a folder, local or remote; gives the names of the windows it has seen through.

    Args:
      folder: Required.
      kind: Optional, default avro. Or parquet, or jsonl.
      keep_first: Optional, default False. What to do about a window that is published already with another content: refuse
        it, which fails the run, or keep what is published and go on, as a live stream must (see PublishFn).
    """

    def __init__(self, folder: str, kind: Format = "avro", *, keep_first: bool = False) -> None:
        super().__init__()
        self._open, self._keep_first = partial(FolderOfReleases, folder, kind), keep_first

    def expand(self, releases: Any) -> Any:
        return releases | PublishInOrder([self._open], keep_first=self._keep_first)


class PublishInOrder(beam.PTransform[Any, Any]):
    """Publishes every release in one sink after the other; gives the names of the windows that all of them have.

    A place never takes a window that it has with another content, and hands on what it has. Side by side, one place could
    turn down a changed window while another, which had not got so far, takes it: two draws of one window would be out.
    """

    def __init__(self, places: Sequence[Callable[[], Place]], *, keep_first: bool = False) -> None:
        super().__init__()
        self._publishers = [PublishFn(place, keep_first) for place in places]

    def expand(self, releases: Any) -> Any:
        for number, publisher in enumerate(self._publishers, start=1):
            releases = releases | f"Publish {number}" >> beam.ParDo(publisher).with_output_types(Release)
        return releases | "Names" >> beam.Map(_name_of).with_output_types(str)


def _name_of(release: Release) -> str:
    return release.folder


class PublishFn(beam.DoFn):
    """Publishes a window, and passes on what is published.

    A live stream that was interrupted goes over its last windows again, and a straggler may now be in time that was too late
    before, or the other way round. The window is out by then. With `keep_first` it stays as it is, also for the places that
    come after this one; without, such a change of mind is an error.
    """

    def __init__(self, place: Callable[[], Place], keep_first: bool = False) -> None:
        self._open, self._keep_first = place, keep_first
        self._place: Place | None = None
        self._new = Metrics.counter("tidegate", "windows_published")
        self._old = Metrics.counter("tidegate", "windows_unchanged")
        self._kept = Metrics.counter("tidegate", "windows_kept_as_first_published")

    @withheld("publishing")
    def process(self, release: Release) -> Iterator[Release]:
        if not isinstance(release, Release):
            raise SafeError(f"only a sealed release can be published, not {type(release).__name__}")
        if self._place is None:  # not before: an engine sets up a worker whose bundles may never hold a window
            self._place = self._open()
        try:
            (self._new if self._place.publish(release) else self._old).inc()
        except AnotherReleaseError:
            if not self._keep_first:
                raise
            self._kept.inc()
            manifest, rows = self._place.published(release.folder)
            release = Release(release.window, release.folder, rows, manifest)
        yield release

    def teardown(self) -> None:
        if self._place is not None:
            self._place.close()


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
