"""Shape of tails against exact generalised Pareto samples and against arviz itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.statistics import tail_count, tail_shape, values_needed


@pytest.mark.parametrize("k", [0.2, 0.5, 0.8])
def test_exact_generalised_pareto_samples(k: float) -> None:
    rng = random_stream(0, "test tail")
    results = [tail_shape(stats.genpareto.rvs(k, size=4000, random_state=rng)) for _ in range(40)]
    mean = np.mean([shape.k for shape in results])
    deviation = np.std([shape.k for shape in results], ddof=1)
    # The prior at 1/2 is worth 10 of 199 observations: it pulls by at most 0.02.
    assert abs(mean - k) < 4 * deviation / np.sqrt(40) + 0.02
    assert deviation == pytest.approx(results[0].standard_error, rel=0.4)
    covered = [abs(shape.k - k) < 1.96 * shape.standard_error for shape in results]
    assert np.mean(covered) > 0.92 - 3 * np.sqrt(0.05 * 0.95 / 40)


def test_it_is_the_estimate_of_arviz() -> None:
    from arviz_stats.base import array_stats

    rng = random_stream(1, "test tail")
    for k, size in ((0.4, 900), (-0.3, 900), (1.2, 900), (0.4, 30), (0.0, 200_000)):
        values = stats.genpareto.rvs(k, size=size, random_state=rng)
        theirs = array_stats.pareto_khat(values[None], r_eff=1, tail="right")
        assert tail_shape(values).k == pytest.approx(float(theirs), rel=1e-12)
    assert tail_shape(stats.genpareto.rvs(0.4, size=900, random_state=rng)).count == 90


def test_values_needed() -> None:
    assert values_needed(-0.3) == values_needed(0.0) == 10
    assert values_needed(0.5) == pytest.approx(100)
    assert values_needed(0.7) == pytest.approx(2154, abs=1)
    assert values_needed(1.0) == math.inf


@pytest.mark.parametrize(
    "values",
    [np.ones(100), np.r_[np.zeros(96), 1.0, 2, 3, 4], np.r_[np.arange(80.0), np.full(20, 99.0)]],
)
def test_ties_have_no_tail(values: Array) -> None:
    with pytest.raises(InputError, match="no tail"):
        tail_shape(values)


def test_too_few_values() -> None:
    with pytest.raises(InputError, match="at least 25"):
        tail_shape(np.arange(24.0))
    assert tail_count(25) == 5
    assert tail_count(225) == tail_count(226) == 45
