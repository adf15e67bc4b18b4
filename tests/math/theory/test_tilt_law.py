"""The law of the tilt strength against chi-square laws and exact moments."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import esscher
from esscher.math.coupling import Coupling
from esscher.math.theory.gaussian_tables import TiltLaw


@pytest.mark.parametrize(("h", "d"), [(1.5, 1), (0.7, 2), (1.0, 3), (1.0, 50), (3.0, 768)])
@pytest.mark.parametrize("quantile", [1e-6, 0.01, 0.5, 0.99, 1 - 1e-12])
def test_density_of_a_flat_spectrum(h: float, d: int, quantile: float) -> None:
    law = TiltLaw(esscher.gaussian_head(h, d).coupling)
    x = float(stats.chi2(d).ppf(quantile)) * h * h
    density, gram = law.density(x)
    assert density == pytest.approx(stats.chi2(d).pdf(x / h**2) / h**2, rel=1e-11)
    assert gram == pytest.approx(x * density, rel=1e-11)  # W = I


@pytest.mark.parametrize("d", [1, 4])
@pytest.mark.parametrize("shift", [0.3, 3.0])
def test_density_with_a_mean_tilt(d: int, shift: float) -> None:
    h = 0.8
    law = TiltLaw(esscher.gaussian_head(h, d, tau=shift).coupling)
    reference = stats.ncx2(d, (shift / h) ** 2, scale=h * h)
    for x in reference.ppf([0.001, 0.3, 0.9, 0.99999]):
        assert law.density(float(x))[0] == pytest.approx(reference.pdf(x), rel=1e-8)


@pytest.mark.parametrize(
    ("spectrum", "tau"),
    [
        ([1.5, 0.7, 0.2], 0.5),
        ([0.3, 0.1], 3.0),
        ([1.0, 0.5, 0.0], [0.2, 0.1, 0.7]),
        (list(1.5 / np.arange(1, 51)), None),
        ([0.0, 0.0], [1.0, 1.0]),
        ([0.0], None),
    ],
)
def test_the_rule_integrates_exact_moments(spectrum: list[float], tau: object) -> None:
    head = esscher.gaussian_head(spectrum=spectrum, tau=tau)  # type: ignore[arg-type]
    rule = TiltLaw(head.coupling).rule(1e12)
    square = head.frobenius**2 + float(head.tau @ head.tau)
    assert abs(rule.weights.sum() - 1) < 1e-4
    assert rule.weights @ rule.strengths**2 == pytest.approx(square, rel=1e-5)
    assert rule.along @ rule.strengths**2 == pytest.approx(square, rel=1e-5)  # W = I


def test_the_gram_weight_with_a_mean_tilt_and_unequal_values() -> None:
    """E[a'Wa] = tr(W G) + tau'W tau for a full W."""
    rng = np.random.default_rng(5)
    root = rng.standard_normal((3, 3))
    coupling = Coupling(
        variances=np.array([1.2, 0.6, 0.6]),
        cross=np.zeros((3, 3)),
        tau=np.array([0.4, -0.3, 0.9]),
        loading=root,
        residual=np.zeros((3, 3)),
        residual_cross=np.zeros((3, 3)),
    )
    rule = TiltLaw(coupling).rule(1e6)
    w = coupling.value_gram
    exact = np.sum(np.diag(w) * coupling.variances) + coupling.tau @ w @ coupling.tau
    assert rule.along @ rule.strengths**2 == pytest.approx(exact, rel=1e-6)
