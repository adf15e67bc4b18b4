"""Errors of sparse patterns against the budget, and what became of their exponents."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from esscher.show.style import (
    BLACK,
    BLUE,
    DOUBLE,
    GREEN,
    GREY,
    GUIDE,
    METRIC_COLOURS,
    METRIC_MARKERS,
    METRIC_NAMES,
    NOTE,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    columns,
    error_bars,
    finish,
    legend_below,
    logarithmic,
    new_figure,
    panels,
    styled,
)
from esscher.show.titles import title_of

#: Colour, marker and line of each pattern.
STYLES = {
    "random": (BLACK, "o", "-"),
    "corrected": (BLUE, "o", "-"),
    "topk": (GREEN, "^", "-"),
    "streaming": (VERMILION, "s", "-"),
    "window": (ORANGE, "s", "--"),
    "longformer": (ORANGE, "D", ":"),
    "bigbird": (PURPLE, "D", "-"),
    "strided": (SKY, "v", "-"),
    "block": (SKY, "P", "--"),
    "pooled": (GREY, "X", "-"),
    "linformer": (GREY, "x", "--"),
}
#: For a pattern that is not in the list.
OTHER = (PALE, ".", "-")
METRICS = ("map", "mean", "cov")
#: Curves that lie above all others by more than this factor leave the figure.
HEADROOM = 2.0


@styled
def draw_sparsity(
    results: dict[str, Any], title: str | None = None, *, width: float = DOUBLE
) -> Figure:
    """Draw relative errors against the budget for the three metrics, and exponents with intervals.

    Parameters
    ----------
    results
        Results of a study, as ``Sparse.to_dict`` returns them.
    title
        Above everything; None: what was measured; empty: none.
    width
        Of the figure, in inches.
    """
    across = columns(width, 3, 1.9)
    heights = (0.6 + 2.5 * -(-3 // across), 0.6 + 0.22 * len(results["patterns"]))
    figure = new_figure(width, 0.25 + sum(heights), title_of(results, title))
    parts: Any = figure.subfigures(2, 1, height_ratios=heights)
    _draw_panels(parts[0], results, width, "dense")
    _draw_exponents(parts[1].subplots(), results)
    return figure


@styled
def draw_pattern_curves(
    results: dict[str, Any],
    title: str | None = None,
    *,
    width: float = DOUBLE,
    reference: str = "dense",
) -> Figure:
    """Draw relative errors against the budget, a panel per metric."""
    across = columns(width, 3, 1.9)
    figure = new_figure(width, 0.9 + 2.5 * -(-3 // across), title_of(results, title))
    _draw_panels(figure, results, width, reference)
    return figure


def _draw_panels(figure: Any, results: dict[str, Any], width: float, reference: str) -> None:
    across = columns(width, 3, 1.9)
    axes = panels(figure, 3, across)
    for i, (axis, metric) in enumerate(zip(axes, METRICS, strict=True)):
        _draw_curves(axis, results, metric, reference)
        axis.set_ylabel(axis.get_ylabel() if i % across == 0 else "")
    legend_below(figure, axes[0].get_legend_handles_labels(), width)


def draw_limit_curves(
    results: dict[str, Any], title: str | None = None, *, width: float = DOUBLE
) -> Figure:
    """The same against the infinite-token limit, below which no pattern can fall for ever."""
    return draw_pattern_curves(results, title, width=width, reference="limit")


@styled
def draw_pattern_exponents(
    results: dict[str, Any], title: str | None = None, *, width: float = DOUBLE
) -> Figure:
    """Draw the exponents of every pattern with 95% intervals, and the verdict on the map."""
    height = 0.9 + 0.24 * len(results["patterns"])
    figure = new_figure(width, height, title_of(results, title))
    _draw_exponents(figure.subplots(), results)
    return figure


def _draw_curves(axis: Any, results: dict[str, Any], metric: str, reference: str = "dense") -> None:
    budgets = np.asarray(results["budgets"], dtype=np.float64)
    curves = {name: e["curve"][reference][metric] for name, e in results["patterns"].items()}
    for name, curve in curves.items():
        colour, marker, line = STYLES.get(name, OTHER)
        mean = np.asarray(curve["mean"])
        noise = curve["standard_error"]
        spread = None if noise is None else np.minimum(2 * np.asarray(noise), 0.9 * mean)
        error_bars(
            axis, budgets, mean, None if spread is None else [mean - spread, mean + spread],
            color=colour, marker=marker, linestyle=line, capsize=0,
            linewidth=1.6 if name == "random" else 0.9, label=name,
        )  # fmt: skip
    floor = None if reference == "dense" else (results["dense_against_limit"] or {}).get(metric)
    if floor is not None:
        axis.axhline(floor, color=GREY, linewidth=GUIDE, linestyle="--")
        axis.annotate(
            "dense", (0.01, floor), xycoords=axis.get_yaxis_transform(), fontsize=NOTE, color=GREY,
            textcoords="offset points", xytext=(0, -2), va="top",
        )  # fmt: skip
    above = _limit(axis, curves)
    logarithmic(axis, "x")
    logarithmic(axis, "y")
    low, high = axis.get_ylim()
    if metric == "map" and low < 0.1 < high:
        axis.axhline(0.1, color=GREY, linewidth=GUIDE, linestyle=":")
        axis.annotate(
            "10%", (0.01, 0.1), xycoords=axis.get_yaxis_transform(), fontsize=NOTE, color=GREY,
            textcoords="offset points", xytext=(0, -2), va="top",
        )  # fmt: skip
    against = "" if reference == "dense" else ", against the limit"
    finish(
        axis, "keys r that a query attends", "relative error (bars: 2 s.e.)",
        f"{METRIC_NAMES[metric]}{against}{above}",
    )  # fmt: skip


def _limit(axis: Any, curves: dict[str, Any]) -> str:
    """Let a curve that is far above all others leave the figure: it would press them together.

    Returns what the title says about it.
    """
    tops = {name: max(curve["mean"]) for name, curve in curves.items()}
    highest, *others = sorted(tops, key=lambda name: -tops[name])
    if not others or tops[highest] <= HEADROOM * tops[others[0]]:
        return ""
    lowest = min(min(curve["mean"]) for curve in curves.values())
    axis.set_yscale("log")
    axis.set_ylim(0.7 * lowest, HEADROOM * tops[others[0]])
    return f"\n({highest} begins at {tops[highest]:.3g})"


def _draw_exponents(axis: Any, results: dict[str, Any]) -> None:
    """Exponents of the three metrics, one row per pattern; the verdict stands beside it."""
    names = list(results["patterns"])
    for offset, metric in zip((-0.24, 0.0, 0.24), METRICS, strict=True):
        fits = [results["patterns"][name]["fit"][metric] for name in names]
        ends = np.array([fit["interval"] for fit in fits], dtype=np.float64).T
        hollow = [not (fit["trusted"] and fit["law"] == "power") for fit in fits]
        error_bars(
            axis, [fit["exponent"] for fit in fits], np.arange(len(names)) + offset, ends,
            hollow=hollow, horizontal=True, color=METRIC_COLOURS[metric],
            marker=METRIC_MARKERS[metric], capsize=0, markersize=2.8, label=METRIC_NAMES[metric],
        )  # fmt: skip
    for i, name in enumerate(names):
        axis.annotate(
            results["patterns"][name]["verdict"], (1.01, i), xycoords=axis.get_yaxis_transform(),
            fontsize=NOTE, va="center", annotation_clip=False,
        )  # fmt: skip
    axis.axvline(0.0, color=BLACK, linewidth=0.5)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    finish(axis, "exponent (hollow: not trusted)", "", "", grid="x")
    axis.legend(
        fontsize=NOTE, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), columnspacing=0.8,
        handletextpad=0.2,
    )  # fmt: skip
