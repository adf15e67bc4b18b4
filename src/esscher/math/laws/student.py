"""Student t tokens: power-law tails, so there is no infinite-token limit at any tilt but 0."""

from __future__ import annotations

import numpy as np

from esscher.core.errors import UndefinedError
from esscher.core.validation import Array, as_dim, as_positive
from esscher.math.laws.law import Law, TiltDomain, frozen


class StudentT(Law):
    """Multivariate t: ``scale * Z / sqrt(chi2_df / df)`` with Z standard normal in R^dim.

    At tilt 0 attention is the plain average: the tilted mean is the mean (``nan`` for df <= 1,
    where the law of large numbers fails) and the tilted covariance is the covariance (``nan`` for
    df <= 2).
    """

    name = "student"

    def __init__(self, dim: int, df: float, scale: float = 1.0) -> None:
        self._dim = as_dim(dim)
        self._df = as_positive(df, "df")
        self._scale = as_positive(scale, "scale")

    @property
    def dim(self) -> int:
        """Dimension d of the tokens."""
        return self._dim

    @property
    def df(self) -> float:
        """Degrees of freedom, the tail index of the law."""
        return self._df

    @property
    def scale(self) -> float:
        """Scale of every coordinate."""
        return self._scale

    @property
    def mean(self) -> Array:
        """The mean, 0, which exists for df > 1."""
        if self._df <= 1:
            raise UndefinedError(f"a Student t law with df = {self._df:g} <= 1 has no mean")
        return frozen(np.zeros(self._dim))

    @property
    def covariance(self) -> Array:
        """``scale^2 df / (df - 2)`` times the identity, which exists for df > 2."""
        if self._df <= 2:
            raise UndefinedError(f"a Student t law with df = {self._df:g} <= 2 has no covariance")
        return frozen(self._variance * np.eye(self._dim))

    @property
    def tilt_domain(self) -> TiltDomain:
        """Only t = 0: the law has no exponential moments."""
        return TiltDomain("zero")

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw ``n`` tokens."""
        normal = rng.standard_normal((n, self._dim))
        # One divisor for all coordinates: they are uncorrelated but not independent.
        divisor = np.sqrt(rng.chisquare(self._df, (n, 1)) / self._df)
        return np.asarray(self._scale * normal / divisor)

    @property
    def _variance(self) -> float:
        return self._scale**2 * self._df / (self._df - 2) if self._df > 2 else float("nan")

    def _log_mgf(self, t: Array) -> Array:
        return np.zeros(t.shape[:-1])

    def _tilted_mean(self, t: Array) -> Array:
        return np.full(t.shape, 0.0 if self._df > 1 else np.nan)

    def _tilted_covariance(self, t: Array) -> Array:
        matrix = np.full((self._dim, self._dim), 0.0 if self._df > 2 else np.nan)
        np.fill_diagonal(matrix, self._variance)
        return np.array(np.broadcast_to(matrix, (*t.shape, self._dim)))

    def _parameters(self) -> dict[str, object]:
        return {"dim": self._dim, "df": self._df, "scale": self._scale}
