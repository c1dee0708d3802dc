"""TableOfReleases: releases into a table of BigQuery, each window whole and once.

    stream    window_start  …  position  key    value  …  manifest
    searches  2026-01-01       0         tides  41        null
    searches  2026-01-01       null      null   null      {"release_digest": "…", "rows": 1, …}

A window is one load job, rows and manifest together, and a load job is atomic: whoever reads the table sees all of it or
nothing. The job is named after the table and the window, and BigQuery refuses a second job of the same name; so of two who
publish a window at once only one can. A job that failed has left nothing, and the next try has the next number. Names of
jobs are forgotten after some months, so the table is asked first whether it has the manifest already.

Why not stream rows in (insertAll): it takes rows one by one, visible before the window is whole, and recognises a row that is
sent again only for about a minute, as best it can. A retry after an hour would put a window in twice.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import apache_beam as beam
import pyarrow as pa
from google.api_core.exceptions import Conflict, GoogleAPICallError, GoogleAPIError, NotFound
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.cloud import bigquery

from tidegate.pipelines.publish import PublishError, plain, refuse_another, release_digest
from tidegate.pipelines.reader import ReadError, as_sealed
from tidegate.pipelines.sinks import PublishInOrder
from tidegate.transforms.problems import SafeError, SpecError
from tidegate.transforms.release import ROW_SCHEMA, Release

TRIES = 20
SECONDS_TO_LOAD = 300.0
LABEL = "tidegate_release"
# What the client raises; its own words may quote a row, so they are never passed on.
_PROBLEMS = (GoogleAPIError, GoogleAuthError, OSError)
_KINDS = {pa.string(): "STRING", pa.timestamp("us", "UTC"): "TIMESTAMP", pa.float64(): "FLOAT"}
_OF_EVERY_ROW = ("stream", "window_start", "window_end", "spec_digest")
COLUMNS = [
    *(
        bigquery.SchemaField(field.name, _KINDS[field.type], "REQUIRED" if field.name in _OF_EVERY_ROW else "NULLABLE")
        for field in ROW_SCHEMA
    ),
    bigquery.SchemaField("position", "INTEGER", description="The row's place in its window, from 0."),
    bigquery.SchemaField("manifest", "STRING", description="JSON, in the one row a window that is its manifest."),
]


class WriteBigQuery(beam.PTransform[Any, Any]):
    """Publishes releases in a table; gives the names of the windows it has seen through.

    Args:
      table: Required. As project.dataset.table; made if it is not there, in a dataset that is.
      keep_first: Optional, default False. As for WriteReleases.
    """

    def __init__(self, table: str, *, keep_first: bool = False) -> None:
        super().__init__()
        self._table, self._keep_first = table, keep_first

    def expand(self, releases: Any) -> Any:
        check_table(self._table)
        return releases | PublishInOrder([partial(TableOfReleases, self._table)], keep_first=self._keep_first)


def check_table(name: str) -> None:
    """Make the table if need be. A window is known by its manifest, so a table that forgets would take a second release."""
    with _reaching(name):
        client = _client(name)
        try:
            try:
                table = client.get_table(name)
            except NotFound:
                wanted = bigquery.Table(name, schema=COLUMNS)
                wanted.time_partitioning = bigquery.TimePartitioning(field="window_start")
                wanted.description = "Releases of tidegate: rows, and a manifest a window (manifest is not null)."
                table = client.create_table(wanted, exists_ok=True)
        finally:
            client.close()
    kinds = {field.name: field.field_type for field in table.schema}
    wrong = next((field for field in COLUMNS if kinds.get(field.name) != field.field_type), None)
    if wrong is not None:
        raise SpecError(
            f"table {name} must have the columns of a release, and {wrong.name} as {wrong.field_type} is not among them; "
            f"name a table that is not there yet, and it will be made"
        )
    partitions = table.time_partitioning
    if table.expires is not None or (partitions is not None and partitions.expiration_ms is not None):
        raise SpecError(
            f"table {name} must keep every row, and it or its partitions expire: a window whose manifest is gone could be "
            f"released a second time; take the expiration off the table, and off the dataset it has it from"
        )


class TableOfReleases:
    """A table as a place to publish."""

    def __init__(self, table: str) -> None:
        self._name = table
        with _reaching(table):
            self._client = _client(table)
            self._location = self._client.get_table(table).location

    def publish(self, release: Release) -> bool:
        """Publish a window; False if it was published before, with the same release. Safe to repeat at any point."""
        manifest = {**release.manifest, "release_digest": release_digest(release)}
        try:
            return not self._is_published(release.folder, manifest) and self._add(release, manifest)
        except _PROBLEMS as problem:
            reason = _error_name(problem)
        raise PublishError(
            f"window {release.folder} could not be loaded into table {self._name} ({reason}); see to the table and rights to "
            f"it, then run again: a window that did get through is found and left as it is"
        )

    def _add(self, release: Release, manifest: Mapping[str, Any]) -> bool:
        data, mark = _lines(release, manifest), manifest["release_digest"][:40]
        table = hashlib.sha256(self._name.encode()).hexdigest()[:16]
        for number in range(TRIES):
            # Without the stream: of two streams that share a table by mistake, only one is to have the window.
            name = f"tidegate-{table}-{release.folder}-{number}"
            try:
                self._load(name, data, mark).result(timeout=SECONDS_TO_LOAD)
                return True
            except Conflict:
                job: Any = self._client.get_job(name, location=self._location)
            try:
                job.result(timeout=SECONDS_TO_LOAD)
            except GoogleAPICallError:
                if not job.error_result:
                    raise
                continue  # it failed, and so left nothing
            if self._is_published(release.folder, manifest):
                return False
            # Somebody has deleted it. What was out may come back as it was, and not otherwise.
            if job.labels.get(LABEL) != mark:
                refuse_another({**manifest, "release_digest": ""}, manifest, f"{release.folder} in table {self._name}")
        raise PublishError(
            f"window {release.folder} could not be loaded into table {self._name}, as {TRIES} jobs have failed; look at the "
            f"last of them, tidegate-{table}-{release.folder}-{TRIES - 1}, and name another table"
        )

    def _load(self, name: str, data: bytes, mark: str) -> Any:
        config = bigquery.LoadJobConfig(
            schema=COLUMNS,
            source_format=bigquery.SourceFormat.NEWLINE_DELIMITED_JSON,
            write_disposition=bigquery.WriteDisposition.WRITE_APPEND,
            create_disposition=bigquery.CreateDisposition.CREATE_NEVER,
            labels={LABEL: mark},
        )
        return self._client.load_table_from_file(
            io.BytesIO(data), self._name, job_id=name, location=self._location, job_config=config
        )

    def _is_published(self, window: str, manifest: Mapping[str, Any]) -> bool:
        found = self._ask("manifest", "manifest IS NOT NULL", window)
        if not found:
            return False
        refuse_another(self._parsed(found[0]["manifest"]), manifest, f"{window} in table {self._name}")
        return True

    def published(self, window: str) -> tuple[Mapping[str, Any], pa.Table]:
        """The manifest and the rows of a window that is published."""
        with _reaching(self._name):
            found = self._ask("*", "TRUE", window)
        manifests = [row["manifest"] for row in found if row["manifest"] is not None]
        if len(manifests) != 1:
            raise ReadError(
                f"table {self._name} holds {len(manifests)} manifests of window {window}; restore the table"
            )
        rows = sorted((row for row in found if row["manifest"] is None), key=lambda row: row["position"])
        table = pa.Table.from_pylist(
            [{name: row[name] for name in ROW_SCHEMA.names} for row in rows], schema=ROW_SCHEMA
        )
        manifest = self._parsed(manifests[0])
        sealed = as_sealed(manifest)
        if release_digest(Release(0, window, table, sealed)) != manifest.get("release_digest"):
            raise ReadError(f"window {window} in table {self._name} is not what its manifest says; restore the table")
        return sealed, table

    def newest(self) -> Mapping[str, Any] | None:
        """The manifest of the latest window, if there is any."""
        with _reaching(self._name):
            found = self._ask("manifest", "manifest IS NOT NULL ORDER BY window_start DESC, window_end DESC LIMIT 1")
        return self._parsed(found[0]["manifest"]) if found else None

    def _ask(self, columns: str, condition: str, window: str | None = None) -> list[Any]:
        parameters = []
        if window is not None:
            condition = f"window_start = @start AND window_end = @end AND {condition}"
            for name, text in zip(("start", "end"), window.split("-"), strict=True):
                instant = datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
                parameters.append(bigquery.ScalarQueryParameter(name, "TIMESTAMP", instant))
        config = bigquery.QueryJobConfig(query_parameters=parameters, use_query_cache=False)
        query = f"SELECT {columns} FROM `{self._name}` WHERE {condition}"  # noqa: S608  (the name was checked)
        return list(self._client.query_and_wait(query, job_config=config, location=self._location))

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ReadError(f"table {self._name} holds a manifest that cannot be read; restore the table")
        return found

    def close(self) -> None:
        self._client.close()


def _client(table: str) -> bigquery.Client:
    # An emulator asks nobody who they are, and without this the client would look for somebody.
    credentials = AnonymousCredentials() if os.environ.get("BIGQUERY_EMULATOR_HOST") else None
    return bigquery.Client(project=table.split(".")[0], credentials=credentials)


def _lines(release: Release, manifest: Mapping[str, Any]) -> bytes:
    """A window as lines of JSON: its rows, and the manifest."""
    rows = [{**plain(row), "position": place} for place, row in enumerate(release.rows.to_pylist())]
    last = {
        "stream": manifest["stream"],
        "window_start": manifest["window"]["start"],
        "window_end": manifest["window"]["end"],
        "spec_digest": manifest["spec_digest"],
        "manifest": json.dumps(manifest, ensure_ascii=False),
    }
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in (*rows, last)).encode()


@contextmanager
def _reaching(table: str) -> Iterator[None]:
    try:
        yield
        return
    except _PROBLEMS as problem:
        reason = _error_name(problem)
    raise SafeError(f"table {table} cannot be reached ({reason}); check its name, and rights to it and to its dataset")


def _error_name(problem: BaseException) -> str:
    """The kind of a problem, and the service's word for it if that is one word, as it has a list of them."""
    told = [str(error.get("reason")) for error in getattr(problem, "errors", None) or () if isinstance(error, Mapping)]
    return ", ".join([type(problem).__name__, *(word for word in told[:1] if re.fullmatch(r"[A-Za-z]{1,40}", word))])
