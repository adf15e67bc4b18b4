"""Budgets of sampled keys by the central limit theorem, and how often they keep their promise.

vAttention (Desai et al. 2025, arXiv:2510.05688) keeps some keys and samples the others uniformly,
as many as the CLT asks for so that the sum of weights is within epsilon with probability 1 - delta.
The spread that goes into the budget is that of a pilot sample, as it has to be.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy

from esscher.core.validation import Array

#: Relative error that is promised, and the probability of missing it.
EPSILON, DELTA = 0.1, 0.1
#: Share of the keys in a pilot sample, and the fewest.
PILOT, FEWEST = 0.02, 32
#: Samples of which coverage is the share, and largest keys that are kept beside.
TRIALS, TOP = 40, 32


def budget_coverage(
    weights: Array, beside: float, rng: np.random.Generator
) -> Iterator[tuple[str, float]]:
    """Coverage of budgets for all of some keys, and for all but the largest of them.

    Parameters
    ----------
    weights
        Of the keys that can be sampled, in any unit.
    beside
        Sum of the weights of keys that are kept, in the same unit.
    rng
        Draws samples.
    """
    share, sampled = _coverage(weights, beside, rng)
    yield "coverage", share
    yield "sampled", sampled
    ordered = np.sort(weights)
    kept = min(TOP, len(weights) // 2)
    top = ordered[len(ordered) - kept :]
    yield "coverage_top", _coverage(ordered[: len(ordered) - kept], beside + top.sum(), rng)[0]


def _coverage(weights: Array, beside: float, rng: np.random.Generator) -> tuple[float, float]:
    """Share of trials within the promise, and mean budget as a share of the keys."""
    n = len(weights)
    total = beside + float(weights.sum())
    size = max(FEWEST, int(PILOT * n))
    pilot = weights[rng.integers(n, size=(TRIALS, size))]
    spread = pilot.std(axis=1, ddof=1)
    guess = beside + n * pilot.mean(axis=1)
    z = float(scipy.special.ndtri(1 - DELTA / 2))
    budget = np.ceil((z * n * spread / (EPSILON * guess)) ** 2)
    budget = np.clip(budget, size, n).astype(np.int64)
    right = 0
    for count in budget:
        # as many samples as keys: all of them are taken instead
        found = total if count == n else beside + n * weights[rng.integers(n, size=count)].mean()
        right += abs(found - total) <= EPSILON * total
    return right / len(budget), float(budget.mean() / n)
