"""Results of simulations from the extremes, whatever error they simulate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from esscher.core.errors import InputError, UndefinedError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_dim, as_nonnegative, as_positive, as_sizes
from esscher.math.coupling import Coupling, symmetric_root
from esscher.math.heads import Head, as_head
from esscher.math.theory.exact_constants import select_coupling
from esscher.math.theory.tilt_law import TiltLaw

if TYPE_CHECKING:
    import pandas as pd


#: An estimate to which one replicate adds more than this share is not to be trusted.
DOMINATED = 0.2


@dataclass(frozen=True, eq=False, repr=False)
class SimulatedErrors:
    """Simulated errors at each size.

    Attributes
    ----------
    sizes, rms, mean
        Numbers of tokens, root mean square and expected norm of the error over queries and tokens.
    rms_error, mean_error
        Their standard errors.
    extremes
        Tokens drawn at each size, on average (all n where that is as cheap).
    non_normality
        What is left of the bulk's non-normality, see ``order_statistics.bulk_non_normality``.
    largest_share
        Share of the most influential replicate in the mean square. Above ``DOMINATED`` the standard
        error is not to be trusted.
    queries, replicates, tolerance, seed
        As they were asked for.
    """

    #: Names of the fields with one number per size, in the order in which they are printed.
    columns: ClassVar[tuple[str, ...]]

    sizes: Array
    rms: Array
    rms_error: Array
    mean: Array
    mean_error: Array
    extremes: Array
    non_normality: Array
    largest_share: Array
    queries: str
    replicates: int
    tolerance: float
    seed: int

    @property
    def trusted(self) -> NDArray[np.bool_]:
        """Whether no single replicate dominates the mean square, per size."""
        return np.asarray(self.largest_share <= DOMINATED)

    def table(self) -> pd.DataFrame:
        """Return the simulation as a data frame, one row per size."""
        import pandas as pd

        return pd.DataFrame({"n": self.sizes} | {x: getattr(self, x) for x in self.columns})

    def to_dict(self) -> dict[str, Any]:
        """Return the simulation as plain lists, numbers and strings."""
        return {
            "method": "extremes drawn, bulk summed",
            "queries": self.queries,
            "replicates": self.replicates,
            "tolerance": self.tolerance,
            "seed": self.seed,
            "n": self.sizes.tolist(),
            **{name: getattr(self, name).tolist() for name in self.columns},
            "trusted": self.trusted.tolist(),
        }


# The largest of n standard normals, and what the others add to a softmax, at any n.
#
# Among n keys projected on the direction of a query, ``x_1..x_n`` standard normal, the K largest
# are drawn exactly: their survival probabilities are ``Gamma_i / Gamma_{n+1}``, with ``Gamma_i``
# sums of independent exponentials, and ``Gamma_{n+1} - Gamma_K`` is one gamma variable. Survival
# probabilities, not probabilities, go through the normal quantile, so that nothing cancels at n =
# 10^12 or 10^30. Given the smallest of the K, the cut c, the other n - K keys (the BULK) are
# independent normals below c. Their sums of weights ``w = exp(s x)``, of ``y = (x - s) w`` and of
# ``w^2`` are drawn as Gaussian variables with the exact truncated means and covariances; the mean
# of y is in closed form, ``-phi(c)/Phi(c)`` in units of ``exp(s c)``, because the error is a small
# difference from it. Everything else is a rule over ``t = c - x``.
#
# What is approximate is the Gaussian law of the bulk's sums, and it is measured:
# :func:`bulk_non_normality`.

#: Double exponential rule ``t = exp(v - exp(-v))`` over the depth t below the cut: 1e-11 on the
#: moments for strengths up to 1e4, cuts up to 40.
RULE_LOW, RULE_HIGH, RULE_STEP = -3.2, 4.1, 0.045
#: Largest n that numpy's binomial takes.
LARGEST_BINOMIAL = 2.0**63 - 1025
#: Fewest and most extremes that are drawn; K doubles in between.
FEWEST, MOST = 64, 1 << 17


def _rule() -> tuple[Array, Array]:
    v = np.arange(RULE_LOW, RULE_HIGH, RULE_STEP)
    depth = np.exp(v - np.exp(-v))
    return depth, RULE_STEP * depth * (1 + np.exp(-v))


DEPTHS, DEPTH_WEIGHTS = _rule()


def largest_normals(n: float, count: int, first: Array, rng: np.random.Generator) -> Array:
    """The ``count`` largest of n standard normals, largest first, one sample per row.

    Parameters
    ----------
    first
        ``Gamma_1`` of each row: standard exponential, or of another law for importance sampling.
        The expected number of keys above the largest one is ``Gamma_1``, nearly.
    """
    gaps = rng.standard_exponential((len(first), count))
    gaps[:, 0] = first
    arrivals = np.cumsum(gaps, axis=1, out=gaps)
    # n + 1 - count further exponentials, as one gamma variable
    total = arrivals[:, -1] + rng.standard_gamma(n + 1 - count, len(first))
    arrivals /= total[:, None]
    return np.asarray(-scipy.special.ndtri(arrivals))


class BulkMoments(NamedTuple):
    """Moments of one bulk key, in units of ``exp(s c)`` per weight, one row per (cut, strength).

    ``mean`` and ``covariance`` are those of ``(w, y, w^2)``; ``third`` has the absolute central
    third moments of w and y.
    """

    mean: Array
    covariance: Array
    third: Array


def bulk_moments(cuts: Array, strengths: Array, third: bool = False) -> BulkMoments:
    """Moments of the weight of a standard normal key below a cut, at given tilt strengths."""
    c, s = cuts[:, None], strengths[:, None]
    # density of x below the cut, as a function of the depth t: phi(c - t)/Phi(c)
    density = np.exp(c * DEPTHS - 0.5 * DEPTHS**2) * DEPTH_WEIGHTS
    mass = density.sum(axis=1, keepdims=True)
    density /= mass
    weight = np.exp(-s * DEPTHS)
    terms = np.stack([weight, (c - s - DEPTHS) * weight, weight * weight])
    mean = np.sum(density * terms, axis=2)
    # d/dt exp((c-s)t - t^2/2) = (c-s-t) exp(...): the integral of y is -1 without a rule
    mean[1] = -1.0 / mass[:, 0]
    centred = terms - mean[:, :, None]
    covariance = np.einsum("irt,jrt->rij", density * centred, centred)
    cubes = (
        np.sum(density * np.abs(centred[:2]) ** 3, axis=2).T if third else np.zeros((len(cuts), 2))
    )
    return BulkMoments(mean.T, covariance, cubes)


class Sums(NamedTuple):
    """Softmax sums over n keys, one row per query, relative to the weight of the largest key.

    ``weight`` is ``sum w``, ``error`` is ``sum (x - s) w``, ``square`` is ``sum w^2``; ``largest``
    is the largest projection.
    """

    weight: Array
    error: Array
    square: Array
    largest: Array


def softmax_sums(
    n: float, strengths: Array, count: int, first: Array, rng: np.random.Generator
) -> Sums:
    """Sums over n keys for queries of given strengths, each over its own n keys.

    Parameters
    ----------
    count
        Extremes to draw, at most n. With n of them nothing is approximate.
    first
        See :func:`largest_normals`.
    """
    x = largest_normals(n, count, first, rng)
    top, cut = x[:, 0], x[:, -1]
    s = strengths[:, None]
    weights = np.exp(s * (x - top[:, None]))
    weight = weights.sum(axis=1)
    error = np.sum((x - s) * weights, axis=1)
    square = np.sum(weights * weights, axis=1)
    rest = n - count
    if rest > 0:
        moments = bulk_moments(cut, strengths)
        noise = _correlated(moments.covariance, rng.standard_normal((len(cut), 3)))
        bulk = rest * moments.mean + np.sqrt(rest) * noise
        scale = np.exp(-strengths * (top - cut))
        weight += scale * bulk[:, 0]
        error += scale * bulk[:, 1]
        square += scale * scale * np.maximum(bulk[:, 2], 0.0)
        if np.any(weight <= 0):  # bulk sums lie tens of standard deviations above 0
            raise UndefinedError(f"a bulk of n = {n:g} keys has no weight; draw more extremes")
    return Sums(weight, error, square, top)


def _correlated(covariance: Array, noise: Array) -> Array:
    """Gaussian rows with the given covariances (rounding may leave them slightly indefinite)."""
    scale = np.sqrt(np.maximum(np.einsum("rii->ri", covariance), 1e-300))
    correlation = covariance / (scale[:, :, None] * scale[:, None, :])
    values, vectors = np.linalg.eigh(correlation)
    roots = np.sqrt(np.maximum(values, 0.0))
    return np.asarray(scale * np.einsum("rij,rj,rj->ri", vectors, roots, noise))


def bulk_non_normality(n: float, strengths: Array, count: int) -> Array:
    """How far the bulk's sums are from Gaussian, and how much of the error they carry.

    The Lyapunov ratio ``E|xi|^3 / (sigma^3 sqrt(n - K))`` of w and of y, the larger of the two,
    times the bulk's share of the spread of the error sum, ``sigma_b / (sigma_b + top)`` with
    ``top = max(1, |x_1 - s|) exp(s x_1)`` at ``x_1`` with one key above it expected. The
    Berry-Esseen theorem bounds the Kolmogorov distance of each bulk sum from its Gaussian by 0.469
    times the ratio. The cut is taken where K keys above it are expected.
    """
    rest = n - count
    if rest <= 0:
        return np.zeros(len(strengths))
    cut, top = (-float(scipy.special.ndtri(k / n)) for k in (count, 1.0))
    moments = bulk_moments(np.full(len(strengths), cut), strengths, third=True)
    spread = np.sqrt(np.einsum("rii->ri", moments.covariance)[:, :2])
    varies = spread > 0  # without tilt the weights do not
    safe = np.where(varies, spread, 1.0)
    ratio = np.where(varies, moments.third / safe**3, 0.0) / np.sqrt(rest)
    log_top = strengths * (top - cut) + np.log(np.maximum(1.0, np.abs(top - strengths)))
    log_bulk = 0.5 * np.log(rest) + np.log(safe[:, 1])
    share = np.exp(-np.logaddexp(0.0, log_top - log_bulk))
    return np.asarray(ratio.max(axis=1) * share)


def extremes_needed(n: float, strengths: Array, tolerance: float) -> tuple[int, float]:
    """Number of extremes that keeps the bulk's non-normality below ``tolerance``, and its value.

    All n keys if that is not more than twice as many.
    """
    count = FEWEST
    while count < n / 2:
        worst = float(np.max(bulk_non_normality(n, strengths, count)))
        if worst <= tolerance:
            return count, worst
        count *= 2
        if count > MOST:
            raise UndefinedError(
                f"at n = {n:g} even {MOST} extremes leave the bulk's non-normality at {worst:.2g}, "
                f"above {tolerance:g}; raise the tolerance"
            )
    return int(n), 0.0


def log_survival(x: Array) -> Array:
    """``ln P(normal > x)``, far into the tail."""
    return np.asarray(scipy.special.log_ndtr(-x))


# Where to draw queries and largest keys so that rare ones that carry the error are seen.
#
# The mean square of the map error is carried, past ``H^2 = 1/2``, by queries with a rare strong
# tilt and by samples with a rare large key. Both are drawn from mixtures that contain the natural
# law with probability one half, so that no importance weight exceeds 2 (4 for the product).
#
# Queries: ``a ~ N(tau, G)`` tilted by ``exp(theta |a|^2)`` is again Gaussian, with covariance
# ``G (I - 2 theta G)^{-1}`` and mean ``(I - 2 theta G)^{-1} tau``; the weight depends on |a| alone.
# Largest keys: ``Gamma_1``, the expected number of keys above the largest one, is standard
# exponential; the other half of the mixture is log-uniform on ``[floor, 1]``.

#: Share of the natural law in both mixtures.
NATURAL = 0.5
#: How far the largest key is drawn beyond the keys that carry the mean square, which spread over
#: one standard deviation, and beyond the key that takes all the attention, where errors stop
#: growing: what is left has a share below 1e-5.
CARRYING_MARGIN, SATURATED_MARGIN = 4.5, 1.5
#: Strengths on which the carrying one is searched for.
GRID = 160


def log_square_error(n: float, strength: Array) -> Array:
    """Leading order of ``ln E|error|^2`` at one query, ``x = s/sqrt(2 ln n)``.

    ``-L (1 - 2 x^2)`` up to ``x^2 = 1/3``, then ``-L (1/x - x)^2 / 4`` up to x = 1, then 0.
    """
    log_n = np.log(n)
    x2 = np.minimum(strength**2 / (2 * log_n), 1.0)
    late = -((1 - x2) ** 2) / (4 * np.maximum(x2, 1e-300))
    return np.asarray(log_n * np.where(x2 < 1 / 3, -(1 - 2 * x2), late))


class QueryProposal:
    """Mixture of tilted query laws for the map error over n tokens."""

    def __init__(self, coupling: Coupling, n: float) -> None:
        self._coupling = coupling
        self._law = TiltLaw(coupling)
        self.thetas = np.array([0.0, *self._targets(n)])
        others = len(self.thetas) - 1
        self.shares = np.array([1.0] if others == 0 else [NATURAL] + others * [0.5 / others])
        self._logs = np.array([float(self._law.log_transform(np.array(t))) for t in self.thetas])

    def _targets(self, n: float) -> list[float]:
        """Tilts theta towards the strengths that carry the mean square, and halfway there."""
        if self._law.is_constant:
            return []
        c = self._coupling
        log_n = float(np.log(n))
        gap = 1 - 2 * c.variances
        if gap.min() > 0:
            # errors grow like exp(s^2) as far as these queries reach: theta = 1 is theirs
            carrying = float(np.sum(c.variances / gap) + np.sum((c.tau / gap) ** 2))
            if carrying < 2 * log_n / 3:
                return [0.5, 1.0]
        typical = float(np.sqrt(np.sum(c.variances) + np.sum(c.tau**2)))
        top = float(np.sqrt(2 * log_n))
        if typical >= top:
            return []
        strengths = np.linspace(typical, top, GRID)[1:]
        thetas = self._law.saddles(strengths**2)
        log_density = self._law.log_transform(thetas) - thetas * strengths**2
        best = int(np.argmax(log_density + log_square_error(n, strengths)))
        if best < GRID // 16:
            return []
        return [float(thetas[best // 2]), float(thetas[best])]

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Tilts in whitened coordinates, and their importance weights."""
        g, tau = self._coupling.variances, self._coupling.tau
        # stratified: every component gets its share of the rows, up to rounding
        points = (np.arange(count) + rng.random()) / count
        which = np.searchsorted(np.cumsum(self.shares)[:-1], points, side="right")
        gap = 1 - 2 * self.thetas[which, None] * g
        tilts = tau / gap + rng.standard_normal((count, len(g))) * np.sqrt(g / gap)
        square = np.sum(tilts**2, axis=1, keepdims=True)
        ratio = np.exp(self.thetas * square - self._logs) @ self.shares
        return tilts, np.asarray(1 / ratio)


def key_floor(n: float, strengths: Array) -> Array:
    """Smallest ``Gamma_1`` that the proposal for the largest key reaches, 1 where it is not needed.

    The mean square at strength s is carried by keys around ``2 s`` or, if that comes first, by the
    key that takes all the attention, at ``(ln n)/s + s/2``. Frozen queries need no rare key.
    """
    log_n = np.log(n)
    s = np.maximum(strengths, 1e-12)
    reach = np.minimum(2 * s + CARRYING_MARGIN, log_n / s + s / 2 + SATURATED_MARGIN)
    log_floor = np.where(s < np.sqrt(2 * log_n), log_n + log_survival(reach), 0.0)
    return np.asarray(np.exp(np.where(log_floor < -1.0, log_floor, 0.0)))


def draw_first_arrivals(floors: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """``Gamma_1`` of each row from its proposal, and the importance weights."""
    count = len(floors)
    natural = rng.standard_exponential(count)
    depth = -np.log(floors)  # 0: natural law only
    rare = np.exp(-depth * rng.random(count))
    use = (rng.random(count) >= NATURAL) & (depth > 0)
    first = np.where(use, rare, natural)
    inside = (first > floors) & (first < 1) & (depth > 0)
    other = np.where(inside, 1 / (first * np.where(depth > 0, depth, 1.0)), 0.0)
    plain = np.exp(-first)
    mixed = np.where(depth > 0, NATURAL * plain + (1 - NATURAL) * other, plain)
    return first, np.asarray(plain / mixed)


# Simulated map error of Gaussian heads at n far beyond memory: only the extremes are drawn.
#
# For a query of strength s the error is, in whitened key coordinates,
#
#     along the tilt   sum_j p_j x_j - s            with x_j standard normal, p_j ~ exp(s x_j)
#     across it        sqrt(sum_j p_j^2) * normal   independent of the weights
#
# so one query over n tokens takes the largest of n normals and what the others add
# (``order_statistics``). Every replicate has a query of its own and n tokens of its own. With
# ``queries="tokens"`` one of the n keys is the query's own. Nothing here uses the Laplace integrals
# of ``softmax_mean``, which predict the same numbers.
#
# The error of the MEAN output needs all queries on the same tokens. In d dimensions every direction
# then has extremes of its own, and drawing a few of them is no longer exact; one dimension is
# treated in ``simulation.mean``.

#: Default bound on the bulk's non-normality; the Kolmogorov distance is below half of it.
TOLERANCE = 0.01
#: Extremes held at a time, which bounds the memory.
BLOCK = 1 << 20


class QueryErrors(NamedTuple):
    """Replicates of one query's error: along the tilt, ``sum p^2``, and the largest weight p."""

    along: Array
    collision: Array
    largest: Array


@dataclass(frozen=True, eq=False, repr=False)
class SimulatedMap(SimulatedErrors):
    """Simulated map error at each size.

    ``largest_weight`` is the expected attention of the most attended key, with its standard error;
    all else as in :class:`SimulatedErrors`.
    """

    columns = (
        "rms",
        "rms_error",
        "mean",
        "mean_error",
        "largest_weight",
        "largest_weight_error",
        "extremes",
        "non_normality",
        "largest_share",
    )

    largest_weight: Array
    largest_weight_error: Array

    def map_rms(self) -> tuple[Array, Array]:
        """Root-mean-square map error at each size, and its standard error."""
        return self.rms, self.rms_error

    def __repr__(self) -> str:
        rows = [
            f"simulated map error, {self.replicates} queries per size ({self.queries}), "
            f"bulk within {self.tolerance:g} of normal"
        ]
        columns = (self.sizes, self.rms, self.rms_error, self.mean, self.mean_error, self.extremes)
        for n, rms, rms_error, mean, mean_error, drawn in zip(*columns, strict=True):
            rows.append(
                f"  n = {n:<8.4g} rms {rms:.4g} +- {rms_error:.2g}, "
                f"mean {mean:.4g} +- {mean_error:.2g}, {int(drawn)} keys drawn"
            )
        return "\n".join(rows)


def simulate_query(
    n: float, strength: float, replicates: int, seed: int = 0, tolerance: float = TOLERANCE
) -> QueryErrors:
    """Replicates of the error at one query of the given strength, from the natural law.

    Parameters
    ----------
    n
        Number of tokens, from 2 to 1e300.
    strength
        Tilt strength s; the limit lies s standard deviations out.
    replicates, seed
        Independent samples of n tokens, and their seed.
    tolerance
        Bound on the bulk's non-normality, which sets the number of extremes drawn.
    """
    size = float(as_sizes([n], "n")[0])
    s = as_nonnegative(strength, "strength")
    count = as_dim(replicates, "replicates")
    drawn, _ = extremes_needed(size, np.array([s]), as_positive(tolerance, "tolerance"))
    rng = random_stream(seed, "query extremes", size_mark(size))
    parts = []
    for rows in _blocks(count, drawn):
        strengths = np.full(rows, s)
        sums = softmax_sums(size, strengths, drawn, rng.standard_exponential(rows), rng)
        parts.append((sums.error / sums.weight, sums.square / sums.weight**2, 1 / sums.weight))
    return QueryErrors(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def simulate_map(
    head: Head,
    sizes: ArrayLike,
    replicates: int = 2000,
    seed: int = 0,
    queries: str = "population",
    tolerance: float = TOLERANCE,
) -> SimulatedMap:
    """Simulate the map error of a Gaussian head at sizes that no machine can hold.

    Parameters
    ----------
    head
        A head over Gaussian tokens.
    sizes
        Numbers of tokens, from 2 to 1e300; sizes are simulated independently.
    replicates, seed
        Queries per size, each over its own n tokens, and their seed.
    queries
        ``"population"`` (independent of the keys) or ``"tokens"`` (its own key is among the n).
    tolerance
        Bound on the bulk's non-normality, which sets the number of extremes drawn.

    Raises
    ------
    InputError
        For tokens that are not Gaussian.
    """
    n = as_sizes(sizes)
    count = simulated_replicates(head, replicates)
    limit = as_positive(tolerance, "tolerance")
    coupling = select_coupling(head, queries)
    rows = [_one_size(coupling, float(size), count, seed, queries, limit) for size in n]
    table = dict(zip(SimulatedMap.columns, np.array(rows).T, strict=True))
    return SimulatedMap(
        sizes=n, queries=queries, replicates=count, tolerance=limit, seed=int(seed), **table
    )


def simulated_replicates(head: Head, replicates: int) -> int:
    """The number of replicates, of a head whose extremes can be drawn alone.

    Raises
    ------
    InputError
        For too few, or for tokens that are not Gaussian.
    """
    as_head(head)
    count = as_dim(replicates, "replicates")
    if count < 2:
        raise InputError(f"replicates is {replicates}; a standard error needs at least 2")
    if not head.is_gaussian:
        raise InputError(
            "only the extremes of Gaussian tokens can be drawn without the others; "
            "use esscher sweep for other laws"
        )
    return count


def _one_size(
    coupling: Coupling, n: float, count: int, seed: int, queries: str, tolerance: float
) -> tuple[float, ...]:
    """Every number of ``SimulatedMap.columns`` at one size."""
    rng = random_stream(seed, "map extremes", size_mark(n))
    tilts, weights = QueryProposal(coupling, n).sample(count, rng)
    strengths = np.linalg.norm(tilts, axis=1)
    others = n - 1 if queries == "tokens" else n
    probe = np.quantile(strengths, np.linspace(0, 1, 33))
    drawn, rest = extremes_needed(others, probe, tolerance)
    first, key_weights = draw_first_arrivals(key_floor(others, strengths), rng)
    weights = weights * key_weights
    own = _own_keys(coupling, tilts, rng) if queries == "tokens" else None
    square, norm, largest = np.empty(count), np.empty(count), np.empty(count)
    start = 0
    for rows in _blocks(count, drawn):
        part = slice(start, start + rows)
        mine = None if own is None else (own[0][part], own[1][part])
        square[part], norm[part], largest[part] = _errors(
            coupling, tilts[part], others, drawn, first[part], mine, rng
        )
        start += rows
    total = weights * square
    value, spread = weighted_mean(square, weights)
    rms = float(np.sqrt(value))
    return (
        *(rms, spread / (2 * rms) if rms > 0 else 0.0),
        *weighted_mean(norm, weights),
        *weighted_mean(largest, weights),
        *(float(drawn), rest, float(total.max() / max(total.sum(), 1e-300))),
    )


def _errors(
    coupling: Coupling,
    tilts: Array,
    n: float,
    drawn: int,
    first: Array,
    own: tuple[Array, Array] | None,
    rng: np.random.Generator,
) -> tuple[Array, Array, Array]:
    """Squared error averaged across the tilt, norm of one error, largest weight; one per query."""
    strengths = np.linalg.norm(tilts, axis=1)
    sums = softmax_sums(n, strengths, drawn, first, rng)
    units = tilts / np.maximum(strengths, 1e-300)[:, None]
    lean = units @ coupling.loading.T
    weight, vector = sums.weight, sums.error[:, None] * lean
    square = sums.square
    if own is not None:
        logits, offsets = own
        log_share = logits - strengths * sums.largest
        # relative to whichever is larger, the own key or the largest other one
        scale = np.exp(-np.maximum(log_share, 0.0))
        mine = np.exp(np.minimum(log_share, 0.0))
        weight = scale * weight + mine
        vector = scale[:, None] * vector + mine[:, None] * offsets
        square = scale * scale * square
    vector = vector / weight[:, None]
    collision = square / weight**2
    total = float(np.trace(coupling.value_gram)) + coupling.residual_trace
    across = np.maximum(total - np.sum(lean**2, axis=1), 0.0)
    normal = rng.standard_normal(tilts.shape)
    normal -= np.sum(normal * units, axis=1, keepdims=True) * units
    sideways = normal @ coupling.loading.T
    if coupling.residual.any():
        extra = rng.standard_normal((len(tilts), len(coupling.residual)))
        sideways = sideways + extra @ symmetric_root(coupling.residual)
    drawn_error = vector + np.sqrt(collision)[:, None] * sideways
    return (
        np.asarray(np.sum(vector**2, axis=1) + collision * across),
        np.asarray(np.linalg.norm(drawn_error, axis=1)),
        np.asarray(1 / weight),  # the largest key has weight 1 in these units
    )


def _own_keys(coupling: Coupling, tilts: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Logit of each query's own key and its value minus the limit, given the query's tilt."""
    r, d_v = coupling.cross.shape[0], coupling.loading.shape[0]
    inverse = np.where(coupling.variances > 0, 1 / np.maximum(coupling.variances, 1e-300), 0.0)
    cross = np.hstack([coupling.cross, coupling.residual_cross])
    joint = np.zeros((r + d_v, r + d_v))
    joint[:r, :r], joint[r:, r:] = np.eye(r), coupling.residual
    rest = joint - cross.T @ (inverse[:, None] * cross)
    draws = (tilts - coupling.tau) * inverse @ cross
    draws = draws + rng.standard_normal(draws.shape) @ symmetric_root((rest + rest.T) / 2)
    keys, residuals = draws[:, :r], draws[:, r:]
    offsets = (keys - tilts) @ coupling.loading.T + residuals
    return np.sum(tilts * keys, axis=1), np.asarray(offsets)


def weighted_mean(values: Array, weights: Array) -> tuple[float, float]:
    """Mean of positive values with importance weights, and its standard error.

    The weights have mean 1: they serve as a control variate, so that what does not depend on the
    rare events is not made noisy by looking for them.
    """
    products, count = weights * values, len(values)
    spread = weights - weights.mean()
    power = float(spread @ spread)
    slope = float(spread @ products) / power if power > 0 else 0.0
    adjusted = products - slope * (weights - 1)
    if adjusted.mean() <= 0:  # a handful of replicates; the plain mean is positive
        adjusted = products
    error = adjusted.std(ddof=min(2, count - 1)) / np.sqrt(count)
    return float(adjusted.mean()), float(error)


def _blocks(count: int, drawn: int) -> Iterator[int]:
    """Numbers of rows whose extremes are held at a time."""
    rows = max(1, BLOCK // drawn)
    for start in range(0, count, rows):
        yield min(rows, count - start)


def size_mark(n: float) -> int:
    """The bits of a size, as the index of its random stream."""
    return int(np.float64(n).view(np.uint64))
