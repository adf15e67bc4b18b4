"""Charts of a sweep: errors with fitted laws and predicted curves, exponents by horizon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt
import numpy as np
from altair.typing import ChartType
from numpy.typing import ArrayLike

from esscher.math.theory import exponents as gaussian_exponents
from esscher.math.theory.curve import bounded_exponents
from esscher.show.chart import (
    Axis,
    Series,
    bands,
    diagonal,
    figure,
    guides,
    lines,
    panel,
    points,
    sheet,
    words,
)
from esscher.show.content import Drawing
from esscher.show.theme import BLUE, GREEN, GREY, LINE, ORANGE, PURPLE, VERMILION, limits
from esscher.studies.sweep.measure import METRICS
from esscher.studies.sweep.predictions import SHARP
from esscher.studies.sweep.result import Sweep
from esscher.studies.sweep.view import NORMAL

#: Names of the errors.
TITLES = {"mean": "mean output", "cov": "covariance", "map": "map (rms)"}
#: Laws of bounded tokens, whose asymptotic exponents are 1/2, and laws without a limit.
BOUNDED, WITHOUT_LIMIT = ("sphere", "cube", "signs", "finite"), ("laplace", "student")
#: Points of a smooth line.
SMOOTH = 60
WHOLE, DASHED, DOTTED, BOTH = (1, 0), (4, 2), (1, 2), (6, 2, 1, 2)
MEASURED, PREDICTED = "measured", "predicted on the same sizes"
SHARPEST, REFERENCE, BOUND = "asymptotic, conjectured", "published reference", "published bound"
FITTED = "fitted law"
#: Colour, shape and dashes of everything that is drawn over the horizon.
STYLES: dict[str, tuple[str, str, tuple[int, ...]]] = {
    MEASURED: (BLUE, "circle", WHOLE),
    PREDICTED: (VERMILION, "cross", DASHED),
    SHARPEST: (GREEN, LINE, WHOLE),
    REFERENCE: (GREY, LINE, BOTH),
    BOUND: (GREY, LINE, DOTTED),
    # against n, at one horizon
    FITTED: (BLUE, LINE, WHOLE),
    "predicted": (VERMILION, LINE, DASHED),
    "logarithmic law": (PURPLE, LINE, DOTTED),
    "law with a floor": (GREEN, LINE, DOTTED),
    "law of two powers": (ORANGE, LINE, DOTTED),
}
#: The trivial prediction, beside which predicted exponents are drawn.
CONSTANT = 0.5
#: Laws that may fit better than a power of n.
BENT = {
    "logarithmic": "logarithmic law",
    "floor": "law with a floor",
    "two powers": "law of two powers",
}
#: What exponents can be drawn over, and its name.
ALONG = {"horizon": "horizon H", "alpha_squared": "α²"}
SURE = "bars: 95% intervals; hollow: not to be trusted"


def curve(found: Sweep) -> ChartType:
    """Draw errors against n, fitted laws and predicted curves: all horizons, or one in detail."""
    if len(found.scales) == 1 and found.has_fits:
        panels = _one(found)
    else:
        panels = [_errors(found, metric, fitted=True) for metric in METRICS]
    return figure(panels, _title(found), note=SURE)


def exponents(found: Sweep, along: str = "horizon") -> ChartType:
    """Draw fitted exponents beside predicted, asymptotic and published ones."""
    rows = {metric: _exponent_rows(found, metric, along) for metric in METRICS}
    kinds = _kinds(row["kind"] for own in rows.values() for row in own)
    panels = [_exponents(own, along, kinds, TITLES[metric]) for metric, own in rows.items()]
    return figure(panels, _title(found), note=SURE)


def study(found: Sweep, along: str = "horizon") -> ChartType:
    """Draw errors above and exponents below, in the layout of the published study."""
    above = figure([_errors(found, metric, fitted=False) for metric in METRICS])
    return sheet([above, exponents(found, along)], _title(found), note=SURE)


def predicted(found: Sweep) -> ChartType:
    """Draw measured exponents against predicted ones."""
    names, series = _horizons(found)
    rows = [
        {
            "metric": metric,
            "horizon": names[s],
            "predicted": fit.predicted,
            "exponent": fit.exponent,
            "low": fit.interval[0],
            "high": fit.interval[1],
            "hollow": not fit.trusted,
        }
        for metric in METRICS
        for s in range(len(names))
        if (fit := found.fit(metric, s)).predicted is not None
    ]
    known = [row[key] for row in rows for key in ("predicted", "exponent", "low", "high")]
    ends = limits([CONSTANT, *known])
    x = Axis("predicted", "predicted exponent", limits=ends)
    y = Axis("exponent", "measured exponent", limits=ends)
    panels = []
    for metric in METRICS:
        own = [row for row in rows if row["metric"] == metric]
        if own:
            panels.append(
                panel(
                    diagonal(x, y),
                    guides([{"at": CONSTANT}], x, y, upright=True),
                    points(own, x, y, series),
                    words([{"text": _off(own)}], right=True),
                    title=TITLES[metric],
                )
            )
    return figure(panels, _title(found), note=SURE)


def _off(rows: list[dict[str, Any]]) -> str:
    """Mean distance of predicted exponents from measured ones, beside that of the constant."""
    measured = np.array([row["exponent"] for row in rows])
    predicted = np.array([row["predicted"] for row in rows])
    by_theory, by_constant = (np.abs(x - measured).mean() for x in (predicted, CONSTANT))
    return f"mean |difference| {by_theory:.3f}\nalways 1/2: {by_constant:.3f}"


def _nothing(found: Sweep) -> str | None:
    return None if found.replicates else "no replicate is complete"


def _no_fits(found: Sweep) -> str | None:
    known = found.has_fits
    return _nothing(found) or (None if known else "how fast errors fall takes at least 2 sizes")


def _few_predicted(found: Sweep) -> str | None:
    known = sum(bool(one.errors) for one in found.predictions or ())
    return _no_fits(found) or (None if known > 1 else "errors of 2 horizons must be predicted")


DRAWINGS = (
    Drawing(
        "curve",
        "errors against n with fitted law and prediction",
        curve,
        missing=_nothing,
        heading="Errors against the number of tokens",
        caption="Mean over replicates. Both axes are logarithmic: a power law is a straight line.",
    ),
    Drawing(
        "exponents",
        "exponents against the horizon",
        exponents,
        missing=_no_fits,
        heading="Exponents against the horizon",
        caption="Exponents β of error ~ C n^-β; intervals from resampled replicates. The table "
        "says why a fit is not to be trusted.",
    ),
    Drawing("study", "both, in the layout of the published study", study, missing=_no_fits),
    Drawing(
        "predicted",
        "measured against predicted exponents",
        predicted,
        missing=_few_predicted,
        heading="Predicted against measured",
        caption="Exponents on the same sizes. On the sloping line both agree; the upright line is "
        "the constant prediction, always 1/2.",
    ),
)


def _errors(found: Sweep, metric: str, *, fitted: bool) -> ChartType:
    """All horizons: points and fitted laws, or points joined by lines; predicted curves."""
    solid = FITTED if fitted else MEASURED
    names, series = _horizons(found)
    measured, drawn = [], []
    for s, name in enumerate(names):
        own = [row | {"horizon": name} for row in _measured(found, metric, s)]
        measured += own
        if fitted and found.has_fits:
            own = _fitted(found, metric, s, [own[0]["n"], own[-1]["n"]])
        by_kind = {solid: own} if found.has_fits else {}
        by_kind["predicted"] = _predicted(found, metric, s)
        drawn += [
            {"horizon": name, "line": kind, "n": row["n"], "error": row["error"]}
            for kind, rows in by_kind.items()
            for row in rows
        ]
    kinds = Series("line", list(dict.fromkeys(row["line"] for row in drawn)))
    x, y = _axes(found, [*measured, *drawn])
    below = [lines(drawn, x, y, series, dashes=kinds)] if drawn else []
    return panel(*below, points(measured, x, y, series), title=TITLES[metric])


def _one(found: Sweep) -> list[ChartType]:
    """One horizon: fitted laws with bands and exponents, and predicted curves."""
    drawn: dict[str, list[dict[str, Any]]] = {}
    band: dict[str, list[dict[str, Any]]] = {}
    for metric in METRICS:
        ends = [row["n"] for row in _measured(found, metric, 0)]
        n = np.geomspace(ends[0], ends[-1], SMOOTH)
        line = _fitted(found, metric, 0, n)
        drawn[metric] = [row | {"kind": FITTED} for row in line]
        rate = found.fit(metric, 0)
        interval = rate.band(n)
        if interval is not None:
            band[metric] = [
                {"n": at, "low": low, "high": high}
                for at, low, high in zip(n, *interval, strict=True)
            ]
        if rate.law in BENT:
            bent = _rows(n, rate.selection.laws[rate.law].error(n))
            drawn[metric] += [row | {"kind": BENT[rate.law]} for row in bent]
        drawn[metric] += [row | {"kind": "predicted"} for row in _predicted(found, metric, 0)]
    kinds = _kinds(row["kind"] for rows in drawn.values() for row in rows)
    panels = []
    for metric, rows in drawn.items():
        fit, measured = found.fit(metric, 0), _measured(found, metric, 0)
        x, y = _axes(found, [*measured, *rows])
        low, high = ("–" if end is None else f"{end:.3f}" for end in fit.interval)
        said = [f"β = {fit.exponent:.3f} ({low} to {high})"]
        said += [] if fit.predicted is None else [f"predicted {fit.predicted:.3f}"]
        below = [bands(band[metric], x, y)] if metric in band else []
        panels.append(
            panel(
                *below,
                lines(rows, x, y, kinds),
                points(measured, x, y),
                title=alt.TitleParams(text=TITLES[metric], subtitle=said),
            )
        )
    return panels


def _exponents(rows: list[dict[str, Any]], along: str, kinds: Series, title: str) -> ChartType:
    marked = [row for row in rows if row["kind"] in (MEASURED, PREDICTED)]
    at = {row[along] for row in rows}
    log = min(at) > 0
    x = Axis(along, ALONG[along], log=log, limits=limits(at, log=log))
    # a prediction may be anything before the burn-in; it shall not press the rest together
    tops = [min(row["exponent"], 1.0) for row in rows if row["kind"] == PREDICTED]
    ends = [row[end] for row in rows for end in ("low", "high") if row.get(end) is not None]
    ends += [row["exponent"] for row in rows if row["kind"] == MEASURED]
    y = Axis(
        "exponent",
        "exponent β",
        limits=(min(-0.05, min(ends) - 0.02), max(0.62, *ends, *tops) + 0.03),
    )
    return panel(
        guides([{"at": 0.0}], x, y),
        lines([row for row in rows if row["kind"] != MEASURED], x, y, kinds),
        points(marked, x, y, kinds),
        title=title,
    )


# What is read from the result.


def _horizons(found: Sweep) -> tuple[list[str], Series]:
    """A name for each scale, and what tells them apart: the darkest is the smallest."""
    names = [f"{scale.horizon:.3g}" for scale in found.scales]
    if len(set(names)) < len(names):
        names = [f"{scale.horizon:.3g} (α = {scale.alpha!r})" for scale in found.scales]
    order = [names[s] for s in np.argsort(found.horizons, kind="stable")]
    circles = ("circle",) * len(names)
    return names, Series("horizon", order, "horizon H", shapes=circles, ordered=True)


def _kinds(there: Iterable[str]) -> Series:
    """Everything in the list of styles that is there."""
    known = set(there)
    names = [name for name in STYLES if name in known]
    colours, shapes, dashes = zip(*(STYLES[name] for name in names), strict=True)
    return Series("kind", names, colours=colours, shapes=shapes, dashes=dashes)


def _measured(found: Sweep, metric: str, scale: int) -> list[dict[str, Any]]:
    """One row per size: of the fit, or of the replicates if there is none."""
    if found.has_fits:
        fit = found.fit(metric, scale)
        return [
            {"n": n, "error": error, "low": low, "high": high, "hollow": not fit.trusted}
            for n, error, low, high in zip(fit.sizes, fit.mean, fit.lower, fit.upper, strict=True)
        ]
    summary = getattr(found.scales[scale], metric)
    return [
        {"n": n, "error": mean}
        | ({} if noise is None else {"low": mean - NORMAL * noise, "high": mean + NORMAL * noise})
        for n, mean, noise in zip(found.sizes, summary.mean, summary.standard_error, strict=True)
    ]


def _fitted(found: Sweep, metric: str, scale: int, n: ArrayLike) -> list[dict[str, Any]]:
    fit = found.fit(metric, scale)
    at = np.asarray(n, dtype=np.float64)
    return _rows(at, (fit.constant or np.nan) * at**-fit.exponent)


def _predicted(found: Sweep, metric: str, scale: int) -> list[dict[str, Any]]:
    errors = found.predictions[scale].errors if found.predictions else {}
    return _rows(found.sizes, errors[metric]) if metric in errors else []


def _exponent_rows(found: Sweep, metric: str, along: str) -> list[dict[str, Any]]:
    """Measured and predicted exponents at every scale, and lines of the others between them."""
    rows: list[dict[str, Any]] = []
    places = [
        (scale.alpha**2 if along == "alpha_squared" else scale.horizon) for scale in found.scales
    ]
    for s, at in enumerate(places):
        fit = found.fit(metric, s)
        rows.append(
            {
                "kind": MEASURED,
                along: at,
                "exponent": fit.exponent,
                "low": fit.interval[0],
                "high": fit.interval[1],
                "hollow": not fit.trusted,
            }
        )
        if fit.predicted is not None:
            rows.append({"kind": PREDICTED, along: at, "exponent": fit.predicted})
    if found.law in WITHOUT_LIMIT:
        return rows
    known = sorted(zip(places, found.horizons.tolist(), strict=True))
    x, horizon = np.array(known).T
    fine = x if x[0] <= 0 else np.geomspace(x[0] / 1.1, x[-1] * 1.1, SMOOTH)
    if x[0] > 0:
        power = np.log(horizon[-1] / horizon[0]) / np.log(x[-1] / x[0]) if x[-1] > x[0] else 1.0
        horizon = horizon[0] * (fine / x[0]) ** power
    found_at = bounded_exponents if found.law in BOUNDED else gaussian_exponents
    for at, h in zip(fine.tolist(), horizon.tolist(), strict=True):
        there = found_at(h)
        for kind, name in (
            (SHARPEST, SHARP[metric]),
            (REFERENCE, "paper_reference"),
            (BOUND, "paper_bound"),
        ):
            rows.append({"kind": kind, along: at, "exponent": float(getattr(there, name))})
    return rows


def _axes(found: Sweep, rows: list[dict[str, Any]]) -> tuple[Axis, Axis]:
    # an end that is near 0 is cut: it would press the rest together
    known = [row["error"] for row in rows]
    ends = [
        min(max(row[end], 0.5 * row["error"]), 2 * row["error"])
        for row in rows
        for end in ("low", "high")
        if row.get(end) is not None
    ]
    return (
        Axis("n", "tokens n", log=True, limits=limits(found.sizes, log=True)),
        Axis("error", "error", log=True, limits=limits([*known, *ends], log=True)),
    )


def _rows(n: Any, error: Any) -> list[dict[str, Any]]:
    return [{"n": float(at), "error": float(e)} for at, e in zip(n, error, strict=True)]


def _title(found: Sweep) -> str:
    head = found.study.head_record
    horizons = f"H = {found.horizons.min():.3g}"
    if len(found.scales) > 1:
        horizons += f" to {found.horizons.max():.3g}"
    tokens = f"{head.tokens[:1].upper()}{head.tokens[1:]}"
    state = "" if found.complete else " (not complete)"
    return (
        f"{tokens} tokens, d = {head.key_dim}, {horizons}, {found.replicates:,} replicates{state}"
    )
