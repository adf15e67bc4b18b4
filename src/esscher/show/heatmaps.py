"""Layer by head: one number per cell, for the heads of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from esscher.core.validation import Array
from esscher.show.style import (
    DOUBLE,
    GREY,
    SHARES,
    SIZES,
    SMALL,
    columns,
    finish,
    new_figure,
    panels,
    plain_number,
    styled,
)
from esscher.show.titles import title_of

if TYPE_CHECKING:
    from esscher.studies.probe import Probe

#: Column of the table, title, colour map, limits (None: from the data), logarithmic.
PANELS = (
    ("mean", "exponent, mean error", SIZES, (0.2, 0.6), False),
    ("map", "exponent, map error", SIZES, (0.0, 0.6), False),
    ("H", "horizon H", SHARES, None, True),
    ("khat", "one-pass k-hat", SHARES, (0.0, 1.0), False),
    ("tokens_10", "tokens for 10% error", SHARES, None, True),
    ("lost", "sinks and delimiters", SHARES, (0.0, 1.0), False),
)
#: Inches that a panel must have, and those of a layer, at least and at most in all.
LEAST, LAYER, SHORT, TALL = 1.7, 0.1, 1.35, 3.4


@styled
def draw_heads(found: Probe, title: str | None = None, *, width: float = DOUBLE) -> Figure:
    """Draw heatmaps of a probe; a cross marks a cell without a number.

    Parameters
    ----------
    found
        The probe.
    title
        Above everything; None: what was probed; empty: none.
    width
        Of the figure, in inches.
    """
    table = found.table()
    table = table.assign(lost=table["sinks"] + table["delimiters"])
    layers, heads = sorted(table["layer"].unique()), sorted(table["head"].unique())
    across = columns(width, len(PANELS), LEAST)
    rows = -(-len(PANELS) // across)
    figure = new_figure(
        width, 0.4 + rows * panel_height(len(layers)), title_of(found.to_dict(), title)
    )
    for i, (axis, (column, name, colours, limits, logarithmic)) in enumerate(
        zip(panels(figure, len(PANELS), across), PANELS, strict=True)
    ):
        grid = as_grid(table, column, layers, heads)
        draw_grid(
            figure, axis, grid, layers, heads, name, colours=colours, limits=limits,
            logarithmic=logarithmic, outer=(i % across == 0, i // across == rows - 1),
        )  # fmt: skip
    return figure


def panel_height(layers: int) -> float:
    """Height of a heatmap with its title, in inches."""
    return 0.5 + float(np.clip(LAYER * layers, SHORT, TALL))


def as_grid(table: Any, column: str, layers: Sequence[int], heads: Sequence[int]) -> Array:
    """A column of a table of heads as [layers, heads]; ``nan`` where there is no number."""
    grid = np.full((len(layers), len(heads)), np.nan)
    for row in table.itertuples():
        value = getattr(row, column)
        grid[layers.index(row.layer), heads.index(row.head)] = np.nan if value is None else value
    return grid


def draw_grid(
    figure: Any,
    axis: Any,
    grid: Array,
    layers: Sequence[int],
    heads: Sequence[int],
    title: str,
    *,
    colours: str = SIZES,
    limits: tuple[float, float] | None = None,
    logarithmic: bool = False,
    unit: str = "",
    heads_name: str = "head",
    outer: tuple[bool, bool] = (True, True),
    crosses: bool = True,
) -> Any:
    """Draw one heatmap with its colour bar; return the image.

    Parameters
    ----------
    figure, axis
        Where to draw.
    grid
        Numbers, [layers, heads]; a cross marks what is not finite, if ``crosses``.
    layers, heads
        Their numbers.
    title
        Above it.
    colours, limits, logarithmic
        Colour map, its ends (None: those of the data), and whether it is logarithmic.
    unit
        Beside the colour bar.
    heads_name
        Below the heads.
    outer
        Whether it has the label of the layers, and that of the heads.
    crosses
        Whether cells without a number are marked.
    """
    known = grid[np.isfinite(grid) & ((grid > 0) | (not logarithmic))]
    low, high = (0.0, 1.0) if limits is None else limits
    if limits is None and known.size:
        low, high = float(known.min()), float(known.max())
    elif limits is None:
        low, high = (1.0, 10.0) if logarithmic else (0.0, 1.0)
    if not high > low:  # one number only
        low, high = (low / 1.5, low * 1.5) if logarithmic else (low - 0.5, low + 0.5)
    scale: Any = {"norm": LogNorm(low, high)} if logarithmic else {"vmin": low, "vmax": high}
    shown = np.ma.masked_invalid(np.where(grid > 0, grid, np.nan) if logarithmic else grid)
    image = draw_cells(axis, shown, cmap=colours, **scale)
    if crosses:
        mark(axis, ~np.isfinite(np.ma.filled(shown, np.nan)), "\u00d7", GREY)
    _draw_colour_bar(figure, axis, image, unit, known, limits, logarithmic)
    label_heads(axis, layers, heads)
    finish(axis, heads_name if outer[1] else "", "layer" if outer[0] else "", title, grid=None)
    return image


def draw_cells(axis: Any, grid: Any, *, square: bool = False, **colours: Any) -> Any:
    """Draw numbers as coloured cells around whole coordinates; square ones from the top down.

    Cells, not an image: vectors stay sharp at every size, and know no dots per inch.
    """
    rows, across = grid.shape
    edges = np.arange(across + 1) - 0.5, np.arange(rows + 1) - 0.5
    # lines of the cells' own colours close the seams that viewers show between them
    found = axis.pcolormesh(*edges, grid, edgecolors="face", linewidth=0.2, **colours)
    if square:
        axis.set_aspect("equal")
        axis.invert_yaxis()
    for spine in axis.spines.values():
        spine.set_visible(True)
    return found


def _draw_colour_bar(
    figure: Any, axis: Any, image: Any, unit: str, known: Array, limits: Any, logarithmic: bool
) -> None:
    rows = np.shape(image.get_array())[0]
    # an arrow where numbers lie outside of fixed limits: the colour alone would lie
    outside = (
        (False, False)
        if limits is None or not known.size
        else (bool(known.min() < limits[0]), bool(known.max() > limits[1]))
    )
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max"}
    bar = figure.colorbar(
        image, ax=axis, pad=0.02, aspect=14 * panel_height(rows), extendfrac=0.04,
        extend=extend.get(outside, "both"),
    )  # fmt: skip
    bar.outline.set_linewidth(0.5)
    if logarithmic:
        low, high = image.norm.vmin, image.norm.vmax
        subs = (1.0,) if high / low > 100 else (1.0, 3.0) if high / low > 10 else (1.0, 2.0, 5.0)
        bar.ax.yaxis.set_major_locator(LogLocator(subs=subs))
        bar.ax.yaxis.set_minor_locator(NullLocator())
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))
        if not any(low <= tick <= high for tick in bar.get_ticks()):
            bar.set_ticks([low, high], labels=[f"{low:.3g}", f"{high:.3g}"])
    else:
        bar.ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    bar.ax.tick_params(labelsize=SMALL, width=0.5, length=2)
    if unit:
        bar.set_label(unit, fontsize=SMALL)


def mark(axis: Any, cells: Any, sign: str, colour: str) -> None:
    """Write a sign into every chosen cell of a heatmap, [layers, heads]."""
    rows, across = cells.shape
    # points of a cell, of which letters need most
    tall, wide = 72 * (panel_height(rows) - 0.5) / rows, 72 * LEAST / across
    size = float(np.clip(min(0.65 * tall, 0.9 * wide), 2.5, SMALL))
    for i, j in zip(*np.nonzero(cells), strict=True):
        axis.text(j, i, sign, ha="center", va="center", fontsize=size, color=colour)


def label_heads(axis: Any, layers: Sequence[int], heads: Sequence[int]) -> None:
    """Numbers of layers and heads at the ticks, as many as there is room for."""
    for numbers, ticks, most in ((layers, axis.set_yticks, 10), (heads, axis.set_xticks, 7)):
        step = 1 if len(numbers) <= most else 2 if len(numbers) <= 2 * most else 0
        step = step or int(5 * np.ceil(len(numbers) / most / 5))
        at = range(0, len(numbers), step)
        ticks(list(at), [str(numbers[i]) for i in at])
