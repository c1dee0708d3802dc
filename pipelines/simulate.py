"""Search events whose true counts are known, to hold private releases against.

`simulate` writes a stream of who searched for what and when, and how long they stayed, over a vocabulary that changes:
terms are born, die, live for a while only, or vanish and return. Beside the events it writes the truth, the counts
that an exact pipeline would find. It promises that

- the same `Simulation` gives the same bytes (with the same versions of numpy, pyarrow and fastavro);
- with the same seed and sizes the good rows are the same ones in every format and however much dirt is added;
- no unit has more than `keys_per_unit` keys in a window, so a bound of as many keys loses nothing;
- memory is that of one window's events and the late ones, not of the stream;
- `truth.parquet` is there only once everything else has been written.

Nothing in here is private, and the randomness is the ordinary, seeded kind: it makes data, never noise.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fastavro.write import Writer as AvroWriter

FORMATS = ("parquet", "avro", "jsonl", "csv", "jsonl.gz", "csv.gz")

Rows = npt.NDArray[np.void]
Counts = npt.NDArray[np.int64]
Sink = Callable[[pa.RecordBatch], None]
Flaws = tuple[tuple[str, str | bytes | None], ...]

# One row of any sort, before it is spelled out. It is written at `arrival`, which is `at` unless it is out of order.
_ROW = np.dtype([("at", "i8"), ("arrival", "i8"), ("unit", "i4"), ("key", "i4"), ("zone", "i1"), ("flaw", "i1")])
_COLUMNS = ("user", "term", "at", "seconds")
_INSTANT = pa.timestamp("us", tz="UTC")
_COUNTED = {"key": pa.string(), "units": pa.int64(), "events": pa.int64()}
_TRUTH = pa.schema({"window_start": _INSTANT, "window_end": _INSTANT, **_COUNTED})
_BATCH = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY = timedelta(days=1)
_LONGEST = 100_000 * _DAY  # keeps the rows around the range, too, within four-digit years
_SUMMARY, _UNFINISHED = "simulation.json", "truth.parquet.unfinished"
_ACTIVE = 0.6  # of the units, in any one window

# Whether a churned key lives before, between and after its two turning points: all ways but always and never.
_LIVES = ("011", "100", "010", "101", "001", "110")

_ZONES = (("Z", 0), ("+02:00", 120), ("-05:00", -300), ("+05:30", 330))
_ZONE_SHARES = (0.97, 0.01, 0.01, 0.01)

_FIRST = (
    "harbour storm tide beach island river market garden winter summer morning night city coast mountain bridge "
    "station ferry fish bread coffee cheese apple lemon snow rain wind sun fog street sailing museum"
)
_SECOND = (
    "lights warning map times tickets recipe festival walk prices photos forecast hours news guide history view "
    "jobs tour song hotel cafe boots season webcam soup shop school trail parking club sale delays"
)

# What a bad row has instead of a good value: the column, or the whole line, and what stands there. Number 0 is no flaw.
_COMMON: Flaws = (
    ("", None),
    ("user", ""),
    ("term", "r" * 2048),
    ("at", "yesterday"),
    ("at", "2026-01-01T12:00:00.000000"),
    ("at", "+9999-12-31T23:59:59.000000Z"),
    ("at", "-9999-01-01T00:00:00.000000Z"),
    ("at", "0000-00-00T00:00:00Z"),
)
_NULLS: Flaws = (("user", None), ("term", None))
_FLAWS: dict[str, Flaws] = {
    "parquet": (*_COMMON, *_NULLS),
    "avro": (*_COMMON, *_NULLS),
    "jsonl": (
        *(*_COMMON, *_NULLS),
        ("line", b'{"user": "u00001", "term": "harbour li\n'),
        (
            "line",
            b'{"user": "u00001", "term": "harbour \xff\xfe", "at": "2026-01-01T12:00:00.000000Z", "seconds": 1}\n',
        ),
    ),
    # Without nulls: CSV cannot tell a null term from an empty one, which is a term like any other.
    "csv": (
        *_COMMON,
        ("line", b"u00001,harbour lights\n"),
        ("line", b"u00001,harbour lights,2026-01-01T12:00:00.000000Z,1,1\n"),
        ("line", b"u00001,harbour \xff\xfe,2026-01-01T12:00:00.000000Z,1\n"),
    ),
}


@dataclass(frozen=True)
class Simulation:
    """What to simulate; shares of additional rows are shares of `events`."""

    events: int = 200_000
    units: int = 5_000
    keys: int = 400
    windows: int = 24
    window_size: timedelta = timedelta(hours=1)
    start: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    keys_per_unit: int = 3  # at most as many distinct keys of a unit in a window
    skew: float = 1.1  # Zipf exponent of the keys' popularity
    churn: float = 0.3  # share of keys that do not live in every window; none do so in fewer than three windows
    bad: float = 0.0  # share of additional rows that cannot be decoded
    duplicates: float = 0.0  # share of additional rows that exactly repeat a good one; the truth counts them as events
    late: float = 0.0  # share of the good rows that stand in a later file than their time says
    outside: float = 0.0  # share of additional good rows before or after the range; the truth leaves them out
    files: int = 4
    format: str = "parquet"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("events", "units", "keys", "windows", "keys_per_unit", "files", "seed"):
            least, most = (0, 2**63 - 1) if name == "seed" else (1, 10**9 if name == "events" else 10**7)
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= most:
                raise _refusal(name, f"a whole number from {least} to {most}", value, f"{name}={least}")
        for name in ("churn", "bad", "duplicates", "late", "outside"):
            if not 0 <= getattr(self, name) <= 1:
                raise _refusal(name, "a share from 0 to 1", getattr(self, name), f"{name}=0.05")
        if not 0 <= self.skew <= 10:
            raise _refusal("skew", "a number from 0 to 10", self.skew, "skew=1.1")
        if self.format not in FORMATS:
            raise _refusal("format", f"one of {', '.join(FORMATS)}", self.format, "format=parquet")
        if self.files > self.windows:
            raise _refusal("files", f"at most windows ({self.windows})", self.files, f"files={self.windows}")
        if self.late and self.files == 1:
            raise _refusal("late", "0 when there is no later file to be late in", self.late, "late=0 or files=2")
        if not timedelta(0) < self.window_size <= _LONGEST / self.windows:
            rule = f"longer than zero and at most {_LONGEST.days} days in all windows together"
            fits = min(timedelta(hours=1), _LONGEST / self.windows)
            raise _refusal("window_size", rule, self.window_size, f"window_size={fits}")
        if self.start.tzinfo is None or not 1900 <= self.start.year < 3000:
            rule = "a time with an offset in the years 1900 to 2999"
            raise _refusal("start", rule, self.start.isoformat(), "2026-01-01T00:00:00Z")

    @property
    def family(self) -> str:
        """The format without its compression."""
        return self.format.removesuffix(".gz")

    @property
    def text_times(self) -> bool:
        """Whether times are text: a column of timestamps has no room for bad ones."""
        return self.bad > 0 or self.family in _LINES

    def edge(self, window: int) -> int:
        """Where a window begins, in microseconds since 1970."""
        return (self.start - _EPOCH) // _MICROSECOND + window * (self.window_size // _MICROSECOND)


def simulate(out: Path, simulation: Simulation, progress: Callable[[int, int], None] | None = None) -> None:
    """Write `events-*`, `truth.parquet` and `simulation.json` to a folder that holds nothing but an earlier run's.

    `progress` is told after each window how many are done, and of how many.
    """
    _claim(out)
    # Dirt is drawn from its own generator, so that adding some leaves the good rows alone.
    chance, dirt = np.random.default_rng(simulation.seed).spawn(2)
    world = _World.draw(simulation, chance)
    bounds = [file * simulation.windows // simulation.files for file in range(simulation.files + 1)]
    plan = _plan(simulation, bounds[-2], chance)
    (out / _SUMMARY).write_text(json.dumps(_summary(simulation, plan), indent=2) + "\n", encoding="utf-8")

    held = np.empty(0, _ROW)
    with pq.ParquetWriter(out / _UNFINISHED, _TRUTH) as truth:
        for file, (begin, end) in enumerate(pairwise(bounds)):
            # Half of those held back wait on, so that lateness varies while few are held in memory.
            comes = (dirt.random(len(held)) < 0.5) | (end == simulation.windows)
            arrivals = np.array_split(dirt.permutation(held[comes]), end - begin)
            held = held[~comes]
            with _open(out / f"events-{file:05d}.{simulation.format}", simulation) as write:
                for window, late in zip(range(begin, end), arrivals, strict=True):
                    counts = {sort: int(count[window]) for sort, count in plan.items()}
                    good = world.events(window, counts["good"], chance)
                    repeats, others = _dirt(simulation, window, good, counts, dirt)
                    truth.write_table(world.truth(window, good, repeats))
                    waits = np.zeros(len(good), bool)
                    waits[dirt.permutation(len(good))[: counts["late"]]] = True
                    held = np.concatenate([held, good[waits]])
                    late["arrival"] = dirt.integers(simulation.edge(window), simulation.edge(window + 1), len(late))
                    rows = np.concatenate([good[~waits], repeats, others, late])
                    rows = rows[np.argsort(rows["arrival"], kind="stable")]
                    for first in range(0, len(rows), _BATCH):
                        write(world.spell(rows[first : first + _BATCH]))
                    if progress is not None:
                        progress(window + 1, simulation.windows)
    (out / _UNFINISHED).rename(out / "truth.parquet")


def _plan(simulation: Simulation, last_file: int, chance: np.random.Generator) -> dict[str, Counts]:
    """Settle how many rows of each sort every window gives rise to; those of the last file cannot be late."""
    windows = np.arange(simulation.windows)
    traffic = 1 + 0.4 * np.sin(_angle(simulation, windows) - 0.6 * np.pi)
    good = chance.multinomial(simulation.events, traffic / traffic.sum())
    among = {"bad": good, "duplicates": good, "late": good * (windows < last_file), "outside": good}
    wanted = {sort: round(getattr(simulation, sort) * simulation.events) for sort in among}
    return {"good": good, **{sort: _apportion(wanted[sort], counts) for sort, counts in among.items()}}


def _apportion(total: int, counts: Counts) -> Counts:
    """Split a total in proportion to counts, exactly and never beyond them."""
    most = int(counts.sum())
    return np.diff(np.cumsum(counts) * min(total, most) // max(most, 1), prepend=0)


def _summary(simulation: Simulation, plan: dict[str, Counts]) -> dict[str, Any]:
    """Say what is written; late rows are among the events, all others come on top."""
    counts = {sort: int(count.sum()) for sort, count in plan.items()}
    rows = counts.pop("good") + counts["bad"] + counts["duplicates"] + counts["outside"]
    start, seconds = simulation.start.isoformat(), simulation.window_size.total_seconds()
    return {"parameters": asdict(simulation) | {"start": start, "window_size": seconds}, **counts, "rows": rows}


def _dirt(
    simulation: Simulation, window: int, good: Rows, counts: dict[str, int], dirt: np.random.Generator
) -> tuple[Rows, Rows]:
    """Make the rows that come on top, from copies of good ones: the repeats, and those that no truth counts."""

    def copies(sort: str) -> Rows:
        # There is nothing to copy only where nothing is wanted, so the product serves where `integers` would refuse.
        rows = good[(dirt.random(counts[sort]) * len(good)).astype(np.int64)]
        rows["arrival"] = dirt.integers(simulation.edge(window), simulation.edge(window + 1), len(rows))
        return rows

    repeats, outside, bad = copies("duplicates"), copies("outside"), copies("bad")
    bad["flaw"] = dirt.integers(1, len(_FLAWS[simulation.family]), len(bad))
    length = simulation.edge(simulation.windows) - simulation.edge(0)
    before = simulation.edge(0) - dirt.integers(1, length, len(outside), endpoint=True)
    after = simulation.edge(simulation.windows) + dirt.integers(length, size=len(outside))
    outside["at"] = np.where(dirt.random(len(outside)) < 0.5, before, after)
    return repeats, np.concatenate([outside, bad])


@dataclass(frozen=True)
class _World:
    """Who searches and for what: all that lasts longer than a window. Keys are numbered by popularity."""

    simulation: Simulation
    users: pa.Array
    terms: pa.Array
    activity: npt.NDArray[np.float64]
    popularity: npt.NDArray[np.float64]
    phase: npt.NDArray[np.float64]
    turns: Counts  # (2, keys): the windows in which a key's life turns
    lives: npt.NDArray[np.bool_]  # (3, keys): whether it lives before, between and after the two

    @classmethod
    def draw(cls, simulation: Simulation, chance: np.random.Generator) -> _World:
        units, keys, windows = simulation.units, simulation.keys, simulation.windows
        turns, lives = np.zeros((2, keys), np.int64), np.ones((3, keys), bool)
        # One key stays, so that every window has something to search for.
        churned = min(round(simulation.churn * keys), keys - 1)
        if windows >= 3 and churned:
            # Evenly over the ranks, and every kind in turn: births and deaths belong among the popular keys as well.
            who = ((np.arange(churned) + 0.5) * keys / churned).astype(np.int64)
            turns[:, who] = np.sort(chance.integers(1, windows - 1, (2, churned)), axis=0)
            turns[1] += 1
            patterns = np.array([[stage == "1" for stage in pattern] for pattern in _LIVES])
            lives[:, who] = patterns[np.arange(churned) % len(patterns)].T
        return cls(
            simulation=simulation,
            users=_users(units),
            terms=_vocabulary(keys).take(pa.array(chance.permutation(keys))),
            activity=chance.lognormal(sigma=1.2, size=units),
            popularity=np.arange(1.0, keys + 1) ** -simulation.skew,
            phase=chance.uniform(0, 2 * np.pi, keys),
            turns=turns,
            lives=lives,
        )

    def events(self, window: int, count: int, chance: np.random.Generator) -> Rows:
        """Draw the good rows of a window."""
        units = min(math.ceil(_ACTIVE * self.simulation.units), max(count, 1))
        active = chance.choice(self.simulation.units, units, replace=False, shuffle=False)
        # Bounded by construction: a unit has a list of as many keys as it may, and only searches for those.
        weights = self.popularity * (1 + 0.6 * np.sin(_angle(self.simulation, window) + self.phase))
        stage = (window >= self.turns).sum(axis=0)
        cumulative = np.cumsum(weights * self.lives[stage, np.arange(len(stage))])
        draws = chance.random((units, self.simulation.keys_per_unit)) * cumulative[-1]
        lists = np.searchsorted(cumulative, draws, side="right")

        share = self.activity[active]
        owner = np.repeat(np.arange(units), chance.multinomial(count, share / share.sum()))
        rows = np.zeros(count, _ROW)
        rows["unit"] = active[owner]
        rows["key"] = lists[owner, chance.integers(self.simulation.keys_per_unit, size=count)]
        rows["at"] = chance.integers(self.simulation.edge(window), self.simulation.edge(window + 1), count)
        rows["arrival"] = rows["at"]
        rows["zone"] = np.searchsorted(np.cumsum(_ZONE_SHARES)[:-1], chance.random(count), side="right")
        return rows

    def truth(self, window: int, good: Rows, repeats: Rows) -> pa.Table:
        """Count a window exactly: distinct units and all events, repeats included, of every key that has any."""
        keys = self.simulation.keys
        pairs = np.unique(good["unit"].astype(np.int64) * keys + good["key"])
        units = np.bincount(pairs % keys, minlength=keys)
        events = np.bincount(good["key"], minlength=keys) + np.bincount(repeats["key"], minlength=keys)
        seen = np.flatnonzero(units)
        edges = (np.full(len(seen), self.simulation.edge(edge)) for edge in (window, window + 1))
        columns = [
            *(pa.array(edge).cast(_INSTANT) for edge in edges),
            self.terms.take(pa.array(seen)),
            pa.array(units[seen]),
            pa.array(events[seen]),
        ]
        return pa.table(columns, schema=_TRUTH).sort_by("key")

    def spell(self, rows: Rows) -> pa.RecordBatch:
        """Turn rows into columns; a text format's `line`, where there is one, stands for the whole row."""
        columns = {
            "user": self.users.take(pa.array(rows["unit"])),
            "term": self.terms.take(pa.array(rows["key"])),
            "at": _rfc3339(rows) if self.simulation.text_times else pa.array(rows["at"]).cast(_INSTANT),
            "seconds": pa.array(_seconds(rows)),
            "line": pa.nulls(len(rows), pa.binary()),
        }
        if rows["flaw"].any():
            flaw, flaws = pa.array(rows["flaw"]), _FLAWS[self.simulation.family]
            for name, column in columns.items():
                values = pa.array([value if spoilt == name else None for spoilt, value in flaws], column.type)
                spoils = pa.array([spoilt == name for spoilt, _ in flaws])
                columns[name] = pc.if_else(spoils.take(flaw), values.take(flaw), column)
        return pa.RecordBatch.from_pydict(columns)


def _angle(simulation: Simulation, window: Any) -> Any:
    """The time of day as an angle, or of the week where a window is a day or longer and would hide the day."""
    period = (_DAY if simulation.window_size < _DAY else 7 * _DAY) // _MICROSECOND
    return 2 * np.pi * (simulation.edge(window) % period) / period


def _users(units: int) -> pa.Array:
    width = max(5, len(str(units - 1)))
    numbers = pc.utf8_lpad(pa.array(np.arange(units)).cast(pa.string()), width, padding="0")
    return pc.binary_join_element_wise("u", numbers, "")


def _vocabulary(keys: int) -> pa.Array:
    """Distinct phrases, with a number at the end once the words have run out of pairs."""
    first, second, index = _FIRST.split(), _SECOND.split(), np.arange(keys)
    lap, pair = np.divmod(index, len(first) * len(second))
    number = pc.if_else(
        pa.array(lap > 0), pc.binary_join_element_wise("", pa.array(lap + 1).cast(pa.string()), " "), ""
    )
    words = (pa.array(first).take(pa.array(pair % len(first))), pa.array(second).take(pa.array(pair // len(first))))
    return pc.binary_join_element_wise(pc.binary_join_element_wise(*words, " "), number, "")


def _seconds(rows: Rows) -> npt.NDArray[np.int32]:
    """How long somebody looked at what was found: mostly short, up to eight minutes, longer for some keys.

    Of the row's own numbers, so that a repeated row repeats it.
    """
    mixed = rows["at"].astype(np.uint64) ^ (rows["unit"].astype(np.uint64) << np.uint64(40))
    mixed = (mixed * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    skewed = (mixed & np.uint64(31)) * ((mixed >> np.uint64(5)) & np.uint64(31))
    seconds: npt.NDArray[np.int32] = 1 + skewed.astype(np.int32) * (1 + rows["key"] % 4) // 8
    return seconds


def _rfc3339(rows: Rows) -> pa.Array:
    minutes = np.array([minutes for _, minutes in _ZONES])
    local = rows["at"] + minutes[rows["zone"]] * 60_000_000
    text = pc.replace_substring(pa.array(local).cast(pa.timestamp("us")).cast(pa.string()), " ", "T")
    return pc.binary_join_element_wise(text, pa.array([zone for zone, _ in _ZONES]).take(pa.array(rows["zone"])), "")


def _open(path: Path, simulation: Simulation) -> AbstractContextManager[Sink]:
    if simulation.family in _LINES:
        return _lines(path, *_LINES[simulation.family])
    return {"parquet": _parquet, "avro": _avro}[simulation.family](path, simulation.text_times)


@contextmanager
def _parquet(path: Path, text: bool) -> Iterator[Sink]:
    types = (pa.string(), pa.string(), pa.string() if text else _INSTANT, pa.int32())
    schema = pa.schema(zip(_COLUMNS, types, strict=True))
    with pq.ParquetWriter(path, schema) as writer:
        yield lambda batch: writer.write_batch(batch.select(_COLUMNS), row_group_size=_BATCH)


@contextmanager
def _avro(path: Path, text: bool) -> Iterator[Sink]:
    at = "string" if text else {"type": "long", "logicalType": "timestamp-micros"}
    types = zip(_COLUMNS, (["null", "string"], ["null", "string"], at, "int"), strict=True)
    schema = {"type": "record", "name": "Search", "fields": [{"name": name, "type": kind} for name, kind in types]}
    with path.open("wb") as stream:
        # The marker is random unless given, and the same simulation is to give the same bytes.
        writer = AvroWriter(stream, schema, codec="deflate", sync_marker=b"tidegate" * 2)

        def write(batch: pa.RecordBatch) -> None:
            columns = {name: batch[name] for name in _COLUMNS}
            if not text:
                columns["at"] = columns["at"].cast(pa.int64())
            for record in pa.RecordBatch.from_pydict(columns).to_pylist():
                writer.write(record)

        yield write
        writer.flush()


@contextmanager
def _lines(path: Path, header: bytes, join: Callable[[pa.RecordBatch], pa.Array]) -> Iterator[Sink]:
    # Compresses where the name ends in .gz, without a time in the header.
    with pa.output_stream(str(path)) as stream:
        stream.write(header)

        def write(batch: pa.RecordBatch) -> None:
            lines = pc.coalesce(batch["line"], join(batch).cast(pa.binary()))
            whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
            stream.write(pc.binary_join(whole, b"")[0].as_buffer())

        yield write


def _csv(batch: pa.RecordBatch) -> pa.Array:
    # No value of ours needs quotes.
    seconds = batch["seconds"].cast(pa.string())
    return pc.binary_join_element_wise(batch["user"], ",", batch["term"], ",", batch["at"], ",", seconds, "\n", "")


def _jsonl(batch: pa.RecordBatch) -> pa.Array:
    # No value of ours needs escapes.
    texts = ("user", "term", "at")
    user, term, at = (pc.coalesce(pc.binary_join_element_wise('"', batch[name], '"', ""), "null") for name in texts)
    seconds = batch["seconds"].cast(pa.string())
    return pc.binary_join_element_wise(
        '{"user": ', user, ', "term": ', term, ', "at": ', at, ', "seconds": ', seconds, "}\n", ""
    )


_LINES: dict[str, tuple[bytes, Callable[[pa.RecordBatch], pa.Array]]] = {
    "csv": (b"user,term,at,seconds\n", _csv),
    "jsonl": (b"", _jsonl),
}


def _claim(out: Path) -> None:
    """Empty the folder of an earlier simulation, or refuse it if there is anything that might be somebody else's."""
    if out.exists() and not out.is_dir():
        raise _refusal("out", "a folder", str(out), "the name of a new folder")
    out.mkdir(parents=True, exist_ok=True)
    suffixes = "|".join(map(re.escape, FORMATS))
    ours = re.compile(rf"events-\d{{5,}}\.({suffixes})|truth\.parquet(\.unfinished)?|{re.escape(_SUMMARY)}")
    names = sorted(entry.name for entry in out.iterdir())
    strange = [name for name in names if _SUMMARY not in names or not ours.fullmatch(name)]
    if strange:
        rule = "a new or empty folder or one with nothing but an earlier simulation"
        raise _refusal("out", rule, f"{out} with {strange[0]} in it", "the name of a new folder")
    # The summary stays until it is overwritten, for an interrupted run must be known as one.
    for name in set(names) - {_SUMMARY}:
        (out / name).unlink()


def _refusal(field: str, rule: str, value: object, instead: str) -> ValueError:
    return ValueError(f"{field} must be {rule}, not {value}; write {instead}.")
