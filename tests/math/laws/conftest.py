"""The laws on which every protocol test runs."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.math.laws import (
    Cube,
    FiniteTokens,
    Gaussian,
    GaussianMixture,
    Laplace,
    Law,
    Signs,
    Sphere,
    StudentT,
)

TOKENS = np.random.default_rng(7).normal(size=(40, 3))
RANDOM = np.random.default_rng(8).normal(size=(3, 3))
COVARIANCE = RANDOM @ RANDOM.T / 3

#: Laws with a limit at every tilt around 0.
TILTABLE: dict[str, Law] = {
    "gaussian-standard": Gaussian(dim=4),
    "gaussian": Gaussian([1.0, -0.5], [[1.0, 0.6], [0.6, 0.8]]),
    "gaussian-singular": Gaussian(mean=[0.2, 0.0, 1.0], covariance=np.ones((3, 3))),
    "mixture": GaussianMixture([0.3, 0.7], [[1.0, 0.0, 0.0], [-0.5, 0.5, 2.0]], COVARIANCE),
    "three components": GaussianMixture([0.5, 0.25, 0.25], [[0, 1], [2, 0], [-1, -1]], np.eye(2)),
    "sphere-1": Sphere(1, radius=0.8),
    "sphere-2": Sphere(2, radius=1.5),
    "sphere-5": Sphere(5, radius=2.0),
    "cube": Cube(3, half_width=1.3),
    "signs": Signs(3, scale=0.9),
    "laplace": Laplace(3, scale=0.7),
    "finite": FiniteTokens(TOKENS),
}
EVERY_LAW: dict[str, Law] = {**TILTABLE, "student": StudentT(3, df=12, scale=0.5)}


@pytest.fixture(params=EVERY_LAW.values(), ids=EVERY_LAW.keys())
def law(request: pytest.FixtureRequest) -> Law:
    """Every law."""
    assert isinstance(request.param, Law)
    return request.param


@pytest.fixture(params=TILTABLE.values(), ids=TILTABLE.keys())
def tiltable(request: pytest.FixtureRequest) -> Law:
    """Every law with a limit at every tilt around 0."""
    assert isinstance(request.param, Law)
    return request.param
