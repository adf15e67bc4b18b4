"""``ball``: the supremum of the map error over a ball of tilts, beside its bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from esscher.math.laws import Sphere
from esscher.math.theory import ball_bound, measured_supremum
from esscher.show.chart import figure, guides, lines, panel, points
from esscher.show.drawing import Plot
from esscher.show.scales import Axis, Series
from esscher.show.theme import BLUE, LINE, VERMILION, limits
from esscher.studies.reproduce.cells import compute_all
from esscher.studies.reproduce.finding import Finding, markdown_table
from esscher.studies.reproduce.study import Settings, geometric

DIM = 3
#: Lines of what is measured and of the bound.
DASHES = ((1, 0), (1, 2))


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
            "C(T)/sqrt(n). The measured exponents are slopes of the means, without intervals; "
            "the bound's constant grows like e^T. " + where,
            "",
            markdown_table(pd.DataFrame(rows)),
        ]
    )


def _draw(table: pd.DataFrame) -> Plot:
    rows = [
        {"T": f"{row['T']:g}", "radius": row["T"], "n": row["n"], "kind": kind, "error": row[kind]}
        | ({} if kind == "bound" else _interval(row["measured"], row["standard_error"]))
        for row in table.to_dict("records")
        for kind in ("measured", "bound")
    ]  # fmt: skip
    measured = [row for row in rows if row["kind"] == "measured"]
    size: dict[str, object] = {"at": 1.0, "name": "size of the tokens"}
    lowest = min(row["low"] for row in measured)
    radii = Series("T", list(dict.fromkeys(row["T"] for row in rows)), "radius T", ordered=True)
    n = Axis("n", "tokens n", log=True, limits=limits(table["n"], log=True))
    error = Axis("error", "supremum of the map error", log=True, limits=(0.8 * lowest, 1e4))
    left = panel(
        guides([size], n, error),
        lines(rows, n, error, radii, dashes=Series("kind", ("measured", "bound"), dashes=DASHES)),
        points(measured, n, error, radii),
        title="every radius",
    )
    most = table["n"].max()
    last = [row for row in rows if row["n"] == most]
    radius = Axis("radius", "radius T of the ball", log=True, limits=limits(table["T"], log=True))
    ends = limits([row["error"] for row in last], log=True)
    error = Axis("error", "supremum of the map error", log=True, limits=ends)
    kinds = Series("kind", ("measured", "bound"), colours=(BLUE, VERMILION),
                   shapes=("circle", LINE), dashes=DASHES)  # fmt: skip
    right = panel(
        guides([size], radius, error),
        lines(last, radius, error, kinds),
        points([row for row in last if row["kind"] == "measured"], radius, error, kinds),
        title=f"at n = {most:,}",
    )
    title = f"Uniform convergence on a ball of tilts, unit sphere of R^{DIM}"
    note = "bars: 2 standard errors; above the size of the tokens the bound says nothing"
    return Plot(figure([left, right], title, note=note, apart=True))


def _interval(value: float, error: float) -> dict[str, float]:
    return {"low": value - 2 * error, "high": value + 2 * error}
