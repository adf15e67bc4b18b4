"""Exponents along n: between each pair of neighbouring sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esscher.core.validation import Array
from esscher.math.statistics.plain import finite_numbers
from esscher.math.statistics.records import LocalExponents
from esscher.math.statistics.resampling import Resamples


@dataclass(frozen=True, eq=False)
class LocalSlopes:
    """Exponents between neighbouring sizes, at their geometric mean ``n``, with intervals."""

    n: Array
    exponent: Array
    lower: Array
    upper: Array

    def record(self) -> LocalExponents:
        """Return what is stored of them."""
        return LocalExponents(
            n=finite_numbers(self.n),
            exponent=finite_numbers(self.exponent),
            lower=finite_numbers(self.lower),
            upper=finite_numbers(self.upper),
        )


def local_slopes(resamples: Resamples, level: float) -> LocalSlopes:
    """Exponents between neighbouring sizes, with intervals at a level."""
    x = resamples.log_sizes
    forms = -np.diff(np.eye(len(x)), axis=0) / np.diff(x)[:, None]
    exponent, lower, upper = resamples.intervals(forms, level)
    return LocalSlopes(np.exp((x[1:] + x[:-1]) / 2), exponent, lower, upper)
