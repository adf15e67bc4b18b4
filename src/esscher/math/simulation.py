"""Simulated errors of attention, with all tokens drawn, and of its hardmax limit at any length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.errors import InputError, UndefinedError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_dim, as_positive, as_queries, as_seed, as_sizes
from esscher.math.heads import Head, Tokens, as_head
from esscher.math.statistics import LEVEL
from esscher.math.theory.hardmax import ONE_SIDED, hardmax_exact, hardmax_exponent, hardmax_leading

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DirectErrors", "HardmaxCurve", "direct_errors", "hardmax_curve"]


# Direct Monte Carlo in float64: draw tokens, attend, compare with the limit.
#
# The slow reference: predictions, and faster ways to measure, are checked against it. Memory is
# bounded by a block; cost is queries times tokens.

#: Queries times keys whose logits are held at a time.
BLOCK = 1_000_000


def attend(tilts: Array, keys: Array, values: Array, block: int = BLOCK) -> Array:
    """Softmax attention of each tilt over all keys; ``block`` logits are held at a time."""
    rows = max(1, block // len(keys))
    output = np.empty((len(tilts), values.shape[1]))
    for start in range(0, len(tilts), rows):
        logits = tilts[start : start + rows] @ keys.T
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        output[start : start + rows] = logits @ values / logits.sum(axis=1, keepdims=True)
    return output


@dataclass(frozen=True, eq=False)
class DirectErrors:
    """Errors per replicate (first axis) and size (second axis).

    ``map_square`` is the mean over queries of the squared map error; ``mean`` the error vector of
    the mean output and ``cov`` the error matrix of its covariance.
    """

    sizes: Array
    queries: str
    map_square: Array
    mean: Array
    cov: Array

    def map_rms(self) -> tuple[Array, Array]:
        """Root-mean-square map error at each size, and its standard error."""
        square = self.map_square.mean(axis=0)
        error = self.map_square.std(axis=0, ddof=1) / np.sqrt(len(self.map_square))
        return np.sqrt(square), error / (2 * np.sqrt(square))


def direct_errors(
    head: Head,
    sizes: ArrayLike,
    *,
    replicates: int,
    seed: int,
    queries: str = "tokens",
    limit: tuple[Array, Array],
    query_count: int | None = None,
    purpose: str = "direct",
) -> DirectErrors:
    """Errors of attention over n tokens by direct simulation.

    Parameters
    ----------
    head
        Any head; replicate r draws its tokens from a stream that depends on (seed, r) only.
    sizes
        Numbers of tokens; a replicate uses the first n of one sample at every size.
    queries
        ``"tokens"``: the n tokens attend to each other. ``"population"``: ``query_count`` queries
        independent of the keys (default 256); the error of the limit's own mean and covariance over
        those queries is removed. Averages over so few queries still carry noise: the squared map
        error divided by ``query_count``, for the mean.
    limit
        Mean and covariance of the output in the limit.
    query_count
        With ``"tokens"``: number of the tokens used as queries (default all).
    purpose
        Purpose of the random streams; that of another simulator makes it draw the same tokens.
    """
    n = as_sizes(sizes).astype(int)
    as_dim(replicates, "replicates")
    as_queries(queries)
    d = as_head(head).value_dim
    square = np.empty((replicates, len(n)))
    mean, cov = np.empty((replicates, len(n), d)), np.empty((replicates, len(n), d, d))
    for r in range(replicates):
        rng = random_stream(seed, purpose, r)
        tokens = head.sample(int(n[-1]), rng)
        outside = head.sample(query_count or 256, rng) if queries == "population" else tokens
        for i, size in enumerate(n):
            used = min(size, query_count or size) if queries == "tokens" else len(outside.tilts)
            tilts = outside.tilts[:used]
            kept = Tokens(*(x[:size] for x in tokens))
            output, exact = attend(tilts, kept.keys, kept.values), head.limit_map(tilts)
            square[r, i] = np.mean(np.sum((output - exact) ** 2, axis=1))
            mean[r, i] = output.mean(axis=0) - limit[0]
            cov[r, i] = np.atleast_2d(np.cov(output.T, bias=True)) - limit[1]
            if queries == "population":
                mean[r, i] -= exact.mean(axis=0) - limit[0]
                cov[r, i] -= np.atleast_2d(np.cov(exact.T, bias=True)) - limit[1]
    return DirectErrors(n.astype(np.float64), queries, square, mean, cov)


# Draws of the hardmax mean over n tokens, of which only the keys that can be picked are drawn.
#
# In one dimension those are the two extremes. In d dimensions they are the keys outside a radius
# r0: their number is binomial, their norms follow the chi law beyond r0, their directions are
# uniform. A query whose best drawn projection is at least r0 is CERTIFIED: no key inside r0 could
# have beaten it, so its answer is that of all n keys.

#: Keys beyond r0 expected along a query: a query goes uncertified with probability exp(-16).
CANDIDATES = 16.0
#: Most keys drawn per replicate; in high dimension this, not CANDIDATES, sets r0.
MOST_KEYS = 20_000
#: Most drawn tokens that serve as queries.
MOST_QUERIES = 2048
#: Largest n that numpy's binomial takes.
LARGEST_BINOMIAL = 2.0**63 - 1025
#: Entries of a block of projections.
SCORES_AT_A_TIME = 4_000_000


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
        # P(|X| > max of k half normals) is the minimum of k uniforms.
        survivals = [
            -np.expm1(-rng.standard_exponential(k.shape) / k) for k in (positive, n - positive)
        ]
        top, bottom = (-scipy.special.ndtri(survival / 2) for survival in survivals)
    if queries == "population":
        share = np.full(count, 0.5)
    return np.asarray(np.abs(share * top - (1 - share) * bottom))


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
    Of the drawn tokens, about ``most_queries`` at most serve as queries.
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
    # Tokens as queries: the drawn ones have their own directions; the others, n - N of them, in
    # independent uniform directions, whose finite number adds Var_u(pick)/n.
    # Two sums of the keys' picks: the same, or two independent unbiased estimates of it.
    if len(keys) <= most_queries:
        own = other = _best(keys, keys).sum(axis=0)
    else:
        halves = keys[rng.integers(len(keys), size=(2, most_queries // 2))]
        own, other = (len(keys) * _best(half, keys).mean(axis=0) for half in halves)
    rest = max(n - len(keys), 0.0) / n
    square = float(np.mean(np.sum(np.vstack([picks, far]) ** 2, axis=1)))
    spread = rest / n * (square - float(first @ second))
    return float((own / n + rest * first) @ (other / n + rest * second)) + spread, certified


def _best(queries: Array, keys: Array) -> Array:
    """The key with the largest projection on each query."""
    rows = max(SCORES_AT_A_TIME // len(keys), 1)
    chosen = [
        np.argmax(queries[start : start + rows] @ keys.T, axis=1)
        for start in range(0, len(queries), rows)
    ]
    return np.asarray(keys[np.concatenate(chosen)])


# Simulated error of the hardmax mean, at n far beyond memory, and its exact value.
#
# The infinite-token limit of the mean output of centred Gaussian tokens is 0, and the mean output
# of n tokens approaches it only like a power of ``1/ln n``. One call, :func:`hardmax_curve`,
# gathers the leading term, the exact value (``theory.hardmax``) and a simulation.

#: Replicates unless the caller says: a replicate on the line costs two numbers.
LINE_REPLICATES, REPLICATES = 100_000, 200


@dataclass(frozen=True)
class LogarithmicFit:
    """Exponent g of ``(ln n)^-g`` fitted to simulated values.

    ``low`` and ``high`` bound it (bootstrap over replicates). ``predicted`` is the same fit to the
    exact values on the same sizes (None where there are none), and ``asymptotic`` the power that
    holds as n grows without limit, :func:`hardmax_exponent`.
    """

    exponent: float
    low: float
    high: float
    predicted: float | None
    asymptotic: float


@dataclass(frozen=True, eq=False)
class HardmaxCurve:
    """Error of the hardmax mean at each size: leading term, exact, simulated.

    Attributes
    ----------
    sizes, leading
        Numbers of tokens, and the leading term as n grows.
    exact
        Exact values; None for queries from the tokens in more than one dimension.
    simulated, standard_error
        Simulated values, and their standard errors over replicates.
    certified
        Share of query directions whose answer is certainly that of all n keys.
    samples
        One row per size, one column per replicate: ``|mean|`` for d = 1; for d > 1 an unbiased
        estimate of ``|mean|^2``, which may be negative.
    dim, queries
        Dimension of the tokens, ``"population"`` or ``"tokens"``.
    """

    sizes: Array
    leading: Array
    exact: Array | None
    simulated: Array
    standard_error: Array
    certified: Array
    samples: Array
    dim: int
    queries: str

    def fit(self, resamples: int = 1000, level: float = LEVEL, seed: int = 0) -> LogarithmicFit:
        """Fit ``(ln n)^-g`` by weighted least squares of ln(value) on ln(ln n).

        The interval, at the given level, resamples replicates, size by size (sizes are simulated
        independently).
        """
        if len(self.sizes) < 2:
            raise InputError(f"one size, n = {self.sizes[0]:g}, has no exponent; give at least 2")
        if not 0 < level < 1:
            raise InputError(f"level is {level!r}; it must lie between 0 and 1")
        x = np.log(np.log(self.sizes))
        weights = (self.simulated / self.standard_error) ** 2
        x = x - np.average(x, weights=weights)
        slope = -weights * x / float(weights @ x**2)
        rng = random_stream(seed, "hardmax fit")
        rows = np.arange(len(x))[:, None]
        fits = np.empty(as_dim(resamples, "resamples"))
        # The logarithm of a root is half the logarithm; tiny keeps an unlucky resample finite.
        power = 1.0 if self.dim == 1 else 0.5
        tiny = float(np.finfo(float).tiny)
        for index in range(len(fits)):
            columns = rng.integers(self.samples.shape[1], size=self.samples.shape)
            means = self.samples[rows, columns].mean(axis=1)
            fits[index] = slope @ (power * np.log(np.maximum(means, tiny)))
        low, high = np.quantile(fits, [(1 - level) / 2, (1 + level) / 2])
        predicted = None
        if self.exact is not None:
            unit = hardmax_exact(self.sizes, 1.0, self.queries, self.dim)
            predicted = float(slope @ np.log(unit))
        exponent = float(slope @ np.log(self.simulated))
        asymptotic = hardmax_exponent(self.dim)
        return LogarithmicFit(exponent, float(low), float(high), predicted, asymptotic)

    def table(self) -> pd.DataFrame:
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
        name = "E|mean|" if self.dim == 1 else "sqrt(E|mean|^2)"
        title = (
            f"hardmax {name}, d = {self.dim}, queries from the {self.queries}, "
            f"decays like (ln n)^-{hardmax_exponent(self.dim):g}"
        )
        return f"{title}\n{self.table().to_string(index=False)}"


def hardmax_curve(
    sizes: ArrayLike,
    dim: int = 1,
    scale: float = 1.0,
    replicates: int | None = None,
    seed: int = 0,
    queries: str = "population",
    directions: int = 512,
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
    directions
        Query directions per replicate for d > 1, in opposite pairs, rounded up to a multiple of 4.
    """
    n, sigma, d = as_sizes(sizes), as_positive(scale, "scale"), as_dim(dim)
    as_queries(queries)
    if replicates is None:
        replicates = LINE_REPLICATES if d == 1 else REPLICATES
    count = as_dim(replicates, "replicates")
    if count < 2:
        raise InputError(f"replicates is {replicates}; a standard error needs at least 2")
    as_seed(seed)
    pairs = 2 * math.ceil(as_dim(directions, "directions") / 4)
    samples, certified = np.empty((len(n), count)), np.ones(len(n))
    for row, size in enumerate(n):
        # One stream per size: a size's numbers do not depend on the other sizes.
        rng = random_stream(seed, "hardmax", d, int(size))
        if d == 1:
            samples[row] = sigma * absolute_means(float(size), count, queries, rng)
        else:
            draws = [squared_mean(float(size), d, pairs, queries, rng) for _ in range(count)]
            samples[row] = sigma**2 * np.array([draw[0] for draw in draws])
            certified[row] = np.mean([draw[1] for draw in draws])
    value, error = samples.mean(axis=1), samples.std(axis=1, ddof=1) / math.sqrt(count)
    if d > 1:
        if value.min() <= 0:
            raise UndefinedError(
                f"the estimate of E|mean|^2 at n = {n[value.argmin()]:g} is {value.min():.2g}, "
                "which is noise; raise replicates or directions"
            )
        value = np.sqrt(value)
        error = error / (2 * value)
    exact = hardmax_exact(n, sigma, queries, d) if d == 1 or queries == "population" else None
    leading = hardmax_leading(n, sigma, d)
    return HardmaxCurve(n, leading, exact, value, error, certified, samples, d, queries)
