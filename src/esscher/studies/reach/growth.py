"""The weight of one key when a text grows: from the logits at one length to all others.

The keys of the text that are neither first, recent nor the needle's are a cloud; a longer text has
more draws of it. The expected weight is the Laplace integral of :mod:`esscher.math.theory.reach`,
with the keys that are there at every length beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from esscher.core.validation import Array
from esscher.math.theory.reach import expected_weight
from esscher.math.theory.reach_noise import cloud_logits

#: Largest scale that is looked for, and halvings of the range.
STEEPEST, HALVINGS = 4.0, 18


@dataclass(frozen=True, eq=False)
class Grown:
    """Expected weights at numbers of other keys, and scales that keep the first weight.

    A scale is nan where none up to ``STEEPEST`` does so.
    """

    weights: Array
    scales: Array


def grown_weights(others: Array, needed: float, fixed: Array, counts: tuple[int, ...]) -> Grown:
    """Weights of a key at several numbers of other keys.

    Parameters
    ----------
    others
        Logits of the other keys at the length that was read.
    needed, fixed
        Logit of the key, and of those that are there at every length.
    counts
        Numbers of other keys, increasing.
    """
    mean = float(others.mean())
    noise = cloud_logits(others)
    beside = float(scipy.special.logsumexp(fixed - mean)) if len(fixed) else -np.inf
    weights = expected_weight(noise, needed - mean, 1.0, counts, beside)
    target = _mean_field(others, needed, fixed, len(others), 1.0)
    scales = [_kept(others, needed, fixed, count, target) for count in counts]
    return Grown(weights, np.array(scales))


def _mean_field(others: Array, needed: float, fixed: Array, count: float, scale: float) -> float:
    """Weight with the sum over other keys at its mean, which is what scales are chosen by."""
    top = max(float(others.max()), needed, float(fixed.max()) if len(fixed) else needed)
    own = np.exp(scale * (needed - top))
    noise = count * np.exp(scale * (others - top)).mean()
    return float(own / (own + noise + np.exp(scale * (fixed - top)).sum()))


def _kept(others: Array, needed: float, fixed: Array, count: float, target: float) -> float:
    """Smallest scale of at least 1 with this weight among more keys."""
    if _mean_field(others, needed, fixed, count, 1.0) >= target:
        return 1.0
    if _mean_field(others, needed, fixed, count, STEEPEST) < target:
        return float("nan")
    low, high = 1.0, STEEPEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        reached = _mean_field(others, needed, fixed, count, middle) >= target
        low, high = (low, middle) if reached else (middle, high)
    return high
