"""How a constant grows with the size of the support: as a power, or exponentially."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.statistics import resampling_counts

RESAMPLES = 2000


@dataclass(frozen=True)
class Growth:
    """Growth of a constant C(R).

    Attributes
    ----------
    exponent, low, high
        Slope of ln C against ln R, with its 95% interval.
    rate
        Slope of ln C against R.
    share
        Share of resamples in which the power law leaves smaller residuals than the exponential.
    """

    exponent: float
    low: float
    high: float
    rate: float
    share: float

    @property
    def power(self) -> bool:
        """Whether a power of R describes it better, beyond chance."""
        return self.share >= 0.975

    @property
    def undecided(self) -> bool:
        """Whether neither law does."""
        return 0.025 < self.share < 0.975

    def words(self, name: str) -> str:
        """Write the law that won."""
        if self.undecided:
            return f"a power or an exponential of {name} (undecided)"
        if self.power:
            return f"{name}^{self.exponent:.2f} ({self.low:.2f} to {self.high:.2f})"
        return f"e^({self.rate:.2f} {name})"


def growth_of(radii: Array, errors: Array, seed: int) -> Growth:
    """Compare a power law with an exponential.

    Parameters
    ----------
    radii
        Sizes R of the support.
    errors
        Axes [replicate, radius]; replicates are resampled for all radii together.
    seed
        Seed of the resampling.
    """
    count = len(errors)
    picks = resampling_counts(count, RESAMPLES, random_stream(seed, "growth", count)) / count
    curves = np.log(np.vstack([errors.mean(axis=0), picks @ errors]))

    def fitted(x: Array) -> tuple[Array, Array]:
        """Slopes and residual sums of squares of all curves."""
        centred = x - x.mean()
        level = curves - curves.mean(axis=1, keepdims=True)
        slope = level @ centred / (centred @ centred)
        return slope, ((level - slope[:, None] * centred) ** 2).sum(axis=1)

    power, power_left = fitted(np.log(radii))
    rate, rate_left = fitted(np.asarray(radii, dtype=np.float64))
    low, high = np.quantile(power[1:], [0.025, 0.975])
    return Growth(
        exponent=float(power[0]),
        low=float(low),
        high=float(high),
        rate=float(rate[0]),
        share=float(np.mean(power_left[1:] < rate_left[1:])),
    )
