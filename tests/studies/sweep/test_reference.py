"""Finite references: attention over tokens that were drawn once and stand for a law."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import esscher
from esscher.engine.attention.outputs import attention_outputs
from esscher.math.limits import limit_moments
from esscher.runs.registry import load
from esscher.studies.sweep import SweepStudy, sweep
from esscher.studies.sweep.measure import measured_head, moments_of_rows, reference_outputs
from tests.studies.sweep.small import assert_same

SIZES = [20, 60, 180]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("shape", [(3, 3), (5, 2), (2, 5)])
def test_outputs_are_those_of_dense_attention(
    dtype: str, tolerance: float, shape: tuple[int, int]
) -> None:
    rng = np.random.default_rng(0)
    tilts, keys = rng.standard_normal((2, 70, shape[0]))
    values = 10 + rng.standard_normal((70, shape[1]))
    found = attention_outputs(tilts, keys, values, scales=[0.3, 2.0], dtype=dtype)
    for s, alpha in enumerate([0.3, 2.0]):
        logits = alpha * tilts @ keys.T
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        dense = weights @ values / weights.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found[s], dense, atol=10 * tolerance)


def test_moments_of_a_finite_reference_are_exact() -> None:
    rng = np.random.default_rng(1)
    head = esscher.array_head(*rng.standard_normal((3, 50, 2)))
    outputs = reference_outputs(head, SweepStudy(head, (50,), dtype="float64"))
    assert outputs is not None
    means, covariances = moments_of_rows(outputs)
    exact = limit_moments(head)
    np.testing.assert_allclose(means[0], exact.mean, atol=1e-13)
    np.testing.assert_allclose(covariances[0], exact.covariance, atol=1e-13)


@pytest.mark.parametrize("law", ["laplace", "student"])
@pytest.mark.parametrize("queries", ["tokens", "population"])
def test_laws_without_a_limit_are_compared_with_tokens(
    law: str, queries: str, tmp_path: Path
) -> None:
    head = esscher.law_head(esscher.laws.standard_law(law, 2), horizon=0.5)
    out = tmp_path / "run"
    curve = sweep(head, SIZES, 4, 0, queries=queries, out=out)
    assert curve.study.reference_tokens == 4 * SIZES[-1]
    assert "no infinite-token limit" in curve.notes[0]
    assert "720 tokens drawn once" in curve.notes[0]
    assert load(out).notes == curve.notes
    assert np.all(curve.mean("map") > 0)
    # it is the sweep of a head from those tokens
    same = sweep(measured_head(head, curve.study), SIZES, 4, 0, queries=queries)
    assert_same(curve, same)


def test_a_reference_can_be_asked_for_where_there_is_a_limit() -> None:
    """Against its own tokens the error falls on; it is no longer the error against the law."""
    head = esscher.gaussian_head(0.5, 2)
    against_law = sweep(head, SIZES, 3, 0)
    curve = sweep(head, SIZES, 3, 0, reference_tokens=200)
    assert against_law.study.reference_tokens is None
    assert curve.study.reference_tokens == 200
    assert curve.notes == (
        "errors are against attention over 200 tokens drawn once, whose law the samples follow; "
        "exponents describe the approach to those tokens",
    )
