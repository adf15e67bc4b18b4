"""One-dimensional marginals of samples against scipy's laws."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from esscher.math.laws import Cube, Gaussian, GaussianMixture, Laplace, Sphere, StudentT

#: Smallest p-value that a correct sampler is allowed; the seeds are fixed.
SMALLEST_P = 1e-4


def scaled_beta(dim: int, radius: float):
    """Law of a coordinate on the sphere: (X/R + 1)/2 is Beta((d-1)/2, (d-1)/2)."""
    half = (dim - 1) / 2
    return stats.beta(half, half, loc=-radius, scale=2 * radius)


MIXTURE = GaussianMixture([0.2, 0.8], [[0.0, -3.0], [0.0, 1.0]], 0.25 * np.eye(2))


def mixture_cdf(x):
    return 0.2 * stats.norm.cdf(2 * x + 6) + 0.8 * stats.norm.cdf(2 * x - 2)


@pytest.mark.parametrize(
    ("law", "marginal"),
    [
        (Gaussian([1.0, -2.0], [[2.0, 0.5], [0.5, 0.3]]), stats.norm(-2.0, np.sqrt(0.3))),
        (Gaussian(dim=3), stats.norm()),
        (Sphere(2, 2.0), scaled_beta(2, 2.0)),
        (Sphere(3), scaled_beta(3, 1.0)),
        (Sphere(40, 0.5), scaled_beta(40, 0.5)),
        (Cube(2, 3.0), stats.uniform(-3.0, 6.0)),
        (Laplace(2, 0.4), stats.laplace(scale=0.4)),
        (StudentT(3, df=3, scale=2.0), stats.t(3, scale=2.0)),
        (StudentT(2, df=0.8), stats.t(0.8)),
        (MIXTURE, SimpleNamespace(cdf=mixture_cdf)),
    ],
    # an address in a name would differ between the processes that share the tests
    ids=lambda value: type(value).__name__,
)
def test_last_coordinate(law, marginal):
    x = law.sample(20_000, np.random.default_rng(11))[:, -1]
    assert stats.kstest(x, marginal.cdf).pvalue > SMALLEST_P


def test_coordinates_of_student_share_their_divisor():
    """The squared norm over dim is F-distributed; independent coordinates would not be."""
    law = StudentT(4, df=6, scale=1.5)
    x = law.sample(20_000, np.random.default_rng(13))
    ratio = np.sum(x**2, axis=1) / (4 * 1.5**2)
    assert stats.kstest(ratio, stats.f(4, 6).cdf).pvalue > SMALLEST_P
