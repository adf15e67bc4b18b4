"""Sweeps as parts of an experiment: run, fitted, and set beside what theory says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from esscher.math.heads import Head
from esscher.runs.executors import CellExecutor
from esscher.show.drawing import Plot, retitled
from esscher.studies.reproduce.joint import joint_exponents, slope_against
from esscher.studies.sweep import Sweep, charts, sweep
from esscher.studies.sweep.measure import METRICS

#: The trivial prediction.
HALF = "half"
#: Exponents to compare with: columns of a table of rates, and what they are called.
LINES = {
    "predicted": "predicted",
    "sharp": "conjectured",
    "paper_reference": "reference",
    HALF: "always 1/2",
}
#: What columns of a table of rates are called on a page.
COLUMNS = {
    "sharp": "conjectured",
    "paper_reference": "reference",
    "paper_bound": "bound",
    "joint_low": "band from",
    "joint_high": "to",
}


@dataclass(frozen=True)
class Settings:
    """How an experiment is run: its scale, where, with which seed, and who computes."""

    scale: str
    folder: Path
    seed: int = 0
    executor: CellExecutor | None = None
    progress: bool | None = None


@dataclass(frozen=True, eq=False)
class Study:
    """One sweep of an experiment."""

    name: str
    label: str
    head: Head
    sizes: Sequence[int]
    scales: Sequence[float]
    replicates: int
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, settings: Settings) -> Sweep:
        """Run it, or resume it, in a directory of its own."""
        return sweep(
            self.head,
            tuple(self.sizes),
            self.replicates,
            settings.seed,
            alpha=tuple(self.scales),
            out=settings.folder / "runs" / settings.scale / self.name,
            executor=settings.executor,
            progress=settings.progress,
            **({"predict": True} | self.options),
        )


def geometric(low: float, high: float, count: int) -> tuple[int, ...]:
    """Whole numbers in geometric progression."""
    return tuple(int(n) for n in np.unique(np.geomspace(low, high, count).round()))


def rate_table(study: Study, curve: Sweep, metrics: Sequence[str] = METRICS) -> pd.DataFrame:
    """Fitted exponents beside predicted ones, one row per scale and metric.

    ``low`` and ``high`` hold one exponent, ``joint_low`` and ``joint_high`` those of all scales at
    once, which share their tokens (see ``joint.py``).
    """
    rows = []
    scales = range(len(curve.alphas))
    rates = {metric: [curve.rate(metric, scale=s) for s in scales] for metric in metrics}
    joint = {
        metric: joint_exponents(
            curve.raw(metric), curve.sizes, rates[metric], curve.horizons, curve.seed
        )
        for metric in metrics
    }
    for s, (alpha, horizon) in enumerate(zip(curve.alphas, curve.horizons, strict=True)):
        for metric in metrics:
            rate, together = rates[metric][s], joint[metric]
            low, high = rate.interval
            predicted = rate.predicted
            row: dict[str, Any] = {
                "study": study.label,
                "d": study.head.key_dim,
                "alpha": alpha,
                "H": horizon,
                "F": float(alpha) * study.head.frobenius,
                "metric": metric,
                "n_min": curve.sizes[0],
                "n_max": curve.sizes[-1],
                "replicates": curve.replicates,
                "exponent": rate.exponent,
                "low": low,
                "high": high,
                "width": high - low,
                "joint_low": float(together.low[s]),
                "joint_high": float(together.high[s]),
                "predicted": np.nan if predicted is None else predicted,
                "sharp": np.nan if rate.sharp is None else rate.sharp,
                "paper_reference": rate.paper_reference,
                "paper_bound": rate.paper_bound,
                "law": rate.verdict,
                "trusted": rate.trusted,
                "past_burn_in": bool(
                    (float(alpha) * study.head.frobenius) ** 2 <= np.log(curve.sizes[0])
                ),
                "slope": together.slope,
                "slope_low": together.slope_interval[0],
                "slope_high": together.slope_interval[1],
            }
            row["difference"] = row["exponent"] - row["predicted"]
            row["agrees"] = bool(low <= row["predicted"] <= high)
            rows.append(row)
    return pd.DataFrame(rows)


def study_chart(curve: Sweep, title: str, along: str = "horizon") -> Plot:
    """Draw errors above and exponents below, in the layout of the published study."""
    return Plot(retitled(charts.study(curve, along), title))


def inside(table: pd.DataFrame, line: str, joint: bool = False) -> tuple[int, int]:
    """How many intervals hold a line (a column of ``LINES``), out of those for which it is known.

    Parameters
    ----------
    table
        From :func:`rate_table`.
    line
        Which one.
    joint
        Whether to ask the simultaneous band instead of every interval on its own.
    """
    value = _line(table, line)
    known = np.isfinite(value)
    low, high = (table[f"joint_{end}" if joint else end] for end in ("low", "high"))
    return int((known & (low <= value) & (value <= high)).sum()), int(known.sum())


def agreement_table(table: pd.DataFrame) -> pd.DataFrame:
    """How many intervals hold every line, by metric: on their own, and as simultaneous bands."""
    rows = []
    for metric in ("map", "mean", "cov"):
        part = table[table["metric"] == metric]
        for joint, words in ((False, "each interval"), (True, "band over the horizons")):
            low, high = ("joint_low", "joint_high") if joint else ("low", "high")
            width = (part[high] - part[low]).to_numpy()
            rows.append(
                {
                    "metric": metric,
                    "inside": words,
                    "median width (smallest to largest)": (
                        f"{np.median(width):.3f} ({width.min():.4f} to {width.max():.3f})"
                    ),
                }
                | {name: "{} of {}".format(*inside(part, line, joint))
                   for line, name in LINES.items()}
            )  # fmt: skip
        distance = {
            name: f"{(part['exponent'] - _line(part, line)).abs().mean():.3f}"
            for line, name in LINES.items()
        }
        rows.append({"metric": metric, "inside": "(mean distance from the exponent)"} | distance)
    return pd.DataFrame(rows)


def about_the_paper(table: pd.DataFrame) -> str:
    """What the data say about the published reference and bound, in a few sentences."""
    parts, slower = [], []
    for metric in ("map", "mean", "cov"):
        own = table[table["metric"] == metric]
        held, count = inside(own, "paper_reference")
        together, _ = inside(own, "paper_reference", joint=True)
        parts.append(f"{metric} {count - held} of {count} ({count - together} by the band)")
        # a bound C n^-b on the error speaks against an error that falls more slowly
        slower.append(own[own["joint_high"] < own["paper_bound"]])
    below = pd.concat(slower)
    bound = "The published bound is not contradicted: no band lies below its exponent"
    if len(below):
        where = ", ".join(dict.fromkeys(below["study"]))
        bound = (
            f"At {len(below)} of {len(table)} points ({where}) the whole band lies below the "
            "exponent of the published bound: errors fall more slowly than it on these sizes. That "
            "does not contradict it, since its constant is open; it says nothing there yet"
        )
    return (
        "On these sizes the published reference 1/(2(1+H^2)) is excluded by the interval at "
        f"{', '.join(parts)} points. {bound}. Weakest point: both are statements about "
        "n without end, and these are slopes on a finite range, which may still change."
    )


def slope_table(table: pd.DataFrame) -> pd.DataFrame:
    """How the exponent changes with H, beside the same slope of every line."""
    rows = []
    for (study, metric), part in table.groupby(["study", "metric"], sort=False):
        if len(part) < 2:
            continue
        first, horizons = part.iloc[0], part["H"].to_numpy()
        lines = {
            name: slope_against(horizons, _line(part, line).to_numpy())
            for line, name in LINES.items()
        }
        low, high = first["slope_low"], first["slope_high"]
        rows.append(
            {"study": study, "metric": metric,
             "d beta / d H": f"{first['slope']:.3f} [{low:.3f}, {high:.3f}]"}
            | {name: f"{round(value, 3) + 0.0:.3f}{'' if low <= value <= high else ', outside'}"
               if np.isfinite(value) else "" for name, value in lines.items()}
        )  # fmt: skip
    return pd.DataFrame(rows)


def _line(table: pd.DataFrame, line: str) -> pd.Series[float]:
    """Exponents of a line at the rows of a table."""
    if line == HALF:
        return pd.Series(0.5, index=table.index)
    return table[line]
