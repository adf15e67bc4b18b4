"""Select the law of an error curve: a power of n or of ln n, a power with a floor, or two powers.

A power law is a straight line in log-log coordinates; the others bend upwards. So the question is
asked in three steps.

1. *Is there a bend?* The curve is projected on the two directions in which the other laws leave the
   straight line, ``ln ln n`` and ``n^b``. The larger of the two, in its own standard errors, is
   compared with the same number for resampled replicates (symmetric bootstrap-t, which holds its
   level for few and for heavy-tailed replicates).
2. *No bend at 5%: could there have been one?* "Power" is decided only if its rivals are excluded at
   95%: a floor as large as the power part at the largest size (by the limit of the floor, see
   ``laws.py``), a power of ln n and the sum of two powers (by tests of the same kind, in the
   direction from the rival to the power), and only by a test that would have found them in 80% of
   cases, lest luck decides. Else the verdict is "undecided". Two powers contain the powers 1/2 and
   1. They are no rival of a power whose exponent may be 1/2, since they end with that exponent;
   nor of one that may be 1, if a part ``n^-1/2`` of half the error at the largest size is excluded.
3. *Which bend?* The laws are compared by ``chi^2 + 2 (number of parameters)`` in the metric of the
   smooth noise model, and the best of the bent ones wins. It is decided if each of the others does
   not fit or has less than 1/20 of the weight.

A curve that steepens, or that no law fits, follows none of them: nothing is decided, and no law
says where it goes.

``law`` is the law that describes the curve best, decided or not. Where a predicted curve is given,
the ratio of measured to predicted errors is tested too: it knows the slope, hence excludes a floor
with far fewer replicates. Without it the rest of the curve is taken for a power law: a curve that
should steepen, as many do before the burn-in, looks straight above a floor.

Measured on true power laws (8 to 200 replicates, light to Pareto tails): 2% are called bent. With
64 replicates whose errors scatter as much as their mean, over n = 32 to 1,024, a floor as large as
the power part is found in one curve of nine, and by its ratio to the predicted curve in 97 of 100.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from esscher.core.codec import Interval
from esscher.core.shown import plain_count
from esscher.core.validation import Array
from esscher.math.statistics.intervals import Resamples
from esscher.math.statistics.laws import (
    ENOUGH,
    EQUAL,
    LAWS,
    ROUNDING,
    SIGNIFICANCE,
    BendTest,
    LawFit,
    bend_test,
    fit_floor,
    fit_line,
    fit_two_powers,
    floor_curve,
    floor_limit,
    from_logarithm,
    law_words,
    least_squares_forms,
    smooth_covariance,
)

#: A rival with less than this share of the weight is out.
RIVAL = 0.05
#: A law is said not to fit below this probability, with the verdict that another one does.
MISFIT = 0.01
#: The rivals of a power law, in words.
WORDS = {
    "floor": "a floor of half the last error",
    "logarithmic": "a logarithmic law",
    "two powers": "two powers",
}
#: Fewest sizes and replicates for a bend to be judged.
FEWEST_SIZES, FEWEST_REPLICATES = 4, 5


@dataclass(frozen=True, kw_only=True, eq=False)
class AgainstPrediction:
    """Ratio of measured to predicted errors, which is constant if the prediction is right.

    Attributes
    ----------
    drift, drift_interval
        Factor by which the ratio grows from the smallest to the largest size, by a straight line,
        and its 95% interval; 1 if the prediction has the right shape.
    p_value
        Probability of a larger departure from a constant ratio, of either sign.
    floor_share
        Upper 95% limit of a floor on top of the predicted curve, as a share of the error at the
        largest size.
    floor_power
        Probability with which this test finds a floor as large as the rest there.
    """

    drift: float
    drift_interval: Interval
    p_value: float
    floor_share: float
    floor_power: float

    @property
    def follows(self) -> bool:
        """Whether the curve has the predicted shape, and a floor would have been seen."""
        seen = self.floor_share < EQUAL and self.floor_power >= ENOUGH
        return not self.leaves and seen

    @property
    def leaves(self) -> bool:
        """Whether the ratio of measured to predicted errors is not constant."""
        return self.p_value < SIGNIFICANCE

    @property
    def words(self) -> str:
        """The test in words."""
        low, high = self.drift_interval
        verb = "leaves" if self.leaves else "does not leave"
        return (
            f"{verb} the predicted curve (measured/predicted grows by a factor {self.drift:.3g}, "
            f"{low:.3g} to {high:.3g}; p = {self.p_value:.2g}), on top of which a floor is at most "
            f"{self.floor_share:.0%} of the last error"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """Verdict on the law of an error curve, and the evidence.

    Attributes
    ----------
    law
        Law that describes the curve: ``"power"`` unless it bends, ``"logarithmic"``, ``"floor"`` or
        ``"two powers"``.
    decisive
        Whether the other laws are ruled out.
    verdict
        The law if it is decided, else ``"as predicted"`` or ``"undecided"``. A curve that follows
        its prediction, where a floor would have been seen, is decided: but it is the prediction
        that goes on beyond the sizes, not the fitted law.
    rivals
        Laws that are not ruled out.
    laws
        The fitted laws by name; empty if there are too few sizes or replicates to compare.
    bend
        Departure from a straight line in standard errors: positive if the curve flattens, negative
        if it steepens.
    p_value
        Probability of a larger bend, of either sign, if the law were a power of n.
    largest_floor, floor_share
        Upper 95% limit of the floor, and the same as a share of the error at the largest size.
    power
        Probability with which the test of straightness finds, under this noise, a ``"floor"`` as
        large as the power part at the largest size, and a ``"logarithmic"`` law.
    predicted
        The curve against its prediction, if there is one.
    evidence
        The verdict in words.
    """

    law: str
    decisive: bool
    verdict: str
    laws: dict[str, LawFit]
    bend: float | None
    p_value: float | None
    largest_floor: float | None
    evidence: str
    rivals: tuple[str, ...]
    floor_share: float | None
    power: dict[str, float]
    predicted: AgainstPrediction | None

    @property
    def steepens(self) -> bool:
        """Whether the local exponent rises along n beyond noise, as it does before the burn-in."""
        return self.bend is not None and self.bend < 0 and (self.p_value or 0.0) < SIGNIFICANCE

    @property
    def misfit(self) -> bool:
        """Whether the curve follows none of the laws: it steepens, or none of them fits."""
        return self.steepens or (bool(self.laws) and not _fitting(self.laws))


def select_law(resamples: Resamples, predicted: Array | None = None) -> Selection:
    """Choose among the laws by the noise that resampling replicates shows.

    Parameters
    ----------
    resamples
        The curve and its noise.
    predicted
        Predicted errors at the same sizes, if known; their constant does not matter.
    """
    x = resamples.log_sizes
    variance = np.diag(resamples.covariance)
    if len(x) < FEWEST_SIZES or resamples.n_replicates < FEWEST_REPLICATES:
        return _undecided(
            f"not compared with other laws: {len(x)} sizes and {resamples.n_replicates} "
            f"replicates, but it takes {FEWEST_SIZES} and {FEWEST_REPLICATES}"
        )
    if not variance.max() > ROUNDING:
        return _undecided("not compared with other laws: all replicates are equal")
    covariance = smooth_covariance(resamples)
    fits = _fit_all(resamples, covariance)
    test = bend_test(resamples, covariance)
    share = floor_limit(resamples, covariance)
    power = {
        "floor": test.power(floor_curve(resamples, covariance, EQUAL)[0]),
        "logarithmic": test.power(np.log(fits["logarithmic"].error(np.exp(x)))),
    }
    against = None if predicted is None else against_prediction(resamples, np.log(predicted))
    # Only a curve that falls faster than a logarithmic law speaks for a power.
    faster = from_logarithm(resamples, covariance)
    logarithmic = faster.p_value if faster.bend > 0 else 1.0
    excluded, two_powers = against_two_powers(resamples, covariance)
    out = {
        "logarithmic": logarithmic < SIGNIFICANCE and power["logarithmic"] >= ENOUGH,
        "floor": share < EQUAL and power["floor"] >= ENOUGH,
        "two powers": excluded,
    }
    # A test that seldom finds a rival excludes it by luck at best. And a curve that should steepen
    # looks straight above a floor: what leaves its prediction upwards excludes none.
    if against is not None:
        out["floor"] = against.follows or (out["floor"] and not against.leaves)
    possible = {name: not there for name, there in out.items()}
    law, rivals, decisive, evidence = _verdict(fits, test.bend, test.p_value, possible)
    if test.p_value >= SIGNIFICANCE:
        evidence += (
            f"; a logarithmic law has p = {logarithmic:.2g}, two powers {two_powers}; "
            f"a floor is at most {share:.0%} of the error at n = {plain_count(np.exp(x[-1]))}; "
            f"with this noise a floor of half of it is found in {power['floor']:.0%} of cases, a "
            f"logarithmic law in {power['logarithmic']:.0%}"
        )
    straight = test.p_value >= SIGNIFICANCE
    follows = against is not None and against.follows
    if against is not None and follows and straight and not decisive:
        evidence = f"as predicted: {against.words}; without the prediction {evidence}"
    elif against is not None:
        evidence = f"{evidence}; {against.words}"
    return Selection(
        law=law,
        decisive=decisive,
        verdict=law if decisive else "as predicted" if straight and follows else "undecided",
        laws=fits,
        bend=test.bend,
        p_value=test.p_value,
        # errors are an upper bound of their own floor
        largest_floor=share
        * float(np.exp(floor_curve(resamples, covariance, min(share, 0.98))[0][-1])),
        evidence=evidence,
        rivals=rivals,
        floor_share=share,
        power=power,
        predicted=against,
    )


def against_prediction(resamples: Resamples, predicted: Array) -> AgainstPrediction:
    """Test whether measured errors keep a constant ratio to predicted ones (as logarithms)."""
    covariance = smooth_covariance(resamples)
    test = bend_test(resamples, covariance, predicted)
    x = resamples.log_sizes
    line = least_squares_forms(np.stack([np.ones_like(x), x], axis=1), covariance)[1:]
    form = line * (x[-1] - x[0])
    value, low, high = resamples.intervals(form, 1 - SIGNIFICANCE)
    moved = float(line[0] @ predicted * (x[-1] - x[0]))
    drift, least, most = (float(np.exp(end[0] - moved)) for end in (value, low, high))
    return AgainstPrediction(
        drift=drift,
        drift_interval=(least, most),
        p_value=test.p_value,
        floor_share=floor_limit(resamples, covariance, predicted),
        floor_power=test.power(floor_curve(resamples, covariance, EQUAL, predicted)[0]),
    )


def _undecided(evidence: str) -> Selection:
    return Selection(
        law="power",
        decisive=False,
        verdict="undecided",
        laws={},
        bend=None,
        p_value=None,
        largest_floor=None,
        evidence=evidence,
        rivals=LAWS[1:],
        floor_share=None,
        power={},
        predicted=None,
    )


def _fit_all(resamples: Resamples, covariance: Array) -> dict[str, LawFit]:
    x, y = resamples.log_sizes, resamples.log_errors
    fitted = {law: fit_line(law, x, y, covariance) for law in LAWS[:2]}
    fitted["floor"] = fit_floor(x, y, covariance)
    fitted["two powers"] = fit_two_powers(x, y, covariance)
    inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    chi_square = {law: float(r @ inverse @ r) for law, (_, r, _) in fitted.items()}
    criterion = {law: chi_square[law] + 2 * len(fitted[law][0]) for law in LAWS}
    noise = resamples.draws - resamples.log_errors
    # a bootstrap sample varies (R - 1)/R times as much as the data
    count = resamples.n_replicates
    fits = {}
    for law, (coefficients, _, forms) in fitted.items():
        names: tuple[str, ...] = ("half", "one")
        values = [float(value) for value in coefficients]
        if law != "two powers":
            names = ("constant", "exponent", "floor")[: len(coefficients)]
            values[0] = float(np.exp(values[0]))
        # Probability of a larger chi^2 under the noise of the resamples, around the fitted law.
        # Near its parameters a law is a plane; G-orthogonal projection on it is what its forms do.
        normal = forms @ np.linalg.inv(inverse) @ forms.T
        explained = noise @ forms.T
        inside = np.einsum("bi,ij,bj->b", explained, np.linalg.pinv(normal), explained)
        simulated = np.einsum("bi,ij,bj->b", noise, inverse, noise) - inside
        larger = np.sum(simulated * count / (count - 1) >= chi_square[law])
        fits[law] = LawFit(
            law=law,
            parameters=dict(zip(names, values, strict=True)),
            covariance=forms @ resamples.covariance @ forms.T,
            chi_square=chi_square[law],
            criterion=criterion[law],
            p_value=float((1 + larger) / (1 + len(simulated))),
        )
    return fits


def against_two_powers(resamples: Resamples, covariance: Array) -> tuple[bool, str]:
    """Test ``a n^-1/2 + b n^-1`` against a single power.

    Returns
    -------
    tuple
        Whether two powers are no rival of the power law, and the test in words. They are none where
        they say the same: its exponent may be 1/2, or it may be 1 and a part ``n^-1/2`` of half the
        error at the largest size is excluded. Nor where the test, which must have been likely to,
        rejects them in the direction of a single power.
    """
    x, y = resamples.log_sizes, resamples.log_errors
    _, left, lines = fit_line("power", x, y, covariance)
    (half, one), other, forms = fit_two_powers(x, y, covariance)
    straight, bent = y - left, y - other
    # Where one of the two is 0 the sum can move by its constant only, else towards the other too.
    parts = np.stack([half * np.exp(-x / 2 - bent), one * np.exp(-x - bent)], axis=1)
    moves = parts if half > 0 and one > 0 else np.ones((len(x), 1))
    form = least_squares_forms(np.column_stack([moves, -x]), covariance)[-1:]
    form *= 1.0 if float(form[0] @ (straight - bent)) >= 0 else -1.0
    _, low, high = resamples.intervals(lines[1:], 1 - SIGNIFICANCE)
    # as for a floor: one-sided
    largest = half + float(
        resamples.intervals(forms[:1], 1 - 2 * SIGNIFICANCE)[2][0] - forms[0] @ y
    )
    slow = largest * float(np.exp(-x[-1] / 2 - bent[-1]))
    if low[0] <= 0.5 <= high[0] or (low[0] <= 1 <= high[0] and slow < EQUAL):
        return True, "say the same"
    test = BendTest(resamples, form, bent)
    p_value = test.p_value if test.bend > 0 else 1.0
    rejected = p_value < SIGNIFICANCE and test.power(straight) >= ENOUGH
    return rejected, f"p = {p_value:.2g}"


def _verdict(
    fits: dict[str, LawFit], bend: float, p_value: float, possible: Mapping[str, bool]
) -> tuple[str, tuple[str, ...], bool, str]:
    """Law, its rivals, whether it is decided, and why; ``possible`` are the rivals of a power."""
    seen = f"bend {bend:+.1f} standard errors, p = {p_value:.2g}"
    if bend < 0 and p_value < SIGNIFICANCE:
        return "power", (), False, f"the curve steepens, {seen}: none of the laws does"
    law, rivals, words = "power", tuple(name for name in LAWS[1:] if possible[name]), "straight"
    if p_value < SIGNIFICANCE:
        best, *others = sorted((fits[name] for name in LAWS[1:]), key=lambda fit: fit.criterion)
        # not 0 where the exponential underflows: its inverse is printed
        ratios = {
            fit.law: max(float(np.exp((best.criterion - fit.criterion) / 2)), 1e-300)
            for fit in others
        }
        law, words = best.law, "not straight"
        rivals = tuple(
            fit.law
            for fit in others
            if ratios[fit.law] / (1 + ratios[fit.law]) >= RIVAL and fit.p_value >= MISFIT
        )
        seen += f"; {law} " + ", ".join(
            f"{1 / ratio:.3g} times as likely as {name}" for name, ratio in ratios.items()
        )
    fitting = _fitting(fits)
    if not fitting:
        return law, (), False, f"{words}, {seen}; but no law fits, p = {fits[law].p_value:.2g}"
    if law not in fitting:
        rivals = tuple(dict.fromkeys((*rivals, *(name for name in fitting if name != law))))
    if not rivals:
        return law, (), True, f"{words}, {seen}"
    there = " or ".join(
        WORDS[name] if law == "power" else f"a {law_words(name)}" for name in rivals
    )
    return law, rivals, False, f"undecided: {law}, not distinguished from {there} ({seen})"


def _fitting(fits: Mapping[str, LawFit]) -> list[str]:
    """Laws that are not rejected outright."""
    return [name for name, fit in fits.items() if fit.p_value >= MISFIT]
