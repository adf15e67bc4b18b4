"""Layer by head: variance proxy, kurtosis, k-hat of norms and logits, and the verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from esscher.extremes import VERDICTS, Tails
from esscher.extremes.verdict import LETTERS

#: Okabe and Ito's palette, from the lightest tail to the heaviest; grey for what is not decided.
COLOURS = ("#56B4E9", "#009E73", "#E69F00", "#D55E00", "#BBBBBB")
#: Column of the table, title, colour map, limits (None: from the data).
PANELS = (
    ("proxy", "variance proxy / variance", "viridis", None),
    ("kurtosis", "excess kurtosis, worst direction", "viridis", None),
    ("norms_k", "k-hat of key norms", "cividis", (-0.5, 0.5)),
    ("logits_k", "k-hat of logits", "cividis", (-0.5, 0.5)),
)


def draw_tails(found: Tails) -> Figure:
    """Draw the heatmaps of a run; a cross marks a cell without a number."""
    table = found.to_frame()
    layers, heads = sorted(table["layer"].unique()), sorted(table["head"].unique())
    tall = len(layers) / max(len(heads), 1)
    figure = Figure(figsize=(12.0, min(max(5.5, 6.0 * tall), 13.0)), layout="constrained", dpi=150)
    panels = figure.subplots(2, 3).ravel()
    for axis, (column, name, colours, limits) in zip(panels, PANELS, strict=False):
        grid = _grid(table, column, layers, heads)
        low, high = (np.nanmin(grid), np.nanmax(grid)) if limits is None else limits
        image = axis.imshow(
            grid, cmap=colours, vmin=low, vmax=max(high, low + 1e-9), aspect="auto", origin="lower"
        )
        for i, j in zip(*np.nonzero(~np.isfinite(grid)), strict=True):
            axis.text(j, i, "x", ha="center", va="center", fontsize=7, color="grey")
        figure.colorbar(image, ax=axis, shrink=0.9).ax.tick_params(labelsize=7)
        _label(axis, name, layers, heads)
    causal = found.results["configuration"]["model"]["causal"]
    apart = "delimiters and first tokens" if causal else "delimiters"
    for axis, column, name in (
        (panels[4], "verdict", "verdict on text tokens"),
        (panels[5], "with_delimiters", f"verdict with {apart}"),
    ):
        _draw_verdicts(axis, table, column, layers, heads)
        _label(axis, name, layers, heads)
    configuration = found.results["configuration"]
    handles = [
        Patch(color=colour, label=f"{LETTERS[verdict]}: {verdict}")
        for colour, verdict in zip(COLOURS, VERDICTS, strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.suptitle(
        f"Tails of the keys of {configuration['model']['name']} on {configuration['text']}, "
        f"{configuration['tokens']:,} tokens",
        fontsize=10,
    )
    return figure


def _grid(table: Any, column: str, layers: list[int], heads: list[int]) -> Any:
    grid = np.full((len(layers), len(heads)), np.nan)
    for row in table.itertuples():
        value = getattr(row, column)
        grid[layers.index(row.layer), heads.index(row.head)] = np.nan if value is None else value
    return grid


def _draw_verdicts(axis: Any, table: Any, column: str, layers: list[int], heads: list[int]) -> None:
    known = table[table[column].notna()]
    codes = known.assign(code=[VERDICTS.index(verdict) for verdict in known[column]])
    grid = _grid(codes, "code", layers, heads)
    if not len(known):
        axis.text(0.5, 0.5, "no delimiters in this text", ha="center", transform=axis.transAxes)
    norm = BoundaryNorm(np.arange(len(VERDICTS) + 1) - 0.5, len(VERDICTS))
    axis.imshow(grid, cmap=ListedColormap(COLOURS), norm=norm, aspect="auto", origin="lower")
    for i, j in zip(*np.nonzero(np.isfinite(grid)), strict=True):
        # so that verdicts can be told apart without colours
        letter = LETTERS[VERDICTS[int(grid[i, j])]]
        axis.text(j, i, letter, ha="center", va="center", fontsize=6, color="black")


def _label(axis: Any, name: str, layers: list[int], heads: list[int]) -> None:
    step = max(1, len(layers) // 12)
    shown = range(0, len(layers), step)
    axis.set_yticks(shown, [str(layers[i]) for i in shown])
    axis.set_xticks(range(len(heads)), [str(head) for head in heads])
    axis.tick_params(labelsize=7)
    axis.set_title(name, fontsize=9)
    axis.set_xlabel("head", fontsize=8)
    axis.set_ylabel("layer", fontsize=8)
