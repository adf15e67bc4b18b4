"""Errors of samples of keys, against a computation by hand; one-pass numbers against dense ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import esscher
from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.models.weights import head_weights
from esscher.engine.sampled import context, pooled
from esscher.engine.sampled.context import (
    _sampled,
    _within_window,
    delimiter_shares,
    measure_context,
    split,
)
from esscher.engine.sampled.layer import moment_errors, norms, output_gram, output_moments
from esscher.engine.sampled.pooled import measure_pooled
from esscher.engine.text.collect import collect_cloud, iterate_passages
from esscher.engine.text.packing import read_passages
from tests.engine.models.folders import tiny, words


def cloud_of(loaded, tokens, count):
    """The first tokens of a text of so many words."""
    text = read_passages(loaded, [words(count)], tokens=tokens, context=16)
    return collect_cloud(loaded, text, tokens=tokens)


def dense(q, k, v, scaling):
    """Attention in float64; [m, d] over [n, d]."""
    weights = np.exp(scaling * q @ k.T)
    return weights @ v / weights.sum(axis=1, keepdims=True)


def test_errors_per_head_and_of_the_layer():
    rng = np.random.default_rng(1)
    exact, sampled = rng.standard_normal((2, 3, 40, 2))
    reference = output_moments(torch.from_numpy(exact))
    mean, cov, vector = moment_errors(torch.from_numpy(sampled), *reference)
    for h in range(3):
        gap = sampled[h].mean(0) - exact[h].mean(0)
        np.testing.assert_allclose(vector[2 * h : 2 * h + 2], gap, rtol=1e-9)
        assert mean[h] == pytest.approx(np.linalg.norm(gap), rel=1e-9)
        change = np.cov(sampled[h].T, bias=True) - np.cov(exact[h].T, bias=True)
        assert cov[h] == pytest.approx(np.linalg.norm(change), rel=1e-9)
    both = [np.concatenate(list(x), axis=1) for x in (sampled, exact)]
    assert mean[3] == pytest.approx(np.linalg.norm(both[0].mean(0) - both[1].mean(0)), rel=1e-9)
    change = np.cov(both[0].T, bias=True) - np.cov(both[1].T, bias=True)
    assert cov[3] == pytest.approx(np.linalg.norm(change), rel=1e-9)
    errors = norms(torch.from_numpy(sampled - exact))
    squares = np.sum((sampled - exact) ** 2, axis=2).mean(axis=1)
    np.testing.assert_allclose(errors, np.sqrt([*squares, squares.sum()]), rtol=1e-9)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_pooled_errors_by_hand(name):
    loaded = tiny(name)
    cloud = cloud_of(loaded, 120, 400)
    sizes = (10, 40)
    out_of = head_weights(loaded, 1).W_o
    gram = output_gram(out_of)
    measured, numbers = measure_pooled(cloud, 1, sizes, 3, 7, gram)
    assert measured.errors.shape == (3, 5, 3, 2)
    assert measured.products.shape == (2, 3, 2, 4, 4)
    view = cloud.layer(1)
    for h in (0, 3):
        arrays = [np.float64(x) for x in view.head(h)]
        full = dense(*arrays, view.scaling)
        logits = view.scaling * arrays[0] @ arrays[1].T
        # a logit in float32 is off by up to eps |q| |k|, and moves an output by that times |v|
        lengths = [np.linalg.norm(x, axis=1).max() for x in arrays]
        rounding = np.finfo(np.float32).eps * (1 + view.scaling * np.prod(lengths[:2]))
        np.testing.assert_allclose(numbers[h].outputs, full, rtol=0, atol=rounding * lengths[2])
        weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(numbers[h].logits(np.array([3, 1])), logits[[3, 1]], atol=1e-5)
        np.testing.assert_allclose(numbers[h].received, weights.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(
            numbers[h].participation, 1 / np.sum(weights**2, axis=1), rtol=1e-5
        )
        for r in range(3):
            rows = random_stream(7, "probe", 1, r).integers(120, size=40)
            for j, n in enumerate(sizes):
                out = dense(*(x[rows[:n]] for x in arrays), view.scaling)
                expected = [
                    np.linalg.norm(out.mean(0) - full.mean(0)),
                    np.linalg.norm(np.cov(out.T, bias=True) - np.cov(full.T, bias=True)),
                    np.sqrt(np.mean(np.sum((out - full[rows[:n]]) ** 2, axis=1))),
                ]
                np.testing.assert_allclose(measured.errors[:, h, r, j], expected, rtol=1e-5)


def test_a_subset_of_queries_stands_for_all(monkeypatch):
    """With few reference queries the reference has an error, of the size that it states."""
    cloud = cloud_of(tiny("bert"), 400, 900)
    full, _ = measure_pooled(cloud, 1, (10, 40), 2, 0)
    for name, value in {"WHOLE": 100, "QUERIES": 200, "KEYS": 100, "MAP_QUERIES": 50}.items():
        monkeypatch.setattr(pooled, name, value)
    some, numbers = measure_pooled(cloud, 1, (10, 40), 2, 0)
    assert np.all(full.reference_error == 0)
    assert np.all(some.reference_error > 0)
    assert len(numbers[0].participation) == 200
    # the mean is compared with a reference that is off by no more than a few of its errors
    gap = np.abs(full.errors[0, -1] - some.errors[0, -1])
    assert np.all(gap < 4 * some.reference_error[-1])


@pytest.mark.parametrize("name", ["bert", "llama", "mpnet"])
def test_context_errors_by_hand(name, monkeypatch):
    monkeypatch.setattr(context, "keys_apart", lambda received: np.array([2]))
    loaded = tiny(name)
    (passage,) = read_passages(loaded, [words(80)], tokens=40, context=48)
    rng = np.random.default_rng(0)
    asking, keys = split(len(passage.ids), passage.is_delimiter, loaded.causal, rng)
    if loaded.causal:
        assert keys.max() < asking.min()
    sizes = (4, 12)
    for _, capture in iterate_passages(loaded, [passage], layers=[1]):
        weights_out = head_weights(loaded, 1).W_o
        measured, numbers, sinks = measure_context(
            capture, asking, keys, sizes, 2, 5, 0, output_gram(weights_out)
        )
        stream = random_stream(5, "probe context", 1, 0)
        picks = [stream.integers(len(keys), size=24) for _ in range(2)]
        gaps = {}
        for h in range(4):
            np.testing.assert_array_equal(sinks[h], [2])
            logits = capture.logits(0, h).numpy()[asking][:, np.delete(keys, 2)]
            value = capture.v[0, h // capture.group].double().numpy()[np.delete(keys, 2)]
            weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            full = weights @ value
            np.testing.assert_allclose(numbers[h].outputs, full, atol=1e-5)
            two = numbers[h].logits(np.array([3, 1]))  # of float32
            np.testing.assert_allclose(two, logits[[3, 1]], atol=1e-5)
            for r, pick in enumerate(picks):
                # heads share the draws; what falls on the sink is skipped
                drawn = pick[pick != 2][:12]
                rows = drawn - (drawn > 2)
                for j, n in enumerate(sizes):
                    part = np.exp(logits[:, rows[:n]])
                    out = part @ value[rows[:n]] / part.sum(axis=1, keepdims=True)
                    error = np.sqrt(np.mean(np.sum((out - full) ** 2, axis=1)))
                    assert measured.errors[2, h, r, j] == pytest.approx(error, rel=1e-4, abs=1e-6)
                    gaps[h, r, j] = weights_out[h] @ (out.mean(0) - full.mean(0))
        for r in range(2):
            for j in range(2):
                vectors = np.array([gaps[h, r, j] for h in range(4)])
                products = measured.products[0, r, j]
                np.testing.assert_allclose(
                    products, vectors @ vectors.T, atol=1e-3 * products.max()
                )
                # the layer's own error behind the projection is the sum of all of them
                whole = np.sum(vectors.sum(axis=0) ** 2)
                assert products.sum() == pytest.approx(whole, abs=2e-3 * products.max())


def test_queries_of_a_window_see_all_keys(monkeypatch):
    loaded = tiny("gemma2")
    (passage,) = read_passages(loaded, [words(80)], tokens=40, context=48)
    asking, keys = split(len(passage.ids), passage.is_delimiter, True, np.random.default_rng(0))
    for _, capture in iterate_passages(loaded, [passage], layers=[0]):
        with pytest.raises(InputError, match="a window of 5 tokens"):
            _within_window(capture, asking, keys)
    monkeypatch.setattr(context, "FEWEST_KEYS", 2)
    for _, capture in iterate_passages(loaded, [passage], layers=[0, 1]):
        near, seen = _within_window(capture, asking, keys)
        assert len(near) >= 1
        assert len(seen) >= 2
        assert torch.isfinite(capture.logits(0, 0)[near][:, seen]).all()
        if capture.window is None:
            assert len(seen) == len(keys)


def test_a_sample_that_misses_the_heavy_key():
    """Weights of what is left must not vanish."""
    logits = torch.tensor([[0.0, 300.0, 1.0]])
    value = torch.tensor([[1.0], [5.0], [2.0]])
    outputs = _sampled(logits, value, [np.array([0, 2])], (1, 2))[0]
    assert outputs[0].item() == 1.0
    expected = (1 + 2 * np.e) / (1 + np.e)
    assert outputs[1].item() == pytest.approx(expected, rel=1e-6)


def test_share_of_delimiters(monkeypatch):
    """Of all text tokens, also where queries are taken in blocks, or of some of them."""
    loaded = tiny("bert", max_position_embeddings=512)
    (passage,) = read_passages(loaded, [words(500)], tokens=398, context=400)
    text = np.flatnonzero(~passage.is_delimiter)
    some = np.zeros(len(passage.ids), dtype=bool)
    some[text[3:8]] = True
    for _, capture in iterate_passages(loaded, [passage], layers=[0]):
        weights = torch.softmax(capture.logits(0, 2), dim=-1).numpy()[:, passage.is_delimiter]
        for block in (64, 1024):
            monkeypatch.setattr(context, "QUERY_BLOCK", block)
            for queries, rows in ((None, text), (some, text[3:8])):
                shares = delimiter_shares(capture, passage.is_delimiter, queries)
                assert shares[2] == pytest.approx(weights[rows].sum(axis=1).mean(), rel=1e-5)


@pytest.mark.parametrize("few", [{}, {"PREDICTION_ROWS": 60, "MOMENT_ROWS": 50, "WHOLE": 50}])
def test_moments_are_those_of_all_tokens(few, monkeypatch):
    """However few of them predictions are made from, and in however many parts they are read."""
    for name, value in (few | {"QUERIES": 30, "KEYS": 30, "CHUNK": 40}).items():
        monkeypatch.setattr(pooled, name, value)
    cloud = cloud_of(tiny("bert"), 120, 400)
    _, numbers = measure_pooled(cloud, 0, (10,), 1, 0)
    assert len(numbers[1].keys) == few.get("PREDICTION_ROWS", 120)
    head = esscher.array_head(*cloud.layer(0).head(1))
    moments = numbers[1].coupled
    assert moments.horizon == pytest.approx(head.horizon, rel=1e-6)
    assert moments.frobenius == pytest.approx(head.frobenius, rel=1e-6)
    assert moments.tau == pytest.approx(np.linalg.norm(head.tau), rel=1e-6)
    assert moments.log_burn_in == pytest.approx(head.frobenius**2 + moments.tau**2, rel=1e-6)
