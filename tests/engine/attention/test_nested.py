"""Outputs over nested sets of keys, against dense float64 attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.engine.attention.outputs import nested_outputs

HEADS, TOKENS, D, D_V = 3, 1_100, 8, 5
SIZES = (1, 40, 700, TOKENS)


def tokens(strength):
    g = torch.Generator().manual_seed(0)
    q = strength * torch.randn(HEADS, TOKENS, D, generator=g)
    # far from 0: the values are centred inside
    k, v = torch.randn(HEADS, TOKENS, D, generator=g), torch.randn(HEADS, TOKENS, D_V, generator=g)
    return q, k, v + 3.0


def rounding(q, k):
    """A logit L in float32 is known to about 1e-7 L, and so is its weight."""
    return 5e-7 * (10 + D**-0.5 * float(q.norm(dim=2).max() * k.norm(dim=2).max()))


def dense(q, k, n):
    logits = D**-0.5 * (q[:, :n].double() @ k[:, :n].double().mT)
    return torch.softmax(logits, dim=2)


@pytest.mark.parametrize("kernel", ["", "torch"])
@pytest.mark.parametrize("strength", [0.1, 1.0, 30.0])
def test_equals_dense_attention(strength, kernel, monkeypatch):
    monkeypatch.setenv("ESSCHER_KERNEL", kernel)
    q, k, v = tokens(strength)
    nested, _, _ = nested_outputs(q, k, v, sizes=SIZES, factor=D**-0.5)
    for n, outputs in zip(SIZES, nested, strict=True):
        assert outputs.shape == (HEADS, n, D_V)
        assert outputs.dtype == torch.float32
        exact = dense(q, k, n) @ v[:, :n].double()
        np.testing.assert_allclose(outputs, exact, atol=4 * rounding(q, k))


@pytest.mark.parametrize("kernel", ["", "torch"])
@pytest.mark.parametrize("strength", [0.1, 1.0, 30.0])
def test_weights_at_the_largest_size(strength, kernel, monkeypatch):
    monkeypatch.setenv("ESSCHER_KERNEL", kernel)
    q, k, v = tokens(strength)
    _, participation, received = nested_outputs(
        q, k, v, sizes=(500, TOKENS), factor=D**-0.5, weights=True
    )
    weights = dense(q, k, TOKENS)
    error = rounding(q, k)
    exact = 1 / weights.square().sum(2)
    np.testing.assert_allclose(participation, exact, rtol=4 * error)
    np.testing.assert_allclose(received, weights.sum(1), rtol=20 * error, atol=error)
    np.testing.assert_allclose(received.sum(axis=1), TOKENS, rtol=1e-5)


def test_queries_lie_one_after_the_other():
    """Heads of a query are side by side in memory, as those who compare layers want them."""
    outputs = nested_outputs(*tokens(1.0), sizes=(TOKENS,), factor=D**-0.5)[0][0]
    assert outputs.transpose(0, 1).is_contiguous()
