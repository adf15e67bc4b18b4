"""``ball``: the supremum of the map error over a ball of tilts, beside its bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure

from esscher.math.laws import Sphere
from esscher.math.theory import ball_bound, measured_supremum
from esscher.studies.reproduce.cells import compute_all
from esscher.studies.reproduce.finding import Finding, markdown_table
from esscher.studies.reproduce.study import Settings, geometric

DIM = 3


def run(settings: Settings) -> Finding:
    """Measure the supremum for growing radii and set the bound beside it."""
    radii, sizes, replicates = {
        "quick": ((1.0, 4.0, 16.0), geometric(100, 3_000, 4), 6),
        "standard": ((0.5, 1.0, 2.0, 4.0, 8.0, 16.0), geometric(100, 10_000, 6), 20),
        "paper": ((0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0), geometric(100, 100_000, 8), 40),
    }[settings.scale]
    keys: list[dict[str, Any]] = [
        {"d": DIM, "T": radius, "n": n, "replicates": replicates, "seed": settings.seed}
        for radius in radii
        for n in sizes
    ]
    rows = []
    measured = compute_all(settings.folder, "ball", keys, _measure, settings.executor)
    for key, found in zip(keys, measured, strict=True):
        bound = ball_bound(1.0, key["T"], mean_norm=0.0)
        rows.append(
            {
                "T": key["T"],
                "n": key["n"],
                "measured": found["value"],
                "standard_error": found["standard_error"],
                "bound": float(bound.at(key["n"])),
                "trivial": 2.0,
                "log10_n_useful": bound.log10_first_useful_n,
            }
        )
    table = pd.DataFrame(rows)
    return Finding(
        "ball",
        "Uniform convergence on a ball, and where its bound stops saying anything",
        _describe(table),
        {"ball": table},
        {"ball": _draw(table)},
    )


def _measure(key: dict[str, Any]) -> dict[str, Any]:
    found = measured_supremum(
        Sphere(key["d"], 1.0), key["T"], [key["n"]], key["replicates"], key["seed"]
    )
    return {"value": float(found.value[0]), "standard_error": float(found.standard_error[0])}


def _describe(table: pd.DataFrame) -> str:
    rows = []
    for radius, part in table.groupby("T"):
        x, y = np.log(part["n"]), np.log(part["measured"])
        x = x - x.mean()
        largest = part.iloc[-1]
        rows.append(
            {
                "radius T": radius,
                "measured exponent": float(-(x @ y) / (x @ x)),
                "measured at largest n": float(largest["measured"]),
                "bound there": f"{largest['bound']:.3g}",
                "bound / measured": f"{largest['bound'] / largest['measured']:.3g}",
                "bound below 1 from n": f"10^{largest['log10_n_useful']:.1f}",
            }
        )
    most = table["n"].max()
    last = table[table["n"] == most]
    silent = last[last["bound"] >= 1.0]["T"]
    where = f"At n = {most:g} the bound " + (
        "still says something at every radius shown."
        if silent.empty
        else f"says nothing from radius {silent.min():g} on (it exceeds the norm of the tokens)."
    )
    return "\n".join(
        [
            f"Tokens uniform on the unit sphere of R^{DIM}; supremum over |t| <= T of the error of "
            "the map, averaged over samples (a search from below, so a lower estimate), beside "
            "C(T)/sqrt(n). The measured supremum falls like 1/sqrt(n) with a constant that grows "
            "slowly; the bound's constant grows like e^T. " + where,
            "",
            markdown_table(pd.DataFrame(rows)),
        ]
    )


def _draw(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(8.6, 3.9), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2)
    radii = sorted(table["T"].unique())
    shades = colormaps["viridis"](np.linspace(0, 0.9, len(radii)))
    for radius, shade in zip(radii, shades, strict=True):
        part = table[table["T"] == radius]
        left.errorbar(
            part["n"], part["measured"], yerr=2 * part["standard_error"], color=shade,
            marker="o", markersize=3, linewidth=1, label=f"T = {radius:g}",
        )  # fmt: skip
        left.plot(part["n"], part["bound"], ":", color=shade, linewidth=1)
    left.axhline(1.0, color="black", linewidth=0.7)
    left.annotate("size of the tokens: the bound says nothing above", (0.02, 1.0),
                  xycoords=("axes fraction", "data"), textcoords="offset points", xytext=(0, 3),
                  fontsize=6.5)  # fmt: skip
    left.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="sup of the map error")
    left.set_ylim(table["measured"].min() / 2, 1e4)
    left.legend(fontsize=7, frameon=False, ncols=2)
    left.set_title("measured (points) and bound (dotted)", fontsize=9)
    most = table["n"].max()
    part = table[table["n"] == most]
    right.errorbar(
        part["T"], part["measured"], yerr=2 * part["standard_error"], color="#0072B2", marker="o",
        markersize=4, label="measured",
    )  # fmt: skip
    right.plot(part["T"], part["bound"], ":", color="#D55E00", label="bound")
    right.axhline(1.0, color="black", linewidth=0.7)
    right.set(xscale="log", yscale="log", xlabel="radius T of the ball")
    right.set_title(f"at n = {most:g}", fontsize=9)
    right.legend(fontsize=7, frameon=False)
    for axis in (left, right):
        axis.grid(alpha=0.25)
    figure.suptitle(f"Uniform convergence on a ball of tilts, unit sphere of R^{DIM}", fontsize=10)
    return figure
