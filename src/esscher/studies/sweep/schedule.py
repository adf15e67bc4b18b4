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

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.statistics import LEVEL, resampling_counts
from esscher.runs.executors import one_blas_thread
from esscher.studies.sweep.study import METRICS, SweepSettings

#: Work of one token, in units of one pair of tokens: sampling it, projecting it, its limit.
TOKEN_WORK = 500.0
#: A batch takes at most this share of the work before it, so that judgements stay rare.
SHARE = 0.5


class Batch(NamedTuple):
    """Replicates ``start`` to ``stop - 1``, measured at the first ``depth`` sizes."""

    start: int
    stop: int
    depth: int


def replicate_work(sizes: Array, queries: int | None) -> Array:
    """Work of a replicate that goes up to each size, in units of one up to the largest.

    ``queries`` is the number of queries of a replicate, ``None`` when all tokens ask.
    """
    asking = sizes if queries is None else np.minimum(sizes, queries)
    work = asking * sizes + TOKEN_WORK * sizes
    return np.asarray(work / work[-1])


def spent(batches: list[Batch], work: Array) -> float:
    """Work of some batches."""
    return float(sum((b.stop - b.start) * work[b.depth - 1] for b in batches))


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
    batches: list[Batch], log_sizes: Array, covariance: Array, work: Array, left: float
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
    work, left
        What replicates up to each size cost, and how much may still be spent.
    """
    counts = counts_at(batches, len(log_sizes))
    now = slope_variance(log_sizes, counts, covariance)
    before, start = spent(batches, work), batches[-1].stop
    best, gain = None, 0.0
    for depth in range(1, len(log_sizes) + 1):
        each = float(work[depth - 1])
        # never more than doubling a count: the gain of the next ones is then another one
        most = min(int(min(SHARE * before, left) / each + 1e-9), int(counts[depth - 1]))
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


#: Resamples behind an interval.
RESAMPLES = 1000


def slope_half_widths(errors: Array, sizes: Array, seed: int) -> Array:
    """Half the width of the 95% interval of the log-log slope of the mean error, per scale.

    Parameters
    ----------
    errors
        Axes [scale, replicate, size]; ``nan`` at the sizes above the last of a replicate.
    sizes
        Numbers of tokens, at least two.
    seed
        Seed of the resampling. Replicates that end at the same size are resampled among themselves.

    Returns
    -------
    Array
        Infinite where there is no slope (one replicate, or errors that vanish).
    """
    scales, replicates, n = errors.shape
    depths = np.isfinite(errors[0]).sum(axis=1)
    if np.sum(depths == n) < 2 or n < 2:
        return np.full(scales, np.inf)
    rng = random_stream(seed, "slope", replicates)
    counts = np.array([np.sum(depths > j) for j in range(n)], dtype=np.float64)
    means = np.zeros((scales, RESAMPLES, n))
    for depth in np.unique(depths):
        chosen = errors[:, depths == depth, :depth]
        members = chosen.shape[1]
        times = resampling_counts(members, RESAMPLES, rng)
        means[:, :, :depth] += times @ chosen / counts[:depth]
    if not np.all(means > 0):
        return np.full(scales, np.inf)
    slopes = np.log(means) @ slope_weights(np.log(sizes), counts)
    low, high = np.quantile(slopes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    return np.asarray(high - low) / 2


def relative_covariance(errors: Array) -> Array:
    """Relative covariance of the errors [replicate, size] between sizes, from whole replicates."""
    whole = errors[np.isfinite(errors).all(axis=1)]
    relative = whole / whole.mean(axis=0)
    centred = relative - 1.0
    return np.asarray(centred.T @ centred / max(len(whole) - 1, 1))


def following_batch(
    settings: SweepSettings, batches: list[Batch], parts: Mapping[int, Array], folder: Path
) -> Batch | None:
    """Return the batch after some others; ``None`` at the end. Some replicates may be there.

    Parameters
    ----------
    settings
        Those of the sweep.
    batches
        The batches before.
    parts
        Errors of the replicates that are there, [metric, alpha, size]: all of the batches before.
    folder
        Directory of the run, for messages.

    Raises
    ------
    InputError
        If replicates of the batch are there that go up to other sizes.
    """
    sizes, batch = np.asarray(settings.sizes, dtype=np.float64), None
    if not batches:
        batch = Batch(0, settings.replicates, len(sizes))
    elif settings.precision is not None and settings.max_replicates is not None:
        errors = np.stack(
            [parts[r][METRICS.index("mean")] for r in range(batches[-1].stop)], axis=1
        )
        with one_blas_thread():
            widths = slope_half_widths(errors, sizes, settings.seed)
            widest = int(np.argmax(widths))
            if widths[widest] <= settings.precision:
                return None
            covariance = relative_covariance(errors[widest])
            work = replicate_work(sizes, settings.query_count)
            left = settings.max_replicates - spent(batches, work)
            batch = next_batch(batches, np.log(sizes), covariance, work, left)
    for replicate in (r for r in parts if batch and batch.start <= r < batch.stop):
        depth = int(np.isfinite(parts[replicate][0, 0]).sum())
        if batch and depth != batch.depth:
            raise InputError(
                f"{folder} holds replicate {replicate} up to size number {depth}, "
                f"not {batch.depth}: it was begun with another number of replicates before "
                "precision was judged; give the same one, or choose another directory"
            )
    return batch


def check_end(end: int, parts: Collection[int], folder: Path) -> None:
    """Refuse replicates beyond those that are asked for."""
    if parts and max(parts) >= end:
        raise InputError(
            f"{folder} holds {len(parts)} replicates, more than the {end} asked for now; "
            f"ask for at least {max(parts) + 1}, or choose another directory"
        )
