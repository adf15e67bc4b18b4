"""Layer by head: variance proxy, kurtosis, k-hat of norms and logits, and the verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from esscher.core.errors import InputError
from esscher.math.tails.verdict import LETTERS, VERDICTS
from esscher.show.heatmaps import (
    LEAST,
    as_grid,
    draw_cells,
    draw_grid,
    label_heads,
    mark,
    panel_height,
)
from esscher.show.style import (
    BLACK,
    BLUE,
    DOUBLE,
    GREEN,
    GREY,
    GUIDE,
    ORANGE,
    PALE,
    SHARES,
    SIZES,
    SKY,
    VERMILION,
    columns,
    error_bars,
    finish,
    legend_below,
    logarithmic,
    new_figure,
    note,
    panels,
    styled,
)
from esscher.show.titles import title_of
from esscher.studies.tails import Tails

#: From the lightest tail to the heaviest; pale for what is not decided.
COLOURS = (SKY, GREEN, ORANGE, VERMILION, PALE)
#: Column of the table, title, colour map, limits (None: from the data), logarithmic.
PANELS = (
    ("proxy", "variance proxy / variance", SIZES, None, False),
    ("kurtosis", "excess kurtosis, worst", SIZES, None, False),
    ("norms_k", "k-hat of key norms", SHARES, (-0.5, 0.5), False),
    ("logits_k", "k-hat of logits", SHARES, (-0.5, 0.5), False),
)


@styled
def draw_tails(found: Tails, title: str | None = None, *, width: float = DOUBLE) -> Figure:
    """Draw the heatmaps of a run; a cross marks a cell without a number."""
    return _draw(found, title, width, numbers=True)


@styled
def draw_verdicts(found: Tails, title: str | None = None, *, width: float = DOUBLE) -> Figure:
    """Draw the verdicts alone, without and with delimiters."""
    return _draw(found, title, width, numbers=False)


def _draw(found: Tails, title: str | None, width: float, *, numbers: bool) -> Figure:
    table = found.table()
    layers, heads = sorted(table["layer"].unique()), sorted(table["head"].unique())
    shown = PANELS if numbers else ()
    count = len(shown) + 2
    across = columns(width, count, LEAST)
    rows = -(-count // across)
    figure = new_figure(
        width, 0.75 + rows * panel_height(len(layers)), title_of(found.to_dict(), title)
    )
    axes = panels(figure, count, across)
    outer = [(i % across == 0, i // across == rows - 1) for i in range(count)]
    for axis, edge, (column, name, colours, limits, log) in zip(axes, outer, shown, strict=False):
        draw_grid(
            figure, axis, as_grid(table, column, layers, heads), layers, heads, name,
            colours=colours, limits=limits, logarithmic=log, outer=edge,
        )  # fmt: skip
    causal = found.study.model_record.causal
    apart = "delimiters, first tokens" if causal else "delimiters"
    for axis, edge, (column, name) in zip(
        axes[-2:],
        outer[-2:],
        (("verdict", "verdict on text tokens"), ("with_delimiters", f"with {apart}")),
        strict=True,
    ):
        _draw_verdicts(axis, table, column, layers, heads)
        label_heads(axis, layers, heads)
        finish(axis, "head" if edge[1] else "", "layer" if edge[0] else "", name, grid=None)
    names = [f"{LETTERS[verdict]}: {verdict}" for verdict in VERDICTS]
    legend_below(figure, ([Patch(color=colour) for colour in COLOURS], names), width, most=5)
    return figure


def _draw_verdicts(axis: Any, table: Any, column: str, layers: list[int], heads: list[int]) -> None:
    known = table[table[column].notna()]
    codes = known.assign(code=[VERDICTS.index(verdict) for verdict in known[column]])
    grid = as_grid(codes, "code", layers, heads)
    if not len(known):
        note(axis, "no delimiters in this text")
    norm = BoundaryNorm(np.arange(len(VERDICTS) + 1) - 0.5, len(VERDICTS))
    draw_cells(axis, np.ma.masked_invalid(grid), cmap=ListedColormap(COLOURS), norm=norm)
    for code, verdict in enumerate(VERDICTS):  # to tell verdicts apart without colours
        mark(axis, grid == code, LETTERS[verdict], BLACK)


@styled
def draw_hidden(found: Tails, title: str | None = None, *, width: float = DOUBLE) -> Figure:
    """Draw the tails of the tokens that enter each layer, with 95% intervals."""
    table = found.layers_table()
    if table.empty:
        raise InputError("this run has no hidden states of whole layers")
    across = columns(width, 3, 1.9)
    name = title_of(found.to_dict(), title).replace("the keys of", "the tokens in the layers of", 1)
    figure = new_figure(width, 0.4 + 2.1 * -(-3 // across), name)
    for axis, (column, name, colour, marker) in zip(
        panels(figure, 3, across),
        (
            ("proxy", "variance proxy / variance", BLUE, "o"),
            ("kurtosis", "excess kurtosis, worst", VERMILION, "s"),
            ("norms_k", "k-hat of norms", GREEN, "^"),
        ),
        strict=True,
    ):
        value = table[column].to_numpy(dtype=float)
        ends = [table[f"{column}_{side}"].to_numpy(dtype=float) for side in ("low", "high")]
        error_bars(axis, table["layer"], value, ends, color=colour, marker=marker)
        if column == "norms_k":
            axis.axhline(0.0, color=GREY, linewidth=GUIDE, linestyle=":")
        elif np.nanmin(ends[0]) > 0 and np.nanmax(value) > 20 * np.nanmin(value):
            logarithmic(axis, "y")
        axis.xaxis.set_major_locator(MaxNLocator(7, integer=True))
        finish(axis, "layer", "", name)
    return figure
