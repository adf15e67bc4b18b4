"""The error of a head's outputs over n tokens from one pass, and the n that a tolerance takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.sampled.layer import HeadNumbers
from esscher.math.theory.cloud_table import map_errors

#: Queries at which the exact error is evaluated, and up to which factor around the first guess.
EXACT, AROUND = 4, 8.0
#: Largest number of tokens that is told from "never".
MOST = 1e8
#: Queries whose weights are in memory at a time.
QUERY_BLOCK = 1024


class MapError:
    """Relative error of a head's outputs over n tokens drawn with replacement from its cloud.

    A query that attends n tokens drawn from N has the mean square error ``D/n`` for large n,
    ``D = N sum_j p_j^2 |v_j - y|^2``, and ``S = (1/N) sum_j |v_j - y|^2`` at n = 1. Between them
    ``1/((n - 1)/D + 1/S)`` is close, and costs one pass for all queries. What it misses is measured
    at a few queries by the exact formula and divided out. Queries differ widely: 16 of them, with
    the exact formula alone, give the number of tokens of a head of MiniLM with a standard deviation
    of 7 to 37%; all of them with 8 exact ones, to 0.3%.

    Parameters
    ----------
    numbers
        One pass of a head.
    seed
        Seed of the choice of the queries with the exact formula.
    """

    def __init__(self, numbers: HeadNumbers, seed: int) -> None:
        self.large, self.small = _square_errors(numbers)
        self.norm = numbers.norm
        count = len(numbers.tilts)
        rng = random_stream(seed, "tokens needed")
        self.rows = rng.choice(count, size=min(EXACT, count), replace=False)
        logits = numbers.logits(self.rows).astype(np.float64)
        outputs = numbers.outputs[self.rows]
        self.exact = map_errors(logits, numbers.values, outputs, 2.0, MOST)

    def between(self, n: Array) -> Array:
        """``1/((n - 1)/D + 1/S)`` of every query, [query, size]; 0 where D or S is."""
        d, s = self.large[:, None], self.small[:, None]
        bottom = (n - 1) * s + d
        return np.divide(d * s, bottom, out=np.zeros_like(bottom), where=bottom > 0)

    def squares(self, n: Array, weights: Array | None = None) -> Array:
        """Return mean square errors at sizes n, [..., size]; queries have equal weights or these.

        Weights are [..., query].
        """
        each = self.between(n)
        exact, known = self.exact(n).mean(axis=0), each[self.rows].mean(axis=0)
        # all weights on identical values: no error, and nothing to correct
        ratio = np.divide(exact, known, out=np.ones_like(exact), where=known > 0)
        mean = each.mean(axis=0) if weights is None else weights @ each
        return np.asarray(mean * ratio)

    def tokens_for(self, tolerance: float) -> float:
        """Return the tokens from which the error is at most ``tolerance``; infinite beyond 1e8.

        The error is the root mean square over the queries, relative to that of the outputs.
        """
        wanted = (tolerance * self.norm) ** 2
        if wanted <= 0:
            return np.inf
        guess = _crossing(lambda n: self.between(n).mean(axis=0), wanted, 2.0, MOST)
        low, high = _around(min(guess, MOST))
        tokens = _crossing(self.squares, wanted, low, high)
        if (tokens <= low and low > 2) or (tokens >= high and high < MOST):
            tokens = _crossing(self.squares, wanted, 2.0, MOST)
        return tokens


def _around(middle: float) -> tuple[float, float]:
    """Range of sizes around a guess."""
    return max(2.0, middle / AROUND), min(MOST, max(middle * AROUND, 4.0))


def _square_errors(numbers: HeadNumbers) -> tuple[Array, Array]:
    """D and S of every query; see :class:`MapError`."""
    values = torch.from_numpy(np.asarray(numbers.values, dtype=np.float32))
    count = len(values)
    squares = values.square().sum(1)
    large, small = [], []
    for start in range(0, len(numbers.tilts), QUERY_BLOCK):
        rows = np.arange(start, min(start + QUERY_BLOCK, len(numbers.tilts)))
        logits = torch.from_numpy(np.asarray(numbers.logits(rows), dtype=np.float32))
        outputs = torch.from_numpy(np.asarray(numbers.outputs[rows], dtype=np.float32))
        weights = torch.softmax(logits, dim=-1).square_()
        norms = outputs.square().sum(1)
        # sum_j p_j^2 |v_j - y|^2, the square multiplied out
        cross = ((weights @ values) * outputs).sum(1)
        large.append(count * (weights @ squares - 2 * cross + norms * weights.sum(1)))
        small.append(squares.mean() - 2 * outputs @ values.mean(0) + norms)
    first, second = (torch.cat(parts).clamp_min(0).double().numpy() for parts in (large, small))
    return first, second


def _crossing(curve: Callable[[Array], Array], wanted: float, low: float, high: float) -> float:
    """Where a falling curve reaches ``wanted``, by interpolation in logarithms on a grid."""
    count = max(8, int(np.ceil(3 * np.log(high / low))))
    n = np.unique(np.geomspace(low, high, count).round())
    values = curve(n)
    below = np.flatnonzero(values <= wanted)
    if not below.size:
        return np.inf if high >= MOST else high
    i = int(below[0])
    if i == 0 or values[i] <= 0:
        return float(n[i])
    x = np.interp(-np.log(wanted), -np.log(values[[i - 1, i]]), np.log(n[[i - 1, i]]))
    return float(np.exp(x))
