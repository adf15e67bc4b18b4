"""What two tokens do together: integrals against enumeration, squares against simulation."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.math.theory.cloud import cloud_errors
from esscher.math.theory.cloud_pairs import Factors, choose_pairs
from esscher.math.theory.cloud_pass import CloudHead, CloudPass, Effort
from esscher.math.theory.cloud_query import OwnKey
from esscher.math.theory.cloud_squares import cov_squares
from esscher.math.theory.cloud_table import KeyColumns, query_table

#: Trapezoidal rule, cuts and single precision.
RULE = 3e-4


def test_factors_are_exact():
    """Expectations over the other keys of a sample, against the enumeration of all of them."""
    rng = np.random.default_rng(0)
    logits, values = 1.5 * rng.standard_normal(5), rng.standard_normal((5, 2))
    none = np.zeros(0, dtype=np.int64)
    keys = KeyColumns.of(values, np.zeros((5, 2)), (none, none))
    w = np.exp(logits) / np.exp(logits).mean()
    table = query_table(logits, keys, w @ values / 5, 2.0, 4.0)
    j, k = np.array([0, 3, 2]), np.array([1, 3, 4])
    own = OwnKey.of(table, 4, values[4], np.zeros(2))
    found = Factors.of(table, own, (j, k), np.array([3.0]))[:, 0]
    others = w[4] + w  # one more key beside j, k and its own

    def inverse(weight, power):
        return np.mean([(other + weight) ** -power for other in others], axis=0)

    def random_other(weight, power):
        return np.mean([inverse(weight + w[t], power) for t in range(5)], axis=0)

    both, both2 = inverse(w[j] + w[k], 1.0), inverse(w[j] + w[k], 2.0)
    wanted = [
        w[j] * (both - random_other(w[j], 1.0)),
        w[k] * (both - random_other(w[k], 1.0)),
        w[j] * w[k] * both2,
        w[j] ** 2 * (both2 - random_other(w[j], 2.0)),
        w[k] ** 2 * (both2 - random_other(w[k], 2.0)),
        w[j] * both,
        w[k] * both,
    ]
    np.testing.assert_allclose(found, wanted, atol=3 * RULE)


def test_typical_factors_are_near():
    """Where no key has much of the weight, W is near its mean."""
    rng = np.random.default_rng(1)
    logits, values = 0.2 * rng.standard_normal(400), rng.standard_normal((400, 2))
    none = np.zeros(0, dtype=np.int64)
    keys = KeyColumns.of(values, np.zeros((400, 2)), (none, none))
    w = np.exp(logits) / np.exp(logits).mean()
    table = query_table(logits, keys, w @ values / 400, 2.0, 300.0)
    ends, n = (np.arange(40), np.arange(40, 80)), np.array([300.0])
    exact = Factors.of(table, OwnKey.none(table, 2), ends, n)
    weights = [w[None, part].astype(np.float32) for part in ends]
    typical = Factors.typical(weights[0], weights[1], n).values[:, 0]
    size = np.abs(typical).max(axis=(1, 2))[:, None, None]
    # the variance of W is 4% of its mean: 1/W is off by 0.04/300 of itself, and the rule by RULE
    assert np.all(np.abs(exact - typical) < 5 * RULE * size)


def test_means_over_pairs():
    """Sums over chosen pairs are those over all, and their standard errors are right."""
    rng = np.random.default_rng(2)
    felt = rng.pareto(2.5, size=(12, 60)).astype(np.float32)
    shares = np.full(60, 1 / 60)
    # what two different queries attend together; one query's part is noise of its own
    together = (felt.T @ felt) ** 2 - (felt**2).T @ felt**2
    values = together * rng.uniform(0.5, 1.5, size=(60, 60))
    totals, scores = [], []
    for _ in range(200):
        chosen = choose_pairs(shares, felt, np.ones(60), 80, rng)
        part = values[chosen.first, chosen.second]
        totals.append(chosen.weights @ part)
        error = np.sqrt(chosen.covariance(part[:, None])[0, 0])
        scores.append((totals[-1] - values.mean()) / error)
    assert abs(np.mean(totals) - values.mean()) < 4 * np.std(totals) / np.sqrt(200)
    # 200 scores know their root mean square to 5%; halves of fixed size vary less than stated
    assert 0.75 < np.sqrt(np.mean(np.square(scores))) < 1.15


def test_no_pair_is_attended_together():
    """Queries without a key in common: all pairs are chosen by what each token does."""
    felt = np.eye(6, dtype=np.float32)
    chosen = choose_pairs(np.full(6, 1 / 6), felt, np.ones(6), 30, np.random.default_rng(0))
    np.testing.assert_allclose(chosen.weights, 1 / 30)


def made(queries):
    """Keys that attend in clusters, so that errors of queries in one are alike."""
    rng = np.random.default_rng(5)
    centres = 1.5 * rng.standard_normal((6, 3))
    k = np.repeat(centres, 50, axis=0) + 0.4 * rng.standard_normal((300, 3))
    v = rng.standard_normal((300, 3))
    q = k if queries is None else k[rng.integers(300, size=queries)]
    logits = 1.2 * q @ k.T
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    outputs = weights / weights.sum(axis=1, keepdims=True) @ v
    own = np.arange(300) if queries is None else None
    asked = np.inf if queries is None else float(queries)
    return CloudHead(v, outputs, lambda rows: logits[rows], own, asked), logits


def squares(head, logits, n, samples, rng):
    """Squared errors of mean and covariance in each sample."""
    mean, cov = head.outputs.mean(axis=0), np.cov(head.outputs.T, bias=True)
    errors = []
    for _ in range(samples):
        rows = rng.integers(300, size=n)
        asked = np.arange(len(logits)) if head.own is None else rows
        weights = np.exp(logits[np.ix_(asked, rows)])
        out = weights / weights.sum(axis=1, keepdims=True) @ head.values[rows]
        gap = np.cov(out.T, bias=True) - cov
        errors.append([np.sum((out.mean(axis=0) - mean) ** 2), np.sum(gap**2)])
    return np.array(errors)


@pytest.mark.parametrize("queries", [None, 200], ids=["tokens", "fixed queries"])
def test_errors_agree_with_simulation(queries):
    """Where queries of a cluster attend the same tokens, pairs are 13 to 28% of the covariance's.

    Squared errors of 1,000 samples; 4% of them for three tokens together.
    """
    head, logits = made(queries)
    effort = Effort(10_000, 3, 300, 6, more=300, together=2000)
    found = cloud_errors(head, [32, 128], effort=effort, seed=1)
    for i, n in enumerate((32, 128)):
        errors = squares(head, logits, n, 1000, np.random.default_rng(n))
        level, noise = errors.mean(axis=0), errors.std(axis=0) / np.sqrt(1000)
        for part, square, error in zip((found.mean, found.cov), level, noise, strict=True):
            both = np.hypot(error, np.sqrt(part.covariance[i, i]))
            assert abs(part.square[i] - square) < 3 * both + 0.04 * square
    # without pairs it does not
    less = CloudPass(head, np.array([128.0]), np.array([128.0]), effort, np.random.default_rng(2))
    for part in (less.jointly_on_products, less.mutual_on_products):
        part[:] = 0.0
    assert cov_squares(less).square[0] < 0.85 * level[1]
