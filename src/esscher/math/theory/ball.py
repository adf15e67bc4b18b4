"""Uniform convergence on a ball of tilts, with an explicit constant.

For tokens ``|X| <= r`` and tilts ``|t| <= T`` write ``Gamma_n - Gamma = D(t) / Z_n(t)`` with
``D = (N_n - N) - Gamma (Z_n - Z)``, ``Z = E e^{<t,X>}`` and ``N = E X e^{<t,X>}``. Expanding the
exponential, ``<v, N_n - N> = sum_k <v t^k, (P_n - P) X^{k+1}> / k!`` (tensor powers). The moment
tensors do not depend on t, and ``E|(P_n - P) X^k| <= r^k / sqrt(n)`` in Hilbert-Schmidt norm, so

    E sup |N_n - N| <= r e^{rT} / sqrt(n),        E sup |Z_n - Z| <= (e^{rT} - 1) / sqrt(n),

without symmetrisation or contraction. Two ways to divide by ``Z_n``:

* ``Z_n >= e^{-rT}`` gives ``C_1 = r e^{rT} (2 e^{rT} - 1)``;
* ``Z >= e^{-mT}`` with ``m = |E X|`` (Jensen). Where ``Z_n/Z >= 1 - c`` divide by it; elsewhere
  ``|Gamma_n - Gamma| <= 2r``, and Markov's inequality says how rarely. The best c gives
  ``C_2 = r e^{mT} (sqrt(2 e^{rT} - 1) + sqrt(2 e^{rT} - 2))^2``.

``C = min(C_1, C_2)``, with ``C = r`` at T = 0. It is exponential in the radius all the same.
"""

from __future__ import annotations

import math

import numpy as np

from esscher.core.errors import InputError, UndefinedError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_dim, as_nonnegative, as_positive, as_seed
from esscher.math.laws import FiniteTokens, Law, as_law

#: Radii, as shares of T, of the spheres on which the search starts, and directions on each.
SHELLS, DIRECTIONS = (0.25, 0.5, 0.75, 1.0), 64
#: Best starting points that are refined, and steps of the refinement.
STARTS, STEPS = 3, 24


def log_ball_bound(radius: float, tilt_radius: float, mean_norm: float | None = None) -> float:
    """``ln C`` of the bound ``E sup_{|t| <= T} |Gamma_n - Gamma| <= C / sqrt(n)``.

    Parameters
    ----------
    radius
        r, with ``|X| <= r`` almost surely.
    tilt_radius
        T: the supremum is over ``|t| <= T``.
    mean_norm
        ``|E X|`` or an upper bound; 0 for centred tokens, where C grows like ``8 r e^{rT}`` instead
        of ``2 r e^{2rT}``. Taken to be r when left out.
    """
    r, tilt = as_positive(radius, "radius"), as_nonnegative(tilt_radius, "tilt_radius")
    m = r if mean_norm is None else as_nonnegative(mean_norm, "mean_norm")
    if m > r * (1 + 1e-12):
        raise InputError(f"mean_norm is {m:g} but |X| <= radius = {r:g}; it cannot be larger")
    # In units of e^{rT}, so that rT = 1000 is no overflow.
    decay = math.exp(-r * tilt)
    direct = 2 * r * tilt + math.log(2.0 - decay)
    split = (m + r) * tilt + 2 * math.log(
        math.sqrt(2.0 - decay) + math.sqrt(-2.0 * math.expm1(-r * tilt))
    )
    return math.log(r) + min(direct, split)


def measured_supremum(
    law: Law, tilt_radius: float, n: int, replicates: int = 20, seed: int = 0
) -> Array:
    """Measure ``sup_{|t| <= T} |Gamma_n - Gamma|``, whose mean :func:`log_ball_bound` bounds.

    Each replicate draws n tokens, evaluates ``|Gamma_n - Gamma|`` on spheres of several radii in
    random directions (and at t = 0) and climbs from the best points by projected gradient steps. A
    search can miss the highest peak, so this is a lower estimate of the supremum.

    Parameters
    ----------
    law
        A bounded law.
    tilt_radius
        T, the radius of the ball of tilts.
    n
        Number of tokens.
    replicates, seed
        Independent draws of the tokens, and their seed.

    Returns
    -------
    Array
        The suprema, one of each replicate.
    """
    if not math.isfinite(as_law(law).support_radius):
        raise UndefinedError(
            f"{law!r} has unbounded support, so the uniform bound on a ball does not apply"
        )
    tilt = as_nonnegative(tilt_radius, "tilt_radius")
    size, count = as_dim(n, "n"), as_dim(replicates, "replicates")
    units = random_stream(as_seed(seed), "ball rays").standard_normal((DIRECTIONS, law.dim))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    grid = np.vstack([np.zeros((1, law.dim)), *[tilt * share * units for share in SHELLS]])
    limit = law.tilted_mean(grid)
    rng = random_stream(seed, "ball", size)
    draws = (FiniteTokens(law.sample(size, rng)) for _ in range(count))
    return np.array([_supremum(law, tokens, tilt, grid, limit) for tokens in draws])


def _supremum(law: Law, tokens: FiniteTokens, tilt: float, grid: Array, limit: Array) -> float:
    """Search for the largest ``|Gamma_n - Gamma|``: a grid, then steps uphill from its best points.

    The gradient of half the square is ``(Hess K_n - Hess K)(Gamma_n - Gamma)``. Its length is of
    little use as a step (the function flattens far out), so steps are adapted: longer after a gain.
    """
    gap = tokens.tilted_mean(grid) - limit
    height = np.linalg.norm(gap, axis=1)
    best = np.argsort(height)[-STARTS:]
    t, gap, height = grid[best], gap[best], height[best]
    step = np.full(len(t), tilt / 4)
    for _ in range(STEPS if tilt > 0 else 0):
        slope = tokens.tilted_covariance(t) - law.tilted_covariance(t)
        uphill = np.einsum("sij,sj->si", slope, gap)
        length = np.linalg.norm(uphill, axis=1, keepdims=True)
        trial = t + step[:, None] * uphill / np.where(length > 0, length, 1.0)
        norm = np.linalg.norm(trial, axis=1, keepdims=True)
        trial *= np.minimum(1.0, tilt / np.where(norm > 0, norm, 1.0))
        trial_gap = tokens.tilted_mean(trial) - law.tilted_mean(trial)
        trial_height = np.linalg.norm(trial_gap, axis=1)
        gain = trial_height > height
        t, gap = np.where(gain[:, None], trial, t), np.where(gain[:, None], trial_gap, gap)
        height, step = np.where(gain, trial_height, height), step * np.where(gain, 1.6, 0.4)
    return float(height.max())
