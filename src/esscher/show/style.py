"""How every figure looks: sizes, fonts, colours, axes. Nothing global is changed, no pyplot.

A drawing is a function that returns a figure and carries :func:`styled`: whatever the caller's own
settings of matplotlib are, it sees those of this file, and the caller's come back afterwards.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, ParamSpec

import matplotlib.style
import numpy as np
from matplotlib import colormaps
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

#: Widths of a figure in one and in two columns of a paper, in inches.
SINGLE, DOUBLE = 3.4, 7.0
#: Sizes of type in points: titles of figures, text, ticks and legends, notes, marks in small cells.
LARGE, TEXT, SMALL, NOTE, TINY = 8.5, 8.0, 7.0, 6.5, 5.0

#: Okabe and Ito's palette, which colour-blind readers tell apart; grey for what others said.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY, PALE = "#E69F00", "#56B4E9", "#000000", "#777777", "#BBBBBB"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, "#B8A500")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
#: What was measured, by metric, wherever the three stand side by side.
METRIC_COLOURS = {"mean": VERMILION, "cov": GREEN, "map": BLUE}
METRIC_MARKERS = {"mean": "s", "cov": "^", "map": "o"}
METRIC_NAMES = {"mean": "mean output", "cov": "covariance", "map": "map (rms)"}
#: Maps from numbers to colours, even in lightness: of sizes, of shares, of signed numbers.
SIZES, SHARES, SIGNED = "viridis", "cividis", "PuOr_r"

#: Widths of lines in points: curves, bars of errors, lines to compare with, grid.
CURVE, BAR, GUIDE, GRID = 1.2, 0.8, 0.9, 0.5
MARKER, CAP = 3.2, 1.6

RC = {
    # DejaVu Sans comes with matplotlib: the same picture everywhere. Others have its widths.
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "mathtext.fontset": "dejavusans",
    "font.size": TEXT,
    "figure.titlesize": LARGE,
    "axes.titlesize": TEXT,
    "axes.labelsize": TEXT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.title_fontsize": SMALL,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.borderaxespad": 0.3,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.minor.width": 0.5,
    "ytick.minor.width": 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "lines.linewidth": CURVE,
    "lines.markersize": MARKER,
    "hatch.linewidth": 0.5,
    "savefig.dpi": "figure",
    "figure.facecolor": "white",
    # text stays text: it can be searched, selected and set in another type
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    # names of clip paths from their contents: the same numbers give the same file
    "svg.hashsalt": "esscher",
}
#: Dots per inch unless others are asked for.
DPI = 200

P = ParamSpec("P")


def context() -> AbstractContextManager[None]:
    """The style for the time of a block; the caller's settings come back afterwards."""
    found: AbstractContextManager[None] = matplotlib.style.context(["default", RC])
    return found


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Make a function draw in the style."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with context():
            return draw(*args, **kwargs)

    return drawn


def new_figure(width: float, height: float, title: str | None = None) -> Figure:
    """An empty figure; sizes in inches. A long title is broken into lines; none takes no room."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    if title:
        characters = max(20, int(width / 0.067))
        tied = printable(title).replace(" = ", "\xa0=\xa0")  # "H = 1" stays together
        lines = textwrap.wrap(tied, characters, break_on_hyphens=False)
        lines = [escape(line.replace("\xa0", " ")) for line in lines]
        figure.suptitle("\n".join(lines), fontsize=LARGE)
    return figure


def printable(text: str) -> str:
    """Somebody's text on one line, without characters that files of figures cannot hold."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in str(text))


def escape(text: str) -> str:
    """Somebody's text as matplotlib must be given it: dollar signs are no formulas."""
    return printable(text).replace("$", r"\$")


def columns(width: float, count: int, least: float) -> int:
    """How many of ``count`` panels stand side by side, each at least so many inches wide.

    As many in each row as possible: four panels of which three would fit are two and two.
    """
    fitting = int(np.clip(width / least, 1, max(count, 1)))
    rows = -(-count // fitting)
    return max(1, -(-count // max(rows, 1)))


def panels(figure: Any, count: int, across: int, **options: Any) -> list[Any]:
    """``count`` axes in rows of ``across``; what is left of the last row is empty."""
    rows = -(-count // across)
    found = list(np.ravel(figure.subplots(rows, across, squeeze=False, **options)))
    for axis in found[count:]:
        axis.set_axis_off()
    return found[:count]


def finish(
    axis: Any, xlabel: str = "", ylabel: str = "", title: str = "", *, grid: str | None = "both"
) -> None:
    """Labels, ticks and grid of an axis; ``grid`` is "x", "y", "both" or None."""
    axis.set_xlabel(xlabel, fontsize=TEXT)
    axis.set_ylabel(ylabel, fontsize=TEXT)
    axis.set_title(title, fontsize=TEXT)
    # said here, since matplotlib makes ticks when it draws, perhaps under other settings
    axis.tick_params(which="major", labelsize=SMALL, width=0.7, length=2.5)
    axis.tick_params(which="minor", width=0.5, length=1.5)
    if grid is not None:
        axis.grid(axis=grid, alpha=0.25, linewidth=GRID)


def error_bars(
    axis: Any,
    x: Any,
    y: Any,
    ends: Any = None,
    *,
    hollow: Any = None,
    horizontal: bool = False,
    **style: Any,
) -> None:
    """Points with intervals, the same everywhere; those that are not to be trusted are hollow.

    Parameters
    ----------
    axis
        Where to draw.
    x, y
        Points.
    ends
        Lower and upper ends, [2, points]; ``nan`` where there is no interval. None: no intervals.
    hollow
        Whether a point is not to be trusted, one per point.
    horizontal
        Whether intervals are of x.
    style
        Colour, marker, label and so on, as for ``errorbar``.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    value = x if horizontal else y
    bars = None
    if ends is not None:
        low, high = np.asarray(ends, dtype=np.float64)
        bars = np.array([np.maximum(value - low, 0.0), np.maximum(high - value, 0.0)])
        bars = np.nan_to_num(bars, nan=0.0, posinf=0.0)
    hollow = np.zeros(len(x), dtype=bool) if hollow is None else np.asarray(hollow, dtype=bool)
    label, fill = style.pop("label", None), style.pop("markerfacecolor", None)
    style = {
        "linestyle": "none", "marker": "o", "markersize": MARKER, "linewidth": CURVE,
        "elinewidth": BAR, "capsize": CAP, "capthick": BAR, "markeredgewidth": BAR,
    } | style  # fmt: skip
    for chosen, face in ((~hollow, fill), (hollow, "white")):
        if not chosen.any():
            continue
        own = None if bars is None else bars[:, chosen]
        axis.errorbar(
            x[chosen], y[chosen], **{"xerr" if horizontal else "yerr": own}, label=label,
            **style, **({} if face is None else {"markerfacecolor": face}),
        )  # fmt: skip
        label = None  # once


def shades(count: int) -> Any:
    """Colours of curves that belong to growing numbers, dark to light, [count, 4]."""
    return colormaps[SIZES](np.linspace(0.0, 0.88, count))


def legend_below(
    figure: Any, found: tuple[Sequence[Any], Sequence[str]], width: float, most: int = 6
) -> None:
    """One legend for all panels, below them, in as many columns as the width takes; points first.

    Handles and labels are found as ``get_legend_handles_labels`` returns them.
    """
    handles, labels = found
    first = [i for i, handle in enumerate(handles) if isinstance(handle, ErrorbarContainer)]
    order = [*first, *(i for i in range(len(handles)) if i not in first)]
    handles, labels = [handles[i] for i in order], [labels[i] for i in order]
    lengths = [0.4 + 0.052 * len(label) for label in labels] or [1.0]
    fitting = len(labels) if sum(lengths) < width else int(width / max(lengths))
    across = max(1, min(fitting, most, len(labels)))
    figure.legend(
        handles, labels, loc="outside lower center", ncols=across, fontsize=SMALL,
        columnspacing=1.2,
    )  # fmt: skip


def note(axis: Any, text: str, at: tuple[float, float] = (0.5, 0.5), **style: Any) -> None:
    """A grey remark inside an axis, in fractions of it."""
    defaults = {"ha": "center", "va": "center", "fontsize": NOTE, "color": GREY}
    axis.text(*at, text, transform=axis.transAxes, **(defaults | style))


def logarithmic(axis: Any, direction: str) -> None:
    """A logarithmic axis with plain numbers: few ticks, and never ``6 x 10^-1`` over ``10^0``."""
    getattr(axis, f"set_{direction}scale")("log")
    ticks = getattr(axis, f"{direction}axis")
    low, high = getattr(axis, f"get_{direction}lim")()
    ratio = high / low
    subs: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    for most, coarser in ((3, (1.0, 2.0, 3.0, 5.0)), (10, (1.0, 2.0, 5.0)), (30, (1.0, 3.0))):
        subs = coarser if ratio > most else subs
    ticks.set_major_locator(LogLocator(subs=subs if ratio <= 300 else (1.0,)))
    ticks.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))
    ticks.set_minor_formatter(NullFormatter())


def plain_number(value: float) -> str:
    """A tick's label: from 0.001 to below 10,000 as it is, others as powers of 10."""
    if value == 0 or 0.000999 < abs(value) < 9_999:
        return f"{value:g}"
    power = int(np.floor(np.log10(abs(value)) + 1e-9))
    factor = value / 10.0**power
    front = "" if np.isclose(factor, 1) else rf"{factor:.3g}{{\times}}"
    return rf"${front}10^{{{power}}}$"
