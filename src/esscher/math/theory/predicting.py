"""Predictions of the theory about a head: ``predict(head, sizes)``."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import UndefinedError
from esscher.core.validation import Array, as_queries, as_sizes
from esscher.math.heads import Head, WeightHead, as_head
from esscher.math.limits import NoLimit, OutputMoments, limit_moments
from esscher.math.theory.curve import Curve
from esscher.math.theory.exact_constants import cov_constant, map_constant, mean_constant
from esscher.math.theory.law_cloud import largest_size, law_curves
from esscher.math.theory.map_error import map_curve
from esscher.math.theory.moment_errors import mean_low_by, moment_curves
from esscher.math.theory.prediction import Constants, Prediction, is_bounded
from esscher.math.theory.sampled_constants import sampled_constants
from esscher.math.theory.sharp_exponents import bounded_exponents, exponents

#: Systematic errors from here on are said in a note.
SAID = 0.05


def constants(head: Head, queries: str = "population") -> Constants:
    """Exact constants of the parametric regime, None where it does not exist."""
    as_head(head)
    as_queries(queries)
    mean = mean_norm = cov = map_ = None
    if head.horizon < 1:
        limit = mean_constant(head, queries)
        mean, mean_norm, cov = limit.squared, limit.norm, cov_constant(head, queries)
    if head.horizon**2 < 0.5:
        map_ = map_constant(head)
    return Constants(queries, mean, mean_norm, cov, map_)


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
    moments: bool = True,
    seed: int = 0,
) -> Prediction:
    """Limit, exponents, constants, burn-in and, at given sizes, predicted error curves of a head.

    Parameters
    ----------
    head
        Any head. For Gaussian tokens the curve of the map is exact at any n (sampled directions of
        some heads apart), those of mean and covariance are of first order. For other tokens they
        come from clouds drawn from the law (:mod:`law_cloud`), with a standard error, up to
        n = 4,096; for captured tokens, from these.
    sizes
        Numbers of tokens, up to 10^12 and beyond; no curves if left out.
    queries
        ``"tokens"``: the tokens attend to each other, each to itself as well. ``"population"``:
        queries independent of the keys.
    moments
        Whether to predict curves of mean and covariance beside the map's.
    seed
        Seed of whatever has to be sampled (limits without closed form, heads without symmetry).
    """
    as_head(head)
    as_queries(queries)
    n = None if sizes is None else as_sizes(sizes)
    limit = limit_moments(head, seed=seed)
    if isinstance(limit, NoLimit):
        return Prediction(head, queries, limit, None, None, log_burn_in(head), {}, (str(limit),))
    if is_bounded(head):
        return _predict_bounded(head, n, queries, moments, limit, seed)
    if not head.is_gaussian:
        curves, notes = _law_curves(head, n, queries, moments, seed)
        notes = ("tokens are not Gaussian: exponents are those of Gaussian tokens of the same "
                 "horizon", *notes)  # fmt: skip
        return Prediction(
            head, queries, limit, exponents(head.horizon), _no_constants(queries),
            log_burn_in(head), curves, notes,
        )  # fmt: skip
    return _predict_gaussian(head, n, queries, moments, limit, seed)


def _predict_gaussian(
    head: Head, n: Array | None, queries: str, moments: bool, limit: OutputMoments, seed: int
) -> Prediction:
    """Gaussian tokens: curves at any n, exact for the map, of first order for the moments."""
    notes = []
    curves: dict[str, Curve] = {}
    if n is not None:
        try:
            curves["map"] = map_curve(head, n, queries, seed)
        except UndefinedError as error:
            notes.append(str(error))
        if moments and n.min() >= 4:
            try:
                curves |= moment_curves(head, n, queries, seed)
                low = mean_low_by(head)
                if low is not None and low >= SAID:
                    notes.append(
                        f"the expected norm of the mean's error is approximate: up to {low:.0%} "
                        "too low at this horizon, in simulations of n = 100 to 10^5 tokens"
                    )
            except UndefinedError as error:
                notes.append(str(error))
        elif moments:
            notes.append("mean and covariance are predicted from n = 4 on")
    return Prediction(
        head,
        queries,
        limit,
        exponents(head.horizon),
        constants(head, queries),
        log_burn_in(head),
        curves,
        tuple(notes),
    )


def _law_curves(
    head: Head, sizes: Array | None, queries: str, moments: bool, seed: int
) -> tuple[dict[str, Curve], tuple[str, ...]]:
    """Curves of tokens that are not Gaussian, from clouds of them, and what to know about them."""
    if sizes is None:
        return {}, ()
    most = largest_size(head)
    n = sizes[sizes <= most]
    notes = []
    if len(n) < len(sizes):
        notes.append(
            f"tokens that are not Gaussian are predicted from drawn clouds, up to n = {most:,.0f}: "
            "larger sizes are left out"
        )
    if not len(n):
        return {}, tuple(notes)
    curves = law_curves(head, n, queries, seed)
    notes.append(f"curves: {curves['map'].method}")
    return {name: c for name, c in curves.items() if moments or name == "map"}, tuple(notes)


def _no_constants(queries: str) -> Constants:
    return Constants(queries, None, None, None, None)


def _predict_bounded(
    head: WeightHead,
    sizes: Array | None,
    queries: str,
    moments: bool,
    limit: OutputMoments,
    seed: int,
) -> Prediction:
    """Bounded tokens: parametric rates with sampled constants; curves from drawn clouds."""
    sampled = sampled_constants(head, queries, seed)
    notes = ["tokens are bounded: all rates are parametric in the end, and constants are sampled"]
    for name in ("mean", "map"):
        # the constant is of n E|error|^2; the table shows its root
        notes.append(f"limit of n E|error|^2 of the {name}: {getattr(sampled, name)}")
    curves, more = _law_curves(head, sizes, queries, moments, seed)
    return Prediction(
        head,
        queries,
        limit,
        bounded_exponents(head.horizon),
        Constants(
            queries,
            sampled.mean.value,
            None,
            None,
            sampled.map.value,
            sampled.mean.standard_error,
            sampled.map.standard_error,
        ),
        sampled.log_burn_in,
        curves,
        (*notes, *more),
    )
