"""Hardmax attention: the tilt goes to infinity at fixed n (theory, section 7).

The infinite-token limit of the mean output of centred Gaussian tokens is 0, and the mean output of
n tokens approaches it only like a power of ``1/ln n``. One call, :func:`hardmax_curve`, gathers the
leading term, the exact value and a simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.validation import Array, as_dim, as_positive, as_queries, as_sizes
from esscher.math.theory.hardmax_exact import hardmax_exact, rms_leading_constant
from esscher.math.theory.hardmax_simulation import (
    HardmaxSimulation,
    LogarithmicFit,
    fit_logarithmic,
    hardmax_exponent,
    hardmax_simulated,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "HardmaxCurve",
    "HardmaxSimulation",
    "LogarithmicFit",
    "fit_logarithmic",
    "hardmax_curve",
    "hardmax_exact",
    "hardmax_exponent",
    "hardmax_leading",
    "hardmax_simulated",
]


#: Replicates of the simulation unless the caller says: a replicate on the line costs two numbers.
LINE_REPLICATES, REPLICATES = 100_000, 200


def hardmax_leading(sizes: ArrayLike, scale: float = 1.0, dim: int = 1) -> Array:
    """Leading term of the error of the hardmax mean as n grows.

    ``E|mean| ~ ln(4) scale / (2 sqrt(2 ln n))`` for d = 1 (Gumbel noise at both ends, and
    ``E|logistic| = ln 4``); ``sqrt(E|mean|^2) ~ c_d scale (ln n)^{-1/2-(d-1)/4}`` for d > 1, with
    c_d from the Hüsler-Reiss law of maxima in neighbouring directions. The relative correction is
    of order ln ln n / ln n: compare with :func:`hardmax_exact` at any n that occurs.
    """
    n, sigma, d = as_sizes(sizes), as_positive(scale, "scale"), as_dim(dim)
    constant = math.log(4.0) / math.sqrt(8.0) if d == 1 else rms_leading_constant(d)
    return np.asarray(sigma * constant * np.log(n) ** -hardmax_exponent(d))


@dataclass(frozen=True, eq=False)
class HardmaxCurve:
    """Error of the hardmax mean at each size: leading term, exact, simulated.

    Attributes
    ----------
    simulation
        The simulation with its samples, seed and settings.
    leading
        Leading term as n grows.
    exact
        Exact values; None for queries from the tokens in more than one dimension.
    """

    simulation: HardmaxSimulation
    leading: Array
    exact: Array | None

    @property
    def sizes(self) -> Array:
        """Numbers of tokens."""
        return self.simulation.sizes

    @property
    def simulated(self) -> Array:
        """Simulated values."""
        return self.simulation.value

    @property
    def standard_error(self) -> Array:
        """Standard errors of the simulated values."""
        return self.simulation.standard_error

    @property
    def certified(self) -> Array:
        """Share of simulated queries whose answer is certainly exact."""
        return self.simulation.certified

    @property
    def statistic(self) -> str:
        """``"mean"`` (d = 1) or ``"rms"`` (d > 1)."""
        return self.simulation.statistic

    @property
    def dim(self) -> int:
        """Dimension of the tokens."""
        return self.simulation.dim

    @property
    def exponent(self) -> float:
        """Power of ``1/ln n`` as n grows."""
        return hardmax_exponent(self.dim)

    def fit(self, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> LogarithmicFit:
        """Power of ``1/ln n`` fitted to the simulated values, with a bootstrap interval."""
        return fit_logarithmic(self.simulation, resamples, level, seed)

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as plain lists, numbers and strings."""
        return self.simulation.to_dict() | {
            "leading": self.leading.tolist(),
            "exact": None if self.exact is None else self.exact.tolist(),
            "exponent": self.exponent,
        }

    def to_frame(self) -> pd.DataFrame:
        """Return the curve as a data frame, one row per size (nan where nothing is exact)."""
        import pandas as pd

        return pd.DataFrame(
            {
                "n": self.sizes,
                "leading": self.leading,
                "exact": np.full(len(self.sizes), np.nan) if self.exact is None else self.exact,
                "simulated": self.simulated,
                "standard_error": self.standard_error,
                "certified": self.certified,
            }
        )

    def __repr__(self) -> str:
        name = {"rms": "sqrt(E|mean|^2)", "mean": "E|mean|"}[self.statistic]
        rows = [
            f"hardmax {name}, d = {self.dim}, queries from the {self.simulation.queries}, "
            f"decays like (ln n)^-{self.exponent:g}"
        ]
        for row in self.to_frame().itertuples():
            exact = "" if self.exact is None else f"exact {row.exact:.6f}  "
            rows.append(
                f"  n = {row.n:<8.4g} {exact}leading {row.leading:.6f}  "
                f"simulated {row.simulated:.4f} +- {row.standard_error:.1g}"
            )
        if self.certified.min() < 0.999:
            rows.append(f"  only {self.certified.min():.3f} of the queries certified at some size")
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False))


def hardmax_curve(
    sizes: ArrayLike,
    dim: int = 1,
    scale: float = 1.0,
    replicates: int | None = None,
    seed: int = 0,
    queries: str = "population",
) -> HardmaxCurve:
    """Error of the hardmax mean of N(0, scale^2 I_dim) tokens: leading, exact and simulated.

    Parameters
    ----------
    sizes
        Numbers of tokens, from 2 on; 1e12 costs no more than 1e4.
    dim, scale
        Dimension and standard deviation of the tokens.
    replicates, seed
        Replicates of the simulation (at least 2; unless given, 100,000 on the line, where only the
        extremes are drawn, and 200 above) and its seed.
    queries
        ``"population"`` (directions independent of the keys) or ``"tokens"``.
    """
    if replicates is None:
        replicates = LINE_REPLICATES if dim == 1 else REPLICATES
    simulation = hardmax_simulated(sizes, replicates, seed, dim, scale, as_queries(queries))
    available = simulation.dim == 1 or queries == "population"
    exact = hardmax_exact(sizes, scale, queries, dim) if available else None
    return HardmaxCurve(simulation, hardmax_leading(sizes, scale, dim), exact)
