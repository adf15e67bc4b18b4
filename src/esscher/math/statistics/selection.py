"""Select the law of an error curve: a power of n, a power of ln n, or a power with a floor.

A power law is a straight line in log-log coordinates; the two others bend upwards. So the question
is asked in two steps.

1. *Is there a bend?* The curve is projected on the two directions in which the other laws leave the
   straight line, ``ln ln n`` and ``n^b``. The larger of the two, in its own standard errors, is
   compared with the same number for resampled replicates (symmetric bootstrap-t, which holds its
   level for few and for heavy-tailed replicates). No bend at 5%: the verdict is "power".
2. *Which bend?* The laws are compared by ``chi^2 + 2 (number of parameters)`` in the metric of the
   smooth noise model, and the better of the two bent ones wins.

A verdict is decisive if its rivals are out: "power" if the same kind of test finds that the curve
leaves the logarithmic law in the direction ``ln n``, a bent law if the other one does not fit or
has less than 1/20 of the weight. A floor can never be excluded by a curve that does not bend, only
bounded; ``largest_floor`` is the bound.

Measured on true power laws (8 to 200 replicates, light to Pareto tails): 3% are called bent. A
floor or a logarithm is found when it bends the curve by a few times its noise, which with errors
that scatter as much as their mean takes hundreds of replicates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esscher.core.validation import Array
from esscher.math.statistics.laws import LAWS, LawFit, fit_floor, fit_line, linear_design
from esscher.math.statistics.noise import ROUNDING, least_squares_forms, smooth_covariance
from esscher.math.statistics.records import SelectedLaw
from esscher.math.statistics.resampling import Resamples

#: Significance of the test of straightness.
SIGNIFICANCE = 0.05
#: A rival with less than this share of the weight is out.
RIVAL = 0.05
#: A law is said not to fit below this probability, with the verdict that another one does.
MISFIT = 0.01
#: Fewest sizes and replicates for a bend to be judged.
FEWEST_SIZES, FEWEST_REPLICATES = 4, 5


@dataclass(frozen=True, eq=False)
class Selection:
    """Verdict on the law of an error curve, and the evidence.

    Attributes
    ----------
    law
        ``"power"``, ``"logarithmic"`` or ``"floor"``.
    decisive
        Whether the other laws are ruled out.
    fits
        The fitted laws by name; empty if there are too few sizes or replicates to compare.
    bend
        Departure from a straight line in standard errors: positive if the curve flattens, negative
        if it steepens.
    p_value
        Probability of a larger bend, of either sign, if the law were a power of n.
    largest_floor
        Upper 95% bound of the floor.
    evidence
        The verdict in words.
    """

    law: str
    decisive: bool
    fits: dict[str, LawFit]
    bend: float | None
    p_value: float | None
    largest_floor: float | None
    evidence: str

    @property
    def steepens(self) -> bool:
        """Whether the local exponent rises along n beyond noise, as it does before the burn-in."""
        return self.bend is not None and self.bend < 0 and (self.p_value or 0.0) < SIGNIFICANCE

    def record(self) -> SelectedLaw:
        """Return what is stored of it."""
        return SelectedLaw(
            law=self.law,
            decisive=self.decisive,
            bend=self.bend,
            p_value=self.p_value,
            largest_floor=self.largest_floor,
            evidence=self.evidence,
            laws={name: fit.record() for name, fit in self.fits.items()},
        )

    def __repr__(self) -> str:
        rows = [f"{self.law} law ({self.evidence})"]
        for name, fit in self.fits.items():
            values = ", ".join(f"{key} {value:.4g}" for key, value in fit.parameters.items())
            rows.append(
                f"  {name:<12} criterion {fit.criterion:8.2f}  weight {fit.weight:.3f}  "
                f"p {fit.p_value:.3f}  {values}"
            )
        return "\n".join(rows)


def select_law(resamples: Resamples) -> Selection:
    """Choose among the laws by the noise that resampling replicates shows."""
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
    bend, p_value = _bend(resamples, covariance, fits["power"].parameters["exponent"])
    largest = _largest_floor(resamples, fits["floor"])
    # Only a curve that falls faster than a logarithmic law speaks for a power.
    faster, logarithmic = _departure(resamples, covariance, "logarithmic", (-x,))
    law, decisive, evidence = _verdict(fits, bend, p_value, logarithmic if faster > 0 else 1.0)
    return Selection(law, decisive, fits, bend, p_value, largest, evidence)


def _undecided(evidence: str) -> Selection:
    return Selection("power", False, {}, None, None, None, evidence)


def _fit_all(resamples: Resamples, covariance: Array) -> dict[str, LawFit]:
    x, y = resamples.log_sizes, resamples.log_errors
    found = {law: fit_line(law, x, y, covariance) for law in LAWS[:2]}
    found["floor"] = fit_floor(x, y, covariance)
    inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    chi_square = {law: float(r @ inverse @ r) for law, (_, r, _) in found.items()}
    criterion = {law: chi_square[law] + 2 * len(found[law][0]) for law in LAWS}
    least = min(criterion.values())
    total = sum(np.exp((least - value) / 2) for value in criterion.values())
    fits = {}
    for law, (coefficients, _, forms) in found.items():
        names = ("constant", "exponent", "floor")[: len(coefficients)]
        values = [float(np.exp(coefficients[0])), *map(float, coefficients[1:])]
        fits[law] = LawFit(
            law=law,
            parameters=dict(zip(names, values, strict=True)),
            covariance=forms @ resamples.covariance @ forms.T,
            chi_square=chi_square[law],
            criterion=criterion[law],
            weight=float(np.exp((least - criterion[law]) / 2) / total),
            p_value=_misfit(resamples, inverse, forms, chi_square[law]),
        )
    return fits


def _misfit(resamples: Resamples, inverse: Array, forms: Array, chi_square: float) -> float:
    """Probability of a larger chi^2 under the noise of the resamples, around the fitted law."""
    # Near its parameters a law is a plane; G-orthogonal projection on it is what its forms do.
    noise = resamples.draws - resamples.log_errors
    normal = forms @ np.linalg.inv(inverse) @ forms.T
    explained = noise @ forms.T
    inside = np.einsum("bi,ij,bj->b", explained, np.linalg.pinv(normal), explained)
    simulated = np.einsum("bi,ij,bj->b", noise, inverse, noise) - inside
    # A bootstrap sample varies (R - 1)/R times as much as the data.
    count = resamples.n_replicates
    return _share_above(simulated * count / (count - 1), chi_square)


def _bend(resamples: Resamples, covariance: Array, exponent: float) -> tuple[float, float]:
    """Departure from a power law towards the bent laws, in standard errors, and its p-value."""
    x = resamples.log_sizes
    towards = (-np.log(x), np.exp(max(exponent, 0.05) * (x - x[-1])))
    return _departure(resamples, covariance, "power", towards)


def _departure(
    resamples: Resamples, covariance: Array, law: str, directions: tuple[Array, ...]
) -> tuple[float, float]:
    """Largest departure from a linear law in given directions, of either sign, and its p-value."""
    lines = linear_design(law, resamples.log_sizes)
    forms = np.array(
        [least_squares_forms(np.column_stack([lines, d]), covariance)[2] for d in directions]
    )
    errors = np.maximum(resamples.standard_errors(forms), np.finfo(float).tiny)
    departures = forms @ resamples.log_errors / errors
    largest = float(departures[np.argmax(np.abs(departures))])
    simulated = np.max(np.abs(resamples.deviations(forms)), axis=1)
    return largest, _share_above(simulated, abs(largest))


def _largest_floor(resamples: Resamples, fit: LawFit) -> float:
    floor, error = fit.parameters["floor"], float(np.sqrt(max(fit.covariance[2, 2], 0.0)))
    # Errors are an upper bound of their own floor.
    return min(floor + 1.645 * error, float(np.exp(resamples.log_errors.min())))


def _verdict(
    fits: dict[str, LawFit], bend: float, p_value: float, logarithmic: float
) -> tuple[str, bool, str]:
    """Law, whether it is decisive, and why; ``logarithmic`` is that law's own p-value."""
    seen = f"bend {bend:+.1f} standard errors, p = {p_value:.2g}"
    if bend < 0 and p_value < SIGNIFICANCE:
        return "power", False, f"the curve steepens, {seen}: none of the laws does"
    if p_value >= SIGNIFICANCE:
        out = logarithmic < MISFIT
        rival = "does not fit" if out else "fits too, undecided"
        words = f"straight, {seen}; a logarithmic law {rival}, p = {logarithmic:.2g}"
        return "power", out, words
    bent = sorted((fits["logarithmic"], fits["floor"]), key=lambda fit: fit.criterion)
    # not 0 where the exponential underflows: its inverse is printed
    ratio = max(float(np.exp((bent[0].criterion - bent[1].criterion) / 2)), 1e-300)
    decisive = ratio / (1 + ratio) < RIVAL or bent[1].p_value < MISFIT
    words = f"not straight, {seen}; {bent[0].law} {1 / ratio:.3g} times as likely as {bent[1].law}"
    if bent[0].p_value < MISFIT:
        decisive = False
        words += f"; but it does not fit either, p = {bent[0].p_value:.2g}"
    elif not decisive:
        words += ": undecided between them"
    return bent[0].law, decisive, words


def _share_above(simulated: Array, value: float) -> float:
    return float((1 + np.sum(simulated >= value)) / (1 + len(simulated)))
