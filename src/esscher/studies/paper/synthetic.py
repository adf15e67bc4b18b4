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
    Curves,
    Errors,
    Growth,
    Hardmax,
    Measurement,
    PaperSettings,
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


def errors_by(
    units: Sequence[Unit], cells: Sequence[xr.Dataset], option: str, axis: str
) -> dict[Any, xr.Dataset]:
    """Return cells by the value of an option of their units, those of one value side by side."""
    groups: dict[Any, list[xr.Dataset]] = {}
    for unit, cell in zip(units, cells, strict=True):
        groups.setdefault(unit[option], []).append(cell)
    return {value: joined(group, axis) for value, group in groups.items()}


# -- limit: Monte Carlo at growing n against the closed form

#: Laws with a closed form; ``finite`` is a set of 50 tokens.
LAWS = ("gaussian", "mixture", "sphere", "cube", "signs", "laplace", "finite")
LAW_DIM = 4
#: Every coordinate of the tilt.
TILT = 0.3


def token_law(name: str) -> Law:
    """Return a law of tokens in four dimensions."""
    if name == "finite":
        return FiniteTokens(random_stream(0, "fifty tokens").standard_normal((50, LAW_DIM)))
    return standard_law(name, LAW_DIM)


def measure_limit(unit: Unit, settings: PaperSettings) -> Errors:
    """Softmax over n tokens of a law at one tilt, against grad K; nested sizes share tokens."""
    law, sizes, replicates = token_law(unit["law"]), unit["sizes"], range(unit["replicates"])
    tilt = np.full(LAW_DIM, TILT)
    limit = law.tilted_mean(tilt)
    errors = np.empty((1, 2, len(replicates), len(sizes)))
    for replicate in replicates:
        rng = random_stream(settings.seed, "limit", LAWS.index(unit["law"]), replicate)
        tokens = law.sample(sizes[-1], rng)
        weights = np.exp(tokens @ tilt)
        total, products = np.cumsum(weights), np.cumsum(weights[:, None] * tokens, axis=0)
        for j, n in enumerate(sizes):
            error = products[n - 1] / total[n - 1] - limit
            errors[0, :, replicate, j] = (
                float(error @ error) ** 0.5,
                float(error @ tilt) / float(np.linalg.norm(tilt)),
            )
    metrics = ["distance", "along the tilt"]
    data = Errors.new(item=[0], metric=metrics, replicate=replicates, size=sizes)
    data.error = errors
    return data


def summarise_limit(
    units: Sequence[Unit], cells: Sequence[xr.Dataset], settings: PaperSettings
) -> Curves:
    """Mean errors by size; at the largest one the distance from the limit, and the constant.

    The error's variance times n tends to ``E w^2 |X - G|^2 / (E w)^2``, which K gives as well.
    """
    names, tilt = [unit["law"] for unit in units], np.full(LAW_DIM, TILT)
    sizes = cells[0]["size"].values
    errors, along = (
        np.concatenate([cell["error"].values[:, metric] for cell in cells]) for metric in (0, 1)
    )  # [law, replicate, size]
    constants = np.empty((len(names), 1))
    for i, law in enumerate(map(token_law, names)):
        gap = law.tilted_mean(2 * tilt) - law.tilted_mean(tilt)
        spread = np.trace(law.tilted_covariance(2 * tilt)) + np.sum(gap**2)
        constants[i] = np.exp(law.log_mgf(2 * tilt) - 2 * law.log_mgf(tilt)) * spread
    root = errors.shape[1] ** 0.5
    data = Curves.new("law", law=names, size=sizes)
    squares = errors**2
    data.error = np.sqrt(squares.mean(axis=1))
    data.standard_error = squares.std(axis=1, ddof=1) / root / (2 * data.error.values)
    data.expected = (constants / sizes) ** 0.5
    rates = [fit_rate(replicates, sizes, seed=settings.seed) for replicates in errors]
    data.exponent = [bounds(rate.exponent, rate.interval) for rate in rates]
    along = along[:, :, -1]
    data.z = along.mean(axis=1) / along.std(axis=1, ddof=1) * root
    relative = sizes[-1] * squares[:, :, -1] / constants
    data.ratio = relative.mean(axis=1)
    data.ratio_error = relative.std(axis=1, ddof=1) / root
    identity = np.eye(LAW_DIM)
    student = weight_head(standard_law("student", LAW_DIM), query=identity, key=identity)
    data.refused = isinstance(limit_moments(student), NoLimit)
    return data


# -- growth of a constant with the size of the support: as a power, or exponentially


def set_growth(data: Growth, radii: Array, errors: Array, size: float, seed: int) -> None:
    """Compare a power law of R with an exponential.

    Parameters
    ----------
    data
        Where the answer is set.
    radii
        Sizes R of the support.
    errors, size
        At one number of tokens, axes [..., replicate, radius]; replicates are resampled for all
        radii together.
    seed
        Seed of the resampling.
    """
    count = errors.shape[-2]
    picks = resampling_counts(count, RESAMPLES, random_stream(seed, "growth", count)) / count
    centred = [x - x.mean() for x in (np.log(radii), np.asarray(radii, dtype=np.float64))]

    by_radius = np.ascontiguousarray(errors.swapaxes(-1, -2))
    means = by_radius.mean(axis=-1) * size**0.5
    half = 2 * by_radius.std(axis=-1, ddof=1) * (size / count) ** 0.5
    data.constant = np.stack([means, means - half, means + half], axis=-1)
    lead = errors.shape[:-2]
    powers, rates, shares = [], [], []
    for place in np.ndindex(lead):
        replicates = errors[place]
        curves = np.log(np.vstack([replicates.mean(axis=0), picks @ replicates]))
        level = curves - curves.mean(axis=1, keepdims=True)
        slopes = [level @ x / (x @ x) for x in centred]
        power, exponential = (
            ((level - slope[:, None] * x) ** 2).sum(axis=1)[1:]
            for slope, x in zip(slopes, centred, strict=True)
        )
        ends = np.quantile(slopes[0][1:], [0.025, 0.975])
        powers.append(bounds(slopes[0][0], ends.tolist()))
        rates.append(slopes[1][0])
        shares.append(np.mean(power < exponential))
    data.power, data.rate = np.reshape(powers, (*lead, 3)), np.reshape(rates, lead)
    data.share = np.reshape(shares, lead)


# -- ball: the supremum over a ball of tilts, beside its bound

BALL_DIM = 3


def measure_ball(unit: Unit, settings: PaperSettings) -> Errors:
    """Supremum of the map's error over |t| <= R, tokens uniform on the unit sphere."""
    radius, n, replicates = unit["radius"], unit["n"], unit["replicates"]
    seed = settings.seed + round(1000 * radius)
    suprema = measured_supremum(Sphere(BALL_DIM, 1.0), radius, n, replicates, seed)
    data = Errors.new(item=[0], metric=["supremum"], replicate=range(replicates), size=[n])
    data.error = suprema[None, None, :, None]
    return data


def summarise_ball(
    units: Sequence[Unit], cells: Sequence[xr.Dataset], settings: PaperSettings
) -> Curves:
    """Mean suprema with the bound; exponents, constants, and how the constants grow."""
    raw = errors_by(units, cells, "radius", "size")
    radii, sizes = np.array(list(raw)), next(iter(raw.values()))["size"].values
    errors = np.concatenate([cell["error"].values[:, 0] for cell in raw.values()])
    data = Curves.new("radius", radius=radii, size=sizes)
    data.error = errors.mean(axis=1)  # of axes [radius, replicate, size]
    data.standard_error = errors.std(axis=1, ddof=1) / errors.shape[1] ** 0.5
    bounds_ = np.array([log_ball_bound(1.0, radius, mean_norm=0.0) for radius in radii])
    data.expected = np.exp(bounds_[:, None] - np.log(sizes) / 2)
    rates = [fit_rate(replicates, sizes, seed=settings.seed) for replicates in errors]
    data.exponent = [bounds(rate.exponent, rate.interval) for rate in rates]
    set_growth(data.growth, radii, errors[:, :, -1].T, float(sizes[-1]), settings.seed)
    return data


# -- moments: tokens of bounded support, of growing size

SUPPORT_LAWS = ("truncated Gaussian", "sphere", "cube")
#: All in three dimensions with logits <x, y>/sqrt(3), the scaling of attention.
SUPPORT_DIM = 3


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


def measure_moments(unit: Unit, settings: PaperSettings) -> Errors:
    """Errors of mean, covariance and map, tokens as queries, for every R."""
    law, radii, sizes = unit["law"], unit["radii"], unit["sizes"]
    replicates = range(unit["first"], unit["first"] + unit["replicates"])
    errors = np.empty((len(radii), len(METRICS), len(replicates), len(sizes)))
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
                errors[k, :, r, j] = (
                    np.linalg.norm(mean[j]),
                    np.linalg.norm(cov[j]),
                    float(max(square[j], 0.0)) ** 0.5,
                )
    data = Errors.new(item=range(len(radii)), metric=METRICS, replicate=replicates, size=sizes)
    data.error = errors
    return data


def summarise_moments(
    units: Sequence[Unit], cells: Sequence[xr.Dataset], settings: PaperSettings
) -> Growth:
    """Constants by radius, and whether they grow as a power of it."""
    raw = errors_by(units, cells, "law", "replicate")
    last = np.stack([cell["error"].values[..., -1] for cell in raw.values()])
    radii = np.array(units[0]["radii"])
    data = Growth.new("law", "metric", law=raw, metric=METRICS, radius=radii)
    # of axes [law, radius, metric, replicate]
    by_metric = np.ascontiguousarray(last.transpose(0, 2, 3, 1))
    set_growth(data, radii, by_metric, float(units[0]["sizes"][-1]), settings.seed)
    return data


# -- hardmax


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


def swept(
    name: str, alphas: Iterable[float], sizes: Sequence[int], replicates: int, block: int
) -> Unit:
    """Options of the blocks of replicates of a sweep, all scales of which share their tokens."""
    scales = [float(f"{alpha:.4g}") for alpha in alphas]
    first = range(0, replicates, block)
    return {"head": name, "alphas": scales, "sizes": sizes, "first": first, "replicates": block}


def measure_sweep(unit: Unit, settings: PaperSettings) -> Errors:
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
    predicted = np.full((len(unit["alphas"]), len(METRICS), len(sizes)), np.nan)
    if unit["head"] == "authors" and first == 0:
        for s, alpha in enumerate(unit["alphas"]):
            scaled = scaled_head(head, alpha)
            moments = moment_curves(scaled, sizes, "tokens", settings.seed)
            cov = moments["cov" if "cov" in moments else "cov_rms"]
            error = map_curve(scaled, sizes, "tokens", settings.seed).error
            predicted[s] = moments["mean"].error, cov.error, error
    data = Errors.new(
        item=range(len(unit["alphas"])),
        metric=METRICS,
        replicate=range(first, first + unit["replicates"]),
        size=sizes,
    )
    errors = result["replicate_error"].sel(metric=list(METRICS))
    data.error = errors.transpose("alpha", "metric", "replicate", "size").values
    data.expected = predicted
    return data


def summarise_sweeps(
    units: Sequence[Unit], cells: Sequence[xr.Dataset], settings: PaperSettings
) -> Sweeps:
    """Fit an exponent to every head, scale and metric."""
    seed, parts = settings.seed, []
    scales = {unit["head"]: unit["alphas"] for unit in units}
    for name, raw in errors_by(units, cells, "head", "replicate").items():
        head, alphas, sizes = swept_head(name), scales[name], raw["size"].values
        data = Sweeps.new(setting=[f"{name} {alpha:g}" for alpha in alphas], metric=METRICS)
        columns: dict[str, list[Any]] = {
            key: [] for key in ("exponent", "standard_error", "joint", "late", "late_error")
        }
        predicted = np.full((len(alphas), len(METRICS)), np.nan)
        for m in range(len(METRICS)):
            errors, expected = raw["error"].values[:, m], raw["expected"].values[:, m]
            rates = [fit_rate(replicates, sizes, seed=seed) for replicates in errors]
            late = [fit_rate(replicates[:, -3:], sizes[-3:], seed=seed) for replicates in errors]
            columns["exponent"].append([bounds(rate.exponent, rate.interval) for rate in rates])
            columns["standard_error"].append([rate.standard_error for rate in rates])
            columns["joint"].append(simultaneous_band(errors, sizes, rates, seed))
            columns["late"].append([rate.exponent for rate in late])
            columns["late_error"].append([rate.standard_error for rate in late])
            for s, (rate, theory) in enumerate(zip(rates, expected, strict=True)):
                if np.isfinite(theory).all():
                    predicted[s, m] = rate.slope_of(theory[np.isin(sizes, rate.sizes)])
        for key, values in columns.items():
            setattr(data, key, np.array(values, float).swapaxes(0, 1))
        data.predicted, data.tokens, data.scaling = predicted, [name] * len(alphas), alphas
        data.horizon = [alpha * head.horizon for alpha in alphas]
        data.dimension = [head.key_dim] * len(alphas)
        parts.append(data.dataset)
    return Sweeps(joined(parts, "setting"))


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


HORIZONS = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
RADII = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SCALES: dict[str, dict[str, Any]] = {
    "limit": {
        "quick": {"law": LAWS, "sizes": geometric(300, 30_000, 5), "replicates": 200},
        "standard": {"law": LAWS, "sizes": geometric(300, 100_000, 6), "replicates": 400},
        "paper": {"law": LAWS, "sizes": geometric(300, 1_000_000, 8), "replicates": 1_000},
    },
    "ball": {
        "quick": {"radius": RADII[1:6], "n": geometric(200, 3_200, 4), "replicates": 24},
        "standard": {"radius": RADII[:6], "n": geometric(200, 10_000, 5), "replicates": 64},
        "paper": {"radius": RADII, "n": geometric(200, 100_000, 8), "replicates": 200},
    },
    "moments": {
        scale: {
            "law": SUPPORT_LAWS,
            "first": range(0, replicates, block),
            "radii": np.geomspace(0.5, 8.0, radii).round(3).tolist(),
            "sizes": sizes,
            "replicates": block,
        }
        for scale, sizes, radii, replicates, block in (
            ("quick", [125, 1_000], 7, 48, 24),
            ("standard", [500, 4_000], 9, 96, 16),
            ("paper", [2_000, 16_000], 13, 400, 8),
        )
    },
    # the authors' setting, and heads on the line and in eight dimensions
    "gaussian": {
        "quick": [
            swept("authors", np.geomspace(0.5, 50, 4), geometric(200, 2_000, 5), 64, 32),
            swept("flat-1", (0.5, 1.0, 2.0), geometric(200, 2_000, 5), 512, 256),
            swept("flat-8", (0.5, 1.0, 2.0), geometric(200, 2_000, 5), 128, 128),
        ],
        "standard": [
            swept("authors", np.geomspace(0.05, 50, 7), geometric(300, 10_000, 8), 48, 8),
            swept("flat-1", HORIZONS, geometric(300, 10_000, 8), 256, 64),
            swept("flat-8", HORIZONS, geometric(300, 10_000, 8), 64, 16),
        ],
        "paper": [
            swept("authors", np.geomspace(0.05, 50, 12), geometric(1_000, 30_000, 12), 200, 2),
            swept("sphere", np.geomspace(10, 1e5, 12), geometric(10_000, 100_000, 12), 200, 1),
            swept("flat-1", HORIZONS, geometric(1_000, 30_000, 12), 400, 25),
            swept("flat-8", HORIZONS, geometric(1_000, 30_000, 12), 200, 10),
        ],
    },
    "ablation": {
        "quick": swept("ablation", np.geomspace(0.01, 10, 5), geometric(200, 2e3, 5), 192, 96),
        "standard": swept("ablation", np.geomspace(0.01, 10, 9), geometric(300, 1e4, 8), 96, 24),
        "paper": swept("ablation", np.geomspace(0.01, 10, 13), geometric(1e3, 3e4, 12), 200, 10),
    },
    "hardmax": {
        "quick": {"sizes": np.geomspace(1e3, 1e12, 5).round().tolist(), "replicates": 20_000},
        "standard": {"sizes": np.geomspace(1e3, 1e12, 7).round().tolist(), "replicates": 100_000},
        "paper": {"sizes": np.geomspace(1e3, 1e12, 10).round().tolist(), "replicates": 400_000},
    },
}
MEASUREMENTS = {
    "limit": Measurement(SCALES["limit"], measure_limit, summarise_limit, ("law",)),
    "ball": Measurement(SCALES["ball"], measure_ball, summarise_ball, ("radius", "n")),
    "moments": Measurement(SCALES["moments"], measure_moments, summarise_moments, ("law", "first")),
    "gaussian": Measurement(SCALES["gaussian"], measure_sweep, summarise_sweeps, ("first",)),
    "ablation": Measurement(SCALES["ablation"], measure_sweep, summarise_sweeps, ("first",)),
    "hardmax": Measurement(SCALES["hardmax"], measure_hardmax, ""),
}
