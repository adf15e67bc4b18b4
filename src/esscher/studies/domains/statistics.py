"""The numbers of a head that are compared between corpora, and the scale on which they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esscher.core.validation import Array

#: Smallest number whose logarithm is taken; smaller ones (a head without any tilt) count as this.
SMALLEST = 1e-12


@dataclass(frozen=True)
class Statistic:
    """One number of a head.

    Attributes
    ----------
    name
        Its name in results.
    title, short
        Its name in figures, and in tables.
    logarithmic
        Whether it is positive and skewed: then logarithms are compared, and differences between
        corpora are ratios of geometric means. Else differences of means.
    """

    name: str
    title: str
    short: str
    logarithmic: bool

    def forward(self, values: Array) -> Array:
        """The scale on which blocks are compared."""
        return np.log(np.maximum(values, SMALLEST)) if self.logarithmic else values

    def backward(self, values: Array) -> Array:
        """From that scale to the statistic itself, or to a ratio."""
        return np.exp(values) if self.logarithmic else values


#: In the order of tables. ``exponent`` is there only if errors are measured.
STATISTICS = (
    Statistic("tokens", "tokens for 10% output error", "10%", True),
    Statistic("ess", "tokens that the median query attends", "ESS", True),
    Statistic("khat", "one-pass k-hat", "k-hat", False),
    Statistic("horizon", "horizon H", "H", True),
    Statistic("frobenius", "Frobenius horizon F", "F", True),
    Statistic("tau", "mean tilt tau", "tau", True),
    Statistic("sinks", "share of attention in sinks", "sinks", False),
    Statistic("delimiters", "share of attention in delimiters", "delimiters", False),
    Statistic("exponent", "measured exponent of the mean error", "exponent", False),
)
BY_NAME = {statistic.name: statistic for statistic in STATISTICS}
