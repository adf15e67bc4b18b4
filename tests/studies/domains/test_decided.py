"""What a comparison of corpora can decide: sameness, power, and p-values that blocks allow."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.studies.domains.comparison import compare_pairs, omnibus
from esscher.studies.domains.decided import (
    DIFFERS,
    SAME,
    UNDECIDED,
    blocks_for,
    classify,
    head_counts,
    least_blocks,
    power,
    same_p,
)
from esscher.studies.domains.statistics import BY_NAME
from esscher.studies.domains.tested import run_tests

MARGIN = float(np.log(1.25))


def made(rows, corpora, blocks, spread, shift=0.0, seed=0):
    rng = np.random.default_rng([seed, 41])
    values = spread * rng.standard_normal((rows, corpora, blocks))
    values[:, 0] += shift
    return values


def classes(values, fdr=0.05):
    rows = len(values)
    adjusted = omnibus(values, fdr, 0, 2000).p
    return classify(adjusted, values, compare_pairs(values), np.full(rows, MARGIN), fdr)


def test_three_classes():
    assert set(classes(made(20, 3, 6, 0.02, shift=1.0))) == {DIFFERS}
    assert classes(made(100, 3, 6, 0.02)).count(SAME) >= 90
    assert classes(made(100, 3, 6, 1.0)).count(UNDECIDED) >= 90
    # constants are the same, and what is not known is undecided
    assert classes(np.ones((2, 3, 4))) == [SAME] * 2
    assert classes(np.full((1, 3, 4), np.nan)) == [UNDECIDED]


def test_fewer_blocks_leave_more_undecided_and_never_make_more_the_same():
    same = [classes(made(200, 3, blocks, 0.1)).count(SAME) for blocks in (3, 6, 12)]
    assert same == sorted(same)
    assert same[0] < same[-1]


@pytest.mark.parametrize("corpora", [2, 4])
def test_corpora_that_differ_by_the_margin_are_rarely_called_the_same(corpora):
    values = made(2000, corpora, 6, 0.08, shift=MARGIN)
    found = np.mean(same_p(compare_pairs(values), np.full(2000, MARGIN)) <= 0.05)
    assert found < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)


def test_power_is_that_of_the_test():
    """The F law is a little optimistic for the permutation test: by 0 to 7 points."""
    values = made(800, 3, 6, 0.15, shift=MARGIN)
    found = omnibus(values, 0.5, 0, 2000)
    seen = np.mean(found.p <= 0.05)
    said = power(values, np.full(800, MARGIN), 0.05, found.smallest).mean()
    error = np.sqrt(seen * (1 - seen) / 800)
    assert -3 * error < said - seen < 0.07 + 3 * error
    assert set(power(values, np.full(800, MARGIN), 0.05, 0.1)) == {0.0}
    assert np.isnan(power(np.ones((1, 3, 6)), np.ones(1), 0.05, 0.0)[0])
    # as many blocks as are named have the power that is named
    count = blocks_for(made(400, 3, 6, 0.3), np.full(400, MARGIN), 0.05)
    more = made(400, 3, count, 0.3, shift=MARGIN, seed=1)
    assert np.median(power(more, np.full(400, MARGIN), 0.05, 0.0)) == pytest.approx(0.8, abs=0.06)


def test_blocks_that_can_decide():
    # 6 blocks in two corpora: 10 arrangements; 8: 35
    assert least_blocks(2, 0.05) == 4
    assert least_blocks(2, 0.1) == 3
    assert least_blocks(2, 0.05 / 168) == 8


def test_blocks_that_cannot_decide_say_so():
    used = [BY_NAME["tokens"]]
    units = np.array([[0, h] for h in range(24)])
    values = {"tokens": made(24, 2, 3, 0.01, shift=5.0)}  # as different as can be
    found = run_tests(values, used, ["a", "b"], units, 0.05, 0, 1000)
    assert found.counts["any"].heads == 0
    assert found.correction.smallest_p == pytest.approx(0.1)
    assert not found.correction.decides
    assert found.correction.blocks_for_any == 4
    assert set(found.tests["tokens"].power) == {0.0}
    enough = {"tokens": made(24, 2, 4, 0.01, shift=5.0)}
    found = run_tests(enough, used, ["a", "b"], units, 0.05, 0, 1000)
    assert found.correction.decides
    assert found.counts["any"].heads == 24
    # alone, one of 24 could not be found: 24/35 > 5%
    assert found.correction.least_found == 14
    assert found.correction.takes(4) == "at least 7 blocks"
    assert found.correction.takes(7) == "fewer heads"


def test_heads_over_all_statistics():
    grid = [[DIFFERS, SAME, SAME, UNDECIDED], [SAME, SAME, UNDECIDED, UNDECIDED]]
    found = head_counts(grid, 1)
    assert (found.heads, found.heads_holm, found.same, found.undecided) == (1, 1, 1, 2)
