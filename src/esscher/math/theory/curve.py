"""A predicted error curve: what every predictor of this package returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from esscher.core.errors import InputError
from esscher.core.validation import Array

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Curve:
    """Predicted error at given numbers of tokens.

    Attributes
    ----------
    metric
        What the error is of: ``"map"``, ``"mean"`` or ``"cov"``.
    statistic
        ``"rms"`` (root of the mean square) or ``"mean"`` (expected norm).
    sizes, error
        Numbers of tokens and predicted errors.
    standard_error
        Monte Carlo standard error of each prediction: zero for exact ones, NaN for those that are
        computed without sampling but approximate (``validity`` says how far).
    queries
        ``"tokens"`` or ``"population"``.
    method
        How the numbers were computed, in words.
    validity
        Where the predictor can be trusted, in words.
    """

    metric: str
    statistic: str
    sizes: Array
    error: Array
    standard_error: Array
    queries: str
    method: str
    validity: str = ""

    def slope(self, n_min: float | None = None, n_max: float | None = None) -> float:
        """Exponent beta fitted to the curve on [n_min, n_max] (least squares in log-log)."""
        low = self.sizes[0] if n_min is None else n_min
        high = self.sizes[-1] if n_max is None else n_max
        inside = (self.sizes >= low) & (self.sizes <= high)
        if inside.sum() < 2:
            raise InputError(
                f"only {int(inside.sum())} size(s) of the curve lie in [{low:g}, {high:g}]; "
                "a slope needs at least 2"
            )
        x, y = np.log(self.sizes[inside]), np.log(self.error[inside])
        x = x - x.mean()
        return float(-np.dot(x, y) / np.dot(x, x))

    def local_slopes(self) -> Array:
        """Exponent between each pair of consecutive sizes."""
        return -np.diff(np.log(self.error)) / np.diff(np.log(self.sizes))

    def table(self) -> pd.DataFrame:
        """Return the curve as a data frame, one row per size."""
        import pandas as pd

        return pd.DataFrame(
            {"n": self.sizes, "error": self.error, "standard_error": self.standard_error}
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as plain lists and strings."""
        return {
            "metric": self.metric,
            "statistic": self.statistic,
            "queries": self.queries,
            "method": self.method,
            "validity": self.validity,
            "n": self.sizes.tolist(),
            "error": self.error.tolist(),
            "standard_error": [float(e) if np.isfinite(e) else None for e in self.standard_error],
        }

    def __repr__(self) -> str:
        name = {"rms": "root-mean-square", "mean": "expected"}[self.statistic]
        rows = [f"{name} {self.metric} error, queries from the {self.queries} ({self.method})"]
        rows += [f"  n = {n:<10.4g} {e:.4g}" for n, e in zip(self.sizes, self.error, strict=True)]
        if len(self.sizes) > 1:
            rows.append(f"  slope on this range: {self.slope():.3f}")
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        return str(self.table().to_html(index=False))
