"""A Flink cluster for tests, run by the very scripts that the documentation names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.needed import needs

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def script(
    name: str, *arguments: str, environment: Mapping[str, str] | None = None, seconds: float = 600, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run deploy/NAME with the interpreter of these tests."""
    done = subprocess.run(
        [str(DEPLOY / name), *arguments],
        env={**os.environ, "TIDEGATE_PYTHON": sys.executable, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert not check or done.returncode == 0, f"{name} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


@dataclass(frozen=True)
class Cluster:
    """A cluster in a folder."""

    folder: Path

    def script(self, name: str, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
        return script(f"flink/{name}", "--folder", str(self.folder), *arguments, **how)

    @property
    def settings(self) -> dict[str, str]:
        lines = (self.folder / "conf" / "settings").read_text().splitlines()
        return {name: value.strip("'") for name, value in (line.split("=", 1) for line in lines)}

    def ask(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(f"http://localhost:{self.settings['rest_port']}{path}", method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.load(answer)

    def jobs(self, state: str) -> list[str]:
        return [job["id"] for job in self.ask("/jobs")["jobs"] if job["status"] == state]

    def alive(self) -> list[str]:
        """Jobs that have not come to an end, and may be between two restarts."""
        ended = ("FINISHED", "CANCELED", "FAILED")
        return [job["id"] for job in self.ask("/jobs")["jobs"] if job["status"] not in ended]

    def cancel(self) -> None:
        """End what runs; a client that is gone has not done so."""
        for job in self.alive():
            self.ask(f"/jobs/{job}?mode=cancel", "PATCH")

    def processes(self) -> list[int]:
        """Ids of all that is alive of what the scripts started, workers too."""
        started = [int(file.read_text().split()[0]) for file in sorted((self.folder / "pids").iterdir())]
        seen = subprocess.run(["ps", "-eo", "pid=,pgid="], capture_output=True, text=True, check=True).stdout.split()
        return [int(one) for one, group in zip(seen[::2], seen[1::2], strict=True) if int(group) in started]


@contextmanager
def running_cluster(folder: Path, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A cluster that is up, and down again in the end."""
    needs("java", "mvn", "curl")
    script("flink/get")
    cluster = Cluster(folder)
    cluster.script("start", *options, environment=environment)
    processes = cluster.processes()
    try:
        yield cluster
    finally:
        cluster.script("stop")
        left = [one for one in processes if Path(f"/proc/{one}").exists()]
        assert not left, f"still running: {left}"


def tidegate(arguments: Sequence[str], environment: Mapping[str, str], seconds: float = 300) -> None:
    """The command itself, for what the cluster is held against."""
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
