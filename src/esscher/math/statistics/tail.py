"""Shape of the upper tail of a sample: the Pareto k-hat of importance sampling, with its error.

A generalised Pareto law is fitted to the largest values by the method of Zhang and Stephens
(Technometrics 2009), with a weak prior at 1/2 worth ten observations (Vehtari, Simpson, Gelman,
Yao, Gabry: Pareto smoothed importance sampling, JMLR 2024). It is the estimate of ``arviz_stats``,
with which a test compares; importing that package takes longer than most studies take to fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from esscher.core.errors import InputError
from esscher.core.validation import Array

#: Fewest values of which a tail (a fifth of them, at least 5) is fitted.
FEWEST_VALUES = 25
#: Observations that the prior of the estimate is worth, and the shape they have.
PRIOR, PRIOR_MEAN = 10, 0.5
#: From this k on, no number of values makes their mean worth anything.
HOPELESS = 0.99


@dataclass(frozen=True)
class TailShape:
    """Shape ``k`` of a tail: the probability of exceeding r falls like ``r^(-1/k)``.

    Attributes
    ----------
    k
        k-hat; at or below 0 the tail is lighter than any power.
    standard_error
        ``(1 + k)/sqrt(m + 10)``: that of maximum likelihood, with the observations of the prior.
    count
        Number m of values in the tail.
    """

    k: float
    standard_error: float
    count: int

    @property
    def without_prior(self) -> float:
        """k-hat as the values alone have it; in a short tail the prior lifts light ones a lot."""
        return (self.k * (self.count + PRIOR) - PRIOR_MEAN * PRIOR) / self.count


def values_needed(k: float) -> float:
    """Number of values from which their mean is worth anything, ``10^(1/(1 - k))``.

    The rule of Pareto smoothed importance sampling: 10 of them for light tails, infinitely many
    from k = 1 on.
    """
    return float(10 ** (1 / (1 - max(k, 0.0)))) if k < HOPELESS else math.inf


def tail_count(n: int) -> int:
    """Size of the tail of n values: ``3 sqrt(n)``, or a fifth of them below 225."""
    return int(3 * math.sqrt(n)) if n > 225 else n // 5


def tail_shape(values: Array, count: int | None = None) -> TailShape:
    """k-hat of the upper tail of positive values.

    Parameters
    ----------
    values
        At least 25 numbers of which the largest are not all equal.
    count
        Number of values in the tail, ``tail_count`` unless given; less than a fifth of them.

    Raises
    ------
    InputError
        For too few values, and for a tail of equal values.
    """
    n = len(values)
    if n < FEWEST_VALUES:
        raise InputError(f"{n} values have no tail to fit; it takes at least {FEWEST_VALUES}")
    m = tail_count(n) if count is None else count
    ordered = np.sort(values)[n - m - 1 :]
    # The fit divides by the first quartile of what exceeds the cut.
    if not (ordered[1 + (m - 1) // 4] > ordered[0] and ordered[-1] > ordered[1]):
        raise InputError(
            f"the largest {m} of {n} values have no tail to fit: too many of them are equal, to "
            f"{ordered[1]:g}"
        )
    k = _pareto_shape(ordered[1:] - ordered[0])
    return TailShape(k, (1 + max(k, 0.0)) / math.sqrt(m + PRIOR), m)


def _pareto_shape(excess: Array) -> float:
    """Shape of the generalised Pareto law of sorted values above a cut.

    The likelihood, profiled over the shape ``k(b) = mean ln(1 - b x)``, is averaged over a grid of
    b that Zhang and Stephens take for a prior; k is that of the mean b.
    """
    n = len(excess)
    count = 30 + int(math.sqrt(n))
    quartile = excess[int(n / 4 + 0.5) - 1]
    b = 1 - np.sqrt(count / (np.arange(1, count + 1) - 0.5))
    b = b / (3 * quartile) + 1 / excess[-1]
    shapes = np.mean(np.log1p(-b[:, None] * excess), axis=1)
    likelihood = n * (np.log(-b / shapes) - shapes - 1)
    weights = np.exp(likelihood - scipy.special.logsumexp(likelihood))
    heavy = weights >= 10 * np.finfo(float).eps  # the others are rounding
    middle = float(np.sum(b[heavy] * weights[heavy] / weights[heavy].sum()))
    alone = float(np.mean(np.log1p(-middle * excess)))
    return (n * alone + PRIOR * PRIOR_MEAN) / (n + PRIOR)
