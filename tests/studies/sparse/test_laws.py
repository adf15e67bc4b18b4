"""Synthetic tokens: closed forms at horizon 0, verdicts."""

from __future__ import annotations

import numpy as np

from esscher.core.streams import random_stream
from esscher.math.heads import gaussian_head
from esscher.studies.sparse import SparseLawStudy, sparse_law
from esscher.studies.sparse.compare import KEEPS, NEVER, SLOWER, UNDECIDED
from esscher.studies.sparse.measure import measure_law

SUBSETS = ("random", "streaming", "window", "longformer", "bigbird", "strided", "block")


def squared_map_errors(head, tokens, patterns, budgets, replicates, seed=0):
    """Absolute squared errors of the map, [pattern, replicate, budget]."""
    positions = np.array([90, 150])
    queries = head.law.sample(len(positions), random_stream(1, "test"))
    source = head, tokens, positions, queries
    out = np.empty((len(patterns), replicates, len(budgets)))
    for i in range(replicates):
        cell = measure_law(source, patterns, budgets, [i], seed)
        errors = cell["error"].sel(metric="map", replicate=i)
        out[:, i] = (errors * cell["norm"]) ** 2
    return out


def test_without_tilt_errors_are_those_of_means() -> None:
    """At H = 0 attention is a mean: every choice of r of N tokens errs by d (1/r - 1/N)."""
    d, tokens, budgets, replicates = 3, 240, (16, 60), 120
    names = (*SUBSETS, "corrected")
    result = squared_map_errors(gaussian_head(0.0, d), tokens, names, budgets, replicates)
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
            assert abs(result[p, :, b].mean() / dense - 1) < 4 * error, (name, r)


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
