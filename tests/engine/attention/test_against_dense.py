"""One pass agrees with a dense float64 computation, whatever its options."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esscher.engine.attention import attention_statistics, statistics


def dense(q, k, v, *, n, scale, separate=False, queries=None, limit=None):
    """Mean, covariance and map error by the definition, and the largest logit."""
    q, k, v = (x.to(torch.float64).numpy() for x in (q, k, v))
    kept = np.ones(len(q), bool) if queries is None else queries.numpy().copy()
    if not separate:
        kept[n:] = False
    logits = scale * (q @ (k - k.mean(0)).T)
    p = logits[kept, :n]
    p = np.exp(p - p.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    y = p @ v[:n]
    square = None if limit is None else ((y - limit.numpy()[kept]) ** 2).sum(1).mean()
    return y.mean(0), np.atleast_2d(np.cov(y.T, bias=True)), square, np.abs(logits).max()


SCALES = [(1.0,), (0.5, 2.0), (3.0, 0.1, 1.0), (0.25, 0.5, 0.75, 1.0), (0.0, 1.0), (2.0, 2.0)]


@st.composite
def problems(draw):
    """Shapes, masks, scales and sizes of every kind, logits up to about 1e5; and blocks."""
    key_heads, group, lead = draw(
        st.sampled_from([(1, 1, ()), (2, 1, ()), (1, 3, ()), (2, 2, ()), (1, 2, (2,))])
    )
    n = draw(st.integers(1, 60))
    separate = draw(st.booleans())
    d_k, d_v = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    heads = key_heads * group
    m = draw(st.integers(1, 40)) if separate else n
    kind = draw(st.sampled_from([torch.float32, torch.float64]))
    strength = draw(st.sampled_from([0.0, 0.1, 1.0, 10.0, 300.0, 3e4]))
    q = strength * torch.randn(*lead, heads, m, d_k, generator=g, dtype=kind)
    k = torch.randn(*lead, key_heads, n, d_k, generator=g, dtype=kind)
    k += draw(st.sampled_from([0.0, 5.0]))
    v = torch.randn(*lead, key_heads, n, d_v, generator=g, dtype=kind)
    v += draw(st.sampled_from([0.0, 100.0]))
    sizes = sorted(draw(st.sets(st.integers(1, n), min_size=1, max_size=4)))
    scales = draw(
        st.sampled_from(
            [(1.0,), (0.5, 2.0), (3.0, 0.1, 1.0), (0.25, 0.5, 0.75, 1.0), (0.0, 1.0), (2.0, 2.0)]
        )
    )
    query_mask = limit = None
    if draw(st.booleans()):
        query_mask = torch.rand(m, generator=g) < 0.6
        query_mask[0] = True
    if draw(st.booleans()):
        shape = (*lead, heads, m, d_v)
        shape = (len(scales), *shape) if draw(st.booleans()) else shape
        limit = torch.randn(*shape, generator=g, dtype=kind)
    problem = {
        "q": q,
        "k": k,
        "v": v,
        "sizes": sizes,
        "scales": scales,
        "queries": "separate" if separate else "tokens",
        "query_mask": query_mask,
        "limit": limit,
        "factor": 1.0,
    }
    return problem, draw(st.sampled_from([None, (1, 1), (7, 5), (16, 64)]))


def check(problem, dtype, block=None):
    block = {} if block is None else {"return_value": block}
    with mock.patch.object(statistics, "block_shape", wraps=statistics.block_shape, **block):
        result = attention_statistics(**problem, dtype=dtype)
    q, k, v, limit = (problem[name] for name in ("q", "k", "v", "limit"))
    group = q.shape[-3] // k.shape[-3]
    eps = torch.finfo(dtype).eps
    for head in np.ndindex(*q.shape[:-2]):
        at = (*head[:-1], head[-1] // group)
        for s, scale in enumerate(problem["scales"]):
            for j, n in enumerate(problem["sizes"]):
                of_head = limit
                if limit is not None:
                    of_head = limit[s][head] if limit.ndim > q.ndim else limit[head]
                mean, covariance, square, logit = dense(
                    q[head],
                    k[at],
                    v[at],
                    n=n,
                    scale=scale,
                    limit=of_head,
                    separate=problem["queries"] == "separate",
                    queries=problem["query_mask"],
                )
                # relative error of a weight: rounding of a logit, times a small number
                weight = 30 * eps * (1 + logit)
                spread = float((v[at] - v[at].mean(0)).abs().max()) + eps * 100
                where = (*head, s, j)
                near(result.mean[where], mean, weight * spread + 1e-14 * 100)
                near(result.covariance[where], covariance, weight * 4 * spread**2)
                if limit is not None:
                    far = spread + float(of_head.abs().max()) + 100
                    near(result.map_square[where], square, weight * far**2 * len(v))


def near(got, expected, tolerance):
    np.testing.assert_allclose(got, expected, rtol=0, atol=max(tolerance, 1e-12))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=80, deadline=None)
@given(problem=problems())
def test_agrees_with_dense(dtype, problem):
    check(problem[0], dtype, problem[1])


@pytest.mark.parametrize("kernel", ["", "torch"])
@pytest.mark.parametrize("strength", [1.0, 30.0, 1e3, 1e5])
def test_default_blocks_and_several_panels(strength, kernel, monkeypatch):
    """Sizes beyond one block of queries and one panel of keys, with the default blocks."""
    monkeypatch.setenv("ESSCHER_KERNEL", kernel)
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 6000, 3, generator=g) for _ in range(3))
    problem = {"q": strength * 3**-0.5 * q[:, :1600], "k": k, "v": v, "limit": None}
    problem |= {"sizes": (1, 50, 5000, 6000), "scales": (0.5, 1.0), "queries": "separate"}
    check(problem | {"query_mask": None, "factor": 1.0}, torch.float32)


def test_logits_far_below_zero_and_a_late_giant():
    """No weight may vanish because of where the shift started, nor overflow because of the end."""
    q = torch.ones(4, 1, dtype=torch.float64)
    k = torch.full((9, 1), -1e5, dtype=torch.float64)
    k[6], k[8] = 1e4, 3e5
    v = torch.arange(9.0, dtype=torch.float64)[:, None]
    options = {"sizes": (3, 6, 7, 9), "queries": "separate", "factor": 1.0}
    for dtype in (torch.float32, torch.float64):
        with mock.patch.object(statistics, "block_shape", return_value=(2, 2)):
            result = attention_statistics(q, k, v, **options, dtype=dtype)
        np.testing.assert_allclose(result.mean[0, :, 0], [1.0, 2.5, 6.0, 8.0], atol=1e-6)


def test_half_precision_inputs():
    g = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(40, 4, generator=g).to(torch.bfloat16) for _ in range(3))
    result = attention_statistics(q, k, v, sizes=(40,))
    exact, *_ = dense(q, k, v, n=40, scale=0.5)
    np.testing.assert_allclose(result.mean[0, 0], exact, atol=1e-6)
