"""``hardmax``: tilts so large that each query attends one key, up to a trillion tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from esscher.math.simulation import hardmax_curve
from esscher.show.chart import figure, lines, panel, points
from esscher.show.drawing import Plot
from esscher.show.scales import Axis, Series
from esscher.show.theme import BLUE, GREEN, LINE, VERMILION, limits
from esscher.studies.reproduce.cells import compute_all
from esscher.studies.reproduce.finding import Finding, markdown_table
from esscher.studies.reproduce.study import Settings

DIMENSIONS = (1, 2, 3, 5, 10)
#: Powers that are compared.
FITTED, EXACT, CONJECTURE = "fitted, 95% interval", "exact, same sizes", "1/2 + (d-1)/4"


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
    frame = curve.table()
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


def _draw(table: pd.DataFrame, fits: pd.DataFrame) -> Plot:
    simulated: list[dict[str, Any]] = []
    drawn: list[dict[str, Any]] = []
    for row in table.to_dict("records"):
        at = {"d": f"{row['d']}", "n": row["n"]}
        value, error = row["simulated"], row["standard_error"]
        simulated.append(at | {"error": value, "low": value - 2 * error, "high": value + 2 * error})
        drawn += [at | {"line": line, "error": row[line]} for line in ("exact", "leading")]
    n = Axis("n", "tokens n", log=True, limits=limits(table["n"], log=True))
    ends = limits([row["error"] for row in (*simulated, *drawn)], log=True)
    error = Axis("error", "error of the mean output", log=True, limits=ends)
    dims = Series("d", [f"{d}" for d in fits["d"]], "dimension d", ordered=True)
    kinds = Series("line", ("exact", "leading"), dashes=((1, 0), (1, 2)))
    left = panel(
        lines(drawn, n, error, dims, dashes=kinds),
        points(simulated, n, error, dims),
        title="simulated (points)",
    )
    fitted = [
        {"kind": FITTED, "d": row["d"], "power": row["exponent"], "low": row["low"],
         "high": row["high"]}
        for row in fits.to_dict("records")
    ]  # fmt: skip
    known = [
        {"kind": kind, "d": row["d"], "power": row[column]}
        for row in fits.to_dict("records")
        for kind, column in ((EXACT, "exact_on_range"), (CONJECTURE, "asymptotic"))
    ]
    d = Axis("d", "dimension d", whole=True, limits=limits(fits["d"]))
    ends = limits([row[key] for row in (*fitted, *known) for key in ("power", "low", "high")
                   if key in row])  # fmt: skip
    power = Axis("power", "power of 1/ln n", limits=ends)
    series = Series("kind", (FITTED, EXACT, CONJECTURE), colours=(BLUE, VERMILION, GREEN),
                    shapes=("circle", "cross", LINE))  # fmt: skip
    right = panel(
        lines([row for row in known if row["kind"] == CONJECTURE], d, power, series),
        points([*fitted, *(row for row in known if row["kind"] == EXACT)], d, power, series),
        title="fitted powers",
    )
    title, note = (
        "Hardmax attention over n Gaussian tokens",
        "bars: 2 standard errors; of powers, 95% intervals",
    )
    return Plot(figure([left, right], title, note=note, apart=True))
