"""Outputs of attention against dense float64 attention: nested sizes, chunks, all at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.engine.attention.outputs import (
    attend,
    attention_outputs,
    nested_outputs,
    streamed_attention,
)

HEADS, TOKENS, D, D_V = 3, 1_100, 8, 5
SIZES = (1, 40, 700, TOKENS)


def tokens(strength=1.0):
    g = torch.Generator().manual_seed(0)
    q = strength * torch.randn(HEADS, TOKENS, D, generator=g)
    # far from 0: the values are centred inside
    k, v = torch.randn(HEADS, TOKENS, D, generator=g), torch.randn(HEADS, TOKENS, D_V, generator=g)
    return q, k, v + 3.0


def dense(q, k, n, softcap=None, scaling=D**-0.5):
    logits = scaling * (q[..., :n, :].double() @ k[..., :n, :].double().mT)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return torch.softmax(logits, dim=-1)


def rounding(q, k):
    """A logit L in float32 is known to about 1e-7 L, and so is its weight."""
    return 5e-7 * (10 + D**-0.5 * float(q.norm(dim=-1).max() * k.norm(dim=-1).max()))


@pytest.mark.parametrize("kernel", ["", "torch"])
@pytest.mark.parametrize("strength", [0.1, 1.0, 30.0])
def test_nested_sizes(strength, kernel, monkeypatch):
    monkeypatch.setenv("ESSCHER_KERNEL", kernel)
    q, k, v = tokens(strength)
    error = rounding(q, k)
    for wanted in (False, True):
        nested, participation, received = nested_outputs(
            q, k, v, sizes=SIZES, factor=D**-0.5, weights=wanted
        )
        for n, outputs in zip(SIZES, nested, strict=True):
            assert outputs.shape == (HEADS, n, D_V)
            assert outputs.dtype == torch.float32
            # heads of a query are side by side, as those who compare layers want them
            assert outputs.transpose(0, 1).is_contiguous()
            exact = dense(q, k, n) @ v[:, :n].double()
            np.testing.assert_allclose(outputs, exact, atol=4 * error)
    weights = dense(q, k, TOKENS)
    np.testing.assert_allclose(participation, 1 / weights.square().sum(2), rtol=4 * error)
    np.testing.assert_allclose(received, weights.sum(1), rtol=20 * error, atol=error)
    np.testing.assert_allclose(received.sum(axis=1), TOKENS, rtol=1e-5)


@pytest.mark.parametrize("softcap", [None, 1.5])
def test_grouped_keys_and_softcap(softcap):
    q, k, v = tokens()
    q, k, v = q[:2, :700], k[:1], v[:1]
    exact = dense(q, k, TOKENS, softcap) @ v.double()
    np.testing.assert_allclose(attend(q, k, v, D**-0.5, softcap), exact, atol=rounding(q, k))


def test_all_keys_at_several_scales():
    q, k, v = (x[0].double() for x in tokens())
    outputs = attention_outputs(
        D**-0.5 * q.numpy(), k.numpy(), v.numpy(), scales=(0.5, 2.0), dtype="float64"
    )
    for scale, rows in zip((0.5, 2.0), outputs, strict=True):
        exact = dense(q, k, TOKENS, scaling=scale * D**-0.5) @ v
        np.testing.assert_allclose(rows, exact, rtol=1e-12, atol=1e-12)


def streamed(q, k, v, size, **options):
    def chunks():
        return zip(torch.split(k, size), torch.split(v, size), strict=True)

    return streamed_attention(q, chunks, **options)


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("size", [1, 300, TOKENS])
@pytest.mark.parametrize("strength", [0.1, 1.0, 8.0])
def test_chunks(strength, size, softcap):
    q, k, v = (x[0] for x in tokens(strength))
    if size == 1:  # every key a chunk of its own
        k, v = k[:50], v[:50]
    outputs, participation, received = streamed(q, k, v, size, scaling=D**-0.5, softcap=softcap)
    weights, error = dense(q, k, TOKENS, softcap), rounding(q, k)
    np.testing.assert_allclose(outputs, weights @ v.double(), atol=error)
    np.testing.assert_allclose(participation, 1 / weights.square().sum(1), rtol=4 * error)
    np.testing.assert_allclose(received, weights.sum(0), rtol=20 * error)
    assert received.sum() == pytest.approx(TOKENS, rel=1e-5)


def test_logits_that_keep_growing():
    """Every chunk brings weights that overflow what the ones before were measured by."""
    q, _, v = (x[0] for x in tokens())
    q, k = q.abs(), torch.linspace(-2_000, 2_000, TOKENS)[:, None] * torch.ones(D)
    outputs, participation, _ = streamed(q, k, v, 256, scaling=1.0)
    weights = dense(q, k, TOKENS, scaling=1.0)
    # logits to 3e4: 3e-3 in float32
    np.testing.assert_allclose(outputs, weights @ v.double(), atol=1e-3)
    np.testing.assert_allclose(participation, 1 / weights.square().sum(1), rtol=1e-2)
    # and the other way round: all weight in the first chunk
    back, _, _ = streamed(q, k.flip(0), v.flip(0), 256, scaling=1.0)
    np.testing.assert_allclose(back, outputs, atol=1e-3)


def test_the_same_bits_with_any_number_of_threads():
    q, k, v = (x[0] for x in tokens())
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(streamed(q, k, v, 400, scaling=0.3))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for first, same in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(first, same)
