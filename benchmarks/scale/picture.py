"""The sweeps as a picture: what an event takes, and memory, as each thing grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.peers.picture import _PALE, _QUIET, _STYLE
from benchmarks.release import Measured
from benchmarks.scale import model
from benchmarks.scale.sweeps import WORDS

# Okabe and Ito's, which everybody can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#8B4513")


def draw(written: Measured, path: Path) -> None:
    """Raises ImportError without matplotlib."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows = model.medians(written["measurements"])
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(14, 6.4), dpi=160, facecolor="white")
        grid = figure.add_gridspec(1, 2, left=0.06, right=0.975, top=0.9, bottom=0.12, wspace=0.17)
        _draw_time(figure.add_subplot(grid[0, 0]), rows)
        _draw_memory(figure.add_subplot(grid[0, 1]), rows)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_time(axes: Any, rows: list[Measured]) -> None:
    """Each sweep from its smallest run, which is 1 in both directions, so that they share the axes."""
    for sweep, colour in zip(WORDS, _COLOURS, strict=True):
        mine = [row for row in rows if row["sweep"] == sweep and row["label"].replace(",", "").isdigit()]
        if len(mine) > 1 and mine[0]["processor_work"] > 0:
            first = [float(row["label"].replace(",", "")) for row in mine]
            cost = [row["processor_work"] / row["events"] for row in mine]
            axes.plot(
                [value / first[0] for value in first],
                [value / cost[0] for value in cost],
                **{"color": colour, "marker": "o", "ms": 4, "lw": 2, "label": sweep},
            )
    axes.axhspan(0.8, 1.2, color=_PALE, zorder=0)
    axes.set_xscale("log")
    axes.set_yscale("log")  # windows cost something whatever is in them, and would flatten all the rest
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("times as many events, keys, units, …", color=_QUIET)
    axes.set_title("Processor time an event, by the smallest run's", loc="left", weight="bold", size=13, pad=9)
    if axes.get_legend_handles_labels()[0]:  # short runs may all be too noisy to show
        axes.legend(loc="upper left")


def _draw_memory(axes: Any, rows: list[Measured]) -> None:
    for sweep, colour in zip(WORDS, _COLOURS, strict=True):
        mine = [row for row in rows if row["sweep"] == sweep]
        if mine:
            pairs, memory = [row["kept"] / 1e6 for row in mine], [row["memory"] / 2**20 for row in mine]
            axes.plot(pairs, memory, color=colour, marker="o", ms=5, lw=0, label=sweep)
    axes.set_xlabel("million pairs that count", color=_QUIET)
    axes.set_title("Peak memory, MiB", loc="left", weight="bold", size=13, pad=9)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")
