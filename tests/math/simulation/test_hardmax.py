"""Hardmax, simulated: against exact values and all keys drawn; fits and curves."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from esscher.core.errors import InputError
from esscher.math.simulation.hardmax import (
    draw_outer_keys,
    fit_logarithmic,
    hardmax_curve,
    hardmax_simulated,
    squared_mean,
)
from esscher.math.theory.hardmax import hardmax_exact, hardmax_exponent, hardmax_leading
from tests.math.hardmax_by_hand import brute_means, planar_mean

HUGE = [1e2, 1e3, 1e6, 1e9, 1e12, 1e15]


class TestSimulation:
    @pytest.mark.parametrize("queries", ["population", "tokens"])
    def test_one_dimension_against_exact(self, queries):
        simulated = hardmax_simulated(HUGE, 20_000, 1, queries=queries)
        z = (simulated.value - hardmax_exact(HUGE, queries=queries)) / simulated.standard_error
        assert np.abs(z).max() < 3.5
        assert simulated.statistic == "mean"
        assert np.all(simulated.certified == 1)

    def test_beyond_the_integers(self):
        simulated = hardmax_simulated([1e25], 20_000, 2)
        assert abs(simulated.value - hardmax_exact([1e25])) < 3.5 * simulated.standard_error

    def test_the_law_itself_not_only_its_mean(self):
        # n = 150 draws extremes, brute force draws tokens
        population, tokens = brute_means(150, 4000, np.random.default_rng(3))
        for queries, sample in (("population", population), ("tokens", tokens)):
            simulated = hardmax_simulated([150], 4000, 4, queries=queries).samples[0]
            assert stats.ks_2samp(simulated, sample).pvalue > 1e-3

    @pytest.mark.parametrize("dim", [2, 3])
    def test_more_dimensions_against_exact(self, dim):
        n = [1e2, 1e4, 1e8, 1e12]
        simulated = hardmax_simulated(n, 800 // dim, 7, dim=dim)
        z = (simulated.value - hardmax_exact(n, dim=dim)) / simulated.standard_error
        assert np.abs(z).max() < 3.5
        assert simulated.statistic == "rms"
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
        simulated = hardmax_simulated([200], 1000, 9, dim=2, queries=queries)
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

    def test_certified_queries_need_no_other_key(self):
        rng = np.random.default_rng(13)
        keys = rng.standard_normal((5000, 3))
        radius = 3.5
        outer = keys[np.linalg.norm(keys, axis=1) > radius]
        units = rng.standard_normal((2000, 3))
        units /= np.linalg.norm(units, axis=1, keepdims=True)
        best = (units @ outer.T).max(axis=1)
        sure = best >= radius
        assert 0.5 < sure.mean() < 1
        np.testing.assert_array_equal(best[sure], (units @ keys.T).max(axis=1)[sure])

    def test_certificate_says_when_the_dimension_is_too_high(self):
        low = hardmax_simulated([1e3, 1e10], 4, 0, dim=3, directions=64)
        high = hardmax_simulated([10], 100, 0, dim=12, directions=64)
        assert low.certified.min() > 0.999
        assert high.certified[0] == 1
        keys, radius = draw_outer_keys(1e10, 12, np.random.default_rng(0))
        assert (keys[:, 0] >= radius).sum() < 5  # most directions have no key beyond r0

    def test_function_of_configuration_and_seed(self):
        whole = hardmax_simulated([50, 1e5], 10, 3, dim=2)
        part = hardmax_simulated([1e5], 10, 3, dim=2)
        np.testing.assert_array_equal(whole.samples[1], part.samples[0])
        other = hardmax_simulated([1e5], 10, 4, dim=2)
        assert not np.array_equal(other.samples, part.samples)

    def test_scale(self):
        for dim in (1, 2):
            one = hardmax_simulated([100], 20, 0, dim=dim)
            three = hardmax_simulated([100], 20, 0, dim=dim, scale=3.0)
            np.testing.assert_allclose(three.value, 3 * one.value)
            np.testing.assert_allclose(three.standard_error, 3 * one.standard_error)


class TestFit:
    def test_recovers_a_logarithmic_law(self):
        n = np.geomspace(1e3, 1e12, 8)
        base = hardmax_simulated(np.round(n), 200, 0)
        factor = np.log(base.sizes) ** -0.7 / base.value
        ideal = dataclasses.replace(
            base,
            value=base.value * factor,
            standard_error=base.standard_error * factor,
            samples=base.samples * factor[:, None],
        )
        fit = fit_logarithmic(ideal)
        assert fit.exponent == pytest.approx(0.7, rel=1e-12)
        assert fit.low < 0.7 < fit.high

    @pytest.mark.parametrize("dim", [1, 2])
    def test_interval_contains_the_exact_slope_of_the_range(self, dim):
        simulated = hardmax_simulated(
            [1e2, 1e4, 1e8, 1e12], 20_000 if dim == 1 else 400, 1, dim=dim
        )
        fit = fit_logarithmic(simulated, resamples=300, level=0.999)
        assert fit.predicted is not None
        assert fit.low < fit.predicted < fit.high
        assert fit.asymptotic == hardmax_exponent(dim)
        assert "asymptotic" in repr(fit)

    def test_tokens_in_the_plane_have_no_prediction(self):
        fit = fit_logarithmic(hardmax_simulated([50, 500], 20, 1, dim=2, queries="tokens"), 20)
        assert fit.predicted is None

    def test_errors(self):
        simulated = hardmax_simulated([50, 500], 20, 1)
        with pytest.raises(InputError, match="one size"):
            fit_logarithmic(hardmax_simulated([50], 20, 1))
        with pytest.raises(InputError, match=r"level is 1\.5"):
            fit_logarithmic(simulated, level=1.5)


class TestCurve:
    def test_gathers_everything(self):
        curve = hardmax_curve([10, 1e6], replicates=50, seed=2)
        assert curve.exact is not None
        np.testing.assert_array_equal(curve.exact, hardmax_exact([10, 1e6]))
        np.testing.assert_array_equal(curve.leading, hardmax_leading([10, 1e6]))
        np.testing.assert_array_equal(curve.simulated, hardmax_simulated([10, 1e6], 50, 2).value)
        frame = curve.table()
        assert list(frame.columns) == [
            "n",
            "leading",
            "exact",
            "simulated",
            "standard_error",
            "certified",
        ]
        assert curve.to_dict()["exact"] == curve.exact.tolist()
        assert "E|mean|, d = 1" in repr(curve)
        assert "1e+06" in repr(curve)
        assert "<table" in curve._repr_html_()
        assert curve.fit(20).asymptotic == 0.5

    def test_more_dimensions(self):
        curve = hardmax_curve([100, 1e4], dim=3, replicates=20, seed=2)
        assert curve.statistic == "rms"
        assert curve.exact is not None
        assert "sqrt(E|mean|^2), d = 3" in repr(curve)

    def test_tokens_in_more_dimensions_have_no_exact_value(self):
        curve = hardmax_curve([20, 100], dim=2, replicates=20, seed=2, queries="tokens")
        assert curve.exact is None
        assert curve.to_dict()["exact"] is None
        assert curve.table()["exact"].isna().all()
        assert "exact" not in repr(curve)

    def test_is_frozen(self):
        curve = hardmax_curve([20], replicates=2)
        with pytest.raises(dataclasses.FrozenInstanceError):
            curve.exact = None

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"sizes": [1, 10]}, "n = 1; .* at least 2"),
            ({"sizes": [10, 10]}, "strictly increasing"),
            ({"sizes": [10.5]}, "whole numbers"),
            ({"dim": 0}, "dim is 0"),
            ({"dim": 1.5}, r"dim is 1\.5"),
            ({"scale": 0.0}, r"scale is 0\.0"),
            ({"scale": math.inf}, "scale is inf"),
            ({"queries": "keys"}, "queries is 'keys'; it must be one of population, tokens"),
            ({"replicates": 1}, "replicates is 1; a standard error needs at least 2"),
            ({"replicates": 0}, "replicates is 0"),
            ({"seed": -1}, "seed is -1"),
        ],
    )
    def test_errors(self, arguments, message):
        with pytest.raises(InputError, match=message):
            hardmax_curve(**{"sizes": [10, 100], **arguments})
