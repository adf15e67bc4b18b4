"""Moments by sampling: random queries of a head, block by block, and moments summed over blocks.

The queries are a function of the seed alone; every entry has its standard error.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.heads import Head
from esscher.math.limits.results import OutputMoments

#: Queries drawn at a time; memory is bounded by a block.
BLOCK = 1024


def query_stream(seed: int) -> np.random.Generator:
    """Return the random stream of the queries of a seed."""
    return random_stream(seed, "limit queries")


def query_blocks(head: Head, samples: int, seed: int) -> Iterator[Array]:
    """Yield the tilts of ``samples`` independent queries in blocks of rows."""
    rng = query_stream(seed)
    for start in range(0, samples, BLOCK):
        yield head.sample(min(BLOCK, samples - start), rng).tilts


class MomentAccumulator:
    """Sums of products of rows up to fourth order; memory does not grow with the rows.

    The standard error of a covariance entry is that of the mean of
    ``(y_i - E y_i)(y_j - E y_j)``, so it needs ``E[y_i^2 y_j^2]`` and no normality.
    """

    def __init__(self) -> None:
        self._count = 0

    def add(self, rows: Array) -> None:
        """Take in a block of rows, of shape (n, d)."""
        if self._count == 0:
            dim = rows.shape[1]
            # Centring at the first block's mean keeps the sums free of cancellation.
            self._centre = rows.mean(axis=0)
            self._first = np.zeros(dim)
            self._second, self._third, self._fourth = (np.zeros((dim, dim)) for _ in range(3))
        u = rows - self._centre
        square = u * u
        self._count += len(rows)
        self._first += u.sum(axis=0)
        self._second += u.T @ u
        self._third += square.T @ u
        self._fourth += square.T @ square

    def moments(self, method: str, population: int | None = None) -> OutputMoments:
        """Mean, covariance and their standard errors.

        Parameters
        ----------
        method
            Name of the method, for the result.
        population
            Size N of the finite population that the rows were drawn from WITHOUT replacement; the
            squared errors shrink by ``1 - n/N`` and the covariance is the population's (divided
            by N). None for independent rows.
        """
        n = self._count
        shift = self._first / n
        second, third, fourth = self._second / n, self._third / n, self._fourth / n
        spread = second - np.outer(shift, shift)
        # E[(u_i - s_i)^2 (u_j - s_j)^2], expanded; s is the small mean left after centring.
        along = np.diag(second)[:, None] * shift**2
        mixed = third * shift
        products = (
            fourth
            - 2 * (mixed + mixed.T)
            + along
            + along.T
            + 4 * np.outer(shift, shift) * second
            - 3 * np.outer(shift**2, shift**2)
        )
        left = 1.0 if population is None else 1.0 - n / population
        unbiased = spread * (n / (n - 1))
        if population is not None:
            unbiased = unbiased * ((population - 1) / population)
        return OutputMoments(
            mean=self._centre + shift,
            covariance=(unbiased + unbiased.T) / 2,
            mean_error=np.sqrt(np.maximum(np.diag(unbiased), 0.0) * left / n),
            covariance_error=np.sqrt(np.maximum(products - spread**2, 0.0) * left / (n - 1)),
            method=method,
            samples=n,
        )
