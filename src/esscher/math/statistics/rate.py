"""A fitted rate, error ~ C n^-beta, with its intervals and law, and the tokens an error needs."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.codec import Count, Name, Record, as_tree
from esscher.core.errors import InputError
from esscher.core.shown import plain_count
from esscher.core.validation import Array, as_array, as_positive
from esscher.math.statistics.intervals import LocalSlopes
from esscher.math.statistics.laws import law_words
from esscher.math.statistics.records import Ends, Matrix, Numbers
from esscher.math.statistics.selection import Selection

if TYPE_CHECKING:
    import pandas as pd
    import xarray

    from esscher.show.content import Plot

#: ln n of an estimate, and the ends of its interval.
LogTokens: TypeAlias = tuple[float, float, float]

#: Places at which a predicted curve is compared with an error.
GRID = 2001


class Rate(Record, frozen=True, kw_only=True):
    """Power law fitted to measured errors: error ~ ``constant * n**-exponent``.

    Attributes
    ----------
    exponent, interval, standard_error
        The positive beta, its interval from resampled replicates, and its standard error; one
        replicate has neither.
    constant, constant_interval
        The factor in front.
    level
        Level of all intervals.
    sizes
        Numbers of tokens of the fit.
    mean, mean_standard_error, lower, upper
        Mean of the replicates at these sizes, its standard error, and its interval.
    weights
        Weights of the sizes in the fit; they sum to 1.
    local
        Exponents along n.
    law, selection
        Power law, logarithmic law, floor or two powers: the law that describes the curve, the
        verdict, how large a floor may be, and what the test could have found.
    trusted, reasons
        Whether the exponent can be taken at its word on these sizes, and if not, why. It says
        nothing about other sizes: see :attr:`extrapolates`.
    n_replicates, seed
        Number of replicates, and seed of the resampling.
    covariance, critical
        Covariance of (ln constant, exponent), and the number of standard errors of an interval;
        None for one replicate.
    predicted, sharp, paper_reference, paper_bound
        Exponents to compare with, if a caller knows them: predicted on the same range, asymptotic,
        and the two published ones.
    predicted_curve
        Numbers of tokens and predicted errors, if known: at the sizes, and perhaps beyond.
    """

    exponent: float
    interval: Ends
    standard_error: float | None
    constant: float
    constant_interval: Ends
    level: float
    sizes: tuple[float, ...]
    mean: tuple[float, ...]
    mean_standard_error: Numbers
    lower: Numbers
    upper: Numbers
    weights: tuple[float, ...]
    local: LocalSlopes
    law: Name
    selection: Selection
    trusted: bool
    reasons: tuple[str, ...]
    n_replicates: Count
    seed: int
    covariance: Matrix | None
    critical: float | None
    predicted: float | None = None
    sharp: float | None = None
    paper_reference: float | None = None
    paper_bound: float | None = None
    predicted_curve: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @property
    def verdict(self) -> str:
        """The law if it is decided, ``"undecided"`` if other laws are not excluded."""
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
    def fitted(self) -> Array:
        """The power law at the sizes."""
        return self.constant * np.array(self.sizes) ** -self.exponent

    def slope_of(self, errors: ArrayLike) -> float:
        """Exponent of another curve at the same sizes, with the same weights.

        A predicted curve bends, and its slope depends on where the weight lies: this is the number
        to compare the exponent with.
        """
        values = as_array(errors, "errors", ndim=1)
        if len(values) != len(self.sizes) or np.any(values <= 0):
            raise InputError(
                f"errors has shape {values.shape}; it must be {len(self.sizes)} positive numbers, "
                "one for each of rate.sizes"
            )
        x, weights = np.log(self.sizes), np.array(self.weights)
        centred = weights * (x - weights @ x)
        return float(-(centred @ np.log(values)) / (centred @ x))

    def band(self, sizes: Array) -> tuple[Array, Array] | None:
        """Interval of the fitted line at some numbers of tokens; None for one replicate."""
        if self.covariance is None or self.critical is None:
            return None
        (a, cross), (_, b) = self.covariance
        x = np.log(sizes)
        reach = self.critical * np.sqrt(np.maximum(a - 2 * x * cross + x * x * b, 0.0))
        line = self.constant * sizes**-self.exponent
        return line * np.exp(-reach), line * np.exp(reach)

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
        if name not in ("power", *self.selection.laws):
            known = ", ".join(dict.fromkeys(("power", *self.selection.laws)))
            raise InputError(f"law is {law!r}; laws of this fit: {known}")
        predicted = self._by_prediction(target) if law is None else None
        if predicted is not None:
            return predicted
        n, lower, upper = self._by_law(target, name)
        outside = not self.sizes[0] <= n <= self.sizes[-1]
        if law is None and self.selection.misfit:
            # sizes between which the error is reached, by their own intervals
            above = [
                size
                for size, low in zip(self.sizes, self.lower, strict=True)
                if low is not None and low > target
            ]
            not_within = [
                size
                for size, high in zip(self.sizes, self.upper, strict=True)
                if high is None or high > target
            ]
            least, open_until = max([1.0, *above]), max([0.0, *not_within])
            most = min((size for size in self.sizes if size > open_until), default=math.inf)
            ends = min(lower, least), max(upper, most)
            return TokensNeeded(target, n, ends, name, outside, fits=False)
        rivals = self.selection.rivals if outside and law is None else ()
        for rival in rivals:
            if rival not in self.selection.laws:  # never tested
                upper = math.inf
                continue
            _, least, most = self._by_law(target, rival)
            lower, upper = min(lower, least), max(upper, most)
        if "floor" in rivals and target <= (self.selection.largest_floor or 0.0):
            upper = math.inf
        return TokensNeeded(target, n, (lower, upper), name, outside, rivals)

    def _by_law(self, target: float, name: str) -> tuple[float, float, float]:
        """Tokens for an error by one law, with their interval."""
        covariance, critical = self._line_noise()
        log_error = math.log(target)
        if name == "power":
            line = np.array([math.log(self.constant), self.exponent])
            return _as_tokens(solve_line(log_error, line, covariance, critical))
        fit = self.selection.laws[name]
        parameters, covariance = np.array([*fit.parameters.values()]), np.array(fit.covariance)
        if name == "two powers":
            return _as_tokens(solve_two_powers(target, parameters, covariance, critical))
        parameters[0] = math.log(parameters[0])
        if name == "floor":
            return _as_tokens(solve_floor(target, parameters, covariance, critical))
        # a line in ln ln n
        z, low, high = (
            math.exp(end) if end < 700 else math.inf
            for end in solve_line(log_error, parameters, covariance, critical)
        )
        return _as_tokens((z, low, high))

    def _by_prediction(self, target: float) -> TokensNeeded | None:
        """Tokens for an error by the predicted curve; None where it does not answer.

        Solves ``ratio * predicted(n) = error``, with a cubic spline in log-log coordinates between
        the sizes of the prediction. The interval allows for a drift of the ratio of measured to
        predicted errors, ``a - b ln n``, beyond the measured sizes too.
        """
        against = self.selection.predicted
        if self.predicted_curve is None or against is None or against.leaves:
            return None
        if not (self.selection.misfit or self.verdict == "as predicted"):
            return None
        n, errors = (np.array(values) for values in self.predicted_curve)
        at_sizes = np.log(errors[np.isin(n, self.sizes)])
        x, weights = np.log(self.sizes), np.array(self.weights)
        slope = self.slope_of(np.exp(at_sizes))
        level = float(weights @ at_sizes) + slope * float(weights @ x)
        a, b = math.log(self.constant) - level, self.exponent - slope
        covariance, critical = self._line_noise()
        z = np.linspace(np.log(n[0]), np.log(n[-1]), GRID)
        above = scipy.interpolate.CubicSpline(np.log(n), np.log(errors))(z) - math.log(target)
        design = np.stack([np.ones_like(z), -z], axis=1)
        half = critical * np.sqrt(np.einsum("zi,ij,zj->z", design, covariance, design))
        drift = a - b * z
        middle, low, high = (
            _crossing(z, above + ratio)
            for ratio in (float(a - b * (weights @ x)), drift - half, drift + half)
        )
        if not math.isfinite(middle):
            return None
        tokens, lower, upper = _as_tokens((middle, min(middle, low), max(middle, high)))
        outside = not self.sizes[0] <= tokens <= self.sizes[-1]
        rivals = () if against.follows or not outside else ("floor",)
        ends = lower, math.inf if rivals else upper
        return TokensNeeded(target, tokens, ends, "predicted", outside, rivals)

    def _line_noise(self) -> tuple[Array, float]:
        """Covariance of (ln constant, exponent) and critical value; unknown for one replicate."""
        if self.covariance is None or self.critical is None:
            return np.full((2, 2), np.nan), math.inf
        return np.array(self.covariance), self.critical

    def table(self) -> pd.DataFrame:
        """Return a data frame, one row per size; local exponents are those up to the size."""
        import pandas as pd

        columns = {
            "n": self.sizes,
            "mean": self.mean,
            "mean_standard_error": self.mean_standard_error,
            "lower": self.lower,
            "upper": self.upper,
            "fitted": self.fitted,
            "local_exponent": (None, *self.local.exponent),
            "local_lower": (None, *self.local.lower),
            "local_upper": (None, *self.local.upper),
        }
        return pd.DataFrame(columns, dtype=np.float64)

    def to_xarray(self) -> xarray.Dataset:
        """Return a labelled dataset: errors along ``n``, local exponents along ``n_local``."""
        import xarray

        table = self.table()
        columns: dict[str, Any] = {
            str(name): ("n", values) for name, values in table.items() if "local" not in str(name)
        } | {str(name): ("n_local", table[name][1:]) for name in table if "local" in str(name)}
        del columns["n"]
        scalars: dict[str, Any] = {
            name: int(value) if isinstance(value, bool) else value
            for name, value in self.to_dict().items()
            if isinstance(value, bool | int | float | str)
        }
        ends = [math.nan if end is None else end for end in self.interval]
        scalars |= {"interval": ends, "reasons": "; ".join(self.reasons)}
        coords = {"n": list(self.sizes), "n_local": list(self.local.n)}
        return xarray.Dataset(columns, coords=coords, attrs=scalars)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, lists and strings (JSON-safe; None for what is not finite)."""
        return dict(as_tree(self))

    def plot(self) -> Plot:
        """Draw errors, fit and the exponents to compare with, in log-log axes."""
        from esscher.math.charts import draw_rate

        return draw_rate(self)

    def __repr__(self) -> str:
        return "\n  ".join(self._lines())

    def _repr_html_(self) -> str:
        headline, *rows = (html.escape(line) for line in self._lines())
        table = self.table().to_html(index=False, float_format="{:.4g}".format)
        return f"<p><b>{headline}</b>{''.join(f'<br>{row}' for row in rows)}</p>{table}"

    def _lines(self) -> list[str]:
        """The headline, and what stands below it."""
        low, high = self.interval
        between = "unknown" if low is None or high is None else f"{low:.3f} to {high:.3f}"
        state = "trusted on this range" if self.trusted else "not to be trusted"
        lines = [
            f"mean error ~ n^-{self.exponent:.3f}, {100 * self.level:g}% interval "
            f"{between} ({state}; {self.law_words})",
            f"{self.n_replicates} replicates, {len(self.sizes)} sizes from "
            f"n = {self.sizes[0]:,.0f} to {self.sizes[-1]:,.0f}; constant {self.constant:.4g}",
        ]
        exponents = {
            "predicted on this range": self.predicted,
            "asymptotic (conjectured)": self.sharp,
            "published reference": self.paper_reference,
            "published bound": self.paper_bound,
        }
        known = [f"{name} {value:.3f}" for name, value in exponents.items() if value is not None]
        lines += [", ".join(known)] if known else []
        lines.append(f"Law: {self.selection.evidence}.")
        return lines + [f"Not trusted: {reason}." for reason in self.reasons]


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

    def __repr__(self) -> str:
        n, low, high = (
            plain_count(math.ceil(n) if math.isfinite(n) else n) for n in (self.n, *self.interval)
        )
        beyond = ", extrapolated" if self.extrapolated else ""
        if self.rivals:
            others = " and ".join(f"a {law_words(name)}" for name in self.rivals)
            beyond += f"; the law is undecided, and the interval allows for {others}"
        if not self.fits:
            beyond += "; but no law fits, and the interval is what the measured sizes alone say"
        return (
            f"error {self.error:.3g} takes {n} tokens, between {low} and {high} "
            f"({law_words(self.law)}{beyond})"
        )


def solve_line(
    log_error: float, coefficients: Array, covariance: Array, critical: float
) -> LogTokens:
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


def solve_floor(error: float, parameters: Array, covariance: Array, critical: float) -> LogTokens:
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
) -> LogTokens:
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


def _crossing(z: Array, values: Array) -> float:
    """Where values fall below 0 for good: ``-inf`` if before the first z, ``inf`` if never."""
    above = np.flatnonzero(values > 0)
    if not above.size:
        return -math.inf
    i = int(above[-1])
    if i == len(z) - 1:
        return math.inf
    return float(z[i] + (z[i + 1] - z[i]) * values[i] / (values[i] - values[i + 1]))


def _as_tokens(log_tokens: LogTokens) -> tuple[float, float, float]:
    """Numbers of tokens: at least one, infinite beyond the range of floats."""
    n, lower, upper = (max(1.0, math.exp(z)) if z < 709 else math.inf for z in log_tokens)
    return n, lower, upper
