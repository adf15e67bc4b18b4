"""Whether a plan is better than uniform budgets, and what is closest to dense of all measured.

Configurations are compared by the logarithms of their distances from dense, paired passage by
passage, with Student's interval over passages. An interval that lies on one side of 0 decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from scipy import special

from esscher.core.validation import Array
from esscher.math.statistics import LEVEL
from esscher.math.statistics.means import exponentials
from esscher.studies.plan.result import Mean, Verdict

N = TypeVar("N", bound=str)

#: Share of checks, with as many passages as :func:`passages_needed` says, that decide.
POWER = 0.8
#: More passages than this are no advice.
MOST_PASSAGES = 100_000


def paired_ratio(over: Array, under: Array) -> Mean:
    """How many times larger distances are than others on the same passages, with interval."""
    return mean_exponential(np.log(over / under))


def mean_exponential(logs: Array) -> Mean:
    """Exponential of the mean of logarithms over passages, with interval."""
    found = exponentials(logs[:, None])
    return Mean(mean=found["mean"][0], interval=ends_of(found["interval"][0]))


def ends_of(interval: list[float] | None) -> tuple[float, float] | None:
    """Return the ends of an interval as records hold them."""
    return None if interval is None else (interval[0], interval[1])


def verdict_of(ratio: Mean) -> Verdict:
    """Judge the plan by the ratio of the distance of another configuration to its own."""
    interval = ratio.interval
    if interval is not None and interval[0] > 1:
        return "better"
    if interval is not None and interval[1] < 1:
        return "worse"
    return "undecided"


def passages_needed(over: Array, under: Array) -> int | None:
    """Passages in all with which a check would decide in 4 of 5 cases.

    That is the smallest n with ``|m| >= (t_0.975 + t_0.8) s / sqrt(n)`` (Student's quantiles with
    n - 1 degrees of freedom), m the mean and s the spread of the paired logarithms of the ratio. It
    assumes that both stay what they are on the passages at hand, and that passages are independent.
    None if there is no spread yet, or if m is so small that no reasonable number decides.
    """
    logs = np.log(over / under)
    if len(logs) < 2:
        return None
    mean, spread = abs(float(logs.mean())), float(logs.std(ddof=1))
    n = np.arange(2, MOST_PASSAGES + 1)
    quantiles = special.stdtrit(n - 1, (1 + LEVEL) / 2) + special.stdtrit(n - 1, POWER)
    enough = mean > quantiles * spread / np.sqrt(n)
    return int(n[np.argmax(enough)]) if enough.any() else None


def closest(distances: Mapping[N, Array]) -> list[N]:
    """Names of the configurations closest to dense, the closest first.

    More than one if the passages cannot tell them from the closest.
    """
    order = sorted(distances, key=lambda name: float(np.log(distances[name]).mean()))
    first = distances[order[0]]
    return [
        name
        for name in order
        if name == order[0] or verdict_of(paired_ratio(distances[name], first)) != "better"
    ]
