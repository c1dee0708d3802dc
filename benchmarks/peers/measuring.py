"""One process after the other: seconds, processor time and memory of each, and whether its answer is right."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.peers.contenders import OURS, Contender
from benchmarks.peers.programs.job import NOTE, Job
from benchmarks.release import ROOT, Measured
from tidegate.pipelines.simulate import Simulation

TINY = 100  # events of the run that shows what a program costs before its first event
SLOW = 150.0  # seconds; what takes longer is seen once at that size
LONGEST = 1200.0
EPSILON, DELTA, KEYS = 1.0, 1e-9, 3
_POLL = 0.05  # seconds; the kernel keeps the peak, so that only the last of them can be missed


@dataclass(frozen=True)
class Ran:
    """What a process and its children took; `imports` is what passed before its program had imported what it needs."""

    seconds: float
    imports: float
    processor: float
    memory: int


def simulation(events: int) -> Simulation:
    """Units have up to 8 keys and may count in 3, so that everybody has something to bound."""
    return Simulation(events=events, units=200_000, keys=20_000, windows=1, files=1, keys_per_unit=8)


def prepare(folder: Path, wanted: Simulation) -> Path:
    """Simulate, unless it has been done."""
    import json

    from tidegate.pipelines.simulate import simulate

    summary, events = folder / "simulation.json", folder / "events-00000.parquet"
    parameters = {
        **asdict(wanted),
        "start": wanted.start.isoformat(),
        "window_size": wanted.window_size.total_seconds(),
    }
    if not (folder / "truth.parquet").exists() or json.loads(summary.read_text())["parameters"] != parameters:
        simulate(folder, wanted)
    events.read_bytes()  # so that nobody is the first to read from the disk
    return events


def truth(folder: Path) -> dict[str, int]:
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "truth.parquet")
    return dict(zip(table["key"].to_pylist(), table["units"].to_pylist(), strict=True))


def answer(out: Path) -> dict[str, float]:
    import pyarrow.parquet as pq

    table = pq.read_table(out)
    return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def execute(command: Sequence[str], log: Path) -> Ran:
    """Run to the end. Raises RuntimeError with the end of its log if it fails or takes too long."""
    with log.open("wb") as told:
        note = log.with_suffix(".imported")
        environment = {**os.environ, NOTE: str(note)}
        began = time.monotonic()
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=told, stderr=told, stdin=subprocess.DEVNULL, env=environment
        )
        watch = _Memory(process.pid)
        timer = threading.Timer(LONGEST, process.kill)
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)  # of this process and its children alone
        except BaseException:
            process.kill()
            raise
        finally:
            seconds = time.monotonic() - began
            timer.cancel()
            peak = watch.stop()
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        late = f" after {seconds:.0f} s" if seconds >= LONGEST else ""
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
        last = " ".join([line for line in lines if line.strip("^~ ")][-3:])
        raise RuntimeError(f"it ended with code {process.returncode}{late}: {last[-300:]}")
    # Where there is no /proc, the largest process stands for all.
    imports = float(note.read_text()) - began if note.exists() else 0.0
    return Ran(seconds, imports, usage.ru_utime + usage.ru_stime, peak or usage.ru_maxrss * 1024)


class _Memory:
    """The sum of the peaks of a process and its children, as the kernel keeps them, looked up until it ends.

    The kernel's own number for a finished child begins with its parent's, which is not what the child took.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._peaks, self._over = pid, dict[int, int](), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return sum(self._peaks.values())

    def _look(self) -> None:
        while not self._over.wait(_POLL):
            for pid in _family(self._pid):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                for line in status.splitlines():
                    if line.startswith("VmHWM:"):
                        self._peaks[pid] = max(self._peaks.get(pid, 0), int(line.split()[1]) * 1024)


def _family(pid: int) -> Iterator[int]:
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _family(int(child))


def measure(contender: Contender, events: Path, exact: dict[str, int], scratch: Path) -> Ran:
    """One run, with an answer that could be right: exact counts, or keys that were really there."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        out = folder / "out.parquet"
        job = Job(str(events), ((EPSILON, str(out)),), DELTA, KEYS)
        ran = execute(contender.command(job, folder), folder / "log")
        if contender.name == OURS:
            from benchmarks.peers.programs.tidegate_release import collect

            collect(folder, str(out))
        found = answer(out)
    if contender.exact and found != exact:
        raise ValueError(f"{contender.words} found other counts than the true ones in {events}")
    if not found.keys() <= exact.keys():
        raise ValueError(f"{contender.words} found keys that are not in {events}")
    return ran


def compare(
    contenders: Sequence[Contender], sizes: Sequence[int], repeats: int, out: Path, say: Callable[[str], None]
) -> tuple[list[Measured], dict[str, str]]:
    """Every contender at every size, again and again, and why somebody is missing; the order turns around each time."""
    folders = {events: out / "peers-data" / f"events-{events}" for events in (TINY, *sizes)}
    files, exact = {}, {}
    for events, folder in folders.items():
        say(f"data: {events:,} events")
        files[events], exact[events] = prepare(folder, simulation(events)), truth(folder)
    found: list[Measured] = []
    failed: dict[str, str] = {}
    slow: set[tuple[str, int]] = set()
    for repeat in range(repeats):
        for events in (TINY, *sizes):
            for contender in contenders if repeat % 2 == 0 else reversed(contenders):
                name = contender.name
                if name in failed or (name, events) in slow or events > contender.largest:
                    continue
                try:
                    ran = measure(contender, files[events], exact[events], out)
                except RuntimeError as problem:
                    if name == OURS:
                        raise
                    failed[name] = f"with {events:,} events {problem}"
                    say(f"{contender.words} is left out from here on: {failed[name]}")
                    continue
                if ran.seconds > SLOW:
                    slow.add((name, events))
                found.append({"contender": name, "events": events, "repeat": repeat, **asdict(ran)})
                say(f"{repeat + 1}/{repeats} {events:,} {name}: {ran.seconds:.2f} s, {ran.memory / 2**20:,.0f} MiB")
    return found, failed


def without_startup(found: Sequence[Measured]) -> list[Measured]:
    """Runs that count, with the start-up seen in the same repetition as a number of its own.

    Work is what a run takes after its imports, less what the run on next to no events takes after its own: imports differ
    from run to run by as much as a million events take, and have nothing to do with them.
    """
    fixed = {(one["contender"], one["repeat"]): one for one in found if one["events"] == TINY}
    return [
        {
            **{**one, "startup": tiny["seconds"]},
            "work": (one["seconds"] - one["imports"]) - (tiny["seconds"] - tiny["imports"]),
            "processor_work": one["processor"] - tiny["processor"],
        }
        for one in found
        if one["events"] != TINY and (one["contender"], one["repeat"]) in fixed
        for tiny in [fixed[one["contender"], one["repeat"]]]
    ]


def utility_simulation(events: int) -> Simulation:
    """No unit has more keys than may count, so that what is lost is lost to the gate and its noise."""
    return replace(simulation(events), units=100_000, keys=5_000, keys_per_unit=KEYS)
