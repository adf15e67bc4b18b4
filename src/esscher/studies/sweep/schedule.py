"""Which replicates a sweep measures, and up to which size.

Without a precision all replicates go up to the largest size. With one, batches follow the first:
each goes up to the size at which a second of work lowers the variance of the fitted slope most. The
mean error at a small size costs next to nothing to know well, so that nearly all the time goes to
what only large sizes can tell.

With ``R_j`` replicates at size j (those of a larger size count at the smaller ones too), relative
covariances ``S_jl`` of a replicate's errors and slope ``sum_j c_j log(mean error_j)``,

    Var(slope) = sum_jl c_j c_l S_jl / R_min(j,l).

Every choice is a function of the errors of the batches before it, and of nothing else: a run that
was killed and resumed, on any number of workers, makes the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from esscher.core.validation import Array

#: Work of one token, in units of one pair of tokens: sampling it, projecting it, its limit.
TOKEN_WORK = 500.0
#: A batch takes at most this share of the work before it, so that judgements stay rare.
SHARE = 0.5


class Batch(NamedTuple):
    """Replicates ``start`` to ``stop - 1``, measured at the first ``depth`` sizes."""

    start: int
    stop: int
    depth: int


@dataclass(frozen=True, eq=False)
class WorkModel:
    """Work of a replicate that goes up to each size, in units of one up to the largest."""

    work: Array

    @classmethod
    def for_sizes(cls, sizes: Array, queries: int | None) -> WorkModel:
        """``queries`` is the number of queries of a replicate, ``None`` when all tokens ask."""
        asking = sizes if queries is None else np.minimum(sizes, queries)
        work = asking * sizes + TOKEN_WORK * sizes
        return cls(work / work[-1])

    def spent(self, batches: list[Batch]) -> float:
        """Work of some batches."""
        return float(sum((b.stop - b.start) * self.work[b.depth - 1] for b in batches))


def counts_at(batches: list[Batch], sizes: int) -> Array:
    """Number of replicates at each size."""
    counts = np.zeros(sizes)
    for batch in batches:
        counts[: batch.depth] += batch.stop - batch.start
    return counts


def slope_weights(log_sizes: Array, counts: Array) -> Array:
    """Coefficients ``c_j`` of a least-squares slope whose points weigh as their counts."""
    weights = counts / counts.sum()
    centred = log_sizes - weights @ log_sizes
    return np.asarray(weights * centred / (weights @ centred**2))


def slope_variance(log_sizes: Array, counts: Array, covariance: Array) -> float:
    """``Var(slope)`` above."""
    weights = slope_weights(log_sizes, counts)
    j = np.arange(len(counts))
    shared = counts[np.minimum(j[:, None], j[None, :])]
    return float(weights @ (covariance / shared) @ weights)


def next_batch(
    batches: list[Batch], log_sizes: Array, covariance: Array, model: WorkModel, left: float
) -> Batch | None:
    """The batch that lowers the variance of the slope most for its work; ``None`` if none fits.

    Parameters
    ----------
    batches
        What is there already.
    log_sizes
        Logarithms of the sizes.
    covariance
        Relative covariance of a replicate's errors between the sizes.
    model, left
        What replicates cost, and how much may still be spent.
    """
    counts = counts_at(batches, len(log_sizes))
    now = slope_variance(log_sizes, counts, covariance)
    spent, start = model.spent(batches), batches[-1].stop
    best, gain = None, 0.0
    for depth in range(1, len(log_sizes) + 1):
        each = float(model.work[depth - 1])
        # never more than doubling a count: the gain of the next ones is then another one
        most = min(int(min(SHARE * spent, left) / each + 1e-9), int(counts[depth - 1]))
        if most < 1:
            if each > left + 1e-9:
                continue
            most = 1
        more = counts.copy()
        more[:depth] += most
        lower = (now - slope_variance(log_sizes, more, covariance)) / (most * each)
        if lower > gain:
            best, gain = Batch(start, start + most, depth), lower
    return best
