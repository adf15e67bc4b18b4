"""How many replicates would decide what those at hand leave undecided."""

from __future__ import annotations

from functools import cache

import numpy as np
import scipy

from esscher.core.validation import Array
from esscher.math.statistics.means import LEVEL

#: Share of studies, with as many replicates as :func:`replicates_needed` says, that decide.
POWER = 0.8
#: More replicates than this are no advice.
MOST = 100_000


def replicates_needed(distance: float, spread: float) -> int | None:
    """Replicates in all with which an interval would decide in 4 of 5 cases.

    That is the smallest n with ``distance >= (t_0.975 + t_0.8) spread / sqrt(n)`` (Student's
    quantiles with n - 1 degrees of freedom). It assumes that distance and spread stay what they
    are on the replicates at hand, and that replicates are independent.

    Parameters
    ----------
    distance
        How far the estimate lies from the value that must be excluded.
    spread
        Standard deviation of a single replicate.

    Returns
    -------
    int or None
        None if the distance is so small that no reasonable number decides, or not known.
    """
    n = np.arange(2, MOST + 1)
    enough = abs(distance) > _quantiles() * spread / np.sqrt(n)
    return int(n[np.argmax(enough)]) if enough.any() else None


@cache
def _quantiles() -> Array:
    """The sum of both quantiles for 2 to MOST replicates: made once, it takes 0.06 s."""
    freedom = np.arange(1, MOST)
    level, power = (scipy.special.stdtrit(freedom, at) for at in ((1 + LEVEL) / 2, POWER))
    return np.asarray(level + power)
