"""The report as a picture: time by size, and keys by epsilon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.peers.contenders import FLOORS, OPENDP, OURS, PDP_BEAM, PDP_LOCAL, ROWS, WORDS
from benchmarks.peers.utility import shown_rows
from benchmarks.release import Measured

_INK, _QUIET, _PALE, _GREY = "#222222", "#707070", "#ececec", "#b3b3b3"
# Okabe and Ito's, which everybody can tell apart.
_COLOURS = {
    **{OURS: "#0072B2", PDP_BEAM: "#D55E00", PDP_LOCAL: "#E69F00", ROWS: "#CC79A7"},
    **{OPENDP[0]: "#009E73", OPENDP[1]: "#56B4E9", FLOORS[0]: _GREY, FLOORS[1]: _QUIET},
}
_STYLE: dict[str, Any] = {
    **{f"axes.spines.{side}": False for side in ("top", "right", "left")},
    **{f"{axis}tick.{name}": value for axis in "xy" for name, value in (("color", _QUIET), ("major.size", 0))},
    **{"font.size": 12, "text.color": _INK, "axes.edgecolor": _GREY, "legend.frameon": False, "legend.fontsize": 10.5},
    **{"axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": _PALE},
    **{"svg.hashsalt": "tidegate", "xtick.minor.size": 0, "ytick.minor.size": 0},
}


def draw(written: Measured, path: Path) -> None:
    """Raises ImportError without matplotlib."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(14, 6.4), dpi=160, facecolor="white")
        grid = figure.add_gridspec(1, 2, left=0.06, right=0.975, top=0.9, bottom=0.12, wspace=0.17)
        _draw_seconds(figure.add_subplot(grid[0, 0]), written["summary"]["seconds"])
        if written["utility"]:
            _draw_keys(figure.add_subplot(grid[0, 1]), shown_rows(written["utility"]))
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_seconds(axes: Any, rows: list[Measured]) -> None:
    for name, words in WORDS.items():
        mine = [row for row in rows if row["contender"] == name]
        if mine:
            sizes, middles = [row["events"] for row in mine], [row["seconds"][0] for row in mine]
            axes.plot(sizes, middles, **_line(name), label=words)
            axes.vlines(sizes, *zip(*(row["seconds"][1:] for row in mine), strict=True), color=_line(name)["color"])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(top=8 * axes.get_ylim()[1])  # room for the names
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    sizes = sorted({row["events"] for row in rows})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_xlabel("events", color=_QUIET)
    axes.set_title("Seconds in all, start-up included", loc="left", weight="bold", size=13, pad=9)
    axes.legend(loc="upper left")


def _draw_keys(axes: Any, rows: list[Measured]) -> None:
    seen: dict[str, int] = {}
    for way in dict.fromkeys(row["way"] for row in rows):
        mine = sorted((row for row in rows if row["way"] == way), key=lambda row: float(row["epsilon"]))
        name = mine[0]["contender"]
        # A contender's second way has its colour, dashed.
        style = {**_line(name), "ls": "-" if name not in seen else (0, (4, 2))}
        seen[name] = 1
        axes.plot([row["epsilon"] for row in mine], [row["keys"] for row in mine], **style, label=way)
    axes.set_xscale("log")
    ticks = sorted({row["epsilon"] for row in rows})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("epsilon", color=_QUIET)
    axes.set_title("Keys published, under the same guarantee", loc="left", weight="bold", size=13, pad=9)
    axes.legend(loc="upper left")


def _line(name: str) -> dict[str, Any]:
    return {"color": _COLOURS.get(name, _GREY), "lw": 2.8 if name == OURS else 1.6, "marker": "o", "ms": 4}
