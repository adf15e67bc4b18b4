"""The uniform bound on a ball of tilts, and the supremum it bounds."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esscher.core.errors import InputError, UndefinedError
from esscher.core.streams import random_stream
from esscher.math.heads import array_head, gaussian_head, law_head, weight_head
from esscher.math.laws import Cube, FiniteTokens, Gaussian, Laplace, Signs, Sphere
from esscher.math.theory.ball import ball_bound, head_ball_bound, measured_supremum

LAWS = [Sphere(3), Sphere(3, radius=2.0), Cube(2), Signs(2), Signs(1)]
radii = st.floats(0.01, 50.0)


def contraction_log_constant(r: float, tilt: float) -> float:
    """What symmetrisation with Ledoux-Talagrand and Maurer contraction gives instead."""
    x = r * tilt
    numerator = 2 * math.sqrt(2) * r * (1 + x ** (2 / 3)) ** 1.5
    return 2 * x + math.log(numerator + 2 * r * (2 * x + math.exp(-x)))


class TestBound:
    def test_constants(self):
        e = math.exp(4.0)
        direct = 2 * e * (2 * e - 1)
        assert ball_bound(2.0, 2.0).constant == pytest.approx(direct, rel=1e-14)
        split = 2 * (math.sqrt(2 * e - 1) + math.sqrt(2 * e - 2)) ** 2
        assert split < direct
        assert ball_bound(2.0, 2.0, mean_norm=0.0).constant == pytest.approx(split, rel=1e-14)

    def test_without_tilt_it_is_the_error_of_a_mean(self):
        # E|mean of n tokens - E X| <= r / sqrt(n)
        bound = ball_bound(3.0, 0.0)
        assert bound.constant == pytest.approx(3.0, rel=1e-14)
        assert bound.first_useful_n == 1.0

    @pytest.mark.parametrize("mean_norm", [None, 0.0])
    @pytest.mark.parametrize("radius", [1e-3, 0.1, 1.0, 10.0, 100.0])
    def test_below_the_contraction_argument(self, radius, mean_norm):
        for tilt in (0.0, 0.01, 0.5, 2.0):
            bound = ball_bound(radius, tilt, mean_norm)
            assert bound.log_constant < contraction_log_constant(radius, tilt)

    def test_expansion_behind_the_constant(self):
        # The two process bounds, on tokens where everything is a finite sum: signs in d = 1.
        # sup over |t| <= T of |Z_n - Z| is |mean| sinh(T), of |N_n - N| it is |mean| cosh(T).
        rng = np.random.default_rng(0)
        tilt, n = 1.3, 25
        mean = np.abs(Signs(1).sample(n * 4000, rng).reshape(4000, n).mean(axis=1)).mean()
        assert mean * math.sinh(tilt) < (math.exp(tilt) - 1) / math.sqrt(n)
        assert mean * math.cosh(tilt) < math.exp(tilt) / math.sqrt(n)

    def test_at_and_first_useful_n_agree(self):
        bound = ball_bound(1.5, 2.0)
        assert bound.at(bound.first_useful_n) == pytest.approx(1.5, rel=1e-12)
        np.testing.assert_allclose(bound.at([4, 100]), bound.constant / np.array([2.0, 10.0]))
        expected = math.log10(bound.first_useful_n)
        assert bound.log10_first_useful_n == pytest.approx(expected, rel=1e-14)

    def test_huge_radius_does_not_overflow(self):
        bound = ball_bound(10.0, 100.0)
        assert bound.log_constant == pytest.approx(2000 + math.log(20), rel=1e-14)
        assert bound.constant == math.inf
        assert bound.first_useful_n == math.inf
        assert bound.log10_first_useful_n == pytest.approx(2 * (2000 + math.log(2)) / math.log(10))
        assert bound.at(1e6) == math.inf
        centred = ball_bound(10.0, 100.0, mean_norm=0.0)
        assert centred.log_constant == pytest.approx(1000 + math.log(80), rel=1e-14)

    @settings(max_examples=100, deadline=None)
    @given(r=radii, tilt=radii, more=st.floats(1.001, 3.0), share=st.floats(0.0, 1.0))
    def test_monotone(self, r, tilt, more, share):
        here = ball_bound(r, tilt, share * r).log_constant
        assert ball_bound(r * more, tilt, share * r * more).log_constant > here
        assert ball_bound(r, tilt * more, share * r).log_constant > here
        assert ball_bound(r, tilt).log_constant >= here
        assert ball_bound(r, tilt, 0.0).log_constant <= here

    @settings(max_examples=50, deadline=None)
    @given(r=radii, tilt=radii, unit=st.floats(0.1, 10.0))
    def test_units(self, r, tilt, unit):
        # measuring tokens in other units multiplies the bound and leaves <t, X> alone
        other = ball_bound(r * unit, tilt / unit).log_constant
        assert other == pytest.approx(ball_bound(r, tilt).log_constant + math.log(unit), abs=1e-9)

    def test_printing(self):
        bound = ball_bound(1.0, 2.0)
        assert "says something from n = 10^4.0" in repr(bound)
        assert bound.to_dict()["log_constant"] == bound.log_constant
        with pytest.raises(dataclasses.FrozenInstanceError):
            bound.radius = 2.0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((0.0, 1.0), "radius is"),
            ((math.inf, 1.0), "radius is inf"),
            ((1.0, -1.0), "tilt_radius is"),
            ((1.0, math.nan), "tilt_radius is nan"),
            ((1.0, 1.0, 2.0), "mean_norm is 2 but"),
            ((1.0, 1.0, -0.5), "mean_norm is"),
            ((1.0, 1.0, 0.5, 0.0), "value_norm is"),
        ],
    )
    def test_errors(self, arguments, message):
        with pytest.raises(InputError, match=message):
            ball_bound(*arguments)

    def test_no_tokens(self):
        with pytest.raises(InputError, match="at least 1"):
            ball_bound(1.0, 1.0).at(0)


class TestHeadBound:
    def test_radii_come_from_the_weights(self):
        query, key = np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 1.0], [0.0, 3.0]])
        value = np.diag([0.5, 4.0])
        head = weight_head(
            Cube(2, half_width=2.0),
            query=query,
            key=key,
            value=value,
            query_bias=[1.0, -1.0],
            value_bias=[7.0, 7.0],
            scale=0.5,
        )
        bound = head_ball_bound(head, query_radius=3.0)
        tilt = np.linalg.norm(key.T @ query * 0.5, 2) * 3
        tilt += np.linalg.norm(key.T @ np.array([1.0, -1.0]) * 0.5)
        radius = 2 * math.sqrt(2)
        assert bound.radius == pytest.approx(radius)
        assert bound.tilt_radius == pytest.approx(tilt)
        expected = ball_bound(radius, tilt, 0.0).log_constant + math.log(4.0)
        assert bound.log_constant == pytest.approx(expected)
        # values are four times as large, so the bound starts to say something at the same n
        plain = ball_bound(radius, tilt, 0.0)
        assert bound.log10_first_useful_n == pytest.approx(plain.log10_first_useful_n)

    def test_uses_the_mean_of_the_law(self):
        head = law_head(FiniteTokens([[1.0, 0.0], [0.0, 1.0], [0.5, -1.0]]), horizon=0.5)
        assert head_ball_bound(head, 1.0).mean_norm == pytest.approx(0.5)

    @pytest.mark.parametrize("law", [Gaussian(dim=2), Laplace(2)])
    def test_unbounded_law(self, law):
        head = law_head(law, horizon=0.5)
        with pytest.raises(UndefinedError, match=r"unbounded support.*does not apply"):
            head_ball_bound(head, 1.0)
        with pytest.raises(UndefinedError, match="unbounded support"):
            measured_supremum(head, 1.0, [10])

    def test_head_without_weights(self):
        rows = np.eye(3)
        with pytest.raises(InputError, match=r"ArrayHead.*weight_head"):
            head_ball_bound(array_head(rows, rows, rows), 1.0)
        with pytest.raises(InputError, match="query_radius is"):
            head_ball_bound(gaussian_head(horizon=1.0), -1.0)


class TestMeasuredSupremum:
    @pytest.mark.parametrize("tilt", [0.5, 2.0])
    @pytest.mark.parametrize("law", LAWS, ids=repr)
    def test_below_the_bound(self, law, tilt):
        measured = measured_supremum(law, tilt, [30, 300], replicates=6, directions=16)
        bound = ball_bound(law.support_radius, tilt, float(np.linalg.norm(law.mean)))
        assert np.all(measured.value + 4 * measured.standard_error < bound.at(measured.sizes))

    def test_without_tilt_it_is_the_error_of_the_mean(self):
        law = Sphere(3)
        measured = measured_supremum(law, 0.0, [200], replicates=200)
        # sqrt(n) times the mean is nearly N(0, I/3): E| . | = sqrt(8 / (3 pi))
        expected = math.sqrt(8 / (3 * math.pi) / 200)
        assert abs(measured.value[0] - expected) < 4 * measured.standard_error[0]

    @pytest.mark.parametrize("law", [Signs(1), Cube(1, half_width=1.5)], ids=repr)
    def test_one_dimension_against_a_dense_grid(self, law):
        tilt, n = 2.5, 40
        measured = measured_supremum(law, tilt, [n], replicates=8, seed=3)
        grid = np.linspace(-tilt, tilt, 20_001)[:, None]
        rng = random_stream(3, "ball", n)
        for value in measured.samples[0]:
            tokens = FiniteTokens(law.sample(n, rng))
            gap = np.abs(tokens.tilted_mean(grid) - law.tilted_mean(grid)).max()
            assert value == pytest.approx(gap, rel=1e-6)

    def test_plane_against_a_dense_grid(self):
        law, tilt, n = Cube(2), 3.0, 50
        measured = measured_supremum(law, tilt, [n], replicates=3, seed=4)
        angle, length = np.meshgrid(np.linspace(0, 2 * np.pi, 181), np.linspace(0, tilt, 61))
        grid = np.stack([length * np.cos(angle), length * np.sin(angle)], axis=-1).reshape(-1, 2)
        limit = law.tilted_mean(grid)
        rng = np.random.default_rng([4, 1, n])
        for value in measured.samples[0]:
            gap = FiniteTokens(law.sample(n, rng)).tilted_mean(grid) - limit
            assert value >= np.linalg.norm(gap, axis=1).max() * (1 - 1e-3)

    @pytest.mark.parametrize("law", [Sphere(3), Cube(2)], ids=repr)
    def test_parametric_scaling(self, law):
        measured = measured_supremum(law, 1.5, [100, 900], replicates=24, directions=16)
        scaled = measured.value * np.sqrt(measured.sizes)
        error = measured.standard_error * np.sqrt(measured.sizes)
        # corrections of relative order 1/sqrt(100) remain at the smaller size
        assert abs(scaled[1] - scaled[0]) < 4 * np.hypot(*error) + 0.1 * scaled[1]

    def test_head_and_its_law_give_the_same(self):
        law = Signs(2)
        head = law_head(law, horizon=0.7)
        by_head = measured_supremum(head, 1.0, [20], replicates=3, seed=5)
        by_law = measured_supremum(law, 1.0, [20], replicates=3, seed=5)
        np.testing.assert_array_equal(by_head.samples, by_law.samples)

    def test_function_of_configuration_and_seed(self):
        whole = measured_supremum(Sphere(2), 1.0, [20, 50], replicates=3, seed=6)
        part = measured_supremum(Sphere(2), 1.0, [50], replicates=3, seed=6)
        np.testing.assert_array_equal(whole.samples[1], part.samples[0])

    def test_printing(self):
        measured = measured_supremum(Sphere(2), 1.0, [20], replicates=3)
        assert "n = 20" in repr(measured)
        assert measured.to_dict()["replicates"] == 3

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"tilt_radius": -1.0}, "tilt_radius is"),
            ({"sizes": [0]}, "n = 0"),
            ({"replicates": 1}, "replicates is 1"),
            ({"directions": 0}, "directions is 0"),
            ({"seed": -3}, "seed is -3"),
            ({"head": "sphere"}, "neither a law nor a head"),
        ],
    )
    def test_errors(self, arguments, message):
        with pytest.raises(InputError, match=message):
            measured_supremum(**{"head": Sphere(2), "tilt_radius": 1.0, "sizes": [10], **arguments})
