"""How a plan looks: tables and a curve in the terminal, and the curves of all gates as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import expm1
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tidegate.mechanisms.guarantee import plural
from tidegate.mechanisms.literature import Figure
from tidegate.transforms.problems import SpecError

Row = Mapping[str, Any]

_CURVE_ROWS = 9
_WIDEST = 100
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille cell, by row and column


def print_plan(report: Row, out: Console) -> None:
    """A plan for people."""
    measure, unit = escape(report["measure"]), escape(report["unit"])
    _say(out, f"[bold]{report['stream']}[/bold]: what this spec will let through; no event was read")
    _print_costs(report, out)
    _heading(out, f"Chance that a key appears, by its {measure} in a window ({report['gate']})")
    _print_survival(report, out)
    _heading(out, "Gates side by side, at the same epsilon, delta and bounds")
    _print_gates(report, out)
    changes = report["what_if"]
    for field in ("epsilon", "delta", "keys"):
        what = "bound.keys" if field == "keys" else f"{field}, everywhere in proportion"
        _heading(out, f"With another {what}")
        _print_changes(field, changes[field], out)
    _heading(out, "With another window: thresholds stay, what a key gathers does not")
    _print_windows(changes["window"], measure, unit, out)
    if "like" in report:
        _heading(out, f"What would be seen of {escape(report['like']['name'])}")
        _print_like(report["like"], report["gate"], measure, out)


def _print_costs(report: Row, out: Console) -> None:
    table = _table("mechanism", "publishes", "epsilon+", "delta+", "certain\nwithin+", "noise\nscale+")
    for row in report["mechanisms"]:
        unit = " units" if row["in_units"] else ""
        names = row["publishes"]
        published = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        width = "-" if row["half_width"] is None else f"{short(row['half_width'])}{unit}"
        scale = "-" if row["noise_scale"] is None else f"{short(row['noise_scale'])}{unit}"
        budget = short(row["epsilon"]), tiny(row["delta"])
        table.add_row(row["mechanism"], escape(published), *budget, width, scale)
    promised = report["guarantee"]
    if len(report["mechanisms"]) > 1:
        table.add_row("[bold]total[/bold]", "", f"[bold]{short(promised['epsilon'])}[/bold]", tiny(promised["delta"]))
    _heading(out, "What it costs")
    out.print(table)
    added, delta = promised["delta_by_addition"], promised["delta"]
    if len(report["mechanisms"]) > 1:
        saved = "the same" if added <= delta * (1 + 1e-9) else "more than what a unit's keys really cost"
        _say(out, f"[dim]Adding up the deltas would have said {tiny(added)}: {saved}.[/dim]")
    _say(
        out,
        f"[dim]For {escape(report['protects'])}; {_over_time(report)} spends at most epsilon "
        f"{short(promised['all_windows']['epsilon'])}, delta {tiny(promised['all_windows']['delta'])}.[/dim]",
    )


def _print_survival(report: Row, out: Console) -> None:
    table = _table(f"{escape(report['measure'])}+", "chance+")
    for row in report["survival"]:
        table.add_row(short(row["count"]), percent(row["chance"]))
    out.print(table)
    curve = report["curves"][report["gate"]]
    if _rises(curve):
        _say(out, "")
        for line in terminal_curve(curve, min(out.width, _WIDEST), out.options.ascii_only):
            out.print(Text(line), no_wrap=True, crop=True)
    for note in report["notes"]:
        _say(out, f"[dim]{escape(note)}.[/dim]")


def _rises(curve: Sequence[Row]) -> bool:
    """Whether a key's count has a say in its chance."""
    return bool(curve[-1]["chance"] > curve[0]["chance"])


def terminal_curve(curve: Sequence[Row], width: int, plain: bool = False) -> list[str]:
    """A chance from 0 to 1 over counts, drawn in braille dots, or in stars where the terminal knows no others."""
    edge = 6
    columns = max(10, width - edge - 2)
    first, last = curve[0]["count"], curve[-1]["count"]
    across, down = (1, 1) if plain else (2, 4)
    dots = [[False] * (columns * across) for _ in range(_CURVE_ROWS * down)]
    before: int | None = None
    for x in range(columns * across):
        at = first + (last - first) * x / (columns * across - 1)
        y = round((1 - _chance_at(curve, at)) * (len(dots) - 1))
        # Joined to the one before, so that a steep curve has no holes.
        for between in range(min(y, y if before is None else before), max(y, before or y) + 1):
            dots[between][x] = True
        before = y
    lines = []
    for row in range(_CURVE_ROWS):
        height = 100 * (1 - row / (_CURVE_ROWS - 1))
        label = f"{height:.0f} %" if row % 2 == 0 else ""
        cells = [_cell(dots, row, column, plain) for column in range(columns)]
        lines.append(f"{label:>{edge - 1}} {'|' if plain else '│'}{''.join(cells).rstrip()}")
    axis, corner = ("-", "+") if plain else ("─", "└")
    lines.append(" " * edge + corner + axis * columns)
    ticks = [" "] * columns
    for part in range(5):
        label = short(round(first + (last - first) * part / 4)) if last - first > 8 or part % 4 == 0 else ""
        place = min(max(0, round((columns - 1) * part / 4) - len(label) // 2), columns - len(label))
        ticks[place : place + len(label)] = label
    lines.append(" " * (edge + 1) + "".join(ticks).rstrip())
    return lines


def _chance_at(curve: Sequence[Row], count: float) -> float:
    """The last point at or before this count: chances of counts between whole ones do not exist."""
    low, high = 0, len(curve) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if curve[middle]["count"] <= count else (low, middle - 1)
    return float(curve[low]["chance"])


def _cell(dots: Sequence[Sequence[bool]], row: int, column: int, plain: bool) -> str:
    if plain:
        return "*" if dots[row][column] else " "
    code = sum(bit for y, bits in enumerate(_DOTS) for x, bit in enumerate(bits) if dots[4 * row + y][2 * column + x])
    return chr(0x2800 + code) if code else " "


def _print_gates(report: Row, out: Console) -> None:
    table = _table("", "threshold+", "certain within+", "half the time at+", "99 % at+")
    for row in report["gates"]:
        name = _now(row["mechanism"]) if row["mechanism"] == report["gate"] else row["mechanism"]
        table.add_row(name, *(short(row[field]) for field in ("threshold", "half_width", "at_50", "at_99")))
    for row in report["limit"]:
        table.add_row(f"[dim]limit, {row['for']}[/dim]", "", "", short(row["at_50"]), short(row["at_99"]))
    out.print(table)
    _say(out, "[dim]Below its limit no private mechanism can show a key that nobody listed so often.[/dim]")
    for name in report["not_compared"]:
        _say(out, f"[dim]{name} is left out: its table of chances would be too large here.[/dim]")


def _print_changes(field: str, rows: Sequence[Row], out: Console) -> None:
    fields = ("threshold", "half_width", "at_50", "at_99")
    possible = [row for row in rows if "problem" not in row]
    # Headings are broken here, so that everything fits into 80 columns.
    later = [item["mechanism"].replace("-", "-\n") + "+" for item in possible[0]["then"][:2]] if possible else []
    names = "threshold+", "certain\nwithin+", "half\nat+", "99 %\nat+", "total\nepsilon+", "delta+"
    table = _table(f"{field}+", *names, *later)
    problems = []
    for row in rows:
        value = f"{row[field]:,}" if field == "keys" else tiny(row[field]) if field == "delta" else short(row[field])
        marked = _now(value) if row["now"] else value
        if "problem" in row:
            problems.append(f"{field} {value}: {row['problem']}")
            table.add_row(marked, *["-"] * (len(table.columns) - 1))
            continue
        widths = [short(item["half_width"] or item["noise_scale"]) for item in row["then"][:2]]
        total = short(row["total_epsilon"]), tiny(row["total_delta"])
        table.add_row(marked, *(short(row[name]) for name in fields), *total, *widths)
    out.print(table)
    for problem in problems:
        _say(out, f"[dim]{escape(problem)}[/dim]")


def _over_time(report: Row) -> str:
    promised = report["guarantee"]
    windows = f"{promised['all_windows']['windows']:,}"
    if report["each_row"]:
        return f"a row, over all windows that it is in ({windows}),"
    return f"a {escape(report['unit'])} who is in all {windows} of them{'' if promised['windows'] else ' in a day'}"


def _print_windows(rows: Sequence[Row], measure: str, unit: str, out: Console) -> None:
    table = _table(
        "window+", "an hour,\nfor half+", "a day,\nfor half+", "windows+", "epsilon\nof all+", "delta\nof all+"
    )
    for row in rows:
        size = duration(row["size_seconds"])
        table.add_row(
            _now(size) if row["now"] else size,
            short(row["at_50_an_hour"]),
            short(row["at_50_a_day"]),
            f"{row['windows']:,}",
            short(row["epsilon_of_all"]),
            tiny(row["delta_of_all"]),
        )
    out.print(table)
    _say(
        out,
        f"[dim]For half: the {measure} that a key must gather to appear half the time, if they come evenly and are "
        f"new in each hour. Of all: added up for a {unit} who is in every window.[/dim]",
    )


def _print_like(like: Row, own: str, measure: str, out: Console) -> None:
    _say(out, f"[yellow]{like['note'][0].upper()}{like['note'][1:]}.[/yellow]")
    _say(out, f"{like['keys']:,} keys with {short(like['volume'])} {measure} in all; expected to appear:")
    table = _table("", "keys+", "give or take+", "of keys+", f"of {measure}+")
    for row in like["gates"]:
        name = _now(row["mechanism"]) if row["mechanism"] == own else row["mechanism"]
        table.add_row(
            name,
            f"{row['keys_expected']:,.1f}",
            f"{row['keys_deviation']:,.1f}",
            share(row["share_of_keys"]),
            share(row["share_of_volume"]),
        )
    out.print(table)
    _say(out, "")
    table = _table(f"{measure}+", "chance+", "keys+", "appear+", f"of all {measure}+")
    for row in like["classes"]:
        ends = short(row["fewest"]), short(row["most"])
        table.add_row(
            ends[0] if ends[0] == ends[1] else " to ".join(ends),
            _between(row["from_chance"], row["to_chance"]),
            f"{row['keys']:,}",
            f"{row['keys_expected']:,.1f}" if row["keys_expected"] >= 0.05 else "none",
            share(row["share_of_volume"]),
        )
    out.print(table)
    if like["keys_unknown"]:
        _say(out, "[dim]The counts have no keys: none is taken for one that the spec lists or weighs.[/dim]")


def print_figures(figures: Sequence[Figure], out: Console) -> None:
    """The literature's figures beside the exact ones."""
    _heading(out, "Figures of the literature beside exact ones")
    for at in dict.fromkeys(row.at for row in figures):
        table = _table(f"at {at}", "said+", "exact+", "by")
        for row in (row for row in figures if row.at == at):
            table.add_row(
                f"{row.what}\n[dim]  {escape(row.formula)}[/dim]", f"{row.said:,.2f}", f"{row.exact:,}", row.by
            )
        _say(out, "")
        out.print(table)


# Words.


def percent(chance: float) -> str:
    """A chance or a share as people read it."""
    if chance == 0:
        return "never"
    if chance < 1e-4:
        return tiny(chance)
    if chance > 1 - 1e-6:
        return "100 %"
    return f"{100 * chance:.3g} %" if chance < 0.999 else f"{100 * chance:.4f} %"


def share(part: float) -> str:
    """As `percent`, of what has no chance but a size."""
    return percent(part) if part else "none"


def _between(low: float, high: float) -> str:
    if low == 0:
        return f"below {percent(high)}"
    return f"{percent(low)} to {percent(high)}" if high < 1 else f"{percent(low)} or more"


def duration(seconds: int) -> str:
    """As a spec would have it."""
    units = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
    unit = next(unit for unit, size in units.items() if seconds % size == 0)
    return f"{seconds // units[unit]}{unit}"


def short(number: float | None) -> str:
    """As many digits as a planner reads."""
    if number is None:
        return "-"
    if number == int(number) and abs(number) < 1e9:
        return f"{int(number):,}"
    return f"{number:,.0f}" if 1000 <= abs(number) < 1e9 else f"{number:.3g}"


def tiny(number: float) -> str:
    """A delta as a spec would have it."""
    return f"{number:.3g}".replace("e-0", "e-")


def _now(value: str) -> str:
    """What the spec says, among what it could say; also where nothing can be bold."""
    return f"[bold]> {value}[/bold]"


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in names:
        table.add_column(name.removesuffix("+"), justify="right" if name.endswith("+") else "left", vertical="bottom")
    return table


def _heading(out: Console, words: str) -> None:
    _say(out, "", f"[bold]{words}[/bold]")


def _say(out: Console, *lines: str) -> None:
    out.print(*lines, sep="\n", highlight=False)


# The picture. Colours are Okabe and Ito's, which everybody can tell apart.

_INK, _QUIET, _PALE, _GREY = "#222222", "#707070", "#ececec", "#b3b3b3"
_COLOURS = {"truncated-geometric": "#0072B2", "geometric-threshold": "#D55E00", "optimal-selection": "#009E73"}
_OTHER = "#CC79A7"
_LEFT = 0.065
_STYLE: dict[str, Any] = {
    **{f"axes.spines.{side}": False for side in ("top", "right", "left")},
    **{f"{axis}tick.{name}": value for axis in "xy" for name, value in (("color", _QUIET), ("major.size", 0))},
    **{"font.size": 12, "text.color": _INK, "axes.edgecolor": _GREY, "xtick.major.pad": 8, "legend.frameon": False},
    **{"axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": _PALE},
    **{"svg.hashsalt": "tidegate", "ytick.minor.size": 0},
}


def draw_plan(report: Row, path: Path) -> None:
    """The chance to appear of every gate, as it is and on a scale where the smallest chances can be seen.

    Raises SpecError without matplotlib, or for a file that is no picture.
    """
    if path.suffix not in (".png", ".svg"):
        raise SpecError(f"--plot must be a .png or .svg file, not {path.name}; write curve.svg")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise SpecError(
            "--plot needs matplotlib, which is not installed; write pip install 'tidegate[plots]'"
        ) from None
    own, gate, bound = report["gate"], report["mechanisms"][0], report["bounds"]
    (row,) = (row for row in report["gates"] if row["mechanism"] == own)
    title = "the keys that are listed, whatever their counts"
    if _rises(report["curves"][own]):
        title = f"a key of {short(row['at_50'])} {report['measure']} appears half the time"
    budget = f"epsilon {short(gate['epsilon'])}, delta {tiny(gate['delta'])}"
    inside = f"at most {bound['keys']} {plural('key', bound['keys'])} a {report['unit']} in a window"
    with mpl.rc_context(_STYLE):
        canvas = Canvas(figsize=(14, 6.6), dpi=160, facecolor="white")
        canvas.text(_LEFT, 0.925, f"Who will be seen: {title}", size=20, weight="bold", parse_math=False)
        said = f"{report['stream']}, {own}: {budget}; {inside}, {short(bound['per_key'])} in each"
        canvas.text(_LEFT, 0.872, said, size=13, color=_QUIET, parse_math=False)
        grid = canvas.add_gridspec(1, 2, left=_LEFT, right=0.975, top=0.72, bottom=0.125, wspace=0.17)
        left, right = (canvas.add_subplot(grid[0, place]) for place in (0, 1))
        _draw_curves(left, report, row)
        _draw_tails(right, report)
        handles = left.get_legend_handles_labels()[0]
        canvas.legend(handles=handles, ncols=4, loc="upper left", bbox_to_anchor=(_LEFT - 0.009, 0.86))
        canvas.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_curves(axes: Any, report: Row, row: Row) -> None:
    for name, curve, style in _lines(report, "curves"):
        counts, chances = [point["count"] for point in curve], [point["chance"] for point in curve]
        axes.plot(counts, chances, label=name, drawstyle="steps-mid", **style)
    if row["threshold"] is not None:
        axes.axvline(row["threshold"], color=_QUIET, lw=1.2, ls=(0, (5, 3)))
        side = {"textcoords": "offset points", "color": _QUIET, "size": 11, "va": "center"}
        axes.annotate(f"threshold {short(row['threshold'])}", (row["threshold"], 0.12), (8, 0), **side)
    axes.set_ylim(-0.01, 1.01)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["never", "25 %", "50 %", "75 %", "always"])
    _finish(axes, report, "Chance that a key appears")


def _draw_tails(axes: Any, report: Row) -> None:
    """From the first unit on, where the chance to be seen is what delta pays for."""
    limit, steps, last = report["limit"][0], report["bounds"]["per_key"], 1.0
    for _, curve, style in _lines(report, "tails"):
        points = [(point["count"], point["chance"]) for point in curve if point["chance"] > 0]
        if points:
            axes.plot(*zip(*points, strict=True), **style)
            last = max(last, points[-1][0])
    told: dict[str, Any] = {"textcoords": "offset points", "color": _QUIET, "size": 11}
    units = range(1, limit["units"], max(1, limit["units"] // 200))
    rising = [(n, limit["delta"] * expm1(n * limit["epsilon"]) / expm1(limit["epsilon"])) for n in units]
    if rising:
        dots = {"color": _QUIET, "lw": 1.3, "ls": (0, (2, 2)), "drawstyle": "steps-pre" if steps > 1 else "default"}
        axes.plot([n * steps for n, _ in rising], [p for _, p in rising], **dots)
        n, p = rising[len(rising) * 3 // 5]
        axes.annotate("no private\nmechanism\ngets above", (n * steps, p), (-8, 4), ha="right", **told)
    axes.axhline(limit["delta"], color=_GREY, lw=1.0)
    axes.annotate(f"delta {tiny(limit['delta'])}", (last, limit["delta"]), (0, 4), ha="right", **told)
    axes.set_yscale("log")
    _finish(axes, report, "The same on a log scale, from the first unit on")


def _lines(report: Row, which: str) -> Iterator[tuple[str, Sequence[Row], dict[str, Any]]]:
    """The spec's own gate comes last, so that it lies on top."""
    for name, curve in sorted(report[which].items(), key=lambda item: item[0] == report["gate"]):
        style = {"color": _COLOURS.get(name, _OTHER), "lw": 2.8 if name == report["gate"] else 1.6}
        yield name, curve, style


def _finish(axes: Any, report: Row, title: str) -> None:
    axes.set_title(title, loc="left", weight="bold", size=13, pad=9)
    axes.set_xlabel(f"{report['measure']} of a key in a window", color=_QUIET, labelpad=8, parse_math=False)
