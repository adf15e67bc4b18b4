"""How good the predictors of exponents are, beside the trivial one: always 1/2.

Skill is ``1 - MAE / MAE(always 1/2)``, both over the same heads: 0 is as good as the constant, 1 is
perfect. Its interval resamples heads in pairs of errors. The measured exponents have noise of their
own, which no predictor can know: it keeps every skill below 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.sampled.sizes import METRICS

if TYPE_CHECKING:
    import pandas as pd

#: The trivial predictor.
CONSTANT = "always 1/2"
#: Predictors of an exponent: column of the table of heads and name, by metric.
PREDICTORS = {
    "mean": {
        "predicted_mean": "predicted on the range",
        "constant": CONSTANT,
        "predicted_khat": "one-pass k-hat",
        "sharp": "Gaussian, conjectured",
        "paper_reference": "published reference",
        "paper_bound": "published bound",
    },
    "cov": {
        "predicted_cov": "predicted on the range",
        "constant": CONSTANT,
        "predicted_khat": "one-pass k-hat",
        "sharp": "Gaussian, conjectured",
    },
    "map": {
        "predicted_map": "predicted on the range",
        "constant": CONSTANT,
        "predicted_khat": "one-pass k-hat",
        "paper_reference": "published reference",
        "paper_bound": "published bound",
    },
}
#: Resamples of the heads.
RESAMPLES = 1000


def predictor_table(heads: pd.DataFrame) -> pd.DataFrame:
    """Mean absolute error and skill of each predictor, smallest error first, by metric.

    Parameters
    ----------
    heads
        Measured and predicted exponents, one row per head.
    """
    import pandas as pd

    rows = []
    for metric in METRICS:
        some = [_row(heads, metric, column, name) for column, name in PREDICTORS[metric].items()]
        rows += sorted((row for row in some if row), key=lambda row: row["mean absolute error"])
    return pd.DataFrame(rows)


def beats_constant(row: Any) -> bool:
    """Whether a row of the table is better than the constant, beyond its interval."""
    low = row["skill_low"]
    return row["predictor"] != CONSTANT and low is not None and bool(low > 0)


def _row(heads: pd.DataFrame, metric: str, column: str, name: str) -> dict[str, Any]:
    measured = heads[metric].to_numpy(dtype=float)
    predicted = np.full(len(heads), 0.5) if column == "constant" else heads[column].to_numpy(float)
    known = np.isfinite(measured) & np.isfinite(predicted)
    if not known.any():
        return {}
    error, trivial = np.abs(predicted - measured)[known], np.abs(0.5 - measured)[known]
    low, high = _skill_interval(error, trivial)
    return {
        "metric": metric,
        "predictor": name,
        "mean absolute error": float(error.mean()),
        "skill": float(1 - error.mean() / trivial.mean()) if trivial.mean() > 0 else None,
        "skill_low": None if column == "constant" else low,
        "skill_high": None if column == "constant" else high,
    }


def _skill_interval(error: Array, trivial: Array) -> tuple[float | None, float | None]:
    """95% interval of the skill; none of fewer than 4 heads."""
    count = len(error)
    if count < 4 or not trivial.any():
        return None, None
    picks = random_stream(0, "skill").integers(count, size=(RESAMPLES, count))
    below = trivial[picks].mean(axis=1)
    skill = 1 - error[picks].mean(axis=1)[below > 0] / below[below > 0]
    low, high = np.quantile(skill, [0.025, 0.975])
    return float(low), float(high)
