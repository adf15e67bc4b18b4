"""Fitted rates: exact slopes, invariances, what is refused and what is only distrusted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esscher.core.errors import InputError
from esscher.math.statistics import fit_rate
from tests.math.statistics.curves import SIZES, noisy, power_curve


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.3])
def test_a_power_law_without_noise_is_found_exactly(beta: float) -> None:
    factors = np.array([[0.9], [1.0], [1.1], [0.7], [1.3]])
    rate = fit_rate(3.0 * factors * SIZES**-beta, SIZES)
    assert rate.exponent == pytest.approx(beta, abs=1e-12)
    assert rate.constant == pytest.approx(3.0, rel=1e-12)
    # All replicates have the same slope: it is known, the constant is not.
    np.testing.assert_allclose(rate.interval, beta, atol=1e-9)
    assert rate.constant_interval[0] < 3.0 < rate.constant_interval[1]
    np.testing.assert_allclose(rate.fitted, 3.0 * SIZES**-beta)


@settings(max_examples=15, deadline=None)
@given(
    st.floats(1e-6, 1e6),
    st.integers(0, 10**6),
    st.sampled_from(["half-normal", "pareto"]),
)
def test_units_of_the_error_do_not_matter(unit: float, seed: int, noise: str) -> None:
    errors = power_curve(0.4, 12, seed, noise)
    one = fit_rate(errors, SIZES)
    other = fit_rate(unit * errors, SIZES)
    assert other.exponent == pytest.approx(one.exponent, abs=1e-9)
    np.testing.assert_allclose(other.interval, one.interval, atol=1e-7)
    assert other.constant == pytest.approx(unit * one.constant, rel=1e-8)
    assert other.law == one.law


@settings(max_examples=15, deadline=None)
@given(st.floats(-2, 2), st.integers(2, 50), st.integers(0, 10**6))
def test_a_power_of_n_adds_to_the_exponent(power: float, stretch: int, seed: int) -> None:
    errors = power_curve(0.4, 12, seed)
    one = fit_rate(errors, SIZES)
    steeper = fit_rate(errors * SIZES**-power, SIZES)
    assert steeper.exponent == pytest.approx(one.exponent + power, abs=1e-9)
    np.testing.assert_allclose(steeper.interval, np.array(one.interval) + power, atol=1e-7)
    # Multiplying all sizes leaves the slope and moves the constant.
    stretched = fit_rate(errors, stretch * SIZES)
    assert stretched.exponent == pytest.approx(one.exponent, abs=1e-9)
    expected = one.constant * stretch**one.exponent
    assert stretched.constant == pytest.approx(expected, rel=1e-8)


def test_the_result_depends_on_data_and_seed_alone() -> None:
    errors = power_curve(0.4, 16, 1)
    one, same, other = (fit_rate(errors, SIZES, seed=seed) for seed in (5, 5, 6))
    assert one.interval == same.interval
    assert one.selection.p_value == same.selection.p_value
    assert one.interval != other.interval
    assert one.exponent == other.exponent


def test_weights_follow_the_noise() -> None:
    """Where the noise grows with n, the quiet sizes count for more, and the fit gains."""
    gap = []
    for seed in range(60):
        loud = power_curve(0.4, 12, seed, "lognormal")
        mix = (SIZES / SIZES[-1]) ** 0.8
        errors = SIZES**-0.4 * (0.98 * mix * (loud * SIZES**0.4 - 1) + 1)
        rate = fit_rate(errors, SIZES)
        assert rate.weights[0] > rate.weights[-1]
        equal = -np.polyfit(np.log(SIZES), np.log(errors.mean(axis=0)), 1)[0]
        gap.append((rate.exponent - 0.4, equal - 0.4))
    ours, equal_weights = np.sqrt(np.mean(np.square(gap), axis=0))
    assert ours < 0.85 * equal_weights


def test_slope_of_uses_the_weights_of_the_fit() -> None:
    errors = power_curve(0.4, 12, 3, "lognormal")
    rate = fit_rate(errors, SIZES)
    assert rate.slope_of(rate.mean) == pytest.approx(rate.exponent, abs=1e-12)
    assert rate.slope_of(SIZES**-0.3) == pytest.approx(0.3)
    with pytest.raises(InputError, match="one for each"):
        rate.slope_of([1.0, 2.0])


def test_intervals_shrink_with_replicates_and_grow_with_level() -> None:
    errors = power_curve(0.5, 800, 2)
    few, many = fit_rate(errors[:50], SIZES), fit_rate(errors, SIZES)
    ratio = np.ptp(few.interval) / np.ptp(many.interval)
    assert 3 < ratio < 5.5  # 4, up to the noise of a standard error from 50 replicates
    narrow = fit_rate(errors, SIZES, level=0.5)
    assert narrow.interval[0] > many.interval[0]
    assert narrow.interval[1] < many.interval[1]


def test_means_come_with_standard_errors() -> None:
    errors = power_curve(0.5, 400, 4)
    rate = fit_rate(errors, SIZES)
    np.testing.assert_allclose(rate.mean, errors.mean(axis=0))
    expected = errors.std(axis=0, ddof=1) / 20
    np.testing.assert_allclose(rate.mean_standard_error, expected, rtol=1e-9)


@pytest.mark.parametrize("replicates", [1, 2, 3, 4])
def test_hardly_any_replicates_still_give_a_number(replicates: int) -> None:
    rate = fit_rate(power_curve(0.5, replicates, 1), SIZES)
    assert np.isfinite(rate.exponent)
    assert not rate.trusted
    if replicates == 1:
        assert rate.interval == (None, None)
    else:
        assert rate.interval[0] < rate.exponent < rate.interval[1]


def test_two_sizes_are_enough_for_a_number() -> None:
    rate = fit_rate(power_curve(0.5, 20, 1, sizes=SIZES[:2]), SIZES[:2])
    assert np.isfinite(rate.exponent)
    assert any("2 sizes" in reason for reason in rate.reasons)
    ratio = rate.mean[0] / rate.mean[1]
    assert rate.exponent == pytest.approx(np.log(ratio) / np.log(SIZES[1] / SIZES[0]))


def test_zero_errors_are_left_out_and_said() -> None:
    errors = power_curve(0.5, 20, 1)
    errors[:, -1] = 0.0
    errors[0, 2] = 0.0
    rate = fit_rate(errors, SIZES)
    assert rate.sizes == tuple(SIZES[:-1])
    assert "exactly 0 at n = 2,048" in rate.reasons[0]
    assert "1 of 120 errors are exactly 0" in rate.reasons[1]
    with pytest.raises(InputError, match="at least 2"):
        fit_rate(np.zeros((4, 7)), SIZES)


def test_mostly_zero_resamples_do_not_break() -> None:
    errors = noisy(SIZES**-0.5, SIZES, 5, 1, "half-normal")
    errors[:2] = 0.0
    rate = fit_rate(errors, SIZES)
    assert np.isfinite(rate.exponent)
    assert not rate.trusted


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"errors": np.ones(7)}, r"shape \(7,\)"),
        ({"errors": np.ones((3, 6))}, "7 sizes"),
        ({"errors": np.ones((0, 7))}, "at least one replicate"),
        ({"errors": np.full((3, 7), np.nan)}, "replicate 0 at n = "),
        ({"errors": -np.ones((3, 7))}, "at least 0"),
        ({"errors": [["a"] * 7]}, "not an array"),
        ({"sizes": SIZES[::-1]}, "strictly increasing"),
        ({"level": 95}, "between 0 and 1"),
        ({"burn_in": -1}, "burn_in"),
        ({"resolution": -1}, "resolution"),
        ({"seed": -1}, "seed"),
    ],
)
def test_unusable_arguments_are_named(change: dict[str, object], match: str) -> None:
    arguments: dict[str, object] = {"errors": np.ones((3, 7)), "sizes": SIZES} | change
    with pytest.raises(InputError, match=match):
        fit_rate(**arguments)  # type: ignore[arg-type]
