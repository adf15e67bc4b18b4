"""Predicted error of mean and covariance at finite n: their first-order projection.

The mean output over n tokens is a symmetric function of independent tokens. Its projection onto
sums of functions of single tokens is

    mean_n - limit  ~  bias + sum_j h_n(eta_j),     h_n(eta) = E[mean_n | eta_1 = eta] - E[mean_n],

and here ``h_n`` is not the asymptotic influence function but the exact conditional expectation at
that n: the Laplace integrals of ``softmax_mean`` with one key held fixed. A token with a large
weight then saturates by itself, so one formula covers the parametric regime, the stable one and the
frozen one, before and after burn-in. Where H < 1 it tends to the exact constants as n grows. The
bias of the covariance, which dominates before burn-in, is exact.

What is neglected is the part of the error that no sum of single-token terms can carry (for the
mean of isotropic heads on the line: no sum over pairs of tokens, ``pair_influence``); how much that
is has been measured against direct simulation (documentation, "How good is the predictor").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.validation import as_sizes
from esscher.math.heads import Head
from esscher.math.theory.curve import Curve
from esscher.math.theory.exact_constants import select_coupling
from esscher.math.theory.projection_isotropic import isotropic_errors
from esscher.math.theory.projection_sampled import sampled_errors

#: Names of the curves that ``moment_curves`` returns (``cov`` in one dimension only).
MOMENT_CURVES = ("mean", "mean_rms", "cov", "cov_rms")
#: By how much the expected norm of the mean's error was low, at worst over n = 100 to 10^5 and both
#: kinds of queries, isotropic heads on the line, by horizon (``benchmarks/long_line.py``).
LOW_HORIZONS, LOW_BY = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0), (0.0, 0.01, 0.06, 0.07, 0.09, 0.11)


def mean_low_by(head: Head) -> float | None:
    """How much too low the expected norm of the mean's error may be, relatively, where measured."""
    isotropy = head.coupling.isotropy
    if isotropy is None or len(head.coupling.tau) > 1 or head.horizon > LOW_HORIZONS[-1]:
        return None
    return float(np.interp(head.horizon, LOW_HORIZONS, LOW_BY))


def moment_curves(
    head: Head, sizes: ArrayLike, queries: str = "population", seed: int = 0
) -> dict[str, Curve]:
    """Predicted errors of mean and covariance of the output, for Gaussian tokens.

    Returns ``mean`` and ``mean_rms`` (expected and root-mean-square norm of the error of the mean),
    ``cov_rms`` (root-mean-square Frobenius norm of the error of the covariance) and, for isotropic
    heads in one dimension, ``cov`` (its expected value).

    Isotropic heads are treated deterministically. For others the average over tokens is sampled
    (``seed``) with a standard error, and ``mean`` assumes a Gaussian shape of the error, which
    makes it an upper estimate when H > 1.
    """
    n = as_sizes(sizes, smallest=4)
    coupling = select_coupling(head, queries)
    isotropy = head.coupling.isotropy
    if isotropy is not None and isotropy[0] != 0:
        values = isotropic_errors(coupling, isotropy, n, queries)
        # deterministic, but not exact: what the projection neglects has no standard error
        errors = {name: np.full(len(n), np.nan) for name in values}
        method = "first-order projection on single tokens at each n, by quadrature"
    else:
        values, errors = sampled_errors(coupling, n, queries, seed)
        method = "first-order projection on single tokens at each n, sampled"
    validity = (
        "first order in the interaction of tokens; beside simulations of 21 heads (n = 100 to "
        "2,500) the mean was 1 to 7% low, the covariance between 5% low and 7% high"
    )
    low = mean_low_by(head)
    if low is not None:
        validity = (
            "second order (mean) or first order (covariance) in the interaction of tokens; the "
            f"expected norm of the mean was low by up to {low:.0%} in simulations to n = 10^5"
        )
    if not head.is_gaussian:
        validity += "; Gaussian theory applied to the second moments"
    return {
        name: Curve(
            name.removesuffix("_rms"),
            "rms" if name.endswith("_rms") else "mean",
            n,
            values[name],
            errors[name],
            queries,
            method,
            validity,
        )
        for name in MOMENT_CURVES
        if name in values
    }
