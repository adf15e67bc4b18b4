"""Constructors: what is accepted, and what is said about the rest."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.errors import InputError, UndefinedError
from esscher.math.laws import (
    Cube,
    FiniteTokens,
    Gaussian,
    GaussianMixture,
    Laplace,
    Signs,
    Sphere,
    StudentT,
)

EYE = np.eye(2)


@pytest.mark.parametrize("cls", [Sphere, Cube, Signs, Laplace])
def test_dimensions_and_scales_are_checked(cls):
    name = {Sphere: "radius", Cube: "half_width"}.get(cls, "scale")
    for scale in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(InputError, match=f"{name} is"):
            cls(2, scale)
    for dim in (0, -3, 2.5, True):
        with pytest.raises(InputError, match="dim is"):
            cls(dim)


TWO = [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("cls", "arguments", "message"),
    [
        (Gaussian, (), "needs a mean"),
        (Gaussian, ([0.0, 1.0, 2.0], EYE), "must agree"),
        (Gaussian, ([0.0, np.inf],), "mean is not finite"),
        (Gaussian, ([[0.0]],), "mean has shape"),
        (Gaussian, ([],), "dim is 0"),
        (Gaussian, (None, [[1.0, 0.5], [0.0, 1.0]]), "not symmetric"),
        (Gaussian, (None, [[1.0, 2.0], [2.0, 1.0]]), "positive semidefinite"),
        (GaussianMixture, ([0.5, 0.6], TWO, EYE), "sum to 1.1; they must sum to 1"),
        (GaussianMixture, ([0.0, 1.0], TWO, EYE), "positive: entry 0"),
        (GaussianMixture, ([], np.zeros((0, 2)), EYE), "empty"),
        (GaussianMixture, ([1.0], TWO, EYE), "1 weights"),
        (GaussianMixture, ([0.5, 0.5], TWO, np.eye(3)), "covariance has shape"),
        (GaussianMixture, ([0.5, 0.5], TWO, -EYE), "positive semidefinite"),
        (FiniteTokens, ([1.0, 2.0],), "tokens has shape"),
        (FiniteTokens, (np.zeros((0, 3)),), "must not be empty"),
        (FiniteTokens, ([[np.nan]],), "tokens is not finite"),
    ],
)
def test_arrays_are_checked(cls, arguments, message):
    with pytest.raises(InputError, match=message):
        cls(*arguments)


def test_student_moments_exist_or_say_why_not():
    with pytest.raises(InputError, match="df is"):
        StudentT(2, df=0)
    with pytest.raises(InputError, match="scale is"):
        StudentT(2, df=3, scale=-1)
    heavy = StudentT(2, df=1.5)
    np.testing.assert_array_equal(heavy.mean, [0.0, 0.0])
    with pytest.raises(UndefinedError, match=r"df = 1.5 <= 2 has no covariance"):
        _ = heavy.covariance
    assert np.isnan(heavy.tilted_covariance([0.0, 0.0])).all()
    cauchy = StudentT(2, df=1)
    with pytest.raises(UndefinedError, match="no mean"):
        _ = cauchy.mean
    assert np.isnan(cauchy.tilted_mean([0.0, 0.0])).all()


@pytest.mark.parametrize(
    ("law", "text"),
    [
        (Gaussian([1.0, 0.0]), "Gaussian(mean=[1.0, 0.0])"),
        (Gaussian(covariance=np.eye(9)), "covariance=<array of shape (9, 9)>"),
        (Cube(3), "Cube(dim=3, half_width=1.0)"),
        (FiniteTokens(np.zeros((50, 2))), "FiniteTokens(tokens=<array of shape (50, 2)>)"),
        (GaussianMixture([1.0], [[0.0]], [[2.0]]), "covariance=[[2.0]])"),
    ],
)
def test_reprs(law, text):
    assert text in repr(law)
