"""Tokens needed for an error, read off a fitted law."""

from __future__ import annotations

import html
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.codec import as_tree
from esscher.core.errors import InputError
from esscher.core.shown import plain_count
from esscher.core.validation import Array, as_array, as_positive
from esscher.math.statistics.intervals import LocalSlopes
from esscher.math.statistics.laws import law_words
from esscher.math.statistics.records import FittedRate, finite, finite_list, finite_numbers
from esscher.math.statistics.selection import Selection

if TYPE_CHECKING:
    import pandas as pd
    import xarray

    from esscher.show.content import Plot


#: Places at which a predicted curve is compared with an error.
GRID = 2001


@dataclass(frozen=True)
class TokensNeeded:
    """Tokens from which the error is at most ``error``.

    Attributes
    ----------
    error
        What was asked for.
    n
        Number of tokens; infinite if the law never gets there.
    interval
        Its interval, the upper end infinite where the fit does not exclude it.
    law
        Law that was solved for n; ``"predicted"`` for a predicted curve.
    extrapolated
        Whether n is outside the sizes that were measured.
    rivals
        Laws that the measurement does not exclude, if n is extrapolated by the selected law: the
        interval holds what they say as well.
    fits
        Whether the law fits the measured curve. If none does, the interval is what the measured
        sizes say without any law: it is open beyond them.
    """

    error: float
    n: float
    interval: tuple[float, float]
    law: str
    extrapolated: bool
    rivals: tuple[str, ...] = ()
    fits: bool = True

    @property
    def decided(self) -> bool:
        """Whether the law fits, and no other law says something else."""
        return self.fits and not self.rivals

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers; None for infinity (JSON-safe)."""
        plain = asdict(self) | {"n": finite(self.n), "rivals": list(self.rivals)}
        return plain | {"interval": finite_list(self.interval)}

    def __repr__(self) -> str:
        low, high = (_count(end) for end in self.interval)
        beyond = ", extrapolated" if self.extrapolated else ""
        if self.rivals:
            others = " and ".join(f"a {law_words(name)}" for name in self.rivals)
            beyond += f"; the law is undecided, and the interval allows for {others}"
        if not self.fits:
            beyond += "; but no law fits, and the interval is what the measured sizes alone say"
        return (
            f"error {self.error:.3g} takes {_count(self.n)} tokens, between {low} and {high} "
            f"({law_words(self.law)}{beyond})"
        )


def solve_line(
    log_error: float, coefficients: Array, covariance: Array, critical: float
) -> tuple[float, float, float]:
    """Solve ``a - b z = log_error`` for z, with Fieller's interval.

    The interval holds every z at which the line is compatible with the error, so that it is right
    also for a slope that is hardly known; it is then unbounded.

    Parameters
    ----------
    log_error
        Logarithm of the error.
    coefficients
        a and b.
    covariance
        Their covariance.
    critical
        Number of standard errors of the interval.
    """
    a, b = coefficients[0] - log_error, coefficients[1]
    if b <= 0:
        return math.inf, -math.inf, math.inf
    z, c2 = a / b, critical**2
    # (a - b z)^2 = c^2 Var(a - b z), a quadratic equation in z
    square = b * b - c2 * covariance[1, 1]
    half = a * b - c2 * covariance[0, 1]
    rest = a * a - c2 * covariance[0, 0]
    root = half * half - square * rest
    if not np.isfinite(square) or root < 0:
        return z, -math.inf, math.inf
    if square <= 0:
        # The slope may be 0. One end is left, if any; it bounds z from below.
        ends = sorted((half + s * math.sqrt(root)) / square for s in (1, -1)) if square else []
        below = [end for end in ends if end < z]
        return z, below[-1] if below else -math.inf, math.inf
    return z, (half - math.sqrt(root)) / square, (half + math.sqrt(root)) / square


def solve_floor(
    error: float, parameters: Array, covariance: Array, critical: float
) -> tuple[float, float, float]:
    """Solve ``C n^-b + e0 = error`` for ln n, with an interval by the delta method.

    ``parameters`` are (ln C, b, e0).
    """
    log_c, b, floor = parameters
    if b <= 0:
        return math.inf, -math.inf, math.inf
    if error <= floor:
        # without any floor it would still take this many
        return math.inf, (log_c - math.log(error)) / b, math.inf
    z = (log_c - math.log(error - floor)) / b
    gradient = np.array([1.0, -z, 1 / (error - floor)]) / b
    half = critical * math.sqrt(max(float(gradient @ covariance @ gradient), 0.0))
    reach = floor + critical * math.sqrt(max(float(covariance[2, 2]), 0.0))
    return z, z - half, math.inf if reach >= error else z + half


def solve_two_powers(
    error: float, parameters: Array, covariance: Array, critical: float
) -> tuple[float, float, float]:
    """Solve ``a n^-1/2 + b n^-1 = error`` for ln n, with Fieller's interval.

    The sum is linear in ``parameters = (a, b)``, so that the interval holds every n at which it is
    compatible with the error; its ends are roots of a polynomial in ``n^-1/2``.
    """
    a, b = (float(value) for value in parameters)
    u = (
        2 * error / (a + math.sqrt(a * a + 4 * b * error))
    )  # n^-1/2, without cancellation for small b
    a, b = a * u / error, b * u * u / error  # in units of u and of the error: a + b = 1
    scale = np.array([u, u * u]) / error
    (aa, ab), (_, bb) = critical**2 * covariance * np.outer(scale, scale)
    # (a w + b w^2 - 1)^2 = c^2 Var(a w + b w^2)
    polynomial = [b * b - bb, 2 * (a * b - ab), a * a - 2 * b - aa, -2 * a, 1.0]
    roots = np.roots(polynomial)
    ends = np.sort(roots[(np.abs(roots.imag) < 1e-9) & (roots.real > 0)].real)
    z = -2 * math.log(u)
    below, above = ends[ends <= 1], ends[ends >= 1]
    return (
        z,
        z - 2 * math.log(above[-1]) if above.size else -math.inf,
        z - 2 * math.log(below[0]) if below.size else math.inf,
    )


def solve_predicted(
    log_error: float,
    curve: tuple[Array, Array],
    ratio: float,
    line: tuple[Array, Array],
    critical: float,
) -> tuple[float, float, float] | None:
    """Solve ``ratio * predicted(n) = error`` for ln n; None where the curve does not get there.

    Parameters
    ----------
    log_error
        Logarithm of the error.
    curve
        Numbers of tokens and predicted errors; a cubic spline in log-log coordinates between them.
    ratio
        Logarithm of the ratio of measured to predicted errors.
    line
        Intercept and slope ``(a, b)`` of ``a - b ln n`` fitted to that logarithm, and their
        covariance: the interval allows for such a drift, beyond the measured sizes too.
    critical
        Number of standard errors of the interval.
    """
    x, y = np.log(curve[0]), np.log(curve[1])
    z = np.linspace(x[0], x[-1], GRID)
    predicted = scipy.interpolate.CubicSpline(x, y)(z) - log_error
    (a, b), covariance = line
    design = np.stack([np.ones_like(z), -z], axis=1)
    half = critical * np.sqrt(np.einsum("zi,ij,zj->z", design, covariance, design))
    n, low, high = (
        _crossing(z, predicted + above) for above in (ratio, a - b * z - half, a - b * z + half)
    )
    return (n, min(n, low), max(n, high)) if math.isfinite(n) else None


def _crossing(z: Array, values: Array) -> float:
    """Where values fall below 0 for good: ``-inf`` if before the first z, ``inf`` if never."""
    above = np.flatnonzero(values > 0)
    if not above.size:
        return -math.inf
    i = int(above[-1])
    if i == len(z) - 1:
        return math.inf
    return float(z[i] + (z[i + 1] - z[i]) * values[i] / (values[i] - values[i + 1]))


def tokens_from_log(log_n: float) -> float:
    """``exp(log_n)``, at least one token, infinite beyond the range of floats."""
    return max(1.0, math.exp(log_n)) if log_n < 709 else math.inf


def _count(n: float) -> str:
    return plain_count(math.ceil(n) if math.isfinite(n) else n)


# A fitted rate: error ~ C n^-beta, with intervals, the law it follows, and whether to trust it.


@dataclass(frozen=True, eq=False, repr=False)
class Rate:
    """Power law fitted to measured errors: error ~ ``constant * n**-exponent``.

    Attributes
    ----------
    exponent, interval, standard_error
        The positive beta, its interval from resampled replicates, and its standard error.
    constant, constant_interval
        The factor in front.
    summary
        ``"mean"`` or ``"median"``: which summary of the replicates was fitted.
    level
        Level of all intervals.
    sizes
        Numbers of tokens of the fit.
    mean, mean_standard_error, median, median_standard_error
        Both summaries of the replicates at these sizes.
    lower, upper
        Interval of the summary that was fitted.
    weights
        Weights of the sizes in the fit; they sum to 1.
    local
        Exponents along n.
    selection
        Power law, logarithmic law, floor or two powers: verdict, how large a floor may be, and what
        the test could have found.
    trusted, reasons
        Whether the exponent can be taken at its word on these sizes, and if not, why. It says
        nothing about other sizes: see :attr:`extrapolates`.
    n_replicates, seed
        Number of replicates, and seed of the resampling.
    covariance, critical
        Covariance of (ln constant, exponent), and the number of standard errors of an interval.
    predicted, sharp, paper_reference, paper_bound
        Exponents to compare with, if a caller knows them: predicted on the same range, asymptotic,
        and the two published ones.
    predicted_curve
        Numbers of tokens and predicted errors, if known: at the sizes, and perhaps beyond.
    """

    exponent: float
    interval: tuple[float, float]
    standard_error: float
    constant: float
    constant_interval: tuple[float, float]
    summary: str
    level: float
    sizes: Array
    mean: Array
    mean_standard_error: Array
    median: Array
    median_standard_error: Array
    lower: Array
    upper: Array
    weights: Array
    local: LocalSlopes
    selection: Selection
    trusted: bool
    reasons: tuple[str, ...]
    n_replicates: int
    seed: int
    covariance: Array
    critical: float
    predicted: float | None = None
    sharp: float | None = None
    paper_reference: float | None = None
    paper_bound: float | None = None
    predicted_curve: tuple[Array, Array] | None = None

    @property
    def law(self) -> str:
        """Law that describes the curve: one of ``LAWS``."""
        return self.selection.law

    @property
    def verdict(self) -> str:
        """The same if it is decided, ``"undecided"`` if other laws are not excluded."""
        return self.selection.verdict

    @property
    def law_words(self) -> str:
        """The verdict as a heading has it."""
        known = {"undecided": "law undecided", "as predicted": "follows the predicted curve"}
        return known.get(self.verdict, law_words(self.verdict))

    @property
    def extrapolates(self) -> bool:
        """Whether the exponent may be taken beyond the sizes: trusted, and the law is decided."""
        return self.trusted and self.verdict == "power"

    @property
    def errors(self) -> Array:
        """The summary that was fitted."""
        return self.mean if self.summary == "mean" else self.median

    @property
    def fitted(self) -> Array:
        """The power law at the sizes."""
        return self.constant * self.sizes**-self.exponent

    def with_predictions(
        self,
        *,
        predicted: float | None = None,
        sharp: float | None = None,
        paper_reference: float | None = None,
        paper_bound: float | None = None,
    ) -> Rate:
        """Return the same rate beside exponents to compare it with; None leaves one as it is."""
        given = {
            "predicted": predicted,
            "sharp": sharp,
            "paper_reference": paper_reference,
            "paper_bound": paper_bound,
        }
        kept = {name: float(value) for name, value in given.items() if value is not None}
        return replace(self, **kept)  # type: ignore[arg-type]

    def slope_of(self, errors: ArrayLike) -> float:
        """Exponent of another curve at the same sizes, with the same weights.

        A predicted curve bends, and its slope depends on where the weight lies: this is the number
        to compare the exponent with.
        """
        values = as_array(errors, "errors", ndim=1)
        if values.shape != self.sizes.shape or np.any(values <= 0):
            raise InputError(
                f"errors has shape {values.shape}; it must be {len(self.sizes)} positive numbers, "
                "one for each of rate.sizes"
            )
        x = np.log(self.sizes)
        centred = self.weights * (x - self.weights @ x)
        return float(-(centred @ np.log(values)) / (centred @ x))

    def tokens_for(self, error: float, law: str | None = None) -> TokensNeeded:
        """Number of tokens from which the error is at most ``error``.

        Beyond the sizes that were measured the answer hangs on the law. Unless that is decided, the
        interval holds the answers of all laws that are not excluded; its upper end is infinite if a
        floor as high as ``error`` is not. If no law fits, it is what the sizes alone say, open
        beyond them. A predicted curve answers instead where the verdict is "as predicted", and
        where no law fits, unless the measured errors leave it.

        Parameters
        ----------
        error
            A positive error.
        law
            Law to solve, as if it were known; the one that was selected unless given.
        """
        target = as_positive(error, "error")
        name = self.law if law is None else law
        if name not in ("power", *self.selection.fits):
            known = ", ".join(dict.fromkeys(("power", *self.selection.fits)))
            raise InputError(f"law is {law!r}; laws of this fit: {known}")
        predicted = self._by_prediction(target) if law is None else None
        if predicted is not None:
            return predicted
        n, lower, upper = self._solved(target, name)
        outside = not self.sizes[0] <= n <= self.sizes[-1]
        if law is None and self.selection.misfit:
            least, most = self._bracket(target)
            ends = min(lower, least), max(upper, most)
            return TokensNeeded(target, n, ends, name, bool(outside), fits=False)
        rivals = self.selection.rivals if outside and law is None else ()
        for rival in rivals:
            if rival not in self.selection.fits:  # never tested
                upper = math.inf
                continue
            _, least, most = self._solved(target, rival)
            lower, upper = min(lower, least), max(upper, most)
        if "floor" in rivals and target <= (self.selection.largest_floor or 0.0):
            upper = math.inf
        return TokensNeeded(target, n, (lower, upper), name, bool(outside), rivals)

    def _solved(self, target: float, name: str) -> tuple[float, float, float]:
        """Tokens for an error by one law, with their interval."""
        if name == "power":
            line = np.array([math.log(self.constant), self.exponent])
            ends = solve_line(math.log(target), line, self.covariance, self.critical)
        else:
            fit = self.selection.fits[name]
            parameters = np.array([*fit.parameters.values()])
            if name == "two powers":
                ends = solve_two_powers(target, parameters, fit.covariance, self.critical)
            elif name == "floor":
                parameters[0] = math.log(parameters[0])
                ends = solve_floor(target, parameters, fit.covariance, self.critical)
            else:
                parameters[0] = math.log(parameters[0])
                solved = solve_line(math.log(target), parameters, fit.covariance, self.critical)
                # a line in ln ln n
                log, low, high = (math.exp(z) if z < 700 else math.inf for z in solved)
                ends = log, low, high
        n, lower, upper = (tokens_from_log(end) for end in ends)
        return n, lower, upper

    def _bracket(self, target: float) -> tuple[float, float]:
        """Sizes between which the error is reached, by their own intervals; no law says more."""
        least = float(self.sizes[self.lower > target].max(initial=1.0))
        open_until = self.sizes[~(self.upper <= target)].max(initial=0.0)
        return least, float(self.sizes[self.sizes > open_until].min(initial=math.inf))

    def _by_prediction(self, target: float) -> TokensNeeded | None:
        """Tokens for an error by the predicted curve; None where it does not answer."""
        against = self.selection.predicted
        if self.predicted_curve is None or against is None or against.leaves:
            return None
        if not (self.selection.misfit or self.verdict == "as predicted"):
            return None
        n, errors = self.predicted_curve
        own = np.log(errors[np.isin(n, self.sizes)])
        x, slope = np.log(self.sizes), self.slope_of(np.exp(own))
        level = float(self.weights @ own) + slope * float(self.weights @ x)
        line = np.array([math.log(self.constant) - level, self.exponent - slope])
        solved = solve_predicted(
            math.log(target),
            self.predicted_curve,
            float(line[0] - line[1] * (self.weights @ x)),
            (line, self.covariance),
            self.critical,
        )
        if solved is None:
            return None
        tokens, lower, upper = (tokens_from_log(end) for end in solved)
        outside = not self.sizes[0] <= tokens <= self.sizes[-1]
        rivals = () if against.follows or not outside else ("floor",)
        ends = lower, math.inf if rivals else upper
        return TokensNeeded(target, tokens, ends, "predicted", outside, rivals)

    def table(self) -> pd.DataFrame:
        """Return a data frame, one row per size; local exponents are those up to the size."""
        import pandas as pd

        first = [np.nan]
        return pd.DataFrame(
            {
                "n": self.sizes,
                "mean": self.mean,
                "mean_standard_error": self.mean_standard_error,
                "median": self.median,
                "median_standard_error": self.median_standard_error,
                "lower": self.lower,
                "upper": self.upper,
                "fitted": self.fitted,
                "local_exponent": np.append(first, self.local.exponent),
                "local_lower": np.append(first, self.local.lower),
                "local_upper": np.append(first, self.local.upper),
            }
        )

    def to_xarray(self) -> xarray.Dataset:
        """Return a labelled dataset: errors along ``n``, local exponents along ``n_local``."""
        import xarray

        names = ("mean", "mean_standard_error", "median", "median_standard_error")
        along = {name: ("n", getattr(self, name)) for name in (*names, "lower", "upper", "fitted")}
        local = {
            "local_exponent": ("n_local", self.local.exponent),
            "local_lower": ("n_local", self.local.lower),
            "local_upper": ("n_local", self.local.upper),
        }
        plain = self.to_dict()
        scalars: dict[str, Any] = {
            name: int(value) if isinstance(value, bool) else value
            for name, value in plain.items()
            if isinstance(value, bool | int | float | str)
        }
        scalars |= {"interval": list(self.interval), "reasons": "; ".join(self.reasons)}
        return xarray.Dataset(
            along | local, coords={"n": self.sizes, "n_local": self.local.n}, attrs=scalars
        )

    def record(self) -> FittedRate:
        """Return what is stored of it."""
        low, high = self.interval
        least, most = self.constant_interval
        return FittedRate(
            exponent=self.exponent,
            interval=(finite(low), finite(high)),
            standard_error=finite(self.standard_error),
            constant=finite(self.constant),
            constant_interval=(finite(least), finite(most)),
            level=self.level,
            summary=self.summary,
            law=self.law,
            trusted=self.trusted,
            reasons=self.reasons,
            predicted=self.predicted,
            sharp=self.sharp,
            paper_reference=self.paper_reference,
            paper_bound=self.paper_bound,
            n_replicates=self.n_replicates,
            seed=self.seed,
            sizes=finite_numbers(self.sizes),
            mean=finite_numbers(self.mean),
            mean_standard_error=finite_numbers(self.mean_standard_error),
            median=finite_numbers(self.median),
            median_standard_error=finite_numbers(self.median_standard_error),
            lower=finite_numbers(self.lower),
            upper=finite_numbers(self.upper),
            weights=finite_numbers(self.weights),
            local=self.local.record(),
            selection=self.selection.record(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, lists and strings (JSON-safe; None for what is not finite)."""
        return dict(as_tree(self.record()))

    def plot(self) -> Plot:
        """Draw errors, fit and the exponents to compare with, in log-log axes."""
        from esscher.math.charts import draw_rate

        return draw_rate(self)

    def __repr__(self) -> str:
        return "\n".join([self._headline(), *(f"  {row}" for row in self._rows())])

    def _repr_html_(self) -> str:
        rows = "".join(f"<br>{html.escape(row)}" for row in self._rows())
        table = self.table().to_html(index=False, float_format="{:.4g}".format)
        return f"<p><b>{html.escape(self._headline())}</b>{rows}</p>{table}"

    def _headline(self) -> str:
        low, high = self.interval
        state = "trusted on this range" if self.trusted else "not to be trusted"
        return (
            f"{self.summary} error ~ n^-{self.exponent:.3f}, {100 * self.level:g}% interval "
            f"{low:.3f} to {high:.3f} ({state}; {self.law_words})"
        )

    def _rows(self) -> list[str]:
        rows = [
            f"{self.n_replicates} replicates, {len(self.sizes)} sizes from "
            f"n = {self.sizes[0]:,.0f} to {self.sizes[-1]:,.0f}; constant {self.constant:.4g}"
        ]
        names = {
            "predicted": "predicted on this range",
            "sharp": "asymptotic (conjectured)",
            "paper_reference": "published reference",
            "paper_bound": "published bound",
        }
        known = [
            f"{label} {getattr(self, name):.3f}"
            for name, label in names.items()
            if getattr(self, name) is not None
        ]
        if known:
            rows.append(", ".join(known))
        rows.append(f"Law: {self.selection.evidence}.")
        return rows + [f"Not trusted: {reason}." for reason in self.reasons]
