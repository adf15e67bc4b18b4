"""The three regimes of a head at n tokens: parametric, stable or frozen.

Over n keys a query of tilt strength s is at the position ``x = s / sqrt(2 ln n)``. The sum of its n
weights is a random energy model, with three kinds of error:

    x <= 1/2      parametric   many keys share the attention; the error is Gaussian, ~ n^{-1/2}
    1/2 < x < 1   stable       the largest keys make the error: an alpha-stable law, alpha = 1/x,
                               whose local exponent is 1 - 1/alpha = 1 - x
    x >= 1        frozen       a few keys take all the attention; the output follows the largest
                               key, which nears the limit like sqrt(2 ln n), not like a power

A head has queries of many strengths. The typical one has ``S = sqrt(F^2 + |tau|^2)``. For H > 1 the
error is carried by rarer, stronger queries, at ``x = H^2/(1 + H^2)`` at every n: the tail index
``1 + 1/H^2`` and the exponent ``1/(1 + H^2)`` of the theory page. So the head is at

    x = max( S / sqrt(2 ln n),  H^2/(1 + H^2) if H > 1 ).

In tokens: a head thaws at ``exp(S^2/2)``, has its burn-in at ``exp(S^2)``, and is parametric from
``exp(2 S^2)`` on, if H <= 1. All of this is to leading order in ln n, for Gaussian tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_nonnegative
from esscher.math.heads import Head

#: Names of the regimes, from many keys to one.
REGIMES = ("parametric", "stable", "frozen")


@dataclass(frozen=True)
class Boundaries:
    """Natural logarithms of the numbers of tokens at which a head changes its regime.

    ``thaw`` ends the frozen regime, ``burn_in`` is where a typical query has one effective token by
    the asymptotic formula, ``parametric`` begins the parametric regime (infinite for H > 1).
    """

    thaw: float
    burn_in: float
    parametric: float


@dataclass(frozen=True)
class Regime:
    """Regime of a head at n tokens.

    ``position`` is x; ``tail_index`` is ``1/x`` (infinite at x = 0); ``exponent`` is the local
    exponent ``1 - x`` of the expected error, kept between 0 and 1/2.
    """

    name: str
    n: float
    position: float
    tail_index: float
    exponent: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary (JSON has no infinity: null)."""
        index = self.tail_index if np.isfinite(self.tail_index) else None
        return {
            "regime": self.name,
            "n": self.n,
            "position": self.position,
            "tail_index": index,
            "exponent": self.exponent,
        }


def typical_strength(frobenius: float, tau: float) -> float:
    """``S = sqrt(F^2 + |tau|^2)``, the root-mean-square tilt strength of a head's queries."""
    return float(np.hypot(as_nonnegative(frobenius, "frobenius"), as_nonnegative(tau, "tau")))


def boundaries(horizon: float, strength: float) -> Boundaries:
    """Boundaries of the regimes for a head of horizon H and typical strength S."""
    h, s2 = as_nonnegative(horizon, "horizon"), as_nonnegative(strength, "strength") ** 2
    return Boundaries(s2 / 2, s2, 2 * s2 if h <= 1 else float("inf"))


def positions(horizon: ArrayLike, strength: ArrayLike, n: ArrayLike) -> Array:
    """Position x of heads at n tokens; arguments are numbers or arrays that broadcast."""
    h, s, size = (np.asarray(value, dtype=np.float64) for value in (horizon, strength, n))
    if np.any(size < 2) or not np.all(np.isfinite(size)):
        raise InputError(f"n is {float(size.min()):g}; a number of tokens must be at least 2")
    if np.any(h < 0) or np.any(s < 0):
        raise InputError("horizons and strengths must not be negative")
    rare = np.where(h > 1, h**2 / (1 + h**2), 0.0)
    return np.asarray(np.maximum(s / np.sqrt(2 * np.log(size)), rare))


def regime_indices(position: Array) -> NDArray[np.int64]:
    """Index into ``REGIMES`` of each position."""
    x = np.asarray(position)
    return np.asarray(np.where(x >= 1, 2, np.where(x > 0.5, 1, 0)), dtype=np.int64)


def regime(horizon: float, strength: float, n: float) -> Regime:
    """Regime of a head of horizon H and typical strength S at n tokens."""
    x = float(
        positions(as_nonnegative(horizon, "horizon"), as_nonnegative(strength, "strength"), n)
    )
    return Regime(
        REGIMES[int(regime_indices(np.array(x)))],
        float(n),
        x,
        1 / x if x > 0 else float("inf"),
        float(np.clip(1 - x, 0.0, 0.5)),
    )


def head_regime(head: Head, n: float) -> Regime:
    """Regime of a head at n tokens, from its second moments."""
    strength = typical_strength(head.frobenius, float(np.linalg.norm(head.tau)))
    return regime(head.horizon, strength, n)
