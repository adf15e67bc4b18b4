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
    assert prediction.constants.mean == np.trace(esscher.theory.mean_constant(head, "tokens"))
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
    sizes = 10.0 ** np.arange(1, 4)
    quick = esscher.predict(esscher.gaussian_head(0.3), sizes, "population")
    assert quick.settled_from("map") == 10
    never = esscher.predict(esscher.gaussian_head(1.5, dim=20), sizes, "population")
    assert never.settled_from("map") is None
    assert never.to_dict()["settled_from"]["map_rms"] is None


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


def test_captured_tokens_have_no_one_sided_psi() -> None:
    rng = np.random.default_rng(1)
    k, v = rng.standard_normal((50, 2)), rng.standard_normal((50, 3))
    out = esscher.predict(esscher.array_head(k, k, v)).to_dict()
    assert out["psi"]["one-sided"] is None
    assert out["limit"]["method"] == "finite sum"


def test_bounded_tokens_are_parametric() -> None:
    prediction = esscher.predict(
        esscher.law_head(esscher.laws.standard_law("sphere", 8), horizon=1.5), [100, 1000]
    )
    assert prediction.exponents is not None
    assert prediction.exponents.mean == prediction.exponents.map_rms == 0.5
    assert set(prediction.curves) == {"map", "mean", "mean_rms", "cov_rms"}
    assert "1/sqrt(n)" in prediction.headline
    flat = esscher.law_head(esscher.laws.Signs(2), horizon=0.0)
    assert esscher.predict(flat).log_burn_in == 0.0
    mixture = esscher.predict(
        esscher.law_head(esscher.laws.standard_law("mixture", 2), horizon=1.5)
    )
    assert mixture.headline == "The asymptotic rate of this head (H = 1.5) is not known."
