"""Hardmax: exact values against closed forms and brute force, simulation against exact values."""

from __future__ import annotations

import dataclasses
import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from esscher.core.errors import InputError
from esscher.math.theory import hardmax_exact as exact_module
from esscher.math.theory.hardmax import (
    fit_logarithmic,
    hardmax_curve,
    hardmax_exact,
    hardmax_exponent,
    hardmax_leading,
    hardmax_simulated,
)
from esscher.math.theory.hardmax_simulation import draw_outer_keys

HUGE = [1e2, 1e3, 1e6, 1e9, 1e12, 1e15]


def brute_means(n: int, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """|mean| of hardmax attention in one dimension: population queries, token queries."""
    x = rng.standard_normal((count, n))
    top, bottom = x.max(axis=1), x.min(axis=1)
    picks = np.where(x > 0, top[:, None], bottom[:, None])
    return np.abs(top + bottom) / 2, np.abs(picks.mean(axis=1))


def planar_mean(keys: np.ndarray) -> np.ndarray:
    """Mean pick over all directions of the plane, exactly: vertices weighted by their angles."""
    order = [int(np.argmax(keys[:, 0]))]
    angle = 0.0
    total = np.zeros(2)
    while angle < 2 * math.pi:
        here = keys[order[-1]]
        gaps = here - np.delete(keys, order[-1], axis=0)
        # The pick changes from a to b at the next angle at which <a - b, u> = 0 and falls.
        crossing = (np.arctan2(gaps[:, 1], gaps[:, 0]) + math.pi / 2 - angle) % (2 * math.pi)
        step = float(crossing.min())
        end = min(angle + step, 2 * math.pi)
        total += (end - angle) * here
        nearest = int(np.argmin(crossing))
        order.append(nearest + (nearest >= order[-1]))
        angle = angle + step
    return total / (2 * math.pi)


class TestExactOneDimension:
    def test_two_tokens_are_their_average(self):
        # (X1 + X2)/2 is N(0, 1/2)
        assert hardmax_exact([2])[0] == pytest.approx(1 / math.sqrt(math.pi), rel=1e-13)

    def test_three_tokens_from_the_joint_law_of_the_extremes(self):
        def density(y: float, x: float) -> float:
            phi = stats.norm.pdf
            mass = stats.norm.cdf(x) - stats.norm.cdf(y)
            return float(abs(x + y) / 2 * 6 * mass * phi(x) * phi(y))

        # E|x + y| over y < x; the kink at y = -x is a limit of integration, not a surprise.
        above, _ = integrate.dblquad(density, 0, 9, lambda x: -x, lambda x: x, epsabs=1e-9)
        # the half plane x + y < 0 is the mirror image
        assert hardmax_exact([3])[0] == pytest.approx(2 * above, rel=1e-8)

    @pytest.mark.parametrize("n", [3, 50, 10**6, 10**15])
    def test_against_high_precision(self, n):
        with mpmath.workdps(40):

            def survival(x: mpmath.mpf) -> mpmath.mpf:
                return mpmath.erfc(x / mpmath.sqrt(2)) / 2

            def maximum_below(x: mpmath.mpf) -> mpmath.mpf:
                return mpmath.exp(n * mpmath.log1p(-survival(x)))

            def modulus_below(x: mpmath.mpf) -> mpmath.mpf:
                q = survival(x)
                return mpmath.exp(n * mpmath.log1p(-2 * q)) if q < 0.5 else mpmath.mpf(0)

            centre = math.sqrt(2 * math.log(n))
            edges = [0, *[centre * s for s in (0.4, 0.7, 0.85, 0.92, 1, 1.08, 1.2, 1.5, 2)], 25]
            modulus = mpmath.quad(lambda x: 1 - modulus_below(x), edges)
            maximum = mpmath.quad(lambda x: 1 - maximum_below(x), edges)
            maximum -= mpmath.quad(lambda x: survival(x) ** n, [0, 0.5, 2, 12])
            expected = float(modulus - maximum)
        assert hardmax_exact([n])[0] == pytest.approx(expected, rel=1e-10)

    @pytest.mark.parametrize("n", [10, 100])
    def test_against_brute_force(self, n):
        population, tokens = brute_means(n, 40_000, np.random.default_rng(n))
        for queries, sample in (("population", population), ("tokens", tokens)):
            error = sample.std() / math.sqrt(len(sample))
            assert abs(sample.mean() - hardmax_exact([n], queries=queries)[0]) < 3.5 * error

    def test_tokens_at_two(self):
        # Same sign (probability 1/2): both queries pick the token of larger modulus. Opposite
        # signs: each token picks itself, and |mean| is half the difference of the moduli.
        larger = 2 / math.sqrt(math.pi)
        smaller = 2 * math.sqrt(2 / math.pi) - larger
        expected = larger / 2 + (larger - smaller) / 4
        assert hardmax_exact([2], queries="tokens")[0] == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("n", [20, 300])
    def test_gauss_rule_for_the_signs_is_the_binomial_sum(self, n):
        k = np.arange(n + 1)
        weights = stats.binom.pmf(k, n, 0.5)
        gaps = [exact_module._mean_gap(float(i), float(n - i), float(n)) for i in k]
        expected = float(weights @ gaps)
        assert hardmax_exact([n], queries="tokens")[0] == pytest.approx(expected, rel=1e-11)

    def test_tokens_and_population_agree_at_huge_n(self):
        # K/n is 1/2 up to 1/sqrt(n), and the effect on E|mean| is of order ln(n)^2 / n.
        population, tokens = hardmax_exact([1e15]), hardmax_exact([1e15], queries="tokens")
        np.testing.assert_allclose(tokens, population, rtol=1e-10)

    def test_leading_term_is_approached_slowly_and_from_below(self):
        n = np.array([10, 1e3, 1e6, 1e12, 1e30, 1e100, 1e200])
        ratio = hardmax_leading(n) / hardmax_exact(n)
        assert np.all(np.diff(ratio) > 0)
        assert np.all(ratio < 1)
        # 4% off at a thousand tokens, still 2% off at 1e12
        assert ratio[1] == pytest.approx(0.9614, abs=1e-4)
        assert ratio[3] == pytest.approx(0.9808, abs=1e-4)
        assert ratio[-1] > 0.997

    def test_leading_formula(self):
        expected = math.log(4) * 3 / (2 * math.sqrt(2 * math.log(50)))
        assert hardmax_leading([50], scale=3)[0] == pytest.approx(expected, rel=1e-14)

    def test_scale(self):
        for queries in ("population", "tokens"):
            np.testing.assert_allclose(
                hardmax_exact([5, 70], 2.5, queries), 2.5 * hardmax_exact([5, 70], 1.0, queries)
            )


class TestExactRootMeanSquare:
    @pytest.mark.parametrize("dim", [2, 3, 5, 100])
    def test_two_tokens_are_their_average(self, dim):
        # the Steiner point of a segment is its midpoint, of covariance I/2
        assert hardmax_exact([2], dim=dim)[0] == pytest.approx(math.sqrt(dim / 2), rel=1e-6)

    def test_against_the_exact_mean_in_the_plane(self):
        rng = np.random.default_rng(5)
        squares = [np.sum(planar_mean(rng.standard_normal((100, 2))) ** 2) for _ in range(2000)]
        error = np.std(squares) / math.sqrt(len(squares))
        assert abs(np.mean(squares) - hardmax_exact([100], dim=2)[0] ** 2) < 3.5 * error

    @pytest.mark.parametrize("theta", [0.05, 0.7, 1.4, 2.5])
    def test_covariance_of_maxima(self, theta):
        rng = np.random.default_rng(6)
        x, z = rng.standard_normal((2, 50_000, 20))
        y = math.cos(theta) * x + math.sin(theta) * z
        u, v = x.max(axis=1), y.max(axis=1)
        products = (u - u.mean()) * (v - v.mean())
        error = products.std() / math.sqrt(len(products))
        assert abs(products.mean() - exact_module.maxima_covariance(20.0, theta)) < 3.5 * error

    @pytest.mark.parametrize(("dim", "tolerance"), [(2, 3e-3), (3, 1e-3), (5, 6e-3)])
    def test_leading_constant(self, dim, tolerance):
        ratio = hardmax_leading([1e300], dim=dim) / hardmax_exact([1e300], dim=dim)
        assert ratio[0] == pytest.approx(1.0, abs=tolerance)

    def test_local_exponent_tends_to_the_conjecture(self):
        for dim in (2, 3, 5):
            value = hardmax_exact([1e4, 1e8, 1e150, 1e300], dim=dim)
            near = -math.log(value[1] / value[0]) / math.log(2)
            far = -math.log(value[3] / value[2]) / math.log(2)
            assert abs(far - hardmax_exponent(dim)) < abs(near - hardmax_exponent(dim))
            assert far == pytest.approx(hardmax_exponent(dim), abs=0.02)

    def test_tokens_have_no_exact_value(self):
        with pytest.raises(InputError, match=r"dimension 3.*hardmax_simulated"):
            hardmax_exact([10], queries="tokens", dim=3)


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

    def test_more_tokens_than_are_asked(self, monkeypatch):
        # with at most 64 of the drawn tokens asking, the estimate stays unbiased
        monkeypatch.setattr("esscher.math.theory.hardmax_simulation.MOST_QUERIES", 64)
        rng = np.random.default_rng(10)
        squares = []
        for _ in range(600):
            x = rng.standard_normal((150, 3))
            squares.append(float(np.sum(x[np.argmax(x @ x.T, axis=1)].mean(axis=0) ** 2)))
        sample = hardmax_simulated([150], 600, 11, dim=3, queries="tokens").samples[0]
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
    def test_exponent(self):
        assert [hardmax_exponent(d) for d in (1, 2, 3, 5)] == [0.5, 0.75, 1.0, 1.5]

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
        frame = curve.to_frame()
        assert list(frame.columns) == [
            "n", "leading", "exact", "simulated", "standard_error", "certified",
        ]  # fmt: skip
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
        assert curve.to_frame()["exact"].isna().all()
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
