"""The tails of one cloud of tokens: worst projection, sub-Gaussian parameter, types, norms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from esscher.core.codec import Estimate
from esscher.core.errors import InputError
from esscher.core.validation import Array, as_array
from esscher.math.statistics import LEVEL
from esscher.math.statistics.tail import tail_shape
from esscher.math.tails.candidates import (
    Cloud,
    VarianceProxy,
    compare_thresholds,
    variance_proxy,
)
from esscher.math.tails.directions import (
    THOROUGH,
    Effort,
    blocks,
    split_passages,
    sums_by_group,
    whitening,
    worst_directions,
)

#: Fewest tokens: below, neither search nor fit says anything.
FEWEST = 500
#: Groups of passages of which one at a time is left out, for intervals of k-hat.
JACKKNIFE = 8


def cloud_tails(
    tokens: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    seed: int = 0,
    effort: Effort = THOROUGH,
) -> tuple[Cloud, Array]:
    """Look for the worst direction of a cloud in one half and judge it on the other, both ways.

    Halves are made of whole passages. The projections on which everything is judged are those of
    each half on the direction found in the other one, standardised and put together: no value is
    judged along a direction that it had a part in choosing.

    Parameters
    ----------
    tokens
        One per row.
    groups
        Passage of each token; blocks of consecutive ones if left out.
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
    index = blocks(len(rows)) if groups is None else np.asarray(groups, dtype=np.int64)
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
    largest = max(proxies, key=lambda proxy: proxy.value)
    proxy = VarianceProxy(
        value=float(np.exp(np.mean([np.log(half.value) for half in proxies]))),
        interval=(
            min(half.interval[0] for half in proxies),
            max(half.interval[1] for half in proxies),
        ),
        reach=min(half.reach for half in proxies),
        at=largest.at,
    )
    size = np.abs(kurtosis)
    numbers = Cloud(
        tokens=len(rows),
        passages=len(np.unique(index)),
        kurtosis=_kurtosis(kurtosis, index),
        proxy=proxy,
        tail=tuple(compare_thresholds(size, index)),
        tail_halves=tuple(tuple(compare_thresholds(size[part], index[part])) for part in parts),
        proxy_halves=proxies,
        largest=float(size.max()),
        agreement=abs(cosine),
    )
    return numbers, kurtosis


def _kurtosis(projection: Array, groups: NDArray[np.int64]) -> Estimate:
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
    return Estimate(value=value - 3, interval=(value - 3 - reach, value - 3 + reach))


def norm_shape(tokens: Array, groups: NDArray[np.int64]) -> Estimate:
    """k-hat of the norms of tokens in whitened coordinates, with a jackknife interval."""
    mean, axes, _ = whitening(tokens)
    norms = np.linalg.norm((tokens - mean) @ axes, axis=1)
    return _jackknifed(lambda kept: tail_shape(norms[kept]).k, groups)


def logit_shape(logits: Array, groups: NDArray[np.int64]) -> Estimate:
    """k-hat of the upper tail of logits ``[query, key]``: median over queries, with interval."""
    return _jackknifed(
        lambda kept: float(np.median([tail_shape(row[kept]).k for row in logits])), groups
    )


def _jackknifed(
    statistic: Callable[[NDArray[np.bool_]], float], groups: NDArray[np.int64]
) -> Estimate:
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
        return Estimate(value=None, interval=(None, None))
    error = float(np.sqrt((count - 1) / count * np.sum((without - without.mean()) ** 2)))
    reach = float(scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2)) * error
    return Estimate(value=value, interval=(value - reach, value + reach))
