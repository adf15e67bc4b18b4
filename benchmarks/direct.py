"""Direct Monte Carlo in float64: draw tokens, attend, compare with the limit.

The slow reference: predictions, and faster ways to measure, are checked against it. Memory is
bounded by a block; cost is queries times tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_dim, as_queries, as_sizes
from esscher.math.heads import Head, Tokens, as_head

#: Queries times keys whose logits are held at a time.
BLOCK = 1_000_000


def attend(tilts: Array, keys: Array, values: Array, block: int = BLOCK) -> Array:
    """Softmax attention of each tilt over all keys; ``block`` logits are held at a time."""
    rows = max(1, block // len(keys))
    output = np.empty((len(tilts), values.shape[1]))
    for start in range(0, len(tilts), rows):
        logits = tilts[start : start + rows] @ keys.T
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        output[start : start + rows] = logits @ values / logits.sum(axis=1, keepdims=True)
    return output


@dataclass(frozen=True, eq=False)
class DirectErrors:
    """Errors per replicate (first axis) and size (second axis).

    ``map_square`` is the mean over queries of the squared map error; ``mean`` the error vector of
    the mean output and ``cov`` the error matrix of its covariance.
    """

    sizes: Array
    queries: str
    map_square: Array
    mean: Array
    cov: Array

    def map_rms(self) -> tuple[Array, Array]:
        """Root-mean-square map error at each size, and its standard error."""
        square = self.map_square.mean(axis=0)
        error = self.map_square.std(axis=0, ddof=1) / np.sqrt(len(self.map_square))
        return np.sqrt(square), error / (2 * np.sqrt(square))


def direct_errors(
    head: Head,
    sizes: ArrayLike,
    *,
    replicates: int,
    seed: int,
    queries: str = "tokens",
    limit: tuple[Array, Array],
    query_count: int | None = None,
    purpose: str = "direct",
) -> DirectErrors:
    """Errors of attention over n tokens by direct simulation.

    Parameters
    ----------
    head
        Any head; replicate r draws its tokens from a stream that depends on (seed, r) only.
    sizes
        Numbers of tokens; a replicate uses the first n of one sample at every size.
    queries
        ``"tokens"``: the n tokens attend to each other. ``"population"``: ``query_count`` queries
        independent of the keys (default 256); the error of the limit's own mean and covariance over
        those queries is removed. Averages over so few queries still carry noise: the squared map
        error divided by ``query_count``, for the mean.
    limit
        Mean and covariance of the output in the limit.
    query_count
        With ``"tokens"``: number of the tokens used as queries (default all).
    purpose
        Purpose of the random streams; that of another simulator makes it draw the same tokens.
    """
    n = as_sizes(sizes).astype(int)
    as_dim(replicates, "replicates")
    as_queries(queries)
    d = as_head(head).value_dim
    square = np.empty((replicates, len(n)))
    mean, cov = np.empty((replicates, len(n), d)), np.empty((replicates, len(n), d, d))
    for r in range(replicates):
        rng = random_stream(seed, purpose, r)
        tokens = head.sample(int(n[-1]), rng)
        outside = head.sample(query_count or 256, rng) if queries == "population" else tokens
        for i, size in enumerate(n):
            used = min(size, query_count or size) if queries == "tokens" else len(outside.tilts)
            tilts = outside.tilts[:used]
            kept = Tokens(*(x[:size] for x in tokens))
            output, exact = attend(tilts, kept.keys, kept.values), head.limit_map(tilts)
            square[r, i] = np.mean(np.sum((output - exact) ** 2, axis=1))
            mean[r, i] = output.mean(axis=0) - limit[0]
            cov[r, i] = np.atleast_2d(np.cov(output.T, bias=True)) - limit[1]
            if queries == "population":
                mean[r, i] -= exact.mean(axis=0) - limit[0]
                cov[r, i] -= np.atleast_2d(np.cov(exact.T, bias=True)) - limit[1]
    return DirectErrors(n.astype(np.float64), queries, square, mean, cov)
