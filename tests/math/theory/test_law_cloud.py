"""Curves of laws that are not Gaussian, against simulation."""

from __future__ import annotations

import numpy as np

import esscher
from esscher.math.theory.cloud import largest_size, law_curves


def simulated(head, n, replicates, mean, covariance, limit, seed=0):
    """Squared errors of map, mean and covariance, and their standard errors."""
    rng = np.random.default_rng([seed, n])
    rows = []
    for _ in range(replicates):
        tokens = head.sample(n, rng)
        logits = tokens.tilts @ tokens.keys.T
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        out = weights @ tokens.values / weights.sum(axis=1, keepdims=True)
        gap = np.cov(out.T, bias=True) - covariance
        rows.append(
            [
                np.mean(np.sum((out - limit(tokens)) ** 2, axis=1)),
                np.sum((out.mean(axis=0) - mean) ** 2),
                np.sum(gap**2),
            ]
        )
    return np.mean(rows, axis=0), np.std(rows, axis=0) / np.sqrt(replicates)


def test_signs():
    """Signs: the limit is tanh of the tilt in each coordinate."""
    h, d = 0.8, 3
    head = esscher.law_head(esscher.laws.Signs(d), horizon=h)
    sizes = np.array([64.0, 256.0])
    curves = law_curves(head, sizes, "tokens", seed=0)
    level = np.tanh(h)
    for i, n in enumerate((64, 256)):
        square, noise = simulated(
            head, n, 300, np.zeros(d), level**2 * np.eye(d), lambda tokens: level * tokens.keys
        )
        for k, name in enumerate(("map", "mean_rms", "cov_rms")):
            curve = curves[name]
            own = 2 * curve.error[i] * curve.standard_error[i]
            # 5%: what first order neglects at n = 64
            bar = 4 * np.hypot(noise[k], own) + 0.05 * square[k]
            assert abs(curve.error[i] ** 2 - square[k]) < bar, (name, n)


def test_captured_tokens_are_their_own_cloud():
    x = np.random.default_rng(1).standard_normal((300, 2))
    head = esscher.array_head(x, x, x)
    assert largest_size(head) == np.inf
    prediction = esscher.predict(head, [64, 10_000])
    assert "one pass over the 300 tokens" in prediction.curves["mean"].method
    assert list(prediction.sizes) == [64, 10_000]
    assert prediction.headline.startswith("The asymptotic rate of this head (H = ")
    assert "falls like n^-" in prediction.headline


def test_large_sizes_are_left_out():
    head = esscher.law_head(esscher.laws.Signs(2), horizon=0.5)
    prediction = esscher.predict(head, [64, 1e6], moments=False)
    assert list(prediction.sizes) == [64]
    assert any("larger sizes are left out" in note for note in prediction.notes)
    nothing = esscher.predict(head, [1e6])
    assert nothing.curves == {}
