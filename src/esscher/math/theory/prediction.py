"""Everything the theory says about a head, in one object."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esscher.core.errors import UndefinedError
from esscher.core.shown import rounded
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_queries, as_sizes
from esscher.math.heads import PSI_CONVENTIONS, Head, WeightHead, as_head
from esscher.math.limits import NoLimit, OutputMoments, limit_moments
from esscher.math.theory.cloud import largest_size, law_curves
from esscher.math.theory.gaussian_map import map_curve
from esscher.math.theory.gaussian_moments import mean_low_by, moment_curves
from esscher.math.theory.rates import (
    Curve,
    Exponents,
    bounded_exponents,
    cov_constant,
    expected_gaussian_norm,
    exponents,
    map_constant,
    mean_constant,
)

if TYPE_CHECKING:
    import pandas as pd


#: A curve has its rate once the local exponent stays within this distance of the asymptotic one.
SETTLED = 0.05
#: It has its constant once it stays within this factor of it.
REACHED = 0.1


@dataclass(frozen=True)
class Constants:
    """Limits of ``n E|error|^2`` (None where the regime has no such constant).

    They are known for Gaussian tokens only.
    """

    mean: float | None
    mean_norm: float | None
    cov: float | None
    map: float | None


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions of the theory about a head.

    ``limit`` is the law of the output with infinitely many tokens (or why there is none);
    ``exponents`` are asymptotic, and conjectured for Gaussian tokens (no proof; the exact curve of
    the map on the line has that slope at n = 10^30, in more dimensions not yet); ``constants``
    exact below H = 1; ``burn_in`` the number of tokens at which a typical query has one effective
    token (``log_burn_in`` its logarithm, never infinite); ``curves`` the predicted errors at the
    given sizes, from which ``settled_from`` and ``constant_from`` read where the rate
    holds and where the constant does.
    """

    head: Head
    queries: str
    limit: OutputMoments | NoLimit
    exponents: Exponents | None
    constants: Constants | None
    log_burn_in: float
    curves: dict[str, Curve]
    notes: tuple[str, ...]

    @property
    def burn_in(self) -> float:
        """``exp(F^2 + |tau|^2)``; infinite if that exceeds the range of floats."""
        return float(np.exp(self.log_burn_in)) if self.log_burn_in < 709 else float("inf")

    @property
    def sizes(self) -> Array:
        """Sizes of the curves."""
        return next(iter(self.curves.values())).sizes if self.curves else np.array([])

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        if self.exponents is None:
            return str(self.limit)
        curve = self.curves.get("mean")
        if curve is not None and len(curve.sizes) < 2:
            curve = None
        horizon = f"H = {self.head.horizon:.4g}"
        bounded = is_bounded(self.head)
        if not (self.head.is_gaussian or bounded):
            # exponents are those of a Gaussian stand-in
            text = f"The asymptotic rate of this head ({horizon}) is not known"
            if curve is None:
                return f"{text}."
            low, high = rounded(curve.sizes[0]), rounded(curve.sizes[-1])
            slope = f"n^-{curve.slope():.3f}"
            return f"{text}; its mean output falls like {slope} from n = {low} to {high}."
        beta = self.exponents.mean
        kind = "like 1/sqrt(n)" if beta == 0.5 else f"like n^-{beta:.3g}, slower than 1/sqrt(n)"
        known = "" if bounded else " (conjectured)"
        text = f"The mean output of this head ({horizon}) converges {kind}{known}"
        if curve is None:
            start = self.burn_in_text
            return f"{text}. A typical query has one effective token from n = {start} on."
        rate, constant = self.settled_from("mean"), self.constant_from("mean")
        if rate is None:
            slope = f"{curve.local_slopes()[-1]:.3f}"
            text += f". At these sizes the rate is not reached: the last local slope is {slope}"
        else:
            text += f". At these sizes the rate holds from n = {rounded(rate)} on"
        if self.constant("mean") is not None:
            reached = "is not reached" if constant is None else f"from n = {rounded(constant)} on"
            text += f", the constant {reached}"
        return f"{text}."

    @property
    def burn_in_text(self) -> str:
        """The burn-in in print, also where it exceeds the range of floats."""
        log10 = self.log_burn_in / np.log(10)
        return rounded(10**log10) if log10 < 15 else f"10^{log10:.1f}"

    def table(self) -> pd.DataFrame:
        """Return the curves as a data frame, one row per size."""
        import pandas as pd

        columns = {
            f"{name}_rms" if name == "map" else name: c.error for name, c in self.curves.items()
        }
        return pd.DataFrame({"n": self.sizes} | columns)

    def __repr__(self) -> str:
        rows = [self.headline]
        if self.curves:
            rows.append(self.table().to_string(index=False, float_format="{:.4g}".format))
        return "\n".join(rows + [f"Note: {note}." for note in self.notes])

    def _repr_html_(self) -> str:
        table = self.table().to_html(index=False, float_format="{:.4g}".format)
        return f"<p>{html.escape(self.headline)}</p>" + (table if self.curves else "")

    def asymptotic(self, name: str) -> float:
        """Asymptotic exponent that belongs to a curve."""
        if self.exponents is None:
            raise UndefinedError("there is no infinite-token limit, hence no exponent")
        field = {"map": "map_rms", "cov_rms": "mean_rms"}.get(name, name)
        return float(getattr(self.exponents, field))

    def settled_from(self, name: str) -> float | None:
        """Smallest size from which the curve has its RATE: the local exponent stays near it."""
        curve = self.curves[name]
        if len(curve.sizes) < 2:
            return None
        away = np.abs(curve.local_slopes() - self.asymptotic(name)) > SETTLED
        return _stays_from(curve.sizes, away)

    def constant(self, name: str) -> float | None:
        """Limit of sqrt(n) times a curve, None where there is none or it is not known."""
        c = self.constants
        if c is None:
            return None
        squares = {"mean_rms": c.mean, "cov_rms": c.cov, "map": c.map}
        if name == "mean":
            return c.mean_norm
        square = squares.get(name)
        return None if square is None else float(np.sqrt(square))

    def constant_from(self, name: str) -> float | None:
        """Smallest size from which the curve stays within 10% of its asymptotic ``C/sqrt(n)``."""
        curve, constant = self.curves[name], self.constant(name)
        if constant is None:
            return None
        ratio = curve.error * np.sqrt(curve.sizes) / constant
        return _stays_from(curve.sizes, np.abs(np.log(ratio)) > np.log1p(REACHED))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, lists and strings (JSON has no infinity: null)."""
        head, limit = self.head, self.limit
        if isinstance(limit, NoLimit):
            law: dict[str, Any] = {
                "exists": False,
                "fraction": limit.fraction,
                "fraction_error": limit.fraction_error,
                "reason": limit.reason,
            }
        else:
            law = {
                "exists": True,
                "method": limit.method,
                "mean_norm": float(np.linalg.norm(limit.mean)),
                "trace": float(np.trace(limit.covariance)),
                "trace_error": float(np.sqrt(np.sum(np.diag(limit.covariance_error) ** 2))),
            }
        psi: dict[str, float | None] = {}
        for convention in PSI_CONVENTIONS:
            try:
                psi[convention] = head.psi(convention)
            except UndefinedError:
                psi[convention] = None
        exponents, constants = None, None
        if self.exponents is not None:
            exponents = asdict(self.exponents)
            exponents["tail_index"] = _finite(self.exponents.tail_index)
        if self.constants is not None:
            constants = asdict(self.constants)
        out: dict[str, Any] = {
            "horizon": head.horizon,
            "frobenius": head.frobenius,
            "spectrum": head.spectrum.tolist(),
            "tau": float(np.linalg.norm(head.tau)),
            "psi": psi,
            "queries": self.queries,
            "tail_index": exponents and exponents["tail_index"],
            "burn_in": _finite(self.burn_in),
            "log_burn_in": self.log_burn_in,
            "exponents": exponents,
            "constants": constants,
            "limit": law,
            "notes": list(self.notes),
        }
        if self.curves:
            names = {name: "map_rms" if name == "map" else name for name in self.curves}
            curves = {names[name]: curve for name, curve in self.curves.items()}
            out["curve"] = {"n": self.sizes.tolist()}
            out["curve"] |= {name: c.error.tolist() for name, c in curves.items()}
            out["curve_standard_error"] = {
                name: [_finite(e) for e in c.standard_error] for name, c in curves.items()
            }
            out["curve_method"] = {name: c.method for name, c in curves.items()}
            if len(self.sizes) > 1:
                out["slope"] = {name: c.slope() for name, c in curves.items()}
                out["settled_from"] = {names[k]: self.settled_from(k) for k in self.curves}
                out["constant_from"] = {names[k]: self.constant_from(k) for k in self.curves}
        return out


def _stays_from(sizes: Array, away: NDArray[np.bool_]) -> float | None:
    """Smallest size from which a curve is nowhere away from its asymptote; None if never."""
    last = np.flatnonzero(away)
    if last.size and last[-1] == len(away) - 1:
        return None
    return float(sizes[last[-1] + 1] if last.size else sizes[0])


def is_bounded(head: Head) -> TypeGuard[WeightHead]:
    """Whether tokens are bounded, so that every error falls like 1/sqrt(n) in the end.

    Arrays of captured tokens are bounded too, but stand for a law that need not be.
    """
    return isinstance(head, WeightHead) and bool(np.isfinite(head.law.support_radius))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


# Predictions of the theory about a head: ``predict(head, sizes)``.

#: Sampled queries of a bounded law whose median burn-in is stated.
BURN_IN_QUERIES = 8192
#: Systematic errors from here on get a note.
NOTED = 0.05


def constants(head: Head, queries: str = "population") -> Constants:
    """Exact constants of the parametric regime, None where it does not exist."""
    as_head(head)
    as_queries(queries)
    mean = mean_norm = cov = map_ = None
    if head.horizon < 1:
        limit = mean_constant(head, queries)
        mean, cov = float(np.trace(limit)), cov_constant(head, queries)
        # the expected norm of the Gaussian vector that the error tends to
        mean_norm = expected_gaussian_norm(np.asarray(np.linalg.eigvalsh(limit), float))
    if head.horizon**2 < 0.5:
        map_ = map_constant(head)
    return Constants(mean, mean_norm, cov, map_)


def log_burn_in(head: Head) -> float:
    """Natural logarithm of the burn-in, ``F^2 + |tau|^2``: the typical squared tilt strength.

    Before ``n = exp(F^2 + |tau|^2)`` tokens a typical query has fewer than one effective token: the
    map error has neither its rate nor its constant. The mean output averages over queries; it has
    its rate much earlier as a rule, and its constant about then.
    """
    return float(np.sum(head.coupling.variances) + np.sum(head.coupling.tau**2))


def predict(
    head: Head,
    sizes: ArrayLike | None = None,
    queries: str = "tokens",
    seed: int = 0,
) -> Prediction:
    """Limit, exponents, constants, burn-in and, at given sizes, predicted error curves of a head.

    Parameters
    ----------
    head
        Any head. For Gaussian tokens the curve of the map is exact at any n (sampled directions of
        some heads apart), those of mean and covariance are of first order. For other tokens they
        come from clouds drawn from the law (:func:`law_curves`), with a standard error, up to
        n = 4,096; for captured tokens, from these.
    sizes
        Numbers of tokens, up to 10^12 and beyond; no curves if left out.
    queries
        ``"tokens"``: the tokens attend to each other, each to itself as well. ``"population"``:
        queries independent of the keys.
    seed
        Seed of whatever has to be sampled (limits without closed form, heads without symmetry).
    """
    as_head(head)
    as_queries(queries)
    n = None if sizes is None else as_sizes(sizes)
    limit = limit_moments(head, seed=seed)
    if isinstance(limit, NoLimit):
        return Prediction(head, queries, limit, None, None, log_burn_in(head), {}, (str(limit),))
    curves: dict[str, Curve] = {}
    notes: list[str] = []
    if head.is_gaussian:
        rates, known, burn_in = exponents(head.horizon), constants(head, queries), log_burn_in(head)
        if n is not None:
            try:
                curves["map"] = map_curve(head, n, queries, seed)
            except UndefinedError as error:
                notes.append(str(error))
            if n.min() < 4:
                notes.append("mean and covariance are predicted from n = 4 on")
            else:
                try:
                    curves |= moment_curves(head, n, queries, seed)
                    low = mean_low_by(head)
                    if low is not None and low >= NOTED:
                        notes.append(
                            "the expected norm of the mean's error is approximate: up to "
                            f"{low:.0%} too low at this horizon, in simulations of n = 100 to "
                            "10^5 tokens"
                        )
                except UndefinedError as error:
                    notes.append(str(error))
        return Prediction(head, queries, limit, rates, known, burn_in, curves, tuple(notes))
    # tokens that are not Gaussian: curves from clouds of them
    known = Constants(None, None, None, None)
    if is_bounded(head):
        rates = bounded_exponents(head.horizon)
        # the log of one over the effective share of a query, K(2t) - 2 K(t): its median
        rng = random_stream(seed, "constants")
        tilts = head.law_tilts(head.tokens(head.law.sample(BURN_IN_QUERIES, rng)).tilts)
        burn_in = float(np.median(head.law.log_mgf(2 * tilts) - 2 * head.law.log_mgf(tilts)))
        notes.append("tokens are bounded: all rates are parametric in the end")
    else:
        rates, burn_in = exponents(head.horizon), log_burn_in(head)
        notes.append(
            "tokens are not Gaussian: exponents are those of Gaussian tokens of the same horizon"
        )
    if n is not None:
        most = largest_size(head)
        small = n[n <= most]
        if len(small) < len(n):
            notes.append(
                f"tokens that are not Gaussian are predicted from drawn clouds, up to n = "
                f"{most:,.0f}: larger sizes are left out"
            )
        if len(small):
            curves = law_curves(head, small, queries, seed)
            notes.append(f"curves: {curves['map'].method}")
    return Prediction(head, queries, limit, rates, known, burn_in, curves, tuple(notes))
