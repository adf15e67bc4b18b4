"""Predicted map error at finite n, for Gaussian tokens and any spectrum, n = 2 to 10^12 and beyond.

In whitened coordinates the error covariance at tilt strength s is ``a uu' + b (I - uu')`` with the
two universal functions of ``softmax_moments``; averaging over the law of the tilt gives

    E|Gamma_n - Gamma|^2 = E[ a(n,s) u'Wu + b(n,s) (tr W - u'Wu + tr R) ],

W the Gram matrix of the values in whitened key coordinates and R the covariance of what the values
do not share with the keys. This is exact, before and after freezing, when queries are independent
of the keys (``queries="population"``). When the tokens attend to each other
(``queries="tokens"``) one of the n keys belongs to the query itself; it is carried through the same
integrals, exactly.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.errors import UndefinedError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_sizes
from esscher.math.coupling import Coupling, symmetric_root
from esscher.math.heads import Head
from esscher.math.theory.gaussian_tables import (
    STRONGEST,
    LaplaceTable,
    TiltLaw,
    TiltRule,
    dominant,
    laplace_table,
    softmax_moments,
)
from esscher.math.theory.rates import Curve, select_coupling


def map_curve(head: Head, sizes: ArrayLike, queries: str = "population", seed: int = 0) -> Curve:
    """Root-mean-square map error over queries and tokens, at each size.

    For ``queries="tokens"`` and a head that is neither isotropic nor of small rank
    the average over directions of the query is sampled (``seed``), with a standard error.

    Raises
    ------
    UndefinedError
        If that average is carried by too few of its terms to be known.
    """
    n = as_sizes(sizes)
    coupling = select_coupling(head, queries)
    law = TiltLaw(coupling)
    rule = law.rule(float(n.max()))
    # without tilts attention is uniform: a query's own key is one among n, as any other
    uniform = coupling.horizon == 0 and not coupling.tau.any()
    if queries == "population" or uniform:
        a, b, _ = softmax_moments(n, rule.strengths)
        total = float(np.trace(coupling.value_gram)) + coupling.residual_trace
        square = (a - b) @ rule.along + b @ rule.weights * total
        square_error, method = np.zeros_like(n), "exact reduction"
    elif coupling.isotropy is not None:
        square = _isotropic_self_square(coupling, n, rule)
        square_error, method = np.zeros_like(n), "exact reduction with the query's own key"
    else:
        square, square_error, method = own_key_square(coupling, n, law, rule, seed)
    error = np.sqrt(square)
    return Curve(n, error, square_error / (2 * error), method)


def _isotropic_self_square(coupling: Coupling, n: Array, rule: TiltRule) -> Array:
    """The same with the query's own key, ``M = h I``: that key is ``a / h``, along the tilt."""
    isotropy = coupling.isotropy
    assert isotropy is not None
    h, gain = isotropy
    d = len(coupling.tau)
    square = np.zeros(len(n))
    for s, weight in zip(rule.strengths, rule.weights, strict=True):
        strength = min(float(s), STRONGEST)
        own = s / h
        own_weight = strength * own - strength**2 / 2
        table = laplace_table(strength, float(n.max()), heaviest=own_weight)
        off = own - s
        # l times the own key's weight, and the integrals with it and n - 1 others
        heavy = np.exp(np.minimum(table.ell + strength * own - table.strength**2 / 2, 6.6))
        for i, size in enumerate(n):
            m = size - 1
            last = table.powers(m - 1)
            body = (
                heavy**2 * (off * off) * table.powers(m)
                + 2 * heavy * off * m * table.y1 * last
                + m * (table.y2 + table.w2 * (d - 1.0)) * last
                + m * (m - 1) * table.y1**2 * table.powers(m - 2)
            )
            square[i] += weight * gain * float(table.step * np.sum(np.exp(-heavy) * body))
    return square


# The joint Gaussian law of a token's tilt, own key and own value, as conditionals on the tilt.


class QueryLaw:
    """Law of the own key and value of a query, given its tilt."""

    def __init__(self, coupling: Coupling) -> None:
        g = coupling.variances
        # the same rounding as in the law of the strength
        self.active = np.round(g / max(float(g[0]) if g.size else 0.0, 1e-300), 13) > 0
        self.variances, self.tau = g[self.active], coupling.tau
        self.rank = int(self.active.sum())
        self.shift = float(np.sum(self.tau[~self.active] ** 2))
        self.loading = coupling.loading
        self.total = float(np.trace(coupling.value_gram)) + coupling.residual_trace
        root = np.sqrt(self.variances)
        self._root = root
        # given b = (a - tau)/root: eta has mean P b, eps has mean Q b
        self._p = (coupling.cross[self.active] / root[:, None]).T
        q = (coupling.residual_cross[self.active] / root[:, None]).T
        self._key_cov = np.eye(len(g)) - self._p @ self._p.T
        key_value = self._key_cov @ self.loading.T - self._p @ q.T
        self._key_offset = key_value
        self._offset = self.loading @ self._p + q
        offset_cov = self.loading @ key_value - q @ (self.loading @ self._p + q).T
        self._joint = np.block([[np.diag(g), coupling.cross], [coupling.cross.T, np.eye(len(g))]])
        self._offset_trace = float(np.trace(offset_cov)) + coupling.residual_trace
        # whether the own key is more than a function of the tilt, where the tilt points
        self.is_noisy = float(np.abs(self._key_cov).max(initial=0.0)) > 1e-10

    def moments_given_own(self, log_weight: float) -> Array:
        """Second moments of the tilt under the law tilted until the own log-weight is this.

        The own log-weight ``<a, eta> - |a|^2/2`` is half a quadratic form Q; the law times
        ``exp(c Q/2)`` is Gaussian, and c is such that the mean of Q/2 is ``log_weight``.
        """
        r = len(self.tau)
        form = np.block([[-np.eye(r), np.eye(r)], [np.eye(r), np.zeros((r, r))]])
        root = symmetric_root(self._joint)
        values, vectors = np.linalg.eigh(root @ form @ root)
        turned = root @ vectors
        centre = np.concatenate([self.tau, np.zeros(r)])
        lean = turned.T @ form @ centre

        def tilted(c: float) -> tuple[Array, Array]:
            gap = 1 - c * values
            return centre + turned @ (c * lean / gap), (turned / gap) @ turned.T

        def excess(c: float) -> float:
            mean, covariance = tilted(c)
            level = np.sum(form * (covariance + np.outer(mean, mean))) / 2
            return float(level) - log_weight

        low, high = 0.0, 1 / max(float(values[-1]), 1e-12)
        for _ in range(40):  # bisection: the mean grows from c = 0 to infinity at the end
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) < 0 else (low, middle)
        mean, covariance = tilted(low)
        active = np.flatnonzero(self.active)
        moments = covariance + np.outer(mean, mean)
        return np.asarray(moments[np.ix_(active, active)])

    def along(self, unit: Array, radius: float) -> tuple[Array, Array]:
        """Tilts whose varying coordinates are ``radius * unit``, and their log-density there."""
        a = np.tile(self.tau, (len(unit), 1))
        a[:, self.active] = radius * unit
        b = (radius * unit - self.tau[self.active]) / self._root
        constant = np.sum(np.log(self._root)) + 0.5 * self.rank * np.log(2 * np.pi)
        return a, np.asarray(-0.5 * np.sum(b * b, axis=1) - constant)

    def own(self, a: Array) -> tuple[Array, Array, Array, Array, Array]:
        """Mean and deviation of the own logit; of the offset its mean, slope and variance.

        The slope is per deviation of the logit, the variance what the logit does not explain.
        """
        b = (a[:, self.active] - self.tau[self.active]) / self._root
        mean = np.sum(a * (b @ self._p.T), axis=1)
        variance = np.sum(a * (a @ self._key_cov), axis=1)
        strength = np.sum(a * a, axis=1)
        deviation = np.sqrt(np.where(variance > 1e-10 * strength, variance, 0.0))
        slope = a @ self._key_offset / np.where(deviation > 0, deviation, np.inf)[:, None]
        left = np.maximum(self._offset_trace - np.sum(slope * slope, axis=1), 0.0)
        return mean, deviation, b @ self._offset.T - a @ self.loading.T, slope, left


# What a query's own key does to the map error of a Gaussian head without symmetry.
#
# When tokens attend to each other, one of the n keys belongs to the query itself. At a tilt a of
# strength s the error depends on that key only through its logit ``L = <a, eta>`` and on quadratics
# of its value's offset from the limit, ``o = B (eta - a) + eps``. Given a, the pair (L, o) is
# Gaussian, and given (a, L) the offset enters through its conditional mean and variance: one
# integral over L is left, and those over the direction and the strength of a.
#
# * Strength: the nodes of ``TiltLaw``, the same for every direction, far into the tail. Each
#   direction is weighted by the density of a along its ray, so that no strength is ever missed.
# * Direction: for tilts of rank 1, 2 and 3 a rule for the sphere; else randomised quasi-Monte
#   Carlo, of a size that is fixed beforehand. Directions come from a mixture of angular central
#   Gaussian laws: those that tilts of several strengths have, from the typical to the ones that
#   carry the error at the largest n, and those of queries whose own key outweighs the n others. A
#   density in the mixture bounds the weights, and since a softmax mean stays among its keys the
#   integrand grows no faster than a polynomial: no moment is infinite.

#: Independent scramblings, whose spread is the standard error (31 degrees of freedom), and
#: directions in each.
SCRAMBLINGS, POINTS = 32, 128
#: Nodes on the circle, and on the sphere (heights, angles), per component of the mixture.
CIRCLE, HEIGHTS, ANGLES = 96, 20, 40
#: Largest spacing of the tables in the own key's log-weight, and of the rule over its logit.
SPACING, LOGIT_STEP = 0.25, 0.7
#: Half-width of the rule over the own logit, in standard deviations.
LOGIT_REACH = 7.5
#: Shape of the tail of a sampled average's terms from which its standard error means nothing.
LARGEST_SHAPE = 0.7
#: Share of the squared error below which a single direction's term does no harm.
NEGLIGIBLE = 2e-3
#: Shares of the error at the largest n up to which the components of the mixture lie.
SHARES = (0.1, 0.5, 0.9)
#: Variance of the own logit's score where the own key is to win.
OWN_SCORES = 3.0
#: exp(-exp(CUT)) vanishes in double precision.
CUT = 6.6
#: Strengths that carry less than this share of the error do not matter.
LIGHT = 1e-11


#: Directions of the tilt (rows), the logarithm of ``1/(count * density)``, and normal scores that
#: place the own logit in its law given the tilt (None: it is integrated out).
Directions = tuple[Array, Array, Array | None]
#: Part of the mixture: second moments of the tilt and variance of the own logit's score.
Component = tuple[Array, float]


def own_key_square(
    coupling: Coupling, n: Array, law: TiltLaw, rule: TiltRule, seed: int
) -> tuple[Array, Array, str]:
    """Squared error at each size with the own keys, its standard error, and how it was computed.

    It is averaged over queries: that without the own key, and what this changes.

    Raises
    ------
    UndefinedError
        If a few directions carry a sampled average (k-hat of its terms above 0.7), so that its
        standard error would mean nothing. The message has the estimate.
    """
    query = QueryLaw(coupling)
    components = _components(query, law, rule, n)
    if query.rank <= 2 or (query.rank == 3 and not query.is_noisy):
        # the laws of strong tilts alone: a rule converges the faster the smoother their mixture
        directions = _rule_directions(query, components[: 1 + len(SHARES)])
        without, terms = _integrate(query, n, rule, directions)
        method = "exact reduction with the query's own key"
        return without + terms.sum(axis=0), np.zeros(len(n)), method
    drawn = [_drawn_directions(query, components, seed, i) for i in range(SCRAMBLINGS)]
    unit, log_weights, scores = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    without, terms = _integrate(query, n, rule, (unit, log_weights, scores))
    sums = terms.reshape(SCRAMBLINGS, -1, len(n)).sum(axis=1)
    square = without + sums.mean(axis=0)
    error = sums.std(axis=0, ddof=1) / np.sqrt(SCRAMBLINGS)
    method = f"exact reduction, own key averaged over {SCRAMBLINGS} x {POINTS} directions"
    for i, size in enumerate(n):
        # what a tail hides is of the order of the largest term: it may be too small to matter
        sizes = np.abs(terms[:, i] / SCRAMBLINGS)
        if sizes.max() < NEGLIGIBLE * abs(square[i]):
            continue
        from esscher.math.statistics.tail import tail_shape  # here: it takes a second

        shape = tail_shape(sizes).k
        if shape > LARGEST_SHAPE or square[i] <= 0:
            raise UndefinedError(
                f"the map error at n = {size:g} with the queries' own keys is not estimable: a few "
                f"directions carry the average over queries (k-hat {shape:.2f} of its terms). Seen "
                f"was a squared error of {square[i]:.3g}, with a standard error of {error[i]:.2g} "
                "that is not to be trusted"
            )
    return square, error, method


def _components(query: QueryLaw, law: TiltLaw, rule: TiltRule, n: Array) -> list[Component]:
    """Laws of directions: of tilts of several strengths, and of tilts whose own key wins."""
    if query.rank == 0:
        return []
    share = np.cumsum(_heavy(rule, float(n.max())))
    strengths = [rule.strengths[np.searchsorted(share, p * share[-1])] for p in SHARES]
    thetas = [0.0, *law.saddles(np.asarray(strengths) ** 2)]
    tau, out = query.tau[query.active], []
    for theta in thetas:
        gap = 1 - 2 * theta * query.variances
        mean = tau / gap
        out.append((np.diag(query.variances / gap) + np.outer(mean, mean), 1.0))
    low, high = np.log(n.min()), np.log(n.max())
    for target in (low / 2, low, (low + high) / 2, high):
        out.append((query.moments_given_own(float(target)), OWN_SCORES))
    return out


def _heavy(rule: TiltRule, n: float) -> Array:
    """Rough share of each strength in the error, which grows like exp(s^2)/n until it freezes."""
    heavy = rule.weights * np.exp(np.minimum(rule.strengths**2, np.log(n)))
    return np.asarray(np.maximum(heavy, 0.0) / np.sum(heavy))


def _shape(points: Array, components: list[Component]) -> tuple[Array, list[Array]]:
    """Turn standard points, some for each component in turn, into directions.

    ``points`` has shape (components, count, rank). Returns directions and the logarithms of each
    component's density there.
    """
    rank = points.shape[2]
    roots = [np.linalg.cholesky(moments) for moments, _ in components]
    drawn = np.concatenate([p @ root.T for p, root in zip(points, roots, strict=True)])
    unit = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    # the uniform law on the sphere has the density Gamma(k/2) / (2 pi^{k/2})
    surface = float(scipy.special.gammaln(rank / 2) - np.log(2) - 0.5 * rank * np.log(np.pi))
    logs = []
    for root in roots:
        inner = np.linalg.solve(root, unit.T)
        spread = 0.5 * rank * np.log(np.sum(inner**2, axis=0))
        logs.append(surface - np.log(np.diag(root)).sum() - spread)
    return unit, logs


def _rule_directions(query: QueryLaw, components: list[Component]) -> Directions:
    """Points of a rule on the sphere, laid out by each component in turn."""
    if query.rank == 0:
        return (np.empty((1, 0)), np.zeros(1), None)
    if query.rank == 1:
        return (np.array([[1.0], [-1.0]]), np.zeros(2), None)
    if query.rank == 2:
        angle = 2 * np.pi * np.arange(CIRCLE) / CIRCLE
        points = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        masses = np.full(CIRCLE, 1 / CIRCLE)
    else:
        height, mass = np.polynomial.legendre.leggauss(HEIGHTS)
        angle = 2 * np.pi * np.arange(ANGLES) / ANGLES
        flat = np.sqrt(1 - height**2)
        points = np.stack(
            [
                np.outer(flat, np.cos(angle)).ravel(),
                np.outer(flat, np.sin(angle)).ravel(),
                np.repeat(height, ANGLES),
            ],
            axis=1,
        )
        masses = np.repeat(mass / 2, ANGLES) / ANGLES
    unit, logs = _shape(np.tile(points, (len(components), 1, 1)), components)
    log_masses = np.log(np.tile(masses, len(logs)))
    return unit, log_masses - scipy.special.logsumexp(logs, 0), None


def _drawn_directions(
    query: QueryLaw, components: list[Component], seed: int, index: int
) -> Directions:
    """One scrambling of a Sobol sequence: every component gets as many points."""
    from scipy.stats import qmc  # here: it takes a second

    rng = random_stream(seed, "own key", index)
    sobol = qmc.Sobol(query.rank + 1, scramble=True, rng=rng)
    normal = scipy.special.ndtri(np.clip(sobol.random(POINTS), 1e-16, 1 - 1e-16))
    # consecutive points, not every eighth: those would share the leading digit of a coordinate
    blocks = normal.reshape(len(components), POINTS // len(components), -1)
    unit, logs = _shape(blocks[:, :, :-1], components)
    variances = np.array([variance for _, variance in components])
    scores = (blocks[:, :, -1] * np.sqrt(variances)[:, None]).ravel()
    # the density of the scores' own law over that of each component
    wider = [0.5 * (np.log(v) - scores**2 * (1 - 1 / v)) for v in variances]
    mixture = [density - score for density, score in zip(logs, wider, strict=True)]
    count = np.log(len(unit) / len(components))
    return unit, -scipy.special.logsumexp(mixture, axis=0) - count, scores


def _integrate(
    query: QueryLaw, n: Array, rule: TiltRule, points: Directions
) -> tuple[Array, Array]:
    """Squared error without own keys, and what they change along each direction's ray.

    The changes (directions, sizes) are to be summed over directions.
    """
    unit, log_weights, scores = points
    without = np.zeros(len(n))
    changes = np.zeros((len(unit), len(n)))
    # what is light at the largest n may be all there is at the smallest
    heavy = np.max([_heavy(rule, float(size)) for size in n], axis=0)
    rows = zip(rule.strengths, rule.weights, rule.along, rule.steps, heavy, strict=True)
    for s, mass, mass_along, step, share in rows:
        if share < LIGHT:
            continue
        strength, largest = min(float(s), STRONGEST), float(n.max())
        table = laplace_table(strength, largest, heaviest=dominant(strength, largest))
        alone = np.array([[table.squared_error(m), table.collision(m)] for m in n]).T
        if s > STRONGEST:  # frozen: the error is that of the largest key (``softmax_moments``)
            more = float(s) - STRONGEST
            alone[0] += more * more - 2 * more * np.array([table.bias(m) for m in n])
            alone[1] = 1 - (1 - alone[1]) * STRONGEST / float(s)
        without += alone[0] * mass_along + alone[1] * (mass * query.total - mass_along)
        radius = float(np.sqrt(max(s * s - query.shift, 0.0)))
        weights = np.ones(1)
        tilts, log_density = query.along(unit, radius)
        if query.rank > 0:
            logs = log_density + log_weights
            logs += (query.rank - 2) * np.log(max(radius, 1e-300)) + np.log(s * step)
            weights = np.exp(logs)
        changes += weights[:, None] * _effect(query, n, float(s), table, tilts, scores)
    return without, changes


def _effect(
    query: QueryLaw, n: Array, s: float, table: LaplaceTable, tilts: Array, scores: Array | None
) -> Array:
    """Squared error with the own key minus that without, for tilts of one strength and each n.

    Beyond the strongest table both are taken there: the difference no longer moves.
    """
    strength = table.strength
    shrink = strength / max(s, 1e-300)
    along = tilts @ query.loading.T / max(s, 1e-300)
    level, deviation, offset, slope, left = query.own(tilts)
    if scores is None:
        widest = float(deviation.max())
        step = LOGIT_STEP * max(1.0, s / 25) / max(widest, 1e-300)
        count = int(np.ceil(LOGIT_REACH / step)) if widest > 0 else 0
        z = (step * np.arange(-count, count + 1))[None, :]
        masses = np.exp(-0.5 * z[0] ** 2)
        masses /= masses.sum()
    else:
        z, masses = scores[:, None], np.ones(1)

    def times(p: Array, q: Array) -> Array:
        return np.asarray(np.sum(p * q, axis=1)[:, None])

    square = times(offset, offset) + left[:, None]
    square = square + 2 * z * times(offset, slope) + z * z * times(slope, slope)
    lean = times(offset, along) + z * times(slope, along)
    spread = times(along, along)
    across = query.total - spread
    logits = shrink * (level[:, None] + z * deviation[:, None])
    factors = _own_expectations(table, n, logits - strength**2 / 2)
    out = np.empty((len(tilts), len(n)))
    for j, m in enumerate(n):
        own, own_rest, rest, rest_across = (factors[..., j + i * len(n)] for i in range(4))
        mine = square * own + lean * own_rest + spread * rest + across * rest_across
        alone = table.squared_error(m) * spread + table.collision(m) * across
        out[:, j] = mine @ masses - alone[:, 0]
    return out


def _own_expectations(table: LaplaceTable, n: Array, log_weights: Array) -> Array:
    """Factors of |offset|^2, of its part along the tilt, and of the values along and across it.

    Functions of the own key's log-weight alone, one after the other and each at every size (last
    axis), tabulated on a grid and interpolated.
    """
    low, high = -table.ell[-1] - 8, table.heaviest
    inside = np.clip(log_weights, low, high)
    ratio = int(np.ceil(table.step / SPACING))
    spacing = table.step / ratio
    first = float(inside.min()) - 2 * spacing
    grid = first + spacing * np.arange(int(np.ceil((inside.max() - first) / spacing)) + 3)
    # the kernels depend on the sum of log-weight and ell only
    span = ratio * (len(table.ell) - 1) + 1
    sums = grid[0] + table.ell[0] + spacing * np.arange(len(grid) + span - 1)
    weight = np.exp(np.minimum(sums, CUT))
    decay = np.exp(-weight)
    kernels = [
        np.lib.stride_tricks.sliding_window_view(x, span)[:, ::ratio]
        for x in (weight * weight * decay, weight * decay, decay)
    ]
    m = (n - 1)[:, None]
    phi0, phi1, phi2 = (np.exp(np.maximum(m - k, 0) * table.log_phi) for k in range(3))
    rest = m * table.y2 * phi1 + m * (m - 1) * table.y1**2 * phi2
    columns = np.hstack(
        [
            kernels[0] @ phi0.T,
            kernels[1] @ (2 * m * table.y1 * phi1).T,
            kernels[2] @ np.concatenate([rest, m * table.w2 * phi1]).T,
        ]
    )
    return np.asarray(scipy.interpolate.CubicSpline(grid, table.step * columns)(inside))
