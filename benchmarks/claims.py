"""A claim of the project beside a simulation: one row of the table of ``benchmarks/truth.py``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Row:
    """A claim: what is stated, with its standard error, and what the simulation found."""

    check: str
    claim: str
    stated: float
    stated_error: float
    simulated: float
    simulated_error: float

    @property
    def z(self) -> float:
        """Difference over the standard errors of both."""
        return (self.stated - self.simulated) / np.hypot(self.stated_error, self.simulated_error)


def share(hits: Iterable[Any]) -> tuple[float, float]:
    """A rate that was seen, and its standard error.

    The error is the standard deviation of the rate's posterior law under Jeffreys' prior, which is
    not 0 where all or none were seen.
    """
    seen = np.array([bool(hit) for hit in hits])
    a, b = seen.sum() + 0.5, (~seen).sum() + 0.5
    return float(seen.mean()), float(np.sqrt(a * b / (a + b + 1)) / (a + b))


def average(values: Iterable[float]) -> tuple[float, float]:
    """A mean and its standard error."""
    result = np.array(list(values), dtype=float)
    return float(result.mean()), float(result.std(ddof=1) / np.sqrt(len(result)))
