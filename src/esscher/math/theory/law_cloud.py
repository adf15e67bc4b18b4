"""Error curves of tokens of any law that can be sampled: from clouds drawn from it.

For tokens that are not Gaussian nothing is known in closed form. But n tokens of the law are nearly
n tokens of a cloud of N >> n tokens drawn from it, and over a cloud everything follows from one
pass (:mod:`cloud`). Several clouds are drawn, and their spread gives the standard error. A captured
head is a cloud already.

The cloud lacks the rarest tokens of the law: for n near N its errors are too small. Curves end at
``N / PER_TOKEN``.
"""

from __future__ import annotations

import numpy as np
import scipy

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.heads import ArrayHead, Head
from esscher.math.heads.head import Tokens
from esscher.math.theory.cloud import CloudErrors, cloud_errors
from esscher.math.theory.cloud_pass import CloudHead, Rows
from esscher.math.theory.curve import Curve

#: Tokens of a cloud for each token of the largest n, and bounds of their number.
PER_TOKEN, SMALLEST, LARGEST = 4, 2048, 16_384
#: Clouds that are drawn.
CLOUDS = 4
#: Queries whose attention to a whole cloud is held at a time.
BLOCK = 512


def largest_size(head: Head) -> float:
    """Largest n at which the errors of a head can be predicted from clouds."""
    return np.inf if isinstance(head, ArrayHead) else LARGEST / PER_TOKEN


def law_curves(head: Head, sizes: Array, queries: str, seed: int) -> dict[str, Curve]:
    """Predicted curves ``map``, ``mean``, ``mean_rms`` and ``cov_rms``.

    Parameters
    ----------
    head
        Any head with a limit.
    sizes
        Numbers of tokens, up to :func:`largest_size`.
    queries
        ``"tokens"`` or ``"population"``.
    seed
        Of the clouds, and of what is sampled of them.
    """
    if isinstance(head, ArrayHead):
        found = [
            cloud_errors(
                _cloud(head.take(np.arange(len(head.keys))), queries, None), sizes, seed=seed
            )
        ]
        method = f"one pass over the {len(head.keys):,} tokens"
    else:
        count = int(np.clip(PER_TOKEN * sizes.max(), SMALLEST, LARGEST))
        found = [_drawn(head, sizes, queries, count, seed, i) for i in range(CLOUDS)]
        method = f"one pass over each of {CLOUDS} drawn clouds of {count:,} tokens"
    validity = "second order in part (pairs of queries left out); no rarer tokens than in the cloud"
    curves = {
        "map": ("map", "rms", [e.map.rms for e in found], [e.map.standard_error for e in found]),
        "mean": ("mean", "mean", [e.mean.norm for e in found],
                 [e.mean.standard_error for e in found]),
        "mean_rms": ("mean", "rms", [e.mean.rms for e in found],
                     [e.mean.standard_error for e in found]),
        "cov_rms": ("cov", "rms", [e.cov.rms for e in found],
                    [e.cov.standard_error for e in found]),
    }  # fmt: skip
    return {
        name: Curve(metric, statistic, sizes, *_together(errors, noise), queries, method, validity)
        for name, (metric, statistic, errors, noise) in curves.items()
    }


def _drawn(head: Head, sizes: Array, queries: str, count: int, seed: int, i: int) -> CloudErrors:
    rng = random_stream(seed, "law cloud", i)
    asking = head.sample(count, rng).tilts if queries == "population" else None
    return cloud_errors(_cloud(head.sample(count, rng), queries, asking), sizes, seed=seed + i)


def _cloud(tokens: Tokens, queries: str, asking: Array | None) -> CloudHead:
    tilts = tokens.tilts if asking is None else asking
    outputs = np.empty((len(tilts), tokens.values.shape[1]))

    def logits(rows: Rows) -> Array:
        return np.asarray(tilts[rows] @ tokens.keys.T)

    for start in range(0, len(tilts), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(tilts)))
        found = logits(rows)
        weights = np.exp(found - found.max(axis=1, keepdims=True))
        outputs[rows] = weights @ tokens.values / weights.sum(axis=1, keepdims=True)
    own = np.arange(len(tilts)) if queries == "tokens" else None
    return CloudHead(tokens.values, outputs, logits, own)


def _together(errors: list[Array], noise: list[Array]) -> tuple[Array, Array]:
    """Root mean square over clouds, and its standard error: their spread, or that of one pass."""
    squares = np.square(errors)
    error = np.sqrt(squares.mean(axis=0))
    if len(errors) == 1:
        return error, np.asarray(noise[0])
    # The spread of so few is uncertain: it is widened by Student's quantile over the normal one (at
    # 95%), so that intervals of twice the error hold what they promise.
    wider = float(scipy.special.stdtrit(CLOUDS - 1, 0.975) / scipy.special.ndtri(0.975))
    spread = wider * squares.std(axis=0, ddof=1) / np.sqrt(len(errors))
    return error, np.asarray(spread / np.maximum(2 * error, 1e-300))
