"""Who takes part, in which environment, and how each is started."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.programs.job import Job
from benchmarks.peers.programs.tidegate_release import spec
from benchmarks.release import ROOT

OURS, PDP_BEAM, PDP_LOCAL, ROWS = "tidegate", "pipeline-dp-beam", "pipeline-dp-local", "beam-rows"
OPENDP = ("opendp-context", "opendp-core")
FLOORS = ("duckdb", "pyarrow")
PROGRAMS = "benchmarks.peers.programs"


@dataclass(frozen=True)
class Environment:
    """An environment outside the tree with what one contender needs and nothing else. Without a name it is this one.

    `same` are packages in the release that is here, lest a difference be that of two Beams or Arrows.
    """

    name: str = ""
    packages: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    shown: tuple[str, ...] = ("tidegate", "apache-beam", "pyarrow", "duckdb", "numpy")

    @property
    def folder(self) -> Path:
        from tidegate.pipelines.runners import cache

        return cache() / "peers" / self.name

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python") if self.name else sys.executable

    def prepare(self, say: Callable[[str], None]) -> None:
        """Made once, and anew when it should hold something else. Raises CalledProcessError where pip cannot."""
        packages = [*self.packages, *(f"{package}=={version(package)}" for package in self.same)]
        ready, wanted = self.folder / "ready", "\n".join((sys.version, *packages))
        if not self.name or (ready.exists() and ready.read_text(encoding="utf-8") == wanted):
            return
        say(f"making {self.folder} with {', '.join(packages)}; a minute or two")
        shutil.rmtree(self.folder, ignore_errors=True)
        quiet = ["--quiet", "--disable-pip-version-check"]
        for command in (
            [sys.executable, "-m", "venv", str(self.folder)],
            [self.python, "-m", "pip", "install", *quiet, *packages],
        ):
            subprocess.run(command, check=True, stdout=sys.stderr)
        ready.write_text(wanted, encoding="utf-8")  # last, so that half an environment is not taken for one

    def versions(self) -> dict[str, str]:
        code = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
        done = subprocess.run([self.python, "-c", code, *self.shown], check=True, stdout=subprocess.PIPE, text=True)
        return dict(zip(self.shown, done.stdout.split(), strict=True))


HERE = Environment()
PLAIN = Environment("tidegate", ("--editable", str(ROOT)), ("apache-beam", "pyarrow", "duckdb", "numpy"))
"""As users install it. Here there are clients of clouds for the tests, too, and Beam imports whatever it finds."""
PIPELINE_DP = Environment(
    "pipeline-dp-0.3.1",
    ("pipeline-dp==0.3.1", "python-dp==1.1.5"),
    ("apache-beam", "pyarrow", "numpy"),
    ("pipeline-dp", "python-dp", "apache-beam", "pyarrow", "numpy"),
)
OPENDP_HERE = Environment(
    "opendp-0.16.0",
    ("opendp[polars]==0.16.0",),  # which pins polars
    ("pyarrow", "numpy"),
    ("opendp", "polars", "pyarrow", "numpy"),
)


@dataclass(frozen=True)
class Contender:
    """`largest` is the largest number of events it is asked to take; beyond that it would be minutes a run."""

    name: str
    words: str
    program: str
    mode: str = ""
    environment: Environment = PLAIN
    exact: bool = False
    largest: int = 10**7

    def command(self, job: Job, scratch: Path) -> list[str]:
        """What is timed, from the start of the process to its end."""
        if self.name == OURS:
            path = scratch / "spec.yaml"
            path.write_text(json.dumps(spec(job, job.draws[0][0], scratch)), encoding="utf-8")  # JSON is YAML
            return [self.environment.python, "-m", f"{PROGRAMS}.tidegate_command", "run", "--quiet", str(path)]
        return self.release(job)

    def release(self, job: Job) -> list[str]:
        """The program that writes what it released, which for ours is another than the command."""
        told = json.dumps({**asdict(job), "mode": job.mode or self.mode})
        return [self.environment.python, "-m", f"{PROGRAMS}.{self.program}", told]


CONTENDERS = (
    Contender(OURS, "tidegate run", "tidegate_release"),
    Contender(PDP_BEAM, "PipelineDP on Beam", "pipeline_dp_count", "beam", PIPELINE_DP, largest=10**6),
    Contender(PDP_LOCAL, "PipelineDP, LocalBackend", "pipeline_dp_count", "local", PIPELINE_DP, largest=10**6),
    Contender(OPENDP[0], "OpenDP, Context", "opendp_count", "context", OPENDP_HERE),
    Contender(OPENDP[1], "OpenDP, make_laplace_threshold", "opendp_count", "core", OPENDP_HERE),
    Contender(ROWS, "Beam, one element a row; not private", "beam_rows", exact=True, largest=10**6),
    Contender(FLOORS[0], "DuckDB; not private", "duckdb_count", exact=True),
    Contender(FLOORS[1], "pyarrow; not private", "arrow_count", exact=True),
)
WORDS = {contender.name: contender.words for contender in CONTENDERS}


def prepared(
    wanted: Sequence[str], say: Callable[[str], None], *, here: bool = False
) -> tuple[list[Contender], dict[str, str]]:
    """Those whose environments could be made, and why the others are left out; or, quickly, all `here`."""
    ready, left_out = [], {}
    for contender in CONTENDERS:
        if contender.name in wanted and here:
            ready.append(replace(contender, environment=HERE))
        elif contender.name in wanted:
            try:
                contender.environment.prepare(say)
                ready.append(contender)
            except (subprocess.CalledProcessError, OSError) as problem:
                if contender.name == OURS:  # everything is measured by it
                    raise
                left_out[contender.name] = f"its environment could not be made: {problem}"
                say(f"{contender.words} is left out: {left_out[contender.name]}")
    return ready, left_out
