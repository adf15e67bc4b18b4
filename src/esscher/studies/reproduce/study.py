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
from esscher.studies.sweep import Sweep, charts, sweep
from esscher.studies.sweep.measure import METRICS

#: A measured exponent agrees with a predicted one inside its interval or within this.
CLOSE = 0.03


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
            scales=tuple(self.scales),
            out=settings.folder / "runs" / settings.scale / self.name,
            executor=settings.executor,
            progress=settings.progress,
            **({"predict": True} | self.options),
        )


def geometric(low: float, high: float, count: int) -> tuple[int, ...]:
    """Whole numbers in geometric progression."""
    return tuple(int(n) for n in np.unique(np.geomspace(low, high, count).round()))


def rate_table(study: Study, curve: Sweep, metrics: Sequence[str] = METRICS) -> pd.DataFrame:
    """Fitted exponents beside predicted ones, one row per scale and metric."""
    rows = []
    for s, (alpha, horizon) in enumerate(zip(curve.alphas, curve.horizons, strict=True)):
        for metric in metrics:
            rate = curve.rate(metric, scale=s)
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
                "predicted": np.nan if predicted is None else predicted,
                "sharp": np.nan if rate.sharp is None else rate.sharp,
                "paper_reference": rate.paper_reference,
                "paper_bound": rate.paper_bound,
                "law": rate.law,
                "trusted": rate.trusted,
                "past_burn_in": bool(
                    (float(alpha) * study.head.frobenius) ** 2 <= np.log(curve.sizes[0])
                ),
            }
            row["difference"] = row["exponent"] - row["predicted"]
            row["agrees"] = bool(agrees(rate.exponent, low, high, row["predicted"]))
            rows.append(row)
    return pd.DataFrame(rows)


def study_chart(curve: Sweep, title: str, along: str = "horizon") -> Plot:
    """Draw errors above and exponents below, in the layout of the published study."""
    return Plot(retitled(charts.study(curve, along), title))


def agrees(exponent: float, low: float, high: float, predicted: float) -> bool:
    """Whether a prediction lies inside the interval, or within ``CLOSE`` of the exponent."""
    return low <= predicted <= high or abs(exponent - predicted) <= CLOSE


def agreement(table: pd.DataFrame) -> tuple[int, int]:
    """How many rows agree, out of those with a prediction."""
    known = table[np.isfinite(table["predicted"])]
    return int(known["agrees"].sum()), len(known)
