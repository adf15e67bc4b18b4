"""``gaussian``: exponents against the horizon, for Gaussian tokens."""

from __future__ import annotations

import numpy as np
import pandas as pd

from esscher.math.heads import gaussian_head, weight_head
from esscher.math.laws import Gaussian
from esscher.studies.reproduce.finding import Finding, markdown_table
from esscher.studies.reproduce.study import (
    COLUMNS,
    Settings,
    Study,
    about_the_paper,
    agreement_table,
    geometric,
    rate_table,
    slope_table,
    study_chart,
)

HORIZONS = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
#: Variance of the tokens' coordinates in the published study.
VARIANCE = 0.1


def studies(scale: str) -> list[Study]:
    """The sweeps of a scale."""
    if scale == "quick":
        few = (0.5, 2.0)
        return [flat(d, geometric(100, 1500, 5), few, 24) for d in (1, 8)]
    if scale == "standard":
        # on the line one token's luck is the error's: many cheap replicates
        sizes = geometric(300, 10_000, 8)
        grid = [flat(d, sizes, HORIZONS, count) for d, count in ((1, 384), (8, 96), (50, 64))]
        return [*grid, decaying(geometric(300, 6_000, 7), (0.5, 1.0, 2.0), 64)]
    sizes, alphas = geometric(1_000, 30_000, 12), np.geomspace(0.05, 50, 12)
    return [
        published(sizes, [float(alpha) for alpha in alphas], 200),
        flat(1, sizes, HORIZONS, 200),
        flat(8, sizes, HORIZONS, 200),
        decaying(sizes, HORIZONS, 200),
    ]


def flat(d: int, sizes: tuple[int, ...], horizons: tuple[float, ...], replicates: int) -> Study:
    """All singular values of M equal: the scales are the horizons."""
    return Study(f"flat-{d}", f"d = {d}", gaussian_head(1.0, d), sizes, horizons, replicates)


def decaying(sizes: tuple[int, ...], horizons: tuple[float, ...], replicates: int) -> Study:
    """Diagonal covariance whose spectrum decays: few directions carry the tilt."""
    spectrum = 0.6 ** np.arange(8)
    head = gaussian_head(spectrum=spectrum)
    return Study("decaying", "d = 8, spectrum 0.6^j", head, sizes, horizons, replicates)


def published(sizes: tuple[int, ...], alphas: list[float], replicates: int) -> Study:
    """The published setting: d = 50, covariance 0.1 I, A = alpha I / sqrt(50)."""
    d = 50
    law = Gaussian(np.zeros(d), VARIANCE * np.eye(d))
    head = weight_head(law, query=np.eye(d), key=np.eye(d))
    return Study("published", "d = 50, covariance 0.1 I", head, sizes, alphas, replicates)


def run(settings: Settings) -> Finding:
    """Run all sweeps of the scale and compare."""
    tables, figures = [], {}
    for study in studies(settings.scale):
        curve = study.run(settings)
        table = rate_table(study, curve)
        tables.append(table)
        title = (
            f"Gaussian tokens, {study.label}: n = {curve.sizes[0]:g} to {curve.sizes[-1]:g}, "
            f"{curve.replicates} replicates"
        )
        figures[f"gaussian-{study.name}"] = study_chart(curve, title)
    table = pd.concat(tables, ignore_index=True)
    return Finding(
        "gaussian",
        "Gaussian tokens: exponents against the horizon",
        describe(table),
        {"gaussian": table},
        figures,
    )


def describe(table: pd.DataFrame) -> str:
    """The finding in words and numbers."""
    rows = [
        "Exponents beta of error ~ C n^-beta, fitted on the sizes shown, with 95% intervals from "
        "resampled replicates. `predicted` is the slope of the predicted errors on the same sizes, "
        "`conjectured` the asymptotic exponent (heuristic, not proved), `reference` and `bound` "
        "the published lines; H includes the factor 1/sqrt(d_k).",
        "",
        "How many of the points hold each line INSIDE the interval. Of exact lines 95% would. The "
        "horizons of a sweep share their tokens, so that these are not independent trials: the "
        "band over the horizons holds all exponents of a sweep at once with probability 95% "
        "(largest deviation, replicates resampled for all horizons together).",
        "",
        markdown_table(agreement_table(table)),
        "",
        about_the_paper(table),
    ]
    off = table[np.isfinite(table["predicted"]) & ~table["agrees"]]
    if len(off):
        worst = off.iloc[int(off["difference"].abs().to_numpy().argmax())]
        rows += [
            "",
            f"The predicted slope is furthest outside an interval at {worst['study']}, "
            f"H = {worst['H']:.3g}, {worst['metric']}: measured {worst['exponent']:.3f} "
            f"[{worst['low']:.3f}, {worst['high']:.3f}], predicted {worst['predicted']:.3f}.",
        ]
    slopes = slope_table(table)
    if len(slopes):
        rows += [
            "",
            "How the exponent changes with the horizon: least-squares slope against H, with the "
            "interval from replicates resampled for all horizons together, beside the slope of "
            "every line over the same horizons:",
            "",
            markdown_table(slopes),
        ]
    shown = ["study", "H", "metric", "exponent", "low", "high", "joint_low", "joint_high",
             "predicted", "sharp", "paper_reference", "paper_bound", "law", "trusted"]  # fmt: skip
    rows += ["", markdown_table(table[shown].rename(columns=COLUMNS))]
    return "\n".join(rows)
