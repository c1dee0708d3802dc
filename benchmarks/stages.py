"""Where the time of a private release goes: its stages one after the other in one process, without Beam.

    python -m benchmarks.stages --size 10000000 --repeats 3 --out .bench/
    python -m benchmarks.stages --write-docs                  and put the tables into docs/performance.md

The pass calls the project's own functions in the order in which the pipeline does, and the real job runs next to it:
what the job takes longer is Beam's own. Both must come to the same releases, or the profile is of something else.
Seconds are of processor time, in all threads: on a shared machine the clock on the wall tells how busy the others are.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from benchmarks import release as bench
from benchmarks.pages import fill, markdown

PAGE = bench.ROOT / "docs" / "performance.md"


class Clock:
    """Adds up the processor seconds of every step; a step is named after its stage, as `gate: draw` is."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        began = time.process_time()
        try:
            yield
        finally:
            self.seconds[stage] += time.process_time() - began

    def stages(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for step, seconds in self.seconds.items():
            found[step.partition(":")[0]] += seconds
        return found


def one_pass(spec: Any, shards: int, clock: Clock) -> None:
    """What the pipeline does on one worker, with all that is read in one bundle."""
    from apache_beam.transforms.window import IntervalWindow
    from apache_beam.utils.timestamp import Timestamp
    from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN

    from tidegate.mechanisms.keyed import EMPTY_DIGEST, KeyedHash, add_digests, derive_key
    from tidegate.mechanisms.table import ExactTable
    from tidegate.pipelines.publish import encode_rows, publish, release_digest
    from tidegate.pipelines.sources import read_file
    from tidegate.pipelines.spec import check_source, open_secret
    from tidegate.transforms import decode
    from tidegate.transforms.bound import split_by_key
    from tidegate.transforms.bounding import Gathering
    from tidegate.transforms.coders import ContributionsCoder, ExactTableCoder
    from tidegate.transforms.contributions import Contributions, Tally
    from tidegate.transforms.gate import Draws
    from tidegate.transforms.seal import SealFn

    secret, windows = open_secret(spec), spec.window.windows
    key = decode.stage_key(spec, secret)
    decoder, bounder = decode.Decoder(spec, key), decode.make_bounder(spec, key)
    place, hashed = (KeyedHash(derive_key(key, label)) for label in ("key shards", "digest"))
    draws, seal = Draws(spec, secret), SealFn(spec)
    rows_coder, table_coder = ContributionsCoder(), ExactTableCoder()

    gathering = Gathering(bounder)
    travelling: dict[tuple[int, int], list[bytes]] = defaultdict(list)

    def send(whole: Contributions | None) -> None:
        with clock("shuffle: split by window and unit"):
            parts = list(whole.split(shards)) if whole is not None else []
        with clock("shuffle: encode contributions"):
            for window, shard, rows in parts:
                travelling[window, shard].append(rows_coder.encode(rows))

    for path in check_source(spec):
        items = read_file(path, spec.source.kind, spec.event_columns)
        while True:
            with clock("read"):
                batch = next(items, None)
            if batch is None:
                break
            with clock("decode"):
                decoded = decoder(batch)
            with clock("bound: within a bundle"):
                rested = gathering.add(decoded.contributions)
            send(rested)
            if len(gathering) >= decode._ROWS_HELD:
                with clock("bound: within a bundle"):
                    whole = gathering.drain()
                send(whole)
    with clock("bound: within a bundle"):
        whole = gathering.drain()
    send(whole)

    tables: dict[int, dict[int, list[bytes]]] = {window: defaultdict(list) for window in range(windows.count)}
    for (window, _), encoded in travelling.items():
        with clock("shuffle: decode contributions"):
            arrived = [rows_coder.decode(data) for data in encoded]
        with clock("bound: all bundles"):
            bounded = bounder(Contributions.merge(arrived))
        with clock("count: add up"):
            counted = bounded.count_keys(Tally())
        with clock("count: split by key"):
            partial = list(split_by_key(counted, place, shards))
        with clock("count: encode and decode tables"):
            for shard, table in partial:
                tables[window][shard].append(table_coder.encode(table))

    for window, by_shard in tables.items():
        with clock("count: encode and decode tables"):
            shares = [[table_coder.decode(data) for data in encoded] for encoded in by_shard.values()]
        with clock("count: merge tables"):
            merged = [ExactTable.merge(share) for share in shares]
        with clock("count: digest"):
            parts = (hashed.digest(hashed(table.keys), table.counts) for table in merged)
            digest = reduce(add_digests, parts, EMPTY_DIGEST)
        close = windows.start + window * windows.every + windows.size + windows.grace
        carrier = IntervalWindow(Timestamp(micros=close - windows.every), Timestamp(micros=close))
        with clock("gate: identify keys"):
            ids = [draws.identify(table.keys) for table in merged]
        with clock("gate: draw"):
            noise = draws.noise(carrier, digest, 0)
            rows = [(0, spec.gate_mechanism.release(*pair, noise)) for pair in zip(merged, ids, strict=True)]
        with clock("seal"):
            (sealed,) = seal.process((window, rows), PANE_INFO_UNKNOWN)
        began = time.process_time()
        encode_rows(sealed.rows, spec.sink[0].format)
        release_digest(sealed)
        encoding = time.process_time() - began
        began = time.process_time()
        publish(sealed, spec.sink[0].place, spec.sink[0].format)  # which encodes, too
        clock.seconds["publish: encode"] += encoding
        clock.seconds["publish: write and sync"] += max(time.process_time() - began - encoding, 0)


def digests(spec: Any) -> dict[str, str]:
    """What was released, by window."""
    manifests = sorted(Path(spec.sink[0].place).glob("*/manifest.json"))
    return {path.parent.name: json.loads(path.read_text())["release_digest"] for path in manifests}


def profile(data: Path, tiny: Path) -> tuple[Clock, float, float]:
    """Seconds by step, of the real job, and of the real job with next to no events."""
    from tidegate.pipelines.job import run

    def timed(source: Path, folder: Path) -> tuple[Any, float]:
        # One state folder for all, hence one secret, hence the same releases.
        spec = bench.make_spec(source, folder).model_copy(update={"state": str(folder.parent / "state")})
        began = time.process_time()
        run(spec)
        return spec, time.process_time() - began

    with tempfile.TemporaryDirectory(dir=data.parent) as scratch:
        timed(tiny, Path(scratch) / "cold")
        _, fixed = timed(tiny, Path(scratch) / "warm")
        real, seconds = timed(data, Path(scratch) / "real")
        clock = Clock()
        sink = (real.sink[0].model_copy(update={"files": str(Path(scratch) / "pass")}),)
        again = real.model_copy(update={"sink": sink})
        one_pass(again, 1, clock)
        if digests(real) != digests(again):
            raise RuntimeError("the stages did not come to the releases of the job; they are no longer what it does")
    return clock, seconds, fixed


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", default=10_000_000, type=int, help="events")
    parser.add_argument("--repeats", default=3, type=int)
    parser.add_argument("--out", default=Path(".bench"), type=Path, help="for the report and the simulated data")
    parser.add_argument("--write-docs", action="store_true", help="fill docs/performance.md")
    chosen = parser.parse_args(arguments)
    logging.getLogger().setLevel(logging.CRITICAL)
    data, tiny = (bench.data_folder(chosen.out, events) for events in (chosen.size, bench.TINY))
    bench.child("prepare", tiny, bench.TINY)
    bench.child("prepare", data, chosen.size)
    measured = []
    for repeat in range(chosen.repeats):
        print(f"{repeat + 1}/{chosen.repeats}", file=sys.stderr)
        measured.append(profile(data, tiny))
    clocks, jobs, fixed = zip(*measured, strict=True)
    totals = [sum(clock.seconds.values()) for clock in clocks]
    beams = [job - total for job, total in zip(jobs, totals, strict=True)]
    steps = {step: [clock.seconds[step] for clock in clocks] for step in clocks[0].seconds}
    stages = {stage: [clock.stages()[stage] for clock in clocks] for stage in clocks[0].stages()}
    wholes = {
        "all stages": totals,
        "Beam's own: real job less all stages": beams,
        "of that, whatever comes: real job with next to no events": list(fixed),
        "the real job": list(jobs),
    }
    whole = bench.spread(totals)[0]
    parts = [
        (title, ["", "seconds of processor", "share of all stages", "ns an event"], _rows(lines, whole, chosen.size))
        for title, lines in (
            (f"Stages of {chosen.size:,} events: median [least–most]", stages | wholes),
            ("Their steps", steps),
        )
    ]
    bench.show(parts, chosen.out / "stages.md")
    if chosen.write_docs:
        fill(PAGE, {"stages": "\n".join(markdown(parts))})
        print(f"written: {PAGE}", file=sys.stderr)
    written = {"events": chosen.size, "seconds": steps | wholes, "stages": stages}
    (chosen.out / "stages.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def _rows(lines: Mapping[str, Sequence[float]], whole: float, events: int) -> list[tuple[str, ...]]:
    found = {words: bench.spread(seconds) for words, seconds in lines.items()}
    return [
        (words, bench.shown(spread), f"{spread[0] / whole:.1%}", f"{spread[0] / events * 1e9:,.0f}")
        for words, spread in found.items()
    ]


if __name__ == "__main__":
    main()
