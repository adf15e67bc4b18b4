"""A fitted rate: error ~ C n^-beta, with intervals, the law it follows, and whether to trust it."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.codec import as_tree
from esscher.core.errors import InputError
from esscher.core.validation import Array, as_array, as_positive
from esscher.math.statistics.laws import law_words
from esscher.math.statistics.records import FittedRate, finite, finite_numbers
from esscher.math.statistics.resampling import LocalSlopes
from esscher.math.statistics.selection import Selection
from esscher.math.statistics.tokens import (
    TokensNeeded,
    solve_floor,
    solve_line,
    solve_predicted,
    solve_two_powers,
    tokens_from_log,
)

if TYPE_CHECKING:
    import pandas as pd
    import xarray

    from esscher.show.drawing import Plot


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
        from esscher.math.statistics.charts import draw_rate

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
