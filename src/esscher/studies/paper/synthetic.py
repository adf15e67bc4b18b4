"""Measurements of synthetic tokens: limit, ball, moments, hardmax, sweeps of Gaussian tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import scipy
import xarray as xr

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.core.variables import bounds, joined
from esscher.engine.attention import attention_statistics
from esscher.math.heads import Head, gaussian_head, weight_head
from esscher.math.laws import FiniteTokens, Gaussian, Law, Sphere, standard_law
from esscher.math.limits import NoLimit, limit_moments
from esscher.math.statistics import LEVEL, Rate, fit_rate, resampling_counts
from esscher.math.statistics.intervals import FEWEST
from esscher.math.theory import (
    hardmax_curve,
    log_ball_bound,
    map_curve,
    measured_supremum,
    moment_curves,
)
from esscher.studies.paper.study import (
    Ball,
    BallErrors,
    Growth,
    Hardmax,
    Limit,
    LimitErrors,
    Measurement,
    PaperSettings,
    Support,
    SupportErrors,
    SweepErrors,
    Sweeps,
    Unit,
)
from esscher.studies.sweep import sweep
from esscher.studies.sweep.measure import scaled_head

#: Metrics of errors, and what they are called.
METRICS = {"mean": "mean", "cov": "covariance", "map": "map"}
#: Resampled sets of replicates.
RESAMPLES = 2000


def geometric(low: float, high: float, count: int) -> list[int]:
    """Whole numbers in geometric progression."""
    return [int(n) for n in np.unique(np.geomspace(low, high, count).round())]


def side_by_side(cells: Sequence[xr.Dataset], *axes: str) -> xr.Dataset:
    """Return cells side by side along axes; their labels along the first of two come in groups."""
    if len(axes) == 1:
        return joined(cells, axes[0])
    groups: dict[Any, list[xr.Dataset]] = {}
    for cell in cells:
        groups.setdefault(cell[axes[0]].item(), []).append(cell)
    return joined([side_by_side(group, *axes[1:]) for group in groups.values()], axes[0])


# -- limit: Monte Carlo at growing n against the closed form

#: Laws with a closed form; ``finite`` is a set of 50 tokens.
LAWS = ("gaussian", "mixture", "sphere", "cube", "signs", "laplace", "finite")
LAW_DIM = 4


def token_law(name: str) -> Law:
    """Return a law of tokens in four dimensions."""
    if name == "finite":
        return FiniteTokens(random_stream(0, "fifty tokens").standard_normal((50, LAW_DIM)))
    return standard_law(name, LAW_DIM)


def limit_units(settings: PaperSettings) -> list[Unit]:
    """Return one unit per law."""
    sizes, replicates = {
        "quick": (geometric(300, 30_000, 5), 200),
        "standard": (geometric(300, 100_000, 6), 400),
        "paper": (geometric(300, 1_000_000, 8), 1_000),
    }[settings.scale]
    return [{"law": law, "sizes": sizes, "replicates": replicates} for law in LAWS]


def measure_limit(unit: Unit, settings: PaperSettings) -> LimitErrors:
    """Softmax over n tokens of a law at one tilt, against grad K; nested sizes share tokens.

    The error's variance times n tends to ``E w^2 |X - G|^2 / (E w)^2``, which K gives as well.
    """
    law, sizes, replicates = token_law(unit["law"]), unit["sizes"], range(unit["replicates"])
    tilt = np.full(LAW_DIM, 0.3)
    limit = law.tilted_mean(tilt)
    twice = law.tilted_mean(2 * tilt)
    spread = np.trace(law.tilted_covariance(2 * tilt)) + np.sum((twice - limit) ** 2)
    distance, along = np.empty((2, 1, len(replicates), len(sizes)))
    for replicate in replicates:
        rng = random_stream(settings.seed, "limit", LAWS.index(unit["law"]), replicate)
        tokens = law.sample(sizes[-1], rng)
        weights = np.exp(tokens @ tilt)
        total, products = np.cumsum(weights), np.cumsum(weights[:, None] * tokens, axis=0)
        for j, n in enumerate(sizes):
            error = products[n - 1] / total[n - 1] - limit
            distance[0, replicate, j] = float(error @ error) ** 0.5
            along[0, replicate, j] = float(error @ tilt) / float(np.linalg.norm(tilt))
    data = LimitErrors.new(law=[unit["law"]], replicate=replicates, size=sizes)
    data.error, data.along = distance, along
    data.constant = [np.exp(law.log_mgf(2 * tilt) - 2 * law.log_mgf(tilt)) * spread]
    return data


def summarise_limit(
    units: Sequence[Unit], cells: Sequence[xr.Dataset], settings: PaperSettings
) -> Limit:
    """Mean errors by size; at the largest one the distance from the limit, and the constant."""
    raw = LimitErrors(joined(cells, "law"))
    sizes, errors = raw.dataset["size"].values, raw.error.values  # [law, replicate, size]
    count, constants = errors.shape[1], raw.constant.values[:, None]
    root = count**0.5
    data = Limit.like(raw, "law", "size")
    squares = errors**2
    data.error = np.sqrt(squares.mean(axis=1))
    data.standard_error = squares.std(axis=1, ddof=1) / root / (2 * data.error.values)
    data.expected = (constants / sizes) ** 0.5
    rates = [fit_rate(replicates, sizes, seed=settings.seed) for replicates in errors]
    data.exponent = [bounds(rate.exponent, rate.interval) for rate in rates]
    along = raw.along.values[:, :, -1]
    data.z = along.mean(axis=1) / along.std(axis=1, ddof=1) * root
    relative = sizes[-1] * squares[:, :, -1] / constants
    data.constant_ratio = relative.mean(axis=1)
    data.constant_error = relative.std(axis=1, ddof=1) / root
    identity = np.eye(LAW_DIM)
    student = weight_head(standard_law("student", LAW_DIM), query=identity, key=identity)
    data.refused = isinstance(limit_moments(student), NoLimit)
    return data


# -- growth of a constant with the size of the support: as a power, or exponentially


def set_growth(data: Growth, radii: Array, errors: Array, seed: int) -> None:
    """Compare a power law of R with an exponential.

    Parameters
    ----------
    data
        Where the answer is set.
    radii
        Sizes R of the support.
    errors
        Axes [..., replicate, radius]; replicates are resampled for all radii together.
    seed
        Seed of the resampling.
    """
    count = errors.shape[-2]
    picks = resampling_counts(count, RESAMPLES, random_stream(seed, "growth", count)) / count
    centred = [x - x.mean() for x in (np.log(radii), np.asarray(radii, dtype=np.float64))]

    def growth(replicates: Array) -> tuple[list[float], float, float]:
        curves = np.log(np.vstack([replicates.mean(axis=0), picks @ replicates]))
        level = curves - curves.mean(axis=1, keepdims=True)
        slopes = [level @ x / (x @ x) for x in centred]
        power, exponential = (
            ((level - slope[:, None] * x) ** 2).sum(axis=1)[1:]
            for slope, x in zip(slopes, centred, strict=True)
        )
        ends = np.quantile(slopes[0][1:], [0.025, 0.975])
        share = float(np.mean(power < exponential))
        return bounds(slopes[0][0], ends.tolist()), float(slopes[1][0]), share

    lead = errors.shape[:-2]
    answers = [growth(errors[place]) for place in np.ndindex(lead)]
    power, rate, share = zip(*answers, strict=True)
    data.power = np.reshape(power, (*lead, 3))
    data.rate, data.share = np.reshape(rate, lead), np.reshape(share, lead)


# -- ball: the supremum over a ball of tilts, beside its bound

BALL_DIM = 3


def ball_units(settings: PaperSettings) -> list[Unit]:
    """Return one unit per radius and size."""
    radii, sizes, replicates = {
        "quick": ([1.0, 2.0, 4.0, 8.0, 16.0], geometric(200, 3_200, 4), 24),
        "standard": ([0.5, 1.0, 2.0, 4.0, 8.0, 16.0], geometric(200, 10_000, 5), 64),
        "paper": ([0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0], geometric(200, 100_000, 8), 200),
    }[settings.scale]
    return [{"radius": T, "n": n, "replicates": replicates} for T in radii for n in sizes]


def measure_ball(unit: Unit, settings: PaperSettings) -> BallErrors:
    """Supremum of the map's error over |t| <= R, tokens uniform on the unit sphere."""
    radius, n, replicates = unit["radius"], unit["n"], unit["replicates"]
    seed = settings.seed + round(1000 * radius)
    suprema = measured_supremum(Sphere(BALL_DIM, 1.0), radius, [n], replicates, seed=seed)
    data = BallErrors.new(radius=[radius], size=[n], replicate=range(replicates))
    data.error = np.asarray(suprema[0])[None, :, None]
    data.paper_bound = [[np.exp(log_ball_bound(1.0, radius, mean_norm=0.0) - np.log(n) / 2)]]
    return data


def summarise_ball(
    units: Sequence[Unit], cells: Sequence[xr.Dataset], settings: PaperSettings
) -> Ball:
    """Mean suprema with the bound; exponents, constants, and how the constants grow."""
    raw = BallErrors(side_by_side(cells, "radius", "size"))
    sizes, errors = raw.dataset["size"].values, raw.error.values  # [radius, replicate, size]
    data = Ball.like(raw, "radius", "size")
    data.error = errors.mean(axis=1)
    data.standard_error = errors.std(axis=1, ddof=1) / errors.shape[1] ** 0.5
    data.paper_bound = raw.paper_bound
    rates = [fit_rate(replicates, sizes, seed=settings.seed) for replicates in errors]
    data.exponent = [bounds(rate.exponent, rate.interval) for rate in rates]
    data.constant = data.error[:, -1] * sizes[-1] ** 0.5
    data.constant_error = data.standard_error[:, -1] * sizes[-1] ** 0.5
    radii = raw.dataset["radius"].values
    set_growth(data.growth, radii, errors[:, :, -1].T, settings.seed)
    return data


# -- moments: tokens of bounded support, of growing size

SUPPORT_LAWS = ("truncated Gaussian", "sphere", "cube")
#: All in three dimensions with logits <x, y>/sqrt(3), the scaling of attention.
SUPPORT_DIM = 3


def moments_units(settings: PaperSettings) -> list[Unit]:
    """Return one unit per law and block of replicates."""
    sizes, replicates, block, count = {
        "quick": ([125, 1_000], 48, 24, 7),
        "standard": ([500, 4_000], 96, 16, 9),
        "paper": ([2_000, 16_000], 400, 8, 13),
    }[settings.scale]
    radii = [float(R) for R in np.geomspace(0.5, 8.0, count).round(3)]
    return [
        {"law": law, "radii": radii, "sizes": sizes, "first": first, "replicates": block}
        for law in SUPPORT_LAWS
        for first in range(0, replicates, block)
    ]


def langevin(s: Array) -> Array:
    """``coth s - 1/s``, the mean of the tilted sphere of R^3 along its tilt."""
    small = np.abs(s) < 1e-3
    safe = np.where(small, 1.0, s)
    return np.where(small, s / 3, 1 / np.tanh(safe) - 1 / safe)


def support_law(law: str, radius: float, draws: Array) -> tuple[Array, Array, float]:
    """Tokens of a law of size R, their limit outputs, and the variance of these outputs.

    Parameters
    ----------
    law, radius
        One of ``SUPPORT_LAWS``, and R: the norm of no token exceeds it.
    draws
        Axes [token, 4]: three standard normals and a uniform number. All R share them.

    The mean of the outputs is 0 by symmetry, and their covariance a multiple of the identity.
    """
    scale = SUPPORT_DIM**-0.5
    if law == "cube":
        half = radius * scale  # of the edge: corners have norm R
        tokens = half * (2 * scipy.special.ndtr(draws[:, :3]) - 1)
        nodes, weights = np.polynomial.legendre.leggauss(200)
        square = half**2 * langevin(half * half * nodes * scale) ** 2
        return tokens, half * langevin(half * tokens * scale), float(weights @ square / 2)
    units = draws[:, :3] / np.linalg.norm(draws[:, :3], axis=1, keepdims=True)
    if law == "sphere":
        tokens, reach = radius * units, radius * langevin(np.array(radius**2 * scale))
        return tokens, reach * units, float(reach**2) / SUPPORT_DIM
    # the radius of a standard Gaussian, given that it is at most R
    share = scipy.special.chdtr(SUPPORT_DIM, radius**2)
    norms = np.sqrt(scipy.special.chdtri(SUPPORT_DIM, 1 - draws[:, 3] * share))
    nodes, weights = np.polynomial.legendre.leggauss(400)
    r, weights = radius * (nodes + 1) / 2, weights * (nodes + 1) ** 2
    weights = weights * np.exp(-(r**2) / 2)
    tilts = np.linspace(0.0, radius * scale, 801)[1:]
    product = np.outer(tilts, r)
    mass = weights * np.exp(product - product.max(axis=1, keepdims=True))
    mass = mass * -np.expm1(-2 * product) / product  # sinh(rt)/(rt), scaled
    means = (mass * r * langevin(product)).sum(axis=1) / mass.sum(axis=1)
    curve = scipy.interpolate.CubicSpline(np.append(0.0, tilts), np.append(0.0, means))
    square = float(weights @ curve(r * scale) ** 2 / weights.sum())
    return norms[:, None] * units, curve(norms * scale)[:, None] * units, square / SUPPORT_DIM


def measure_moments(unit: Unit, settings: PaperSettings) -> SupportErrors:
    """Errors of mean, covariance and map, tokens as queries, for every R."""
    law, radii, sizes = unit["law"], unit["radii"], unit["sizes"]
    replicates = range(unit["first"], unit["first"] + unit["replicates"])
    errors = np.empty((1, len(METRICS), len(radii), len(replicates), len(sizes)))
    for r, replicate in enumerate(replicates):
        rng = random_stream(settings.seed, "support", SUPPORT_LAWS.index(law), replicate)
        draws = np.column_stack(
            [rng.standard_normal((sizes[-1], SUPPORT_DIM)), rng.random(sizes[-1])]
        )
        for k, radius in enumerate(radii):
            tokens, limit, variance = support_law(law, radius, draws)
            statistics = attention_statistics(
                tokens * SUPPORT_DIM**-0.5,
                tokens,
                tokens,
                sizes=sizes,
                factor=1.0,
                limit=limit[None],
            )
            cov = np.asarray(statistics.covariance).reshape(len(sizes), SUPPORT_DIM, SUPPORT_DIM)
            cov = cov - variance * np.eye(SUPPORT_DIM)
            mean = np.asarray(statistics.mean).reshape(len(sizes), SUPPORT_DIM)
            assert statistics.map_square is not None  # a limit was given
            square = np.asarray(statistics.map_square).reshape(len(sizes))
            for j in range(len(sizes)):
                errors[0, :, k, r, j] = (
                    np.linalg.norm(mean[j]),
                    np.linalg.norm(cov[j]),
                    float(max(square[j], 0.0)) ** 0.5,
                )
    data = SupportErrors.new(
        law=[law], metric=METRICS, radius=radii, replicate=replicates, size=sizes
    )
    data.error = errors
    return data


def summarise_moments(
    units: Sequence[Unit], cells: Sequence[xr.Dataset], settings: PaperSettings
) -> Support:
    """Constants by radius, and whether they grow as a power of it."""
    raw = SupportErrors(side_by_side(cells, "law", "replicate"))
    sizes = raw.dataset["size"].values
    last = raw.error.values[..., -1]  # [law, metric, radius, replicate]
    data = Support.like(raw, "law", "metric", "radius")
    level = last.mean(axis=-1) * sizes[-1] ** 0.5
    half = 2 * last.std(axis=-1, ddof=1) * (sizes[-1] / last.shape[-1]) ** 0.5
    data.constant = np.stack([level, level - half, level + half], axis=-1)
    radii = raw.dataset["radius"].values
    set_growth(data.growth, radii, np.ascontiguousarray(last.swapaxes(-1, -2)), settings.seed)
    data.largest = sizes[-1]
    return data


# -- hardmax


def hardmax_units(settings: PaperSettings) -> list[Unit]:
    """Return the sizes and replicates, in one unit."""
    count, replicates = {"quick": (5, 20_000), "standard": (7, 100_000), "paper": (10, 400_000)}[
        settings.scale
    ]
    sizes = [float(n) for n in np.geomspace(1e3, 1e12, count).round()]
    return [{"sizes": sizes, "replicates": replicates}]


def measure_hardmax(unit: Unit, settings: PaperSettings) -> Hardmax:
    """Size of the mean output, simulated by order statistics, beside its exact expectation."""
    curve = hardmax_curve(unit["sizes"], replicates=unit["replicates"], seed=settings.seed)
    data = Hardmax.new(size=[int(n) for n in unit["sizes"]])
    data.simulated, data.standard_error = curve.simulated, curve.standard_error
    data.exact, data.leading = curve.exact, curve.leading
    power, low, high, data.exact_power = curve.fit(seed=settings.seed)
    data.power = bounds(power, (low, high))
    return data


# -- sweeps: the scales of a sweep share their tokens

#: Variance of the tokens and dimension in the authors' scripts.
AUTHORS_VARIANCE, AUTHORS_DIM = 0.1, 50


def swept_head(name: str) -> Head:
    """Return the head of a sweep at alpha = 1."""
    identity = np.eye(AUTHORS_DIM)
    if name == "authors":  # A = alpha I / sqrt(50)
        law = Gaussian(np.zeros(AUTHORS_DIM), AUTHORS_VARIANCE * identity)
        return weight_head(law, query=identity, key=identity)
    if name == "sphere":
        return weight_head(Sphere(AUTHORS_DIM, 1.0), query=identity, key=identity)
    if name == "ablation":
        return gaussian_head(0.5, 4)
    return gaussian_head(1.0, int(name.removeprefix("flat-")))


def sweep_units(
    name: str, alphas: Iterable[float], sizes: Sequence[int], replicates: int, block: int
) -> list[Unit]:
    """Return the blocks of replicates of a sweep, all scales of which share their tokens."""
    return [
        {
            "head": name,
            "alphas": [float(f"{alpha:.4g}") for alpha in alphas],
            "sizes": list(sizes),
            "first": first,
            "replicates": min(block, replicates - first),
        }
        for first in range(0, replicates, block)
    ]


def reference_units(settings: PaperSettings) -> list[Unit]:
    """Return the authors' setting, and heads on the line and in eight dimensions."""
    if settings.scale == "quick":
        sizes = geometric(200, 2_000, 5)
        return [
            *sweep_units("authors", np.geomspace(0.5, 50, 4), sizes, 64, 32),
            *sweep_units("flat-1", (0.5, 1.0, 2.0), sizes, 512, 256),
            *sweep_units("flat-8", (0.5, 1.0, 2.0), sizes, 128, 128),
        ]
    horizons = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
    if settings.scale == "standard":
        sizes = geometric(300, 10_000, 8)
        return [
            *sweep_units("authors", np.geomspace(0.05, 50, 7), sizes, 48, 8),
            *sweep_units("flat-1", horizons, sizes, 256, 64),
            *sweep_units("flat-8", horizons, sizes, 64, 16),
        ]
    sizes = geometric(1_000, 30_000, 12)
    return [
        *sweep_units("authors", np.geomspace(0.05, 50, 12), sizes, 200, 2),
        *sweep_units("sphere", np.geomspace(10, 1e5, 12), geometric(1e4, 1e5, 12), 200, 1),
        *sweep_units("flat-1", horizons, sizes, 400, 25),
        *sweep_units("flat-8", horizons, sizes, 200, 10),
    ]


def ablation_units(settings: PaperSettings) -> list[Unit]:
    """Return the sweep over alpha from 0.01 to 10."""
    count, sizes, replicates, block = {
        "quick": (5, geometric(200, 2_000, 5), 192, 96),
        "standard": (9, geometric(300, 10_000, 8), 96, 24),
        "paper": (13, geometric(1_000, 30_000, 12), 200, 10),
    }[settings.scale]
    return sweep_units("ablation", np.geomspace(0.01, 10, count), sizes, replicates, block)


def measure_sweep(unit: Unit, settings: PaperSettings) -> SweepErrors:
    """Errors of a block of replicates; in the authors' setting with predicted errors beside."""
    head, sizes, first = swept_head(unit["head"]), unit["sizes"], unit["first"]
    result = sweep(
        head,
        sizes,
        unit["replicates"],
        # blocks are independent: each has a seed of its own
        seed=1_000_003 * settings.seed + first,
        alpha=unit["alphas"],
        predict=False,
        progress=False,
    )
    predicted = np.full((len(METRICS), len(unit["alphas"]), len(sizes)), np.nan)
    if unit["head"] == "authors" and first == 0:
        for s, alpha in enumerate(unit["alphas"]):
            scaled = scaled_head(head, alpha)
            moments = moment_curves(scaled, sizes, "tokens", settings.seed)
            cov = moments["cov" if "cov" in moments else "cov_rms"]
            error = map_curve(scaled, sizes, "tokens", settings.seed).error
            predicted[:, s] = moments["mean"].error, cov.error, error
    data = SweepErrors.new(
        metric=METRICS,
        alpha=unit["alphas"],
        replicate=range(first, first + unit["replicates"]),
        size=sizes,
    )
    errors = result["replicate_error"].sel(metric=list(METRICS))
    data.error = errors.transpose("metric", "alpha", "replicate", "size").values
    data.predicted, data.horizon = predicted, result["horizon"].values
    return data


def summarise_sweeps(
    units: Sequence[Unit], cells: Sequence[xr.Dataset], settings: PaperSettings
) -> Sweeps:
    """Fit an exponent to every head, scale and metric."""
    heads = dict.fromkeys(unit["head"] for unit in units)
    parts = []
    for name in heads:
        of_head = [cell for unit, cell in zip(units, cells, strict=True) if unit["head"] == name]
        raw = SweepErrors(joined(of_head, "replicate"))
        parts.append(_exponents(name, raw, settings.seed).dataset)
    return Sweeps(joined(parts, "setting"))


def _exponents(name: str, raw: SweepErrors, seed: int) -> Sweeps:
    """Exponents of a head at all of its scales, [setting, metric]."""
    alphas, sizes = raw.dataset["alpha"].values, raw.dataset["size"].values
    data = Sweeps.new(setting=[f"{name} {alpha:g}" for alpha in alphas], metric=METRICS)
    columns: dict[str, list[Any]] = {
        key: [] for key in ("exponent", "standard_error", "joint", "late", "late_error")
    }
    predicted = np.full((len(METRICS), len(alphas)), np.nan)
    for m, errors in enumerate(raw.error.values):  # [alpha, replicate, size]
        rates = [fit_rate(replicates, sizes, seed=seed) for replicates in errors]
        late = [fit_rate(replicates[:, -3:], sizes[-3:], seed=seed) for replicates in errors]
        columns["exponent"].append([bounds(rate.exponent, rate.interval) for rate in rates])
        columns["standard_error"].append([rate.standard_error for rate in rates])
        columns["joint"].append(simultaneous_band(errors, sizes, rates, seed))
        columns["late"].append([rate.exponent for rate in late])
        columns["late_error"].append([rate.standard_error for rate in late])
        for s, (rate, theory) in enumerate(zip(rates, raw.predicted.values[m], strict=True)):
            if np.isfinite(theory).all():
                predicted[m, s] = rate.slope_of(theory[np.isin(sizes, rate.sizes)])
    for key, values in columns.items():
        setattr(data, key, np.array(values, float).swapaxes(0, 1))
    data.predicted = predicted.T
    data.tokens, data.scaling, data.horizon = [name] * len(alphas), alphas, raw.horizon.values
    data.dimension = [swept_head(name).key_dim] * len(alphas)
    return data


def simultaneous_band(errors: Array, sizes: Array, rates: Sequence[Rate], seed: int) -> Array:
    """Exponents with a band that holds those of all scales at once, [scale, bound].

    A replicate that is unlucky at one scale is unlucky at the next, so that replicates are
    resampled for all scales together: ``beta_s +- c SE_s``, where c is the 95% quantile of the
    largest ``|t|`` over the scales. One replicate has no band.

    Parameters
    ----------
    errors
        Axes [scale, replicate, size].
    sizes
        Numbers of tokens.
    rates
        What was fitted at every scale.
    seed
        Seed of the resampling.
    """
    scales, count = errors.shape[:2]
    exponents = np.array([rate.exponent for rate in rates])
    if count < 2:
        return np.stack([exponents, *np.full((2, scales), np.nan)], axis=-1)
    columns = []  # how every replicate moves the exponent of a scale
    for replicates, rate in zip(errors, rates, strict=True):
        x, weights = np.log(rate.sizes), np.array(rate.weights)
        centred = x - weights @ x
        slope = -weights * centred / (weights @ centred**2)
        used = replicates[:, np.isin(sizes, rate.sizes)]
        columns.append((used / used.mean(axis=0) - 1) @ slope)
    moved = np.column_stack(columns)
    error = moved.std(axis=0, ddof=1) / np.sqrt(count)
    if count < FEWEST:
        factor = float(scipy.special.stdtrit(count - 1, 1 - (1 - LEVEL) / 2 / scales))
    else:
        moved = moved - moved.mean(axis=0)
        stream = random_stream(seed, "joint exponents", count)
        picks = resampling_counts(count, RESAMPLES, stream) / count
        mean = picks @ moved
        variance = np.maximum(picks @ moved**2 - mean**2, 0.0) / (count - 1)
        # a resample of one replicate repeated has no spread: very far, not infinite
        smallest = 1e-6 * moved.std(axis=0) + np.finfo(float).tiny
        scores = np.abs(mean) / np.maximum(np.sqrt(variance), smallest)
        factor = float(np.quantile(scores.max(axis=1), LEVEL))
    half = factor * error
    return np.stack([exponents, exponents - half, exponents + half], axis=-1)


MEASUREMENTS = {
    "limit": Measurement(limit_units, measure_limit, summarise_limit),
    "ball": Measurement(ball_units, measure_ball, summarise_ball),
    "moments": Measurement(moments_units, measure_moments, summarise_moments),
    "gaussian": Measurement(reference_units, measure_sweep, summarise_sweeps),
    "ablation": Measurement(ablation_units, measure_sweep, summarise_sweeps),
    "hardmax": Measurement(
        hardmax_units, measure_hardmax, lambda units, cells, settings: Hardmax(cells[0])
    ),
}
