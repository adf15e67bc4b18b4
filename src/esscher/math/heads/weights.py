"""Heads from weights over a token law, or from the horizon that they are to have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import (
    Array,
    as_array,
    as_dim,
    as_finite,
    as_nonnegative,
    check_memory,
)
from esscher.math.coupling import Moments, symmetric_root
from esscher.math.heads.head import Head, Tokens
from esscher.math.laws import Gaussian, Law, TiltDomain, as_law

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
        return weight_head(
            law,
            query=self.query_weight,
            key=self.key_weight,
            value=self.value_weight,
            query_bias=self.query_bias,
            key_bias=self.key_bias,
            value_bias=self.value_bias,
            scale=self.scale,
        )

    def scaled(self, factor: float) -> WeightHead:
        """Return the head with its tilts multiplied by ``factor`` (horizons scale with it)."""
        if not np.isfinite(factor):
            raise InputError(f"factor is {factor!r}; it must be finite")
        return WeightHead(
            self.law,
            self.query_weight * factor,
            self.key_weight,
            self.value_weight,
            self.query_bias * factor,
            self.key_bias,
            self.value_bias,
            self.scale,
        )

    def _one_sided_psi(self) -> float:
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
    m = _interaction(d, horizon, spectrum, matrix)
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


def _interaction(
    d: int, horizon: float | None, spectrum: ArrayLike | None, matrix: ArrayLike | None
) -> Array:
    """Return the matrix M that the caller described in one of three ways."""
    given = [x is not None for x in (horizon, spectrum, matrix)]
    if sum(given) != 1:
        raise InputError("give exactly one of horizon, spectrum and matrix")
    if horizon is not None:
        return as_nonnegative(horizon, "horizon") * np.eye(d)
    if spectrum is not None:
        values = np.atleast_1d(as_array(spectrum, "spectrum"))
        if values.shape != (d,):
            raise InputError(f"spectrum has shape {values.shape}; it must have length {d}")
        return np.diag(values)
    m = np.atleast_2d(as_array(matrix if matrix is not None else [], "matrix"))
    if m.shape != (d, d):
        raise InputError(f"matrix has shape {m.shape}; it must be ({d}, {d})")
    return m
