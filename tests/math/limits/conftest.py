from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import norm

#: Chance that a comparison fails although everything is right, over all entries compared.
FALSE_ALARM = 1e-4


def _within_errors(estimate, truth, error) -> None:
    """Bound every |z| by the quantile for the number of entries; exact where the error is 0."""
    estimate, truth, error = np.broadcast_arrays(estimate, truth, error)
    sampled = error > 0
    gap = np.abs(estimate - truth)
    bound = norm.isf(FALSE_ALARM / (2 * max(int(sampled.sum()), 1)))
    assert np.all(gap[sampled] <= bound * error[sampled]), (gap[sampled] / error[sampled]).max()
    np.testing.assert_allclose(estimate[~sampled], truth[~sampled], rtol=1e-12, atol=1e-14)


@pytest.fixture
def within_errors() -> Callable[..., None]:
    """Assert that estimates lie within their standard errors of the truth."""
    return _within_errors
