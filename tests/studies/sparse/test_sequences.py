"""Sequences around given queries: the exact Gaussian conditional law."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.math.laws import standard_law
from esscher.studies.sparse.measure import Sequences
from tests.studies.sparse.correlations import correlations


@pytest.mark.parametrize("rho", [0.8, -0.5])
def test_tokens_have_the_conditional_law(rho: float) -> None:
    positions, tokens, draws = np.array([2, 3, 6]), 8, 6_000
    sequences = Sequences.make(standard_law("gaussian", 1), tokens, rho, positions, seed=3)
    own, cross, queries = correlations(tokens, positions, rho)
    gain = cross @ np.linalg.inv(queries)
    mean, covariance = gain @ sequences.queries[:, 0], own - gain @ cross.T
    rng = random_stream(0, "test")
    found = np.array([sequences.draw(rng)[:, 0] for _ in range(draws)])
    deviation = (found.mean(axis=0) - mean) / np.sqrt(np.diag(covariance) / draws)
    assert np.abs(deviation).max() < 4
    spread = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / draws)
    assert (np.abs(np.cov(found.T) - covariance) / spread).max() < 4.5


def test_queries_are_continuations_of_their_neighbours() -> None:
    law, positions, rho = standard_law("gaussian", 1), np.arange(3, 1000, 5), 0.9
    values = [Sequences.make(law, 1000, rho, positions, seed).queries[:, 0] for seed in range(200)]
    found = np.cov(np.array(values).T)
    expected = correlations(1000, positions, rho)[2]
    error = np.sqrt((1 + expected**2) / 200)
    # a bound for about 40,000 correlated entries
    assert (np.abs(found - expected) / error).max() < 6
    assert np.mean(np.diag(found)) == pytest.approx(1.0, abs=4 * np.sqrt(2 / 200 / 60))


def test_independent_tokens_do_not_know_the_queries() -> None:
    law = standard_law("cube", 3)
    sequences = Sequences.make(law, 50, 0.0, np.array([10, 20]), seed=1)
    assert sequences.queries.shape == (2, 3)
    drawn = sequences.draw(random_stream(0, "test"))
    assert np.array_equal(drawn, law.sample(50, random_stream(0, "test")))


def test_what_cannot_be_made() -> None:
    at = np.array([3])
    with pytest.raises(InputError, match="between -1 and 1"):
        Sequences.make(standard_law("gaussian", 1), 10, 1.0, at, 0)
    with pytest.raises(InputError, match="Gaussian tokens only"):
        Sequences.make(standard_law("sphere", 3), 10, 0.5, at, 0)
