"""Publishing a window: its rows, then its manifest, which is the commit mark.

    releases/20260101T000000Z-20260101T010000Z/rows-3f2a….avro     named after its own content
    releases/20260101T000000Z-20260101T010000Z/manifest.json       written last; without it the window is not published

A window that is published stays as it is: publishing the same release again changes nothing, and publishing another one is
refused. A run that was killed half-way leaves no manifest for the window it was at; the next one removes what it left.
Everything goes through Beam's file systems, so a folder may be local or remote.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import secrets
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from tidegate.pipelines.formats.avro_writing import encode
from tidegate.pipelines.remote import create
from tidegate.transforms.problems import SafeError
from tidegate.transforms.release import Release

Format = Literal["avro", "parquet", "jsonl"]
MANIFEST = "manifest.json"


class PublishError(SafeError):
    """A window that could not be published."""


class AnotherReleaseError(PublishError):
    """A window that is published already, under the same terms and yet with another content."""


def publish(release: Release, folder: str, kind: Format) -> bool:
    """Publish a window; False if it was published before, with the same release. Safe to repeat at any point."""
    place = FileSystems.join(folder, release.folder)
    data = encode_rows(release.rows, kind)
    digest = hashlib.sha256(data).hexdigest()
    name = f"rows-{digest[:16]}.{kind}"
    manifest = {
        **release.manifest,
        "release_digest": release_digest(release),
        "files": [{"name": name, "format": kind, "rows": len(release.rows), "sha256": digest}],
    }
    try:
        new = read_manifest(place) is None and _add(place, name, data, manifest)
        published = read_manifest(
            place
        )  # whatever was written: where a store knows no conditions, the last writer wins
    except OSError as problem:
        raise PublishError(
            f"window {release.folder} could not be written to {folder} ({problem.strerror or type(problem).__name__}); "
            f"nothing of it is published: make room or mend the folder, then run again"
        ) from None
    refuse_another(published, manifest, place)
    _tidy(place, published or {})
    return new


def _add(place: str, name: str, data: bytes, manifest: Mapping[str, Any]) -> bool:
    """Publish a window that is not published yet; False if somebody else does it first."""
    try:
        _make_folder(place)
        _write(place, name, data)
        if _commit(place, json.dumps(manifest, indent=2, ensure_ascii=False).encode() + b"\n"):
            return True
    except FileNotFoundError:  # they have tidied up already, or else the folder is gone
        if read_manifest(place) is None:
            raise
    if name not in _files(read_manifest(place) or {}):
        _delete(FileSystems.join(place, name))
    return False


def release_digest(release: Release) -> str:
    """Names what a release says, whatever file format it is in and whichever version of the software wrote it."""
    summary = hashlib.sha256()
    said = {name: release.manifest[name] for name in ("stream", "window", "spec_digest")}
    summary.update(json.dumps(said, sort_keys=True).encode())
    summary.update(encode(_without_idle_nulls(release.rows), "Row", "tidegate", codec="null"))
    return summary.hexdigest()


def _without_idle_nulls(rows: pa.Table) -> pa.Table:
    """Columns that hold no null as columns that cannot, as which they were once written: the same rows, the same digest."""
    return rows.cast(pa.schema([field.with_nullable(rows[field.name].null_count > 0) for field in rows.schema]))


def encode_rows(rows: pa.Table, kind: Format) -> bytes:
    """The same bytes for the same rows, always."""
    if kind == "avro":
        return encode(rows, "Row", "tidegate")
    sink = io.BytesIO()
    if kind == "parquet":
        pq.write_table(rows, sink, compression="zstd")
        return sink.getvalue()
    return to_jsonl(rows)


def to_jsonl(rows: pa.Table) -> bytes:
    lines = (json.dumps(plain(row), ensure_ascii=False) for row in rows.to_pylist())
    return "".join(f"{line}\n" for line in lines).encode()


def to_csv(rows: pa.Table) -> bytes:
    sink = io.StringIO(newline="")
    writer = csv.DictWriter(sink, rows.schema.names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain(row) for row in rows.to_pylist())
    return sink.getvalue().encode()


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as people and JSON write it: RFC 3339 times, whole numbers without a point."""
    shown: dict[str, Any] = {}
    for name, value in row.items():
        if hasattr(value, "isoformat"):
            shown[name] = value.strftime("%Y-%m-%dT%H:%M:%SZ")
        elif isinstance(value, float) and value.is_integer() and name in ("value", "low", "high"):
            shown[name] = int(value)
        else:
            shown[name] = value
    return shown


def read_manifest(place: str) -> dict[str, Any] | None:
    """The manifest of a published window, or None."""
    path = FileSystems.join(place, MANIFEST)
    if not FileSystems.exists(path):
        return None
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        data = file.read()
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise PublishError(f"{path} is not a manifest of tidegate; move the folder away, or name another sink")
    return found


def refuse_another(published: Mapping[str, Any] | None, manifest: Mapping[str, Any], place: str) -> None:
    """Two releases of one window would let a reader take the noise off by averaging."""
    if published is not None and published.get("release_digest") == manifest["release_digest"]:
        return
    published = published or {}
    kind = PublishError
    if published.get("stream") != manifest["stream"]:
        why = f"it belongs to the stream {published.get('stream')!r}"
    elif published.get("spec_digest") != manifest["spec_digest"]:
        why = "it was released under other terms (its spec_digest differs)"
    else:
        kind, why = AnotherReleaseError, "the events or the secret have changed since"
    raise kind(
        f"window {place} is published already, and {why}; a second release of a window would weaken its privacy, "
        f"so nothing was written: restore what has changed, or name another stream and sink"
    )


def _is_local(place: str) -> bool:
    return FileSystems.get_scheme(place) is None


def _make_folder(place: str) -> None:
    if _is_local(place):
        os.makedirs(place, exist_ok=True)  # noqa: PTH103  (a path of Beam's file systems)


def _tidy(place: str, published: Mapping[str, Any]) -> None:
    """Remove what a killed run left. Not before a release is published: until then somebody may be about to do so."""
    keep = (MANIFEST, *_files(published))
    with contextlib.suppress(Exception):  # best effort: what is left is in no manifest, so nobody reads it
        if _is_local(place):
            found = os.listdir(place)  # noqa: PTH208  (a path of Beam's file systems, whose patterns take a while)
        else:
            patterns = [FileSystems.join(place, "*"), FileSystems.join(place, ".*")]
            found = [
                item.path.rpartition("/")[2] for match in FileSystems.match(patterns) for item in match.metadata_list
            ]
        for name in found:
            if name not in keep:
                _delete(FileSystems.join(place, name))


def _files(published: Mapping[str, Any]) -> list[str]:
    return [file["name"] for file in published.get("files", [])]


def _write(place: str, name: str, data: bytes) -> None:
    """A file that is whole or not there."""
    draft, path = FileSystems.join(place, f".{name}.{secrets.token_hex(4)}"), FileSystems.join(place, name)
    if not _is_local(place):
        # Object stores show a file when it is closed, so there is nothing to hide.
        with FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            file.write(data)
        return
    _write_local(draft, data)
    os.replace(draft, path)  # noqa: PTH105


def _commit(place: str, data: bytes) -> bool:
    """Write the manifest if there is none; False if somebody else was first."""
    path = FileSystems.join(place, MANIFEST)
    if not _is_local(place):
        return create(path, data)
    draft = FileSystems.join(place, f".{MANIFEST}.{secrets.token_hex(4)}")
    _write_local(draft, data)
    try:
        os.link(draft, path)  # a link, unlike a rename, never replaces
    except FileExistsError:
        return False
    finally:
        _delete(draft)
    _sync_folder(place)
    return True


def _write_local(path: str, data: bytes) -> None:
    try:
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        _delete(path)
        raise


def _sync_folder(place: str) -> None:
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete(path: str) -> None:
    with contextlib.suppress(Exception):  # best effort: what is left has no manifest, so nobody reads it
        if _is_local(path):
            os.unlink(path)  # noqa: PTH108
        else:
            FileSystems.delete([path])
