"""Types of tails, recovered from samples of known laws; sub-Gaussian parameters in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from esscher.core.errors import InputError
from esscher.math.tails.candidates import compare_tails, compare_thresholds, variance_proxy
from esscher.math.tails.verdict import NONE, SUB_GAUSSIAN, judge_thresholds

DRAWS = 40
COUNT = 8000
GROUPS = np.arange(COUNT) // 250


def draw(law, rng):
    return {
        "gaussian": lambda: rng.standard_normal(COUNT),
        "laplace": lambda: rng.laplace(size=COUNT),
        "root": lambda: rng.gamma(2.0, size=COUNT) ** 2,  # density exp(-sqrt x)
    }[law]()


@pytest.mark.parametrize(("law", "tau"), [("gaussian", 2.0), ("laplace", 1.0), ("root", 0.5)])
def test_tau_is_recovered_and_its_interval_covers(law, tau):
    """Each law has a density exp(-c x^tau) beyond every threshold, so that tau is exact."""
    rng = np.random.default_rng(11)
    result = [compare_tails(np.abs(draw(law, rng)), GROUPS, 0.1) for _ in range(DRAWS)]
    logs = np.log([f.tau for f in result])
    error = logs.std(ddof=1) / np.sqrt(DRAWS)
    # the logarithm of a maximum likelihood estimate is biased by half its variance
    assert abs(logs.mean() - np.log(tau)) < 4 * error + logs.var()
    covered = sum(f.tau_interval[0] <= tau <= f.tau_interval[1] for f in result)
    # nominal 95%: fewer than 32 of 40 have probability 3e-4
    assert covered >= 32


def test_a_power_law_is_of_pareto_type():
    rng = np.random.default_rng(3)
    result = compare_tails(rng.pareto(2.0, COUNT) + 1, GROUPS, 0.1)
    assert result.criterion["Pareto"] == 0
    assert result.criterion["Gaussian"] > 100
    assert result.tau_interval[1] < 1


def test_repeated_tokens_are_not_independent():
    """Every value sixteen times within its passage: intervals are those of the different values."""
    rng = np.random.default_rng(4)
    narrow, wide = [], []
    for _ in range(12):
        values = np.abs(rng.standard_normal(1000))
        once = compare_tails(values, np.arange(1000), 0.1)
        often = compare_tails(np.repeat(values, 16), np.repeat(np.arange(1000), 16), 0.1)
        narrow.append(np.diff(np.log(once.tau_interval))[0])
        wide.append(np.diff(np.log(often.tau_interval))[0])
    assert np.median(wide) == pytest.approx(np.median(narrow), rel=0.25)


def test_a_cluster_is_seen_from_below_and_from_inside():
    """1% of all values form a bounded cluster: heavy at low thresholds, cut off at high ones."""
    rng = np.random.default_rng(5)
    cluster = rng.random(COUNT) < 0.01
    values = np.abs(
        np.where(cluster, 7 + 0.4 * rng.standard_normal(COUNT), rng.standard_normal(COUNT))
    )
    result = compare_thresholds(values, GROUPS)
    assert len(result) == 6
    assert result[0].tau_interval[1] < 1
    assert any(f.tau_interval[0] > 2 for f in result[1:])
    assert judge_thresholds(result)[0] == SUB_GAUSSIAN
    assert judge_thresholds(result[:1])[0] == NONE


def test_equal_values_stay_together():
    rng = np.random.default_rng(6)
    values = np.round(np.abs(rng.standard_normal(COUNT)), 1)
    result = compare_thresholds(values, GROUPS)
    assert [f.exceedances for f in result] == sorted({f.exceedances for f in result}, reverse=True)
    for f in result:
        assert f.exceedances == np.sum(values > f.threshold)
    with pytest.raises(InputError, match="no tail"):
        compare_tails(np.ones(500), np.arange(500), 0.1)
    with pytest.raises(InputError, match="exceedances"):
        compare_tails(np.arange(100.0), np.arange(100), 0.1)


def test_variance_proxy_of_a_gaussian_and_of_a_mixture():
    rng = np.random.default_rng(7)
    value, low, _ = variance_proxy(rng.standard_normal(COUNT), GROUPS, 0)
    # 100 values carry the end of the range, |t| = 1.5: 2 K / t^2 is known to 2 * 0.1 / t^2 there
    assert 1 <= value < 1 + 4 * 0.2 / 1.5**2
    assert low < 1.02
    weight, distance = 0.1, 4.0
    sample = rng.standard_normal(COUNT) + distance * (rng.random(COUNT) < weight)
    value, _, high = variance_proxy(5 + 3 * sample, GROUPS, 0)
    variance = 1 + weight * (1 - weight) * distance**2
    s = np.linspace(0.05, 4.0, 400) / np.sqrt(variance)
    s = np.concatenate([s, -s])
    log_mgf = s**2 / 2 + np.log(1 - weight + weight * np.exp(distance * s)) - s * weight * distance
    exact = np.max(2 * log_mgf / (s**2 * variance))
    error = (high - value) / stats.t.ppf(0.975, 31)
    assert abs(value - exact) < 4 * error
    assert exact > 1.5
    symmetric = variance_proxy(np.where(rng.random(COUNT) < 0.5, 1.0, -1.0), GROUPS, 0)
    assert symmetric[0] == pytest.approx(1, abs=0.01)
