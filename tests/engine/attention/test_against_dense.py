"""The kernel agrees with a dense float64 computation, whatever it is asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esscher.engine.attention import attention_statistics
from tests.engine.attention.reference import dense

ALL = ("participation", "largest")


@st.composite
def problems(draw):
    """Shapes, masks, scales, sizes and blocks of every kind, logits up to about 1e5."""
    key_heads, group, lead = draw(
        st.sampled_from([(1, 1, ()), (2, 1, ()), (1, 3, ()), (2, 2, ()), (1, 2, (2,))])
    )
    n = draw(st.integers(1, 60))
    separate = draw(st.booleans())
    d_k, d_v = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    seed = draw(st.integers(0, 2**20))
    g = torch.Generator().manual_seed(seed)
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
        st.sampled_from([(1.0,), (0.5, 2.0), (3.0, 0.1, 1.0), (0.25, 0.5, 0.75, 1.0), (0.0, 1.0)])
    )
    causal = draw(st.booleans()) and not separate
    key_mask = query_mask = None
    if draw(st.booleans()):
        key_mask = torch.rand(*lead, key_heads, n, generator=g) < 0.6
        key_mask[..., 0] = True  # so that every query may attend something
    if draw(st.booleans()):
        query_mask = torch.rand(m, generator=g) < 0.6
        query_mask[0] = True
    limit = None
    if draw(st.booleans()):
        shape = (*lead, heads, m, d_v)
        limit = torch.randn(
            *((len(scales), *shape) if draw(st.booleans()) else shape), generator=g, dtype=kind
        )
    return {
        "q": q,
        "k": k,
        "v": v,
        "sizes": sizes,
        "scales": scales,
        "queries": "separate" if separate else "tokens",
        "causal": causal,
        "key_mask": key_mask,
        "query_mask": query_mask,
        "limit": limit,
        "received_sizes": draw(st.sampled_from([(), tuple(sizes), (sizes[-1],), (sizes[0],)])),
        "weights": draw(st.sampled_from([(), ALL, ALL[:1], ALL[1:]])),
        "factor": draw(st.sampled_from([None, 1.0])),
        "block": draw(st.sampled_from([None, (1, 1), (7, 5), (16, 64)])),
    }


def check(problem, dtype):
    result = attention_statistics(**problem, per_query=True, dtype=dtype)
    q, k, v, limit = (problem[name] for name in ("q", "k", "v", "limit"))
    group = q.shape[-3] // k.shape[-3]
    factor = problem["factor"] or q.shape[-1] ** -0.5
    key_mask, query_mask = problem["key_mask"], problem["query_mask"]
    eps = torch.finfo(dtype).eps
    for head in np.ndindex(*q.shape[:-2]):
        at = (*head[:-1], head[-1] // group)
        for s, scale in enumerate(problem["scales"]):
            for j, n in enumerate(problem["sizes"]):
                one = limit
                if one is not None:
                    one = one[s][head] if one.ndim > q.ndim else one[head]
                exact = dense(
                    q[head],
                    k[at],
                    v[at],
                    n=n,
                    scale=scale,
                    factor=factor,
                    limit=one,
                    causal=problem["causal"],
                    separate=problem["queries"] == "separate",
                    keys=None if key_mask is None else key_mask[at],
                    queries=query_mask,
                )
                # relative error of a weight: rounding of a logit, times a small number
                weight = 30 * eps * (1 + exact.logit)
                spread = float((v[at] - v[at].mean(0)).abs().max()) + eps * 100
                where = (*head, s, j)
                near(result.mean[where], exact.mean, weight * spread + 1e-14 * 100)
                near(result.covariance[where], exact.covariance, weight * 4 * spread**2)
                if one is not None:
                    far = spread + float(one.abs().max()) + 100
                    near(result.map_square[where], exact.map_square, weight * far**2 * len(v))
                if result.participation is not None:
                    values = result.participation.values[where]
                    values = values[~np.isnan(values)]
                    near(values / exact.participation, 1.0, 4 * weight)
                    near(
                        result.participation.mean[where] / exact.participation.mean(), 1, 4 * weight
                    )
                if result.largest is not None:
                    values = result.largest.values[where]
                    near(values[~np.isnan(values)], exact.largest, 2 * weight)
                if n in result.received_sizes:
                    r = result.received_sizes.index(n)
                    column = result.received[(*head, s, r)]
                    queries = int(result.query_counts[(*head, j)])
                    near(column[:n], exact.received, weight * queries)
                    assert np.isnan(column[n:]).all()
                    near(column[:n].sum(), queries, weight * queries)


def near(got, expected, tolerance):
    np.testing.assert_allclose(got, expected, rtol=0, atol=max(tolerance, 1e-12))


@settings(max_examples=80, deadline=None)
@given(problems())
def test_float64_agrees_with_dense(problem):
    check(problem, torch.float64)


@settings(max_examples=80, deadline=None)
@given(problems())
def test_float32_agrees_with_dense(problem):
    check(problem, torch.float32)


@pytest.mark.parametrize("strength", [1.0, 30.0, 1e3, 1e5])
def test_default_blocks_and_several_panels(strength):
    """Sizes beyond one block of queries and one panel of keys, with the default blocks."""
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 6000, 3, generator=g) for _ in range(3))
    check(
        {
            "q": strength * q[:, :1600],
            "k": k,
            "v": v,
            "sizes": (1, 50, 5000, 6000),
            "scales": (0.5, 1.0),
            "queries": "separate",
            "causal": False,
            "key_mask": None,
            "query_mask": None,
            "limit": None,
            "received_sizes": (50, 6000),
            "weights": ALL,
            "factor": None,
            "block": None,
        },
        torch.float32,
    )


def test_logits_far_below_zero_and_a_late_giant():
    """No weight may vanish because of where the shift started, nor overflow because of the end."""
    q = torch.ones(4, 1, dtype=torch.float64)
    k = torch.full((9, 1), -1e5, dtype=torch.float64)
    k[6], k[8] = 1e4, 3e5
    v = torch.arange(9.0, dtype=torch.float64)[:, None]
    for dtype in (torch.float32, torch.float64):
        result = attention_statistics(
            q, k, v, sizes=(3, 6, 7, 9), queries="separate", factor=1.0, dtype=dtype, block=(2, 2)
        )
        np.testing.assert_allclose(result.mean[0, :, 0], [1.0, 2.5, 6.0, 8.0], atol=1e-6)


def test_half_precision_inputs():
    g = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(40, 4, generator=g).to(torch.bfloat16) for _ in range(3))
    got = attention_statistics(q, k, v, sizes=(40,))
    exact = dense(q, k, v, n=40, scale=1.0, factor=0.5)
    np.testing.assert_allclose(got.mean[0, 0], exact.mean, atol=1e-6)
