"""Weights of many queries, summed by key: blocks change nothing."""

from __future__ import annotations

import pytest
import torch

from esscher.engine.cache.weighing import weighed


def drawn(queries, keys, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(n, 5, generator=generator) for n in (queries, keys))


@pytest.mark.parametrize("block", [1, 70, 2**18])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_sums_are_those_of_the_weights(block, softcap):
    query, keys = drawn(17, 40)
    bias = torch.linspace(0, 2, 40)
    bias[3] = -torch.inf
    ends = torch.arange(24, 41)
    logits = query.double() @ keys.double().T
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logits = (logits + bias).masked_fill(torch.arange(40) >= ends[:, None], -torch.inf)
    weights = torch.softmax(logits, dim=-1)[:, :30]
    found = weighed(query, keys, softcap=softcap, bias=bias, ends=ends, columns=30, block=block)
    expected = (weights.square().sum(0), weights.sum(0), weights.amax(0))
    for one, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-4, atol=1e-6)
    assert all(float(one[3]) == 0 for one in found)


def test_all_queries_see_all_keys_by_default():
    query, keys = drawn(9, 12)
    found = weighed(query, keys)
    assert float(found.received.sum()) == pytest.approx(9, rel=1e-5)
    assert bool((found.square <= found.received * (1 + 1e-5)).all())
