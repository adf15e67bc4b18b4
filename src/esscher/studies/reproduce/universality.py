"""``universality``: the same second moments under different token laws."""

from __future__ import annotations

import numpy as np
import pandas as pd
import scipy

from esscher.math.heads import law_head
from esscher.math.laws import standard_law
from esscher.math.statistics import LEVEL
from esscher.show.chart import figure, lines, panel, points
from esscher.show.drawing import Plot
from esscher.show.scales import Axis, Series
from esscher.show.theme import GREY, LINE, PALETTE, SHAPES, limits
from esscher.studies.reproduce.finding import Finding, markdown_table
from esscher.studies.reproduce.study import Settings, Study, geometric, rate_table
from esscher.studies.sweep.charts import TITLES

LAWS = ("gaussian", "mixture", "cube", "signs", "sphere", "laplace", "student")
#: Lines of theory for Gaussian tokens: column, name, dashes.
THEORY: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("predicted", "predicted (Gaussian)", (4, 2)),
    ("sharp", "conjectured (Gaussian)", (1, 0)),
    ("paper_reference", "published reference", (6, 2, 1, 2)),
    ("paper_bound", "published bound", (1, 2)),
)
DIM = 4
#: Exponents that differ by no more than this are called the same.
MARGIN = 0.05


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
    others = table[table["study"] != "gaussian"]
    # largest of so many that noise stays below with probability 95% (Bonferroni)
    bound = float(scipy.special.ndtri(1 - (1 - LEVEL) / 2 / max(len(others), 1)))
    for law in LAWS[1:]:
        part = table[table["study"] == law]
        for metric in ("mean", "cov", "map"):
            chosen = part[part["metric"] == metric]
            sure = bound * (chosen["against_gaussian"] / chosen["z"]).abs()
            reach = float((chosen["against_gaussian"].abs() + sure).max())
            worst = chosen.iloc[int(chosen["z"].abs().to_numpy().argmax())]
            rows.append(
                {
                    "law": law,
                    "metric": metric,
                    "largest difference": float(worst["against_gaussian"]),
                    "at H": float(worst["H"]),
                    "standard deviations": float(worst["z"]),
                    "verdict": (
                        "another exponent"
                        if abs(worst["z"]) > bound
                        else f"within {MARGIN:g}"
                        if reach <= MARGIN
                        else "undecided"
                    ),
                }
            )
    return "\n".join(
        [
            f"Singular values (1, 0.8, 0.5, 0.3) times H, d = {DIM}, unit covariance for all laws. "
            "Differences of the fitted exponent from that of Gaussian tokens on the same sizes: "
            f"another exponent beyond {bound:.2f} standard deviations at some H (Bonferroni over "
            f"all {len(others)} differences), the same if all of them lie within {MARGIN:g} beyond "
            "that, undecided otherwise. The two sweeps count as independent. Laplace and Student "
            "tokens have no infinite-token limit: their exponents are against attention over "
            "4 n_max tokens drawn once.",
            "",
            markdown_table(pd.DataFrame(rows)),
        ]
    )


def _draw(table: pd.DataFrame) -> Plot:
    count = len(LAWS)
    series = Series(
        "law",
        (*LAWS, *(name for _, name, _ in THEORY)),
        colours=(*PALETTE[:count], *(GREY for _ in THEORY)),
        shapes=(*SHAPES[:count], *(LINE for _ in THEORY)),
        dashes=(*((1, 0) for _ in LAWS), *(dashes for *_, dashes in THEORY)),
    )
    low, high = table["H"].min(), table["H"].max()
    x = Axis("H", "horizon H", log=True, limits=limits([0.92 * low, 1.08 * high], log=True))
    ends = [*table["low"], *table["high"], *np.minimum(table["predicted"].dropna(), 1.0)]
    y = Axis("exponent", "exponent β", limits=limits([0.0, *ends]))
    panels = []
    for metric, title in TITLES.items():
        own = table[table["metric"] == metric]
        measured = [
            {"law": row["study"], "H": row["H"] * 1.02 ** (LAWS.index(row["study"]) - 3)}
            | {key: row[key] for key in ("exponent", "low", "high")}
            for row in own.to_dict("records")
        ]
        theory = [
            {"law": name, "H": row["H"], "exponent": row[column]}
            for row in own[own["study"] == "gaussian"].to_dict("records")
            for column, name, _ in THEORY
        ]
        panels.append(
            panel(lines([*theory, *measured], x, y, series), points(measured, x, y, series),
                  title=title)
        )  # fmt: skip
    title = f"The same second moments under {count} token laws, d = {DIM}"
    return Plot(figure(panels, title, note="bars: 95% intervals; laws stand a little apart"))
