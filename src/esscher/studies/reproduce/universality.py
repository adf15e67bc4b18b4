"""``universality``: the same second moments under different token laws."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from esscher.math.heads import law_head
from esscher.math.laws import standard_law
from esscher.show.exponents import NAMES, plain_logarithmic
from esscher.studies.reproduce.finding import Finding, markdown_table
from esscher.studies.reproduce.study import Settings, Study, geometric, rate_table

LAWS = ("gaussian", "mixture", "cube", "signs", "sphere", "laplace", "student")
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#D55E00", "#CC79A7")
DIM = 4


def studies(scale: str) -> list[Study]:
    """One sweep per law, all with the same spectrum."""
    horizons, sizes, replicates = {
        "quick": ((0.5, 1.5), geometric(100, 1_000, 4), 12),
        "standard": ((0.3, 0.6, 1.0, 1.5), geometric(300, 5_000, 6), 48),
        "paper": ((0.3, 0.5, 0.7, 1.0, 1.5, 2.0), geometric(1_000, 20_000, 8), 200),
    }[scale]
    spectrum = [1.0, 0.8, 0.5, 0.3]
    return [
        Study(
            law,
            law,
            law_head(standard_law(law, DIM), spectrum=spectrum),
            sizes,
            horizons,
            replicates,
            {"predict": law == "gaussian"},
        )
        for law in LAWS
    ]


def run(settings: Settings) -> Finding:
    """Run all laws and compare each with the Gaussian one."""
    tables = [rate_table(study, study.run(settings)) for study in studies(settings.scale)]
    table = pd.concat(tables, ignore_index=True)
    gaussian = table[table["study"] == "gaussian"].set_index(["H", "metric"])
    base = gaussian.loc[list(zip(table["H"], table["metric"], strict=True))]
    for column in ("predicted", "sharp"):
        # second moments are the same, so that the Gaussian prediction is the one to compare with
        table[column] = base[column].to_numpy()
    table["against_gaussian"] = table["exponent"] - base["exponent"].to_numpy()
    spread = np.hypot(
        (table["high"] - table["low"]) / 3.92, (base["high"] - base["low"]).to_numpy() / 3.92
    )
    table["z"] = table["against_gaussian"] / spread
    return Finding(
        "universality",
        "The same spectrum under other token laws",
        _describe(table),
        {"universality": table},
        {"universality": _draw(table)},
    )


def _describe(table: pd.DataFrame) -> str:
    rows = []
    for law in LAWS[1:]:
        part = table[table["study"] == law]
        for metric in ("mean", "cov", "map"):
            chosen = part[part["metric"] == metric]
            worst = chosen.iloc[int(chosen["z"].abs().to_numpy().argmax())]
            rows.append(
                {
                    "law": law,
                    "metric": metric,
                    "largest difference": float(worst["against_gaussian"]),
                    "at H": float(worst["H"]),
                    "standard deviations": float(worst["z"]),
                }
            )
    return "\n".join(
        [
            f"Singular values (1, 0.8, 0.5, 0.3) times H, d = {DIM}, unit covariance for all laws. "
            "Differences of the fitted exponent from that of Gaussian tokens on the same sizes; a "
            "difference of more than 3 standard deviations is a change. Laplace and Student tokens "
            "have no infinite-token limit: their exponents are against attention over 4 n_max "
            "tokens drawn once.",
            "",
            markdown_table(pd.DataFrame(rows)),
        ]
    )


def _draw(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(11, 3.9), layout="constrained", dpi=150)
    panels = figure.subplots(1, 3, sharey=True)
    for axis, metric in zip(panels, NAMES, strict=True):
        for index, (law, colour) in enumerate(zip(LAWS, COLOURS, strict=True)):
            part = table[(table["study"] == law) & (table["metric"] == metric)]
            error = np.abs(part[["low", "high"]].to_numpy().T - part["exponent"].to_numpy())
            axis.errorbar(
                part["H"] * 1.02 ** (index - 3), part["exponent"], yerr=error, fmt="o-",
                color=colour, markersize=3.5, linewidth=0.8, capsize=1.5, label=law,
            )  # fmt: skip
        base = table[(table["study"] == "gaussian") & (table["metric"] == metric)]
        axis.plot(base["H"], base["predicted"], "x--", color="grey", label="predicted (Gaussian)")
        axis.plot(
            base["H"], base["sharp"], "-", color="grey", linewidth=1, label="sharp (Gaussian)"
        )
        axis.plot(base["H"], base["paper_reference"], "-.", color="grey", linewidth=0.8,
                  label="published reference")  # fmt: skip
        axis.plot(base["H"], base["paper_bound"], ":", color="grey", linewidth=0.8,
                  label="published bound")  # fmt: skip
        plain_logarithmic(axis, "x")
        axis.set_xlabel("horizon H")
        axis.set_title(NAMES[metric], fontsize=9)
        axis.grid(alpha=0.25)
    panels[0].set_ylabel("exponent")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=7, frameon=False)
    figure.suptitle(f"The same second moments under {len(LAWS)} token laws, d = {DIM}", fontsize=10)
    return figure
