"""``hardmax``: tilts so large that each query attends one key, up to a trillion tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure

from esscher.math.simulation import hardmax_curve
from esscher.studies.reproduce.cells import compute_all
from esscher.studies.reproduce.finding import Finding, markdown_table
from esscher.studies.reproduce.study import Settings

DIMENSIONS = (1, 2, 3, 5, 10)


def run(settings: Settings) -> Finding:
    """Simulate, compare with exact and leading terms, and fit the power of the logarithm."""
    top, count, line, others = {
        "quick": (1e6, 4, 20_000, 30),
        "standard": (1e12, 7, 100_000, 200),
        "paper": (1e12, 10, 400_000, 1_000),
    }[settings.scale]
    sizes = [float(n) for n in np.geomspace(1e3, top, count).round()]
    keys: list[dict[str, Any]] = []
    for d in DIMENSIONS:
        # the more dimensions, the smaller the mean and the larger its relative noise
        replicates = line if d == 1 else others * (2 if d >= 10 else 1)
        keys.append({"d": d, "sizes": sizes, "replicates": replicates, "seed": settings.seed})
    curves, fits = [], []
    measured = compute_all(settings.folder, "hardmax", keys, _measure, settings.executor)
    for key, found in zip(keys, measured, strict=True):
        curves.append(pd.DataFrame({"d": key["d"]} | found["curve"]))
        fits.append({"d": key["d"]} | found["fit"])
    table, fitted = pd.concat(curves, ignore_index=True), pd.DataFrame(fits)
    return Finding(
        "hardmax",
        "Hardmax: the mean output decays like a power of the logarithm",
        _describe(table, fitted),
        {"hardmax": table, "hardmax-fits": fitted},
        {"hardmax": _draw(table, fitted)},
    )


def _measure(key: dict[str, Any]) -> dict[str, Any]:
    curve = hardmax_curve(
        key["sizes"], dim=key["d"], replicates=key["replicates"], seed=key["seed"]
    )
    fit = curve.fit(seed=key["seed"])
    frame = curve.to_frame()
    frame["statistic"] = curve.statistic
    return {
        "curve": {name: frame[name].tolist() for name in frame.columns},
        "fit": {
            "exponent": fit.exponent,
            "low": fit.low,
            "high": fit.high,
            "exact_on_range": fit.predicted,
            "asymptotic": fit.asymptotic,
        },
    }


def _describe(table: pd.DataFrame, fits: pd.DataFrame) -> str:
    line = table[table["d"] == 1]
    z = ((line["simulated"] - line["exact"]) / line["standard_error"]).abs().max()
    last = line.iloc[-1]
    inside = (fits["low"] <= fits["exact_on_range"]) & (fits["exact_on_range"] <= fits["high"])
    return "\n".join(
        [
            f"d = 1: the simulation is within {z:.1f} standard errors of the exact expectation at "
            f"every size up to n = {last['n']:.0e}; the leading term ln(4)/(2 sqrt(2 ln n)) is "
            f"still {100 * (last['leading'] / last['exact'] - 1):+.1f}% off there.",
            "",
            "d > 1: sqrt(E|mean|^2) against the conjecture (ln n)^(-1/2-(d-1)/4). The power fitted "
            f"on these sizes agrees with that of the exact values on the same sizes in "
            f"{int(inside.sum())} of {len(fits)} dimensions; both lie "
            "away from the asymptotic power, because the correction is of order ln ln n / ln n.",
            "",
            markdown_table(
                fits.rename(columns={"exponent": "fitted power", "asymptotic": "conjecture"})
            ),
        ]
    )


def _draw(table: pd.DataFrame, fits: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(8.6, 3.9), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2)
    shades = colormaps["viridis"](np.linspace(0, 0.9, len(fits)))
    for d, shade in zip(fits["d"], shades, strict=True):
        part = table[table["d"] == d]
        left.errorbar(
            part["n"], part["simulated"], yerr=2 * part["standard_error"], fmt="o", color=shade,
            markersize=3.5, label=f"d = {d}",
        )  # fmt: skip
        left.plot(part["n"], part["exact"], "-", color=shade, linewidth=1)
        left.plot(part["n"], part["leading"], ":", color=shade, linewidth=1)
    left.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="error of the mean output")
    left.set_title("simulated (points), exact (lines), leading (dotted)", fontsize=9)
    left.legend(fontsize=7, frameon=False)
    error = np.abs(fits[["low", "high"]].to_numpy().T - fits["exponent"].to_numpy())
    right.errorbar(
        fits["d"], fits["exponent"], yerr=error, fmt="o", color="#0072B2", capsize=2,
        label="fitted, 95% interval",
    )  # fmt: skip
    right.plot(fits["d"], fits["exact_on_range"], "x", color="#D55E00", label="exact, same sizes")
    right.plot(fits["d"], fits["asymptotic"], "-", color="#009E73", label="1/2 + (d-1)/4")
    right.set(xlabel="dimension d", ylabel="power of 1/ln n")
    right.legend(fontsize=7, frameon=False)
    for axis in (left, right):
        axis.grid(alpha=0.25)
    figure.suptitle("Hardmax attention over n Gaussian tokens", fontsize=10)
    return figure
