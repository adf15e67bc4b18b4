"""Hardmax: exact values against closed forms, high-precision integrals and brute force."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from esscher.core.errors import InputError
from esscher.math.theory import hardmax as module
from esscher.math.theory.hardmax import hardmax_exact, hardmax_leading
from tests.math.hardmax_by_hand import brute_means, planar_mean


class TestExactOneDimension:
    def test_two_tokens_are_their_average(self):
        # (X1 + X2)/2 is N(0, 1/2)
        assert hardmax_exact([2])[0] == pytest.approx(1 / math.sqrt(math.pi), rel=1e-13)

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
        gaps = [module._mean_gap(float(i), float(n - i), float(n)) for i in k]
        expected = float(weights @ gaps)
        assert hardmax_exact([n], queries="tokens")[0] == pytest.approx(expected, rel=1e-11)

    def test_leading_term_is_approached_slowly_and_from_below(self):
        n = np.array([10, 1e3, 1e6, 1e12, 1e30, 1e100, 1e200])
        ratio = hardmax_leading(n) / hardmax_exact(n)
        assert np.all(np.diff(ratio) > 0)
        assert np.all(ratio < 1)
        # 4% off at a thousand tokens, still 2% off at 1e12
        assert ratio[1] == pytest.approx(0.9614, abs=1e-4)
        assert ratio[3] == pytest.approx(0.9808, abs=1e-4)
        assert ratio[-1] > 0.997


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
        assert abs(products.mean() - module.maxima_covariance(20.0, theta)) < 3.5 * error

    @pytest.mark.parametrize(("dim", "tolerance"), [(2, 3e-3), (3, 1e-3), (5, 6e-3)])
    def test_leading_constant(self, dim, tolerance):
        ratio = hardmax_leading([1e300], dim=dim) / hardmax_exact([1e300], dim=dim)
        assert ratio[0] == pytest.approx(1.0, abs=tolerance)

    def test_tokens_have_no_exact_value(self):
        with pytest.raises(InputError, match=r"dimension 3.*hardmax_curve"):
            hardmax_exact([10], queries="tokens", dim=3)
