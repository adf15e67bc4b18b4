"""Curves of laws that are not Gaussian, against simulation."""

from __future__ import annotations

import numpy as np

import esscher
from esscher.math.theory.cloud import largest_size, law_curves
from tests.math.theory.simulation import simulate


def test_signs():
    """Signs: the limit is tanh of the tilt in each coordinate."""
    h, d = 0.8, 3
    head = esscher.law_head(esscher.laws.Signs(d), horizon=h)
    sizes = np.array([64.0, 256.0])
    curves = law_curves(head, sizes, "tokens", seed=0)
    run = simulate(head, [64, 256], 300)
    squares = {
        "map": run.map_square,
        "mean_rms": np.sum(run.mean**2, axis=2),
        "cov_rms": np.sum(run.cov**2, axis=(2, 3)),
    }
    for name, sample in squares.items():
        curve = curves[name]
        square, noise = sample.mean(axis=0), sample.std(axis=0) / np.sqrt(300)
        own = 2 * curve.error * curve.standard_error
        # 5%: what first order neglects at n = 64
        bar = 4 * np.hypot(noise, own) + 0.05 * square
        assert np.all(np.abs(curve.error**2 - square) < bar), name


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
    prediction = esscher.predict(head, [64, 1e6])
    assert list(prediction.sizes) == [64]
    assert any("larger sizes are left out" in note for note in prediction.notes)
    nothing = esscher.predict(head, [1e6])
    assert nothing.curves == {}
