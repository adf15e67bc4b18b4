"""Errors of sparse patterns against the budget, and what became of their exponents."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from esscher.report.exponents import NAMES, plain_logarithmic

#: Colour (Okabe and Ito's palette), marker and line of each pattern.
STYLES = {
    "random": ("#000000", "o", "-"),
    "corrected": ("#0072B2", "o", "-"),
    "topk": ("#009E73", "^", "-"),
    "streaming": ("#D55E00", "s", "-"),
    "window": ("#E69F00", "s", "--"),
    "longformer": ("#E69F00", "D", ":"),
    "bigbird": ("#CC79A7", "D", "-"),
    "strided": ("#56B4E9", "v", "-"),
    "block": ("#56B4E9", "P", "--"),
    "pooled": ("#777777", "X", "-"),
    "linformer": ("#777777", "x", "--"),
}
#: For a pattern that is not in the list.
OTHER = ("#999999", ".", "-")
#: Curves that lie above all others by more than this factor leave the figure.
HEADROOM = 2.0


def draw_sparsity(results: dict[str, Any], title: str) -> Figure:
    """Draw relative errors against the budget for the three metrics, and exponents with intervals.

    Parameters
    ----------
    results
        Results of a study, as ``Sparsity.to_dict`` returns them.
    title
        Above everything.
    """
    figure = Figure(figsize=(11.0, 8.0), layout="constrained", dpi=150)
    panels = figure.subplots(2, 2).ravel()
    for axis, metric in zip(panels, ("map", "mean", "cov"), strict=False):
        _draw_curves(axis, results, metric)
    _draw_exponents(panels[3], results)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    return figure


def _draw_curves(axis: Any, results: dict[str, Any], metric: str) -> None:
    budgets = np.asarray(results["budgets"], dtype=np.float64)
    for name, entry in results["patterns"].items():
        colour, marker, line = STYLES.get(name, OTHER)
        curve = entry["curve"]["dense"][metric]
        mean = np.asarray(curve["mean"])
        noise = curve["standard_error"]
        bars = None if noise is None else np.minimum(2 * np.asarray(noise), 0.9 * mean)
        axis.errorbar(
            budgets,
            mean,
            yerr=bars,
            color=colour,
            marker=marker,
            linestyle=line,
            markersize=4,
            linewidth=2 if name == "random" else 1,
            label=name,
        )
    if metric == "map":
        axis.axhline(0.1, color="grey", linewidth=0.8, linestyle=":")
        axis.annotate(
            "10%", (0.005, 0.1), xycoords=axis.get_yaxis_transform(), fontsize=7, color="grey",
            textcoords="offset points", xytext=(0, 2),
        )  # fmt: skip
    _limit(axis, {name: e["curve"]["dense"][metric] for name, e in results["patterns"].items()})
    plain_logarithmic(axis, "x")
    plain_logarithmic(axis, "y")
    axis.set_xlabel("keys r that a query attends", fontsize=9)
    axis.set_ylabel("relative error against dense", fontsize=9)
    axis.set_title(f"{NAMES[metric]} (bars: 2 standard errors)", fontsize=9)
    axis.grid(alpha=0.25)


def _limit(axis: Any, curves: dict[str, Any]) -> None:
    """Let a curve that is far above all others leave the figure: it would press them together."""
    tops = {name: max(curve["mean"]) for name, curve in curves.items()}
    highest, *others = sorted(tops, key=lambda name: -tops[name])
    if not others or tops[highest] <= HEADROOM * tops[others[0]]:
        return
    lowest = min(min(curve["mean"]) for curve in curves.values())
    axis.set_yscale("log")
    axis.set_ylim(0.7 * lowest, HEADROOM * tops[others[0]])
    axis.annotate(
        f"{highest} begins above, at {tops[highest]:.3g}", (0.98, 0.95), xycoords="axes fraction",
        fontsize=7, color="grey", ha="right",
    )  # fmt: skip


def _draw_exponents(axis: Any, results: dict[str, Any]) -> None:
    """Exponents of the three metrics, one row per pattern; the verdict stands beside it."""
    names = list(results["patterns"])
    markers = {"map": ("o", "#0072B2"), "mean": ("s", "#D55E00"), "cov": ("^", "#009E73")}
    for i, name in enumerate(names):
        entry = results["patterns"][name]
        for offset, (metric, (marker, colour)) in zip(
            (-0.22, 0.0, 0.22), markers.items(), strict=True
        ):
            fit = entry["fit"][metric]
            low, high = fit["interval"]
            known = low is not None and high is not None
            bars = [[fit["exponent"] - low], [high - fit["exponent"]]] if known else None
            filled = fit["trusted"] and fit["law"] == "power"
            axis.errorbar(
                [fit["exponent"]],
                [i + offset],
                xerr=bars,
                marker=marker,
                color=colour,
                markerfacecolor=colour if filled else "white",
                markersize=4.5,
                capsize=2,
                linestyle="none",
                label=NAMES[metric] if i == 0 else None,
            )
        axis.annotate(
            entry["verdict"], (1.01, i), xycoords=axis.get_yaxis_transform(), fontsize=7,
            va="center", annotation_clip=False,
        )  # fmt: skip
    axis.axvline(0.0, color="black", linewidth=0.6)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.tick_params(labelsize=8)
    axis.set_xlabel(
        "exponent, 95% interval (hollow: not to be trusted, or no power law)", fontsize=9
    )
    axis.set_title("Exponents, and the verdict on the map", fontsize=9)
    axis.legend(fontsize=7, frameon=False)
    axis.grid(alpha=0.25, axis="x")
