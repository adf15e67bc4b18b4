"""Synthetic tokens: closed forms at horizon 0, the exponent of r tokens, bias."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.core.streams import random_stream
from esscher.engine.patterns import PATTERNS, View
from esscher.math.heads import gaussian_head
from esscher.math.statistics import resample
from esscher.studies.sparse import SparseLawStudy, sparse_law
from esscher.studies.sparse.compare import CONSTANT, KEEPS, NEVER, SLOWER, UNDECIDED
from esscher.studies.sparse.measure import BiasSum, OutputReference, make_sequences, measure_laws
from esscher.studies.sparse.result import METRICS
from tests.studies.sparse.correlations import correlations

MAP = METRICS.index("map")
BUDGETS = [16, 32, 64, 128]
SUBSETS = ("random", "streaming", "window", "longformer", "bigbird", "strided", "block")


def squared_map_errors(head, sequences, patterns, budgets, replicates, seed=0):
    """Absolute, [reference, pattern, replicate, budget]."""
    found = measure_laws(head, sequences, patterns, budgets, range(replicates), seed)
    return (found.errors[:, :, MAP, 0] * found.norms[0][:, None]) ** 2


def test_without_tilt_errors_are_those_of_means() -> None:
    """At H = 0 attention is a mean: every choice of r of N tokens errs by d (1/r - 1/N)."""
    d, tokens, budgets, replicates = 3, 240, (16, 60), 120
    head = gaussian_head(0.0, d)
    sequences = make_sequences(head, tokens, 0.0, 2, seed=1)
    names = (*SUBSETS, "corrected")
    found = squared_map_errors(head, sequences, names, budgets, replicates)
    # a squared distance in d dimensions has relative variance 2/d, and so at most has the mean of
    # two queries
    error = np.sqrt(2 / d / replicates)
    for p, name in enumerate(names):
        for b, r in enumerate(budgets):
            dense, limit = d * (1 / r - 1 / tokens), d / r
            if name == "corrected":
                near = (r - 4) // 2
                n, others = r - 4 - near, tokens - 4 - near
                # sums over sinks and recent keys are exact, that of the others has variance
                # E^2 (1/n - 1/E); the number of keys is known
                dense = d * (others / tokens) ** 2 * (1 / n - 1 / others)
                limit = dense + d / tokens
            # 32 comparisons
            assert abs(found[0, p, :, b].mean() / dense - 1) < 4 * error, (name, r)
            assert abs(found[1, p, :, b].mean() / limit - 1) < 4 * error, (name, r)


def test_windows_on_correlated_tokens_without_tilt() -> None:
    """The exact mean squared error of window means on AR(1), given the queries."""
    tokens, rho, budgets, replicates = 200, 0.9, (10, 40), 250
    head = gaussian_head(0.0, 1)
    sequences = make_sequences(head, tokens, rho, 3, seed=2)
    names = ("window", "random")
    found = squared_map_errors(head, sequences, names, budgets, replicates)
    own, cross, queries = correlations(tokens, sequences.positions, rho)
    gain = cross @ np.linalg.inv(queries)
    mean, covariance = gain @ sequences.queries[:, 0], own - gain @ cross.T
    second = covariance + np.outer(mean, mean)
    view = View.of(sequences.positions, tokens)
    for b, r in enumerate(budgets):
        keys = PATTERNS["window"].select(view, r, random_stream(0, "any")).keys.numpy()  # type: ignore[attr-defined]
        forms = np.full((len(keys), tokens), -1 / tokens)
        np.put_along_axis(forms, keys, 1 / r - 1 / tokens, axis=1)
        window = np.mean(np.einsum("qi,ij,qj->q", forms, second, forms))
        # a random choice: (1/r - 1/N) times the variance of the sequence around its own mean
        within = (np.trace(second) - second.sum() / tokens) / (tokens - 1)
        for p, expected in enumerate((window, (1 / r - 1 / tokens) * within)):
            values = found[0, p, :, b]
            error = values.std(ddof=1) / np.sqrt(replicates)
            assert abs(values.mean() - expected) < 4 * error, (names[p], r)


def test_bias_sums() -> None:
    rng = random_stream(0, "test")
    truth = torch.from_numpy(rng.standard_normal((1, 50, 2)))
    values = []
    for _ in range(200):
        total = BiasSum()
        for _ in range(4):
            total.add(truth + torch.from_numpy(3 * rng.standard_normal((1, 50, 2))))
        values.append(total.value()[0])
    exact = float(truth.square().sum(-1).mean())
    assert abs(np.mean(values) - exact) < 4 * np.std(values, ddof=1) / np.sqrt(200)
    once = BiasSum()
    once.add(truth)
    assert np.isnan(once.value()[0])
    twice = BiasSum()
    twice.add(truth)
    twice.add(truth)
    assert twice.value()[0] == pytest.approx(exact, rel=1e-5)


def test_errors_are_those_of_the_definition() -> None:
    rng = random_stream(1, "test")
    dense, other = rng.standard_normal((2, 3, 40, 4))
    found = OutputReference.of(torch.from_numpy(dense)).errors(torch.from_numpy(other))
    for h in range(3):
        mean = np.linalg.norm(other[h].mean(0) - dense[h].mean(0))
        cov = np.linalg.norm(np.cov(other[h].T, bias=True) - np.cov(dense[h].T, bias=True))
        rms = np.sqrt(np.mean(np.sum((other[h] - dense[h]) ** 2, axis=1)))
        np.testing.assert_allclose(found[:, h], [mean, cov, rms], rtol=1e-10)


def test_cells_cover_the_replicates() -> None:
    for replicates in (8, 9, 11, 32):
        parts = SparseLawStudy("gaussian", replicates=replicates).blocks().values()
        assert [r for part in parts for r in part] == list(range(replicates))
        assert min(len(part) for part in parts) >= 4


@pytest.fixture(scope="module")
def independent():
    """Independent Gaussian tokens, all patterns."""
    return sparse_law(
        "gaussian",
        horizon=0.5,
        dim=2,
        tokens=1024,
        replicates=16,
        query_count=48,
        progress=False,
        budgets=BUDGETS,
        patterns="window,bigbird,corrected,topk,pooled,linformer",
    )


def test_random_selection_has_the_exponent_of_r_tokens(independent) -> None:
    """Against the limit, r keys at random are r tokens: the same errors as fresh samples."""
    head, budgets = gaussian_head(0.5, 2), np.array(BUDGETS)
    sequences = make_sequences(head, 1024, 0.0, 48, seed=0)
    tilts = head.tokens(sequences.queries).tilts
    limit = head.limit_map(tilts)
    errors = np.empty((64, len(budgets)))
    for i in range(len(errors)):
        tokens = head.sample(int(budgets[-1]), random_stream(9, "fresh", i))
        logits = tilts @ tokens.keys.T
        for b, r in enumerate(budgets):
            weights = np.exp(logits[:, :r])
            outputs = weights @ tokens.values[:r] / weights.sum(axis=1, keepdims=True)
            errors[i, b] = np.sqrt(np.mean(np.sum((outputs - limit) ** 2, axis=1)))
    fresh = resample(errors, budgets.astype(float), "mean", 0)
    x = np.log(budgets) - np.log(budgets).mean()
    form = -(x / (x @ x))[None]
    exponent, error = float((form @ fresh.log_errors)[0]), float(fresh.standard_errors(form)[0])
    for name in ("random", "bigbird"):
        fit = independent.patterns[name].fit_limit.map
        spread = np.hypot(error, fit.standard_error)
        assert abs(fit.exponent - exponent) < 4 * spread, name


def test_verdicts_on_independent_tokens(independent) -> None:
    verdicts = {name: entry.verdict for name, entry in independent.patterns.items()}
    assert verdicts["random"] == "baseline"
    # any choice that does not look at the tokens is as good as random, up to its interval
    for name in ("window", "bigbird"):
        low, high = independent.patterns[name].versus_random.map.ratio_interval
        # these few replicates need not suffice to say so
        assert verdicts[name] in (KEEPS, CONSTANT, UNDECIDED)
        assert low < 1.1
        assert high > 0.9
    # half the budget is spent on keys that are worth no more: half as many samples
    assert verdicts["corrected"] in (CONSTANT, UNDECIDED)
    low, high = independent.patterns["corrected"].versus_random.map.ratio_interval
    assert low < np.sqrt(2) * 1.05
    assert high > np.sqrt(2) * 0.95
    assert verdicts["pooled"] == verdicts["linformer"] == NEVER
    # the largest weights are a biased sample: with weights this even, worse than any other
    assert verdicts["topk"] in (SLOWER, NEVER)
    assert independent.patterns["topk"].versus_random.map.last_ratio_interval[0] > 1


def test_corrected_selection_has_no_bias_at_large_budget(independent) -> None:
    for name in ("corrected", "random"):
        bias = independent.patterns[name].bias
        assert abs(bias.square[-1]) < 4 * bias.standard_error[-1], name
        assert bias.share[-1] < 0.1
    pooled = independent.patterns["pooled"].bias
    assert pooled.share[-1] > 0.8
    assert pooled.square[-1] > 10 * pooled.standard_error[-1]


@pytest.mark.slow
def test_windows_pay_for_correlation() -> None:
    """At weak tilt a window of r tokens is worth r (1-rho)/(1+rho) independent ones."""
    rho = 0.8
    found = sparse_law(
        "gaussian",
        horizon=0.1,
        dim=2,
        correlation=rho,
        tokens=8192,
        replicates=32,
        query_count=64,
        budgets=[64, 128, 256, 512],
        patterns="window,bigbird",
        progress=False,
    )
    window = found.patterns["window"]
    low, high = window.versus_random.map.ratio_interval
    expected = np.sqrt((1 + rho) / (1 - rho))
    # the ends of a window of 64 take a few percent off, and the tilt adds as much
    assert 0.85 * expected < high
    assert low < 1.1 * expected
    assert window.verdict in (CONSTANT, UNDECIDED)
