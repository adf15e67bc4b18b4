"""``ablation``: the same tokens, the tilt matrix scaled by alpha; exponents against alpha^2."""

from __future__ import annotations

import numpy as np

from esscher.math.heads import gaussian_head
from esscher.math.statistics.classes import class_counts, class_words
from esscher.studies.reproduce.finding import Finding, markdown_table
from esscher.studies.reproduce.study import (
    COLUMNS,
    Settings,
    Study,
    about_the_paper,
    agreement_table,
    geometric,
    rate_table,
    study_chart,
)

#: Dimension and horizon at alpha = 1.
DIM, HORIZON = 4, 0.5


def study(scale: str) -> Study:
    """The sweep of a scale."""
    count, sizes, replicates = {
        "quick": (4, geometric(100, 1_500, 5), 24),
        "standard": (9, geometric(300, 10_000, 8), 64),
        "paper": (13, geometric(1_000, 30_000, 12), 200),
    }[scale]
    alphas = [float(alpha) for alpha in np.geomspace(0.01, 10, count)]
    head = gaussian_head(HORIZON, DIM)
    return Study("ablation", f"d = {DIM}", head, sizes, alphas, replicates)


def run(settings: Settings) -> Finding:
    """Run the sweep and compare."""
    chosen = study(settings.scale)
    curve = chosen.run(settings)
    table = rate_table(chosen, curve)
    table.insert(3, "alpha_squared", table["alpha"] ** 2)
    title = (
        f"Scaling A by alpha: Gaussian tokens, d = {DIM}, H = {HORIZON} alpha, "
        f"n = {curve.sizes[0]:g} to {curve.sizes[-1]:g}, {curve.replicates} replicates"
    )
    figure = study_chart(curve, title, "alpha_squared")
    rows = [
        "| metric | alpha with beta closest to 1/4 | exponents by their intervals |",
        "|---|---|---|",
    ]
    for metric in ("mean", "cov", "map"):
        part = table[table["metric"] == metric]
        ends = zip(part["low"], part["high"], strict=True)
        nearest = part.iloc[int((part["exponent"] - 0.25).abs().to_numpy().argmin())]
        rows.append(
            f"| {metric} | {nearest['alpha']:.3g} (H = {nearest['H']:.3g}, "
            f"beta = {nearest['exponent']:.3f}) | {class_words(class_counts(ends))} |"
        )
    shown = ["alpha", "alpha_squared", "H", "metric", "exponent", "low", "high", "predicted",
             "sharp", "paper_reference", "paper_bound", "trusted"]  # fmt: skip
    text = "\n".join(
        [
            "The horizon is proportional to alpha, so that every line is a function of alpha^2. "
            "An exponent is at 1/2 if its whole interval lies within 0.45 to 0.55.",
            "",
            *rows,
            "",
            "How many alphas hold each line inside the interval; all alphas share their tokens, "
            "and the band holds all exponents at once with probability 95%:",
            "",
            markdown_table(agreement_table(table)),
            "",
            about_the_paper(table),
            "",
            markdown_table(table[shown].rename(columns=COLUMNS)),
        ]
    )
    return Finding(
        "ablation",
        "Ablation: the tilt scaled by alpha",
        text,
        {"ablation": table},
        {"ablation": figure},
    )
