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


def _share(head, law, within_errors, found, draws=400_000):
    tilts = head.tokens(law.sample(draws, np.random.default_rng(2))).tilts
    outside = ~law.tilt_domain.contains(tilts)
    error = np.sqrt(found.fraction * (1 - found.fraction) / draws)
    within_errors(outside.mean(), found.fraction, error)


@pytest.mark.parametrize(
    ("matrix", "bias"),
    [
        (np.diag([0.5, 0.8, -1.5]), None),
        (np.diag([0.5, 0.8, -1.5]), [0.3, -0.2, 0.9]),
        ([[0.0, 0.6, 0.0], [0.0, -0.9, 0.0], [0.4, 0.0, 0.0]], [0.5, 0.2, 0.0]),
        ([[0.0, 0.0, 0.0], [0.7, 0.0, 0.0], [0.7, 0.0, 0.0]], [0.9, 0.1, -0.4]),
    ],
    ids=["diagonal", "bias", "shared column", "row of zeros"],
)
def test_laplace_fraction_is_exact(matrix, bias, within_errors):
    law = Laplace(3, scale=0.8)
    head = _head(law, matrix, bias)
    found = limit_moments(head)
    assert isinstance(found, NoLimit)
    assert found.fraction_error == 0.0
    _share(head, law, within_errors, found)


def test_laplace_fraction_is_one_when_intervals_do_not_meet_or_a_fixed_tilt_is_outside():
    law = Laplace(2)
    apart = _head(law, [[1.0, 0.0], [1.0, 0.0]], [5.0, -5.0])
    fixed = _head(law, [[1.0, 0.0], [0.0, 0.0]], [0.0, 1.0])
    for head in (apart, fixed):
        found = limit_moments(head)
        assert isinstance(found, NoLimit)
        assert found.fraction == 1.0


def test_laplace_with_a_full_matrix_is_sampled(within_errors):
    """A rotation of the diagonal case in disguise: sampled and exact fractions agree."""
    law = Laplace(2)
    head = _head(law, [[0.6, 0.0], [0.6, 1e-9]])  # the second entry is too large for rounding
    exact = limit_moments(_head(law, [[0.6, 0.0], [0.6, 0.0]]))
    found = limit_moments(head, samples=100_000, seed=4)
    assert isinstance(found, NoLimit)
    assert isinstance(exact, NoLimit)
    assert found.fraction_error > 0
    within_errors(found.fraction, exact.fraction, found.fraction_error)


def test_no_query_seen_outside_is_still_no_limit():
    found = limit_moments(_head(Laplace(2), [[0.01, 0.01], [0.0, 0.01]]), samples=1000)
    assert isinstance(found, NoLimit)
    assert found.fraction == 0.0
    assert found.fraction_error == 1 / 1000
    assert "below about 1/1000" in found.reason


@pytest.mark.parametrize("df", [1.0, 3.0, 30.0])
def test_student_has_no_limit_at_any_query(df):
    found = limit_moments(_head(StudentT(3, df=df), 1e-6 * np.eye(3)))
    assert found == NoLimit(f"StudentT(dim=3, df={df}, scale=1.0)", 1.0, 0.0, found.reason)
    assert "needs t = 0" in str(found)


def test_student_without_tilt_is_a_plain_average():
    found = limit_moments(_head(StudentT(2, df=5), np.zeros((2, 2))))
    assert isinstance(found, OutputMoments)
    np.testing.assert_array_equal(found.mean, [0.0, 0.0])
    np.testing.assert_array_equal(found.covariance, np.zeros((2, 2)))


def test_laplace_with_a_fixed_tilt_inside_has_a_limit():
    found = limit_moments(_head(Laplace(2), np.zeros((2, 2)), [0.5, 0.0]))
    assert isinstance(found, OutputMoments)
    assert found.method == "closed form"
    np.testing.assert_allclose(found.mean, [1.0 / 0.75, 0.0])
