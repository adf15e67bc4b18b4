"""Figures of a comparison of corpora: layers by corpus, which heads differ, and where from."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from esscher.show.heatmaps import draw_cells, draw_grid, mark, panel_height
from esscher.show.style import (
    BLACK,
    BLUE,
    DOUBLE,
    GREY,
    MARKERS,
    NOTE,
    ORANGE,
    PALETTE,
    SHARES,
    SIZES,
    SMALL,
    TEXT,
    VERMILION,
    columns,
    error_bars,
    escape,
    finish,
    legend_below,
    logarithmic,
    new_figure,
    panels,
    styled,
)
from esscher.show.titles import title_of

PARTS = {
    "head": BLUE,
    "head x corpus": ORANGE,
    "corpus": VERMILION,
    "block": "#999999",
    "rest": "#DDDDDD",
}
#: Statistics over layers in the order in which they are drawn, and how many of them.
ORDER = (
    "tokens", "ess", "khat", "exponent", "sinks", "horizon", "frobenius", "tau", "delimiters",
)  # fmt: skip
PANELS = 6


@styled
def draw_domains(
    results: dict[str, Any], title: str | None = None, *, width: float = DOUBLE
) -> Figure:
    """Draw a comparison from its results.

    Above: every statistic over the layers, a dot with its interval per corpus. Below: the share of
    a head's variance over blocks that is between corpora, for the tokens it needs (a cross where
    the corpora do not differ beyond chance), and where the variance of every statistic comes from.
    """
    shown = _shown(results)
    name = title_of(results, title)
    if not shown:
        return _nothing(results, name, width)
    across = columns(width, len(shown), _least(width))
    layers = len({layer for layer, _ in results["units"]})
    below = columns(width, 3, _least(width))
    heights = (
        1.9 * -(-len(shown) // across) + _legend_height(results, width),
        (panel_height(layers) + 0.45) * -(-3 // below),
    )
    figure = new_figure(width, 0.3 + sum(heights), name)
    halves: Any = figure.subfigures(2, 1, height_ratios=heights)
    _draw_layers(halves[0], results, shown, width)
    left, middle, right = panels(halves[1], 3, below)
    _heatmap(halves[1], left, results, "tokens" if "tokens" in results["tests"] else shown[0])
    _heatmap(halves[1], middle, results, _second(results), first=below == 1)
    _variance(right, results, compact=True)
    _explain(halves[1])
    return figure


@styled
def draw_domain_layers(
    results: dict[str, Any], title: str | None = None, *, width: float = DOUBLE
) -> Figure:
    """Draw every statistic over the layers, a dot with its 95% interval per corpus."""
    shown, name = _shown(results), title_of(results, title)
    if not shown:
        return _nothing(results, name, width)
    rows = -(-len(shown) // columns(width, len(shown), _least(width)))
    figure = new_figure(width, 0.4 + 1.9 * rows + _legend_height(results, width), name)
    _draw_layers(figure, results, shown, width)
    return figure


@styled
def draw_domain_heads(
    results: dict[str, Any], title: str | None = None, *, width: float = DOUBLE
) -> Figure:
    """Draw, layer by head, the share of the variance over blocks that is between corpora."""
    shown, name = _shown(results), title_of(results, title)
    if not shown:
        return _nothing(results, name, width)
    across = columns(width, len(shown), _least(width))
    rows = -(-len(shown) // across)
    height = panel_height(len({layer for layer, _ in results["units"]})) + 0.1
    figure = new_figure(width, 0.6 + height * rows, name)
    for i, (axis, statistic) in enumerate(
        zip(panels(figure, len(shown), across), shown, strict=True)
    ):
        _heatmap(figure, axis, results, statistic, first=i % across == 0)
    _explain(figure)
    return figure


@styled
def draw_variance(
    results: dict[str, Any], title: str | None = None, *, width: float = DOUBLE
) -> Figure:
    """Draw where the variance of every statistic comes from: head, corpus, both, block, rest."""
    name = title_of(results, title)
    if not _shown(results):
        return _nothing(results, name, width)
    figure = new_figure(width, 1.1 + 0.22 * len(results["variance"]), name)
    _variance(figure.subplots(), results)
    return figure


@styled
def draw_pairs(
    results: dict[str, Any], title: str | None = None, *, width: float = DOUBLE
) -> Figure:
    """Draw how many heads tell two corpora apart, for the tokens that heads need.

    Above the diagonal at the false discovery rate of the run, below it at its family-wise rate
    (Holm), which is stricter.
    """
    name = title_of(results, title)
    if not _shown(results):
        return _nothing(results, name, width)
    statistic = "tokens" if "tokens" in results["tests"] else next(iter(results["tests"]))
    corpora = [corpus["name"] for corpus in results["corpora"]]
    grid = np.full((len(corpora), len(corpora)), np.nan)
    for pair in results["tests"][statistic]["pairs"]:
        i, j = sorted((corpora.index(pair["a"]), corpora.index(pair["b"])))
        grid[i, j], grid[j, i] = pair["heads"], pair["heads_holm"]
    size = min(width, 1.6 + 0.42 * len(corpora))
    figure = new_figure(width, size + 0.2, name)
    axis = figure.subplots()
    heads = len(results["units"])
    shown = np.ma.masked_invalid(grid)
    image = draw_cells(axis, shown, square=True, cmap=SIZES, vmin=0, vmax=heads)
    for (i, j), value in np.ndenumerate(grid):
        if np.isfinite(value):
            colour = BLACK if value > 0.55 * heads else "white"
            axis.text(
                j, i, f"{value:.0f}", ha="center", va="center", fontsize=NOTE, color=colour
            )  # fmt: skip
    names = [escape(corpus) for corpus in corpora]
    axis.set_xticks(range(len(corpora)), names, rotation=40, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(len(corpora)), names)
    bar = figure.colorbar(image, ax=axis, pad=0.02, aspect=25, shrink=0.7)
    bar.set_label(f"heads that differ, of {heads}", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL, width=0.5, length=2)
    finish(
        axis, "", "",
        f"{results['statistics'][statistic]['title']}\n"
        f"above: FDR {results['configuration']['fdr']:g}, below: Holm",
        grid=None,
    )  # fmt: skip
    return figure


def _nothing(results: dict[str, Any], title: str, width: float) -> Figure:
    figure = new_figure(width, 1.6, title)
    figure.text(0.5, 0.4, escape(results["headline"]), ha="center", fontsize=TEXT, wrap=True)
    return figure


def _shown(results: dict[str, Any]) -> list[str]:
    """Statistics that are drawn; what is a constant of most heads says little about layers."""
    varying = [name for name in ORDER if results.get("variance", {}).get(name)]
    return (varying or list(results.get("statistics", {})))[:PANELS]


def _least(width: float) -> float:
    """Inches of a panel: two stand side by side in one column of a paper, three in two columns."""
    return 1.65 if width < 5 else 1.9


def _explain(figure: Any) -> None:
    words = "\u00d7: the corpora do not differ beyond chance"
    figure.supxlabel(words, fontsize=NOTE, color=GREY)


def _second(results: dict[str, Any]) -> str:
    names = list(results["statistics"])
    return next((name for name in ("khat", "ess") if name in names), names[0])


def _legend_height(results: dict[str, Any], width: float) -> float:
    words = sum(0.4 + 0.055 * len(corpus["name"]) for corpus in results["corpora"])
    return 0.3 + 0.15 * float(np.ceil(words / width))


def _draw_layers(figure: Any, results: dict[str, Any], shown: list[str], width: float) -> None:
    across = columns(width, len(shown), _least(width))
    axes = panels(figure, len(shown), across)
    for i, (axis, name) in enumerate(zip(axes, shown, strict=True)):
        _layers(axis, results, name)
        axis.set_xlabel("layer" if i + across >= len(shown) else "")
    legend_below(figure, axes[0].get_legend_handles_labels(), width, most=8)


def _layers(axis: Any, results: dict[str, Any], name: str) -> None:
    about, by_corpus = results["statistics"][name], results["layers"][name]
    count = len(by_corpus)
    for c, (corpus, rows) in enumerate(by_corpus.items()):
        known = [row for row in rows if row["value"] is not None]
        # beside each other, so that intervals do not hide each other
        at = np.array([row["layer"] for row in known]) + 0.7 * ((c + 0.5) / count - 0.5)
        value, low, high = (
            np.array([row[key] for row in known], dtype=np.float64)
            for key in ("value", "low", "high")
        )
        error_bars(
            axis, at, value, [low, high], capsize=0, markersize=2.2, elinewidth=0.6,
            marker=MARKERS[c // len(PALETTE) % len(MARKERS)], color=PALETTE[c % len(PALETTE)],
            label=escape(corpus),
        )  # fmt: skip
    if about["scale"] == "ratio":
        logarithmic(axis, "y")
    layers = sorted({row["layer"] for rows in by_corpus.values() for row in rows})
    axis.set_xticks(layers[:: max(1, -(-len(layers) // 8))])
    finish(axis, "layer", "", about["title"])
    axis.title.set_fontsize(SMALL)


def _heatmap(
    figure: Any, axis: Any, results: dict[str, Any], name: str, *, first: bool = True
) -> None:
    units = results["units"]
    layers, heads = (sorted({unit[i] for unit in units}) for i in (0, 1))
    test = results["tests"][name]["omnibus"]
    grid = np.full((len(layers), len(heads)), np.nan)
    chance = np.zeros(grid.shape, dtype=bool)
    for (layer, head), share, p in zip(units, test["share"], test["adjusted"], strict=True):
        at = layers.index(layer), heads.index(head)
        grid[at] = np.nan if share is None else share
        chance[at] = p is None or p > results["configuration"]["fdr"]
    title = f"{results['statistics'][name]['title']}:\nvariance between corpora"
    draw_grid(
        figure, axis, grid, layers, heads, title, colours=SHARES, limits=(0.0, 1.0),
        outer=(first, True), crosses=False,
    )  # fmt: skip
    mark(axis, chance & (np.nan_to_num(grid) < 0.6), "\u00d7", "white")
    mark(axis, chance & (np.nan_to_num(grid) >= 0.6), "\u00d7", BLACK)
    axis.title.set_fontsize(SMALL)


def _variance(axis: Any, results: dict[str, Any], *, compact: bool = False) -> None:
    rows = {name: found for name, found in results["variance"].items() if found is not None}
    at = np.arange(len(rows))[::-1]
    start = np.zeros(len(rows))
    for part, colour in PARTS.items():
        share = np.array([found["shares"][part] for found in rows.values()])
        axis.barh(at, share, left=start, color=colour, label=part, height=0.7)
        start += share
    names = [name if compact else results["statistics"][name]["title"] for name in rows]
    axis.set_yticks(at, names)
    axis.set_xlim(0, 1)
    finish(axis, "share of the variance", "", "", grid=None)
    axis.legend(
        fontsize=NOTE, ncols=3 if compact else len(PARTS), loc="lower center", handlelength=0.9,
        columnspacing=0.8, handletextpad=0.4, bbox_to_anchor=(0.42, 1.0),
    )  # fmt: skip
