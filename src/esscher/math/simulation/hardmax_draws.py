"""Draws of the hardmax mean over n tokens, of which only the keys that can be picked are drawn.

In one dimension those are the two extremes. In d dimensions they are the keys outside a radius r0:
their number is binomial, their norms follow the chi law beyond r0, their directions are uniform. A
query whose best drawn projection is at least r0 is CERTIFIED: no key inside r0 could have beaten
it, so its answer is that of all n keys.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from esscher.core.errors import UndefinedError
from esscher.core.validation import Array
from esscher.math.simulation.order_statistics import LARGEST_BINOMIAL
from esscher.math.theory.hardmax import ONE_SIDED

#: Keys beyond r0 expected along a query: a query goes uncertified with probability exp(-16).
CANDIDATES = 16.0
#: Most keys drawn per replicate; in high dimension this, not CANDIDATES, sets r0.
MOST_KEYS = 20_000
#: Drawn tokens that ask as queries, if there are more of them than that.
MOST_QUERIES = 2048
#: Entries of a block of projections.
BLOCK = 4_000_000


def absolute_means(n: float, count: int, queries: str, rng: np.random.Generator) -> Array:
    """Replicates of ``|mean|`` in one dimension, from the exact law of the extremes."""
    if n <= ONE_SIDED:
        # All tokens may share a sign, where the extremes below would not be the right ones.
        x = rng.standard_normal((count, int(n)))
        share, top, bottom = (x > 0).mean(axis=1), x.max(axis=1), -x.min(axis=1)
    else:
        if n <= LARGEST_BINOMIAL:
            positive = rng.binomial(int(n), 0.5, count).astype(np.float64)
        else:
            positive = n / 2 + math.sqrt(n) / 2 * rng.standard_normal(count)
        share = positive / n
        top, bottom = (_half_normal_maximum(k, rng) for k in (positive, n - positive))
    if queries == "population":
        share = np.full(count, 0.5)
    return np.asarray(np.abs(share * top - (1 - share) * bottom))


def _half_normal_maximum(count: Array, rng: np.random.Generator) -> Array:
    """Maximum of ``count`` half normals: ``P(|X| > max)`` is the minimum of ``count`` uniforms."""
    survival = -np.expm1(-rng.standard_exponential(count.shape) / count)
    return np.asarray(-scipy.special.ndtri(survival / 2))


def draw_outer_keys(n: float, dim: int, rng: np.random.Generator) -> tuple[Array, float]:
    """Those of n standard normal keys that lie outside a radius r0, and r0.

    r0 is such that about ``CANDIDATES`` keys have a projection beyond r0 on any given direction,
    unless that takes more than ``MOST_KEYS`` keys.
    """
    radius = -float(scipy.special.ndtri(min(CANDIDATES / n, 0.5)))
    outside = float(scipy.special.gammaincc(dim / 2, radius**2 / 2))
    if n * outside > MOST_KEYS:
        outside = MOST_KEYS / n
        radius = math.sqrt(2 * float(scipy.special.gammainccinv(dim / 2, outside)))
    if n <= LARGEST_BINOMIAL:
        count = int(rng.binomial(int(n), outside))
    else:
        count = int(rng.poisson(n * outside))
    # 1 - U lies in (0, 1]: never a survival of 0, whose radius would be infinite.
    survival = outside * (1.0 - rng.random(count))
    norms = np.sqrt(2.0 * scipy.special.gammainccinv(dim / 2, survival))
    return norms[:, None] * _directions(count, dim, rng), radius


def _directions(count: int, dim: int, rng: np.random.Generator) -> Array:
    """Uniform points of the unit sphere."""
    normal = rng.standard_normal((count, dim))
    return np.asarray(normal / np.linalg.norm(normal, axis=1, keepdims=True))


def squared_mean(
    n: float,
    dim: int,
    pairs: int,
    queries: str,
    rng: np.random.Generator,
    most_queries: int = MOST_QUERIES,
) -> tuple[float, float]:
    """Unbiased estimate of ``|mean|^2`` given one draw of the keys, and the certified share.

    The mean over directions is estimated in its Steiner form ``d E[(h(u) - h(-u))/2 u]``, whose
    noise is far below that of the picked keys, on two independent halves whose product is unbiased.
    Of the drawn tokens, at most about ``most_queries`` ask as queries.
    """
    keys, radius = draw_outer_keys(n, dim, rng)
    if len(keys) == 0:
        raise UndefinedError(f"no key was drawn at n = {n:g} in dimension {dim}; change the seed")
    units = _directions(pairs, dim, rng)
    picks, far = _best(units, keys), _best(-units, keys)
    top, bottom = (np.sum(x * u, axis=1) for x, u in ((picks, units), (far, -units)))
    terms = dim / 2 * (top - bottom)[:, None] * units
    first, second = terms[::2].mean(axis=0), terms[1::2].mean(axis=0)
    # With r0 = 0 every key is drawn and there is nothing to certify.
    certified = float(np.mean(np.append(top, bottom) >= radius)) if radius > 0 else 1.0
    if queries == "population":
        return float(first @ second), certified
    # Tokens as queries: the drawn ones ask in their own directions; the others, n - N of them, in
    # independent uniform directions, whose finite number adds Var_u(pick)/n.
    own, other = _own_sums(keys, rng, most_queries)
    rest = max(n - len(keys), 0.0) / n
    square = float(np.mean(np.sum(np.vstack([picks, far]) ** 2, axis=1)))
    spread = rest / n * (square - float(first @ second))
    return float((own / n + rest * first) @ (other / n + rest * second)) + spread, certified


def _own_sums(keys: Array, rng: np.random.Generator, most: int) -> tuple[Array, Array]:
    """Sum of the keys' picks, twice: the same sum, or two independent unbiased estimates of it."""
    count = len(keys)
    if count <= most:
        total = _best(keys, keys).sum(axis=0)
        return total, total
    asked = keys[rng.integers(count, size=(2, most // 2))]
    first, second = (count * _best(half, keys).mean(axis=0) for half in asked)
    return first, second


def _best(queries: Array, keys: Array) -> Array:
    """The key with the largest projection on each query."""
    rows = max(BLOCK // len(keys), 1)
    chosen = [
        np.argmax(queries[start : start + rows] @ keys.T, axis=1)
        for start in range(0, len(queries), rows)
    ]
    return np.asarray(keys[np.concatenate(chosen)])
