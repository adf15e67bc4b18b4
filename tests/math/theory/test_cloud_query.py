"""Map error of single queries over a finite set of tokens: enumeration and known limits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from benchmarks.direct import attend

from esscher.math.theory.cloud_table import map_errors

#: Twice |Gamma(2 + 2 pi i / ln 2)|: what nodes ln 2 apart leave of one integral, relative.
RULE = 1e-4


def cloud(count: int, d: int, strength: float, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    tilts = strength * rng.standard_normal((5, d))
    keys = rng.standard_normal((count, d))
    values = rng.standard_normal((count, 2)) + keys[:, :1]
    return tilts, keys, values, attend(tilts, keys, values)


def squares(tilts, keys, values, outputs, sizes):
    """Map errors with tables just as long as the sizes need."""
    return map_errors(tilts @ keys.T, values, outputs, sizes[0], sizes[-1])(sizes)


@pytest.mark.parametrize("strength", [0.0, 0.5, 2.0, 8.0, 100.0])
@pytest.mark.parametrize(("count", "n"), [(9, 2), (7, 3), (5, 5)])
def test_against_all_samples(strength: float, count: int, n: int) -> None:
    """Every one of the count^n samples, equally likely."""
    tilts, keys, values, outputs = cloud(count, 2, strength)
    total = np.zeros(len(tilts))
    for rows in product(range(count), repeat=n):
        chosen = list(rows)
        error = attend(tilts, keys[chosen], values[chosen]) - outputs
        total += np.sum(error**2, axis=1)
    result = squares(tilts, keys, values, outputs, np.array([n]))
    np.testing.assert_allclose(result[:, 0], total / count**n, rtol=RULE)


def test_values_far_from_zero() -> None:
    """Sums over keys are in single precision; only the spread of the values counts."""
    tilts, keys, values, outputs = cloud(60, 3, 1.0)
    sizes = np.array([4.0, 64.0, 4096.0])
    near = squares(tilts, keys, values, outputs, sizes)
    far = squares(tilts, keys, values + 1e3, outputs + 1e3, sizes)
    np.testing.assert_allclose(far, near, rtol=1e-5)


def test_logits_of_any_size() -> None:
    """One token has all the weight: the error is |v - y|^2 where it is missed, i.e. (1-1/N)^n."""
    keys, values = np.array([[1.0], [0.0], [0.0], [0.0]]), np.array([[1.0], [0.0], [0.0], [0.0]])
    tilts = np.array([[2000.0]])
    outputs = attend(tilts, keys, values)
    n = np.array([2.0, 8.0, 32.0])
    result = squares(tilts, keys, values, outputs, n)[0]
    np.testing.assert_allclose(result, 0.75**n, rtol=RULE)
