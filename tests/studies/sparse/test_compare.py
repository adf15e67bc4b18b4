"""Comparisons of two curves with known exponents and constants, and the verdicts on them."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.streams import random_stream
from esscher.math.statistics import fit_rate
from esscher.studies.sparse.compare import (
    FASTER,
    KEEPS,
    NEVER,
    SLOWER,
    UNDECIDED,
    head_exponents,
    judge,
    versus_random,
)

BUDGETS = np.array([32.0, 64, 128, 256, 512, 1024])


def curves(curve, noise=0.1, shared=0.3, replicates=24, stream="a"):
    """Replicates of a curve: noise of their own, and noise that all patterns share."""
    own = random_stream(1, f"own {stream}").standard_normal((replicates, len(BUDGETS)))
    common = random_stream(1, "common").standard_normal((replicates, 1))
    return curve * np.exp(noise * own + shared * common)


BASE = curves(2.0 * BUDGETS**-0.5)


def test_exponent_and_constant_of_the_ratio():
    errors = curves(3.0 * BUDGETS**-0.4, stream="b")
    difference, ratio = versus_random(errors, BASE, BUDGETS, seed=0)
    _, low, high = difference
    assert low < -0.1 < high
    # noise of 24 replicates at 6 budgets: what is shared must have cancelled
    assert high - low < 0.12
    _, low, high = ratio
    exact = 1.5 * np.exp(np.mean(np.log(BUDGETS))) ** 0.1
    assert low < exact < high
    assert high / low < 1.15


@pytest.mark.parametrize(
    ("curve", "options", "verdict"),
    [
        (2.0 * BUDGETS**-0.5, {}, KEEPS),
        (3.0 * BUDGETS**-0.5, {}, KEEPS),
        (3.0 * BUDGETS**-0.25, {}, SLOWER),
        (2.0 * BUDGETS**-0.8, {}, FASTER),
        (0.5 * BUDGETS**-0.01, {}, NEVER),
        (2.0 * BUDGETS**-0.5, {"noise": 0.5, "replicates": 4}, UNDECIDED),
        (3.0 * BUDGETS**-0.25, {"replicates": 1}, UNDECIDED),
    ],
)
def test_verdicts(curve, options, verdict):
    errors = curves(curve, stream="b", **({"noise": 0.05} | options))
    difference, _ = versus_random(errors, BASE[: len(errors)], BUDGETS, 0)
    fit = fit_rate(errors, BUDGETS)
    assert judge(fit, difference, is_exact=True) == verdict
    if verdict != UNDECIDED:
        assert judge(fit, difference, is_exact=False) == NEVER


def test_exponents_of_heads():
    errors = curves(2.0 * BUDGETS**-0.4, noise=0.05, replicates=8)[None, None]
    value, low, high = head_exponents(errors, BUDGETS)[0, 0]
    assert value == pytest.approx(0.4, abs=0.05)
    assert low < 0.4 < high
    alone = head_exponents(errors[:, :, :1], BUDGETS)[0, 0]
    assert alone[0] == pytest.approx(0.4, abs=0.05)
    assert np.isnan(alone[1:]).all()
