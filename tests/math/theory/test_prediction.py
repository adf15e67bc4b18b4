"""``predict``: the parts fit together, and what cannot be said is said so."""

from __future__ import annotations

import json

import numpy as np
import pytest

import esscher


def test_it_gathers_what_the_parts_say() -> None:
    head = esscher.gaussian_head(spectrum=[0.5] * 3)
    prediction = esscher.predict(head, [100, 1000], queries="tokens")
    assert prediction.exponents == esscher.exponents(0.5)
    assert prediction.constants is not None
    assert prediction.constants.mean == esscher.theory.mean_constant(head, "tokens").squared
    assert prediction.constants.map == esscher.theory.map_constant(head)
    np.testing.assert_array_equal(
        prediction.curves["map"].error, esscher.theory.map_curve(head, [100, 1000], "tokens").error
    )
    assert prediction.burn_in == pytest.approx(np.exp(0.75))
    assert isinstance(prediction.limit, esscher.theory.OutputMoments)
    np.testing.assert_allclose(prediction.limit.covariance, 0.25 * np.eye(3))
    assert list(prediction.table().columns) == ["n", "map_rms", "mean", "mean_rms", "cov_rms"]
    assert "converges like 1/sqrt(n)" in repr(prediction)
    assert "<table" in prediction._repr_html_()
    json.dumps(prediction.to_dict(), allow_nan=False)


def test_settling_is_read_off_the_local_slopes() -> None:
    sizes = 10.0 ** np.arange(1, 13)
    quick = esscher.predict(esscher.gaussian_head(0.3), sizes, "population", moments=False)
    assert quick.settled_from("map") == 10
    never = esscher.predict(esscher.gaussian_head(1.5, dim=20), sizes, "population", moments=False)
    assert never.settled_from("map") is None
    assert never.to_dict()["settled_from"] == {"map_rms": None}


def test_burn_in_beyond_the_range_of_floats() -> None:
    prediction = esscher.predict(esscher.gaussian_head(3.0, dim=200))
    assert prediction.burn_in == float("inf")
    assert prediction.log_burn_in == pytest.approx(1800)
    assert prediction.to_dict()["burn_in"] is None
    assert "10^781.7" in prediction.headline
    json.dumps(prediction.to_dict(), allow_nan=False)


def test_no_limit_no_exponent() -> None:
    prediction = esscher.predict(
        esscher.law_head(esscher.laws.StudentT(2, df=4), horizon=0.5), [10, 100]
    )
    assert isinstance(prediction.limit, esscher.theory.NoLimit)
    assert prediction.limit.fraction == 1.0
    assert prediction.exponents is None
    assert not prediction.curves
    assert "no infinite-token limit" in repr(prediction)
    with pytest.raises(esscher.UndefinedError):
        prediction.asymptotic("map")


def test_zero_horizon() -> None:
    prediction = esscher.predict(esscher.gaussian_head(0.0))
    assert prediction.to_dict()["tail_index"] is None
    json.dumps(prediction.to_dict(), allow_nan=False)


def test_pointwise_error_of_gaussian_and_other_laws() -> None:
    """Gaussian: e^{s^2} (Sigma + Sigma t t' Sigma); signs and cube: direct simulation."""
    head = esscher.gaussian_head(1.0, dim=2)
    t = np.array([0.6, -0.3])
    error = esscher.theory.pointwise_error(head, t)
    np.testing.assert_allclose(error.covariance, np.exp(t @ t) * (np.eye(2) + np.outer(t, t)))
    assert error.tokens_for(0.1) == pytest.approx(100 * np.exp(t @ t))
    rng = np.random.default_rng(0)
    for law in (esscher.laws.Signs(2), esscher.laws.Cube(2, half_width=1.5)):
        other = esscher.law_head(law, horizon=0.5)
        n, replicates = 400, 4000
        x = law.sample(n * replicates, rng).reshape(replicates, n, 2)
        weights = np.exp(x @ t)
        output = np.einsum("rn,rnd->rd", weights, x) / weights.sum(axis=1)[:, None]
        measured = n * np.cov(output.T)
        exact = esscher.theory.pointwise_error(other, t).covariance
        # a variance from 4000 replicates is good to sqrt(2/4000); second order in n adds 1/n
        assert np.all(np.abs(measured - exact) < 4.5 * exact.max() * np.sqrt(2 / replicates))


def test_pointwise_error_of_laplace_is_infinite_before_the_limit_goes() -> None:
    head = esscher.law_head(esscher.laws.Laplace(1, scale=1.0), horizon=0.5)
    error = esscher.theory.pointwise_error(head, np.array([[0.4], [0.6]]))
    assert np.isfinite(error.log_inflation[0])
    assert error.log_inflation[1] == np.inf
    assert np.all(np.isfinite(head.limit_map(np.array([[0.6]]))))


def test_pointwise_error_over_arrays() -> None:
    rng = np.random.default_rng(1)
    k, v = rng.standard_normal((50, 2)), rng.standard_normal((50, 3))
    head = esscher.array_head(k, k, v)
    t = np.array([0.5, 0.2])
    p = np.exp(k @ t)
    p /= p.sum()
    output = p @ v
    exact = 50 * np.einsum("n,nd,ne->de", p**2, v - output, v - output)
    np.testing.assert_allclose(
        esscher.theory.pointwise_error(head, t).covariance, exact, rtol=1e-10
    )
    out = esscher.predict(head).to_dict()
    assert out["psi"]["one-sided"] is None
    assert out["limit"]["method"] == "finite sum"
