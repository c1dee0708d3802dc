"""From measurements to verdicts, tables, and the page in docs/."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence

from benchmarks.pages import Part, markdown
from benchmarks.release import Measured, shown, spread
from benchmarks.scale import model
from benchmarks.scale.measuring import without_startup
from benchmarks.scale.model import BY_KEY, BY_SHARD, BY_UNIT, BY_WINDOW, COSTS, ENGINES, MILLION, WHOLE, Load
from benchmarks.scale.sweeps import TINY, WORDS

CLEAR = 3  # times what start-ups differ by among themselves; anything less may be noise
FLAT, SKEWED, STRAIGHT, CONSTANT = 1.2, 1.5, 0.2, 1.2
MOST_MEMORY = 8 * 2**30  # of a machine with two cores and 4 GiB for each
SECTIONS = ("scale", "scale model", "scale engines")


def verdicts(found: Sequence[Measured], failed: Collection[str] = ()) -> list[tuple[str, str, str]]:
    """(claim, measured, met or MISSED). Ratios are taken within a repetition, and judged by their median.

    `failed` names the runs that did not come to an end.
    """
    runs = without_startup(found)
    events = sorted({one["events"] for one in runs if one["sweep"] == "events"})
    full = bool(events) and (events[0], events[-1]) == (MILLION, 100 * MILLION)
    small, large = (f"{events[0]:,}", f"{events[-1]:,}") if events else ("", "")
    rows = model.medians(found)
    units = [row for row in rows if row["sweep"] == "units"]
    straight = [model.memory_line(units)["error"]] * 3 if len(units) > 2 else None
    largest = [one["memory"] / 2**30 for one in runs if one["sweep"] == "events" and one["events"] == 100 * MILLION]
    grown = {
        field: _ratio(runs, "events", large, small, field, per_event=True) if full else None
        for field in ("work", "processor_work")
    }
    tenfold = {
        field: _ratio(runs, "events", large, f"{10 * MILLION:,}", field, per_event=True) if full else None
        for field in ("work", "processor_work")
    }
    judged: list[tuple[str, list[float] | None, Callable[[float], bool]]] = [
        ("an event takes as long of 100M as of 1M, give or take 20%", grown["work"], lambda value: value <= FLAT),
        ("and as much of the processor", grown["processor_work"], lambda value: value <= FLAT),
        ("an event takes as long of 100M as of 10M, give or take 20%", tenfold["work"], lambda value: value <= FLAT),
        ("and as much of the processor again", tenfold["processor_work"], lambda value: value <= FLAT),
        (
            f"100M events come to an end within {MOST_MEMORY / 2**30:.0f} GiB",
            spread(largest) if largest else None,
            lambda value: value <= MOST_MEMORY / 2**30,
        ),
        (
            "memory follows distinct pairs: no run with more units is further than 20% from a line",
            straight,
            lambda value: value <= STRAIGHT,
        ),
    ]
    for sweep, words in (("repeats", "few"), ("many-pairs", "many")):
        sizes = sorted({one["events"] for one in runs if one["sweep"] == sweep})
        again = _ratio(runs, sweep, f"{sizes[-1]:,}", f"{sizes[0]:,}", "memory") if len(sizes) > 1 else None
        claim = f"memory does not follow events: within 20% at the same pairs, {words} of them"
        judged.append((claim, again, lambda value: value <= CONSTANT))
    for hot, words in (("one unit has half", "one unit"), ("one key has half", "one key")):
        for field, how in (("work", "time"), ("processor_work", "processor")):
            judged.append(
                (
                    f"{words} with half of the events: at most 1.5 times the {how} of an even stream",
                    _ratio(runs, "skew", hot, "even", field),
                    lambda value: value <= SKEWED,
                )
            )
    if f"events: {100 * MILLION:,}" in failed:
        judged[4] = (judged[4][0], [math.inf] * 3, judged[4][2])
    return [
        (words, shown(value), "met" if holds(value[0]) else "MISSED")
        if value
        else (words, "not measured" if value is None else "too noisy to tell", "-")
        for words, value, holds in judged
    ]


def _ratio(
    runs: Sequence[Measured], sweep: str, over: str, under: str, field: str, per_event: bool = False
) -> list[float] | None:
    """None where there is nothing to compare; empty where start-ups differ by more than the runs take beside them."""
    at = {(one["label"], one["repeat"]): one for one in runs if one["sweep"] == sweep}
    pairs = [(one, at[under, repeat]) for (label, repeat), one in at.items() if label == over and (under, repeat) in at]
    if over == under or not pairs:
        return None
    noise = {"work": "noise", "processor_work": "processor_noise"}.get(field)
    clear = [pair for pair in pairs if noise is None or all(one[field] > CLEAR * one[noise] for one in pair)]
    ratios = [
        one[field] / other[field] * (other["events"] / one["events"] if per_event else 1.0) for one, other in clear
    ]
    return spread(ratios) if ratios else []


def report(written: Measured) -> list[Part]:
    """The tables: title, header, rows."""
    header = [
        *("", "runs", "events", "windows", "pairs", "kept", "keys", "rows published", "seconds", "without start-up"),
        *("µs an event", "µs of processor", "peak MiB", "bytes shuffled an event"),
    ]
    parts: list[Part] = [
        ("Verdicts", ["claim", "measured [least–most]", ""], verdicts(written["measurements"], written["failed"]))
    ]
    rows = model.medians(written["measurements"])
    for sweep, words in WORDS.items():
        body = [
            [
                *(row["label"], f"{row['runs']}", f"{row['events']:,}", f"{row['published']['windows']:,}"),
                *(f"{row[field]:,}" for field in ("pairs", "kept", "keys", "rows")),
                *(f"{row['seconds']:.1f}", f"{row['work']:.1f}"),
                *(f"{row[field] / row['events'] * 1e6:.2f}" for field in ("work", "processor_work")),
                *(f"{row['memory'] / 2**20:,.0f}", f"{sum(row['shuffled'].values()) / row['events']:.1f}"),
            ]
            for row in rows
            if row["sweep"] == sweep
        ]
        if body:
            parts.append((f"{sweep.capitalize()}: {words}", header, body))
    if rows:
        names = (WHOLE, BY_UNIT, BY_KEY, BY_SHARD, BY_WINDOW)
        body = [
            [
                f"{row['sweep']}: {row['label']}",
                *(f"{row['shuffled'].get(name, 0) / row['events']:.3f}" for name in names),
                *(f"{row['sent_elements']:,}", f"{row['sent_rows']:,}"),
                f"{row['encoded_rows'] / max(row['sent_rows'], 1):.1f}",
            ]
            for row in rows
        ]
        title = "Bytes an event at each grouping"
        parts.append((title, ["", *names, "elements sent", "rows in them", "times encoded"], body))
    return parts


def model_parts(written: Measured) -> list[Part]:
    """The coefficients, and what they say of the runs they come from."""
    fitted = model.fit(written["measurements"])
    if fitted is None:
        return []
    network, memory = fitted["network"], fitted["memory"]
    coefficients = [
        *([f"processor, {words}", _seconds(fitted["processor"][name])] for name, words in COSTS.items()),
        ["network, an element on its way to its shard of units", f"{network['element']:,.0f} bytes"],
        ["network, a row in it", f"{network['row']:.1f} bytes"],
        ["network, a unit, once in an element", f"{network['unit']:.1f} bytes"],
        ["network, a key, once in an element", f"{network['word']:.1f} bytes"],
        ["network, a row of an exact table", _bytes_or_none(network["key"])],
        [f"processor, {model.SPREAD} shards next to one", f"{fitted['spread']:.2f} times" if fitted["spread"] else "-"],
        ["network, a published row on its way to the seal", _bytes_or_none(network["published"])],
        ["a sealed row in memory", _bytes_or_none(fitted["sealed_row"])],
        *(
            [f"memory, {words}", f"{memory[name] * (1 if name == 'base' else MILLION) / 2**20:,.0f} MiB"]
            for name, words in model.HELD.items()
        ),
    ]
    checked = [
        [
            f"{row['sweep']}: {row['label']}",
            *(f"{row['processor']:.1f} s", f"{row['processor_said']:.1f} s", _off(row, "processor")),
            *(f"{row['memory'] / 2**20:,.0f}", f"{row['memory_said'] / 2**20:,.0f}", _off(row, "memory")),
            *(f"{row['network'] / 1e6:,.1f}", f"{row['network_said'] / 1e6:,.1f}", _off(row, "network")),
        ]
        for row in fitted["checked"]
    ]
    off = {
        field: [abs(row[f"{field}_said"] / row[field] - 1) for row in fitted["checked"]]
        for field in ("processor", "memory", "network")
    }
    for words, of in (("median, without sign", statistics.median), ("largest, without sign", max)):
        checked.append([words, *(c for field in off for c in ("", "", f"{of(off[field]):.0%}"))])
    header = ["", "processor", "said", "off", "MiB", "said", "off", "MB by unit", "said", "off"]
    return [
        ("Coefficients, fitted", ["what", "costs"], coefficients),
        ("What they say of each run, next to what it took", header, checked),
    ]


def engine_parts(written: Measured, load: Load | None = None) -> list[Part]:
    """The same coefficients at a load that nobody has run."""
    fitted = model.fit(written["measurements"])
    if fitted is None:
        return []
    load = load or Load()
    taken = [
        ["events a second", f"{load.events_a_second:,.0f}", "the question"],
        ["keys in a window", f"{load.keys:,.0f}", "the question"],
        ["a window", f"{load.window:,.0f} s", "taken for granted"],
        ["units in a window, and pairs of each that count", f"{load.units:,.0f}, {load.kept:g}", "taken for granted"],
        ["a release is out after", f"{load.release_within:,.0f} s", "taken for granted"],
        *(
            [f"{e.name}: bundle, share of a core in use, memory of one", words, "taken for granted"]
            for e in ENGINES
            for words in [f"{e.bundle:g} s, {e.busy:.0%}, {e.memory / 2**30:.0f} GiB"]
        ),
    ]
    said = [model.stretch(fitted, load, engine) for engine in ENGINES]
    lines: list[tuple[str, Callable[[Measured], str]]] = [
        ("cores for events as they come", lambda one: f"{one['cores_streaming']:,}"),
        ("cores for the keys when a window closes", lambda one: f"{one['cores_release']:,}"),
        (
            "shards, so that one of them fits a core's memory and is merged in one piece",
            lambda one: f"{one['shards']:,}",
        ),
        ("rows that travel together", lambda one: f"{one['rows_an_element']:,.1f}"),
        ("bytes a row, with its share of the element", lambda one: f"{one['bytes_a_row']:,.0f}"),
        ("network, by unit", lambda one: f"{_size(one['network'])}/s"),
        ("state of an open window, at most", lambda one: _size(one["state"])),
        ("the same, if it were not merged while it is open", lambda one: _size(one["state_grouped"])),
        (
            "a checkpoint, what is new in it",
            lambda one: "kept by the service" if one["checkpoint"] is None else _size(one["checkpoint"]),
        ),
        ("network, exact tables, once a window", lambda one: "-" if one["tables"] is None else _size(one["tables"])),
    ]
    engines = [[words, *(how(one) for one in said)] for words, how in lines]
    seal = []
    if fitted["sealed_row"] is not None:
        threshold = model.threshold(load)
        most = load.units * load.kept / threshold
        why = f", if all pairs are on keys with {threshold} units, which is even odds to pass"
        for published, words in ((most, why), (1e6, ""), (1e7, ""), (1e8, ""), (1e9, "")):
            seal.append([f"{published:,.0f}{words}", _size(published * fitted["sealed_row"])])
    return [
        ("Taken for granted", ["", "", ""], taken),
        ("What follows; extrapolated", ["", *(engine.name for engine in ENGINES)], engines),
        (
            "The seal of one window, in one place; extrapolated",
            ["rows published in the window", "memory of the sealed table"],
            seal,
        ),
    ]


def notes(written: Measured) -> list[str]:
    machine = written["machine"]
    return [
        f"{machine['date']}; {machine['processor']}, {machine['processors']} processors, "
        f"{machine['memory'] / 2**30:.0f} GiB; {machine['platform']}; Python {machine['python']}; load "
        f"{machine['load']:.2f} as it began.",
        f"tidegate run on the direct runner, which has {written['workers']} worker(s), and as many shards; Arrow uses what "
        "other threads it likes. The direct runner keeps every window open until all events are read.",
        f"Runs of each case: {written['repeats']}; given are medians. Start-up is the same program on {TINY.stream.events} "
        "events in one window, seen before every run. Peak memory has it in it.",
        "pairs: distinct (window, unit, key) of the stream; kept: those within the bound. keys: distinct (window, key).",
        f"Sizes up to {written['largest']:,} events; {written['base']:,} where events are not what grows.",
        *(f"{name} is missing: {why}." for name, why in written["failed"].items()),
    ]


def sections(written: Measured, picture: str | None) -> dict[str, str]:
    """Markdown for each marker of the page."""
    drawn = [f"![Time and memory as each thing grows]({picture})", ""] if picture else []
    told = ["### Measured with", "", *(f"- {line}" for line in notes(written)), ""]
    fitted, stretched = model_parts(written), engine_parts(written)
    few = ["Too few runs to fit anything; run all sweeps.", ""]
    return {
        "scale": "\n".join([*drawn, *markdown(report(written)), *told]),
        "scale model": "\n".join(markdown(fitted) or few),
        "scale engines": "\n".join(markdown(stretched) or few),
    }


def _off(row: Measured, field: str) -> str:
    return f"{row[f'{field}_said'] / row[field] - 1:+.0%}"


def _seconds(each: float) -> str:
    """Of one of them, in the unit that people can read, and of a million."""
    return f"{each * 1e6:,.3g} µs, {each * MILLION:,.3g} s a million"


def _bytes_or_none(size: float | None) -> str:
    return "not measured" if size is None else f"{size:,.0f} bytes"


def _size(size: float) -> str:
    for unit, power in (("TB", 12), ("GB", 9), ("MB", 6)):
        if size >= 10**power:
            return f"{size / 10**power:,.3g} {unit}"
    return f"{size / 1e3:,.3g} kB"
