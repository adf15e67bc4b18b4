"""Attention over keys that come in chunks, against dense float64 attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.engine.attention.outputs import streamed_attention

D, D_V, QUERIES, KEYS = 8, 5, 700, 3_000


def tokens(seed=0, strength=1.0):
    g = torch.Generator().manual_seed(seed)
    q = strength * torch.randn(QUERIES, D, generator=g)
    return q, torch.randn(KEYS, D, generator=g), torch.randn(KEYS, D_V, generator=g)


def chunked(k, v, size):
    return lambda: zip(torch.split(k, size), torch.split(v, size), strict=True)


def dense(q, k, v, scaling, softcap):
    logits = scaling * (q.double() @ k.double().T)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    weights = torch.softmax(logits, dim=1)
    return weights @ v.double(), weights


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("size", [1, 700, KEYS])
@pytest.mark.parametrize("strength", [0.1, 1.0, 8.0])
def test_equals_dense_attention(strength, size, softcap):
    q, k, v = tokens(strength=strength)
    if size == 1:  # every key a chunk of its own
        k, v = k[:50], v[:50]
    streamed, participation, received = streamed_attention(
        q, chunked(k, v, size), scaling=D**-0.5, softcap=softcap
    )
    outputs, weights = dense(q, k, v, D**-0.5, softcap)
    # a logit L in float32 is known to about 1e-7 L, and so is its weight
    logit = strength * D**-0.5 * float((q.norm(dim=1).max() / strength) * k.norm(dim=1).max())
    rounding = 5e-7 * (10 + logit)
    np.testing.assert_allclose(streamed, outputs, atol=rounding)
    np.testing.assert_allclose(participation, 1 / weights.square().sum(1), rtol=4 * rounding)
    np.testing.assert_allclose(received, weights.sum(0), rtol=20 * rounding)
    assert received.sum() == pytest.approx(QUERIES, rel=1e-5)


def test_logits_that_keep_growing():
    """Every chunk brings weights that overflow what the ones before were measured by."""
    q, k, v = tokens()
    q = q.abs()
    k = torch.linspace(-2_000, 2_000, KEYS)[:, None] * torch.ones(D)
    streamed, participation, _ = streamed_attention(q, chunked(k, v, 256), scaling=1.0)
    outputs, weights = dense(q, k, v, 1.0, None)
    np.testing.assert_allclose(streamed, outputs, atol=1e-3)  # logits to 3e4: 3e-3 in float32
    np.testing.assert_allclose(participation, 1 / weights.square().sum(1), rtol=1e-2)
    # and the other way round: all weight in the first chunk
    back, _, _ = streamed_attention(q, chunked(k.flip(0), v.flip(0), 256), scaling=1.0)
    np.testing.assert_allclose(back, streamed, atol=1e-3)


def test_the_same_bits_with_any_number_of_threads():
    q, k, v = tokens()
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(streamed_attention(q, chunked(k, v, 1_000), scaling=0.3))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, same)
