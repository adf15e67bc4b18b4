"""Synthetic tokens: closed forms at horizon 0, sequences around given queries, verdicts."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.patterns import PATTERNS, View
from esscher.math.heads import gaussian_head
from esscher.math.laws import standard_law
from esscher.studies.sparse import SparseLawStudy, sparse_law
from esscher.studies.sparse.compare import KEEPS, NEVER, SLOWER, UNDECIDED
from esscher.studies.sparse.measure import Sequences, measure_law

SUBSETS = ("random", "streaming", "window", "longformer", "bigbird", "strided", "block")


def correlations(tokens: int, positions: np.ndarray, rho: float) -> tuple[np.ndarray, ...]:
    """Covariance of tokens, of tokens with queries, and of queries of an AR(1) sequence."""
    at = np.arange(tokens)
    own = rho ** np.abs(at[:, None] - at)
    cross = rho * own[:, positions]
    queries = rho**2 * own[np.ix_(positions, positions)] + (1 - rho**2) * np.eye(len(positions))
    return own, cross, queries


def squared_map_errors(sequences, patterns, budgets, replicates, seed=0):
    """Absolute squared errors of the map at H = 0, [pattern, replicate, budget]."""
    head = gaussian_head(0.0, sequences.law.dim)
    out = np.empty((len(patterns), replicates, len(budgets)))
    for i in range(replicates):
        cell = measure_law((head, sequences), patterns, budgets, [i], seed)
        errors = cell["error"].sel(metric="map", replicate=i)
        out[:, i] = (errors * cell["norm"]) ** 2
    return out


def test_without_tilt_errors_are_those_of_means() -> None:
    """At H = 0 attention is a mean: every choice of r of N tokens errs by d (1/r - 1/N)."""
    d, tokens, budgets, replicates = 3, 240, (16, 60), 120
    law = standard_law("gaussian", d)
    sequences = Sequences.make(law, tokens, 0.0, np.array([90, 150]), seed=1)
    names = (*SUBSETS, "corrected")
    found = squared_map_errors(sequences, names, budgets, replicates)
    # a squared distance in d dimensions has relative variance 2/d, and so at most has the mean of
    # two queries
    error = np.sqrt(2 / d / replicates)
    for p, name in enumerate(names):
        for b, r in enumerate(budgets):
            dense = d * (1 / r - 1 / tokens)
            if name == "corrected":
                near = (r - 4) // 2
                n, others = r - 4 - near, tokens - 4 - near
                # sums over sinks and recent keys are exact, that of the others has variance
                # E^2 (1/n - 1/E); the number of keys is known
                dense = d * (others / tokens) ** 2 * (1 / n - 1 / others)
            # 16 comparisons
            assert abs(found[p, :, b].mean() / dense - 1) < 4 * error, (name, r)


def test_windows_on_correlated_tokens_without_tilt() -> None:
    """The exact mean squared error of window means on AR(1), given the queries."""
    tokens, rho, budgets, replicates = 200, 0.9, (10, 40), 250
    positions, law = np.array([60, 100, 140]), standard_law("gaussian", 1)
    sequences = Sequences.make(law, tokens, rho, positions, seed=2)
    names = ("window", "random")
    found = squared_map_errors(sequences, names, budgets, replicates)
    own, cross, queries = correlations(tokens, positions, rho)
    gain = cross @ np.linalg.inv(queries)
    mean, covariance = gain @ sequences.queries[:, 0], own - gain @ cross.T
    second = covariance + np.outer(mean, mean)
    view = View.of(positions, tokens)
    for b, r in enumerate(budgets):
        keys = PATTERNS["window"].select(view, r, random_stream(0, "any")).keys.numpy()  # type: ignore[attr-defined]
        forms = np.full((len(keys), tokens), -1 / tokens)
        np.put_along_axis(forms, keys, 1 / r - 1 / tokens, axis=1)
        window = np.mean(np.einsum("qi,ij,qj->q", forms, second, forms))
        # a random choice: (1/r - 1/N) times the variance of the sequence around its own mean
        within = (np.trace(second) - second.sum() / tokens) / (tokens - 1)
        for p, expected in enumerate((window, (1 / r - 1 / tokens) * within)):
            values = found[p, :, b]
            error = values.std(ddof=1) / np.sqrt(replicates)
            assert abs(values.mean() - expected) < 4 * error, (names[p], r)


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
    with pytest.raises(InputError, match="Gaussian tokens only"):
        Sequences.make(standard_law("sphere", 3), 10, 0.5, np.array([3]), 0)


def test_cells_cover_the_replicates() -> None:
    for replicates in (8, 9, 11, 32):
        study = SparseLawStudy("gaussian", horizon=0.5, replicates=replicates)
        parts = study.known().blocks.values()
        assert [r for part in parts for r in part] == list(range(replicates))
        assert min(len(part) for part in parts) >= 4


def test_verdicts_on_independent_tokens() -> None:
    result = sparse_law(
        "gaussian",
        horizon=0.5,
        dim=2,
        tokens=1024,
        replicates=16,
        query_count=48,
        budgets=[16, 32, 64, 128],
        patterns="window,bigbird,corrected,topk,pooled,linformer",
    )
    verdicts = result["verdict"].to_series()
    assert verdicts["random"] == "baseline"
    low, high = result["ratio"].sel(metric="map", bound=["low", "high"]).transpose("bound", ...)
    # any choice that does not look at the tokens is as good as random, up to its interval; half of
    # the budget of "corrected" is spent on keys that are worth no more: half as many samples
    for name, ratio in (("window", 1.0), ("bigbird", 1.0), ("corrected", np.sqrt(2))):
        # these few replicates need not suffice to say so
        assert verdicts[name] in (KEEPS, UNDECIDED)
        assert low.sel(pattern=name) < 1.1 * ratio
        assert high.sel(pattern=name) > 0.9 * ratio
    assert verdicts["pooled"] == verdicts["linformer"] == NEVER
    # the largest weights are a biased sample: with weights this even, worse than any other
    assert verdicts["topk"] in (SLOWER, NEVER)
    assert low.sel(pattern="topk") > 1
