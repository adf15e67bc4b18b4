"""Means with intervals; corrections for many tests, against published examples and simulation."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.math.statistics.intervals import (
    discoveries,
    family_wise,
    mean_bounds,
)

#: The 15 p-values of Benjamini and Hochberg (1995), section 3.2.
THROMBOLYSIS = (
    np.array([1, 4, 19, 95, 201, 278, 298, 344, 459, 3240, 4262, 5719, 6528, 7590, 10000]) / 1e4
)


def test_the_published_example():
    # "four hypotheses" at a false discovery rate of 0.05, three by Bonferroni and by Holm
    assert np.count_nonzero(discoveries(THROMBOLYSIS) <= 0.05) == 4
    assert np.count_nonzero(family_wise(THROMBOLYSIS) <= 0.05) == 3


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1, made monotone
    result = family_wise([0.04, 0.01, 0.03, 0.02])
    assert result == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert family_wise([0.5, 0.9]).tolist() == [1.0, 1.0]


def test_tests_that_were_not_made_do_not_count():
    p = np.array([[0.01, np.nan], [0.02, 0.04]])
    assert np.isnan(family_wise(p)[0, 1])
    assert family_wise(p)[0, 0] == pytest.approx(0.03)
    assert discoveries(p)[1, 1] == pytest.approx(0.04)
    assert np.isnan(discoveries([np.nan, np.nan])).all()


def test_bad_input():
    with pytest.raises(InputError, match="between 0 and 1"):
        discoveries([0.1, 1.5])


def test_intervals_of_means():
    values = np.array([[1.0, 0.2], [2.0, 0.9], [3.0, 0.4]])
    result = mean_bounds(values, 0.0, 1.0)
    assert result[:, 0] == pytest.approx([2.0, 0.5])
    # Student's quantile with 2 degrees of freedom; cut at the range of the quantity
    half = 4.302652729911275 * 1.0 / np.sqrt(3)
    assert mean_bounds(values)[0] == pytest.approx([2, 2 - half, 2 + half])
    assert result[1, 1:].tolist() == [0.0, 1.0]
    assert np.isnan(mean_bounds(values[:1])[:, 1:]).all()
