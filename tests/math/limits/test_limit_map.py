"""The limit map at given queries, and its answer where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.math.heads import array_head, law_head, weight_head
from esscher.math.laws import FiniteTokens, Gaussian, Laplace, Signs, StudentT
from esscher.math.limits import limit_map


def test_gaussian_map_is_the_affine_formula():
    rng = np.random.default_rng(0)
    factor = rng.standard_normal((3, 3))
    mean, sigma = rng.standard_normal(3), factor @ factor.T
    w_q, w_k, w_v = (rng.standard_normal((2, 3)) for _ in range(3))
    b_q, b_v = rng.standard_normal(2), rng.standard_normal(2)
    head = weight_head(
        Gaussian(mean, sigma), query=w_q, key=w_k, value=w_v, query_bias=b_q, value_bias=b_v
    )
    x = rng.standard_normal((4, 5, 3))
    result = limit_map(head, tokens=x)
    a_matrix, a = w_k.T @ w_q / np.sqrt(2), w_k.T @ b_q / np.sqrt(2)
    expected = (mean + (x @ a_matrix.T + a) @ sigma) @ w_v.T + b_v
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_tokens_and_their_tilts_agree():
    head = law_head(Signs(3), spectrum=[0.5, 1.0, 2.0])
    x = np.array([[1.0, -1.0, 1.0], [1.0, 1.0, 1.0]])
    by_tokens, by_tilts = limit_map(head, tokens=x), limit_map(head, tilts=x * [0.5, 1.0, 2.0])
    np.testing.assert_allclose(by_tokens, np.tanh(x * [0.5, 1.0, 2.0]), rtol=1e-14)
    np.testing.assert_array_equal(by_tokens, by_tilts)


def test_one_query_without_a_leading_axis():
    result = limit_map(law_head(Signs(2), horizon=1.0), tilts=[1.0, 0.0])
    np.testing.assert_allclose(result, [np.tanh(1.0), 0.0])


def test_there_is_no_limit_outside_the_domain():
    head = law_head(Laplace(2, scale=0.5), matrix=np.zeros((2, 2)))
    tilts = np.array([[0.0, 1.9], [2.0, 0.0], [-3.0, 3.0], [1.0, 1.0]])
    result = limit_map(head, tilts=tilts)
    np.testing.assert_allclose(result[0, 1], 2 * 0.25 * 1.9 / (1 - 0.25 * 1.9**2))
    np.testing.assert_array_equal(np.isnan(result).all(axis=1), [False, True, True, False])


@pytest.mark.parametrize(("df", "at_zero"), [(3.0, True), (1.0, False)])
def test_student_has_a_limit_at_zero_at_most(df, at_zero):
    head = weight_head(StudentT(2, df=df), query=np.eye(2), key=np.eye(2))
    result = limit_map(head, tilts=[[0.0, 0.0], [1e-9, 0.0]])
    np.testing.assert_array_equal(np.isfinite(result).all(axis=1), [at_zero, False])


def test_finite_tokens_are_a_softmax():
    rng = np.random.default_rng(1)
    tokens = rng.standard_normal((40, 3))
    head = weight_head(FiniteTokens(tokens), query=np.eye(3), key=np.eye(3), scale=1.0)
    result = limit_map(head, tokens=tokens)
    scores = np.exp(tokens @ tokens.T)
    np.testing.assert_allclose(
        result, scores @ tokens / scores.sum(axis=1, keepdims=True), rtol=1e-11
    )


def test_queries_must_be_given_once_and_fit():
    head = law_head(Signs(3), horizon=1.0)
    rows = np.ones((4, 2))
    with pytest.raises(InputError, match="either"):
        limit_map(head)
    with pytest.raises(InputError, match="either"):
        limit_map(head, tokens=np.ones(3), tilts=np.ones(3))
    with pytest.raises(InputError, match="length 3"):
        limit_map(head, tilts=np.ones(2))
    with pytest.raises(InputError, match="tilts="):
        limit_map(array_head(rows, rows, rows), tokens=rows)
    with pytest.raises(InputError, match="length 2"):
        limit_map(array_head(rows, rows, rows), tilts=np.ones(3))
