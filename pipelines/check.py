"""What a spec promises, before anything runs: the guarantee in plain words, the threshold, and who will be seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidegate.mechanisms.guarantee import plural
from tidegate.pipelines.spec import Spec, check_source
from tidegate.transforms.problems import SafeError
from tidegate.transforms.seal import rfc3339

_CHANCES = (1e-6, 0.01, 0.1, 0.5, 0.9, 0.99)


def check(spec: Spec) -> dict[str, Any]:
    """The promise of a spec as data. Raises SpecError if the source is there and does not fit."""
    windows, gate, guarantee = spec.window.windows, spec.gate_mechanism, spec.guarantee
    warnings = spec.warnings()
    try:
        files = len(check_source(spec))
    except SafeError as problem:
        if "nothing matches" not in str(problem):
            raise
        files = 0
        warnings.append(f"{problem}")
    return {
        "stream": spec.stream,
        "unit": spec.columns.one_unit,
        "each_row": spec.columns.unit is None,
        "protects": spec.protects,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "guarantee": guarantee.words(),
        "bound": {"keys": spec.bound.keys, "per_key": spec.bound.per_key},
        "windows": None if windows.endless else windows.count,
        "window": {
            "start": rfc3339(windows.bounds(0)[0]),
            "end": None if windows.end is None else rfc3339(windows.end),
            "size_seconds": spec.window.size,
            "every_seconds": spec.window.every or spec.window.size,
            "grace_seconds": spec.window.grace,
        },
        "all_windows": {
            "windows": spec.horizon,
            "epsilon": guarantee.epsilon * spec.horizon,
            "delta": min(1.0, guarantee.delta * spec.horizon),
        },
        "gate": {
            "mechanism": spec.gate.mechanism,
            "measure": spec.gate.measure.label,
            **in_numbers(spec, gate.describe()),
        },
        "then": [
            {
                "mechanism": item.mechanism,
                "measures": list(spec.measures(number)),
                "epsilon": spec.mechanisms[number].guarantee.epsilon,
                "delta": spec.mechanisms[number].guarantee.delta,
                **spec.mechanisms[number].describe(),
            }
            for number, item in enumerate(spec.then, start=1)
        ],
        "prepare": spec.prepare.meaning(),
        "survival": [{"count": shown_count(spec, n), "chance": gate.survival(n)} for n in telling_counts(spec)],
        "source_files": files,
        "source": _source(spec, files),
        "spec_digest": spec.digest,
        "warnings": warnings,
    }


def _source(spec: Spec, files: int) -> str:
    if spec.source.files is not None:
        return f"{files} source {plural('file', files)} found"
    return "a topic as source" if spec.source.kafka is not None else "a subscription as source"


def in_numbers(spec: Spec, described: Mapping[str, Any]) -> dict[str, Any]:
    """What a gate says of itself, in numbers of its measure instead of steps."""
    steps = ("threshold", "half_width", "appears_half_the_time_at", "appears_always_at")
    return {name: shown_count(spec, value) if name in steps else value for name, value in described.items()}


def shown_count(spec: Spec, steps: int) -> float:
    """A count of the gate's measure as a number: sums are in steps of their resolution."""
    value = spec.gate.measure.value
    return steps if value is None else value.number(steps)


def telling_counts(spec: Spec) -> list[int]:
    """The counts at which a key's chance to appear passes the marks that people ask for, and 1."""
    gate = spec.gate_mechanism
    counts = {1}
    for chance in _CHANCES:
        high = 1
        while gate.survival(high) < chance and high < 2**50:
            high *= 2
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if gate.survival(middle) < chance else (low, middle)
        counts.add(high)
    return sorted(counts)


def print_check(report: dict[str, Any], console: Console) -> None:
    """The promise of a spec for people."""
    gate, measure = report["gate"], report["gate"]["measure"]
    console.print(f"[bold]{report['stream']}[/bold]: a private release for {_which_windows(report)}", highlight=False)
    console.print(f"\n[bold]Protects[/bold]  {escape(report['protects'])}", highlight=False)
    console.print(f"[bold]Promise[/bold]   {report['guarantee']}", highlight=False)
    console.print(
        f"[bold]Over time[/bold] {_over_time(report)} is protected "
        f"by at most epsilon {report['all_windows']['epsilon']:g} and delta {report['all_windows']['delta']:g} in total",
        highlight=False,
    )
    console.print(f"[bold]Gate[/bold]      {_gate_words(gate, measure)}", highlight=False)
    for item in report["then"]:
        console.print(f"[bold]Then[/bold]      {_then_words(item)}", highlight=False)
    if all(item["chance"] == report["survival"][0]["chance"] for item in report["survival"]):
        _print_notes(report, console)
        return
    chances = Table()
    chances.add_column(measure, justify="right")
    chances.add_column("chance", justify="right")
    for item in report["survival"]:
        chances.add_row(f"{item['count']:,}", _percent(item["chance"]))
    console.print(f"\nChance that a key appears, by its {measure} in a window", highlight=False)
    console.print(chances)
    _print_notes(report, console)


def _over_time(report: dict[str, Any]) -> str:
    windows = report["all_windows"]["windows"]
    if report["each_row"]:
        return f"a row, which is in {windows:,} {plural('window', windows)},"
    of_a_day = "" if report["windows"] else " of a day"
    return f"a {escape(report['unit'])} who is in all {windows:,} windows{of_a_day}"


def _which_windows(report: dict[str, Any]) -> str:
    window = report["window"]
    if report["windows"] is None:
        return f"every window of {window['size_seconds']:,} s from {window['start']} on"
    return f"each of {report['windows']:,} windows, {window['start']} to {window['end']}"


def _gate_words(gate: dict[str, Any], measure: str) -> str:
    """What the gate does, as far as it has a threshold and a range."""
    words = f"{gate['mechanism']}: "
    if "public_keys" in gate:
        words += f"{gate['public_keys']:,} listed {plural('key', gate['public_keys'])} appear, zeros included"
        if "chance_of_a_range" in gate:
            words += f", each with chance {_percent(gate['chance_of_a_range'])}"
        words += "; all other keys " + ("face a second gate" if "otherwise" in gate else "are left out")
    elif "threshold" in gate:
        what = f"utility (weight times {measure})" if "heaviest_weight" in gate else f"count of {measure}"
        words += f"a key appears when its noisy {what} is {gate['threshold']:,} or more"
    else:
        words += (
            f"a key with {gate['appears_half_the_time_at']:,} {measure} appears half the time; no counts are published"
        )
    if "half_width" in gate:
        words += f"; every published number is within {gate['half_width']:,} of the truth, for certain"
    return words


def _then_words(item: dict[str, Any]) -> str:
    names = item["measures"]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    words = f"{item['mechanism']}: {shown}, at epsilon {item['epsilon']:g} and delta {item['delta']:.3g}"
    return words + (f"; within {item['half_width']:g} of the truth, for certain" if "half_width" in item else "")


def _print_notes(report: dict[str, Any], console: Console) -> None:
    for warning in report["warnings"]:
        console.print(f"[yellow]note[/yellow] {escape(warning)}", highlight=False, soft_wrap=True)
    console.print(
        f"spec digest {report['spec_digest'][:16]}…, {report['source']}",
        highlight=False,
    )


def _percent(chance: float) -> str:
    if chance == 0:
        return "never"
    if chance < 1e-4:
        return f"{chance:.1e}"
    if 1 - chance < 1e-6:
        return "100 %"
    return f"{100 * chance:.3g} %" if chance < 0.999 else f"{100 * chance:.4f} %"
