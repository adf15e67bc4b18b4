"""How long a context heads use: share of heads that are done at a length, and lengths by head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from esscher.core.errors import InputError
from esscher.show.heatmaps import draw_grid, panel_height
from esscher.show.numbers import counted
from esscher.show.probes import check_heads
from esscher.show.style import (
    BLACK,
    BLUE,
    DOUBLE,
    GREY,
    GUIDE,
    MARKERS,
    NOTE,
    PALE,
    PALETTE,
    SIZES,
    columns,
    finish,
    legend_below,
    logarithmic,
    new_figure,
    styled,
)
from esscher.show.titles import title_of

#: Heads whose curves are drawn unless some are chosen.
SHOWN = 6
#: Marks in the heatmap: lengths beyond the longest context, and heads with an open end.
EXTRAPOLATED, OPEN = "extrapolated", "still changing"


@styled
def draw_context(
    results: dict[str, Any], title: str | None = None, *, width: float = DOUBLE
) -> Figure:
    """Draw (a) the share of heads done at a length, (b) the length of every head.

    Parameters
    ----------
    results
        Results of a run of context lengths, as ``Context.to_dict`` returns them.
    title
        Above everything; None: what was measured; empty: none.
    width
        Of the figure, in inches.
    """
    _check(results)
    across = columns(width, 2, 2.8)
    height = max(2.4, _grid_height(results))
    rows = height if across == 2 else 2.4 + height
    figure = new_figure(width, 0.5 + rows, title_of(results, title))
    ratios = {"width_ratios": [1.15, 1.0]} if across == 2 else {"height_ratios": [2.4, height]}
    shape = (1, 2) if across == 2 else (2, 1)
    axes: Any = figure.subplots(*shape, gridspec_kw=ratios)
    left, right = axes
    _saturated(left, results)
    marks = _lengths(figure, right, results)
    handles, names = left.get_legend_handles_labels()
    names = [*names, *(f"heads: {mark.get_label()}" for mark in marks)]
    legend_below(figure, ([*handles, *marks], names), width, most=3)
    return figure


@styled
def draw_saturation(
    results: dict[str, Any], title: str | None = None, *, width: float = DOUBLE
) -> Figure:
    """Draw the share of heads that are within the tolerance at every length, with its band."""
    _check(results)
    figure = new_figure(width, min(0.75 * width, 3.0) + 0.2, title_of(results, title))
    axis = figure.subplots()
    _saturated(axis, results)
    legend_below(figure, axis.get_legend_handles_labels(), width)
    return figure


@styled
def draw_lengths(
    results: dict[str, Any], title: str | None = None, *, width: float = DOUBLE
) -> Figure:
    """Draw the context length of every head; hatched: extrapolated; grey: still changing."""
    _check(results)
    figure = new_figure(width, 0.5 + _grid_height(results), title_of(results, title))
    marks = _lengths(figure, figure.subplots(), results)
    legend_below(figure, (marks, [str(mark.get_label()) for mark in marks]), width)
    return figure


@styled
def draw_changes(
    results: dict[str, Any],
    title: str | None = None,
    *,
    width: float = DOUBLE,
    heads: Sequence[tuple[int, int]] | None = None,
) -> Figure:
    """Draw what is still to come at every length for chosen heads, and where it is tolerable.

    Unless heads are given six, from the one that uses the shortest context to the longest.
    """
    _check(results)
    found = {(h["layer"], h["head"]): h for h in results["heads"]}
    if heads is None:
        order = sorted(found, key=lambda pair: _length(found[pair]))
        at = np.unique(np.linspace(0, len(order) - 1, min(SHOWN, len(order))).astype(int))
        heads = [order[i] for i in at]
    check_heads(heads, list(found))
    figure = new_figure(width, min(0.75 * width, 3.2) + 0.5, title_of(results, title))
    axis = figure.subplots()
    lengths = np.asarray(results["lengths"], dtype=np.float64)
    longest, tolerance = lengths[-1], results["configuration"]["tolerance"]
    for i, pair in enumerate(heads):
        head = found[pair]
        rest = np.array([np.nan if r is None else r for r in head["rest"]], dtype=np.float64)
        colour = PALETTE[i % len(PALETTE)]
        axis.plot(
            lengths, rest, color=colour, marker=MARKERS[i % len(MARKERS)],
            label=f"head {pair[0]}.{pair[1]}: {_words(head)}",
        )  # fmt: skip
        if not np.isfinite(rest).any():  # no sum: the changes do not fall; they are known
            axis.plot(lengths[:-1], head["change"], ":", color=colour, linewidth=GUIDE)
        length = _length(head)
        if np.isfinite(length) and length > longest:
            axis.plot([longest, length], [rest[-1], tolerance], ":", color=colour, linewidth=GUIDE)
        if np.isfinite(length):
            axis.plot([length], [tolerance], "|", color=colour, markersize=8, markeredgewidth=1.2)
    axis.axhline(tolerance, color=GREY, linestyle="--", linewidth=GUIDE)
    axis.annotate(
        f"tolerance {100 * tolerance:g}%", (0.995, tolerance), xycoords=axis.get_yaxis_transform(),
        textcoords="offset points", xytext=(0, -2), ha="right", va="top", fontsize=NOTE,
        color=GREY,
    )  # fmt: skip
    logarithmic(axis, "x")
    logarithmic(axis, "y")
    finish(axis, "tokens of context", "relative change still to come")
    legend_below(figure, axis.get_legend_handles_labels(), width, most=3)
    return figure


def _check(results: dict[str, Any]) -> None:
    if not results["heads"]:
        raise InputError("there is nothing to draw yet: no passage of the run is complete")


def _length(head: dict[str, Any]) -> float:
    return np.inf if head["length"] is None else float(head["length"])


def _words(head: dict[str, Any]) -> str:
    length = _length(head)
    if not np.isfinite(length):
        return str(head.get("note") or OPEN)
    return f"{length:,.0f}" + (" (extrapolated)" if head["extrapolated"] else "")


def _grid_height(results: dict[str, Any]) -> float:
    return panel_height(len({head["layer"] for head in results["heads"]})) + 0.3


def _saturated(axis: Any, results: dict[str, Any]) -> None:
    """Share of heads whose length is at most L; the band from the ends of their intervals."""
    heads, longest = results["heads"], float(results["lengths"][-1])
    sides = {
        "length": [_length(head) for head in heads],
        "early": [np.inf if h["interval"][0] is None else h["interval"][0] for h in heads],
        "late": [np.inf if h["interval"][1] is None else h["interval"][1] for h in heads],
    }
    finite = [value for side in sides.values() for value in side if np.isfinite(value)]
    # a decade beyond what was measured says enough about what was not
    last = float(np.clip(max(finite, default=longest), 1.5 * longest, 10 * longest))
    first = float(min([*finite, results["lengths"][0]]))
    grid = np.geomspace(first / 1.1, last, 400)
    grid = np.unique(np.concatenate([grid, [v for v in sides["length"] if v <= last]]))
    share = {
        name: np.searchsorted(np.sort(values), grid, side="right") / len(heads)
        for name, values in sides.items()
    }
    axis.fill_between(
        grid, share["late"], share["early"], color=BLUE, alpha=0.15, linewidth=0, step="post",
        label="ends of the heads' 95% intervals",
    )  # fmt: skip
    inside = grid <= longest
    axis.step(grid[inside], share["length"][inside], where="post", color=BLUE, label="measured")
    axis.step(
        grid[~inside], share["length"][~inside], where="post", color=BLUE, linestyle=":",
        label="extrapolated",
    )  # fmt: skip
    axis.axvline(longest, color=GREY, linewidth=GUIDE, linestyle="--")
    axis.annotate(
        "longest context", (longest, 0.02), xycoords=("data", "axes fraction"), rotation=90,
        textcoords="offset points", xytext=(2, 0), ha="left", va="bottom", fontsize=NOTE,
        color=GREY,
    )  # fmt: skip
    endless = sum(not np.isfinite(value) for value in sides["length"])
    if endless:
        share_done = 1 - endless / len(heads)
        axis.axhline(share_done, color=GREY, linewidth=0.5)
        axis.annotate(
            f"{counted(endless, 'head')} {OPEN} at {longest:,.0f}", (0.01, share_done),
            fontsize=NOTE,
            xycoords=axis.get_yaxis_transform(), textcoords="offset points", xytext=(0, 2),
            color=GREY,
        )  # fmt: skip
    logarithmic(axis, "x")
    axis.set_xlim(grid[0], last)
    axis.set_ylim(0, 1.08)
    tolerance = results["configuration"]["tolerance"]
    finish(
        axis, "tokens of context", "share of heads", f"heads within {100 * tolerance:g}% of the end"
    )


def _lengths(figure: Any, axis: Any, results: dict[str, Any]) -> list[Any]:
    """Layer by head; hatched where extrapolated, grey and crossed where there is no length.

    Returns the handles of these marks for a legend.
    """
    heads = results["heads"]
    layers, numbers = (sorted({head[k] for head in heads}) for k in ("layer", "head"))
    grid = np.full((len(layers), len(numbers)), np.nan)
    for head in heads:
        length = _length(head)
        at = layers.index(head["layer"]), numbers.index(head["head"])
        grid[at] = length if np.isfinite(length) else np.nan
        corner = (at[1] - 0.5, at[0] - 0.5)
        style: dict[str, Any] = {"linewidth": 0, "zorder": 1.5}  # above the cells, below the frame
        if not np.isfinite(length):
            style |= {"facecolor": PALE, "edgecolor": BLACK, "hatch": "xxxx"}
            axis.add_patch(Rectangle(corner, 1, 1, **style))
        elif head["extrapolated"]:
            style |= {"fill": False, "edgecolor": "white", "hatch": "////"}
            axis.add_patch(Rectangle(corner, 1, 1, **style))
    draw_grid(
        figure, axis, grid, layers, numbers, "context used", colours=SIZES, logarithmic=True,
        unit="tokens", crosses=False,
    )  # fmt: skip
    return [
        Patch(facecolor=GREY, edgecolor="white", hatch="////", linewidth=0, label=EXTRAPOLATED),
        Patch(facecolor=PALE, edgecolor=BLACK, hatch="xxxx", linewidth=0, label=OPEN),
    ]
