"""How the demo looks: a day of releases beside the truth, in the terminal and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.pipelines.spec import Spec

if TYPE_CHECKING:
    from tidegate.pipelines.demo import Day

Counts = npt.NDArray[np.int64]

_LEAST_RUN = 3  # windows that a stage of a key's life must last to be worth looking at
_LIVES = {"01": "born at {0:02d}:00", "10": "gone from {0:02d}:00", "101": "away {0:02d}:00 to {1:02d}:00"}


def choose(day: Day) -> list[tuple[int, str]]:
    """Keys worth looking at, and why: popular ones, one each that is born, dies, returns, hovers at the threshold."""
    shown = day.published
    lives = [_life(alive) for alive in day.truth > 0]
    by_size = [int(index) for index in np.argsort(-day.truth.sum(axis=1), kind="stable") if shown[index].any()]
    steady = [index for index in by_size if lives[index][0] == "1"]
    picks = [(index, "popular all day") for index in steady[:2]]
    for life, why in _LIVES.items():
        found = [index for index in by_size if lives[index][0] == life and min(lives[index][2]) >= _LEAST_RUN]
        picks += [(index, why.format(*lives[index][1])) for index in found[:1]]
    # Often published, often not, and changing often between the two.
    changes = (shown[:, 1:] != shown[:, :-1]).sum(axis=1)
    doubt = changes * np.minimum(shown.sum(axis=1), (~shown).sum(axis=1)) ** 2
    hovering = sorted((index for index in steady[2:] if doubt[index]), key=lambda index: -int(doubt[index]))
    return picks + [(index, "near the threshold") for index in hovering[:1]]


def _life(alive: npt.NDArray[np.bool_]) -> tuple[str, list[int], list[int]]:
    """The stages of a key's life, such as 101, the windows where they change, and how long each lasts."""
    turns = [int(window) for window in np.flatnonzero(alive[1:] != alive[:-1]) + 1]
    edges = [0, *turns, len(alive)]
    return "".join("1" if alive[start] else "0" for start in edges[:-1]), turns, np.diff(edges).tolist()


def universe(day: Day) -> dict[str, Counts]:
    """How many keys there are in each window, and what becomes of them."""
    shown, none = day.published, np.zeros((len(day.keys), 1), bool)
    before = np.hstack([none, shown[:, :-1]])
    ever = np.hstack([none, np.logical_or.accumulate(shown, axis=1)[:, :-1]])
    counted = {
        "searched for": day.truth > 0,
        "published": shown,
        "first seen": shown & ~ever,
        "came back": shown & ever & ~before,
        "dropped out": before & ~shown,
        "suppressed": (day.truth > 0) & ~shown,
    }
    counts = {name: np.asarray(mask.sum(axis=0), np.int64) for name, mask in counted.items()}
    counts["first seen"][0] = 0  # where a day begins, everything is new and nothing is news
    return counts


# The terminal.


def print_day(spec: Spec, day: Day, counters: Mapping[str, int], out: Console) -> None:
    """Headline, chosen keys, universe."""
    marks = _Marks(out)
    facts = {
        "rows read": counters.get("rows_read", 0),
        "dead letters": sum(amount for name, amount in counters.items() if name.startswith("dead_")),
        "windows released": counters.get("windows_published", 0),
        "rows released": int(day.published.sum()),
    }
    _say(out, "", "[bold]A day of searches, released hour by hour[/bold]")
    _say(out, "  ".join(f"[bold]{amount:,}[/bold] [dim]{name}[/dim]" for name, amount in facts.items()))
    _say(out, "", f"[bold]Promise[/bold]  {promise(spec)}")
    _say(out, f"[bold]Gate[/bold]     a term appears at {day.half_width + 1} users or more, after noise")
    _say(out, f"[bold]Range[/bold]    every published count is within {day.half_width} of the truth, for certain", "")

    table = _table(marks.ruler, "search term", "published", "largest error", "range holds truth")
    for number, (index, why) in enumerate(choose(day)):
        shown, true, value = day.published[index], day.truth[index], day.value[index]
        top, total = max(float(true.max()), float(np.nanmax(value))), int(shown.sum())
        held = total - int(day.missed[index].sum())
        if number:
            table.add_row()
        table.add_row(
            Text(day.keys[index], style="bold"),
            marks.strip(value, top, "cyan"),
            f"{total} of {len(shown)}",
            f"{np.nanmax(np.abs(value - true)):.0f}",
            marks.tick(held == total, f"{held} of {total} "),
        )
        table.add_row(Text(why, style="dim"), marks.strip(np.where(true > 0, true, np.nan), top, "dim", " "))
    out.print(table)
    _say(out, "", f"[dim]Above: released; {marks.none} is not published: few searched for it, or nobody.[/dim]")
    _say(out, "[dim]Below: the truth, since this is simulated; a real stream has no such column.[/dim]", "")

    ever = int(day.published.any(axis=1).sum())
    table = _table(marks.ruler, f"{len(day.keys)} terms, {ever} ever published", "fewest", "most")
    for name, counts in universe(day).items():
        source = " [dim](truth)[/dim]" if name in ("searched for", "suppressed") else ""
        bars = marks.strip(np.where(counts > 0, counts, np.nan), float(max(counts.max(), 1)), "cyan")
        table.add_row(name + source, bars, f"{counts.min():,}", f"{counts.max():,}")
    out.print(table)


def promise(spec: Spec) -> str:
    """The guarantee in one line."""
    given, delta = spec.guarantee, f"{spec.guarantee.delta:g}".replace("e-0", "e-")
    return f"epsilon {given.epsilon:g}, delta {delta} for everything one {spec.columns.one_unit} does in one hour"


def print_check(day: Day, out: Console) -> None:
    """What the releases were held against, and how it went."""
    marks, total = _Marks(out), int(day.published.sum())
    missed, made_up = int(day.missed.sum()), int(day.made_up.sum())
    who = f"{made_up:,} of {total:,} terms were" if made_up else "no term was"
    _say(
        out, "", marks.tick(not missed, "", f" {total - missed:,} of {total:,} published ranges contain the true count")
    )
    _say(out, marks.tick(not made_up, "", f" {who} published that nobody searched for"))


def print_steps(steps: Mapping[str, str], out: Console) -> None:
    """Commands to try, soft-wrapped, so that each can be copied whole out of a narrow terminal."""
    out.print()
    for command, what in steps.items():
        out.print(Text.assemble(command.ljust(max(map(len, steps))), (f"  # {what}", "dim")), soft_wrap=True)


class _Marks:
    """Characters that the console can show."""

    def __init__(self, out: Console) -> None:
        plain = out.options.ascii_only
        self.levels, self.none = ("_.-=+*%#", ".") if plain else ("▁▂▃▄▅▆▇█", "·")
        self._yes, self._no = ("ok", "NO") if plain else ("✓", "✗")
        self.ruler = "".join(f"{hour:02d}h".ljust(6) for hour in range(0, 24, 6))

    def strip(self, values: npt.NDArray[np.float64], top: float, style: str, none: str | None = None) -> Text:
        strip, most = Text(), len(self.levels)
        for value in values:
            if np.isnan(value):
                strip.append(self.none if none is None else none, "dim")
            else:
                strip.append(self.levels[min(int(value / top * most), most - 1)], style)
        return strip

    def tick(self, good: bool, before: str, after: str = "") -> Text:
        return Text.assemble(before, (self._yes, "bold green") if good else (self._no, "bold red"), after)


def _table(ruler: str, first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column(first, no_wrap=True, min_width=19)
    table.add_column(ruler, no_wrap=True, min_width=len(ruler))
    for other in others:
        table.add_column(other, justify="right")
    return table


def _say(out: Console, *lines: str | Text) -> None:
    out.print(*lines, sep="\n", highlight=False)


# The picture. Colours are Okabe and Ito's, which everybody can tell apart.

_INK, _QUIET, _PALE, _GREY = "#222222", "#707070", "#ececec", "#b3b3b3"
_BLUE, _VERMILION, _ORANGE, _GREEN = "#0072B2", "#D55E00", "#E69F00", "#009E73"
_LEFT = 0.045
_STYLE: dict[str, Any] = {
    **{f"axes.spines.{side}": False for side in ("top", "right", "left")},
    **{f"{axis}tick.{name}": value for axis in "xy" for name, value in (("color", _QUIET), ("major.size", 0))},
    **{"font.size": 12, "text.color": _INK, "axes.edgecolor": _GREY, "xtick.major.pad": 8, "legend.frameon": False},
    **{"axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": _PALE},
}


def draw_day(spec: Spec, day: Day, path: Path) -> None:
    """The same story as a picture of 1600 by 1000, twice as dense. Raises ImportError without matplotlib."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(16, 10), dpi=200, facecolor="white")
        title = f"Every published count is within {day.half_width} of the truth, for certain"
        promised = f"How many users searched for a term, hour by hour, with {promise(spec)}"
        checked = f"No list of terms was given. All {day.published.sum():,} published ranges contain the true count,"
        known = "which is known here because the searches are simulated; a real stream has no such column."
        figure.text(_LEFT, 0.949, title, size=23, weight="bold")
        figure.text(_LEFT, 0.916, promised, size=13.5, color=_QUIET)
        figure.text(_LEFT, 0.022, f"{checked} {known}", color=_QUIET)
        grid = figure.add_gridspec(3, 6, left=_LEFT, right=0.972, top=0.81, bottom=0.098, hspace=0.52, wspace=0.55)
        for number, (index, why) in enumerate(choose(day)):
            row, column = divmod(number, 3)
            _draw_key(figure.add_subplot(grid[row, 2 * column : 2 * column + 2]), day, index, why)
        for first in figure.axes[:1]:
            handles, where = first.get_legend_handles_labels()[0], (_LEFT - 0.009, 0.905)
            figure.legend(handles=handles, ncols=5, loc="upper left", bbox_to_anchor=where, columnspacing=2.4)
        _draw_universe(figure.add_subplot(grid[2, :3]), universe(day))
        _draw_changes(figure.add_subplot(grid[2, 3:]), universe(day))
        figure.savefig(path)


def _draw_key(axes: Any, day: Day, index: int, why: str) -> None:
    true, value, low, high = (rows[index] for rows in (day.truth, day.value, day.low, day.high))
    shown, hours, threshold = day.published[index], np.arange(len(true)) + 0.5, day.half_width + 1
    axes.stairs(true, np.arange(len(true) + 1), color=_INK, lw=1.4, baseline=None, label="true count")
    axes.plot(hours[shown], value[shown], "o", color=_BLUE, ms=5, label="released")
    axes.vlines(hours[shown], low[shown], high[shown], color=_BLUE, alpha=0.2, lw=7, label="its guaranteed range")
    axes.axhline(threshold, color=_VERMILION, lw=1.2, ls=(0, (5, 3)), label="threshold")
    hollow = {"mfc": "white", "mec": _QUIET, "ms": 5, "clip_on": False, "zorder": 5}
    axes.plot(hours[~shown], 0 * hours[~shown], "o", label="not published", **hollow)
    axes.text(1.01, threshold, threshold, color=_VERMILION, va="center", transform=axes.get_yaxis_transform())
    axes.set_ylim(0, max(float(true.max()), float(np.nanmax(high))) * 1.04)
    _finish(axes, len(true), day.keys[index], why)


def _draw_universe(axes: Any, counts: Mapping[str, Counts]) -> None:
    alive, shown = counts["searched for"], counts["published"]
    for levels, colour in ((alive, _PALE), (shown, _BLUE)):
        axes.stairs(levels, np.arange(len(levels) + 1), fill=True, color=colour)
    # Where the lower band is widest there is room for its name.
    hour, middle = int(np.argmax(shown)), {"ha": "center", "va": "center"}
    axes.text(hour + 0.5, shown[hour] / 2, "published", color="white", weight="bold", **middle)
    axes.text(hour + 0.5, (shown[hour] + alive[hour]) / 2, "suppressed: too few users", color=_QUIET, **middle)
    axes.set_ylim(0, alive.max() * 1.04)
    _finish(axes, len(alive), "All terms", "searched for in each hour")


def _draw_changes(axes: Any, counts: Mapping[str, Counts]) -> None:
    new, back, gone = (counts[name] for name in ("first seen", "came back", "dropped out"))
    hours = np.arange(len(new)) + 0.5
    axes.bar(hours, new, 0.7, color=_GREEN, label="first seen")
    axes.bar(hours, back, 0.7, bottom=new, color=_ORANGE, label="came back")
    axes.bar(hours, -gone, 0.7, color=_GREY, label="dropped out")
    axes.axhline(0, color=_QUIET, lw=0.8)
    axes.legend(ncols=3, loc="lower right", bbox_to_anchor=(1.01, 0.99), handlelength=1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):.0f}")
    _finish(axes, len(new), "Published terms", "")


def _finish(axes: Any, windows: int, title: str, why: str) -> None:
    axes.set_title(title, loc="left", weight="bold", size=14, pad=9)
    axes.set_title(why, loc="right", size=12, color=_QUIET, pad=9)
    axes.set_xlim(0, windows)
    axes.set_xticks(range(0, windows + 1, 6), [f"{hour:02d}:00" for hour in range(0, windows + 1, 6)])
    axes.locator_params(axis="y", nbins=4, integer=True)
