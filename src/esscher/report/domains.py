"""Figure of a comparison of corpora: layers by corpus, which heads differ, and where from."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from esscher.report.exponents import plain_logarithmic

#: Okabe and Ito's palette; from the ninth corpus on colours repeat with another marker.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A500",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P")
PARTS = {
    "head": "#0072B2",
    "head x corpus": "#E69F00",
    "corpus": "#D55E00",
    "block": "#999999",
    "rest": "#DDDDDD",
}
#: Statistics over layers in the order in which they are drawn, and how many of them.
ORDER = (
    "tokens", "ess", "khat", "exponent", "sinks", "horizon", "frobenius", "tau", "delimiters",
)  # fmt: skip
PANELS = 6


def draw_domains(results: dict[str, Any]) -> Figure:
    """Draw a comparison from its results.

    Above: every statistic over the layers, a dot with its interval per corpus. Below: the share of
    a head's variance over blocks that is between corpora, for the tokens it needs (a cross where
    the corpora do not differ beyond chance), and where the variance of every statistic comes from.
    """
    names = list(results.get("statistics", {}))
    # what is a constant of most heads (sinks, often) says little about layers
    shown = [name for name in ORDER if results.get("variance", {}).get(name)][:PANELS]
    shown = shown or names[:PANELS]
    rows = max(1, (len(shown) + 2) // 3)
    figure = Figure(figsize=(12.0, 3.0 * rows + 4.2), layout="constrained", dpi=150)
    if not shown:
        figure.text(0.5, 0.5, results["headline"], ha="center", fontsize=9)
        return figure
    halves: Any = figure.subfigures(2, 1, height_ratios=[3.0 * rows, 4.2])
    top, bottom = halves
    panels = np.atleast_1d(top.subplots(rows, 3, squeeze=False)).ravel()
    for axis, name in zip(panels, shown, strict=False):
        _layers(axis, results, name)
    for axis in panels[len(shown) :]:
        axis.axis("off")
    handles, labels = panels[0].get_legend_handles_labels()
    top.legend(
        handles, labels, loc="outside lower center", ncols=min(len(labels), 8), fontsize=8,
        frameon=False,
    )  # fmt: skip
    left, middle, right = bottom.subplots(1, 3, width_ratios=[1.0, 1.0, 1.1])
    _heatmap(bottom, left, results, "tokens")
    second = next((name for name in ("khat", "ess") if name in names), names[0])
    _heatmap(bottom, middle, results, second)
    _variance(right, results)
    configuration = results["configuration"]
    figure.suptitle(
        f"{configuration['model']['name']}, {configuration['mode']} mode: "
        f"{len(results['corpora'])} corpora, {results['blocks']} blocks of "
        f"{configuration['block_tokens']:,} tokens each",
        fontsize=10,
    )
    return figure


def _layers(axis: Any, results: dict[str, Any], name: str) -> None:
    about, by_corpus = results["statistics"][name], results["layers"][name]
    count = len(by_corpus)
    for c, (corpus, rows) in enumerate(by_corpus.items()):
        known = [row for row in rows if row["value"] is not None]
        # beside each other, so that intervals do not hide each other
        at = np.array([row["layer"] for row in known]) + 0.7 * ((c + 0.5) / count - 0.5)
        value, low, high = (
            np.array([row[key] for row in known]) for key in ("value", "low", "high")
        )
        axis.errorbar(
            at,
            value,
            yerr=np.array([value - low, high - value]),
            fmt=MARKERS[c // len(COLOURS) % len(MARKERS)],
            color=COLOURS[c % len(COLOURS)],
            markersize=2.5,
            linewidth=0.8,
            label=corpus,
        )
    if about["scale"] == "ratio":
        plain_logarithmic(axis, "y")
    layers = sorted({row["layer"] for rows in by_corpus.values() for row in rows})
    axis.set_xticks(layers[:: max(1, len(layers) // 10)])
    axis.tick_params(labelsize=7)
    axis.set_xlabel("layer", fontsize=8)
    axis.set_title(f"{about['title']}, mean over heads", fontsize=8.5)
    axis.grid(alpha=0.25)


def _heatmap(figure: Any, axis: Any, results: dict[str, Any], name: str) -> None:
    units = results["units"]
    layers, heads = (sorted({unit[i] for unit in units}) for i in (0, 1))
    test = results["tests"][name]["omnibus"]
    grid = np.full((len(layers), len(heads)), np.nan)
    for (layer, head), share, p in zip(units, test["share"], test["adjusted"], strict=True):
        i, j = layers.index(layer), heads.index(head)
        grid[i, j] = np.nan if share is None else share
        if p is None or p > results["alpha"]:
            size = 7 if len(layers) <= 12 else 4
            axis.text(j, i, "x", ha="center", va="center", fontsize=size, color="black")
    image = axis.imshow(grid, cmap="YlGnBu", vmin=0, vmax=1, aspect="auto", origin="lower")
    bar = figure.colorbar(image, ax=axis, shrink=0.9)
    bar.ax.tick_params(labelsize=7)
    step = max(1, len(layers) // 12)
    axis.set_yticks(range(0, len(layers), step), [str(layer) for layer in layers[::step]])
    axis.set_xticks(range(len(heads)), [str(head) for head in heads])
    axis.tick_params(labelsize=7)
    axis.set_xlabel("head", fontsize=8)
    axis.set_ylabel("layer", fontsize=8)
    axis.set_title(
        f"{results['statistics'][name]['title']}:\nvariance between corpora (x: none found)",
        fontsize=8.5,
    )


def _variance(axis: Any, results: dict[str, Any]) -> None:
    rows = {name: found for name, found in results["variance"].items() if found is not None}
    at = np.arange(len(rows))[::-1]
    start = np.zeros(len(rows))
    for part, colour in PARTS.items():
        share = np.array([found["shares"][part] for found in rows.values()])
        axis.barh(at, share, left=start, color=colour, label=part, height=0.7)
        start += share
    axis.set_yticks(at, [results["statistics"][name]["title"] for name in rows], fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_xlim(0, 1)
    axis.set_title("Where the variance comes from", fontsize=8.5)
    axis.legend(
        fontsize=7, frameon=False, ncols=len(PARTS), loc="upper center", handlelength=1.0,
        columnspacing=1.0, bbox_to_anchor=(0.4, -0.08),
    )  # fmt: skip
