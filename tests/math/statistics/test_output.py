"""Rates print, plot and convert themselves; tokens needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.math.statistics import Rate, fit_rate
from tests.math.statistics.curves import SIZES, noisy, power_curve
from tests.show.drawn import rows, texts


def floored() -> Rate:
    """Error n^-1/2 + 0.015 for n up to 10^5, measured well."""
    sizes = np.geomspace(1e2, 1e5, 10).round()
    result = fit_rate(noisy(sizes**-0.5 + 0.015, sizes, 60, 1, "small"), sizes)
    assert result.law == "floor"
    return result


@pytest.fixture(scope="module")
def rate() -> Rate:
    fitted = fit_rate(power_curve(0.45, 60, 2), SIZES, burn_in=50)
    return replace(fitted, predicted=0.46)


def test_repr(rate: Rate) -> None:
    text = repr(rate)
    assert f"n^-{rate.exponent:.3f}" in text
    assert "60 replicates, 7 sizes" in text
    assert "predicted on this range 0.460" in text
    assert "Not trusted: 1 of 7 sizes are below the burn-in" in text
    page = rate._repr_html_()
    assert "<table" in page
    assert "Law:" in page


def test_frame(rate: Rate) -> None:
    frame = rate.table()
    assert len(frame) == 7
    np.testing.assert_allclose(frame["mean"], rate.mean)
    assert (frame["lower"] < frame["mean"]).all()


def test_plot(rate: Rate, capfd: pytest.CaptureFixture[str]) -> None:
    chart = rate.plot()
    written = texts(chart)
    low, high = rate.interval
    for words in (
        f"fit {rate.exponent:.3f} ({low:.3f} to {high:.3f})",
        "predicted on this range 0.460",
        *("mean of 60 replicates", "law undecided; exponent not to be trusted", "tokens n"),
    ):
        assert words in written
    shown = {row["n"]: row for row in rows(chart, "curve", "low")}
    assert list(shown) == list(rate.sizes)
    for i, row in enumerate(shown.values()):
        assert [row["low"], row["error"], row["high"]] == pytest.approx(
            [rate.lower[i], rate.mean[i], rate.upper[i]], rel=1e-5
        )
    # the predicted exponent starts at the fit's value at the smallest size
    drawn = [row for row in rows(chart, "curve") if "low" not in row and row["n"] == SIZES[0]]
    assert len(drawn) == 2
    assert [row["error"] for row in drawn] == pytest.approx([rate.fitted[0]] * 2, rel=1e-5)
    band = [row for row in rows(chart, "low") if "curve" not in row]
    assert all(row["low"] < row["high"] for row in band)
    assert capfd.readouterr().err == ""


def test_plot_of_bent_and_of_hardly_known_rates() -> None:
    bent, one = floored(), fit_rate(power_curve(0.4, 1, 1), SIZES)
    assert {"floor law", "floor law; exponent not to be trusted"} <= set(texts(bent.plot()))
    law = bent.selection.laws["floor"]
    for row in rows(bent.plot(), "curve"):
        if row["curve"] == "floor law":
            assert row["error"] == pytest.approx(law.error(np.array([row["n"]]))[0], rel=1e-4)
    written = texts(one.plot())
    assert f"fit {one.exponent:.3f}" in written
    assert "mean of 1 replicate" in written
    shown = rows(one.plot(), "curve", "low")
    assert [row["error"] for row in shown] == pytest.approx(list(one.mean), rel=1e-5)
    assert all(row["low"] is None for row in shown)


def test_tokens_for_an_error(rate: Rate) -> None:
    needed = rate.tokens_for(0.1)
    assert needed.n == pytest.approx((rate.constant / 0.1) ** (1 / rate.exponent))
    assert needed.interval[0] < needed.n < needed.interval[1]
    assert not needed.extrapolated
    far = rate.tokens_for(1e-3)
    assert far.extrapolated
    assert "extrapolated" in repr(far)
    assert np.ptp(np.log(far.interval)) > np.ptp(np.log(needed.interval))
    with pytest.raises(InputError, match="positive"):
        rate.tokens_for(0.0)
    with pytest.raises(InputError, match="power, logarithmic, floor, two powers"):
        rate.tokens_for(0.1, "linear")


def test_tokens_intervals_cover() -> None:
    """n for error 0.01 is 10^5 exactly; 60 curves, 3 binomial standard errors."""
    hits = []
    for seed in range(60):
        result = fit_rate(power_curve(0.4, 16, seed), SIZES, seed=seed).tokens_for(0.01, "power")
        hits.append(result.interval[0] <= 1e5 <= result.interval[1])
    assert np.mean(hits) > 0.92 - 3 * np.sqrt(0.05 * 0.95 / 60)


def test_tokens_where_the_slope_may_be_zero() -> None:
    rate = fit_rate(power_curve(0.02, 8, 2, "lognormal"), SIZES)
    assert rate.interval[0] < 0 < rate.exponent
    assert rate.tokens_for(1e-3).interval[1] == np.inf
    rising = fit_rate(power_curve(-0.3, 20, 3, "small"), SIZES)
    assert rising.tokens_for(1e-3).n == np.inf
    assert "infinitely many" in repr(rising.tokens_for(1e-3))


def test_tokens_of_bent_laws() -> None:
    bent = floored()
    below = bent.tokens_for(0.01)
    assert below.law == "floor"
    assert below.n == np.inf
    assert below.interval == (np.inf, np.inf)
    near = bent.tokens_for(0.025)
    assert near.interval[0] < 1e4 < near.interval[1]  # (1/0.01)^2
    assert near.n == pytest.approx(1e4, rel=0.3)
    sizes = np.geomspace(1e3, 1e9, 10).round()
    slow = fit_rate(noisy(np.log(sizes) ** -0.5, sizes, 100, 1, "small"), sizes)
    needed = slow.tokens_for(0.2, "logarithmic")
    assert needed.interval[0] < np.exp(25.0) < needed.interval[1]


def test_tokens_of_two_powers() -> None:
    """Bias/n + noise/sqrt(n) ends with exponent 1/2, whatever the slope on the sizes."""
    sizes, far = SIZES[1:], 131_072.0
    target = float(far**-0.5 + 8 / far)
    decided, hits = [], []
    for seed in range(6):
        result = fit_rate(noisy(sizes**-0.5 + 8 / sizes, sizes, 100, seed, "small"), sizes)
        needed = result.tokens_for(target)
        alone = result.tokens_for(target, "two powers")
        assert alone.n == pytest.approx(far, rel=0.2)
        hits.append(alone.interval[0] < far < alone.interval[1])
        assert needed.interval[0] <= alone.n <= needed.interval[1]
        decided += [needed] if needed.decided else []
    assert sum(hits) >= 4  # 95%: fewer have probability 0.002
    assert decided
    assert "law of two powers, extrapolated" in repr(decided[0])
    bent = fit_rate(noisy(sizes**-0.5 + 8 / sizes, sizes, 100, 0, "small"), sizes)
    assert "law of two powers" in texts(bent.plot())
    # a straight curve with a slope in between: the power and the two powers, both
    between = fit_rate(power_curve(0.75, 32, 1, "small"), SIZES)
    needed = between.tokens_for(between.mean[-1] / 10)
    assert not needed.decided
    power, two = (between.tokens_for(needed.error, law).interval for law in ("power", "two powers"))
    assert power[1] < two[0]
    assert needed.interval[0] <= power[0]
    assert needed.interval[1] >= two[1]


#: An error whose local exponent rises along n: none of the laws does that.
def steepening(n: Array) -> Array:
    return np.asarray((1 + n / 200) ** -0.5)


def test_where_no_law_fits_the_sizes_alone_speak() -> None:
    rate = fit_rate(noisy(steepening(SIZES), SIZES, 50, 1, "small"), SIZES)
    needed = rate.tokens_for(rate.mean[-1] / 10)
    assert rate.selection.misfit
    assert not needed.decided
    assert needed.interval == (SIZES[-1], np.inf)
    assert "no law fits" in repr(needed)
    inside = rate.tokens_for(float(steepening(np.array(700.0))))
    assert not inside.decided
    assert inside.interval == (512, 1024)
    # a law that is asked for is taken as known
    assert rate.tokens_for(rate.mean[-1] / 10, "power").decided


def test_a_predicted_curve_answers_where_no_law_does() -> None:
    """It knows where the curve goes, unless the measured errors leave it."""
    errors = noisy(steepening(SIZES), SIZES, 50, 1, "small")
    rate = fit_rate(errors, SIZES, predicted=3 * steepening(SIZES))
    assert rate.tokens_for(rate.mean[-1] / 10).interval == (SIZES[-1], np.inf)
    more = np.append(SIZES, SIZES[-1] * 4.0 ** np.arange(1, 7))
    known = replace(rate, predicted_curve=(tuple(more), tuple(3 * steepening(more))))
    needed = known.tokens_for(float(steepening(np.array(1e5))))
    assert needed.law == "predicted"
    assert needed.decided
    assert needed.extrapolated
    assert needed.interval[0] < 1e5 < needed.interval[1]
    assert needed.n == pytest.approx(1e5, rel=0.05)
    assert "predicted curve, extrapolated" in repr(needed)
    wrong = fit_rate(errors, SIZES, predicted=SIZES**-0.5)
    left = replace(wrong, predicted_curve=(tuple(more), tuple(more**-0.5))).tokens_for(needed.error)
    assert left.law == "power"
    assert not left.decided
    assert left.interval[1] == np.inf
