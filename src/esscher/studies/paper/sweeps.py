"""Claims about sweeps of Gaussian tokens: bound, reference, ablation.

The scales of a sweep share their tokens: a replicate that is unlucky at one horizon is unlucky at
the next. What is said of several horizons at once (how many agree, how the exponent falls with H)
therefore resamples replicates for all scales together:

* a simultaneous band, ``beta_s +- c SE_s`` at every scale s, where c is the 95% quantile of the
  largest ``|t|`` over the scales in resampled replicates. It holds all exponents at once with
  probability 95%, however they depend on each other;
* the slope of beta against H, a linear form of the same exponents, with a bootstrap-t interval.

Exponents are those of ``fit_rate``: weighted slopes of the logarithms of mean errors, which are
linearised in the errors here (delta method), so that a resample is a matrix product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy
from altair.typing import ChartType
from numpy.typing import ArrayLike

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.heads import Head, gaussian_head, weight_head
from esscher.math.laws import Gaussian, Sphere
from esscher.math.statistics import LEVEL, Rate, fit_rate, resampling_counts
from esscher.math.theory import map_curve, moment_curves
from esscher.show.chart import Axis, Series, figure, guides, lines, panel, points
from esscher.show.theme import BLUE, GREEN, GREY, LINE, VERMILION, limits
from esscher.studies.paper.heads import (
    draw_alpha_heads,
    judge_alpha_heads,
)
from esscher.studies.paper.ledger import (
    Check,
    Claim,
    Entry,
    Measurement,
    Rows,
    Scale,
    Setting,
    Unit,
    judged,
    records,
    simultaneous,
    verdict_of,
    with_interval,
)
from esscher.studies.paper.synthetic import geometric
from esscher.studies.sweep import sweep
from esscher.studies.sweep.measure import scaled_head

#: Variance of the tokens and dimension in the authors' scripts.
AUTHORS_VARIANCE, AUTHORS_DIM = 0.1, 50
METRICS = {"mean": "mean", "cov": "covariance", "map": "map"}


def swept_head(name: str) -> Head:
    """Return the head of a sweep at alpha = 1."""
    if name == "authors":  # A = alpha I / sqrt(50)
        law = Gaussian(np.zeros(AUTHORS_DIM), AUTHORS_VARIANCE * np.eye(AUTHORS_DIM))
        return weight_head(law, query=np.eye(AUTHORS_DIM), key=np.eye(AUTHORS_DIM))
    if name == "sphere":
        return weight_head(
            Sphere(AUTHORS_DIM, 1.0), query=np.eye(AUTHORS_DIM), key=np.eye(AUTHORS_DIM)
        )
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


def reference_units(scale: Scale) -> list[Unit]:
    """Return the authors' setting, and heads on the line and in eight dimensions."""
    if scale == "quick":
        return [
            *sweep_units("authors", np.geomspace(0.5, 50, 4), geometric(200, 2_000, 5), 64, 32),
            *sweep_units("flat-1", (0.5, 1.0, 2.0), geometric(200, 2_000, 5), 512, 256),
            *sweep_units("flat-8", (0.5, 1.0, 2.0), geometric(200, 2_000, 5), 128, 128),
        ]
    if scale == "standard":
        sizes, horizons = geometric(300, 10_000, 8), (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
        return [
            *sweep_units("authors", np.geomspace(0.05, 50, 7), sizes, 48, 8),
            *sweep_units("flat-1", horizons, sizes, 256, 64),
            *sweep_units("flat-8", horizons, sizes, 64, 16),
        ]
    sizes = geometric(1_000, 30_000, 12)
    return [
        *sweep_units("authors", np.geomspace(0.05, 50, 12), sizes, 200, 2),
        *sweep_units("sphere", np.geomspace(10, 1e5, 12), geometric(1e4, 1e5, 12), 200, 1),
        *sweep_units("flat-1", (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0), sizes, 400, 25),
        *sweep_units("flat-8", (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0), sizes, 200, 10),
    ]


def ablation_units(scale: Scale) -> list[Unit]:
    """Return the sweep over alpha from 0.01 to 10."""
    count, sizes, replicates, block = {
        "quick": (5, geometric(200, 2_000, 5), 192, 96),
        "standard": (9, geometric(300, 10_000, 8), 96, 24),
        "paper": (13, geometric(1_000, 30_000, 12), 200, 10),
    }[scale]
    return sweep_units("ablation", np.geomspace(0.01, 10, count), sizes, replicates, block)


def measure_sweep(unit: Unit, setting: Setting) -> Rows:
    """Errors of a block of replicates; in the authors' setting with predicted errors beside."""
    head = swept_head(unit["head"])
    curve = sweep(
        head,
        unit["sizes"],
        unit["replicates"],
        # blocks are independent: each has a seed of its own
        seed=1_000_003 * setting.seed + unit["first"],
        alpha=unit["alphas"],
        predict=False,
        progress=False,
    )
    raw = {metric: curve["replicate_error"].sel(metric=metric).values for metric in METRICS}
    rows = []
    for s, alpha in enumerate(unit["alphas"]):
        theory: dict[str, Array] = {}
        if unit["head"] == "authors" and unit["first"] == 0:
            scaled = scaled_head(head, float(alpha))
            moments = moment_curves(scaled, unit["sizes"], "tokens", setting.seed)
            theory = {
                "mean": moments["mean"].error,
                "cov": moments["cov" if "cov" in moments else "cov_rms"].error,
                "map": map_curve(scaled, unit["sizes"], "tokens", setting.seed).error,
            }
        for j, n in enumerate(unit["sizes"]):
            for r in range(unit["replicates"]):
                rows.append(
                    {
                        "head": unit["head"],
                        "alpha": float(alpha),
                        "H": float(curve["horizon"][s]),
                        "n": int(n),
                        "replicate": unit["first"] + r,
                    }
                    | {metric: float(raw[metric][s, r, j]) for metric in METRICS}
                    | {
                        f"predicted_{metric}": float(theory[metric][j])
                        if metric in theory and r == 0
                        else np.nan
                        for metric in METRICS
                    }
                )
    return rows


# -- exponents of several scales that share their tokens

#: Resampled sets of replicates.
RESAMPLES = 2000
#: With fewer replicates Bonferroni's and Student's quantiles take the place of resamples.
FEWEST = 5


@dataclass(frozen=True, eq=False)
class JointExponents:
    """Exponents at all scales of a sweep, for one metric.

    Attributes
    ----------
    low, high
        Simultaneous 95% band, one entry per scale; infinite with one replicate.
    slope, slope_interval
        Of the exponent against H, least squares over the scales; not a number for one scale.
    """

    low: Array
    high: Array
    slope: float
    slope_interval: tuple[float, float]


def joint_exponents(
    errors: Array, sizes: Sequence[int], rates: Sequence[Rate], horizons: Array, seed: int
) -> JointExponents:
    """Return the simultaneous band and the slope against H.

    Parameters
    ----------
    errors
        Axes [scale, replicate, size].
    sizes
        Numbers of tokens.
    rates
        What was fitted at every scale.
    horizons
        One per scale.
    seed
        Seed of the resampling.
    """
    exponents = np.array([rate.exponent for rate in rates])
    return band(exponents, _influences(errors, np.asarray(sizes), rates), horizons, seed)


def band(exponents: Array, moved: Array, horizons: Array, seed: int) -> JointExponents:
    """Return the same from how every replicate moves every exponent.

    Parameters
    ----------
    exponents, horizons
        One per scale.
    moved
        Axes [replicate, scale]; an exponent's standard error is that of the mean over replicates.
    seed
        Seed of the resampling.
    """
    form = _slope_form(horizons)
    count, scales = moved.shape
    slope = float(form @ exponents)
    if count < 2:
        nothing = np.full(scales, np.inf)
        return JointExponents(-nothing, nothing, slope, (-np.inf, np.inf))
    both = np.column_stack([moved, moved @ form])
    error = both.std(axis=0, ddof=1) / np.sqrt(count)
    if count < FEWEST:
        band = float(scipy.special.stdtrit(count - 1, 1 - (1 - LEVEL) / 2 / scales))
        along = float(scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2))
    else:
        scores = _scores(both, random_stream(seed, "joint exponents", count))
        band = float(np.quantile(scores[:, :-1].max(axis=1), LEVEL))
        along = float(np.quantile(scores[:, -1], LEVEL))
    half = band * error[:-1]
    end = along * float(error[-1])
    return JointExponents(exponents - half, exponents + half, slope, (slope - end, slope + end))


def _influences(errors: Array, sizes: Array, rates: Sequence[Rate]) -> Array:
    """How every replicate moves every exponent, [replicate, scale]; their mean is 0."""
    columns = []
    for replicates, rate in zip(errors, rates, strict=True):
        used = replicates[:, np.isin(sizes, rate.sizes)]
        x, weights = np.log(rate.sizes), np.array(rate.weights)
        centred = x - weights @ x
        form = -weights * centred / (weights @ centred**2)
        columns.append((used / used.mean(axis=0) - 1) @ form)
    return np.column_stack(columns)


def _scores(moved: Array, rng: np.random.Generator) -> Array:
    """``|t|`` of every column in resampled replicates, [resample, column]."""
    count = len(moved)
    centred = moved - moved.mean(axis=0)
    times = resampling_counts(count, RESAMPLES, rng) / count
    mean = times @ centred
    variance = np.maximum(times @ centred**2 - mean**2, 0.0) / (count - 1)
    # a resample of one replicate repeated has no spread: very far, not infinite
    smallest = 1e-6 * centred.std(axis=0) + np.finfo(float).tiny
    return np.asarray(np.abs(mean) / np.maximum(np.sqrt(variance), smallest))


def _slope_form(horizons: ArrayLike) -> Array:
    centred = np.asarray(horizons, dtype=np.float64)
    centred = centred - centred.mean()
    square = centred @ centred
    return centred / square if square > 0 else np.full(len(centred), np.nan)


def exponent_table(raw: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Fitted exponents of every head, scale and metric, beside what is predicted and published.

    ``joint_low`` and ``joint_high`` hold the exponents of all scales of a head at once: they share
    their tokens. ``_authors`` marks numbers in the units of the authors' scripts, whose H lacks the
    factor 1/sqrt(d).
    """
    rows = []
    for name, group in raw.groupby("head", sort=False):
        alphas, sizes = np.sort(group["alpha"].unique()), np.sort(group["n"].unique())
        horizons = group.groupby("alpha")["H"].first().to_numpy()
        dim = swept_head(str(name)).key_dim
        for metric in METRICS:
            cube = (
                group.sort_values(["alpha", "replicate", "n"])[metric]
                .to_numpy()
                .reshape(len(alphas), -1, len(sizes))
            )
            rates = [fit_rate(errors, sizes, seed=seed) for errors in cube]
            joint = joint_exponents(cube, sizes.tolist(), rates, horizons, seed)
            late = [fit_rate(errors[:, -3:], sizes[-3:], seed=seed) for errors in cube]
            for s, (alpha, rate) in enumerate(zip(alphas, rates, strict=True)):
                theory = (
                    group[group["alpha"] == alpha]
                    .groupby("n")[f"predicted_{metric}"]
                    .max()
                    .to_numpy()
                )
                square = float(horizons[s]) ** 2
                rows.append(
                    {
                        "head": name,
                        "d": dim,
                        "alpha": alpha,
                        "H": horizons[s],
                        "H_authors": horizons[s] * dim**0.5,
                        "metric": metric,
                        "exponent": rate.exponent,
                        "low": rate.interval[0],
                        "high": rate.interval[1],
                        "standard_error": rate.standard_error,
                        "late": late[s].exponent,
                        "late_error": late[s].standard_error,
                        "joint_low": joint.low[s],
                        "joint_high": joint.high[s],
                        "predicted": rate.slope_of(theory[np.isin(sizes, rate.sizes)])
                        if np.isfinite(theory).all()
                        else np.nan,
                        "reference": 0.5 / (1 + square),
                        "reference_authors": 0.5 / (1 + dim * square),
                        "bound": 0.5 / (1 + 32 * square),
                        "bound_authors": 0.5 / (1 + 32 * dim * square),
                        "slope": joint.slope,
                        "slope_low": joint.slope_interval[0],
                        "slope_high": joint.slope_interval[1],
                    }
                )
    return pd.DataFrame(rows)


def judge_reference(tables: Mapping[str, pd.DataFrame], setting: Setting) -> Entry:
    """Judge by the simultaneous band of the authors' setting, in both units of H."""
    table = exponent_table(tables["gaussian"], setting.seed)
    fits = table[(table["head"] == "authors") & (table["metric"] != "map")]
    checks, distance = [], {}
    for column, units in (
        ("reference", "H with 1/sqrt(d)"),
        ("reference_authors", "H of the authors' scripts"),
    ):
        inside = (fits["joint_low"] <= fits[column]) & (fits[column] <= fits["joint_high"])
        narrow = bool(((fits["joint_high"] - fits["joint_low"]) < 0.2).all())
        distance[column] = float((fits["exponent"] - fits[column]).abs().mean())
        checks.append(
            Check(
                says=f"beta = 1/(2(1+H^2)), {units}",
                verdict=verdict_of(bool(inside.all()) and narrow, not bool(inside.all())),
                measured=f"inside the band at {int(inside.sum())} of {len(fits)} exponents of mean "
                f"and covariance; mean distance {distance[column]:.3f}",
                rule="contradicted if a band over all scales excludes it, holds if none does and "
                "all are narrower than 0.2",
                counts=False,
            )
        )
    half = float((fits["exponent"] - 0.5).abs().mean())
    known = fits[np.isfinite(fits["predicted"])]
    predicted = float((known["exponent"] - known["predicted"]).abs().mean())
    verdicts = [check.verdict for check in checks]
    both = verdict_of("holds" in verdicts, set(verdicts) == {"contradicted"})
    checks.insert(
        0,
        Check(
            says="one of the two conventions describes the authors' own setting",
            verdict=both,
            measured=f"mean distance of the exponents from the reference "
            f"{min(distance.values()):.3f}, from 1/2 {half:.3f}, from the slope predicted "
            f"on these sizes {predicted:.3f}",
            rule="contradicted if both are, holds if one does",
        ),
    )
    largest = fits[fits["metric"] == "mean"].iloc[-1]
    return judged(
        "reference",
        f"In the authors' setting (d = 50) the exponents of mean and covariance differ from "
        f"1/(2(1+H^2)) by {distance['reference']:.2f} on average "
        f"({distance['reference_authors']:.2f} in their units), "
        f"from 1/2 by {half:.2f}, from the slope predicted on these sizes by {predicted:.2f}. At "
        f"H = {largest['H']:.2f} the mean has "
        f"{with_interval(largest['exponent'], largest['low'], largest['high'])}, the reference "
        f"is {largest['reference']:.2f}.",
        checks,
        "Slopes on a finite range; the reference is a statement about large n.",
        "More replicates.",
        {"exponents": table},
    )


def draw_exponents(table: pd.DataFrame, title: str, along: str = "H") -> ChartType:
    """Draw exponents against H or alpha^2, a panel per metric, with the published lines."""
    looks = {
        "measured": (BLUE, "circle", (1, 0)),
        "1/(2(1+H²))": (VERMILION, LINE, (6, 2, 1, 2)),
        "1/(2(1+32H²))": (GREY, LINE, (1, 2)),
    }
    columns = {"1/(2(1+H²))": "reference", "1/(2(1+32H²))": "bound"}
    if table["predicted"].notna().any():
        looks["predicted on these sizes"] = (GREEN, LINE, (4, 2))
        columns["predicted on these sizes"] = "predicted"
    colours, shapes, dashes = zip(*looks.values(), strict=True)
    series = Series("kind", tuple(looks), colours=colours, shapes=shapes, dashes=dashes)
    name = "horizon H" if along == "H" else "alpha²"
    at = table["H"] if along == "H" else table["alpha"] ** 2
    table = table.assign(at=at)[["at", "metric", "exponent", "low", "high", *columns.values()]]
    x = Axis("at", name, log=True, limits=limits(table["at"], log=True))
    ends = limits([0.0, 0.6, *table["low"].clip(lower=-0.2), *table["high"].clip(upper=1.2)])
    y = Axis("exponent", "exponent β", limits=ends)
    panels = []
    for metric, label in METRICS.items():
        own = records(table[table["metric"] == metric])
        measured = [row | {"kind": "measured"} for row in own]
        theory = [
            {"at": row["at"], "kind": kind, "exponent": row[column]}
            for kind, column in columns.items()
            for row in own
            if row[column] is not None and np.isfinite(row[column])
        ]
        half: dict[str, object] = {"at": 0.5}
        panels.append(
            panel(
                guides([half], x, y),
                lines(theory, x, y, series),
                points(measured, x, y, series),
                title=label,
            )
        )
    return figure(panels, title, note="bars: 95% intervals")


def draw_reference(entry: Entry) -> ChartType:
    """Draw the authors' setting."""
    table = entry.table("exponents")
    own = table[table["head"] == "authors"]
    return draw_exponents(own, "Exponents in the authors' setting: Gaussian tokens, d = 50")


def judge_bound(tables: Mapping[str, pd.DataFrame], setting: Setting) -> Entry:
    """Judge by where the exponents lie: of Gaussian tokens, and of real heads if there are any."""
    swept = pd.concat(
        [exponent_table(tables[name], setting.seed) for name in ("gaussian", "ablation")]
    )
    rows = [
        {
            "source": "Gaussian tokens",
            "metric": row["metric"],
            "psi": row["H"] ** 2,
            "exponent": row["exponent"],
            "low": row["low"],
            "high": row["high"],
            "standard_error": row["standard_error"],
            "late": row["late"],
            "late_error": row["late_error"],
            "bound": row["bound"],
        }
        for row in records(swept)
        if row["metric"] != "map"
    ]
    heads = tables["heads"]
    for metric in ("mean", "cov"):
        for row in records(heads):
            low, high = row[f"{metric}_low"], row[f"{metric}_high"]
            rows.append(
                {
                    "source": "real heads",
                    "metric": metric,
                    "psi": row["psi"],
                    "exponent": row[metric],
                    "low": low,
                    "high": high,
                    "standard_error": (high - low) / 3.92,
                    "late": row[metric],
                    "late_error": (high - low) / 3.92,
                    "bound": row["bound"],
                }
            )
    table = pd.DataFrame(rows)
    sure = simultaneous(len(table))
    # a curve that is still bending upwards speaks for the bound: its constant is open
    below = (table["exponent"] + sure * table["standard_error"] < table["bound"]) & (
        table["late"] + sure * table["late_error"] < table["bound"]
    )
    table["verdict"] = np.where(
        below, "violated", np.where(table["low"] > table["bound"], "holds", "undecided")
    )
    loose = (table["exponent"] / table["bound"])[table["exponent"] > 0]
    counts = table["verdict"].value_counts()
    holds, undecided = int(counts.get("holds", 0)), int(counts.get("undecided", 0))
    by_source = {
        str(source): f"{int((part['verdict'] == 'holds').sum())} of {len(part)}"
        for source, part in table.groupby("source", sort=False)
    }
    share = holds / len(table)
    checks = [
        Check(
            says="beta >= 1/(2(1+32 Psi)) for mean and covariance",
            verdict=verdict_of(share >= 0.9 and not below.any(), bool(below.any())),
            measured=", ".join(f"{source}: holds at {count}" for source, count in by_source.items())
            + f"; undecided at {undecided}, violated at {int(below.sum())}",
            rule="a point holds if its interval lies above the bound; the claim is contradicted "
            f"if a point lies below it by {sure:.1f} standard errors (99.9% for all at once), on "
            "all sizes and on the last three; it holds if none does and nine points in ten hold",
        ),
    ]
    return judged(
        "bound",
        f"The bound holds at {holds} of {len(table)} exponents "
        f"({', '.join(f'{source} {count}' for source, count in by_source.items())}), is undecided "
        f"at {undecided} and violated at {int(below.sum())}. It is loose: the median exponent is "
        f"{loose.median():.1f} times the bound (quartiles {loose.quantile(0.25):.1f} to "
        f"{loose.quantile(0.75):.1f}).",
        checks,
        "A bound with an open constant speaks about large n; these are slopes on a finite range.",
        "More replicates where intervals are wide.",
        {"points": table},
    )


def draw_bound(entry: Entry) -> ChartType:
    """Draw exponents against Psi, with the bound."""
    table = entry.table("points")
    table = table[table["psi"] > 0]
    sources = tuple(table["source"].unique())
    series = Series(
        "source",
        (*sources, "bound"),
        colours=(BLUE, GREEN, VERMILION),
        shapes=("circle", "square", LINE),
    )
    x = Axis("psi", "coupling Ψ = H²", log=True, limits=limits(table["psi"], log=True))
    y = Axis(
        "exponent",
        "exponent β",
        limits=limits([0.0, 0.6, *table["low"].clip(lower=-0.1), *table["high"].clip(upper=1.0)]),
    )
    psi = np.geomspace(table["psi"].min(), table["psi"].max(), 80)
    bound = [{"source": "bound", "psi": p, "exponent": 0.5 / (1 + 32 * p)} for p in psi.tolist()]
    panels = [
        panel(
            lines(bound, x, y, series),
            points(records(table[table["metric"] == metric]), x, y, series),
            title=METRICS[metric],
        )
        for metric in ("mean", "cov")
    ]
    return figure(
        panels, "Measured exponents and the bound 1/(2(1+32Ψ))", note="bars: 95% intervals"
    )


def judge_ablation(tables: Mapping[str, pd.DataFrame], setting: Setting) -> Entry:
    """Judge by whether exponents fall with alpha: of Gaussian tokens, and of real heads."""
    table = exponent_table(tables["ablation"], setting.seed)
    rows, steps = [], []
    for metric in METRICS:
        own = table[table["metric"] == metric].sort_values("alpha")
        first, last = own.iloc[0], own.iloc[-1]
        # the ends of the simultaneous band, which holds both exponents at once
        drop = first["exponent"] - last["exponent"]
        low, high = (
            first["joint_low"] - last["joint_high"],
            first["joint_high"] - last["joint_low"],
        )
        rows.append({"metric": metric, "drop": drop, "low": low, "high": high})
        steps.append(f"{METRICS[metric]} by {with_interval(drop, low, high)}")
    drops = pd.DataFrame(rows)
    heads = judge_alpha_heads(tables["alpha-heads"])
    checks = [
        Check(
            says="exponents of Gaussian tokens fall as alpha grows",
            verdict=verdict_of(bool((drops["low"] > 0).all()), bool((drops["high"] < 0).any())),
            measured=f"from alpha = 0.01 to 10: {', '.join(steps)}",
            rule="holds if the simultaneous bands at both ends are apart in all metrics, "
            "contradicted if one rises",
        ),
        heads,
    ]
    return judged(
        "ablation",
        f"From alpha = 0.01 to 10 exponents of Gaussian tokens fall: {', '.join(steps)}. On real "
        f"heads: {heads.measured.rstrip('.')}.",
        checks,
        "At alpha = 10 the slopes are those of a finite range, far from their limit.",
        "More replicates, or more heads.",
        {"exponents": table, "heads": tables["alpha-heads"]},
    )


def draw_ablation(entry: Entry) -> ChartType:
    """Draw exponents against alpha^2; the last panel has real heads."""
    synthetic = draw_exponents(entry.table("exponents"), "", "alpha")
    both = [*synthetic.concat, draw_alpha_heads(entry.table("heads"))]
    return figure(
        both,
        "Scaling the tilts by alpha: Gaussian tokens, and heads of a model",
        note="bars: 95% intervals",
        apart=True,
    )


MEASUREMENTS: dict[str, Measurement] = {
    "gaussian": Measurement(reference_units, measure_sweep),
    "ablation": Measurement(ablation_units, measure_sweep),
}
CLAIMS: dict[str, Claim] = {
    "bound": Claim(
        "The bound on the exponent",
        "beta is at least 1/(2(1+32 Psi)), Psi the squared horizon.",
        ("gaussian", "ablation", "heads"),
        judge_bound,
        draw_bound,
    ),
    "reference": Claim(
        "The reference line",
        "On synthetic Gaussian tokens beta follows 1/(2(1+Psi)).",
        ("gaussian",),
        judge_reference,
        draw_reference,
    ),
    "ablation": Claim(
        "The horizon ablation",
        "Scaling the tilts by alpha, from 0.01 to 10, slows convergence: beta falls with alpha^2.",
        ("ablation", "alpha-heads"),
        judge_ablation,
        draw_ablation,
    ),
}
