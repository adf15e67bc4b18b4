"""Errors over a cloud from one pass, against the enumeration of all samples and simulation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from esscher.math.theory.cloud import cloud_errors
from esscher.math.theory.cloud_pass import CloudHead, CloudPass, Effort
from esscher.math.theory.cloud_sampling import choose, near_order

#: Trapezoidal rule, cuts and single precision leave about this much of the errors.
RULE = 3e-4


def made(keys, d, strength, seed, tokens=True, queries=None):
    """A cloud of Gaussian tokens; queries of their own unless the tokens attend to each other."""
    rng = np.random.default_rng([seed, 7])
    k = rng.standard_normal((keys, d))
    q = k if tokens else rng.standard_normal((queries or keys, d))
    v = k + 0.5 * rng.standard_normal((keys, d)) + 1.0
    logits = strength * q @ k.T
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    outputs = weights / weights.sum(axis=1, keepdims=True) @ v
    own = np.arange(keys) if tokens else None
    return CloudHead(v, outputs, lambda rows: logits[rows], own), logits


def attended(logits, values, queries, keys):
    weights = np.exp(logits[np.ix_(queries, keys)])
    return weights / weights.sum(axis=1, keepdims=True) @ values[keys]


@pytest.fixture(params=[True, False], ids=["tokens", "fixed queries"])
def enumerated(request):
    """A tiny cloud, its pass, and the outputs of every sample of 3 tokens."""
    head, logits = made(4, 2, 1.3, 1, tokens=request.param, queries=5)
    found = CloudPass(head, np.array([3.0]), np.array([3.0]), Effort(64, 2, 10, 10),
                      np.random.default_rng(0))  # fmt: skip
    samples = {}
    for sample in product(range(4), repeat=3):
        asked = list(sample) if request.param else range(5)
        samples[sample] = attended(logits, head.values, list(asked), list(sample))
    return head, found, samples


def test_tiny_clouds_are_whole(enumerated):
    head, found, _ = enumerated
    assert set(found.rows) == set(range(len(head.outputs)))
    assert list(found.z.chances) == [1.0] * 4
    assert list(found.chosen_pairs.chances) == [1.0] * 3


def test_map_error_is_exact(enumerated):
    head, found, samples = enumerated
    square = np.mean([
        np.mean(np.sum((out - (head.outputs[list(s)] if found.tokens else head.outputs)) ** 2, 1))
        for s, out in samples.items()
    ])  # fmt: skip
    weighed = (found.share / found.share.sum()) @ found.squares
    assert weighed[0] == pytest.approx(square, rel=RULE)
    assert found.map_squares == pytest.approx(found.squares)


def axes_of(found, head):
    """Rotation into the coordinates of the pass."""
    origin = head.outputs.mean(axis=0)
    solution = np.linalg.lstsq(head.values - origin, found.values, rcond=None)[0]
    np.testing.assert_allclose((head.values - origin) @ solution, found.values, atol=1e-12)
    return origin, solution


def test_bias_is_exact(enumerated):
    head, found, samples = enumerated
    origin, axes = axes_of(found, head)
    mean = np.mean([(out - origin).mean(axis=0) @ axes for out in samples.values()], axis=0)
    weighed = np.tensordot(found.share / found.share.sum(), found.mean, axes=1)[0]
    np.testing.assert_allclose(weighed, mean, atol=RULE)
    # products of outputs, less the noise that all share
    shifts = {s: found.shifts[list(s)].mean(axis=0) for s in samples}
    second = np.mean([
        (rows.T @ rows) / len(rows)
        for s, out in samples.items()
        for rows in [(out - origin) @ axes - shifts[s]]
    ], axis=0)  # fmt: skip
    limit = found.outputs.T @ found.outputs / len(found.outputs)
    np.testing.assert_allclose(found.second[0, 0], second - limit, atol=3 * RULE)


def test_influence_of_a_token_is_exact(enumerated):
    head, found, samples = enumerated
    origin, axes = axes_of(found, head)
    phi = found.on_mean[0, :4, 0].copy()
    along = found.on_products[0, :4, 0].copy()
    a, b = found.pairs
    if found.tokens:  # what attending 3 instead of all tokens changes in a token's own output
        first = np.array([int(np.flatnonzero(found.rows == z)[0]) for z in range(4)])
        phi += (found.mean + found.mean_shift())[first, 0]
        along += found.products[first, 0]
    wanted, products = np.zeros((4, 2)), np.zeros((4, len(a)))
    for s, out in samples.items():
        shift = found.shifts[list(s)].mean(axis=0)
        rows = (out - origin) @ axes
        wanted[s[0]] += 3 * rows.mean(axis=0) / 16
        moved = rows - shift
        products[s[0]] += 3 * np.mean(moved[:, a] * moved[:, b], axis=0) / 16
    np.testing.assert_allclose(phi - phi.mean(0), wanted - wanted.mean(0), atol=5 * RULE)
    np.testing.assert_allclose(along - along.mean(0), products - products.mean(0), atol=10 * RULE)


@pytest.mark.parametrize("strength", [0.1, 0.5])
def test_errors_agree_with_simulation(strength):
    """Expected norms of 300 samples; first order neglects a few percent at small n."""
    head, logits = made(400, 3, strength, 2)
    sizes = np.array([64, 256])
    found = cloud_errors(head, sizes, effort=Effort(256, 8, 400, 6), seed=1)
    rng = np.random.default_rng(3)
    mean, cov = head.outputs.mean(axis=0), np.cov(head.outputs.T, bias=True)
    for j, n in enumerate(sizes):
        errors = []
        for _ in range(300):
            rows = rng.integers(400, size=n)
            out = attended(logits, head.values, rows, rows)
            gap = np.cov(out.T, bias=True) - cov
            errors.append([np.sum((out.mean(axis=0) - mean) ** 2), np.sum(gap**2),
                           np.mean(np.sum((out - head.outputs[rows]) ** 2, axis=1))])  # fmt: skip
        square = np.mean(errors, axis=0)
        noise = np.std(errors, axis=0) / np.sqrt(300)
        for k, part in enumerate((found.mean, found.cov, found.map)):
            own = np.sqrt(part.covariance[j, j])
            assert abs(part.square[j] - square[k]) < 4 * np.hypot(noise[k], own) + 0.1 * square[k]


def test_standard_errors():
    """Estimates over seeds, against one with all queries, tokens and pairs.

    With 8 groups a z-score is about a Student variable of 7 degrees of freedom, of rms 1.18; over
    24 seeds, 2 sizes and 3 errors its rms is known to about 0.12.
    """
    head, _ = made(300, 6, 0.35, 4)
    sizes = np.array([64, 512])
    exact = cloud_errors(head, sizes, effort=Effort(10_000, 3, 300, 21), seed=0)
    scores = []
    for seed in range(24):
        found = cloud_errors(head, sizes, effort=Effort(64, 8, 120, 12), seed=seed)
        for metric in ("mean", "cov", "map"):
            part, truth = getattr(found, metric), getattr(exact, metric)
            scores.append((part.square - truth.square) / np.sqrt(np.diag(part.covariance)))
    scores = np.array(scores)
    assert 0.75 < np.sqrt(np.mean(scores**2)) < 1.6
    assert np.abs(scores).max() < 6


def test_slopes():
    head, _ = made(300, 3, 0.3, 5)
    found = cloud_errors(head, [50, 100, 200, 400], seed=0).mean
    x = np.log(found.sizes)
    slope, noise = found.slope()
    assert slope == pytest.approx(-np.polyfit(x, np.log(found.norm), 1)[0])
    assert 0 < noise < 0.05
    assert np.all(found.norm < found.rms)


def test_extreme_heads():
    """Attention to one token, and attention to all alike, give finite numbers."""
    for strength in (0.0, 1e-6, 1e4):
        head, _ = made(80, 2, strength, 6)
        found = cloud_errors(head, [2, 64, 1e6], seed=0)
        for part in (found.mean, found.map):
            assert np.isfinite(part.square).all()
            assert (part.square >= 0).all()
    # uniform attention: the error of a plain mean of n values
    head, _ = made(80, 2, 0.0, 6)
    found = cloud_errors(head, [64.0], seed=0)
    variance = np.trace(np.cov(head.values.T, bias=True))
    noise = np.sqrt(found.mean.covariance[0, 0])
    assert abs(found.mean.square[0] - variance / 64) < 5 * noise + RULE * variance / 64
    noise = np.sqrt(found.map.covariance[0, 0])
    assert abs(found.map.square[0] - variance / 64) < 5 * noise + RULE * variance / 64
    assert abs(found.cov.square[0]) < 1e-9
    assert np.isfinite([*found.cov.norm, *found.cov.standard_error]).all()


def test_chances():
    rng = np.random.default_rng(0)
    shares = rng.pareto(1.0, size=300)
    values = shares * rng.uniform(0.5, 1.5, size=300)
    totals, scores = [], []
    for _ in range(400):
        chosen = choose(shares, 40, rng)
        assert abs(len(chosen.members) - 40) <= 1
        totals.append(float(chosen.total(values[chosen.members])))
        error = np.sqrt(chosen.covariance(values[chosen.members][:, None])[0, 0])
        scores.append((totals[-1] - values.sum()) / error)
    noise = np.std(totals) / 20
    assert abs(np.mean(totals) - values.sum()) < 4 * noise
    assert 0.8 < np.sqrt(np.mean(np.square(scores))) < 1.25
    assert np.std(totals) < 0.05 * values.sum()


def test_near_order_is_an_order():
    points = np.random.default_rng(1).standard_normal((257, 3))
    order = near_order(points)
    assert sorted(order) == list(range(257))
    near = np.linalg.norm(np.diff(points[order], axis=0), axis=1).mean()
    assert near < 0.7 * np.linalg.norm(np.diff(points, axis=0), axis=1).mean()
