"""Laws with heavy tails: which fraction of the queries has no infinite-token limit."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.math.heads import weight_head
from esscher.math.laws import Laplace, StudentT
from esscher.math.limits import NoLimit, OutputMoments, limit_moments


def _head(law, matrix, bias=None):
    matrix = np.asarray(matrix, dtype=float)
    return weight_head(law, query=matrix, key=np.eye(law.dim), query_bias=bias, scale=1.0)


def test_laplace_fraction():
    """A tilt a x is outside where |x| >= 1/(a b): for independent coordinates exp(-1/(a b^2))."""
    law, slopes = Laplace(3, scale=0.8), np.array([0.5, 0.8, -1.5])
    exact = 1 - np.prod(1 - np.exp(-1 / (np.abs(slopes) * 0.8**2)))
    result = limit_moments(_head(law, np.diag(slopes)), samples=100_000, seed=4)
    assert isinstance(result, NoLimit)
    assert abs(result.fraction - exact) < 4 * result.fraction_error < 0.01


def test_no_query_has_a_limit_where_a_fixed_tilt_is_outside():
    result = limit_moments(_head(Laplace(2), [[1.0, 0.0], [0.0, 0.0]], [0.0, 1.0]))
    assert isinstance(result, NoLimit)
    assert result.fraction == 1.0


def test_no_query_seen_outside_is_still_no_limit():
    result = limit_moments(_head(Laplace(2), [[0.01, 0.01], [0.0, 0.01]]), samples=1000)
    assert isinstance(result, NoLimit)
    assert result.fraction == 0.0
    assert result.fraction_error == 1 / 1000
    assert "below about 1/1000" in result.reason


@pytest.mark.parametrize("df", [1.0, 3.0, 30.0])
def test_student_has_no_limit_at_any_query(df):
    result = limit_moments(_head(StudentT(3, df=df), 1e-6 * np.eye(3)))
    assert result == NoLimit(f"StudentT(dim=3, df={df}, scale=1.0)", 1.0, 0.0, result.reason)
    assert "needs t = 0" in str(result)


def test_student_without_tilt_is_a_plain_average():
    result = limit_moments(_head(StudentT(2, df=5), np.zeros((2, 2))))
    assert isinstance(result, OutputMoments)
    np.testing.assert_array_equal(result.mean, [0.0, 0.0])
    np.testing.assert_array_equal(result.covariance, np.zeros((2, 2)))


def test_laplace_with_a_fixed_tilt_inside_has_a_limit():
    result = limit_moments(_head(Laplace(2), np.zeros((2, 2)), [0.5, 0.0]))
    assert isinstance(result, OutputMoments)
    assert result.method == "closed form"
    np.testing.assert_allclose(result.mean, [1.0 / 0.75, 0.0])
