"""Tests of corpora: calibrated where nothing differs, powerful where something does."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from esscher.math.statistics.intervals import discoveries
from esscher.studies.domains.comparison import (
    _statistic,
    compare_pairs,
    half_splits,
    halves_check,
    omnibus,
    varies,
)

ROWS = 800
PERMUTATIONS = 20_000


def null(law, rows=ROWS, corpora=4, blocks=6, seed=1):
    """Blocks of the same corpus under different labels."""
    rng = np.random.default_rng([seed, 29])
    shape = (rows, corpora, blocks)
    if law == "normal":
        return rng.standard_normal(shape)
    if law == "skewed":  # the logarithm of an exponential: what a statistic's log may look like
        return np.log(rng.exponential(size=shape))
    return rng.standard_t(3, size=shape)


@pytest.mark.parametrize("law", ["normal", "skewed", "heavy"])
@pytest.mark.parametrize("corpora", [2, 4, 8])
def test_p_values_are_uniform_when_nothing_differs(law, corpora):
    found = omnibus(null(law, corpora=corpora), 0.5, seed=0, permutations=2_000)
    if corpora == 2:
        # exact, but on a grid of 1/462: compare with the discrete uniform law at the grid's points
        grid = np.arange(1, 463) / 462
        below = np.searchsorted(np.sort(found.p), grid + 1e-9) / ROWS
        assert np.max(np.abs(below - grid)) < stats.kstwo.ppf(0.999, ROWS)
    else:
        # rows are independent, so Kolmogorov and Smirnov's test applies; nine tests at 0.1%
        assert stats.kstest(found.p, "uniform").pvalue > 1e-3
    assert np.nanmean(found.share) < 0.1


def test_the_statistic_is_welch_s_without_shrinkage():
    values = null("skewed", rows=3, corpora=3, blocks=5)
    member = np.repeat(np.eye(3), 5, axis=1)[None]
    columns = values.reshape(3, -1).T
    found = _statistic(member, columns, columns**2, 5, shrink=0.0)[0]
    for row, statistic in zip(values, found, strict=True):
        weight = 5 / row.var(axis=1, ddof=1)
        middle = np.average(row.mean(axis=1), weights=weight)
        assert statistic == pytest.approx(np.sum(weight * (row.mean(axis=1) - middle) ** 2))


def test_two_corpora_are_enumerated():
    # with two corpora the statistic is the square of a t with the shrunken variances; here every
    # arrangement is gone through by hand
    values = null("skewed", rows=5, corpora=2, blocks=4)
    found = omnibus(values, 0.05, 0, PERMUTATIONS)

    def squared_t(one, two):
        mean = (one.var(ddof=1) + two.var(ddof=1)) / 2
        parts = [0.7 * side.var(ddof=1) + 0.3 * mean for side in (one, two)]
        return (one.mean() - two.mean()) ** 2 / (sum(parts) / 4)

    for row, p in zip(values, found.p, strict=True):
        every = row.ravel()
        all_of_them = [
            squared_t(every[list(side)], np.delete(every, side))
            for side in combinations(range(8), 4)
        ]
        reached = np.array(all_of_them) >= squared_t(*row) * (1 - 1e-9)
        assert p == pytest.approx(reached.mean())
    assert found.smallest == 2 / math.comb(8, 4)


def test_the_same_blocks_in_any_order_give_the_same_p_value():
    values = null("normal", rows=20)
    shuffled = np.random.default_rng(4).permuted(values, axis=2)
    one, two = omnibus(values, 0.05, 0, PERMUTATIONS), omnibus(shuffled, 0.05, 0, PERMUTATIONS)
    # the permutations hit other arrangements: Monte Carlo error of two estimates
    error = np.sqrt(2 * one.p * (1 - one.p) / one.permutations)
    assert np.all(np.abs(one.p - two.p) < 5 * error + 1e-4)


@pytest.mark.parametrize("law", ["normal", "skewed", "heavy"])
def test_unequal_spreads_are_hardly_taken_for_a_difference(law):
    # One corpus varies three times as much. The level 5% becomes up to 7.5% (12% for the F
    # statistic); 4 standard errors of 1500 rows are 2.7%.
    values = null(law, rows=1500) - (-np.euler_gamma if law == "skewed" else 0.0)
    values[:, 0] *= 3
    rejected = np.mean(omnibus(values, 0.5, seed=0, permutations=1_000).p <= 0.05)
    assert rejected < 0.075 + 4 * math.sqrt(0.075 * 0.925 / 1500)


@pytest.mark.parametrize("law", ["normal", "skewed", "heavy"])
def test_welch_is_not_liberal_when_nothing_differs(law):
    p = compare_pairs(null(law)).p
    for level in (0.05, 0.01, 0.001):
        # pairs of a row share corpora: count rows as the independent ones
        error = math.sqrt(level / ROWS)
        assert np.mean(p <= level) < level + 4 * error


def test_welch_is_that_of_scipy():
    values = null("skewed", rows=7, corpora=3)
    values[:, 1] *= 4
    found = compare_pairs(values)
    assert found.pairs == ((0, 1), (0, 2), (1, 2))
    for j, (a, b) in enumerate(found.pairs):
        for i, row in enumerate(values):
            exact = stats.ttest_ind(row[b], row[a], equal_var=False)
            assert found.p[i, j] == pytest.approx(exact.pvalue)
            low, high = exact.confidence_interval(0.9)
            ends = found.intervals(0.9)
            assert ends[0][i, j] == pytest.approx(low)
            assert ends[1][i, j] == pytest.approx(high)


def test_false_discovery_rate_holds_and_planted_shifts_are_found():
    # 60 runs of 100 rows, 20 of them with a shift of three block standard deviations
    rates, found = [], []
    for run in range(60):
        values = null("skewed", rows=100, corpora=3, seed=100 + run)
        values[:20, 2] += 3 * values[:, :2].std()
        picked = discoveries(omnibus(values, 0.2, seed=run, permutations=1_000).p) <= 0.05
        rates.append(picked[20:].sum() / max(picked.sum(), 1))
        found.append(picked[:20].mean())
    error = np.std(rates, ddof=1) / np.sqrt(len(rates))
    assert np.mean(rates) < 0.05 + 4 * error
    assert np.mean(found) > 0.9


def test_constants_are_not_tested():
    values = null("normal", rows=5, corpora=3)
    values[0] = 0.25
    values[1, 0, 0] = np.nan
    values[2] = 0.0
    assert varies(values).tolist() == [False, False, False, True, True]
    found = omnibus(values, 0.05, 0, PERMUTATIONS)
    assert np.isnan(found.p[:3]).all()
    assert np.isfinite(found.p[3:]).all()
    pairs = compare_pairs(values)
    assert np.isnan(pairs.p[0]).all()
    assert np.isnan(pairs.p[1, :2]).all()


def test_two_constants_that_differ_have_the_p_value_of_the_arrangement():
    values = np.zeros((1, 2, 6))
    values[:, 1] = 0.3
    found = compare_pairs(values)
    assert found.p[0, 0] == pytest.approx(2 / math.comb(12, 6))
    assert omnibus(values, 0.05, 0, PERMUTATIONS).p[0] == pytest.approx(2 / math.comb(12, 6))


@pytest.mark.parametrize(("blocks", "count"), [(4, 3), (6, 10), (5, 10), (8, 35), (10, 40)])
def test_halves(blocks, count):
    splits = half_splits(blocks, seed=0)
    assert len(splits) == count
    for side, rest in splits:
        assert len(side) == len(rest) == blocks // 2
        assert not set(side) & set(rest)
    whole = {frozenset((tuple(side), tuple(rest))) for side, rest in splits}
    assert blocks % 2 or blocks == 10 or len(whole) == count


def test_the_check_by_halves_sees_no_difference_of_corpora():
    values = null("normal", rows=300, blocks=8) + 5 * np.arange(4)[:, None]
    rejected, made = halves_check(values, 0.05, seed=0)
    assert made == 300 * 4 * 35
    # the 35 splits of a corpus are dependent: 1200 corpora are independent
    assert rejected / made == pytest.approx(0.045, abs=4 * math.sqrt(0.05 / 1200))
