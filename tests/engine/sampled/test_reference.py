"""The reference of pooled mode: two levels of linear cost, against all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.engine.attention.outputs import attend
from esscher.engine.sampled import pooled
from esscher.engine.sampled.pooled import pooled_reference
from esscher.engine.text.collect import LayerCloud

TOKENS, D, SEEDS = 4_000, 6, 60
#: Some of six query heads in groups of three, and the key head of each: groups are not whole.
HEADS, SERVED_BY = (0, 1, 4), (0, 0, 1)
#: From how many tokens on there are two levels: for all tokens as queries, and for few of them.
ALL, TWO = TOKENS, 1_000


@pytest.fixture(autouse=True)
def small_levels(monkeypatch):
    for name, value in {"QUERIES": 300, "KEYS": 300, "CHUNK": 1_000}.items():
        monkeypatch.setattr(pooled, name, value)


def layer(softcap=None, strength=1.5):
    """Tokens that are clustered, tilted and not centred; queries and keys depend on each other."""
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((TOKENS, D)) + rng.integers(0, 3, (TOKENS, 1))
    arrays = [
        np.stack([tokens @ rng.standard_normal((D, D)) / D**0.5 for _ in range(count)])
        for count in (3, 2, 2)
    ]
    q, k, v = (array.astype(np.float32) for array in arrays)
    return LayerCloud(HEADS, SERVED_BY, strength * q, k, v, D**-0.5, softcap, None)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_all_queries_are_dense_attention(softcap):
    view = layer(softcap)
    reference = pooled_reference(view, np.random.default_rng(1), ALL)
    q = torch.from_numpy(view.q).double()
    k, v = (torch.from_numpy(array)[[0, 0, 1]].double() for array in (view.k, view.v))
    outputs = attend(q, k, v, view.scaling, softcap)
    # a logit L in float32 is off by about 1e-7 L, and a weight by as much of itself
    largest = float(view.scaling * q.norm(dim=2).max() * k.norm(dim=2).max())
    rounding = 2e-7 * largest * float(v.norm(dim=2).max())
    np.testing.assert_allclose(reference.outputs, outputs, atol=rounding)
    rows = outputs.transpose(0, 1).flatten(1).numpy()
    np.testing.assert_allclose(reference.mean, rows.mean(0), atol=rounding)
    size = np.abs(rows).max()
    covariance = np.cov(rows.T, bias=True)
    np.testing.assert_allclose(reference.covariance, covariance, atol=2 * size * rounding)
    assert reference.coarse is None
    assert np.all(reference.mean_error == 0)
    assert np.all(reference.covariance_error == 0)


@pytest.mark.parametrize(
    ("softcap", "strength"),
    [(None, 1.5), pytest.param(2.0, 1.5, marks=pytest.mark.slow), (None, 6.0)],
)
def test_two_levels_are_unbiased_and_know_their_error(softcap, strength):
    """Over many choices of queries and keys: no bias, and errors of the size that is stated."""
    view = layer(softcap, strength)
    exact = pooled_reference(view, np.random.default_rng(1), ALL)
    gaps, ratios, spread = [], [], []
    for seed in range(SEEDS):
        reference = pooled_reference(view, np.random.default_rng(seed), TWO)
        assert reference.coarse == 300
        assert len(reference.queries) == 300
        gap = reference.mean - exact.mean
        matrix = reference.covariance - exact.covariance
        parts = [slice(h * D, (h + 1) * D) for h in range(len(HEADS))] + [slice(None)]
        realised = [
            [np.sum(gap[unit] ** 2) for unit in parts],
            [np.sum(matrix[unit, unit] ** 2) for unit in parts],
        ]
        stated = np.array([reference.mean_error, reference.covariance_error]) ** 2
        gaps.append(np.concatenate([gap, matrix.ravel()]))
        ratios.append(realised / stated)
        spread.append(reference.mean_error[-1])
    # bias: in no entry more than chance allows among 342 of them (5 standard errors: 1 in 5,000)
    z = np.mean(gaps, axis=0) / (np.std(gaps, axis=0, ddof=1) / SEEDS**0.5)
    assert np.abs(z).max() < 5
    # stated squared errors are right on average, within the spread of this experiment
    ratio = np.mean(ratios, axis=0)
    noise = np.std(ratios, axis=0, ddof=1) / SEEDS**0.5
    assert np.all(np.abs(ratio - 1) < 4 * noise)
    # what it is for: 300 queries alone would be off by more, by much more at a moderate tilt
    alone = np.sqrt(np.trace(exact.covariance) / 300 * (1 - 300 / TOKENS))
    assert np.mean(spread) < (0.5 if strength == 1.5 else 0.8) * alone


def test_received_attention_is_that_of_the_asking_tokens():
    view = layer()
    reference = pooled_reference(view, np.random.default_rng(0), TWO)
    q, k, _ = view.head(4)
    logits = view.scaling * q[reference.queries].astype(float) @ k.astype(float).T
    weights = torch.softmax(torch.from_numpy(logits), dim=1).numpy()
    np.testing.assert_allclose(reference.received[2], weights.mean(0), rtol=1e-4)
    np.testing.assert_allclose(reference.participation[2], 1 / (weights**2).sum(1), rtol=1e-4)
