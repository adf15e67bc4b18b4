"""The uniform bound on a ball of tilts, and the supremum it bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from esscher.core.errors import InputError, UndefinedError
from esscher.core.streams import random_stream
from esscher.math.laws import Cube, FiniteTokens, Laplace, Signs, Sphere
from esscher.math.theory.ball import log_ball_bound, measured_supremum

LAWS = [Sphere(3), Sphere(3, radius=2.0), Cube(2), Signs(2), Signs(1)]


class TestBound:
    def test_constants(self):
        e = math.exp(4.0)
        direct = 2 * e * (2 * e - 1)
        assert math.exp(log_ball_bound(2.0, 2.0)) == pytest.approx(direct, rel=1e-14)
        split = 2 * (math.sqrt(2 * e - 1) + math.sqrt(2 * e - 2)) ** 2
        assert split < direct
        assert math.exp(log_ball_bound(2.0, 2.0, 0.0)) == pytest.approx(split, rel=1e-14)
        # without tilt E|mean of n tokens - E X| <= r / sqrt(n); and no overflow
        assert math.exp(log_ball_bound(3.0, 0.0)) == pytest.approx(3.0, rel=1e-14)
        assert log_ball_bound(10.0, 100.0) == pytest.approx(2000 + math.log(20))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((0.0, 1.0), "radius is"),
            ((1.0, math.nan), "tilt_radius is nan"),
            ((1.0, 1.0, 2.0), "mean_norm is 2 but"),
        ],
    )
    def test_errors(self, arguments, message):
        with pytest.raises(InputError, match=message):
            log_ball_bound(*arguments)


class TestMeasuredSupremum:
    @pytest.mark.parametrize("tilt", [0.5, 2.0])
    @pytest.mark.parametrize("law", LAWS, ids=repr)
    def test_below_the_bound(self, law, tilt):
        for n in (30, 300):
            suprema = measured_supremum(law, tilt, n, replicates=6)
            log_bound = log_ball_bound(law.support_radius, tilt, float(np.linalg.norm(law.mean)))
            error = suprema.std(ddof=1) / np.sqrt(6)
            assert suprema.mean() + 4 * error < np.exp(log_bound) / np.sqrt(n)

    def test_without_tilt_it_is_the_error_of_the_mean(self):
        law = Sphere(3)
        suprema = measured_supremum(law, 0.0, 200, replicates=200)
        # sqrt(n) times the mean is nearly N(0, I/3): E| . | = sqrt(8 / (3 pi))
        expected = math.sqrt(8 / (3 * math.pi) / 200)
        assert abs(suprema.mean() - expected) < 4 * suprema.std(ddof=1) / np.sqrt(200)

    @pytest.mark.parametrize("law", [Signs(1), Cube(1, half_width=1.5)], ids=repr)
    def test_one_dimension_against_a_dense_grid(self, law):
        tilt, n = 2.5, 40
        suprema = measured_supremum(law, tilt, n, replicates=8, seed=3)
        grid = np.linspace(-tilt, tilt, 20_001)[:, None]
        rng = random_stream(3, "ball", n)
        for value in suprema:
            tokens = FiniteTokens(law.sample(n, rng))
            gap = np.abs(tokens.tilted_mean(grid) - law.tilted_mean(grid)).max()
            assert value == pytest.approx(gap, rel=1e-6)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"tilt_radius": -1.0}, "tilt_radius is"),
            ({"n": 0}, "n is 0"),
            ({"replicates": 0}, "replicates is 0"),
            ({"seed": -3}, "seed is -3"),
            ({"law": "sphere"}, "law is"),
            ({"law": Laplace(2)}, "unbounded support"),
        ],
    )
    def test_errors(self, arguments, message):
        with pytest.raises((InputError, UndefinedError), match=message):
            measured_supremum(**{"law": Sphere(2), "tilt_radius": 1.0, "n": 10, **arguments})
