"""Direct simulation for the tests of the theory layer."""

from __future__ import annotations

import numpy as np
from scipy.interpolate import CubicSpline

from esscher import Head, OutputMoments, limit_moments
from esscher.sweep.direct import DirectErrors, direct_errors
from esscher.validation import Array


def simulate(
    head: Head,
    sizes: list[int],
    replicates: int,
    queries: str = "tokens",
    seed: int = 1,
    query_count: int | None = None,
) -> DirectErrors:
    limit = limit_moments(head)
    assert isinstance(limit, OutputMoments)
    return direct_errors(
        head,
        sizes,
        replicates=replicates,
        seed=seed,
        queries=queries,
        limit=(limit.mean, limit.covariance),
        query_count=query_count,
    )


def simulate_line(
    h: float, sizes: list[int], replicates: int, seed: int
) -> tuple[Array, Array, Array]:
    """Errors of mean and covariance in one dimension, M = h, per replicate and size.

    The output is a smooth function of the query: it is computed on a grid of tilts, which makes
    n = 10^5 affordable. Returns the error of the mean with population queries, then the errors of
    mean and variance with the tokens as queries.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(17,)))
    top = 8.5 * abs(h)
    grid = np.linspace(-top, top, 201)
    mass = np.exp(-((grid / h) ** 2) / 2)
    mass /= mass.sum()
    population = np.empty((replicates, len(sizes)))
    mean, variance = np.empty_like(population), np.empty_like(population)
    for r in range(replicates):
        sample = rng.standard_normal(sizes[-1])
        for i, n in enumerate(sizes):
            x = sample[:n]
            shift = np.where(grid > 0, grid * x.max(), grid * x.min())
            top_sum, bottom_sum = np.zeros(len(grid)), np.zeros(len(grid))
            for start in range(0, n, 20_000):
                part = x[start : start + 20_000]
                weight = np.exp(np.outer(grid, part) - shift[:, None])
                top_sum += weight @ part
                bottom_sum += weight.sum(axis=1)
            output = top_sum / bottom_sum
            own = CubicSpline(grid, output)(np.clip(h * x, -top, top))
            population[r, i] = mass @ output
            mean[r, i], variance[r, i] = own.mean(), own.var() - h * h
    return population, mean, variance
