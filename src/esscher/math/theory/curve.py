"""A predicted error curve: what every predictor of this package returns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_nonnegative


@dataclass(frozen=True, eq=False)
class Curve:
    """Predicted error at given numbers of tokens.

    Attributes
    ----------
    metric
        What the error is of: ``"map"``, ``"mean"`` or ``"cov"``.
    statistic
        ``"rms"`` (root of the mean square) or ``"mean"`` (expected norm).
    sizes, error
        Numbers of tokens and predicted errors.
    standard_error
        Monte Carlo standard error of each prediction: zero for exact ones, NaN for those that are
        computed without sampling but approximate (``validity`` says how far).
    queries
        ``"tokens"`` or ``"population"``.
    method
        How the numbers were computed, in words.
    """

    metric: str
    statistic: str
    sizes: Array
    error: Array
    standard_error: Array
    queries: str
    method: str

    def slope(self) -> float:
        """Exponent beta fitted to the curve (least squares in log-log)."""
        if len(self.sizes) < 2:
            raise InputError("a slope needs at least 2 sizes")
        x, y = np.log(self.sizes), np.log(self.error)
        x = x - x.mean()
        return float(-np.dot(x, y) / np.dot(x, x))

    def local_slopes(self) -> Array:
        """Exponent between each pair of consecutive sizes."""
        return -np.diff(np.log(self.error)) / np.diff(np.log(self.sizes))


# Asymptotic exponents: error ~ C n^-beta as n grows, for Gaussian tokens.
#
# All of them depend on the head through its horizon H alone; how far n must go before they show is
# another matter (``Prediction.settled_from``), and logarithms are ignored. They rest on a heuristic
# argument: conjectured, not proved. On the line the exact curve of the map has these slopes at
# n = 10^30, and so have the first-order curves of mean and covariance; in eight dimensions not yet.


@dataclass(frozen=True)
class Exponents:
    """Exponents beta of error ~ C n^-beta at a horizon, conjectured ones and published ones.

    Attributes
    ----------
    horizon
        H.
    tail_index
        ``alpha = 1 + 1/H^2``, tail index of received attention (infinite for H = 0).
    mean, cov
        Expected error of mean and covariance of the output: ``min(1/2, 1/(1 + H^2))``.
    map_l1
        Map error, absolute value averaged over queries: ``min(1/2, 1/(1 + H^2))``.
    map_rms
        Map error, root of the mean square over queries and tokens: 1/2 up to ``H^2 = 1/2``, then
        ``(sqrt(1 + 4/H^2) - 1)/4``.
    mean_rms
        Root-mean-square error of the mean: 1/2 up to H = 1, then ``(sqrt(1 + 8/H^2) - 1)/4``.
    paper_reference
        The line ``1/(2(1 + H^2))`` that the paper plots.
    paper_bound
        The proved bound ``1/(2(1 + 32 Psi))``.
    khat
        Shape of the tail of received attention, ``1/alpha = H^2/(1 + H^2)``.
    """

    horizon: float
    tail_index: float
    mean: float
    cov: float
    map_l1: float
    map_rms: float
    mean_rms: float
    paper_reference: float
    paper_bound: float
    khat: float


def exponents(horizon: float, psi: float | None = None) -> Exponents:
    """Conjectured exponents at a horizon; ``psi``, default ``H^2``, is the bound's coupling."""
    h2 = as_nonnegative(horizon, "horizon") ** 2
    coupling = h2 if psi is None else as_nonnegative(psi, "psi")
    sharp = min(0.5, 1 / (1 + h2))
    return Exponents(
        horizon=float(horizon),
        tail_index=1 + 1 / h2 if h2 > 0 else float("inf"),
        mean=sharp,
        cov=sharp,
        map_l1=sharp,
        map_rms=0.5 if h2 <= 0.5 else _root_exponent(4 / h2),
        mean_rms=0.5 if h2 <= 1 else _root_exponent(8 / h2),
        paper_reference=1 / (2 * (1 + h2)),
        paper_bound=1 / (2 * (1 + 32 * coupling)),
        khat=h2 / (1 + h2),
    )


def bounded_exponents(horizon: float) -> Exponents:
    """Exponents of bounded tokens: all of them are 1/2, and received attention has no tail."""
    gaussian = exponents(horizon)
    half = dict.fromkeys(("mean", "cov", "map_l1", "map_rms", "mean_rms"), 0.5)
    return replace(gaussian, tail_index=float("inf"), khat=0.0, **half)


def _root_exponent(ratio: float) -> float:
    """Return ``(sqrt(1 + r) - 1)/4``, in the form that keeps its digits for small r."""
    return ratio / (4 * (float(np.sqrt(1 + ratio)) + 1))
