"""A head is the joint law of (tilt, key, value) of a token.

With ``q, k, v`` the vectors that enter the softmax, the tilt is ``t = q / sqrt(d_k)`` and the logit
of key ``k`` is ``<t, k>``: the 1/sqrt(d_k) belongs to the tilt, once and for all. Everything above
this folder (limits, theory, sweeps, probes) sees a head only through

* ``sample``: independent tokens as triples (t, k, v);
* ``moments``: mean and covariance of the triple, hence horizons, spectrum, mean tilt;
* ``limit_map``: the infinite-token output at given tilts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esscher.core.errors import InputError, UndefinedError
from esscher.core.validation import (
    Array,
    as_array,
    as_dim,
    as_finite,
    as_kind,
    as_nonnegative,
    check_memory,
)
from esscher.math.coupling import Coupling, Moments, symmetric_root
from esscher.math.laws import FiniteTokens, Gaussian, Law, TiltDomain, as_law

#: Names of the conventions for the coupling Psi found in the literature.
PSI_CONVENTIONS = ("two-sided", "one-sided")


class Tokens(NamedTuple):
    """Tokens as a head sees them: one row per token in each array."""

    tilts: Array
    keys: Array
    values: Array


class Head(ABC):
    """The joint law of (tilt, key, value); :func:`gaussian_head` is the shortest way to one."""

    #: Whether (t, k, v) is jointly Gaussian, so that the Gaussian theory is exact.
    is_gaussian: bool = False

    @property
    @abstractmethod
    def moments(self) -> Moments:
        """Mean and covariance of the triple (t, k, v)."""

    @abstractmethod
    def sample(self, n: int, rng: np.random.Generator) -> Tokens:
        """Draw ``n`` independent tokens."""

    @abstractmethod
    def limit_map(self, tilts: ArrayLike) -> Array:
        """Infinite-token output at the given tilts; ``nan`` where there is no limit."""

    @property
    @abstractmethod
    def tilt_domain(self) -> TiltDomain:
        """Tilts (in the law's coordinates, see ``law_tilts``) at which the limit exists."""

    @abstractmethod
    def law_tilts(self, tilts: ArrayLike) -> Array:
        """Tilts of the underlying token law that correspond to tilts of the keys."""

    @property
    def key_dim(self) -> int:
        """Dimension d_k of the keys."""
        return len(self.moments.mean_k)

    @property
    def value_dim(self) -> int:
        """Dimension of the values, hence of the output."""
        return len(self.moments.mean_v)

    @cached_property
    def coupling(self) -> Coupling:
        """Second-order structure in whitened key coordinates: all that Gaussian theory needs."""
        return Coupling.from_moments(self.moments)

    @property
    def tau(self) -> Array:
        """Mean tilt in whitened key coordinates, ``S_k^{1/2} E[t]``."""
        return symmetric_root(self.moments.cov_kk) @ self.moments.mean_t

    @property
    def spectrum(self) -> Array:
        """Singular values of M, largest first."""
        return self.coupling.spectrum

    @property
    def horizon(self) -> float:
        """Two-sided attention horizon ``H = ||M||_2``."""
        return self.coupling.horizon

    @property
    def frobenius(self) -> float:
        """Frobenius horizon ``F = ||M||_F``; the typical squared tilt is ``F^2 + |tau|^2``."""
        return self.coupling.frobenius

    def psi(self, convention: str = "two-sided") -> float:
        """Coupling Psi under a named convention.

        ``"two-sided"`` (published version of the paper) is ``H^2``; ``"one-sided"`` (its first
        version) is ``||Sigma||_2 * ||Sigma^{1/2} A||_2^2`` and needs a head built from weights.
        """
        if convention == "two-sided":
            return self.horizon**2
        if convention == "one-sided":
            raise UndefinedError(
                "the one-sided Psi needs the matrix A and the token covariance; "
                "build the head from weights over a law, or use the two-sided convention"
            )
        raise InputError(
            f"unknown convention {convention!r} for Psi; choose from {', '.join(PSI_CONVENTIONS)}"
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(key_dim={self.key_dim}, value_dim={self.value_dim}, "
            f"horizon={self.horizon:.4g}, frobenius={self.frobenius:.4g})"
        )


def as_head(value: object, name: str = "head") -> Head:
    """Return ``value`` if it is a head; else say how to make one."""
    remedy = "a head, such as esscher.gaussian_head(horizon=0.5)"
    return as_kind(value, Head, name, remedy)  # type: ignore[type-abstract]


# Heads from arrays of queries, keys and values.


@dataclass(frozen=True, repr=False, eq=False)
class ArrayHead(Head):
    """A head from arrays: the empirical law of the rows of (q, k, v).

    This is exactly the law of sampling those rows with replacement; its infinite-token limit is
    softmax attention over all of them.
    """

    tilts: Array
    keys: Array
    values: Array

    @cached_property
    def moments(self) -> Moments:
        """Mean and covariance of the rows (divided by their number)."""
        means = [x.mean(axis=0) for x in (self.tilts, self.keys, self.values)]
        t, k, v = self.tilts - means[0], self.keys - means[1], self.values - means[2]
        n = len(k)
        return Moments(
            mean_t=means[0],
            mean_k=means[1],
            mean_v=means[2],
            cov_tt=t.T @ t / n,
            cov_kk=k.T @ k / n,
            cov_vv=v.T @ v / n,
            cov_tk=t.T @ k / n,
            cov_tv=t.T @ v / n,
            cov_kv=k.T @ v / n,
        )

    @cached_property
    def cloud(self) -> FiniteTokens:
        """The rows (k, v) as a finite set of tokens."""
        return FiniteTokens(np.hstack([self.keys, self.values]))

    def sample(self, n: int, rng: np.random.Generator) -> Tokens:
        """Draw ``n`` rows with replacement."""
        return self.take(self.sample_rows(n, rng))

    def sample_rows(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Numbers of the rows that :meth:`sample` draws."""
        return rng.integers(len(self.keys), size=n)

    def take(self, rows: NDArray[np.int64]) -> Tokens:
        """Some rows, by number."""
        return Tokens(self.tilts[rows], self.keys[rows], self.values[rows])

    @property
    def tilt_domain(self) -> TiltDomain:
        """Every tilt: the law has finite support."""
        return TiltDomain("all")

    def law_tilts(self, tilts: ArrayLike) -> Array:
        """The tilts themselves."""
        return as_array(tilts, "tilts")

    def limit_map(self, tilts: ArrayLike) -> Array:
        """Softmax attention over all rows."""
        t = as_array(tilts, "tilts")
        padded = np.concatenate([t, np.zeros((*t.shape[:-1], self.value_dim))], axis=-1)
        return self.cloud.tilted_mean(padded)[..., self.key_dim :]


def array_head(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, scale: float | None = None
) -> ArrayHead:
    """Build a head from arrays of shape (n, d_k), (n, d_k) and (n, d_v), one row per token.

    ``q`` and ``k`` are the vectors that enter the softmax; ``scale`` is 1/sqrt(d_k) unless given.
    """
    queries, keys, values = as_array(q, "q", 2), as_array(k, "k", 2), as_array(v, "v", 2)
    if queries.shape != keys.shape or len(values) != len(keys):
        raise InputError(
            f"q, k, v have shapes {queries.shape}, {keys.shape}, {values.shape}; "
            "q and k must have the same shape and v as many rows"
        )
    if len(keys) < 2:
        raise InputError(f"a head from arrays needs at least 2 tokens; got {len(keys)}")
    factor = keys.shape[1] ** -0.5 if scale is None else as_finite(scale, "scale")
    return ArrayHead(queries * factor, keys, values)


# Heads from weights over a token law, or from the horizon that they are to have.

#: Matrices of d x d numbers that a head and its limit keep at once, at the least.
MATRICES = 8


@dataclass(frozen=True, repr=False, eq=False)
class WeightHead(Head):
    """A head from weights and biases over a token law: ``q = W_q x + b_q`` and so on.

    Weights have shape (d_k, d) for queries and keys, (d_v, d) for values. ``scale`` multiplies the
    logits and is 1/sqrt(d_k) unless given.
    """

    law: Law
    query_weight: Array
    key_weight: Array
    value_weight: Array
    query_bias: Array
    key_bias: Array
    value_bias: Array
    scale: float

    @property
    def is_gaussian(self) -> bool:  # type: ignore[override]
        """Whether the tokens are Gaussian."""
        return isinstance(self.law, Gaussian)

    @property
    def A(self) -> Array:
        """``W_k' W_q * scale``: the tilt of the token law is ``A x + a``."""
        return self.key_weight.T @ self.query_weight * self.scale

    @property
    def a(self) -> Array:
        """``W_k' b_q * scale``, the part of the tilt that does not depend on the query."""
        return self.key_weight.T @ self.query_bias * self.scale

    @cached_property
    def moments(self) -> Moments:
        """Mean and covariance of (t, k, v), from those of the law."""
        mean, covariance = self.law.mean, self.law.covariance
        w_t = self.query_weight * self.scale
        w_k, w_v = self.key_weight, self.value_weight
        t_cov, k_cov = w_t @ covariance, w_k @ covariance
        return Moments(
            mean_t=w_t @ mean + self.query_bias * self.scale,
            mean_k=w_k @ mean + self.key_bias,
            mean_v=w_v @ mean + self.value_bias,
            cov_tt=t_cov @ w_t.T,
            cov_kk=k_cov @ w_k.T,
            cov_vv=w_v @ covariance @ w_v.T,
            cov_tk=t_cov @ w_k.T,
            cov_tv=t_cov @ w_v.T,
            cov_kv=k_cov @ w_v.T,
        )

    def tokens(self, points: ArrayLike) -> Tokens:
        """The triples (t, k, v) of given tokens x, one per row."""
        x = as_array(points, "tokens", ndim=2)
        if x.shape[1] != self.law.dim:
            raise InputError(f"tokens have shape {x.shape}; the law lives in R^{self.law.dim}")
        return Tokens(
            (x @ self.query_weight.T + self.query_bias) * self.scale,
            x @ self.key_weight.T + self.key_bias,
            x @ self.value_weight.T + self.value_bias,
        )

    def sample(self, n: int, rng: np.random.Generator) -> Tokens:
        """Draw ``n`` independent tokens."""
        return self.tokens(self.law.sample(n, rng))

    @property
    def tilt_domain(self) -> TiltDomain:
        """Tilt domain of the law."""
        return self.law.tilt_domain

    def law_tilts(self, tilts: ArrayLike) -> Array:
        """``W_k' t``: a tilt of the keys, as a tilt of the tokens."""
        return as_array(tilts, "tilts") @ self.key_weight

    def limit_map(self, tilts: ArrayLike) -> Array:
        """``W_v grad K(W_k' t) + b_v``."""
        return self.law.tilted_mean(self.law_tilts(tilts)) @ self.value_weight.T + self.value_bias

    def with_law(self, law: Law) -> WeightHead:
        """Return the head with the same weights over another law of the same dimension."""
        if law.dim != self.law.dim:
            raise InputError(f"the law lives in R^{law.dim}, the weights in R^{self.law.dim}")
        return replace(self, law=law)

    def scaled(self, factor: float) -> WeightHead:
        """Return the head with its tilts multiplied by ``factor`` (horizons scale with it)."""
        if not np.isfinite(factor):
            raise InputError(f"factor is {factor!r}; it must be finite")
        return replace(
            self,
            query_weight=self.query_weight * factor,
            query_bias=self.query_bias * factor,
        )

    def psi(self, convention: str = "two-sided") -> float:
        """Coupling Psi under a named convention: see :meth:`Head.psi`."""
        if convention != "one-sided":
            return super().psi(convention)
        covariance = self.law.covariance
        reach = float(np.linalg.norm(covariance, 2))
        return reach * float(np.linalg.norm(symmetric_root(covariance) @ self.A, 2)) ** 2


def weight_head(
    law: Law,
    *,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike | None = None,
    query_bias: ArrayLike | None = None,
    key_bias: ArrayLike | None = None,
    value_bias: ArrayLike | None = None,
    scale: float | None = None,
) -> WeightHead:
    """Build a head from weights and biases over a token law.

    Parameters
    ----------
    law
        Law of the tokens, in R^d.
    query, key
        W_q and W_k, of shape (d_k, d).
    value
        W_v, of shape (d_v, d); the identity if left out.
    query_bias, key_bias, value_bias
        Biases; zero if left out.
    scale
        Factor of the logits; 1/sqrt(d_k) if left out.
    """
    as_law(law)
    w_q, w_k = as_array(query, "query weight", 2), as_array(key, "key weight", 2)
    w_v = np.eye(law.dim) if value is None else as_array(value, "value weight", 2)
    if w_q.shape != w_k.shape:
        raise InputError(f"query weight has shape {w_q.shape} but key weight {w_k.shape}")
    for name, weight in (("query", w_q), ("key", w_k), ("value", w_v)):
        if weight.shape[1] != law.dim:
            raise InputError(
                f"{name} weight has shape {weight.shape}; its last axis must be the law's "
                f"dimension {law.dim}"
            )
    biases: list[Array] = []
    for name, bias, weight in (
        ("query", query_bias, w_q),
        ("key", key_bias, w_k),
        ("value", value_bias, w_v),
    ):
        vector = np.zeros(len(weight)) if bias is None else as_array(bias, f"{name} bias", 1)
        if len(vector) != len(weight):
            raise InputError(
                f"{name} bias has length {len(vector)} but its weight has {len(weight)} rows"
            )
        biases.append(vector)
    factor = len(w_q) ** -0.5 if scale is None else as_finite(scale, "scale")
    return WeightHead(law, w_q, w_k, w_v, biases[0], biases[1], biases[2], factor)


def law_head(
    law: Law,
    *,
    horizon: float | None = None,
    spectrum: ArrayLike | None = None,
    matrix: ArrayLike | None = None,
    tau: ArrayLike | float | None = None,
) -> WeightHead:
    """Build a head over any law with a given horizon, spectrum or matrix M.

    The tilt is ``A x + a`` with ``Sigma^{1/2} A Sigma^{1/2} = M``; keys and values are the tokens.
    ``horizon`` gives the flat spectrum ``M = horizon * I``. ``tau`` is the mean tilt in whitened
    coordinates (a number means along the first coordinate).
    """
    d = as_law(law).dim
    check_memory(MATRICES * 8 * d * d, f"dim is {d}; a head of that dimension")
    if sum(x is not None for x in (horizon, spectrum, matrix)) != 1:
        raise InputError("give exactly one of horizon, spectrum and matrix")
    if horizon is not None:
        m = as_nonnegative(horizon, "horizon") * np.eye(d)
    elif spectrum is not None:
        values = np.atleast_1d(as_array(spectrum, "spectrum"))
        if values.shape != (d,):
            raise InputError(f"spectrum has shape {values.shape}; it must have length {d}")
        m = np.diag(values)
    else:
        m = np.atleast_2d(as_array(matrix if matrix is not None else [], "matrix"))
        if m.shape != (d, d):
            raise InputError(f"matrix has shape {m.shape}; it must be ({d}, {d})")
    root = symmetric_root(law.covariance)
    try:
        inverse = np.linalg.inv(root)
    except np.linalg.LinAlgError as error:
        raise InputError("the law's covariance is singular; give weights instead") from error
    a_matrix = inverse @ m @ inverse
    mean_tilt = np.zeros(d) if tau is None else np.atleast_1d(as_array(tau, "tau"))
    if mean_tilt.size == 1 and d > 1:
        mean_tilt = np.concatenate([mean_tilt, np.zeros(d - 1)])
    if mean_tilt.shape != (d,):
        raise InputError(f"tau has shape {mean_tilt.shape}; it must be a number or of length {d}")
    bias = inverse @ mean_tilt - a_matrix @ law.mean
    return weight_head(law, query=a_matrix, key=np.eye(d), query_bias=bias, scale=1.0)


def gaussian_head(
    horizon: float | None = None,
    dim: int | None = None,
    *,
    spectrum: ArrayLike | None = None,
    matrix: ArrayLike | None = None,
    tau: ArrayLike | float | None = None,
) -> WeightHead:
    """Build a head over standard normal tokens: ``gaussian_head(horizon=1.5, dim=8)``.

    Parameters
    ----------
    horizon
        H; the spectrum is flat, ``M = H * I`` in dimension ``dim`` (1 if left out).
    dim
        Dimension of the tokens; follows from ``spectrum`` or ``matrix`` when one is given.
    spectrum
        Singular values of M, which is then diagonal (negative entries are allowed).
    matrix
        M itself, any square matrix.
    tau
        Mean tilt; a number means along the first coordinate.
    """
    if spectrum is not None:
        size = np.atleast_1d(as_array(spectrum, "spectrum")).size
    elif matrix is not None:
        size = len(np.atleast_2d(as_array(matrix, "matrix")))
    else:
        size = 1 if dim is None else as_dim(dim)
    if dim is not None and as_dim(dim) != size:
        raise InputError(f"dim is {dim} but the spectrum or matrix has dimension {size}")
    return law_head(
        Gaussian(dim=max(size, 1)), horizon=horizon, spectrum=spectrum, matrix=matrix, tau=tau
    )
