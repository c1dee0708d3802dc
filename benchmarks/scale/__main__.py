"""How a run of `tidegate run` grows with events, keys, units, windows, bounds and skew, up to 100 million events.

    python -m benchmarks.scale                              all sweeps, three times each
    python -m benchmarks.scale --write-docs                 and put the tables into docs/scale.md
    python -m benchmarks.scale --sweep events --repeats 1   one of them, or several with commas
    python -m benchmarks.scale --largest 10000000           nothing above ten million events
    python -m benchmarks.scale --quick                      a minute or two, to see that it works
    python -m benchmarks.scale --from-json .bench/scale.json --write-docs
    python -m benchmarks.scale --from-json .bench/scale-so-far.json       what was measured before it was interrupted
    python -m benchmarks.scale --clean                      remove the simulated streams

Every run is the whole command in a process of its own. Streams are simulated once, into ~/.cache/tidegate/scale (or under
TIDEGATE_CACHE). What is measured makes the coefficients of a cost model, which is checked against the runs and then stretched
to a million events a second. Processor time tells more than time on a machine that others use as well.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.pages import fill
from benchmarks.peers.__main__ import machine
from benchmarks.peers.contenders import HERE, PLAIN
from benchmarks.release import ROOT, Measured, show
from benchmarks.scale import measuring, model, picture, report
from benchmarks.scale.sweeps import LARGEST, MILLION, WORDS, cases
from tidegate.pipelines.runners import cache

PAGE = ROOT / "docs" / "scale.md"
QUICK = {"largest": 20_000, "base": 10_000, "repeats": 1}
QUICK_CASES = ("events", "units", "skew", "repeats")


def publish(written: Measured, out: Path, docs: bool, say: Callable[[str], None]) -> None:
    """JSON, Markdown and a picture; the tables to standard output; and the page, if asked for."""
    written = {**written, "verdicts": report.verdicts(written["measurements"], written["failed"])}
    written["model"] = model.fit(written["measurements"])
    (out / "scale.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    drawn: Path | None = out / "scale.svg"
    try:
        picture.draw(written, out / "scale.svg")
    except ImportError:
        drawn = None
        say("no picture, since matplotlib is missing: pip install 'tidegate[plots]'")
    show([*report.report(written), *report.model_parts(written), *report.engine_parts(written)], out / "scale.md")
    filled = report.sections(written, drawn.name if drawn else None)
    (out / "scale.md").write_text("\n".join(filled.values()), encoding="utf-8")
    print("\n".join(report.notes(written)))
    if docs:
        if drawn:
            PAGE.with_suffix(".svg").write_bytes(drawn.read_bytes())
        fill(PAGE, report.sections(written, PAGE.with_suffix(".svg").name if drawn else None))
        say(f"written: {PAGE}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweep", default=",".join(WORDS), help="which of them (%(default)s)")
    parser.add_argument("--largest", default=LARGEST, type=int, help="events of the largest run (%(default)s)")
    parser.add_argument(
        "--base", default=10 * MILLION, type=int, help="events where something else grows (%(default)s)"
    )
    parser.add_argument("--repeats", default=3, type=int, help="of every run (%(default)s)")
    parser.add_argument("--workers", default=1, type=int, help="processes of the direct runner; its own default is 1")
    parser.add_argument("--out", default=Path(".bench"), type=Path, help="for the report (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="tiny, and not all sweeps")
    parser.add_argument("--write-docs", action="store_true", help=f"fill {PAGE.relative_to(ROOT)}")
    parser.add_argument("--from-json", type=Path, help="report what was measured before, and measure nothing")
    parser.add_argument("--clean", action="store_true", help="remove the simulated streams, and measure nothing")
    chosen = parser.parse_args(arguments)
    streams = cache() / "scale"
    if chosen.clean:
        shutil.rmtree(streams, ignore_errors=True)
        print(f"removed: {streams}")
        return
    if chosen.quick and chosen.write_docs:
        parser.error("--write-docs needs real sizes; leave out --quick")
    if chosen.quick:
        if chosen.sweep == ",".join(WORDS):
            chosen.sweep = ",".join(QUICK_CASES)
        vars(chosen).update(QUICK)
    names = chosen.sweep.split(",")
    unknown = sorted(set(names) - set(WORDS))
    if unknown:
        parser.error(f"--sweep must name some of {', '.join(WORDS)}, not {unknown[0]}")
    if min(chosen.largest, chosen.base) < MILLION // 100:
        parser.error(f"--largest and --base must be at least {MILLION // 100}, or there is nothing to see")
    if chosen.repeats < 1 or chosen.workers < 1:
        parser.error("--repeats and --workers must be at least 1")
    began = time.perf_counter()
    say = lambda words: print(f"[{time.perf_counter() - began:5.0f} s] {words}", file=sys.stderr, flush=True)  # noqa: E731
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.from_json:
        written: Measured = json.loads(chosen.from_json.read_text(encoding="utf-8"))
    else:
        here = machine()
        wanted = [case for case in cases(chosen.largest, chosen.base) if case.sweep in names]
        out = chosen.out.resolve()
        settings = {name: getattr(chosen, name) for name in ("repeats", "workers", "largest", "base")}
        written = {"machine": here, **settings}

        def keep(found: list[Measured], failed: dict[str, str]) -> None:
            so_far = json.dumps({**written, "measurements": found, "failed": failed})
            (out / "scale-so-far.json").write_text(so_far, encoding="utf-8")

        # As users install it: Beam imports every client of a cloud that it finds, and tests need some.
        environment = HERE if chosen.quick else PLAIN
        environment.prepare(say)
        place = measuring.Place(environment.python, chosen.workers, streams, out)
        found, failed = measuring.compare(wanted, chosen.repeats, place, say, keep)
        written |= {"measurements": found, "failed": failed}
        (out / "scale-so-far.json").unlink(missing_ok=True)
    publish(written, chosen.out, chosen.write_docs, say)


if __name__ == "__main__":
    main()
