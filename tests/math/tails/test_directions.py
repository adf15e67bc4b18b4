"""The planted direction is found, and nothing is found where there is nothing."""

from __future__ import annotations

import numpy as np

from esscher.math.tails.cloud import (
    THOROUGH,
    split_passages,
    whitening,
    worst_directions,
)


def aligned(direction, exact, tokens):
    """Cosine in whitened coordinates: the correlation of the two projections."""
    return abs(np.corrcoef(tokens @ direction, tokens @ exact)[0, 1])


def test_whitening():
    rng = np.random.default_rng(1)
    tokens = rng.standard_normal((500, 6)) @ rng.standard_normal((6, 8))  # of rank 6
    mean, axes, back = whitening(tokens)
    z = (tokens - mean) @ axes
    assert z.shape == (500, 6)
    np.testing.assert_allclose(z.T @ z / 500, np.eye(6), atol=1e-9)
    assert whitening(tokens, most=3)[1].shape == (8, 3)
    # a direction of tokens and its image have the same projections
    w = rng.standard_normal(8)
    projected = (tokens - tokens.mean(0)) @ w
    np.testing.assert_allclose(z @ (back @ w), projected, atol=1e-9)


def test_a_passage_of_its_own_is_no_direction():
    """One passage with outliers is left out of the choice; a direction of all passages wins."""
    rng = np.random.default_rng(2)
    tokens = rng.standard_normal((4000, 8))
    tokens[:, 1] = rng.laplace(size=4000)
    tokens[:5, 0] = 25.0
    groups = np.arange(4000) // 250
    peaked, _ = worst_directions(tokens, groups, THOROUGH, 0, 0)
    assert aligned(peaked, np.eye(8)[1], tokens) > 0.9


def test_halves_are_whole_passages_of_about_the_same_size():
    groups = np.repeat(np.arange(11), np.arange(20, 31))
    half = split_passages(groups, 0)
    for passage in range(11):
        assert len(set(half[groups == passage])) == 1
    assert abs(half.sum() - (~half).sum()) <= 40
    assert not np.array_equal(half, split_passages(groups, 1))
