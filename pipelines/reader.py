"""Reading releases: published windows as one table, and an error where a window is missing.

A folder says itself which windows it should hold: every manifest names the range it was released for. A window of that range
without a manifest is a gap, and a gap is never read over silently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from tidegate.pipelines.publish import MANIFEST, read_manifest
from tidegate.pipelines.remote import reach
from tidegate.transforms.problems import SafeError
from tidegate.transforms.release import ROW_SCHEMA

KAFKA = "kafka://"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ReadError(SafeError):
    """Releases that cannot be relied on."""


@dataclass(frozen=True)
class Published:
    """A published window: its place and its manifest, and its rows where they came along."""

    place: str
    manifest: dict[str, Any]
    rows: pa.Table | None = None

    @property
    def start(self) -> datetime:
        return _instant(self.manifest["window"]["start"])

    @property
    def end(self) -> datetime:
        return _instant(self.manifest["window"]["end"])

    def tables(self) -> Iterator[pa.Table]:
        if self.rows is not None:
            yield self.rows
            return
        for file in self.manifest["files"]:
            yield _read_rows(FileSystems.join(self.place, file["name"]), file)


def read_releases(
    path: str,
    *,
    windows: Sequence[str | datetime] | None = None,
    keys: Sequence[str] | None = None,
    allow_gaps: bool = False,
    security: str | None = None,
) -> pa.Table:
    """All released rows of a folder or topic as an Arrow table, in order of window and key.

    Args:
      path: The folder that a sink names, local or remote, or a topic: kafka://server:9092/topic.
      windows: Optional. Only the windows that begin at these times.
      keys: Optional. Only these keys.
      allow_gaps: Optional, default False. Read on although a window is missing.
      security: Optional. For a topic: the file with what is needed to connect.

    Raises ReadError if the folder holds no releases, a window is missing, or a file is not what its manifest says.
    """
    published = list_published(str(path), security)
    if not allow_gaps:
        refuse_gaps(published)
    if windows is not None:
        asked = [_instant(window) for window in windows]
        for window in asked:
            if all(item.start != window for item in published):
                raise ReadError(
                    f"no window begins at {_rfc3339(window)}; the first begins at {_rfc3339(published[0].start)}, "
                    f"the last at {_rfc3339(published[-1].start)}"
                )
        published = [item for item in published if item.start in asked]
    tables = []
    for item in published:
        for rows in item.tables():
            if keys is not None:
                rows = rows.filter(pc.is_in(rows["key"], value_set=pa.array(list(keys), pa.string())))
            tables.append(rows)
    return pa.concat_tables(tables).combine_chunks() if tables else ROW_SCHEMA.empty_table()


def list_published(path: str, security: str | None = None) -> list[Published]:
    """The published windows of a folder or topic, in order."""
    published = _in_topic(path, security) if path.startswith(KAFKA) else _in_folder(path)
    if not published:
        raise ReadError(f"{path} holds no releases; name the folder or topic that a spec has as its sink")
    streams = sorted({item.manifest["stream"] for item in published})
    if len(streams) > 1:
        raise ReadError(f"{path} holds releases of several streams ({', '.join(streams)}); they need a place each")
    return sorted(published, key=lambda item: (item.start, item.end))


def _in_topic(path: str, security: str | None) -> list[Published]:
    servers, _, topic = path.removeprefix(KAFKA).partition("/")
    if not servers or not topic or "/" in topic:
        raise ReadError(f"a topic must be named with its servers, not {path}; write kafka://localhost:9092/releases")
    try:
        from tidegate.pipelines.kafka.reader import read_topic
    except ModuleNotFoundError:
        raise ReadError("topics need the package confluent-kafka; pip install 'tidegate[kafka]'") from None
    return [Published(path, manifest, rows) for manifest, rows in read_topic(servers, topic, security)]


def _in_folder(path: str) -> list[Published]:
    reach()
    pattern = FileSystems.join(path, "*", MANIFEST)
    try:
        found = FileSystems.match([pattern])[0].metadata_list
    except Exception as problem:
        raise ReadError(f"{path} cannot be listed ({type(problem).__name__}); check the path") from None
    published = []
    for item in found:
        place = item.path.removesuffix(MANIFEST).rstrip("/")
        manifest = read_manifest(place)
        if manifest is not None:
            lacks = {"stream", "window", "range", "files"} - manifest.keys()
            if lacks:
                raise ReadError(f"{item.path} is not a whole manifest (it lacks {min(lacks)}); restore it from a copy")
            published.append(Published(place, manifest))
    return published


def newest_in_folder(folder: str) -> dict[str, Any] | None:
    """The manifest of a folder's latest window, found by name, so that a long stream costs one file."""
    try:
        found = FileSystems.match([FileSystems.join(folder, "*", MANIFEST)])[0].metadata_list
    except Exception:  # no such folder yet; if it cannot be made, publishing says so
        return None
    places = sorted(item.path.removesuffix(MANIFEST).rstrip("/") for item in found)
    return read_manifest(places[-1]) if places else None


def read_published(folder: str, window: str) -> tuple[dict[str, Any], pa.Table]:
    """The manifest and the rows of one window, as they were sealed."""
    place = FileSystems.join(folder, window)
    manifest = read_manifest(place)
    if manifest is None:
        raise ReadError(f"window {window} is not in {folder}, although it was published there; restore it from a copy")
    rows = [ROW_SCHEMA.empty_table(), *Published(place, manifest).tables()]
    return as_sealed(manifest), pa.concat_tables(rows).combine_chunks()


def as_sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest without what a place added to it."""
    return {name: value for name, value in manifest.items() if name not in ("release_digest", "files", "messages")}


def refuse_gaps(published: Sequence[Published]) -> None:
    """Every window of the range that the manifests name must be there, and all between ranges of one kind of windows."""
    kinds: dict[tuple[timedelta, timedelta, timedelta], list[tuple[datetime, datetime]]] = {}
    for named in {tuple(item.manifest["range"].values()): item.manifest["range"] for item in published}.values():
        # An endless stream has all windows up to the last one that is out.
        start = _instant(named["start"])
        end = max(item.end for item in published) if named["end"] is None else _instant(named["end"])
        step, size = timedelta(seconds=named["every_seconds"]), timedelta(seconds=named["size_seconds"])
        kinds.setdefault((step, size, (start - _EPOCH) % step), []).append((start, end))
    there = {(item.start, item.end) for item in published}
    missing = []
    for (step, size, _), ranges in kinds.items():
        window, last = min(start for start, _ in ranges), max(end for _, end in ranges) - size
        while window <= last:
            if (window, window + size) not in there:
                missing.append(window)
            window += step
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ReadError(
            f"the window that begins at {_rfc3339(min(missing))} is missing{more}; its run has not finished or has failed: "
            f"run it again, or read what there is with --allow-gaps (allow_gaps=True)"
        )


def _read_rows(path: str, file: dict[str, Any]) -> pa.Table:
    try:
        with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
            data = stream.read()
    except Exception as problem:
        raise ReadError(f"{path} cannot be read ({type(problem).__name__}), although its manifest names it") from None
    if hashlib.sha256(data).hexdigest() != file["sha256"]:
        raise ReadError(f"{path} is not what its manifest says (its SHA-256 differs); restore it from a copy")
    if file["format"] == "avro":
        from tidegate.pipelines.formats.avro_reading import decode_table  # slow to import, and not always needed

        table = decode_table(data)
    elif file["format"] == "parquet":
        # On this thread alone: threads of Arrow's pool may still hold the bytes when a short command ends, and abort it.
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    else:
        table = _from_jsonl(data)
    return table.cast(ROW_SCHEMA)


def _from_jsonl(data: bytes) -> pa.Table:
    rows = [json.loads(line) for line in data.split(b"\n") if line]
    for row in rows:
        row["window_start"], row["window_end"] = _instant(row["window_start"]), _instant(row["window_end"])
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


def _instant(value: str | datetime) -> datetime:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            raise ReadError(f"{value!r} is not an RFC 3339 time; write 2026-01-01T00:00:00Z") from None
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


def _rfc3339(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")
