"""Shape of the upper tail of a sample: the Pareto k-hat of importance sampling, with its error.

The estimate is that of ``arviz_stats``: a generalised Pareto law fitted to the largest values by
Zhang and Stephens' method, with a weak prior at 1/2 worth ten observations (Vehtari, Simpson,
Gelman, Yao, Gabry: Pareto smoothed importance sampling, JMLR 2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

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
        Without ``arviz_stats``, for too few values, and for a tail of equal values.
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
    # ``r_eff`` is only a way to say how long the tail is: the function takes 3 sqrt(n / r_eff).
    relative = 1.0 if count is None else 9 * n / (m + 0.5) ** 2
    found = _arviz().pareto_khat(np.asarray(values)[None], r_eff=relative, tail="right")
    k = float(found)
    return TailShape(k, (1 + max(k, 0.0)) / math.sqrt(m + PRIOR), m)


def _arviz() -> Any:
    # Imported here: it takes seconds, and most of the package does without.
    from arviz_stats.base import array_stats  # type: ignore[attr-defined]

    return array_stats
