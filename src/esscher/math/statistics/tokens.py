"""Tokens needed for an error, read off a fitted law."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from esscher.core.shown import plain_count
from esscher.core.validation import Array
from esscher.math.statistics.records import finite, finite_list


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
        Law that was solved for n.
    extrapolated
        Whether n is outside the sizes that were measured.
    rivals
        Laws that the measurement does not exclude, if n is extrapolated by the selected law: the
        interval holds what they say as well.
    """

    error: float
    n: float
    interval: tuple[float, float]
    law: str
    extrapolated: bool
    rivals: tuple[str, ...] = ()

    @property
    def decided(self) -> bool:
        """Whether no other law says something else."""
        return not self.rivals

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers; None for infinity (JSON-safe)."""
        plain = asdict(self) | {"n": finite(self.n), "rivals": list(self.rivals)}
        return plain | {"interval": finite_list(self.interval)}

    def __repr__(self) -> str:
        low, high = (_count(end) for end in self.interval)
        beyond = ", extrapolated" if self.extrapolated else ""
        if self.rivals:
            others = " and ".join(f"a {name} law" for name in self.rivals)
            beyond += f"; the law is undecided, and the interval allows for {others}"
        return (
            f"error {self.error:.3g} takes {_count(self.n)} tokens, between {low} and {high} "
            f"({self.law} law{beyond})"
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


def tokens_from_log(log_n: float) -> float:
    """``exp(log_n)``, at least one token, infinite beyond the range of floats."""
    return max(1.0, math.exp(log_n)) if log_n < 709 else math.inf


def _count(n: float) -> str:
    return plain_count(math.ceil(n) if math.isfinite(n) else n)
