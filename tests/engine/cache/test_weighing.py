"""Weights of many queries, summed by key: blocks change nothing."""

from __future__ import annotations

import pytest
import torch

from esscher.engine.attention.compiled import build, kernel
from esscher.engine.cache.scores import weighed

RUNS = list(build.TARGETS)
CAPABILITY = torch.backends.cpu.get_cpu_capability()
COMPILED = RUNS[: RUNS.index(CAPABILITY) + 1] if CAPABILITY in RUNS else []


@pytest.fixture(params=["torch", *RUNS])
def chosen(request, monkeypatch):
    """PyTorch, and every compiled kernel that this processor runs."""
    name = request.param
    if name != "torch" and (name not in COMPILED or not build.library(name).is_file()):
        pytest.skip(f"{name} is not compiled, or does not run here")
    monkeypatch.setenv(kernel.VARIABLE, name)


def drawn(queries, keys, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(n, 5, generator=generator) for n in (queries, keys))


@pytest.mark.parametrize("block", [1, 70, 2**18])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("queries", [17, 70])
def test_sums_are_those_of_the_weights(chosen, block, softcap, queries):
    query, keys = drawn(queries, 40)
    bias = torch.linspace(0, 2, 40)
    bias[3] = -torch.inf
    ends = torch.linspace(24, 40, queries).long()
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


@pytest.mark.parametrize("spread", [1.0, 300.0])
def test_large_logits_are_no_trouble(chosen, spread):
    """The largest of a row is taken off before anything is raised to it."""
    query, keys = drawn(33, 70)
    logits = spread * (query.double() @ keys.double().T)
    weights = torch.softmax(logits, dim=-1)
    found = weighed(spread * query, keys)
    expected = (weights.square().sum(0), weights.sum(0), weights.amax(0))
    # float32 rounds a logit by 6e-8 of itself, and its exponential by as much in all
    rounding = 4 * float(logits.abs().max()) * 2**-24
    for one, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=rounding, atol=rounding)


def test_all_queries_see_all_keys_by_default(chosen):
    query, keys = drawn(9, 12)
    found = weighed(query, keys)
    assert float(found.received.sum()) == pytest.approx(9, rel=1e-5)
    assert bool((found.square <= found.received * (1 + 1e-5)).all())
