"""Numbers that are seen together: those without variance do not drown the others."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.math.statistics.detection import best_weights


def test_weights_are_best_among_random_ones():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    covariance, shift = root @ root.T, np.array([1.0, 2.0, 0.5])

    def seen(weights):
        return weights @ shift / np.sqrt(weights @ covariance @ weights)

    best = best_weights(covariance, shift)
    assert (best >= 0).all()
    others = rng.exponential(size=(2000, 3))
    assert seen(best) >= max(map(seen, others)) - 1e-4


@pytest.mark.parametrize("shift", [np.ones(3), np.array([0.0, 1.0, -1.0])])
def test_a_number_without_variance_has_no_weight(shift):
    covariance = np.diag([0.0, 1.0, 4.0])
    found = best_weights(covariance, shift)
    assert found[0] == 0
    np.testing.assert_allclose(found[1:], best_weights(np.diag([1.0, 4.0]), shift[1:]))
    assert np.isfinite(best_weights(np.zeros((3, 3)), shift)).all()
