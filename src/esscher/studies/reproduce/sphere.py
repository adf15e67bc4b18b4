"""``sphere``: bounded tokens, where every rate is parametric in the end, whenever that is."""

from __future__ import annotations

import numpy as np

from esscher.math.heads import weight_head
from esscher.math.laws import Sphere
from esscher.math.statistics.classes import class_counts, class_words, rate_class
from esscher.studies.reproduce.finding import Finding, markdown_table
from esscher.studies.reproduce.study import (
    COLUMNS,
    Settings,
    Study,
    geometric,
    rate_table,
    study_chart,
)

DIM = 50


def study(scale: str) -> Study:
    """The sweep of a scale: uniform on the unit sphere, A = alpha I / sqrt(d)."""
    scales, sizes, replicates = {
        "quick": (np.geomspace(10, 1e5, 3), geometric(200, 1_500, 5), 12),
        "standard": (np.geomspace(10, 1e5, 5), geometric(1_000, 10_000, 6), 32),
        "paper": (np.geomspace(10, 1e5, 9), geometric(10_000, 100_000, 8), 50),
    }[scale]
    head = weight_head(Sphere(DIM, 1.0), query=np.eye(DIM), key=np.eye(DIM))
    alphas = [float(alpha) for alpha in scales]
    return Study("sphere", f"d = {DIM}", head, sizes, alphas, replicates)


def run(settings: Settings) -> Finding:
    """Run the sweep and compare."""
    chosen = study(settings.scale)
    curve = chosen.run(settings)
    table = rate_table(chosen, curve)
    # on a sphere all tilts are equally long, and so is the effective number of tokens of a query
    table.insert(3, "tilt", table["alpha"] / np.sqrt(DIM))
    title = (
        f"Uniform on the sphere, d = {DIM}, A = alpha I / sqrt(d): n = {curve.sizes[0]:g} to "
        f"{curve.sizes[-1]:g}, {curve.replicates} replicates"
    )
    figure = study_chart(curve, title)
    rows = []
    for metric in ("mean", "cov", "map"):
        part = table[table["metric"] == metric].sort_values("alpha")
        ends = list(zip(part["low"], part["high"], strict=True))
        named = [
            f"{alpha:.3g} {rate_class(interval)}"
            for alpha, interval in zip(part["alpha"], ends, strict=True)
        ]
        last = part.iloc[-1]
        rows.append(
            f"- {metric}: {class_words(class_counts(ends))} (alpha = {', '.join(named)}); at alpha "
            f"= {last['alpha']:.3g} the exponent is {last['exponent']:.3f} [{last['low']:.3f}, "
            f"{last['high']:.3f}]."
        )
    shown = ["alpha", "tilt", "H", "metric", "exponent", "low", "high", "predicted", "sharp",
             "paper_reference", "paper_bound", "law", "trusted"]  # fmt: skip
    text = "\n".join(
        [
            "Tokens on a sphere are bounded: the asymptotic exponent is 1/2 at every scale. The "
            "number of tokens from which it shows grows exponentially with the tilt |t| = "
            "alpha/sqrt(d); once that exceeds n, attention is a hardmax and the map's error stays. "
            "`predicted` is for Gaussian tokens with the same second moments, `conjectured` the "
            "asymptotic exponent. An exponent is at 1/2 if its whole interval lies within 0.45 to "
            "0.55; all alphas share their tokens.",
            "",
            *rows,
            "",
            markdown_table(table[shown].rename(columns=COLUMNS)),
        ]
    )
    return Finding("sphere", "Uniform on the sphere", text, {"sphere": table}, {"sphere": figure})
