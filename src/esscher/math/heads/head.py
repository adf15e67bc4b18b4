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
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import InputError, UndefinedError
from esscher.core.validation import Array, as_kind
from esscher.math.coupling import Coupling, Moments, symmetric_root
from esscher.math.laws import TiltDomain

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
        return self.moments.key_dim

    @property
    def value_dim(self) -> int:
        """Dimension of the values, hence of the output."""
        return self.moments.value_dim

    @cached_property
    def coupling(self) -> Coupling:
        """Second-order structure in whitened key coordinates: all that Gaussian theory needs."""
        return Coupling.from_moments(self.moments)

    @property
    def M(self) -> Array:
        """``S_k^{1/2} S_q^{1/2}``, of shape (d_k, d_k)."""
        moments = self.moments
        return symmetric_root(moments.cov_kk) @ symmetric_root(moments.cov_tt)

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
            return self._one_sided_psi()
        raise InputError(
            f"unknown convention {convention!r} for Psi; choose from {', '.join(PSI_CONVENTIONS)}"
        )

    def _one_sided_psi(self) -> float:
        raise UndefinedError(
            "the one-sided Psi needs the matrix A and the token covariance; "
            "build the head from weights over a law, or use the two-sided convention"
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
