"""Verdicts on clouds, and how far two halves of a text agree on them."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.math.statistics.intervals import rank_correlation_interval
from esscher.math.tails.candidates import Cloud, TailComparison
from esscher.math.tails.verdict import (
    EXPONENTIAL,
    NONE,
    OPEN,
    SUB_GAUSSIAN,
    UNDECIDED,
    VERDICTS,
    at_threshold,
    half_verdicts,
    judge,
    judge_thresholds,
    kappa_estimate,
    verdict_table,
)


def comparison(low, high, *, pareto=0.0):
    return TailComparison(
        threshold=2.0,
        exceedances=100,
        tau=1.0,
        tau_interval=(low, high),
        criterion={"Gaussian": 0.0, "Weibull": 1.0, "Pareto": 1.0 - pareto},
    )


def cloud(*halves, proxies=(1.0, 1.0)):
    """A cloud of which only the comparisons and proxies matter."""
    each = tuple([value] * 3 for value in proxies)
    return Cloud(
        tokens=1000,
        passages=10,
        kurtosis=[0.0] * 3,
        proxy=each[0],
        tail=(HEAVY,),
        tail_halves=tuple((half,) for half in halves),
        proxy_halves=each,
        largest=4.0,
        agreement=0.5,
    )


HEAVY, LIGHT, UNSURE = comparison(0.3, 0.8), comparison(4, 13), comparison(0.1, 5)


def test_verdict_at_one_threshold():
    assert at_threshold(comparison(1.5, 3.0)) == SUB_GAUSSIAN
    assert at_threshold(comparison(3.0, 9.0)) == SUB_GAUSSIAN
    assert at_threshold(comparison(1.6, 1.9)) == SUB_GAUSSIAN  # within the margin
    assert at_threshold(comparison(1.4, 3.0)) == UNDECIDED
    assert at_threshold(comparison(1.1, 1.8)) == EXPONENTIAL
    assert at_threshold(comparison(0.8, 1.8)) == OPEN
    assert at_threshold(comparison(0.5, 0.9)) == NONE
    assert at_threshold(comparison(0.5, 1.4, pareto=3.0)) == NONE


def test_verdict_from_several_thresholds():
    assert judge_thresholds([HEAVY, UNSURE]) == (NONE, 0)
    assert judge_thresholds([HEAVY, LIGHT]) == (SUB_GAUSSIAN, 1)
    # lighter further out, but not beyond uncertainty
    assert judge_thresholds([HEAVY, comparison(0.7, 3.0)])[0] == NONE
    assert judge_thresholds([LIGHT, HEAVY])[0] == NONE
    assert judge_thresholds([UNSURE, UNSURE]) == (UNDECIDED, 0)
    assert judge_thresholds([comparison(0.8, 1.8), comparison(0.3, 0.9)])[0] == NONE
    assert judge_thresholds([comparison(1.1, 1.8), comparison(0.3, 0.9)])[0] == OPEN
    # heavy from below, overruled further out, where nothing can be told
    assert judge_thresholds([comparison(1.1, 1.3), comparison(1.4, 3.0)]) == (UNDECIDED, 1)
    assert set(VERDICTS) == {SUB_GAUSSIAN, EXPONENTIAL, OPEN, NONE, UNDECIDED}


def test_a_verdict_is_what_both_halves_say():
    assert judge(cloud(LIGHT, LIGHT))[0] == SUB_GAUSSIAN
    assert judge(cloud(HEAVY, HEAVY))[0] == NONE
    assert judge(cloud(HEAVY, comparison(0.8, 1.8)))[0] == OPEN
    # two directions put together look heavier than each of them, and a half alone is not believed
    for halves in ((LIGHT, HEAVY), (HEAVY, UNSURE), (UNSURE, LIGHT), (UNSURE, UNSURE), ()):
        assert judge(cloud(*halves))[0] == UNDECIDED
    # the evidence shown is that of the half which has less of it
    _, decided_by = judge(cloud(LIGHT, comparison(1.9, 9.0)))
    assert decided_by.tau_interval == (1.9, 9.0)


def test_kappa_by_hand():
    """Cohen's example: 20 + 15 of 50 alike; kappa = (0.7 - 0.5) / (1 - 0.5) = 0.4."""
    table = np.array([[20.0, 5.0, 0.0], [10.0, 15.0, 0.0], [0.0, 0.0, 0.0]])
    value, low, high = kappa_estimate(table, 0)
    assert value == pytest.approx(0.4)
    assert low < 0.4 < high
    assert np.isnan(kappa_estimate(np.diag([7.0, 0.0, 0.0]), 0)).all()
    assert np.isnan(kappa_estimate(np.zeros((3, 3)), 0)).all()


@pytest.mark.parametrize("kappa", [0.0, 0.6, 0.9])
def test_intervals_of_kappa_cover(kappa):
    """200 tables of 24: at 95% fewer than 180 have probability 3e-3, where the truth is 95%."""
    share = np.array([0.6, 0.3, 0.1])
    law = kappa * np.diag(share) + (1 - kappa) * np.outer(share, share)
    rng = np.random.default_rng(3)
    inside = 0
    for seed in range(200):
        table = rng.multinomial(24, law.ravel()).reshape(3, 3).astype(float)
        _, low, high = kappa_estimate(table, seed)
        inside += low <= kappa <= high
    assert inside >= 176


def test_a_table_of_the_halves():
    clouds = [cloud(LIGHT, LIGHT)] * 3 + [cloud(LIGHT, HEAVY)] * 2 + [cloud(HEAVY, UNSURE)]
    assert verdict_table(map(half_verdicts, clouds)).tolist() == [[3, 2, 0], [0, 0, 1], [0, 0, 0]]
    # nine of ten alike, as chance would have it: nothing is known about single clouds
    chance = [cloud(LIGHT, LIGHT)] * 32 + [cloud(LIGHT, HEAVY)] * 4 + [cloud(HEAVY, LIGHT)] * 4
    _, low, high = kappa_estimate(verdict_table(map(half_verdicts, chance)), 0)
    assert low < 0 < high


def test_rank_correlation():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        both = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], size=72)
        _, low, high = rank_correlation_interval(*both.T)
        inside += low <= 6 / np.pi * np.arcsin(0.3) <= high
    assert inside >= 180
    assert np.isnan(rank_correlation_interval(*np.ones((2, 9)))).all()
    assert np.isnan(rank_correlation_interval(*np.zeros((2, 0)))).all()
