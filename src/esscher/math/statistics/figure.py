"""The figure of a rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from esscher.math.statistics.rate import Rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Exponents to compare with: label, colour and line style (Okabe and Ito's palette).
LINES = {
    "predicted": ("predicted on this range", "#009E73", "-."),
    "sharp": ("asymptotic", "#CC79A7", ":"),
    "paper_reference": ("published reference", "#E69F00", "--"),
    "paper_bound": ("published bound", "#999999", "--"),
}
COLOUR = "#0072B2"


def draw_rate(rate: Rate, ax: Axes | None = None) -> Axes:
    """Draw a rate; lines to compare with start at the fit's value at the smallest size."""
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(6.0, 4.4), layout="constrained")
    n, y = rate.sizes, rate.errors
    grid = np.geomspace(n[0], n[-1], 100)
    x = np.log(grid)
    line = rate.constant * grid**-rate.exponent
    for name, (label, colour, style) in LINES.items():
        beta = getattr(rate, name)
        if beta is not None:
            through = rate.fitted[0] * (grid / n[0]) ** -beta
            ax.plot(grid, through, style, color=colour, lw=1.3, label=f"{label} {beta:.3f}")
    low, high = rate.interval
    label = f"fit {rate.exponent:.3f} ({low:.3f} to {high:.3f})"
    ax.plot(grid, line, color=COLOUR, lw=1.6, label=label)
    a, cross, b = rate.covariance[0, 0], rate.covariance[0, 1], rate.covariance[1, 1]
    spread = rate.critical * np.sqrt(np.maximum(a - 2 * x * cross + x * x * b, 0.0))
    if np.all(np.isfinite(spread)):
        ax.fill_between(
            grid, line * np.exp(-spread), line * np.exp(spread), color=COLOUR, alpha=0.15, lw=0
        )
    if rate.law != "power":
        bent = rate.selection.fits[rate.law].error(grid)
        ax.plot(grid, bent, color="black", lw=1.2, ls=(0, (4, 2)), label=f"{rate.law} law")
    finite = np.isfinite(rate.lower) & np.isfinite(rate.upper) & (rate.lower > 0)
    bars = np.where(finite, np.stack([y - rate.lower, rate.upper - y]), 0.0)
    ax.errorbar(
        n,
        y,
        yerr=np.maximum(bars, 0.0),
        fmt="o",
        ms=4.5,
        color="black",
        capsize=2,
        lw=1,
        label=f"{rate.summary} of {rate.n_replicates} replicates",
    )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("tokens n")
    ax.set_ylabel(f"{rate.summary} error")
    title = f"{rate.law} law" + ("" if rate.trusted else "; exponent not to be trusted")
    ax.set_title(title, fontsize=10)
    ax.grid(alpha=0.25)
    ax.legend(fontsize=8, frameon=False)
    return ax
