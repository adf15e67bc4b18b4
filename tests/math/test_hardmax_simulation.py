"""Hardmax, simulated: against exact values and all keys drawn; fits and curves."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from esscher.core.errors import InputError
from esscher.math.simulation import (
    draw_outer_keys,
    hardmax_curve,
    squared_mean,
)
from esscher.math.theory.hardmax import hardmax_exact, hardmax_exponent, hardmax_leading
from tests.math.hardmax_by_hand import planar_mean

HUGE = [1e2, 1e3, 1e6, 1e9, 1e12, 1e15, 1e25]


class TestSimulation:
    @pytest.mark.parametrize("queries", ["population", "tokens"])
    def test_one_dimension_against_exact(self, queries):
        simulated = hardmax_curve(HUGE, replicates=20_000, seed=1, queries=queries)
        z = (simulated.simulated - hardmax_exact(HUGE, queries=queries)) / simulated.standard_error
        assert np.abs(z).max() < 3.5
        assert np.all(simulated.certified == 1)

    @pytest.mark.parametrize("dim", [2, 3])
    def test_more_dimensions_against_exact(self, dim):
        n = [1e2, 1e4, 1e8, 1e12]
        simulated = hardmax_curve(n, dim, replicates=800 // dim, seed=7)
        z = (simulated.simulated - hardmax_exact(n, dim=dim)) / simulated.standard_error
        assert np.abs(z).max() < 3.5
        assert simulated.certified.min() > 0.9999

    @pytest.mark.parametrize("queries", ["population", "tokens"])
    def test_plane_against_all_keys(self, queries):
        rng = np.random.default_rng(8)
        squares = []
        for _ in range(1000):
            x = rng.standard_normal((200, 2))
            if queries == "tokens":
                mean = x[np.argmax(x @ x.T, axis=1)].mean(axis=0)
            else:
                mean = planar_mean(x)
            squares.append(float(mean @ mean))
        simulated = hardmax_curve([200], 2, replicates=1000, seed=9, queries=queries)
        gap = simulated.samples[0].mean() - np.mean(squares)
        error = math.hypot(np.std(squares), simulated.samples[0].std()) / math.sqrt(1000)
        assert abs(gap) < 3.5 * error

    def test_more_tokens_than_are_asked(self):
        # with at most 64 of the drawn tokens asking, the estimate stays unbiased
        rng = np.random.default_rng(10)
        squares = []
        for _ in range(600):
            x = rng.standard_normal((150, 3))
            squares.append(float(np.sum(x[np.argmax(x @ x.T, axis=1)].mean(axis=0) ** 2)))
        draws = [squared_mean(150.0, 3, 256, "tokens", rng, most_queries=64) for _ in range(600)]
        sample = np.array([square for square, _ in draws])
        error = math.hypot(np.std(squares), sample.std()) / math.sqrt(600)
        assert abs(sample.mean() - np.mean(squares)) < 3.5 * error

    def test_drawn_keys_have_the_law_of_the_outer_keys(self):
        rng = np.random.default_rng(12)
        drawn, counts, radius = [], [], 0.0
        for _ in range(200):
            keys, radius = draw_outer_keys(1000.0, 3, rng)
            drawn.append(keys)
            counts.append(len(keys))
        norms = np.linalg.norm(np.vstack(drawn), axis=1)
        outside = stats.chi(3).sf(radius)
        assert norms.min() >= radius
        law = stats.chi(3)
        uniform = law.sf(norms) / outside
        assert stats.kstest(uniform, "uniform").pvalue > 1e-3
        spread = math.sqrt(1000 * outside * (1 - outside) / 200)
        assert abs(np.mean(counts) - 1000 * outside) < 3.5 * spread
        # uniform directions: every coordinate of a point of the sphere in R^3 is uniform
        heights = (np.vstack(drawn)[:, 0] / norms + 1) / 2
        assert stats.kstest(heights, "uniform").pvalue > 1e-3


class TestFit:
    def test_recovers_a_logarithmic_law(self):
        n = np.round(np.geomspace(1e3, 1e12, 8))
        base = hardmax_curve(n, replicates=200)
        factor = np.log(base.sizes) ** -0.7 / base.simulated
        ideal = dataclasses.replace(
            base,
            simulated=base.simulated * factor,
            standard_error=base.standard_error * factor,
            samples=base.samples * factor[:, None],
        )
        fit = ideal.fit()
        assert fit.exponent == pytest.approx(0.7, rel=1e-12)
        assert fit.low < 0.7 < fit.high

    @pytest.mark.parametrize("dim", [1, 2])
    def test_interval_contains_the_exact_slope_of_the_range(self, dim):
        n = [1e2, 1e4, 1e8, 1e12]
        curve = hardmax_curve(n, dim, replicates=20_000 if dim == 1 else 400, seed=1)
        fit = curve.fit(resamples=300, level=0.999)
        assert fit.predicted is not None
        assert fit.low < fit.predicted < fit.high
        assert fit.asymptotic == hardmax_exponent(dim)

    def test_errors(self):
        with pytest.raises(InputError, match="one size"):
            hardmax_curve([50], replicates=20).fit()
        with pytest.raises(InputError, match=r"level is 1\.5"):
            hardmax_curve([50, 500], replicates=20).fit(level=1.5)


class TestCurve:
    def test_gathers_everything(self):
        curve = hardmax_curve([10, 1e6], replicates=50, seed=2)
        np.testing.assert_array_equal(curve.exact, hardmax_exact([10, 1e6]))
        np.testing.assert_array_equal(curve.leading, hardmax_leading([10, 1e6]))
        np.testing.assert_array_equal(curve.table()["simulated"], curve.simulated)
        assert "E|mean|, d = 1" in repr(curve)

    def test_tokens_in_more_dimensions_have_no_exact_value(self):
        curve = hardmax_curve([20, 100], dim=2, replicates=20, seed=2, queries="tokens")
        assert curve.exact is None
        assert curve.table()["exact"].isna().all()
        assert curve.fit(20).predicted is None

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"sizes": [1, 10]}, "n = 1; .* at least 2"),
            ({"dim": 0}, "dim is 0"),
            ({"scale": 0.0}, r"scale is 0\.0"),
            ({"queries": "keys"}, "queries is 'keys'; it must be one of population, tokens"),
            ({"replicates": 1}, "replicates is 1; a standard error needs at least 2"),
            ({"seed": -1}, "seed is -1"),
        ],
    )
    def test_errors(self, arguments, message):
        with pytest.raises(InputError, match=message):
            hardmax_curve(**{"sizes": [10, 100], **arguments})
