"""Second moments of a head, and the same in whitened key coordinates.

Gaussian theory sees a head only through these. In whitened coordinates keys are
``eta = root^+ (k - E k)`` with identity covariance, tilts are ``a = root' t`` (so that
``<t, k - E k> = <a, eta>``), and values are ``v = E v + B eta + eps`` with ``eps`` uncorrelated
with ``eta``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from esscher.core.errors import InputError
from esscher.core.validation import ROUNDING, Array

#: Eigenvalues of a key covariance below this share of the largest one count as zero.
RANK_TOLERANCE = 1e-12
#: Singular values of M that are kept of a captured head.
SHOWN = 16


def symmetric_root(covariance: Array) -> Array:
    """Symmetric positive semidefinite square root."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and covariance blocks of the triple (tilt, key, value)."""

    mean_t: Array
    mean_k: Array
    mean_v: Array
    cov_tt: Array
    cov_kk: Array
    cov_vv: Array
    cov_tk: Array
    cov_tv: Array
    cov_kv: Array


@dataclass(frozen=True, eq=False)
class Coupling:
    """Second-order structure of a head in whitened key coordinates, G diagonal.

    Attributes
    ----------
    variances
        Diagonal of ``G = Cov(a)``, largest first: the squared singular values of M.
    cross
        ``X = E[a_c eta']``, zero when queries are drawn from the population.
    tau
        Mean of ``a``.
    loading
        B, of shape (d_v, r): values are ``E v + B eta + eps``.
    residual
        Covariance of ``eps``.
    residual_cross
        ``Cov(a, eps)``, of shape (r, d_v); zero when queries are drawn from the population.
    """

    variances: Array
    cross: Array
    tau: Array
    loading: Array
    residual: Array
    residual_cross: Array

    @classmethod
    def from_moments(cls, moments: Moments) -> Coupling:
        """Whiten the keys and turn to the eigenvectors of G."""
        values, vectors = np.linalg.eigh(moments.cov_kk)
        keep = values > RANK_TOLERANCE * max(float(values[-1]), 1e-300)
        if not keep.any():
            raise InputError("the keys of this head do not vary: attention to them is uniform")
        roots, basis = np.sqrt(values[keep]), vectors[:, keep]
        root, inverse = basis * roots, basis / roots
        g = root.T @ moments.cov_tt @ root
        variances, turn = np.linalg.eigh((g + g.T) / 2)
        order = np.argsort(variances)[::-1]
        root, inverse = root @ turn[:, order], inverse @ turn[:, order]
        cross = root.T @ moments.cov_tk @ inverse
        loading = moments.cov_kv.T @ inverse
        residual = moments.cov_vv - loading @ loading.T
        if float(np.abs(residual).max()) <= 1e-10 * float(np.abs(moments.cov_vv).max()):
            residual = np.zeros_like(residual)  # values are a function of the keys, up to rounding
        return cls(
            variances=np.maximum(variances[order], 0.0),
            cross=cross,
            tau=root.T @ moments.mean_t,
            loading=loading,
            residual=(residual + residual.T) / 2,
            residual_cross=root.T @ moments.cov_tv - cross @ loading.T,
        )

    def population(self) -> Coupling:
        """Return the coupling when queries are drawn independently of the keys."""
        return replace(
            self,
            cross=np.zeros_like(self.cross),
            residual_cross=np.zeros_like(self.residual_cross),
        )

    @cached_property
    def spectrum(self) -> Array:
        """Singular values of M, largest first."""
        return np.sqrt(self.variances)

    @property
    def horizon(self) -> float:
        """H, the largest singular value of M."""
        return float(self.spectrum[0]) if self.spectrum.size else 0.0

    @property
    def frobenius(self) -> float:
        """F, the Frobenius norm of M."""
        return float(np.sqrt(self.variances.sum()))

    @property
    def value_gram(self) -> Array:
        """``W = B' B``."""
        return self.loading.T @ self.loading

    @property
    def residual_trace(self) -> float:
        """Trace of the covariance of ``eps``."""
        return float(np.trace(self.residual))

    @property
    def isotropy(self) -> tuple[float, float] | None:
        """``(h, c)`` if ``M = h I``, ``W = c I``, ``tau = 0`` and values follow keys; else None.

        Rotations then leave the head unchanged and averages over queries are one-dimensional.
        """
        g, gram = self.variances, self.value_gram
        identity = np.eye(len(g))
        h, c = float(np.trace(self.cross)) / len(g), float(np.trace(gram)) / len(g)
        close = (
            np.allclose(self.cross, h * identity, rtol=0, atol=ROUNDING * max(abs(h), 1e-300))
            and np.allclose(g, h * h, rtol=ROUNDING, atol=0)
            and np.allclose(gram, c * identity, rtol=0, atol=ROUNDING * max(c, 1e-300))
            and float(np.abs(self.tau).max()) <= ROUNDING * (1 + abs(h))
            and not self.residual.any()
        )
        return (h, c) if close else None


@dataclass(frozen=True, eq=False)
class CoupledMoments:
    """``M = S_k^{1/2} S_q^{1/2}`` of a head, and the mean tilt.

    Queries and keys need not be the same tokens: only their own covariances enter.
    """

    horizon: float
    frobenius: float
    tau: float
    spectrum: Array

    @classmethod
    def of(cls, tilts: Array, keys: Array) -> CoupledMoments:
        """Of rows of tilts and keys."""
        return cls.from_moments(RowMoments.of(tilts), RowMoments.of(keys))

    @classmethod
    def from_moments(cls, tilts: RowMoments, keys: RowMoments) -> CoupledMoments:
        """Of the moments of tilts and keys."""
        key_root = symmetric_root(keys.covariance)
        spectrum = np.linalg.svd(key_root @ symmetric_root(tilts.covariance), compute_uv=False)
        return cls(
            horizon=float(spectrum[0]),
            frobenius=float(np.linalg.norm(spectrum)),
            tau=float(np.linalg.norm(key_root @ tilts.mean)),
            spectrum=np.asarray(spectrum[:SHOWN], dtype=np.float64),
        )

    @property
    def log_burn_in(self) -> float:
        """``F^2 + |tau|^2``: before e to this power a typical query has less than one token."""
        return self.frobenius**2 + self.tau**2


class RowMoments:
    """Mean and covariance of rows that come in parts.

    Centred sums are merged (Chan, Golub and LeVeque 1983): nothing cancels, however far from 0 the
    mean is, and no more than one part is held.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean: Array = np.zeros(0)
        self._scatter: Array = np.zeros((0, 0))

    @classmethod
    def of(cls, rows: Array) -> RowMoments:
        """Of rows that are all there."""
        moments = cls()
        moments.add(rows)
        return moments

    def add(self, rows: Array) -> None:
        """Take in some more rows."""
        if not len(rows):
            return
        mean = rows.mean(axis=0)
        centred = rows - mean
        scatter = centred.T @ centred
        if not self._count:
            self._count, self._mean, self._scatter = len(rows), mean, scatter
            return
        count = self._count + len(rows)
        gap = mean - self._mean
        self._scatter = self._scatter + scatter
        self._scatter += np.outer(gap, gap) * (self._count * len(rows) / count)
        self._mean = self._mean + gap * (len(rows) / count)
        self._count = count

    @property
    def mean(self) -> Array:
        """Mean of the rows."""
        return self._mean

    @property
    def covariance(self) -> Array:
        """Covariance of the rows about their mean, divided by their number."""
        return np.asarray(self._scatter / self._count)
