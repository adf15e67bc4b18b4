"""Constructors and the registry: what is accepted, and what is said about the rest."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.errors import InputError, UndefinedError
from esscher.math.laws import (
    LAWS,
    Cube,
    FiniteTokens,
    Gaussian,
    GaussianMixture,
    Laplace,
    Signs,
    Sphere,
    StudentT,
    make_law,
)

EYE = np.eye(2)


@pytest.mark.parametrize("cls", [Sphere, Cube, Signs, Laplace])
@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_scales_must_be_positive(cls, scale):
    name = {Sphere: "radius", Cube: "half_width"}.get(cls, "scale")
    with pytest.raises(InputError, match=f"{name} is"):
        cls(2, scale)


@pytest.mark.parametrize("cls", [Sphere, Cube, Signs, Laplace])
@pytest.mark.parametrize("dim", [0, -3, 2.5, True])
def test_dimensions_must_be_whole(cls, dim):
    with pytest.raises(InputError, match="dim is"):
        cls(dim)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs a mean"),
        ({"mean": [0.0, 1.0], "dim": 3}, "dim is 3, the length of mean is 2"),
        ({"mean": [0.0, 1.0, 2.0], "covariance": EYE}, "must agree"),
        ({"covariance": EYE, "dim": 1}, "must agree"),
        ({"mean": [0.0, np.inf]}, "mean is not finite"),
        ({"mean": [[0.0]]}, "mean has shape"),
        ({"mean": []}, "dim is 0"),
        ({"covariance": [[1.0, 0.5], [0.0, 1.0]]}, "not symmetric"),
        ({"covariance": [[1.0, 2.0], [2.0, 1.0]]}, "positive semidefinite"),
        ({"dim": 0}, "dim is 0"),
    ],
)
def test_gaussian_refuses(arguments, message):
    with pytest.raises(InputError, match=message):
        Gaussian(**arguments)


def test_gaussian_takes_arrays_and_lists():
    for mean in ([1.0, 2.0], np.array([1.0, 2.0]), (1, 2)):
        law = Gaussian(mean)
        np.testing.assert_array_equal(law.mean, [1.0, 2.0])
        np.testing.assert_array_equal(law.covariance, EYE)
    assert Gaussian(covariance=EYE).dim == 2


@pytest.mark.parametrize(
    ("weights", "means", "covariances", "message"),
    [
        ([0.5, 0.6], [[0, 0], [1, 1]], EYE, "sum to 1.1; they must sum to 1"),
        ([0.0, 1.0], [[0, 0], [1, 1]], EYE, "positive: entry 0"),
        ([-0.5, 1.5], [[0, 0], [1, 1]], EYE, "positive: entry 0"),
        ([], np.zeros((0, 2)), EYE, "empty"),
        ([1.0], [[0, 0], [1, 1]], EYE, "1 weights"),
        ([0.5, 0.5], [0.0, 1.0], EYE, "means has shape"),
        ([0.5, 0.5], [[0, 0], [1, 1]], np.eye(3), "covariances has shape"),
        ([0.5, 0.5], [[0, 0], [1, 1]], [EYE, EYE, EYE], "covariances has shape"),
        ([0.5, 0.5], [[0, 0], [1, 1]], [EYE, -EYE], r"covariances\[1\] is not positive"),
        ([0.5, 0.5], [[0, np.nan], [1, 1]], EYE, "means is not finite"),
    ],
)
def test_mixture_refuses(weights, means, covariances, message):
    with pytest.raises(InputError, match=message):
        GaussianMixture(weights, means, covariances)


@pytest.mark.parametrize(
    ("tokens", "weights", "message"),
    [
        ([1.0, 2.0], None, "tokens has shape"),
        (np.zeros((0, 3)), None, "must not be empty"),
        (np.zeros((3, 0)), None, "must not be empty"),
        ([[np.nan]], None, "tokens is not finite"),
        ([[1.0], [2.0]], [1.0], "2 tokens but 1 weights"),
        ([[1.0], [2.0]], [0.5, 0.4], "must sum to 1"),
        ([[1.0], [2.0]], [0.0, 1.0], "leave out"),
    ],
)
def test_finite_refuses(tokens, weights, message):
    with pytest.raises(InputError, match=message):
        FiniteTokens(tokens, weights)


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


def test_registry_names():
    assert list(LAWS) == [
        "gaussian",
        "mixture",
        "sphere",
        "cube",
        "signs",
        "laplace",
        "student",
        "finite",
    ]


def test_make_law():
    assert repr(make_law("sphere", dim=3, radius=2)) == "Sphere(dim=3, radius=2.0)"
    assert repr(make_law("gaussian", dim=3)) == "Gaussian(dim=3)"
    assert isinstance(make_law("finite", tokens=[[1.0]]), FiniteTokens)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("spere", {"dim": 2}, "did you mean 'sphere'.*known laws: gaussian, mixture"),
        ("zzz", {}, "no law called 'zzz'; known laws"),
        ("sphere", {}, "missing a required argument: 'dim'.*takes \\(dim, radius\\)"),
        ("cube", {"dim": 2, "radius": 1.0}, "unexpected keyword argument 'radius'"),
        ("cube", {"dim": 2, "half_width": -1.0}, "half_width is -1.0"),
    ],
)
def test_make_law_refuses(name, parameters, message):
    with pytest.raises(InputError, match=message):
        make_law(name, **parameters)


@pytest.mark.parametrize(
    ("law", "text"),
    [
        (Gaussian([1.0, 0.0]), "Gaussian(mean=[1.0, 0.0])"),
        (Gaussian(covariance=np.eye(9)), "covariance=<array of shape (9, 9)>"),
        (Cube(3), "Cube(dim=3, half_width=1.0)"),
        (Signs(3, 2), "Signs(dim=3, scale=2.0)"),
        (Laplace(3), "Laplace(dim=3, scale=1.0)"),
        (StudentT(3, 4), "StudentT(dim=3, df=4.0, scale=1.0)"),
        (FiniteTokens(np.zeros((50, 2))), "FiniteTokens(tokens=<array of shape (50, 2)>)"),
        (GaussianMixture([1.0], [[0.0]], [[2.0]]), "covariances=[[2.0]])"),
    ],
)
def test_reprs(law, text):
    assert text in repr(law)
