"""From measurements to tables, targets, and the page in docs/."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from benchmarks.pages import Part, markdown
from benchmarks.peers.contenders import FLOORS, OPENDP, OURS, PDP_BEAM, PDP_LOCAL, ROWS, WORDS
from benchmarks.peers.measuring import DELTA, EPSILON, KEYS, TINY, without_startup
from benchmarks.peers.utility import ahead_of_us, shown_rows
from benchmarks.release import Measured, shown, spread

SHORTEST = 0.02  # seconds; the difference of two runs that is smaller than this says nothing
SECTION = "peers"
MILLION, TEN_MILLION = 10**6, 10**7
_TOTAL, _WORK, _PROCESSOR, _MEMORY = "seconds", "work", "processor_work", "memory"


def summarise(found: Sequence[Measured]) -> Measured:
    """Medians and spreads: of seconds by contender and size, of ratios to ours within the repetitions."""
    runs = without_startup(found)
    ours = {(one["events"], one["repeat"]): one for one in runs if one["contender"] == OURS}
    seconds, ratios = [], []
    for events in sorted({one["events"] for one in runs}):
        for name in WORDS:
            mine = [one for one in runs if one["contender"] == name and one["events"] == events]
            if not mine:
                continue
            fields = (_TOTAL, "startup", _WORK, _PROCESSOR, _MEMORY)
            spreads = {field: spread([one[field] for one in mine]) for field in fields}
            seconds.append({"contender": name, "events": events, "runs": len(mine), **spreads})
            pairs = [(one, ours[events, one["repeat"]]) for one in mine if (events, one["repeat"]) in ours]
            if name != OURS and pairs:
                within = {field: _ratio(pairs, field) for field in (_TOTAL, _WORK, _PROCESSOR, _MEMORY)}
                ratios.append({"contender": name, "events": events, "runs": len(pairs), **within})
    return {"seconds": seconds, "ratios": ratios}


def _ratio(pairs: Sequence[tuple[Measured, Measured]], field: str) -> list[float] | None:
    """Theirs by ours; none where start-up is all there is.

    On a busy machine a single start-up may exceed the run it is taken from. Where that happens to ours, even once, there is
    no ratio, since next to nothing below the line would flatter us. Where it happens to theirs, it counts as very short.
    """
    theirs, ours = ([max(one[field], SHORTEST) for one in side] for side in zip(*pairs, strict=True))
    if min(statistics.median(theirs), *ours) <= SHORTEST:
        return None
    return spread([mine / its for mine, its in zip(theirs, ours, strict=True)])


def targets(summary: Measured) -> list[tuple[str, str, str]]:
    """(target, measured, met or MISSED). Judged by medians, each in all and without start-up."""
    ratios = {(row["contender"], row["events"]): row for row in summary["ratios"]}
    medians = {(row["contender"], row["events"]): row for row in summary["seconds"]}

    def fastest(names: Sequence[str], events: int, field: str) -> list[float] | None:
        """The ratio to ours of whichever of them takes least; empty where it was too short to tell."""
        there = [name for name in names if (name, events) in ratios]
        if not there:
            return None
        best = min(there, key=lambda name: medians[name, events][field][0])
        return ratios[best, events][field] or []

    def inverse(values: list[float] | None) -> list[float] | None:
        return [1 / values[0], 1 / values[2], 1 / values[1]] if values else values

    judged: list[tuple[str, list[float] | None, Callable[[float], bool]]] = []
    for field, how in ((_TOTAL, "in all"), (_WORK, "without start-up")):
        judged += [
            (
                f"PipelineDP on Beam / tidegate ≥ 50 at 1M, {how}",
                fastest([PDP_BEAM], MILLION, field),
                lambda value: value >= 50,
            ),
            (
                f"PipelineDP, LocalBackend / tidegate ≥ 5 at 1M, {how}",
                fastest([PDP_LOCAL], MILLION, field),
                lambda value: value >= 5,
            ),
            (
                f"OpenDP, the faster way / tidegate > 1 at 1M, {how}",
                fastest(OPENDP, MILLION, field),
                lambda value: value > 1,
            ),
            (
                f"OpenDP, the faster way / tidegate > 1 at 10M, {how}",
                fastest(OPENDP, TEN_MILLION, field),
                lambda value: value > 1,
            ),
            (
                f"Beam, one element a row / tidegate > 1 at 1M, {how}",
                fastest([ROWS], MILLION, field),
                lambda value: value > 1,
            ),
            (
                f"tidegate / the faster floor ≤ 1.5 at 10M, {how}",
                inverse(fastest(FLOORS, TEN_MILLION, field)),
                lambda value: value <= 1.5,
            ),
        ]
    return [
        (words, shown(value), "met" if holds(value[0]) else "MISSED")
        if value
        else (words, "not measured" if value is None else "too short to tell", "-")
        for words, value, holds in judged
    ]


def report(written: Measured) -> list[Part]:
    """The tables: title, header, rows."""
    summary = written["summary"]
    seconds = [
        [
            *(f"{row['events']:,}", WORDS[row["contender"]], str(row["runs"])),
            *(shown(row[field]) for field in (_TOTAL, "startup", _WORK, _PROCESSOR)),
            f"{row[_MEMORY][0] / 2**20:,.0f}",
        ]
        for row in summary["seconds"]
    ]
    ratios = [
        [
            *(f"{row['events']:,}", WORDS[row["contender"]], str(row["runs"])),
            *(
                shown(row[field]) if row[field] else "too short to tell"
                for field in (_TOTAL, _WORK, _PROCESSOR, _MEMORY)
            ),
        ]
        for row in summary["ratios"]
    ]
    published = [
        [
            *(f"{row['epsilon']:g}", row["way"]),
            f"{row['keys']:,.1f} [{min(row['keys_drawn']):,}–{max(row['keys_drawn']):,}]",
            *(f"{row['volume']:.1%}", "-" if row["error"] is None else f"{row['error']:.2f}"),
        ]
        for row in sorted(shown_rows(written["utility"]), key=lambda row: float(row["epsilon"]))
    ]
    header = ["events", "", "runs", "seconds in all", "start-up", "without it", "of processor", "peak MiB"]
    parts: list[Part] = [
        ("Targets", ["target", "measured", "met"], targets(summary)),
        (
            "Time by tidegate's, within a repetition: above 1 is slower than tidegate",
            ["events", "", "runs", "in all", "without start-up", "of processor", "peak memory"],
            ratios,
        ),
        ("Seconds: median [least–most]", header, seconds),
    ]
    if published:
        utility = ["epsilon", "", "keys published [least–most]", "share of volume", "mean absolute error"]
        parts.append(("What is published, under the same guarantee", utility, published))
    return parts


def notes(written: Measured) -> list[str]:
    """What a reader must know to believe the tables; all of it from what was measured."""
    machine = written["machine"]
    lines = [
        f"{machine['date']}; {machine['processor']}, {machine['processors']} processors, "
        f"{machine['memory'] / 2**30:.0f} GiB; {machine['platform']}; Python {machine['python']}; load {machine['load']:.2f} "
        "as it began.",
        *(
            f"{name}: {', '.join(f'{package} {number}' for package, number in packages.items())}."
            for name, packages in written["versions"].items()
        ),
        f"Time and memory: epsilon {EPSILON:g}, delta {DELTA:g}, {KEYS} keys a unit, one window; start-up is the same "
        f"program on {TINY} events.",
    ]
    rows = written["utility"]
    if rows:
        first = rows[0]
        lines.append(
            f"Published: {written['utility_events']:,} events, {first['keys_there']:,} keys there, delta {DELTA:g}, "
            f"{KEYS} keys a unit; draws at each epsilon, of which means are given: {first['draws']}."
        )
        hidden = sorted({row["way"] for row in rows} - {row["way"] for row in shown_rows(rows)})
        if hidden:
            lines.append(f"Never more keys than tidegate's default, and not shown: {'; '.join(hidden)}.")
        lines += ahead_of_us(rows) or ["Nobody publishes more keys than tidegate's default at any of these epsilons."]
    once = [row for row in written["summary"]["seconds"] if row["runs"] < written["repeats"]]
    lines += [
        f"{WORDS[row['contender']]} was run {row['runs']} of {written['repeats']} times with {row['events']:,} events, "
        "because it is slow or failed."
        for row in once
    ]
    lines += [f"{WORDS.get(name, name)} is missing: {why}." for name, why in written["left_out"].items()]
    return lines


def as_markdown(written: Measured, picture: str | None) -> str:
    lines = [f"![Time at each size, and keys published at each epsilon]({picture})", ""] if picture else []
    lines += markdown(report(written))
    lines += ["### Measured with", "", *(f"- {line}" for line in notes(written)), ""]
    return "\n".join(lines)
