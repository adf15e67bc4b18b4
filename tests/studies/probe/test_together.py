"""Heads whose errors have known correlations: independent, identical, and in between."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.engine.sampled.layer import output_gram, projected_products
from esscher.studies.probe.combine import (
    amplification,
    effective_heads,
    error_correlation,
)

HEADS, REPLICATES = 12, 32


def errors(rho, d, rng):
    """Error vectors of heads [replicate, head, d] with correlation rho between any two heads."""
    shared = rng.standard_normal((REPLICATES, 1, d))
    own = rng.standard_normal((REPLICATES, HEADS, d))
    return np.sqrt(rho) * shared + np.sqrt(1 - rho) * own


def products(e):
    return np.einsum("rhd,rgd->rhg", e, e)


def exact_number(rho):
    return HEADS**2 / (HEADS + HEADS * (HEADS - 1) * rho**2)


@pytest.mark.parametrize("rho", [0.1, 0.3, 0.7])
def test_numbers_are_recovered_and_intervals_cover(rho):
    """32 replicates of errors in d = 8: over 60 draws the mean is right, and intervals cover."""
    rng = np.random.default_rng(3)
    exact, ratio = exact_number(rho), 1 + (HEADS - 1) * rho
    inverse, sums, covered = [], [], np.zeros(2)
    for draw in range(60):
        result = products(errors(rho, 8, rng))
        number, whole = effective_heads(result, draw), amplification(result, draw)
        inverse.append(1 / number[0])
        sums.append(whole[0])
        covered += [number[1] <= exact <= number[2], whole[1] <= ratio <= whole[2]]
    # 1 / number is linear in the estimated squares, so that its mean is the one to look at
    for values, truth in ((inverse, 1 / exact), (sums, ratio)):
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        assert abs(np.mean(values) - truth) < 4 * error + 0.01 * truth
    # nominal 95%; percentiles of 32 replicates cover a little less
    assert np.all(covered >= 60 * 0.93 - 4 * np.sqrt(60 * 0.95 * 0.05))


def test_independent_heads_are_not_taken_for_fewer():
    """The plain estimate is biased by the number of pairs; the corrected one is not."""
    rng = np.random.default_rng(5)
    results = [products(errors(0.0, 2, rng)) for _ in range(40)]
    plain = [HEADS**2 / np.sum(error_correlation(f) ** 2) for f in results]
    values = [effective_heads(f, 0)[0] for f in results]
    assert np.mean(plain) < 10.8
    # clipped at 12: half of the noise is lost
    assert np.mean(values) > 11.7
    assert all(effective_heads(f, 0)[2] == HEADS for f in results[:5])


def test_identical_heads_are_one():
    rng = np.random.default_rng(1)
    e = np.repeat(rng.standard_normal((REPLICATES, 1, 4)), HEADS, axis=1)
    assert effective_heads(products(e), 0)[0] == pytest.approx(1)
    assert amplification(products(e), 0)[0] == pytest.approx(HEADS)
    np.testing.assert_allclose(error_correlation(products(e)), 1)
    # opposite errors cancel: as dependent, but nothing is left of the sum
    e[:, ::2] *= -1
    assert effective_heads(products(e), 0)[0] == pytest.approx(1)
    assert amplification(products(e), 0)[0] == pytest.approx(0, abs=1e-12)


def test_a_head_without_error_is_left_alone():
    e = np.random.default_rng(0).standard_normal((8, 3, 2))
    e[:, 1] = 0
    assert np.all(np.isfinite(error_correlation(products(e))))
    assert np.isfinite(effective_heads(products(e), 0)[0])
    assert amplification(np.zeros((8, 3, 3)), 0)[0] == 1.0


def test_products_are_those_of_projected_vectors():
    import torch

    rng = np.random.default_rng(7)
    weights = rng.standard_normal((3, 10, 4))
    e = rng.standard_normal((3, 20, 4))
    projected = np.einsum("hoe,hne->hno", weights, e)
    expected = np.einsum("hno,gno->hg", projected, projected) / 20
    of_mean, of_queries = projected_products(
        output_gram(weights), e.mean(axis=1).ravel(), torch.from_numpy(e)
    )
    np.testing.assert_allclose(of_queries, expected)
    means = projected.mean(axis=1)
    np.testing.assert_allclose(of_mean, means @ means.T)
