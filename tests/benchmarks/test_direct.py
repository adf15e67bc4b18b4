"""The direct simulator against the definition, and its random streams."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.direct import attend, direct_errors

import esscher
from esscher.core.streams import random_stream


def test_attend_is_softmax_attention() -> None:
    rng = np.random.default_rng(0)
    t, k, v = rng.standard_normal((7, 3)), 300 * rng.standard_normal((11, 3)), np.eye(11, 4)
    logits = t @ k.T
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    expected = weights @ v / weights.sum(axis=1, keepdims=True)
    for block in (1, 25, 10_000):
        # logits of size 1e3 carry absolute rounding errors of 1e-12
        np.testing.assert_allclose(attend(t, k, v, block), expected, rtol=1e-11, atol=1e-15)


def test_a_replicate_does_not_depend_on_the_others() -> None:
    head = esscher.gaussian_head(0.7, 2)
    limit = np.zeros(2), 0.49 * np.eye(2)
    few = direct_errors(head, [10, 30], replicates=2, seed=3, limit=limit)
    many = direct_errors(head, [10, 30], replicates=5, seed=3, limit=limit)
    np.testing.assert_array_equal(few.mean, many.mean[:2])
    other = direct_errors(head, [10, 30], replicates=2, seed=4, limit=limit)
    assert not np.array_equal(few.mean, other.mean)


def test_errors_are_what_they_say() -> None:
    head = esscher.gaussian_head(0.5, 2)
    limit = np.zeros(2), 0.25 * np.eye(2)
    run = direct_errors(head, [12], replicates=1, seed=0, limit=limit)
    tokens = head.sample(12, random_stream(0, "direct", 0))
    output = attend(*tokens)
    np.testing.assert_allclose(run.mean[0, 0], output.mean(axis=0))
    np.testing.assert_allclose(run.cov[0, 0], np.cov(output.T, bias=True) - 0.25 * np.eye(2))
    square = np.mean(np.sum((output - 0.5 * tokens.keys) ** 2, axis=1))
    assert run.map_square[0, 0] == pytest.approx(square)


def test_unknown_queries_are_refused() -> None:
    head = esscher.gaussian_head(0.2)
    with pytest.raises(esscher.InputError, match="queries"):
        direct_errors(
            head, [4], replicates=1, seed=0, queries="all", limit=(np.zeros(1), np.eye(1))
        )
