"""Error curves and fitted exponents against the horizon, in the layout of the published study."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from esscher.sweep import ErrorCurve
from esscher.theory import exponents
from esscher.theory.exponents import bounded_exponents

NAMES = {"mean": "mean output", "cov": "covariance", "map": "map (rms)"}
MEASURED, PREDICTED, SHARP, PUBLISHED = "#0072B2", "#D55E00", "#009E73", "#777777"
#: Fields of the asymptotic exponents that belong to the metrics.
_SHARP = {"mean": "mean", "cov": "cov", "map": "map_rms"}


def draw_study(
    curve: ErrorCurve, table: pd.DataFrame, title: str, *, bounded: bool = False, xlabel: str = "H"
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
    xlabel
        Column of the table on the axis of the exponents.
    """
    metrics = [metric for metric in NAMES if (table["metric"] == metric).any()]
    figure = Figure(figsize=(3.5 * len(metrics) + 1.0, 6.6), layout="constrained", dpi=150)
    panels = figure.subplots(2, len(metrics), squeeze=False)
    for column, metric in enumerate(metrics):
        draw_errors(panels[0, column], curve, metric)
        rows = table[table["metric"] == metric]
        draw_exponents(panels[1, column], rows, metric, bounded=bounded, x=xlabel)
    panels[0, 0].set_ylabel("error")
    panels[1, 0].set_ylabel(r"exponent $\beta$ of error ~ $C n^{-\beta}$")
    handles, labels = panels[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    return figure


def draw_errors(axis: Any, curve: ErrorCurve, metric: str) -> None:
    """Errors against n with two standard errors, one colour per horizon; dashed: predicted."""
    mean, noise = curve.mean(metric), curve.standard_error(metric)
    shades = colormaps["viridis"](np.linspace(0.0, 0.9, len(curve.scales)))
    for s, horizon in enumerate(curve.horizons):
        axis.errorbar(
            curve.sizes,
            mean[s],
            yerr=np.minimum(2 * np.nan_to_num(noise[s]), 0.9 * mean[s]),
            color=shades[s],
            marker="o",
            markersize=2.5,
            linewidth=1,
            label=f"{horizon:.3g}",
        )
        if curve.predictions and metric in curve.predictions[s].errors:
            axis.plot(
                curve.sizes, curve.predictions[s].errors[metric], "--", color=shades[s], linewidth=1
            )
    plain_logarithmic(axis, "x")
    plain_logarithmic(axis, "y")
    axis.set_xlabel("tokens n")
    axis.set_title(NAMES[metric], fontsize=9)
    axis.grid(alpha=0.25)
    if len(curve.scales) <= 13:
        axis.legend(title="H", fontsize=6, title_fontsize=7, ncols=2, frameon=False)


def draw_exponents(
    axis: Any, rows: pd.DataFrame, metric: str, *, bounded: bool = False, x: str = "H"
) -> None:
    """Measured exponents with intervals, predicted on the same range, asymptotic, published."""
    rows = rows.sort_values(x)
    at, horizon = rows[x].to_numpy(), rows["H"].to_numpy()
    low, high = ((rows["exponent"] - rows[side]).abs().to_numpy() for side in ("low", "high"))
    trusted = rows["trusted"].to_numpy(dtype=bool)
    for chosen, fill, words in (
        (trusted, MEASURED, "measured, 95% interval"),
        (~trusted, "white", "measured, not to be trusted"),
    ):
        if chosen.any():
            axis.errorbar(
                at[chosen],
                rows["exponent"].to_numpy()[chosen],
                yerr=np.array([low[chosen], high[chosen]]),
                fmt="o",
                color=MEASURED,
                markerfacecolor=fill,
                markersize=4.5,
                capsize=2,
                label=words,
            )
    if np.isfinite(rows["predicted"]).any():
        axis.plot(
            at, rows["predicted"], "x--", color=PREDICTED, markersize=5, linewidth=1,
            label="predicted on the same range",
        )  # fmt: skip
    if len(at) > 1 and at.min() > 0:
        fine_x = np.geomspace(at.min(), at.max(), 200)
        fine_h = np.exp(np.interp(np.log(fine_x), np.log(at), np.log(np.maximum(horizon, 1e-12))))
    else:
        fine_x, fine_h = at, horizon
    asymptotic = [bounded_exponents(h) if bounded else exponents(h) for h in fine_h]
    sharp = [getattr(found, _SHARP[metric]) for found in asymptotic]
    lines = (
        (sharp, SHARP, "-", "asymptotic, sharp"),
        ([e.paper_reference for e in asymptotic], PUBLISHED, "-.", "published reference"),
        ([e.paper_bound for e in asymptotic], PUBLISHED, ":", "published bound"),
    )
    for values, colour, style, words in lines:
        marker = "" if len(fine_x) > 2 else "_"
        axis.plot(
            fine_x, values, color=colour, linestyle=style, linewidth=1.2, marker=marker, label=words
        )
    plain_logarithmic(axis, "x")
    axis.set_xlabel({"H": "horizon H", "alpha_squared": r"$\alpha^2$"}.get(x, x))
    axis.axhline(0.0, color="black", linewidth=0.5)
    axis.set_ylim(
        min(-0.05, float(np.min(rows["low"])) - 0.02), max(0.65, float(rows["high"].max()) + 0.03)
    )
    axis.grid(alpha=0.25)


def plain_logarithmic(axis: Any, direction: str) -> None:
    """A logarithmic axis with plain numbers: few ticks, and never ``6 x 10^-1`` over ``10^0``."""
    getattr(axis, f"set_{direction}scale")("log")
    ticks = getattr(axis, f"{direction}axis")
    low, high = getattr(axis, f"get_{direction}lim")()
    subs = (1.0,) if high / low > 300 else (1.0, 3.0) if high / low > 30 else (1.0, 2.0, 5.0)
    ticks.set_major_locator(LogLocator(subs=subs))
    ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ticks.set_minor_formatter(NullFormatter())
    axis.tick_params(labelsize=8)
