"""Streaming over blocks: the same numbers as the dense formula, in bounded memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
from scipy.special import logsumexp, softmax

from esscher.math.laws import FiniteTokens


class InSmallBlocks(FiniteTokens):
    tilt_block, token_block = 5, 16


def test_blocks_do_not_change_the_result():
    rng = np.random.default_rng(0)
    tokens, tilts = rng.normal(size=(101, 3)), 20 * rng.normal(size=(4, 6, 3))
    law = InSmallBlocks(tokens)
    logits = tilts @ tokens.T - np.log(101)
    attention = softmax(logits, axis=-1)
    mean = attention @ tokens
    gap = tokens - mean[..., None, :]
    hessian = np.einsum("...n,...ni,...nj->...ij", attention, gap, gap)
    np.testing.assert_allclose(law.log_mgf(tilts), logsumexp(logits, axis=-1), rtol=1e-12)
    np.testing.assert_allclose(law.tilted_mean(tilts), mean, rtol=1e-11)
    np.testing.assert_allclose(law.tilted_covariance(tilts), hessian, rtol=1e-10, atol=1e-13)


def test_memory_is_bounded_by_a_block():
    rng = np.random.default_rng(1)
    law = FiniteTokens(rng.normal(size=(16_384, 2)))
    tilts = rng.normal(size=(2048, 2))
    tracemalloc.start()
    try:
        law.log_mgf(tilts)
        law.tilted_mean(tilts)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    block = 8 * law.tilt_block * law.token_block
    dense = 8 * len(tilts) * len(law.tokens)
    assert peak < 6 * block < dense


def test_large_logits_select_the_largest_token():
    tokens = np.eye(3)
    law = FiniteTokens(tokens)
    for size in (1e4, 1e8, 1e200):
        np.testing.assert_array_equal(law.tilted_mean([0.0, size, -size]), tokens[1])
        np.testing.assert_allclose(law.log_mgf([0.0, size, -size]), size - np.log(3), rtol=1e-15)
        np.testing.assert_array_equal(law.tilted_covariance([0.0, size, -size]), 0.0)


def test_a_common_offset_costs_no_digits():
    """Keys of real models share a large mean; it must not blur the attention weights."""
    tokens = np.array([[0.0], [1.0]])
    near, far = FiniteTokens(tokens), FiniteTokens(tokens + 2.0**20)
    t = np.array([[0.5], [3.0], [-8.0]])
    np.testing.assert_allclose(far.tilted_mean(t) - 2.0**20, near.tilted_mean(t), atol=1e-9)
    np.testing.assert_allclose(far.tilted_covariance(t), near.tilted_covariance(t), rtol=1e-12)
