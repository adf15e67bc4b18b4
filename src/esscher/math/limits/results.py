"""Results of the infinite-token limits: numbers, the method that found them, their errors.

A law without a limit at the tilts that occur is an answer, not an error: it is a
:class:`NoLimit`, with the fraction of queries concerned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esscher.core.validation import Array

#: Entries of a vector that the repr prints before it goes on with an ellipsis, and most vectors.
SHOWN = 6


def _listed(vector: Array) -> str:
    """Print the first entries of a vector."""
    entries = ", ".join(f"{entry:.4g}" for entry in vector[:SHOWN])
    return f"[{entries}{', ...' if len(vector) > SHOWN else ''}]"


def _queries(count: int) -> str:
    return f"{count:,} {'query' if count == 1 else 'queries'}"


@dataclass(frozen=True)
class NoLimit:
    """There is no infinite-token limit: attention does not settle as tokens are added.

    Attributes
    ----------
    law
        The law of the tokens.
    fraction
        Fraction of the queries whose tilt lies outside the law's tilt domain.
    fraction_error
        Its standard error; 0 when the fraction is exact.
    reason
        Why, in one sentence.
    """

    law: str
    fraction: float
    fraction_error: float
    reason: str

    def __str__(self) -> str:
        error = f" +- {100 * self.fraction_error:.2g}" if self.fraction_error > 0 else ""
        return (
            f"no infinite-token limit for {self.law}: "
            f"{100 * self.fraction:.4g}%{error} of the queries have none ({self.reason})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class MapLimit:
    """The limit map ``Gamma`` at given queries.

    Attributes
    ----------
    values
        ``Gamma(q)``, of shape (..., d_v); ``nan`` where there is no limit.
    exists
        Whether the limit exists, of shape (...).
    method
        ``"closed form"`` or ``"finite sum"``.
    standard_error
        Standard errors of ``values``: zeros, since both methods are exact.
    missing
        The queries without a limit, or None when every query has one.
    """

    values: Array
    exists: NDArray[np.bool_]
    method: str
    standard_error: Array
    missing: NoLimit | None

    def __repr__(self) -> str:
        count, dim = self.exists.size, self.values.shape[-1]
        text = f"MapLimit of {_queries(count)} in R^{dim} ({self.method}"
        text = f"{text}; {self.missing})" if self.missing else f"{text})"
        rows = self.values.reshape(count, dim)
        if count > SHOWN:
            return text
        return "\n".join([text, *(f"  {_listed(row)}" for row in rows)])


@dataclass(frozen=True, eq=False, repr=False)
class OutputMoments:
    """Mean and covariance of the output law, the law of ``Gamma(q)`` over the queries of a head.

    Attributes
    ----------
    mean, covariance
        Of shape (d_v,) and (d_v, d_v).
    mean_error, covariance_error
        Entrywise: standard errors for the sampling methods, an estimate of the absolute error for
        quadrature, zeros for closed forms and finite sums.
    method
        How the moments were found.
    samples
        Number of queries used by a sampling method, else 0.
    """

    mean: Array
    covariance: Array
    mean_error: Array
    covariance_error: Array
    method: str
    samples: int

    @classmethod
    def exact(cls, mean: Array, covariance: Array, method: str) -> OutputMoments:
        """Moments without error beyond rounding."""
        symmetric = (covariance + covariance.T) / 2
        return cls(mean, symmetric, np.zeros_like(mean), np.zeros_like(symmetric), method, 0)

    @property
    def dim(self) -> int:
        """Dimension d_v of the outputs."""
        return len(self.mean)

    def __repr__(self) -> str:
        how = f"{self.method}, {_queries(self.samples)}" if self.samples else self.method
        return (
            f"OutputMoments in R^{self.dim} ({how})\n"
            f"  mean       {_listed(self.mean)}  (error at most {self.mean_error.max():.2g})\n"
            f"  covariance diagonal {_listed(np.diag(self.covariance))}, trace "
            f"{np.trace(self.covariance):.6g}  (error at most {self.covariance_error.max():.2g})"
        )
