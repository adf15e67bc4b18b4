"""Error curves and fitted exponents against the horizon, in the layout of the published study."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from esscher.math.theory import exponents
from esscher.math.theory.sharp_exponents import bounded_exponents
from esscher.show.style import (
    BLACK,
    BLUE,
    DOUBLE,
    GREEN,
    GREY,
    GUIDE,
    METRIC_NAMES,
    NOTE,
    VERMILION,
    columns,
    error_bars,
    finish,
    legend_below,
    logarithmic,
    new_figure,
    panels,
    shades,
    styled,
)
from esscher.studies.sweep import Sweep

NAMES = METRIC_NAMES
MEASURED, PREDICTED, SHARP, PUBLISHED = BLUE, VERMILION, GREEN, GREY
plain_logarithmic = logarithmic
#: Fields of the asymptotic exponents that belong to the metrics.
_SHARP = {"mean": "mean", "cov": "cov", "map": "map_rms"}
#: Horizons that a legend lists.
LISTED = 12
AXES = {"H": "horizon H", "alpha_squared": r"$\alpha^2$"}


@styled
def draw_study(
    curve: Sweep,
    table: pd.DataFrame,
    title: str,
    *,
    bounded: bool = False,
    asymptotic: bool = True,
    xlabel: str = "H",
    width: float = DOUBLE,
) -> Figure:
    """Draw errors against n (above) and exponents against the horizon (below), per metric.

    Parameters
    ----------
    curve
        The sweep.
    table
        Its fitted exponents, one row per scale and metric, with columns ``H``, ``metric``,
        ``exponent``, ``low``, ``high``, ``predicted``, ``trusted`` and the column that ``xlabel``
        names.
    title
        Above everything.
    bounded
        Whether tokens are bounded, so that the asymptotic exponents are all 1/2.
    asymptotic
        Whether there are asymptotic exponents to compare with.
    xlabel
        Column of the table on the axis of the exponents.
    width
        Of the figure, in inches.
    """
    metrics = [metric for metric in NAMES if (table["metric"] == metric).any()]
    across = columns(width, len(metrics), 1.9)
    rows = -(-len(metrics) // across)
    figure = new_figure(width, 1.0 + 4.6 * rows, title)
    axes = panels(figure, 2 * rows * across, across)
    upper, lower = axes[: rows * across], axes[rows * across :]
    for unused in (*upper[len(metrics) :], *lower[len(metrics) :]):
        unused.set_axis_off()
    for i, (above, below, metric) in enumerate(zip(upper, lower, metrics, strict=False)):
        draw_errors(above, curve, metric)
        above.set_ylabel("error" if i % across == 0 else "")
        rows_of = table[table["metric"] == metric]
        draw_exponents(below, rows_of, metric, bounded=bounded, asymptotic=asymptotic, x=xlabel)
        below.set_ylabel(r"exponent $\beta$" if i % across == 0 else "")
    _list_horizons(upper[min(across, len(metrics)) - 1])
    figure.align_ylabels()
    legend_below(figure, lower[0].get_legend_handles_labels(), width, most=3)
    return figure


def _list_horizons(axis: Any) -> None:
    """Horizons by colour, beside the first row."""
    handles, labels = axis.get_legend_handles_labels()
    at = np.unique(np.linspace(0, len(labels) - 1, min(LISTED, len(labels))).round().astype(int))
    axis.legend(
        [handles[i] for i in at[::-1]], [labels[i] for i in at[::-1]], title="H", fontsize=NOTE,
        loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.0,
    )  # fmt: skip


def draw_errors(axis: Any, curve: Sweep, metric: str) -> None:
    """Errors against n with two standard errors, one colour per horizon; dashed: predicted."""
    mean, noise = curve.mean(metric), curve.standard_error(metric)
    colours = shades(len(curve.alphas))
    for s, horizon in enumerate(curve.horizons):
        spread = np.minimum(2 * np.nan_to_num(noise[s]), 0.9 * mean[s])
        error_bars(
            axis, curve.sizes, mean[s], [mean[s] - spread, mean[s] + spread], color=colours[s],
            markersize=2.4, linestyle="-", linewidth=0.9, capsize=0, label=f"{horizon:.3g}",
        )  # fmt: skip
        if curve.predictions and metric in curve.predictions[s].errors:
            predicted = curve.predictions[s].errors[metric]
            axis.plot(curve.sizes, predicted, "--", color=colours[s], linewidth=GUIDE)
    logarithmic(axis, "x")
    logarithmic(axis, "y")
    finish(axis, "tokens n", "error", NAMES[metric])


def draw_exponents(
    axis: Any,
    rows: pd.DataFrame,
    metric: str,
    *,
    bounded: bool = False,
    asymptotic: bool = True,
    x: str = "H",
) -> None:
    """Measured exponents with intervals, predicted on the same range, asymptotic, published."""
    rows = rows.sort_values(x)
    at, horizon = rows[x].to_numpy(), rows["H"].to_numpy()
    value = rows["exponent"].to_numpy(dtype=float)
    ends = rows[["low", "high"]].to_numpy(dtype=float).T
    trusted = rows["trusted"].to_numpy(dtype=bool)
    for chosen, words in (
        (trusted, "measured, 95% interval"),
        (~trusted, "measured, not to be trusted"),
    ):
        if chosen.any():
            error_bars(
                axis, at[chosen], value[chosen], ends[:, chosen], hollow=~trusted[chosen],
                color=MEASURED, label=words,
            )  # fmt: skip
    if np.isfinite(rows["predicted"]).any():
        axis.plot(
            at, rows["predicted"], "x--", color=PREDICTED, markersize=4, linewidth=GUIDE,
            label="predicted on the same range",
        )  # fmt: skip
    if asymptotic:
        _draw_asymptotic(axis, at, horizon, metric, bounded)
    logarithmic(axis, "x")
    axis.axhline(0.0, color=BLACK, linewidth=0.5)
    # a prediction may be anything before the burn-in; it shall not press the rest together
    highest = [0.62, np.nanmax(ends), *np.minimum(rows["predicted"].dropna(), 1.0)]
    axis.set_ylim(min(-0.05, np.nanmin(ends) - 0.02), max(highest) + 0.03)
    finish(axis, AXES.get(x, x), r"exponent $\beta$", "")


def _draw_asymptotic(axis: Any, at: Any, horizon: Any, metric: str, bounded: bool) -> None:
    """Lines between the horizons that were measured, or short marks at few of them."""
    fine_x, fine_h = at, horizon
    if len(at) > 1 and at.min() > 0:
        fine_x = np.geomspace(at.min(), at.max(), 200)
        fine_h = np.exp(np.interp(np.log(fine_x), np.log(at), np.log(np.maximum(horizon, 1e-12))))
    found = [bounded_exponents(h) if bounded else exponents(h) for h in fine_h]
    lines = (
        ([getattr(each, _SHARP[metric]) for each in found], SHARP, "-", "asymptotic, sharp"),
        ([each.paper_reference for each in found], PUBLISHED, "-.", "published reference"),
        ([each.paper_bound for each in found], PUBLISHED, ":", "published bound"),
    )
    for values, colour, style, words in lines:
        if len(fine_x) == 1:  # no line through one point
            axis.axhline(values[0], color=colour, linestyle=style, linewidth=GUIDE, label=words)
            continue
        axis.plot(fine_x, values, color=colour, linestyle=style, linewidth=GUIDE, label=words)
