"""Exponents against the theory page, and against the exact curves far out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import esscher

# H, min(1/2, 1/(1+H^2)), authors' line, bound with 32
PAGE = [
    (0.5, 0.500, 0.400, 0.056),
    (0.7, 0.500, 0.336, 0.030),
    (1.0, 0.500, 0.250, 0.015),
    (1.5, 0.308, 0.154, 0.007),
    (2.0, 0.200, 0.100, 0.004),
    (3.0, 0.100, 0.050, 0.002),
]


@pytest.mark.parametrize(("h", "sharp", "reference", "bound"), PAGE)
def test_table_of_the_theory_page(h: float, sharp: float, reference: float, bound: float) -> None:
    beta = esscher.exponents(h)
    assert round(beta.mean, 3) == sharp
    assert round(beta.cov, 3) == sharp
    assert round(beta.paper_reference, 3) == reference
    assert round(beta.paper_bound, 3) == bound


@given(st.floats(0.0, 50.0))
def test_the_published_lines_lie_below_the_sharp_ones(h: float) -> None:
    beta = esscher.exponents(h)
    assert beta.paper_bound <= beta.paper_reference <= beta.mean
    assert beta.map_rms <= beta.map_l1 == beta.mean
    assert beta.map_rms <= beta.mean_rms <= beta.mean
    assert beta.mean == pytest.approx(min(0.5, 1 - 1 / beta.tail_index))
    assert beta.khat == pytest.approx(1 / beta.tail_index)


def test_exponents_are_continuous_where_the_regime_changes() -> None:
    for name, h in (("map_rms", 0.5**0.5), ("mean_rms", 1.0), ("mean", 1.0)):
        below = getattr(esscher.exponents(h * (1 - 1e-9)), name)
        above = getattr(esscher.exponents(h * (1 + 1e-9)), name)
        assert below == pytest.approx(above, abs=1e-8)


@pytest.mark.parametrize("h", [-1.0, float("nan"), float("inf")])
def test_bad_horizons_are_refused(h: float) -> None:
    with pytest.raises(esscher.InputError, match="horizon"):
        esscher.exponents(h)


@pytest.mark.parametrize("h", [0.5, 1.5, pytest.param(3.0, marks=pytest.mark.slow)])
def test_exact_curves_reach_the_asymptotic_exponents(h: float) -> None:
    """Local slopes of the exact curves between 10^27 and 10^30, powers of ln n left over."""
    n = 10.0 ** np.array([27, 28, 29, 30])
    head = esscher.gaussian_head(h)
    beta = esscher.exponents(h)
    curves = esscher.theory.moment_curves(head, n, "tokens")
    # a factor (ln n)^c changes the slope by c / ln n, here at most 0.015 for c = 1
    for name, expected in (
        ("mean", beta.mean),
        ("mean_rms", beta.mean_rms),
        ("cov", beta.cov),
        ("cov_rms", beta.mean_rms),
    ):
        assert curves[name].slope() == pytest.approx(expected, abs=0.015)
    assert esscher.theory.map_curve(head, n).slope() == pytest.approx(beta.map_rms, abs=0.015)
