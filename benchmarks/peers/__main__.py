"""tidegate next to PipelineDP, OpenDP, plain Beam and plain counting: time, memory, and what is published.

    python -m benchmarks.peers                         the whole of it, about 20 minutes on two processors
    python -m benchmarks.peers --write-docs            and put the tables into docs/performance.md
    python -m benchmarks.peers --quick                 less than a minute, with what is installed here
    python -m benchmarks.peers --only tidegate,opendp-core --sizes 200000 --repeats 5
    python -m benchmarks.peers --from-json .bench/peers.json --write-docs

The same events, guarantee and bounds for all, one window, each run a process of its own, in turns; ratios are taken within a
repetition. Everybody is installed with pip into ~/.cache/tidegate/peers (or under TIDEGATE_CACHE) when not there yet.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.pages import fill
from benchmarks.peers import measuring, picture, report, utility
from benchmarks.peers.contenders import FLOORS, OURS, ROWS, WORDS, prepared
from benchmarks.release import ROOT, Measured, show

PAGE = ROOT / "docs" / "performance.md"
QUICK = {"sizes": "2000", "repeats": 1, "epsilons": "4", "draws": 1, "utility_events": 5_000}
QUICK_NAMES = (OURS, ROWS, *FLOORS)


def machine() -> Measured:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def _processor() -> str:
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def measure(chosen: argparse.Namespace, say: Callable[[str], None]) -> Measured:
    """Everything that is to be known, as it goes into the JSON."""
    names, here = chosen.only.split(","), machine()
    sizes = sorted({int(size) for size in chosen.sizes.split(",")})
    epsilons = sorted({float(epsilon) for epsilon in chosen.epsilons.split(",") if epsilon})
    chosen.out.mkdir(parents=True, exist_ok=True)
    out = chosen.out.resolve()
    contenders, left_out = prepared(names, say, here=chosen.quick)
    environments = dict.fromkeys(contender.environment for contender in contenders)
    versions = {environment.name or "here": environment.versions() for environment in environments}
    found, failed = measuring.compare(contenders, sizes, chosen.repeats, out, say)
    contenders = [contender for contender in contenders if contender.name not in failed]
    rows: list[Measured] = []
    silent: dict[str, str] = {}
    if epsilons:
        rows, silent = utility.compare(contenders, epsilons, chosen.draws, chosen.utility_events, out, say)
    summary = report.summarise(found)
    return {
        **{"machine": here, "versions": versions, "repeats": chosen.repeats, "summary": summary},
        **{"targets": report.targets(summary), "utility": rows, "utility_events": chosen.utility_events},
        **{"left_out": {**left_out, **failed, **silent}, "measurements": found},
    }


def publish(written: Measured, out: Path, docs: bool, say: Callable[[str], None]) -> None:
    """JSON, Markdown and a picture; the tables to standard output; and the page, if asked for."""
    (out / "peers.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    drawn: Path | None = out / "peers.svg"
    try:
        picture.draw(written, out / "peers.svg")
    except ImportError:
        drawn = None
        say("no picture, since matplotlib is missing: pip install 'tidegate[plots]'")
    show(report.report(written), out / "peers.md")
    (out / "peers.md").write_text(report.as_markdown(written, drawn.name if drawn else None), encoding="utf-8")
    print("\n".join(report.notes(written)))
    if docs:
        if drawn:
            PAGE.with_suffix(".svg").write_bytes(drawn.read_bytes())
        fill(PAGE, {report.SECTION: report.as_markdown(written, PAGE.with_suffix(".svg").name if drawn else None)})
        say(f"written: {PAGE}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="200000,1000000,10000000", help="events (%(default)s)")
    parser.add_argument("--repeats", default=5, type=int, help="of every run that is not slow (%(default)s)")
    parser.add_argument("--only", default=",".join(WORDS), help="contenders (%(default)s)")
    parser.add_argument("--epsilons", default="0.1,0.5,1,2,4", help="for what is published; '' for none (%(default)s)")
    parser.add_argument("--draws", default=5, type=int, help="releases at each epsilon (%(default)s)")
    parser.add_argument("--utility-events", default=200_000, type=int, help="events they are made of (%(default)s)")
    parser.add_argument("--out", default=Path(".bench"), type=Path, help="for report and data (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="tiny, and only with what is installed here")
    parser.add_argument("--write-docs", action="store_true", help=f"fill {PAGE.relative_to(ROOT)}")
    parser.add_argument("--from-json", type=Path, help="report what was measured before, and measure nothing")
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.only.split(",")) - set(WORDS))
    if unknown:
        parser.error(f"--only must name some of {', '.join(WORDS)}, not {unknown[0]}")
    if OURS not in chosen.only.split(","):
        parser.error(f"--only must have {OURS} in it, since ratios are to it")
    if chosen.quick and chosen.write_docs:
        parser.error("--write-docs needs real sizes; leave out --quick")
    if chosen.quick:
        vars(chosen).update({**QUICK, "only": ",".join(QUICK_NAMES)})
    began = time.perf_counter()
    say = lambda words: print(f"[{time.perf_counter() - began:5.0f} s] {words}", file=sys.stderr, flush=True)  # noqa: E731
    if chosen.from_json:
        written: Measured = json.loads(chosen.from_json.read_text(encoding="utf-8"))
        chosen.out.mkdir(parents=True, exist_ok=True)
    else:
        written = measure(chosen, say)
    publish(written, chosen.out, chosen.write_docs, say)


if __name__ == "__main__":
    main()
