"""The test of corpora: calibrated where nothing differs, powerful where something does."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from esscher.math.statistics.intervals import discoveries
from esscher.studies.domains.compare import (
    between_share,
    compare,
    differences,
    permutation_p,
    smallest_p,
)

TOKENS, SHARE = "tokens", "khat"


def null(law="normal", rows=400, corpora=2, blocks=6, seed=1):
    """Blocks of the same corpus under different labels, [row, corpus, block]."""
    rng = np.random.default_rng([seed, 29])
    shape = (rows, corpora, blocks)
    if law == "normal":
        return rng.standard_normal(shape)
    if law == "skewed":  # the logarithm of an exponential: what a statistic's log may look like
        return np.log(rng.exponential(size=shape))
    return rng.standard_t(3, size=shape)


@pytest.mark.parametrize("law", ["normal", "skewed", "heavy"])
@pytest.mark.parametrize("corpora", [2, 4])
def test_p_values_are_uniform_when_nothing_differs(law, corpora):
    values = null(law, corpora=corpora)
    p = permutation_p(values, seed=0)
    # on a grid of 1/462 with two corpora: compare with the uniform law at the grid's points
    grid = np.arange(1, 463) / 462
    below = np.searchsorted(np.sort(p), grid + 1e-9) / len(p)
    assert np.max(np.abs(below - grid)) < stats.kstwo.ppf(0.999, len(p))
    assert np.mean(between_share(values)) < 0.1


def test_two_corpora_are_enumerated():
    values = null("skewed", rows=5, blocks=4)
    for row, p in zip(values, permutation_p(values, 0), strict=True):
        every = row.ravel()
        apart = [
            abs(every[list(side)].mean() - np.delete(every, side).mean())
            for side in combinations(range(8), 4)
        ]
        seen = abs(row[0].mean() - row[1].mean())
        assert p == pytest.approx(np.mean(np.array(apart) >= seen * (1 - 1e-9)))
    assert smallest_p(2, 4) == 2 / math.comb(8, 4)
    assert smallest_p(4, 6) == 1e-4


def test_the_false_discovery_rate_holds_and_planted_shifts_are_found():
    rates, power = [], []
    for run in range(40):
        values = null("skewed", rows=60, corpora=2, blocks=8, seed=100 + run)
        values[:20, 1] += 3 * values[:, 0].std()
        picked = discoveries(permutation_p(values, seed=run)) <= 0.05
        rates.append(picked[20:].sum() / max(picked.sum(), 1))
        power.append(picked[:20].mean())
    error = np.std(rates, ddof=1) / np.sqrt(len(rates))
    assert np.mean(rates) < 0.05 + 4 * error
    assert np.mean(power) > 0.9


def test_intervals_are_welch_s():
    values = null("skewed", rows=7)
    values[:, 1] *= 4
    difference, low, high = differences(values[:, 0], values[:, 1]).T
    exact = stats.ttest_ind(values[:, 1], values[:, 0], axis=1, equal_var=False)
    ends = exact.confidence_interval(0.95)
    assert difference == pytest.approx(values[:, 1].mean(1) - values[:, 0].mean(1))
    assert low == pytest.approx(ends.low)
    assert high == pytest.approx(ends.high)


def test_constants_and_unknown_numbers_are_not_tested():
    values = null(rows=5, corpora=3)
    values[0] = 0.25
    values[1, 0, 0] = np.nan
    values[2] = 0.0
    test = compare(values, SHARE, 0.05, 0)
    for name in ("p", "adjusted_p", "share"):
        assert np.isnan(test[name]).tolist() == [True, True, True, False, False]
    assert test["verdict"][:3].tolist() == ["undecided"] * 3


def test_two_constants_that_differ_have_the_p_value_of_the_arrangement():
    values = np.zeros((1, 2, 6))
    values[:, 1] = 0.3
    assert permutation_p(values, 0)[0] == pytest.approx(2 / math.comb(12, 6))
    assert compare(values, SHARE, 0.05, 0)["verdict"] == ["differs"]


def test_verdicts_and_effects():
    values = np.random.default_rng(4).standard_normal((3, 2, 8))
    values *= np.array([0.02, 0.02, 1.0])[:, None, None]
    values[1, 1] += 0.5
    test = compare(np.exp(values), TOKENS, 0.05, 0)
    assert test["verdict"].tolist() == ["undecided", "differs", "undecided"]
    ((effect, low, high),) = test["effect"][1]
    assert effect == pytest.approx(math.exp(0.5), rel=0.05)
    assert low < effect < high
