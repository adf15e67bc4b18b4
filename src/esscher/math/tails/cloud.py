"""The tails of a cloud of tokens: the worst projection of one half, judged on the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_array
from esscher.core.variables import bounds
from esscher.math.statistics import LEVEL
from esscher.math.statistics.tail import tail_shape
from esscher.math.tails.candidates import (
    Cloud,
    compare_thresholds,
    sums_by_group,
    variance_proxy,
)

#: Fewest passages, so that each half has two.
FEWEST_PASSAGES = 4


def split_passages(groups: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Half of the passages, drawn at random, as a mask of their tokens.

    Raises
    ------
    InputError
        For fewer than four passages.
    """
    names, index, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < FEWEST_PASSAGES:
        raise InputError(
            f"the tokens come from {len(names)} passages; it takes at least {FEWEST_PASSAGES} to "
            "search for directions in some and judge them on the others: give more tokens, or "
            "shorter passages"
        )
    order = random_stream(seed, "tail halves").permutation(len(names))
    chosen = np.zeros(len(names), dtype=bool)
    taken = [0, 0]
    for name in order:
        # to the half that has fewer tokens so far
        side = int(taken[1] < taken[0])
        chosen[name] = side == 0
        taken[side] += int(sizes[name])
    return np.asarray(chosen[index])


# The direction in which a cloud of tokens has the worst tail, searched for, not assumed.
#
# In whitened coordinates z (identity covariance) the kurtosis of a projection is the convex
# function ``E <u, z>^4`` of the unit vector u, and the moment generating function at strength t is
# the convex function ``E exp(t <u, z>)``. For such functions the step ``u <- gradient /
# |gradient|`` never goes down. It is taken from many starts at once; for the kurtosis a Gaussian
# cloud's part of the gradient is taken out first, which makes the steps much longer where they are
# safe.
#
# A single token z is a local maximum when ``|z|^4`` is more than the number of tokens. Directions
# are therefore searched for among the leading principal axes only where there are many, and chosen
# by the smallest value that is left when any one passage is left out.

#: Variances below this share of the largest are taken for rounding.
ROUNDING = 1e-10
#: Strength of the tilt at which the moment generating function is searched; larger ones see single
#: tokens only.
STRENGTH = 1.0
#: Share of the Gaussian part of the gradient that is taken out.
TAKEN_OUT = 0.9
#: Directions that move by less than this (radians) have arrived.
ARRIVED = 1e-3
#: Projections are cut here before the exponential, which float32 could not hold.
CUT = 60.0


@dataclass(frozen=True)
class Effort:
    """How hard to search.

    Attributes
    ----------
    random, axes, tokens
        Starts: random directions, principal and coordinate axes with the largest kurtosis, and
        tokens of the largest norm.
    steps
        Most steps from each start.
    """

    random: int
    axes: int
    tokens: int
    steps: int


#: What ``esscher tails`` does, and what a probe can afford for every head.
THOROUGH, QUICK = Effort(16, 12, 8, 30), Effort(4, 6, 4, 15)


def whitening(tokens: Array, most: int | None = None) -> tuple[Array, Array, Array]:
    """Coordinates ``z = axes' (x - mean)`` in which a cloud has mean 0 and identity covariance.

    Returns
    -------
    tuple
        Mean of the tokens (one per row); the axes, whose columns belong to at most so many
        principal axes, largest variance first; and ``axes' Cov``, which takes a direction of tokens
        to one of whitened coordinates.
    """
    mean = tokens.mean(axis=0)
    centred = tokens - mean
    covariance = centred.T @ centred / len(tokens)
    values, vectors = np.linalg.eigh(covariance)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = np.flatnonzero(values > ROUNDING * values[0])[:most]
    axes = vectors[:, kept] / np.sqrt(values[kept])
    return mean, axes, axes.T @ covariance


def worst_directions(
    tokens: Array, groups: NDArray[np.int64], effort: Effort, seed: int, half: int
) -> tuple[Array, Array]:
    """Search one half of a cloud for the direction of its worst tail, of norm 1 among the tokens.

    Parameters
    ----------
    tokens
        One per row.
    groups
        Passage of each.
    effort
        How hard.
    seed, half
        Of the random starts.

    Returns
    -------
    tuple
        Direction of the largest kurtosis, and that of the largest moment generating function, its
        heavy side positive.
    """
    # As many axes as keep |z|^4 ~ axes^2 of a typical token below the number of tokens.
    mean, axes, back = whitening(tokens, most=max(2, int(np.sqrt(len(tokens)))))
    z = (tokens - mean) @ axes
    d = z.shape[1]
    # Coordinate axes: outliers of hidden states are known to live on them.
    spread = tokens.std(axis=0)
    straight = np.flatnonzero(spread > 1e-5 * spread.max())
    standard = (tokens[:, straight] - mean[straight]) / spread[straight]
    on_axes = np.argsort(-np.mean(_fourth(z), axis=0))[: effort.axes]
    on_straight = straight[np.argsort(-np.mean(_fourth(standard), axis=0))[: effort.axes]]
    largest = np.argsort(-np.sum(z**2, axis=1))[: effort.tokens]
    rng = random_stream(seed, "tail directions", half)
    starts = np.hstack(
        [
            np.eye(d)[:, on_axes],
            back[:, on_straight],
            z[largest].T,
            rng.standard_normal((d, effort.random)),
        ]
    )
    # a direction to seven digits is more than enough, at half the cost
    single = z.astype(np.float32)
    directions = axes @ _ascend_kurtosis(single, _unit(starts), effort.steps)
    directions = np.hstack([directions, np.eye(len(spread))[:, on_straight]])
    projected = _standard((tokens - mean) @ directions)
    score = _without_any(_fourth(projected), projected**2, groups)
    order = np.argsort(-score)
    # both sides of the best of them, and of the most skewed principal axes
    skew = np.argsort(-np.abs(np.mean(z * z * z, axis=0)))[: effort.axes // 2]
    seeds = np.hstack([back @ directions[:, order[: effort.axes // 2]], np.eye(d)[:, skew]])
    seeds = np.hstack([seeds, -seeds])
    tilted = axes @ _ascend_generating(single, _unit(seeds), effort.steps)
    best = directions[:, order[0]]
    tilted = np.hstack([tilted, best[:, None], -best[:, None]])
    weights = np.exp(STRENGTH * _standard((tokens - mean) @ tilted))
    steepest = int(np.argmax(_without_any(weights, None, groups)))
    return best / np.linalg.norm(best), tilted[:, steepest] / np.linalg.norm(tilted[:, steepest])


def _ascend_kurtosis(z: NDArray[np.float32], start: Array, steps: int) -> Array:
    """Climb ``E <u, z>^4`` from the columns given; a step that went down is taken again."""
    u = start.astype(np.float32)
    taken = np.full(u.shape[1], 3 * TAKEN_OUT, np.float32)
    before, value = u, np.full(u.shape[1], -np.inf, np.float32)
    for _ in range(steps):
        p = z @ u
        square = p * p
        cube = square * p
        now = np.einsum("ij,ij->j", square, square) / len(z)
        down = now < value
        # back to where it was; from there with the whole gradient, which cannot go down
        taken[down] = 0.0
        u = np.where(down, before, u)
        if down.any():
            p = z @ u[:, down]
            cube[:, down] = p * p * p
            now[down] = value[down]
        before, value = u, now
        u = _unit(z.T @ cube / len(z) - taken * u)
        if np.all(np.abs(np.sum(u * before, axis=0)) > 1 - ARRIVED**2 / 2):
            break
    return u.astype(np.float64)


def _ascend_generating(z: NDArray[np.float32], start: Array, steps: int) -> Array:
    """Climb ``E exp(t <u, z>)`` from the columns given."""
    u = start.astype(np.float32)
    for _ in range(steps):
        before = u
        u = _unit(z.T @ np.exp(np.minimum(STRENGTH * (z @ u), CUT)))
        if np.all(np.sum(u * before, axis=0) > 1 - ARRIVED**2 / 2):
            break
    return u.astype(np.float64)


def _without_any(above: Array, below: Array | None, groups: NDArray[np.int64]) -> Array:
    """Smallest value of ``mean above / (mean below)^2`` when one passage is left out, by column."""

    def mean(values: Array) -> Array:
        sums, sizes = sums_by_group(values, groups)
        whole = sums.sum(axis=0)
        if len(sizes) == 1:  # nothing to leave out
            return np.asarray(sums / sizes)
        return np.asarray((whole - sums) / (len(groups) - sizes[:, None]))

    ratio = mean(above) if below is None else mean(above) / mean(below) ** 2
    return np.asarray(ratio.min(axis=0))


def _fourth(values: Array) -> Array:
    """Fourth powers: ``**4`` of an array takes twenty times as long as two squares."""
    square = values * values
    return np.asarray(square * square)


def _standard(values: Array) -> Array:
    centred = values - values.mean(axis=0)
    return np.asarray(centred / centred.std(axis=0))


def _unit(columns: Any) -> Any:
    return columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-30)


# The tails of one cloud of tokens: worst projection, sub-Gaussian parameter, types, norms.

#: Fewest tokens: below, neither search nor fit says anything.
FEWEST = 500
#: Groups of passages of which one at a time is left out, for intervals of k-hat.
JACKKNIFE = 8


def cloud_tails(
    tokens: ArrayLike, index: NDArray[np.int64], *, seed: int, effort: Effort
) -> tuple[Cloud, Array]:
    """Look for the worst direction of a cloud in one half and judge it on the other, both ways.

    Halves are made of whole passages. The projections on which everything is judged are those of
    each half on the direction found in the other one, standardised and put together: no value is
    judged along a direction that it had a part in choosing.

    Parameters
    ----------
    tokens
        One per row.
    index
        Passage of each token.
    seed
        Of halves, starts and resampling.
    effort
        How hard to search.

    Returns
    -------
    tuple
        The numbers, and what they were computed from: the standardised projection of each token.

    Raises
    ------
    InputError
        For fewer than 500 tokens or 4 passages, and for tokens that are all the same.
    """
    rows = as_array(tokens, "tokens", 2)
    if len(rows) < FEWEST:
        raise InputError(f"there are {len(rows)} tokens; it takes at least {FEWEST} to see a tail")
    if not np.any(rows.std(axis=0) > 0):
        raise InputError("all tokens are the same; they have no tail")
    first = split_passages(index, seed)
    parts = [~first, first]
    # of each half: direction of the largest kurtosis, and of the largest generating function
    directions = [
        worst_directions(rows[half], index[half], effort, seed, number)
        for number, half in enumerate((first, ~first))
    ]
    peaked = [peak for peak, _ in directions]
    # standardised projections of each half on the direction found in the other
    kurtosis, generating = np.empty(len(rows)), np.empty(len(rows))
    for half, (peak, slope) in zip(parts, directions, strict=True):
        for projection, direction in ((kurtosis, peak), (generating, slope)):
            projected = rows[half] @ direction
            projected = projected - projected.mean()
            projection[half] = projected / projected.std()
    # of the projections on both, which is the cosine in whitened coordinates
    cosine = float(np.corrcoef(rows @ peaked[0], rows @ peaked[1])[0, 1])
    proxies = tuple(variance_proxy(generating[part], index[part], seed) for part in parts)
    # The larger of the two would be larger the less they agree, hence their geometric mean; its
    # interval spans both, which know nothing of the choice of the direction: that matters more
    # than the tokens along it.
    values, lows, highs = zip(*proxies, strict=True)
    size = np.abs(kurtosis)
    numbers = Cloud(
        tokens=len(rows),
        passages=len(np.unique(index)),
        kurtosis=_kurtosis(kurtosis, index),
        proxy=[float(np.exp(np.mean(np.log(values)))), min(lows), max(highs)],
        tail=tuple(compare_thresholds(size, index)),
        tail_halves=tuple(tuple(compare_thresholds(size[part], index[part])) for part in parts),
        proxy_halves=proxies,
        largest=float(size.max()),
        agreement=abs(cosine),
    )
    return numbers, kurtosis


def _kurtosis(projection: Array, groups: NDArray[np.int64]) -> list[float]:
    """Excess kurtosis with an interval from its variation between passages (delta method)."""
    square = projection**2
    fourth = square * square
    value = float(np.mean(fourth))
    # influence of a token on E p^4 / (E p^2)^2, at E p^2 = 1
    influence = fourth - value - 2 * value * (square - 1)
    sums, sizes = sums_by_group(influence[:, None], groups)
    count = len(sizes)
    error = float(np.sqrt(np.sum(sums**2) * count / (count - 1))) / len(projection)
    reach = float(scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2)) * error
    return [value - 3, value - 3 - reach, value - 3 + reach]


def norm_shape(tokens: Array, groups: NDArray[np.int64]) -> list[float]:
    """k-hat of the norms of tokens in whitened coordinates, with a jackknife interval."""
    mean, axes, _ = whitening(tokens)
    norms = np.linalg.norm((tokens - mean) @ axes, axis=1)
    return _jackknifed(lambda kept: tail_shape(norms[kept]).k, groups)


def logit_shape(logits: Array, groups: NDArray[np.int64]) -> list[float]:
    """k-hat of the upper tail of logits ``[query, key]``: median over queries, with interval."""
    return _jackknifed(
        lambda kept: float(np.median([tail_shape(row[kept]).k for row in logits])), groups
    )


def _jackknifed(
    statistic: Callable[[NDArray[np.bool_]], float], groups: NDArray[np.int64]
) -> list[float]:
    """A statistic with the interval of the delete-a-group jackknife over passages.

    Without a value where the tail consists of equal tokens, such as the embeddings of a text.
    """
    index = np.unique(groups, return_inverse=True)[1]
    parts = index % min(JACKKNIFE, index.max() + 1)
    count = int(parts.max()) + 1
    try:
        value = statistic(np.ones(len(index), dtype=bool))
        without = np.array([statistic(parts != part) for part in range(count)])
    except InputError:
        return bounds(None, None)
    error = float(np.sqrt((count - 1) / count * np.sum((without - without.mean()) ** 2)))
    reach = float(scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2)) * error
    return [value, value - reach, value + reach]
