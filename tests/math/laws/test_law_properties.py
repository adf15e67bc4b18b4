"""Properties that hold for every argument, searched for counterexamples."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from esscher.math.laws import Cube, FiniteTokens, GaussianMixture, Signs, Sphere

# The same examples on every run: a failure here must be a change of the code.
settings.register_profile("laws", derandomize=True, deadline=None, database=None, max_examples=80)
repeatable = settings(settings.get_profile("laws"))


def tilts(dim: int, largest: float):
    return arrays(np.float64, dim, elements=st.floats(-largest, largest))


@repeatable
@given(tilts(4, 1e5))
def test_tilted_mean_stays_in_the_support(t):
    for law in (Sphere(4, 2.0), Cube(4, 2.0), Signs(4, 2.0)):
        mean = law.tilted_mean(t)
        assert np.linalg.norm(mean) <= law.support_radius * (1 + 1e-14)
        assert mean @ t >= 0
        np.testing.assert_allclose(law.tilted_mean(-t), -mean, rtol=1e-15)


@repeatable
@given(arrays(np.float64, (9, 2), elements=st.floats(-5, 5)), tilts(2, 1e3), tilts(2, 100))
def test_softmax_does_not_see_a_shift(tokens, t, shift):
    law, moved = FiniteTokens(tokens), FiniteTokens(tokens + shift)
    # Moving the tokens rounds them by eps * 100; the tilt multiplies that in the logits.
    slack = 1e-13 * (1 + np.abs(t).max() * 100)
    assert abs(moved.log_mgf(t) - law.log_mgf(t) - t @ shift) < slack
    np.testing.assert_allclose(
        moved.tilted_mean(t) - shift, law.tilted_mean(t), atol=1e-12 + 10 * slack
    )
    low, high = tokens.min(axis=0), tokens.max(axis=0)
    assert np.all(law.tilted_mean(t) >= low - 1e-12)
    assert np.all(law.tilted_mean(t) <= high + 1e-12)


@repeatable
@given(tilts(2, 1e4), st.floats(0.01, 0.99))
def test_equal_components_are_one_component(t, weight):
    mean, covariance = [0.5, -1.0], np.array([[1.0, 0.3], [0.3, 2.0]])
    law = GaussianMixture([weight, 1 - weight], [mean, mean], covariance)
    np.testing.assert_allclose(law.tilted_mean(t), mean + covariance @ t, rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(law.tilted_covariance(t), covariance, rtol=1e-12)
