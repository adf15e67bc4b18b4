"""Which law a curve follows: error rates on true power laws, and bent laws that are found."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.validation import Array
from esscher.math.statistics import LAWS, Selection, fit_rate, resample, select_law
from esscher.math.statistics.laws import fit_floor, fit_two_powers
from tests.math.statistics.curves import SIZES, noisy, power_curve

WIDE = np.round(np.geomspace(1e3, 1e9, 13))
#: As large as the power part at the largest size.
FLOOR = SIZES**-0.5 + SIZES[-1] ** -0.5


def selections(
    expected: Array,
    replicates: int,
    curves: int,
    noise: str = "small",
    sizes: Array = SIZES,
    predicted: Array | None = None,
) -> list[Selection]:
    """Laws selected for simulated curves of a given expected error."""
    return [
        select_law(
            resample(noisy(expected, sizes, replicates, seed, noise), sizes, seed),
            predicted,
        )
        for seed in range(curves)
    ]


@pytest.mark.parametrize(("noise", "replicates"), [("half-normal", 16), ("pareto", 64)])
def test_true_power_laws_are_seldom_called_bent(noise: str, replicates: int) -> None:
    """The test of straightness has level 5%, of both signs; 4 binomial standard errors."""
    curves = 120
    results = selections(SIZES**-0.4, replicates, curves, noise)
    bent = sum(result.law != "power" for result in results)
    steep = sum(result.steepens for result in results)
    assert (bent + steep) / curves < 0.05 + 4 * np.sqrt(0.05 * 0.95 / curves)
    assert bent / curves < 0.05 + 2 * np.sqrt(0.05 * 0.95 / curves)


def test_a_power_law_over_a_wide_range_is_decisive() -> None:
    for result in selections(SIZES**-0.4, 100, 10):
        if result.law == "power" and not result.steepens:
            assert result.decisive
            assert result.verdict == "power"
            assert result.rivals == ()
            assert "straight" in result.evidence
            assert min(result.power.values()) > 0.8


@pytest.mark.parametrize("expected", [FLOOR, 1 / np.log(SIZES)], ids=["floor", "logarithm"])
def test_a_test_that_could_not_have_failed_decides_nothing(expected: Array) -> None:
    """With 64 replicates that scatter as much as their mean most bends are not seen, and said so.

    The limit of a floor has level 5%; more than 4 of 40 would have probability 0.05.
    """
    result = selections(expected, 64, 40, "half-normal")
    assert not any(one.verdict == "power" for one in result)
    straight = [one for one in result if one.law == "power" and not one.misfit]
    assert len(straight) > 20
    assert all("not distinguished from" in one.evidence for one in straight)
    if expected is FLOOR:
        assert sum((one.floor_share or 0.0) < 0.5 for one in result) <= 4
    # what the test says it finds is what it finds: 4 binomial standard errors
    name = "floor" if expected is FLOOR else "logarithmic"
    power = np.mean([one.power[name] for one in result])
    seen = np.mean([one.law != "power" for one in result])
    assert abs(seen - power) < 4 * np.sqrt(0.2 * 0.8 / 40)


def test_a_predicted_curve_finds_the_floor() -> None:
    """Its slope is known, so that 64 replicates are enough; its constant does not matter."""
    predicted = 3 * SIZES**-0.5
    for selection in selections(FLOOR, 64, 8, "half-normal", predicted=predicted):
        result = selection.predicted
        assert result is not None
        assert result.floor_power > 0.9
        assert not result.follows
        assert result.p_value < 0.05
        assert result.drift_interval[0] > 1
        assert "leaves the predicted curve" in result.words
    good = selections(SIZES**-0.5, 64, 8, "half-normal", predicted=predicted)
    assert sum(one.verdict == "as predicted" for one in good) >= 6
    assert all("floor" not in one.rivals for one in good if one.verdict == "as predicted")


def test_a_floor_is_found() -> None:
    """A finite reference: 5 C n^-1/2 falls to a fifth of the floor over the range."""
    sizes = np.geomspace(1e2, 1e5, 10).round()
    expected = sizes**-0.5 + 0.015
    verdicts = []
    for seed in range(12):
        errors = noisy(expected, sizes, 60, seed, "small")
        result = select_law(resample(errors, sizes, seed))
        verdicts.append(result.law)
        floor = result.laws["floor"]
        error = float(np.sqrt(floor.covariance[2][2]))
        assert abs(floor.parameters["floor"] - 0.015) < 5 * error
        assert result.decisive
    assert verdicts == ["floor"] * 12


def test_a_logarithmic_law_is_found() -> None:
    """(ln n)^-1/2 over n = 1e3 to 1e9, as hardmax has it."""
    laws = []
    for result in selections(np.log(WIDE) ** -0.5, 200, 12, sizes=WIDE):
        laws.append(result.law)
        fit = result.laws["logarithmic"]
        error = float(np.sqrt(fit.covariance[1][1]))
        assert abs(fit.parameters["exponent"] - 0.5) < 5 * error
    assert laws.count("logarithmic") >= 11
    assert "power" not in laws


#: Noise and bias of a covariance: equal at the smallest of six sizes.
BIASED = SIZES[1:] ** -0.5 + 8 / SIZES[1:]


def test_two_powers_are_found() -> None:
    """Bias/n + noise/sqrt(n) is no floor; a wrong law is decided in 1 or 2 of 100 curves."""
    sizes = SIZES[1:]
    result = selections(BIASED, 100, 12, sizes=sizes)
    assert sum(one.law == "two powers" for one in result) >= 10
    assert sum(one.verdict in ("power", "floor", "logarithmic") for one in result) <= 1
    for one in result:
        fit = one.laws["two powers"]
        left = np.array(list(fit.parameters.values())) - [1, 8]
        assert left @ np.linalg.solve(fit.covariance, left) < 25  # chi^2 of 2 degrees: 4e-6
        assert "two powers" in repr(one)
    few = selections(BIASED, 10, 12, sizes=sizes)
    decided = [sum(one.decisive for one in some) for some in (few, result)]
    assert decided[0] < decided[1]


def test_a_power_that_two_powers_describe_as_well_is_undecided() -> None:
    """Between 1/2 and 1 a short curve seldom tells; at 1/2 and at 1 they say the same."""
    short = SIZES[2:]
    equal = short**-0.5 + np.exp(np.log(short).mean() / 2) / short  # with the slope 3/4
    for expected in (short**-0.75, equal):
        result = selections(expected, 32, 8, sizes=short)
        undecided = [one for one in result if one.verdict == "undecided"]
        assert len(undecided) >= 6
        for one in undecided:
            assert "two powers" in (one.law, *one.rivals) or one.steepens
        if expected is equal:
            assert not any(one.verdict == "power" for one in result)
    for beta in (0.5, 1.0):
        result = selections(SIZES**-beta, 32, 8)
        # the test of straightness rejects 5%, that of an exponent of 1/2 or 1 another 5%
        assert sum(one.verdict == "power" for one in result) >= 6


@pytest.mark.parametrize(("half", "one"), [(1.0, 8.0), (1.0, 0.0), (0.0, 1.0), (1e-3, 5.0)])
def test_the_fit_of_two_powers_is_exact_without_noise(half: float, one: float) -> None:
    x = np.log(SIZES)
    y = np.log(half * SIZES**-0.5 + one / SIZES)
    parameters, residuals, forms = fit_two_powers(x, y, np.diag(np.linspace(0.5, 2, len(x))))
    np.testing.assert_allclose(parameters, [half, one], atol=1e-7)
    np.testing.assert_allclose(residuals, 0, atol=1e-8)
    np.testing.assert_allclose(forms @ np.ones_like(x), [half, one], atol=1e-7)  # the unit


def test_a_curve_that_steepens_is_no_bent_law() -> None:
    """Before the burn-in the local exponent rises; none of the laws does that."""
    expected = 1 / (1 + SIZES / 200) ** 0.5
    rate = fit_rate(noisy(expected, SIZES, 50, 1, "small"), SIZES)
    assert rate.law == "power"
    assert rate.selection.steepens
    assert not rate.selection.decisive
    assert "rises along n" in " ".join(rate.reasons)


def test_weights_and_parameters() -> None:
    result = select_law(resample(power_curve(0.4, 100, 1), SIZES, 1))
    assert tuple(result.laws) == LAWS
    power = result.laws["power"]
    np.testing.assert_allclose(
        power.error(SIZES), power.parameters["constant"] * SIZES ** -power.parameters["exponent"]
    )
    # The law with floor contains the power law, hence is never further away.
    assert result.laws["floor"].chi_square <= power.chi_square + 1e-6
    assert result.largest_floor is not None
    assert 0 <= result.largest_floor <= np.exp(result.laws["power"].error(SIZES)).max()
    assert "criterion" in repr(result)


@pytest.mark.parametrize("floor", [0.0, 1e-4, 0.02, 0.3])
@pytest.mark.parametrize("beta", [0.2, 0.5, 1.0])
def test_the_floor_fit_is_exact_without_noise(floor: float, beta: float) -> None:
    x = np.log(SIZES)
    y = np.log(2 * SIZES**-beta + floor)
    parameters, residuals, _ = fit_floor(x, y, np.eye(len(x)))
    np.testing.assert_allclose(parameters, [np.log(2), beta, floor], atol=2e-4)
    np.testing.assert_allclose(residuals, 0, atol=1e-5)


@pytest.mark.parametrize(("sizes", "replicates"), [(3, 50), (7, 4)])
def test_too_little_to_compare(sizes: int, replicates: int) -> None:
    errors = power_curve(0.4, replicates, 1)[:, :sizes]
    result = select_law(resample(errors, SIZES[:sizes], 0))
    assert (result.law, result.decisive, result.laws) == ("power", False, {})
    assert f"{sizes} sizes and {replicates} replicates" in result.evidence


def test_equal_replicates_are_not_compared() -> None:
    result = select_law(resample(np.tile(SIZES**-0.5, (20, 1)), SIZES, 0))
    assert not result.laws
    assert "equal" in result.evidence
