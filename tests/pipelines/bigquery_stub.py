"""A small BigQuery for tests: its REST API as far as releases need it, with the two promises that publishing is built on.

A name of a job is given once. A load appends all of its rows or none. Queries are run by DuckDB, so that wrong SQL fails.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

import duckdb
import pyarrow as pa

Resource = dict[str, Any]
_ARROW = {"STRING": pa.string(), "TIMESTAMP": pa.string(), "FLOAT": pa.float64(), "INTEGER": pa.int64()}


@dataclass
class Service:
    """What the service knows. `before` may answer a request in its place: (verb, path) → (status, reason) or None."""

    url: str = ""
    tables: dict[str, Resource] = field(default_factory=dict)
    rows: dict[str, list[Resource]] = field(default_factory=dict)
    jobs: dict[str, Resource] = field(default_factory=dict)
    uploads: list[Resource] = field(default_factory=list)
    expiration: str | None = None
    before: Callable[[str, str], tuple[int, str] | None] = lambda verb, path: None
    after_load: Callable[[], None] = lambda: None
    lock: Any = field(default_factory=threading.Lock)

    def create(self, table: Resource) -> tuple[int, Resource]:
        name = _name(table["tableReference"])
        if name in self.tables:
            return _error(409, "duplicate")
        expires = {"expirationTime": self.expiration} if self.expiration else {}
        self.tables[name] = {**table, **expires, "location": "EU"}
        self.rows[name] = []
        return 200, self.tables[name]

    def load(self, job: Resource, data: bytes) -> tuple[int, Resource]:
        reference = job["jobReference"]
        with self.lock:
            if reference["jobId"] in self.jobs:
                return _error(409, "duplicate")
            table = _name(job["configuration"]["load"]["destinationTable"])
            rows = [json.loads(line) for line in data.splitlines()]
            wrong = next((row for row in rows if not self._fits(row, table)), None)
            status: Resource = {"state": "DONE"}
            if wrong is not None:
                problem = {"reason": "invalid", "message": f"Error while reading data: {json.dumps(wrong)}"}
                status |= {"errorResult": problem, "errors": [problem]}
            else:
                self.rows[table] += rows
            self.jobs[reference["jobId"]] = {**job, "status": status}
        self.after_load()
        return 200, self.jobs[reference["jobId"]]

    def _fits(self, row: Resource, table: str) -> bool:
        fields = {item["name"]: item for item in self.tables[table]["schema"]["fields"]}
        needed = {name for name, item in fields.items() if item["mode"] == "REQUIRED"}
        return row.keys() <= fields.keys() and all(row.get(name) is not None for name in needed)

    def query(self, asked: Resource) -> Resource:
        (table,) = re.findall(r"`([^`]+)`", asked["query"])
        fields = self.tables[table]["schema"]["fields"]
        schema = pa.schema([(item["name"], _ARROW[item["type"]]) for item in fields])
        texts = pa.Table.from_pylist(self.rows[table], schema=schema)
        given = {item["name"]: item["parameterValue"]["value"] for item in asked.get("queryParameters", [])}
        times = ", ".join(
            f"{item['name']}::TIMESTAMPTZ AS {item['name']}" for item in fields if item["type"] == "TIMESTAMP"
        )
        with duckdb.connect() as base:
            base.execute("SET TimeZone = 'UTC'")
            base.register("texts", texts)
            base.execute(f"CREATE TABLE releases AS SELECT * REPLACE ({times}) FROM texts")  # noqa: S608
            found = base.execute(asked["query"].replace(f"`{table}`", "releases").replace("@", "$"), given or None)
            names = [item[0] for item in found.description or []]
            rows = [{"f": [{"v": _value(value)} for value in row]} for row in found.fetchall()]
        told = [item for name in names for item in fields if item["name"] == name]
        reference = {"projectId": "p", "jobId": "query", "location": "EU"}
        answer = {"jobComplete": True, "totalRows": str(len(rows)), "rows": rows, "schema": {"fields": told}}
        return {**answer, "jobReference": reference}

    def answer(self, verb: str, path: str, body: bytes) -> tuple[int, Resource]:
        injected = self.before(verb, path)
        if injected is not None:
            return _error(*injected)
        parts = urlparse(path)
        steps = [step for step in parts.path.split("/") if step]
        if steps[0] == "upload":
            if verb == "POST":
                self.uploads.append(json.loads(body))
                return 200, {"upload": len(self.uploads) - 1}
            return self.load(self.uploads[int(parse_qs(parts.query)["upload_id"][0])], body)
        if steps[-1] == "queries":
            return 200, self.query(json.loads(body))
        if steps[-1] == "tables":
            return self.create(json.loads(body))
        if "tables" in steps:
            found = self.tables.get(f"{steps[3]}.{steps[5]}.{steps[7]}")
            return (200, found) if found else _error(404, "notFound")
        found = self.jobs.get(steps[-1])
        return (200, found) if found else _error(404, "notFound")


def _name(reference: Resource) -> str:
    return f"{reference['projectId']}.{reference['datasetId']}.{reference['tableId']}"


def _value(value: Any) -> str | None:
    if hasattr(value, "timestamp"):
        return str(round(value.timestamp() * 1e6))
    return None if value is None else str(value)


def _error(status: int, reason: str) -> tuple[int, Resource]:
    said = f"{reason}: such as this row, {{key: a secret}}"
    return status, {"error": {"code": status, "message": said, "errors": [{"reason": reason, "message": said}]}}


@contextmanager
def running_service() -> Iterator[Service]:
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = service.answer(self.command, self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            if "upload" in answer:
                self.send_header("Location", f"{service.url}{self.path}&upload_id={answer['upload']}")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _do  # noqa: N815  (names of the standard library)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("localhost", 0), Handler)
    server.daemon_threads = True
    service.url = f"http://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
