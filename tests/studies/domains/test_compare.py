"""The test of corpora: calibrated where nothing differs, powerful where something does."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from esscher.math.statistics.intervals import discoveries
from esscher.studies.domains import domains
from esscher.studies.domains.compare import (
    between_share,
    compare,
    differences,
    median_difference,
    permutation_p,
    smallest_p,
    varies,
)
from esscher.studies.domains.result import BY_NAME
from tests.engine.models.folders import tiny
from tests.studies.domains.corpora import corpus

TOKENS, SHARE = BY_NAME["tokens"], BY_NAME["khat"]


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


def test_heads_of_exchangeable_blocks_are_not_called_different():
    """Blocks of one text, dealt to two corpora at random, 200 times: false alarms stay rare."""
    lines = corpus(1)[0].splitlines()
    halves = {"one": ["\n".join(lines[:200])], "two": ["\n".join(lines[200:])]}
    result = domains(
        tiny("bert"),
        halves,
        blocks=6,
        block_tokens=60,
        context=62,
        layers=[0, 1],
        progress=False,
    )
    numbers = np.array(result.numbers["tokens"], dtype=np.float64).transpose(2, 0, 1)
    blocks = TOKENS.forward(numbers).reshape(len(numbers), -1)
    rng = np.random.default_rng(3)
    alarms, share = 0, []
    for _ in range(200):
        dealt = blocks[:, rng.permutation(12)].reshape(-1, 2, 6)
        differs = discoveries(permutation_p(dealt, 0)) <= 0.05
        alarms += bool(differs.any())
        share.append(differs.mean())
    assert np.mean(share) <= 0.05
    # that any head differs is a false alarm, too: at most 5%, with three standard errors
    assert alarms / 200 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


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
    difference, low, high = differences(values[:, 0], values[:, 1])
    exact = stats.ttest_ind(values[:, 1], values[:, 0], axis=1, equal_var=False)
    ends = exact.confidence_interval(0.95)
    assert difference == pytest.approx(values[:, 1].mean(1) - values[:, 0].mean(1))
    assert low == pytest.approx(ends.low)
    assert high == pytest.approx(ends.high)
    alone = median_difference(values[:1, 0], values[:1, 1])
    assert alone == pytest.approx((difference[0], low[0], high[0]))


def test_constants_and_unknown_numbers_are_not_tested():
    values = null(rows=5, corpora=3)
    values[0] = 0.25
    values[1, 0, 0] = np.nan
    values[2] = 0.0
    assert varies(values).tolist() == [False, False, False, True, True]
    p = permutation_p(values, 0)
    assert np.isnan(p[:3]).all()
    assert np.isfinite(p[3:]).all()
    assert np.isnan(discoveries(p)[:3]).all()
    test = compare(values, ["a", "b", "c"], SHARE, 0.05, 0)
    assert test.verdict[:3] == ("the same", "undecided", "the same")
    assert test.p[0] is None


def test_two_constants_that_differ_have_the_p_value_of_the_arrangement():
    values = np.zeros((1, 2, 6))
    values[:, 1] = 0.3
    assert permutation_p(values, 0)[0] == pytest.approx(2 / math.comb(12, 6))
    assert compare(values, ["a", "b"], SHARE, 0.05, 0).verdict == ("differs",)


def test_verdicts():
    rng = np.random.default_rng(4)
    noise = rng.standard_normal((3, 2, 8))
    values = noise * np.array([0.02, 0.02, 1.0])[:, None, None]
    values[1, 1] += 0.5
    test = compare(values, ["a", "b"], TOKENS, 0.05, 0)
    assert test.verdict == ("the same", "differs", "undecided")
    assert [test.count(v) for v in ("differs", "the same", "undecided")] == [1, 1, 1]
    (pair,) = test.pairs
    assert pair.effect[1] == pytest.approx(math.exp(0.5), rel=0.05)
    # within the margin, and differing beyond chance: it differs
    values[0, 1] += 0.1
    assert compare(values, ["a", "b"], TOKENS, 0.05, 0).verdict[0] == "differs"


def test_the_typical_effect_is_that_of_the_median_head():
    effects = np.linspace(-0.5, 1.3, 31)
    missed = 0
    for seed in range(200):
        # blocks have an effect common to all heads, which makes their errors dependent
        values = 0.1 * null(rows=31, seed=seed) + 0.1 * null(rows=1, seed=1000 + seed)
        values[:, 1] += effects[:, None]
        value, low, high = median_difference(values[:, 0], values[:, 1])
        assert value == np.median(values[:, 1].mean(1) - values[:, 0].mean(1))
        missed += not low < 0.4 < high
    assert missed / 200 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
    (pair,) = compare(values, ["a", "b"], TOKENS, 0.05, 0).pairs
    assert pair.typical.value == pytest.approx(math.exp(value), rel=1e-4)
