"""Constants of bounded tokens: against attention itself, and a case in closed form."""

from __future__ import annotations

import numpy as np
import pytest

import esscher
from esscher.math.theory.sampled_constants import sampled_constants
from tests.math.theory.simulation import simulate


@pytest.mark.parametrize("queries", ["tokens", "population"])
@pytest.mark.parametrize("law", ["sphere", "cube", "signs"])
def test_against_attention_itself(law: str, queries: str) -> None:
    head = esscher.law_head(esscher.laws.standard_law(law, 3), horizon=0.7)
    constants = sampled_constants(head, queries)
    n, replicates = 800, 200
    run = simulate(head, [n], replicates, queries, query_count=800)
    for sample, exact, noise in (
        (n * np.sum(run.mean[:, 0] ** 2, axis=1), constants.mean, constants.mean_error),
        (n * run.map_square[:, 0], constants.map, constants.map_error),
    ):
        error = np.hypot(sample.std() / np.sqrt(replicates), noise)
        # population queries: 800 of them leave noise of their own in the mean, and the next order
        # in 1/n is of relative size inflation/n, below 2% here
        assert abs(sample.mean() - exact) < 4 * error + 0.02 * exact


def test_without_tilt_it_is_the_sample_mean() -> None:
    head = esscher.law_head(esscher.laws.Signs(2), horizon=0.0)
    constants = sampled_constants(head, "population")
    assert constants.map == pytest.approx(2.0)
    # the variance of 512 x 16 signs is known to be 1 up to the sampling of their mean
    assert abs(constants.mean - 2.0) < 4 * constants.mean_error + 0.01
    assert constants.log_burn_in == 0.0


def test_gaussian_constants_are_recovered_by_the_same_sampling() -> None:
    """The sampler does not use boundedness: at small H it must give the closed forms."""
    head = esscher.gaussian_head(spectrum=[0.3, 0.2], tau=0.2)
    for queries in ("tokens", "population"):
        constants = sampled_constants(head, queries)
        exact = esscher.theory.mean_constant(head, queries).squared
        assert abs(constants.mean - exact) < 4 * constants.mean_error
        assert abs(constants.map - esscher.theory.map_constant(head)) < 4 * constants.map_error


def test_bounded_tokens_are_parametric() -> None:
    prediction = esscher.predict(
        esscher.law_head(esscher.laws.standard_law("sphere", 8), horizon=1.5), [100, 1000]
    )
    assert prediction.exponents is not None
    assert prediction.exponents.mean == prediction.exponents.map_rms == 0.5
    assert prediction.is_exact
    assert not prediction.curves
    assert "1/sqrt(n)" in prediction.headline
    mixture = esscher.predict(
        esscher.law_head(esscher.laws.standard_law("mixture", 2), horizon=1.5)
    )
    assert "Gaussian head with these second moments" in mixture.headline
