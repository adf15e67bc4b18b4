"""Constants of the parametric regime for bounded tokens of any law, by sampling exact terms.

Bounded tokens have bounded weights: every error falls like 1/sqrt(n) in the end. The constants are
averages over queries and tokens of terms that the law's cumulant generating function K gives in
closed form:

* map: the pointwise error of ``pointwise``, averaged over queries;
* mean: the variance of the linear part ``Gamma(q_x) - E Gamma + V psi(x)`` (the first two terms
  only when tokens are queries), ``psi(x) = E_q[exp(<t,x> - K(t)) (x - K'(t))]``.

Only the averages are sampled, so that each comes with a standard error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.heads import WeightHead
from esscher.math.theory.pointwise import pointwise_error

#: Tokens per batch, and number of batches (the spread between them gives the standard error).
TOKENS, BATCHES = 512, 16
#: Queries whose d x d matrices are held at a time.
BLOCK = 16


@dataclass(frozen=True)
class SampledConstants:
    """Limits of ``n E|error|^2`` for mean and map with standard errors.

    ``log_burn_in`` is the median over queries of ``K(2t) - 2 K(t)``: before its exponential a
    typical query has fewer than one effective token.
    """

    mean: float
    mean_error: float
    map: float
    map_error: float
    log_burn_in: float


def sampled_constants(head: WeightHead, queries: str, seed: int = 0) -> SampledConstants:
    """Sample the constants of a head over a bounded law."""
    rows = [_batch(head, queries, random_stream(seed, "constants", i)) for i in range(BATCHES)]
    mean, map_, inflation = (np.array(column) for column in zip(*rows, strict=True))
    scale = np.sqrt(BATCHES)
    return SampledConstants(
        float(mean.mean()),
        float(mean.std(ddof=1) / scale),
        float(map_.mean()),
        float(map_.std(ddof=1) / scale),
        float(np.median(inflation)),
    )


def _batch(head: WeightHead, queries: str, rng: np.random.Generator) -> tuple[float, float, float]:
    tokens = head.law.sample(TOKENS, rng)
    source = tokens if queries == "tokens" else head.law.sample(TOKENS, rng)
    tilts = head.tokens(source).tilts
    squares, inflations = [], []
    for start in range(0, TOKENS, BLOCK):
        error = pointwise_error(head, tilts[start : start + BLOCK])
        trace = np.trace(error.shape, axis1=-2, axis2=-1)
        squares.append(np.exp(error.log_inflation) * trace)
        inflations.append(error.log_inflation)
    mean = _mean_square(head, tokens, tilts, queries == "tokens")
    return mean, float(np.concatenate(squares).mean()), float(np.median(np.concatenate(inflations)))


def _mean_square(head: WeightHead, tokens: Array, tilts: Array, own: bool) -> float:
    """Second moment of the linear part, unbiased: two halves of the queries are multiplied."""
    law_tilts = head.law_tilts(tilts)
    output = head.limit_map(tilts) - head.value_bias
    values = tokens @ head.value_weight.T
    weights = np.exp(law_tilts @ tokens.T - head.law.log_mgf(law_tilts)[:, None])
    if own:
        np.fill_diagonal(weights, 0.0)  # a token's own query is independent of no key but its own
    even = np.arange(TOKENS) % 2 == 0
    parts = []
    for half in (even, ~even):
        count = half.sum() - (half if own else 0)
        received = (weights[half].sum(axis=0) / count)[:, None]
        part = received * values - weights[half].T @ output[half] / np.reshape(count, (-1, 1))
        parts.append(part + (output - output.mean(axis=0)) if own else part)
    centred = [part - part.mean(axis=0) for part in parts]
    return float(np.sum(centred[0] * centred[1]) / (TOKENS - 1))
