"""`tidegate demo`: a day of searches, released hour by hour, and held against the truth.

The searches are simulated, and only therefore is there a truth to hold anything against. Everything else is what any
user does: write a spec, run it, read the releases. A demo that could not fail would show nothing, so this one ends with
an error if a single published range misses the true count.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from tidegate.pipelines import show
from tidegate.pipelines.job import run
from tidegate.pipelines.progress import ProgressLog, Watching
from tidegate.pipelines.reader import read_releases
from tidegate.pipelines.simulate import Simulation, simulate
from tidegate.pipelines.sinks import make_private_folder
from tidegate.pipelines.spec import Spec, load_spec
from tidegate.transforms.problems import SafeError
from tidegate.transforms.secret import VARIABLE

# As many units as it takes for a fifth of the terms to pass the gate in an hour. With this seed there are popular terms
# that are born, that die and that return, well inside the day.
DAY = Simulation(
    events=400_000, units=16_000, keys=200, skew=0.75, bad=0.01, duplicates=0.02, late=0.02, outside=0.01, seed=17
)

SPEC = """\
# How many users search for each term, hour by hour, without giving any of them away.
# `tidegate check` says what this file promises, `tidegate run` does it.

stream: searches

source:
  files: {events}

columns:
  unit: user # the one who is protected
  key: term # what is counted; nobody has to list the terms beforehand
  time: at

window:
  size: 1h
  start: 2026-01-01T00:00:00Z
  end: 2026-01-02T00:00:00Z

bound:
  keys: 3 # a user counts for at most three terms an hour

gate:
  epsilon: 1.0
  delta: 1e-9

sink:
  files: {releases}

dead_letters: {dead} # rows that cannot be read; private
state: {state} # holds the secret that all noise comes from; private
"""

_MARK = ".tidegate-demo"
_FOLDERS = ("stream", "releases", "dead", "state")
_SPEC_NAME, _PICTURE = "searches.yaml", "demo.png"

Counts = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Day:
    """What was released beside what was true: a row for each key, a column for each window; NaN is not published."""

    keys: list[str]
    truth: Counts
    value: Values
    low: Values
    high: Values
    half_width: int

    @property
    def published(self) -> npt.NDArray[np.bool_]:
        return ~np.isnan(self.value)

    @property
    def missed(self) -> npt.NDArray[np.bool_]:
        """Published ranges that do not hold the true count."""
        return self.published & ~((self.low <= self.truth) & (self.truth <= self.high))

    @property
    def made_up(self) -> npt.NDArray[np.bool_]:
        """Published keys that nobody searched for."""
        nobody: npt.NDArray[np.bool_] = self.truth == 0
        return self.published & nobody


def spec_text(folder: Path) -> str:
    """The spec as a user would write it; `examples/searches.yaml` is this text for the folder `demo`."""
    places = {name: f"{(folder / name).as_posix()}/" for name in _FOLDERS}
    places["events"] = places.pop("stream") + "events-*.parquet"
    return SPEC.format(**{name: json.dumps(place, ensure_ascii=False) for name, place in places.items()})


def run_demo(folder: Path, simulation: Simulation = DAY, out: Console | None = None) -> None:
    """Simulate, release, show and check, all in one folder. Raises SafeError if a promise was not kept."""
    out, err = out or Console(), Console(stderr=True)
    spec = _claim(folder)
    with _progress(err, f"simulating {simulation.events:,} searches", simulation.windows) as step:
        simulate(folder / "stream", simulation, lambda done, _: step(done))
    with _own_secret():
        counters = _release(spec, err)
    day = load_day(spec, folder / "stream" / "truth.parquet")
    show.print_day(spec, day, counters, out)
    show.print_check(day, out)
    # Before anything is drawn: the picture's title is a claim.
    refuse_broken_promises(day)
    drawn = _draw(spec, day, folder / _PICTURE, err)
    _say_what_next(folder, day, drawn, out)


def load_day(spec: Spec, truth: Path) -> Day:
    """Lay releases and truth over each other; every released row counts, whether the truth knows its key or not."""
    released, true = read_releases(spec.sink[0].place), pq.read_table(truth)
    keys = sorted({*released["key"].to_pylist(), *true["key"].to_pylist()})
    shape = (len(keys), spec.window.windows.count)
    counts, columns = np.zeros(shape, np.int64), {name: np.full(shape, np.nan) for name in ("value", "low", "high")}
    counts[_cells(spec, keys, true)] = true["units"].to_numpy()
    where = _cells(spec, keys, released)
    for name, column in columns.items():
        column[where] = released[name].to_numpy()
    half_width = int(spec.gate_mechanism.describe()["half_width"])
    day = Day(keys, counts, columns["value"], columns["low"], columns["high"], half_width)
    if int(day.published.sum()) != len(released):
        raise SafeError(
            f"{spec.sink[0].place} holds a key twice in one window; every key may be released once a window"
        )
    return day


def _cells(spec: Spec, keys: list[str], table: pa.Table) -> tuple[Counts, Counts]:
    windows, number = spec.window.windows, {key: index for index, key in enumerate(keys)}
    starts = table["window_start"].cast(pa.int64()).to_numpy()
    rows = np.array([number[key] for key in table["key"].to_pylist()], np.int64)
    return rows, (starts - windows.start) // windows.every


def refuse_broken_promises(day: Day) -> None:
    """Raise SafeError unless every range holds the truth and every key has somebody behind it."""
    missed, made_up, total = int(day.missed.sum()), int(day.made_up.sum()), int(day.published.sum())
    if made_up:
        raise SafeError(f"{made_up} of {total} published keys were searched for by nobody; the promise is broken")
    if missed:
        raise SafeError(f"{missed} of {total} published ranges do not hold the true count; the promise is broken")


def _release(spec: Spec, err: Console) -> Mapping[str, int]:
    make_private_folder(Path(spec.state))
    log = ProgressLog(str(Path(spec.state) / "progress"))
    with Watching(log, spec.window.windows.count, err):
        return run(spec, log=log)


@contextmanager
def _own_secret() -> Iterator[None]:
    """Never draw from a secret that real releases hang on: beside the truth, these releases give their noise away."""
    named = os.environ.pop(VARIABLE, None)
    try:
        yield
    finally:
        if named is not None:
            os.environ[VARIABLE] = named


def _claim(folder: Path) -> Spec:
    """Empty the folder of an earlier demo and write the spec, or refuse what may be somebody's work."""
    mark, spec = folder / _MARK, folder / _SPEC_NAME
    if set(str(folder)) & set("*?["):
        raise SafeError(f"{folder} must do without *, ? and [, which mean something in a spec; name another folder")
    if folder.exists() and not folder.is_dir():
        raise SafeError(f"{folder} is a file; name a new folder")
    if folder.exists() and any(folder.iterdir()) and not mark.exists():
        raise SafeError(f"{folder} is not empty and not a demo's, so nothing was touched; name a new folder")
    if spec.exists() and mark.read_text(encoding="utf-8").strip() != _digest(spec.read_bytes()):
        raise SafeError(f"{spec} has been changed since the demo wrote it; move it elsewhere, or name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    text = spec_text(folder)
    # The mark comes first, so that a demo that is interrupted is still known as one.
    mark.write_text(_digest(text.encode()) + "\n", encoding="utf-8")
    spec.write_text(text, encoding="utf-8")
    (folder / _PICTURE).unlink(missing_ok=True)
    for name in _FOLDERS:
        if (folder / name).exists():
            shutil.rmtree(folder / name)
    return load_spec(spec)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def _progress(err: Console, words: str, steps: int | None) -> Iterator[Callable[[int], None]]:
    """A bar in a terminal, a line elsewhere."""
    if not err.is_terminal:
        err.print(words, highlight=False)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), console=err, transient=True, disable=not err.is_terminal
    ) as bar:
        task = bar.add_task(words, total=steps)
        yield lambda done: bar.update(task, completed=done)


def _draw(spec: Spec, day: Day, path: Path, err: Console) -> bool:
    try:
        with _progress(err, f"drawing {path}", None):
            show.draw_day(spec, day, path)
    except ImportError:
        err.print(
            f"no {path}, since matplotlib is missing: pip install 'tidegate[plots]'", markup=False, highlight=False
        )
        return False
    return True


def _say_what_next(folder: Path, day: Day, drawn: bool, out: Console) -> None:
    term = next((day.keys[index] for index, _ in show.choose(day)), "harbour lights")
    read, spec, picture = (shlex.quote(str(folder / name)) for name in ("releases", _SPEC_NAME, _PICTURE))
    steps = {
        f"tidegate read {read} --key {json.dumps(term, ensure_ascii=False)}": "a term, hour by hour",
        f"tidegate check {spec}": "what a spec promises, before it runs",
    }
    show.print_steps(steps | ({f"open {picture}": "the day as a picture"} if drawn else {}), out)
