"""What is said about a head: tails of its keys, and the norm in the published bound."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.engine.sampled.layer import HeadNumbers
from esscher.math.coupling import CoupledMoments
from esscher.math.tails.verdict import HEAVY, judge
from esscher.math.theory.cloud import Predicted
from esscher.studies.probe.work import key_tails, predicted_error


def numbers_of(keys, passages=None):
    none = np.zeros((0, keys.shape[1]))
    return HeadNumbers(
        tilts=none,
        keys=keys,
        values=none,
        outputs=none,
        logits=lambda rows: none,
        own=None,
        participation=np.zeros(0),
        received=np.zeros(0),
        norm=1.0,
        coupled=CoupledMoments.of(keys, keys),
        passages=passages,
    )


def test_tails_of_keys():
    rng = np.random.default_rng(4)
    gaussian = key_tails(numbers_of(rng.standard_normal((4000, 5))), 0)
    assert judge(gaussian)[0] not in HEAVY
    keys = rng.standard_normal((8_700, 5))
    keys[:, 2] = rng.standard_t(3, size=len(keys))
    heavy = key_tails(numbers_of(keys @ rng.standard_normal((5, 5))), 0)
    assert heavy.tokens == len(keys)
    assert judge(heavy)[0] in HEAVY
    # one passage cannot be split: no verdict, no flag
    assert key_tails(numbers_of(keys, np.zeros(len(keys), dtype=int)), 0) is None
    assert key_tails(numbers_of(keys[:50]), 0) is None


def test_what_is_left_out_is_part_of_the_stated_errors():
    sizes = np.array([64.0, 128.0, 256.0])
    squares = 1 / sizes
    found = Predicted(
        sizes=sizes, square=squares, covariance=np.diag((0.01 * squares) ** 2), shape=np.ones(3)
    )
    sampled, whole = predicted_error(found, 0.0), predicted_error(found, 0.03)
    assert whole.error == sampled.error
    assert whole.exponent == sampled.exponent == pytest.approx(0.5)
    # an error of 3% at each of the sizes, and the slope through three such points
    added = np.subtract(np.square(whole.standard_error), np.square(sampled.standard_error))
    np.testing.assert_allclose(np.sqrt(added), 0.03 * found.norm)
    slope = np.sqrt(whole.exponent_error**2 - sampled.exponent_error**2)
    assert slope == pytest.approx(0.03 / (np.sqrt(2) * np.log(2)))
