"""``onepass``: the exponent read off received attention, against the one fitted to a sweep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from esscher.core.streams import random_stream
from esscher.math.heads import gaussian_head
from esscher.math.statistics import received_exponent
from esscher.math.theory import exponents
from esscher.show.exponents import plain_logarithmic
from esscher.studies.reproduce.cells import compute_all
from esscher.studies.reproduce.finding import Finding, markdown_table
from esscher.studies.reproduce.gaussian import HORIZONS, flat
from esscher.studies.reproduce.study import Settings, geometric, rate_table


def run(settings: Settings) -> Finding:
    """Sweep a grid of horizons and dimensions, and attend once at each of its points."""
    dims, horizons, sizes, replicates, n, passes = {
        "quick": ((1, 8), (0.5, 1.0, 2.0), geometric(100, 2_000, 6), 24, 2_000, 2),
        "standard": ((1, 8, 50), HORIZONS, geometric(300, 10_000, 8), 64, 4_000, 8),
        "paper": ((1, 8, 50), HORIZONS, geometric(1_000, 30_000, 12), 200, 16_000, 16),
    }[settings.scale]
    rows = []
    for d in dims:
        study = flat(d, sizes, horizons, replicates)
        swept = rate_table(study, study.run(settings), ("mean",)).set_index("H")
        keys: list[dict[str, Any]] = [
            {"d": d, "H": horizon, "n": n, "draw": draw, "seed": settings.seed}
            for horizon in horizons
            for draw in range(passes)
        ]
        measured = compute_all(settings.folder, "onepass", keys, _measure, settings.executor)
        for key, found in zip(keys, measured, strict=True):
            at = swept.loc[key["H"]]
            rows.append(
                key
                | found
                | {
                    "khat_formula": exponents(key["H"]).khat,
                    "swept": at["exponent"],
                    "swept_low": at["low"],
                    "swept_high": at["high"],
                    "sharp": at["sharp"],
                    "predicted": at["predicted"],
                    "paper_reference": at["paper_reference"],
                    "paper_bound": at["paper_bound"],
                }
            )
    table = pd.DataFrame(rows)
    return Finding(
        "onepass",
        "One pass instead of a sweep: the tail of received attention",
        _describe(table),
        {"onepass": table},
        {"onepass": _draw(table)},
    )


def _measure(key: dict[str, Any]) -> dict[str, Any]:
    """Draw tokens, attend once, and fit the tail of what they receive."""
    import torch

    from esscher.engine.attention import attention_statistics

    rng = random_stream(key["seed"], "onepass", key["d"], round(1000 * key["H"]), key["draw"])
    tokens = gaussian_head(key["H"], key["d"]).sample(key["n"], rng)
    q, k, v = (torch.from_numpy(rows) for rows in (tokens.tilts, tokens.keys, tokens.values))
    found = attention_statistics(
        q, k, v, sizes=[key["n"]], factor=1.0, received_sizes=[key["n"]], dtype=torch.float64
    )
    assert found.received is not None
    tail = received_exponent(found.received[0, 0])
    low, high = tail.interval
    return {
        "khat": tail.k,
        "khat_low": low,
        "khat_high": high,
        "exponent": tail.exponent,
        "trusted": tail.trusted,
        "sinks": len(tail.sinks),
    }


def _describe(table: pd.DataFrame) -> str:
    rows = []
    for (d, horizon), part in table.groupby(["d", "H"]):
        first = part.iloc[0]
        rows.append(
            {
                "d": d,
                "H": horizon,
                "k-hat": part["khat"].mean(),
                "formula": first["khat_formula"],
                "one pass": part["exponent"].mean(),
                "sd of a pass": part["exponent"].std() if len(part) > 1 else np.nan,
                "swept": first["swept"],
                "interval": f"{first['swept_low']:.3f} to {first['swept_high']:.3f}",
                "sharp": first["sharp"],
                "predicted": first["predicted"],
            }
        )
    summary = pd.DataFrame(rows)
    errors = {
        name: (summary[column] - summary["swept"]).abs().mean()
        for name, column in (
            ("one-pass k-hat", "one pass"),
            ("sharp asymptotic", "sharp"),
            ("predicted on the same range", "predicted"),
        )
    }
    reference = table.drop_duplicates(["d", "H"])
    errors["published reference"] = (reference["paper_reference"] - reference["swept"]).abs().mean()
    lines = [
        "Mean absolute error against the swept exponent of the mean, over the grid: "
        + ", ".join(f"{name} {error:.3f}" for name, error in errors.items())
        + ". The one-pass exponent is min(1/2, 1 - k-hat), from the column sums of one attention "
        f"matrix over {int(table['n'].iloc[0])} tokens.",
        "",
        markdown_table(summary),
    ]
    return "\n".join(lines)


def _draw(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(8.6, 4.0), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2)
    colours = dict(
        zip(sorted(table["d"].unique()), ("#0072B2", "#D55E00", "#009E73"), strict=False)
    )
    for _, part in table.groupby(["d", "H"]):
        first = part.iloc[0]
        d, horizon = int(first["d"]), float(first["H"])
        colour = colours[d]
        label = f"d = {d}" if horizon == table["H"].min() else None
        middle = part["khat"].mean()
        left.errorbar(
            horizon * 1.03 ** (list(colours).index(d) - 1), middle,
            yerr=[[middle - part["khat_low"].mean()], [part["khat_high"].mean() - middle]],
            fmt="o", color=colour, markersize=4, capsize=2, label=label,
        )  # fmt: skip
        right.errorbar(
            first["swept"], part["exponent"].mean(),
            xerr=[[first["swept"] - first["swept_low"]], [first["swept_high"] - first["swept"]]],
            yerr=part["exponent"].std() if len(part) > 1 else 0.0,
            fmt="o", color=colour, markersize=4, label=label,
        )  # fmt: skip
    grid = np.geomspace(table["H"].min() / 1.2, table["H"].max() * 1.2, 100)
    left.plot(grid, [exponents(h).khat for h in grid], "-", color="black", linewidth=1,
              label=r"$H^2/(1+H^2)$")  # fmt: skip
    plain_logarithmic(left, "x")
    left.set(xlabel="horizon H", ylabel="k-hat of received attention")
    right.plot([0, 0.6], [0, 0.6], "-", color="black", linewidth=0.8)
    reference = table.drop_duplicates(["d", "H"])
    for column, marker, colour, words in (
        ("predicted", "x", "black", "predicted on the range"),
        ("sharp", "_", "black", "asymptotic, sharp"),
    ):
        right.plot(reference["swept"], reference[column], marker, color=colour, label=words)
    right.plot(reference["swept"], reference["paper_reference"], "+", color="grey",
               label="published reference")  # fmt: skip
    right.plot(reference["swept"], reference["paper_bound"], ".", color="lightgrey",
               label="published bound")  # fmt: skip
    right.set(xlabel="swept exponent of the mean, 95% interval", ylabel="one-pass exponent")
    for axis in (left, right):
        axis.grid(alpha=0.25)
        axis.legend(fontsize=7, frameon=False)
    figure.suptitle("The exponent from one pass, against the swept one", fontsize=10)
    return figure
