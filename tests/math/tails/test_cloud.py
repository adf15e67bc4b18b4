"""Whole clouds: verdicts and parameters of known laws, and no false alarms."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.math.tails.candidates import compare_thresholds
from esscher.math.tails.cloud import QUICK, THOROUGH, cloud_tails, logit_shape, norm_shape
from esscher.math.tails.verdict import (
    EXPONENTIAL,
    HEAVY,
    NONE,
    OPEN,
    SUB_GAUSSIAN,
    UNDECIDED,
    judge,
    judge_thresholds,
)
from tests.math.tails.clouds import blocks, planted

COUNT = 5000


@pytest.mark.parametrize(
    ("law", "count", "allowed"),
    [
        ("mixture", COUNT, {SUB_GAUSSIAN}),
        ("laplace", COUNT, {OPEN, EXPONENTIAL}),
        ("student", COUNT, {OPEN, NONE}),
        ("student", 4 * COUNT, {NONE}),
    ],
)
def test_a_planted_law_is_found_and_judged(law, count, allowed):
    tokens, exact = planted(law, count, 1)
    result, projection = cloud_tails(tokens, blocks(tokens), seed=1, effort=THOROUGH)
    # each half has a sign of its own
    assert np.corrcoef(np.abs(projection), np.abs(tokens @ exact))[0, 1] > 0.8
    assert result.agreement > 0.9
    assert judge(result)[0] in allowed
    _, low, high = result.kurtosis
    truth = {"mixture": 1.65, "laplace": 3.0, "student": 6.0}[law]
    # the direction is off by a little, which takes away from the kurtosis
    assert low < truth * 0.9**-4
    assert high > truth * 0.9**4 * (1 if law != "student" else 0.2)


@pytest.mark.parametrize(("law", "clouds"), [("gaussian", 24), ("uniform", 8)])
def test_no_false_alarms(law, clouds):
    """Nominal 2.5% or less: more than 3 heavy ones of 24 clouds have probability 3e-3."""
    verdicts = []
    for seed in range(clouds):
        tokens, _ = planted(law, COUNT, seed)
        result, _ = cloud_tails(tokens, blocks(tokens), seed=seed, effort=QUICK)
        verdicts.append(judge(result)[0])
        assert result.proxy[0] < 1.2
    assert sum(verdict in HEAVY for verdict in verdicts) <= 3


def test_no_number_is_inflated_by_the_search():
    """On Gaussian clouds the kurtosis along the worst direction is 0 beyond noise, on average."""
    results = []
    for seed in range(20):
        tokens = np.random.default_rng([seed, 3]).standard_normal((1500, 24))
        numbers, _ = cloud_tails(tokens, blocks(tokens), seed=seed, effort=QUICK)
        results.append(numbers.kurtosis[0])
    error = np.std(results, ddof=1) / np.sqrt(len(results))
    # the kurtosis of m values standardised by themselves is too small by 6/(m + 1)
    assert abs(np.mean(results) + 6 / 751) < 4 * error


def test_a_function_of_tokens_and_seed():
    tokens, _ = planted("laplace", 2000, 0)
    groups = np.arange(2000) // 100
    one, again = (cloud_tails(tokens, groups, seed=3, effort=QUICK)[0] for _ in range(2))
    assert one == again
    assert cloud_tails(tokens, groups, seed=4, effort=QUICK)[0] != one


@pytest.mark.parametrize("law", ["standard_normal", "laplace"])
def test_fewer_tokens_leave_more_undecided_and_never_make_more_sub_gaussian(law):
    """40 samples of each size; S of 1,000 may exceed S of 8,000 by chance in 2 of 40 (p < 0.01)."""
    light, open_ = [], []
    for count in (1000, 8000):
        rng = np.random.default_rng([count, 5])
        groups = np.arange(count) * 16 // count
        said = [
            judge_thresholds(compare_thresholds(np.abs(getattr(rng, law)(size=count)), groups))[0]
            for _ in range(40)
        ]
        light.append(said.count(SUB_GAUSSIAN))
        open_.append(said.count(UNDECIDED))
    assert light[0] <= light[1] + 2
    assert open_[0] > open_[1]


def test_shapes_of_norms_and_logits():
    rng = np.random.default_rng(0)
    groups = np.arange(6000) // 250
    light = norm_shape(rng.standard_normal((6000, 8)), groups)
    # elliptical Student tokens: norms have the tail index 4, k = 1/4
    heavy = rng.standard_normal((6000, 8)) / np.sqrt(rng.chisquare(4, (6000, 1)) / 4)
    norms = norm_shape(heavy, groups)
    # k <= 0, to three standard errors 1/sqrt(232 + 10)
    assert light[0] < 3 * 0.065
    assert light[1] <= 0
    assert norms[1] <= 0.25 <= norms[2]
    logits = logit_shape(rng.standard_normal((8, 8)) @ heavy.T, groups)
    assert logits[1] <= 0.25 <= logits[2]
    # embeddings of a text repeat: there is no tail of norms to fit
    tied = norm_shape(rng.standard_normal((3, 8))[rng.integers(3, size=600)], np.arange(600) // 60)
    assert np.isnan(tied).all()


def test_bad_clouds_are_refused():
    def tails(tokens, groups=None):
        return cloud_tails(
            tokens, blocks(tokens) if groups is None else groups, seed=0, effort=QUICK
        )

    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="400 tokens"):
        tails(rng.standard_normal((400, 3)))
    with pytest.raises(InputError, match="3 passages"):
        tails(rng.standard_normal((900, 3)), np.arange(900) // 300)
    with pytest.raises(InputError, match="all tokens are the same"):
        tails(np.ones((900, 3)))
    with pytest.raises(InputError):
        tails([[np.nan, 1.0]] * 900)
