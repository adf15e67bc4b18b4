"""``onepass``: the exponent read off received attention, against the one fitted to a sweep."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.heads import gaussian_head
from esscher.math.statistics import received_exponent
from esscher.math.theory import exponents
from esscher.show.chart import diagonal, figure, lines, panel, points
from esscher.show.drawing import Plot
from esscher.show.scales import Axis, Series
from esscher.show.theme import BLACK, GREY, LINE, PALE, PALETTE, SHAPES, limits
from esscher.studies.reproduce.cells import compute_all
from esscher.studies.reproduce.finding import Finding, markdown_table
from esscher.studies.reproduce.gaussian import HORIZONS, flat
from esscher.studies.reproduce.joint import redrawn_exponents
from esscher.studies.reproduce.study import Settings, geometric, rate_table

#: Exponents to compare with, by column.
THEORY = {
    "predicted": "predicted on the range",
    "sharp": "asymptotic, conjectured",
    "paper_reference": "published reference",
    "paper_bound": "published bound",
}
FORMULA = "H²/(1+H²)"
ONE_PASS = "one-pass k-hat"
#: Resampled replicates and passes behind the interval of a skill.
RESAMPLES = 1000
#: Burn-ins are at most e to this power.
LARGE = 700.0


def run(settings: Settings) -> Finding:
    """Sweep a grid of horizons and dimensions, and attend once at each of its points."""
    dims, horizons, sizes, replicates, n, passes = {
        "quick": ((1, 8), (0.5, 1.0, 2.0), geometric(100, 2_000, 6), 24, 2_000, 2),
        "standard": ((1, 8, 50), HORIZONS, geometric(300, 10_000, 8), 64, 4_000, 8),
        "paper": ((1, 8, 50), HORIZONS, geometric(1_000, 30_000, 12), 200, 16_000, 16),
    }[settings.scale]
    rows, redrawn = [], []
    for d in dims:
        study = flat(d, sizes, horizons, replicates)
        curve = study.run(settings)
        swept = rate_table(study, curve, ("mean",)).set_index("H")
        rates = [curve.rate("mean", scale=s) for s in range(len(curve.alphas))]
        redrawn.append(
            redrawn_exponents(curve.raw("mean"), curve.sizes, rates, settings.seed, RESAMPLES)
        )
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
        _describe(table, np.hstack(redrawn)),
        {"onepass": table},
        {"onepass": _draw(table)},
    )


def _measure(key: dict[str, Any]) -> dict[str, Any]:
    """Draw tokens, attend once, and fit the tail of what they receive."""
    import torch

    from esscher.engine.attention import attention_statistics

    rng = random_stream(key["seed"], "onepass", key["d"], round(1000 * key["H"]), key["draw"])
    head = gaussian_head(key["H"], key["d"])
    tokens = head.sample(key["n"], rng)
    q, k, v = (torch.from_numpy(rows) for rows in (tokens.tilts, tokens.keys, tokens.values))
    found = attention_statistics(
        q, k, v, sizes=[key["n"]], factor=1.0, received_sizes=[key["n"]], dtype=torch.float64
    )
    assert found.received is not None
    burn_in = math.exp(min(head.frobenius**2, LARGE))
    tail = received_exponent(found.received[0, 0], burn_in=burn_in)
    low, high = tail.interval
    return {
        "khat": tail.k,
        "khat_low": low,
        "khat_high": high,
        "exponent": tail.exponent,
        "trusted": tail.trusted,
        "sinks": len(tail.sinks),
    }


def _skill_intervals(
    table: pd.DataFrame, predictors: dict[str, pd.Series], redrawn: Array
) -> dict[str, tuple[float, float]]:
    """95% interval of every predictor's skill, paired: all are held against the same resamples.

    ``redrawn`` are swept exponents of resampled replicates, [resample, point of the grid].
    """
    rng = random_stream(0, "one-pass skill")
    passes = np.stack([part["exponent"].to_numpy() for _, part in table.groupby(["d", "H"])])
    picks = rng.integers(passes.shape[1], size=(len(redrawn), *passes.shape))
    drawn = np.take_along_axis(passes[None], picks, axis=2).mean(axis=2)
    trivial = np.abs(0.5 - redrawn).mean(axis=1)
    found = {}
    for name, value in predictors.items():
        said = drawn if name == ONE_PASS else value.to_numpy(dtype=float)
        skill = 1 - np.abs(said - redrawn).mean(axis=1) / trivial
        low, high = np.quantile(skill, [0.025, 0.975])
        found[name] = (float(low), float(high))
    return found


def _describe(table: pd.DataFrame, redrawn: Array) -> str:
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
                "conjectured": first["sharp"],
                "predicted": first["predicted"],
            }
        )
    summary = pd.DataFrame(rows)
    reference = table.drop_duplicates(["d", "H"]).set_index(["d", "H"])["paper_reference"]
    points = pd.MultiIndex.from_frame(summary[["d", "H"]])
    predictors = {
        "always 1/2": pd.Series(0.5, index=summary.index),
        ONE_PASS: summary["one pass"],
        "conjectured asymptotic": summary["conjectured"],
        "predicted on the same range": summary["predicted"],
        "published reference": pd.Series(reference.loc[points].to_numpy(), index=summary.index),
    }
    errors = {
        name: float((value - summary["swept"]).abs().mean()) for name, value in predictors.items()
    }
    trivial = errors["always 1/2"]
    skill = _skill_intervals(table, predictors, redrawn)
    lines = [
        "Mean absolute error against the swept exponent of the mean, over the grid, and skill "
        "against the trivial prediction (1 - error/error of always 1/2) with its 95% interval, "
        "from replicates resampled for all horizons of a dimension together, which share their "
        "tokens, and from resampled passes; it is about these points of the grid: "
        + ", ".join(
            f"{name} {error:.3f}"
            + (
                ""
                if name == "always 1/2"
                else f" ({1 - error / trivial:.2f}, {skill[name][0]:.2f} to {skill[name][1]:.2f})"
            )
            for name, error in errors.items()
        )
        + ". The one-pass exponent is min(1/2, 1 - k-hat), from the column sums of one attention "
        f"matrix over {int(table['n'].iloc[0])} tokens.",
        "",
        markdown_table(summary),
    ]
    return "\n".join(lines)


def _draw(table: pd.DataFrame) -> Plot:
    dims = sorted(table["d"].unique())
    parts = [part for _, part in table.groupby(["d", "H"])]
    groups = [(int(part["d"].iloc[0]), float(part["H"].iloc[0]), part) for part in parts]
    shapes = {"predicted": "cross", "sharp": "diamond", "paper_reference": "square",
              "paper_bound": "triangle-down"}  # fmt: skip
    series = Series(
        "what",
        (*(f"d = {d}" for d in dims), FORMULA, *THEORY.values()),
        colours=(*PALETTE[: len(dims)], BLACK, BLACK, BLACK, GREY, PALE),
        shapes=(*SHAPES[: len(dims)], LINE, *shapes.values()),
    )
    horizons = np.geomspace(table["H"].min() / 1.2, table["H"].max() * 1.2, 60)
    formula = [{"what": FORMULA, "H": h, "khat": exponents(h).khat} for h in horizons.tolist()]
    measured = [
        {"what": f"d = {d}", "H": h * 1.03 ** (dims.index(d) - 1), "khat": part["khat"].mean(),
         "low": part["khat_low"].mean(), "high": part["khat_high"].mean()}
        for d, h, part in groups
    ]  # fmt: skip
    x = Axis("H", "horizon H", log=True, limits=limits(horizons, log=True))
    known = [row[key] for row in measured for key in ("khat", "low", "high")]
    y = Axis("khat", "k-hat of received attention", limits=limits([0.0, 1.0, *known]))
    left = panel(lines(formula, x, y, series), points(measured, x, y, series))
    swept, passes, theory = [], [], []
    for d, _, part in groups:
        first, mean = part.iloc[0], part["exponent"].mean()
        spread = part["exponent"].std() if len(part) > 1 else 0.0
        at = {"what": f"d = {d}", "swept": first["swept"], "exponent": mean}
        swept.append(at | {"low": first["swept_low"], "high": first["swept_high"]})
        passes.append(at | {"low": mean - spread, "high": mean + spread})
        theory += [
            {"what": name, "swept": first["swept"], "exponent": first[column]}
            for column, name in THEORY.items()
        ]
    ends = limits([0.0, 0.6, *(row[key] for row in swept for key in ("low", "high"))])
    x = Axis("swept", "swept exponent of the mean", limits=ends)
    y = Axis("exponent", "one-pass exponent", limits=ends)
    right = panel(
        diagonal(x, y),
        points(theory, x, y, series),
        points(passes, x, y, series),
        points(swept, x, y, series, across=True),
    )
    note = "bars: 95% intervals; upright ones of one-pass exponents: standard deviation of a pass"
    return Plot(
        figure([left, right], "The exponent from one pass, against the swept one", note=note)
    )
