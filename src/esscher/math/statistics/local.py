"""Exponents along n: between each pair of neighbouring sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esscher.core.validation import Array
from esscher.math.statistics.plain import finite_list
from esscher.math.statistics.resampling import Resamples


@dataclass(frozen=True, eq=False)
class LocalSlopes:
    """Exponents between neighbouring sizes, at their geometric mean ``n``, with intervals."""

    n: Array
    exponent: Array
    lower: Array
    upper: Array

    def to_dict(self) -> dict[str, list[float | None]]:
        """Return plain lists (JSON-safe)."""
        return {
            "n": finite_list(self.n),
            "exponent": finite_list(self.exponent),
            "lower": finite_list(self.lower),
            "upper": finite_list(self.upper),
        }


def local_slopes(resamples: Resamples, level: float) -> LocalSlopes:
    """Exponents between neighbouring sizes, with intervals at a level."""
    x = resamples.log_sizes
    forms = -np.diff(np.eye(len(x)), axis=0) / np.diff(x)[:, None]
    exponent, lower, upper = resamples.intervals(forms, level)
    return LocalSlopes(np.exp((x[1:] + x[:-1]) / 2), exponent, lower, upper)
