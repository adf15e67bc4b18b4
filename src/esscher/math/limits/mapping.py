"""Results of the infinite-token limits: numbers, the method behind them, their errors.

A law without a limit at the tilts that occur is an answer, not an error: it is a
:class:`NoLimit`, with the fraction of queries concerned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import InputError, UndefinedError
from esscher.core.validation import Array, as_points
from esscher.math.heads import Head, WeightHead, as_head
from esscher.math.laws import Gaussian

#: Entries of a vector that the repr prints before it goes on with an ellipsis.
SHOWN = 6


def _listed(vector: Array) -> str:
    """Print the first entries of a vector."""
    entries = ", ".join(f"{entry:.4g}" for entry in vector[:SHOWN])
    return f"[{entries}{', ...' if len(vector) > SHOWN else ''}]"


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
        How the moments were computed.
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

    def __repr__(self) -> str:
        how = f"{self.method}, {self.samples:,} queries" if self.samples else self.method
        return (
            f"OutputMoments in R^{len(self.mean)} ({how})\n"
            f"  mean       {_listed(self.mean)}  (error at most {self.mean_error.max():.2g})\n"
            f"  covariance diagonal {_listed(np.diag(self.covariance))}, trace "
            f"{np.trace(self.covariance):.6g}  (error at most {self.covariance_error.max():.2g})"
        )


# The limit map: what attention returns for a query once there are infinitely many tokens.
#
# For Gaussian tokens it is affine, so that Gaussian tokens give Gaussian outputs.


def limit_map(head: Head, tokens: ArrayLike | None = None, tilts: ArrayLike | None = None) -> Array:
    """``Gamma(q) = V grad K(t) + b_v`` at given queries.

    Parameters
    ----------
    head
        Any head.
    tokens
        Tokens x of the queries, of shape (..., d), for a head from weights: ``t = A x + a``.
    tilts
        Or the tilts ``q / sqrt(d_k)`` of the keys, of shape (..., d_k), for any head.

    Returns
    -------
    Array
        Of shape (..., d_v); ``nan`` where there is no limit.
    """
    as_head(head)
    if (tokens is None) == (tilts is None):
        raise InputError("give the queries either as tokens=... or as tilts=...")
    if tilts is not None:
        # Not head.key_dim for weights: it needs moments, which heavy-tailed laws do not have.
        dim = len(head.query_weight) if isinstance(head, WeightHead) else head.key_dim
        t = as_points(tilts, dim, "tilts")
    elif isinstance(head, WeightHead) and tokens is not None:
        points = as_points(tokens, head.law.dim, "tokens")
        rows = head.tokens(points.reshape(-1, head.law.dim)).tilts
        t = rows.reshape(*points.shape[:-1], rows.shape[-1])
    else:
        raise InputError(
            f"a {type(head).__name__} has no weights to turn tokens into queries; "
            "give the queries as tilts=..."
        )
    return head.limit_map(t)


@dataclass(frozen=True, eq=False)
class AffineMap:
    """The map ``x -> slope x + offset``."""

    slope: Array
    offset: Array

    def __call__(self, points: Array) -> Array:
        """Map points, one per row."""
        return np.asarray(points @ self.slope.T + self.offset)

    def push(self, mean: Array, covariance: Array) -> tuple[Array, Array]:
        """Mean and covariance of the image of a law: ``L m + c`` and ``L Sigma L'``."""
        image = self.slope @ covariance @ self.slope.T
        return self.slope @ mean + self.offset, (image + image.T) / 2


def gaussian_limit_map(head: WeightHead) -> AffineMap:
    """``Gamma(x) = V (m + Sigma (A x + a)) + b_v`` for a head over N(m, Sigma)."""
    mean, covariance = head.law.mean, head.law.covariance
    # V Sigma W_k' first: it has as many columns as keys have dimensions, A as many as tokens.
    reach = head.value_weight @ covariance @ head.key_weight.T * head.scale
    return AffineMap(
        slope=reach @ head.query_weight,
        offset=head.value_weight @ mean + reach @ head.query_bias + head.value_bias,
    )


# Deep stacks of attention layers on Gaussian tokens: an exact recursion on (mean, covariance).
#
# In the infinite-token limit a head over N(m, Sigma) is the affine map
# ``Gamma(x) = V (m + Sigma (A x + a)) + b_v``. With a residual connection a layer is affine too,
# ``x -> L x + c``, so it turns N(m, Sigma) into N(L m + c, L Sigma L'): the law that the next layer
# sees. L depends on Sigma; without normalisation the covariance can grow doubly exponentially in
# depth.


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """The layer ``x -> residual * x + O Gamma(x)``.

    Attributes
    ----------
    head
        A head from weights; its own law is replaced by the law that reaches the layer.
    output
        O, of shape (d, d_v). Several heads are one whose O and values are theirs side by side.
    residual
        Factor of the residual connection; 0 for none.
    """

    head: WeightHead
    output: Array
    residual: float = 1.0

    def __post_init__(self) -> None:
        wanted = (self.head.law.dim, len(self.head.value_weight))
        if np.shape(self.output) != wanted:
            raise InputError(f"output has shape {np.shape(self.output)}; it must be {wanted}")

    def limit_map(self, law: Gaussian) -> AffineMap:
        """``L = residual I + O V Sigma A`` and the matching offset."""
        head_map = gaussian_limit_map(self.head.with_law(law))
        slope = self.residual * np.eye(law.dim) + self.output @ head_map.slope
        return AffineMap(slope, self.output @ head_map.offset)


@dataclass(frozen=True, eq=False)
class StackLimit:
    """The law of the tokens before, between and after the layers of a stack.

    Attributes
    ----------
    means
        Of shape (layers + 1, d); entry 0 belongs to the tokens that enter.
    covariances
        Of shape (layers + 1, d, d).
    horizons
        Horizon of each layer's head on the law that reaches it.
    maps
        The affine map of each layer.
    """

    means: Array
    covariances: Array
    horizons: Array
    maps: tuple[AffineMap, ...]


def gaussian_stack(layers: Sequence[AttentionLayer], law: Gaussian) -> StackLimit:
    """Push Gaussian tokens N(m, Sigma) through a stack of layers.

    Raises
    ------
    UndefinedError
        When the covariance or a horizon grows beyond floating point, naming the layer.
    """
    if not isinstance(law, Gaussian):
        raise InputError(f"the recursion is exact for Gaussian tokens only; got {law!r}")
    for i, layer in enumerate(layers):
        if layer.head.law.dim != law.dim:
            raise InputError(
                f"the tokens live in R^{law.dim} but layer {i} acts on R^{layer.head.law.dim}"
            )
    means, covariances = [law.mean], [law.covariance]
    horizons, maps = [], []
    for i, layer in enumerate(layers):
        overflow = UndefinedError(
            f"layer {i} overflows: the tokens that reach it have covariances up to "
            f"{float(np.abs(law.covariance).max()):.3g}; scale the output matrices down, or stop "
            "the stack before this layer"
        )
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            try:
                horizons.append(layer.head.with_law(law).horizon)
            except np.linalg.LinAlgError as error:
                raise overflow from error
            maps.append(layer.limit_map(law))
            mean, covariance = maps[-1].push(law.mean, law.covariance)
        if not all(np.isfinite(x).all() for x in (horizons[-1], mean, covariance)):
            raise overflow
        law = Gaussian(mean, covariance)
        means.append(mean)
        covariances.append(covariance)
    return StackLimit(np.stack(means), np.stack(covariances), np.array(horizons), tuple(maps))
