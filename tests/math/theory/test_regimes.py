"""Regimes: boundaries against the theory page, exact curves on both sides."""

from __future__ import annotations

import numpy as np
import pytest

from esscher import InputError, gaussian_head
from esscher.math.theory import (
    boundaries,
    exponents,
    head_regime,
    log_burn_in,
    regime,
    softmax_moments,
)
from esscher.math.theory.regimes import positions, regime_indices, typical_strength


def test_boundaries_are_where_the_regime_changes() -> None:
    strength = 2.5
    edges = boundaries(0.8, strength)
    assert (edges.thaw, edges.burn_in, edges.parametric) == (3.125, 6.25, 12.5)
    names = [
        regime(0.8, strength, np.exp(log)).name
        for log in (edges.thaw - 0.01, edges.thaw + 0.01, edges.parametric - 0.01, 12.51)
    ]
    assert names == ["frozen", "stable", "stable", "parametric"]
    assert boundaries(1.2, strength).parametric == float("inf")
    assert regime(1.2, strength, 1e300).name == "stable"


@pytest.mark.parametrize("horizon", [1.3, 2.0, 4.0])
def test_long_sequences_have_the_asymptotic_exponent_and_tail(horizon: float) -> None:
    found = regime(horizon, horizon, 1e300)
    sharp = exponents(horizon)
    assert found.exponent == pytest.approx(sharp.mean)
    assert found.tail_index == pytest.approx(sharp.tail_index)


def test_head_is_seen_through_its_moments() -> None:
    head = gaussian_head(spectrum=[0.9, 0.5, 0.5], tau=[0.3, 0.4, 0.0])
    strength = typical_strength(head.frobenius, float(np.linalg.norm(head.tau)))
    assert boundaries(head.horizon, strength).burn_in == pytest.approx(log_burn_in(head))
    assert head_regime(head, 1e6) == regime(0.9, strength, 1e6)


def test_exact_moments_change_where_the_boundaries_say() -> None:
    """One query: its error is parametric far beyond exp(2 s^2), frozen far below exp(s^2/2)."""
    s = 3.0
    beyond, below = np.exp(2 * s * s + 6), np.exp(s * s / 2 - 3.5)
    late = softmax_moments(np.array([beyond]), np.array([s]))
    assert regime(0.0, s, float(beyond)).name == "parametric"
    # the error is the Gaussian one, (1 + s^2) e^{s^2} / n
    assert late.squared_error[0, 0] * beyond == pytest.approx((1 + s * s) * np.exp(s * s), rel=0.02)
    early = softmax_moments(np.array([np.round(below)]), np.array([s]))
    assert regime(0.0, s, float(below)).name == "frozen"
    # more than half of the attention is on one key, 1/sum p^2 < 2
    assert early.collision[0, 0] > 0.5
    middle = softmax_moments(np.array([np.exp(s * s)]), np.array([s]))
    assert regime(0.0, s, float(np.exp(s * s))).name == "stable"
    # many keys, and far from the asymptotic formula, which would say 1 + s^2
    assert middle.collision[0, 0] < 0.25
    assert middle.squared_error[0, 0] < 0.1 * (1 + s * s)


def test_positions_broadcast_and_refuse() -> None:
    x = positions([0.5, 2.0], [1.0, 2.0], np.array([[1e3], [1e6]]))
    assert x.shape == (2, 2)
    assert x[1, 1] == pytest.approx(0.8)
    assert regime_indices(np.array([0.0, 0.5, 0.51, 1.0])).tolist() == [0, 0, 1, 2]
    assert regime(0.0, 0.0, 100).tail_index == float("inf")
    assert regime(0.0, 0.0, 100).to_dict()["tail_index"] is None
    with pytest.raises(InputError, match="at least 2"):
        positions(1.0, 1.0, 1.0)
    with pytest.raises(InputError, match="negative"):
        positions(-1.0, 1.0, 10.0)
