"""What keeps a rate from being trusted, with the numbers behind it."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.math.statistics import Rate, fit_rate
from esscher.math.statistics.fit import replicate_tail
from tests.math.statistics.curves import SIZES, noisy, power_curve


def reason(rate: Rate, words: str) -> str:
    result = [text for text in rate.reasons if words in text]
    assert len(result) == 1, rate.reasons
    assert not rate.trusted
    return result[0]


def test_a_good_curve_is_trusted() -> None:
    """The test of straightness alone rejects 5%, so that one of ten may go: 4 would be 1e-3."""
    rates = [fit_rate(power_curve(0.5, 100, seed), SIZES, seed=seed) for seed in range(10)]
    assert sum(rate.trusted for rate in rates) >= 7
    assert all(rate.trusted == (not rate.reasons) for rate in rates)


def test_few_sizes_and_a_short_range() -> None:
    sizes = np.array([100.0, 150, 200])
    rate = fit_rate(power_curve(0.5, 100, 1, "small", sizes), sizes)
    assert "3 sizes" in reason(rate, "sizes; it takes")
    assert "factor of 2 only" in reason(rate, "spans")


def test_heavy_tails_need_more_replicates() -> None:
    """Tail index 1.4, k = 0.71: the mean is worth something from 10^(1/0.29) = 3,000 on.

    The tail of 40 replicates shows that in 7 of 10 curves; fewer than 6 of 20 have probability
    1e-4.
    """
    flagged = []
    for seed in range(20):
        rate = fit_rate(power_curve(0.4, 40, seed, "pareto"), SIZES, seed=seed)
        flagged += [text for text in rate.reasons if "tail of the errors" in text]
        assert rate.trusted == (not rate.reasons)
    assert len(flagged) >= 6
    assert all("k-hat" in text and "from " in text for text in flagged)
    tail = replicate_tail(power_curve(0.4, 4000, 2, "pareto"))
    assert tail is not None
    assert abs(tail.k - 1 / 1.4) < 4 * tail.standard_error
    assert abs(tail.without_prior - 1 / 1.4) < 4 * tail.standard_error


def test_light_tails_do_not() -> None:
    flagged = [
        any("tail" in text for text in fit_rate(power_curve(0.4, 25, s), SIZES, seed=s).reasons)
        for s in range(20)
    ]
    assert sum(flagged) <= 4


def test_rising_errors() -> None:
    expected = SIZES**-0.5 * np.where(SIZES >= 512, 2.0, 1.0)
    rate = fit_rate(noisy(expected, SIZES, 60, 1, "small"), SIZES)
    assert "from n = 256 to 512" in reason(rate, "rises from")


def test_noise_is_no_rise() -> None:
    """1% over all steps of 30 flat curves; more than 3 would have probability 2e-4."""
    flat = [fit_rate(power_curve(0.0, 20, s, "lognormal"), SIZES, seed=s) for s in range(30)]
    assert sum(any("rises from" in text for text in rate.reasons) for rate in flat) <= 3


@pytest.mark.parametrize(("burn_in", "share"), [(100, "2 of 7"), (1e6, "all of 7")])
def test_burn_in(burn_in: float, share: str) -> None:
    errors = power_curve(0.5, 60, 1, "small")
    assert share in reason(fit_rate(errors, SIZES, burn_in=burn_in), "burn-in")
    assert not any("burn-in" in t for t in fit_rate(errors, SIZES, burn_in=32).reasons)


def test_the_burn_in_is_about_the_constant() -> None:
    """No reason where the predicted slope has settled; a reason where it moves."""
    errors = power_curve(0.5, 60, 1, "small")
    settled = fit_rate(errors, SIZES, burn_in=1e6, predicted=SIZES**-0.5)
    assert not any("burn-in" in text for text in settled.reasons)
    assert settled.predicted == pytest.approx(0.5)
    moving = fit_rate(errors, SIZES, burn_in=1e6, predicted=1 / np.log(SIZES))
    assert "the rate still moves too" in reason(moving, "burn-in")
    assert "constant holds" in reason(fit_rate(errors, SIZES, burn_in=1e6), "burn-in")


def test_an_exponent_may_be_trusted_where_the_law_is_undecided() -> None:
    """The range is one thing, what lies beyond another; the interval there holds the other laws."""
    rate = fit_rate(power_curve(0.5, 64, 2), SIZES, seed=2)
    assert rate.trusted
    assert rate.verdict == "undecided"
    assert not rate.extrapolates
    assert "trusted on this range; law undecided" in repr(rate)
    inside, beyond = rate.tokens_for(rate.mean[3]), rate.tokens_for(rate.mean[-1] / 10)
    assert inside.decided
    assert not inside.extrapolated
    assert beyond.extrapolated
    assert beyond.rivals == rate.selection.rivals != ()
    assert "the law is undecided" in repr(beyond)
    alone = rate.tokens_for(rate.mean[-1] / 10, law="power")
    assert alone.decided
    assert alone.n == beyond.n
    assert beyond.interval[1] == np.inf > alone.interval[1]
    # the test of straightness alone rejects 5% of straight curves: 3 of 6 would be 2e-3
    small = [fit_rate(power_curve(0.5, 100, seed, "small"), SIZES) for seed in range(6)]
    good = [one for one in small if one.extrapolates]
    assert len(good) >= 4
    assert all(one.tokens_for(one.mean[-1] / 10).decided for one in good)


def test_rounding() -> None:
    errors = 1e-5 * power_curve(0.5, 60, 1, "small")
    assert "float64" in reason(fit_rate(errors, SIZES, resolution=1e-7), "resolution")
    assert not any("resol" in t for t in fit_rate(errors, SIZES, resolution=1e-9).reasons)
    errors[:, -1] = 2.0**-20
    assert "n = 2,048" in reason(fit_rate(errors, SIZES), "same error")


def test_wide_intervals_say_what_would_help() -> None:
    rate = fit_rate(power_curve(0.5, 10, 1), SIZES)
    text = reason(rate, "interval is +-")
    needed = int(text.split("about ")[1].split(" ")[0])
    half = np.ptp(rate.interval) / 2
    assert needed == pytest.approx(10 * (half / 0.1) ** 2, abs=1)


def test_an_error_that_does_not_fall() -> None:
    rate = fit_rate(power_curve(0.0, 30, 1, "small"), SIZES)
    if rate.interval[0] <= 0:
        reason(rate, "contains 0")
    assert fit_rate(power_curve(0.0, 30, 3, "small"), SIZES).interval[0] < 0.05
