"""Components of variance, ranks and plans: recovered from data made with known ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from esscher.studies.domains.ranks import plan_transfer, rank_agreement, spearman
from esscher.studies.domains.variance import SOURCES, components


def made(sizes, heads=12, corpora=6, blocks=6, seed=0):
    """Values with known variances, in the order of ``SOURCES``."""
    rng = np.random.default_rng([seed, 17])
    shapes = ((heads, 1, 1), (1, corpora, 1), (heads, corpora, 1), (1, corpora, blocks),
              (heads, corpora, blocks))  # fmt: skip
    return sum(
        np.sqrt(size) * rng.standard_normal(shape)
        for size, shape in zip(sizes, shapes, strict=True)
    )


def test_components_are_unbiased():
    # components without the cut at 0 play no part here: all of them are large
    sizes = np.array([4.0, 2.0, 1.0, 0.5, 0.25])
    found = np.array([components(made(sizes, seed=s)).variance for s in range(400)])
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    # corpora have 5 degrees of freedom; a few of the 400 are cut at 0, which lifts the mean
    lift = np.array([0.0, np.mean(found[:, 1] == 0) * sizes[1] / 2, 0.0, 0.0, 0.0])
    assert np.all(np.abs(found.mean(axis=0) - sizes) < 4 * error + lift)


def test_shares_add_up_and_the_ratio_is_that_of_the_components():
    found = components(made([4.0, 0.2, 0.3, 0.1, 0.1]))
    assert sum(found.share) == pytest.approx(1)
    shares = dict(zip(SOURCES, found.share, strict=True))
    assert found.ratio == pytest.approx(shares["head"] / (shares["corpus"] + shares["both"]))
    low, high = found.ratio_interval
    assert low < found.ratio < high


def test_block_errors_cover():
    # heads and corpora fixed, blocks drawn anew: the spread of the head's share is its error
    rng = np.random.default_rng(3)
    fixed = made([4.0, 1.0, 0.5, 0.0, 0.0])
    shares, errors = [], []
    for _ in range(200):
        noise = 0.8 * rng.standard_normal((1, 6, 6)) + 0.8 * rng.standard_normal((12, 6, 6))
        found = components(fixed + noise)
        shares.append(found.share[0])
        errors.append(found.share_error[0])
    assert np.median(errors) == pytest.approx(np.std(shares), rel=0.35)


def test_nothing_to_split():
    assert components(np.ones((3, 2, 3))) is None
    assert components(np.random.default_rng(0).random((1, 2, 3))) is None
    plain = np.arange(4.0)[:, None, None] + np.zeros((4, 2, 3))
    found = components(plain)
    assert found.share[0] == pytest.approx(1)
    assert found.ratio == np.inf
    assert found.record().head_over_corpus is None


def test_spearman_is_that_of_scipy():
    rng = np.random.default_rng(8)
    a, b = rng.random(30), rng.integers(0, 5, 30).astype(float)
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert np.isnan(spearman(a, np.ones(30)))


def test_ranks_within_and_between():
    rng = np.random.default_rng(5)
    heads = rng.standard_normal((40, 1, 1))
    same = heads + 0.5 * rng.standard_normal((40, 3, 6))
    found = rank_agreement(same, ["a", "b", "c"], seed=0)
    # corpora that do not differ agree as well as halves of one
    assert found.between == pytest.approx(found.within, abs=0.02)
    assert len(found.pairs) == 3
    for pair in found.pairs:
        low, high = pair.interval
        assert low < pair.spearman < high
    other = same.copy()
    other[:, 2] = rng.standard_normal((40, 1)) + 0.5 * rng.standard_normal((40, 6))
    found = rank_agreement(other, ["a", "b", "c"], seed=0)
    assert found.between < found.within - 0.3
    assert rank_agreement(same[:3], ["a", "b", "c"], seed=0) is None


def test_a_plan_is_off_by_the_factor_that_was_planted():
    rng = np.random.default_rng(6)
    logs = 2 * rng.standard_normal((50, 1, 1)) + 0.02 * rng.standard_normal((50, 2, 6))
    logs[:, 1] += np.log(3)
    found = plan_transfer(logs, ["a", "b"], 0.05, seed=0)
    assert found.factor == pytest.approx(3, rel=0.02)
    assert found.factor_within < 1.03
    (pair,) = found.pairs
    low, high = pair.interval
    error = 0.02 * np.sqrt(2 / (50 * 6))
    assert abs(np.log(pair.ratio / 3)) < 4 * error
    assert low < pair.ratio < high < 1.05 * low
    assert pair.twice_on_b == 1
    assert pair.twice_on_a == 0
