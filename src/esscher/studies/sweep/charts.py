"""Charts of a sweep: errors with fitted laws and predicted curves, exponents by horizon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt
import numpy as np
from altair.typing import ChartType

from esscher.core.shown import between
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
    words,
)
from esscher.show.content import Drawing
from esscher.show.frames import records
from esscher.show.theme import BLUE, GREEN, GREY, LINE, ORANGE, PURPLE, VERMILION, limits
from esscher.studies.sweep.predictions import SHARP
from esscher.studies.sweep.result import TITLES, Sweep
from esscher.studies.sweep.view import NORMAL, horizon_range

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
#: Laws that may fit better than a power of n.
BENT = {
    "logarithmic": "logarithmic law",
    "floor": "law with a floor",
    "two powers": "law of two powers",
}
#: Kinds that are points.
MARKED = (MEASURED, PREDICTED)
SURE = "bars: 95% intervals; hollow: not to be trusted"


def curve(result: Sweep) -> ChartType:
    """Draw errors against n, fitted laws and predicted curves: all horizons, or one in detail."""
    if len(result.scales) == 1 and result.has_fits:
        laws = [result.rate(metric).law for metric in TITLES]
        known = result.predictions[0].errors if result.predictions else {}
        drawn = [FITTED, *(BENT[law] for law in laws if law in BENT)]
        kinds = _kinds([*drawn, "predicted"] if known else drawn)
        panels = [_one_horizon(result, metric, kinds) for metric in TITLES]
    else:
        panels = [_all_horizons(result, metric) for metric in TITLES]
    return figure(panels, _title(result), note=SURE)


def exponents(result: Sweep) -> ChartType:
    """Draw fitted exponents beside predicted, asymptotic and published ones."""
    rows = {metric: _exponent_rows(result, metric) for metric in TITLES}
    kinds = _kinds(row["kind"] for of_metric in rows.values() for row in of_metric)
    panels = []
    for metric, of_metric in rows.items():
        measured = [row for row in of_metric if row["kind"] == MEASURED]
        at = {row["horizon"] for row in of_metric}
        log = min(at) > 0
        x = Axis("horizon", "horizon H", log=log, limits=limits(at, log=log))
        # a prediction may be anything before the burn-in; it shall not press the rest together
        tops = [min(row["exponent"], 1.0) for row in of_metric if row["kind"] == PREDICTED]
        ends = [row[end] for row in measured for end in ("low", "high") if row[end] is not None]
        ends += [row["exponent"] for row in measured]
        least, most = min(-0.05, min(ends) - 0.02), max(0.62, *ends, *tops) + 0.03
        y = Axis("exponent", "exponent β", limits=(least, most))
        panels.append(
            panel(
                guides([{"at": 0.0}], x, y),
                lines([row for row in of_metric if row["kind"] != MEASURED], x, y, kinds),
                points([row for row in of_metric if row["kind"] in MARKED], x, y, kinds),
                title=TITLES[metric],
            )
        )
    return figure(panels, _title(result), note=SURE)


def predicted(result: Sweep) -> ChartType:
    """Draw measured exponents against predicted ones."""
    names, series = _horizons(result)
    frame = result.exponents_table()
    frame["horizon"] = np.repeat(names, len(TITLES))
    frame["hollow"] = ~frame["trusted"]
    columns = ["metric", "horizon", "predicted", "exponent", "low", "high", "hollow"]
    rows = records(frame[frame["predicted"].notna()][columns])
    known = [row[key] for row in rows for key in ("predicted", "exponent", "low", "high")]
    ends = limits(known)
    x = Axis("predicted", "predicted exponent", limits=ends)
    y = Axis("exponent", "measured exponent", limits=ends)
    panels = []
    for metric, title in TITLES.items():
        of_metric = [row for row in rows if row["metric"] == metric]
        if not of_metric:
            continue
        measured = np.array([row["exponent"] for row in of_metric])
        off = np.abs([row["predicted"] for row in of_metric] - measured).mean()
        panels.append(
            panel(
                diagonal(x, y),
                points(of_metric, x, y, series),
                words([{"text": f"mean |difference|\n{off:.3f}"}], right=True),
                title=title,
            )
        )
    return figure(panels, _title(result), note=SURE)


def _nothing(result: Sweep) -> str | None:
    return None if result.replicates else "no replicate is complete"


def _no_fits(result: Sweep) -> str | None:
    fits = None if result.has_fits else "how fast errors fall takes at least 2 sizes"
    return _nothing(result) or fits


def _few_predicted(result: Sweep) -> str | None:
    known = sum(bool(scale.errors) for scale in result.predictions or ())
    return _no_fits(result) or (None if known > 1 else "errors of 2 horizons must be predicted")


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
    Drawing(
        "predicted",
        "measured against predicted exponents",
        predicted,
        missing=_few_predicted,
        heading="Predicted against measured",
        caption="Exponents on the same sizes. On the sloping line both agree.",
    ),
)


def _all_horizons(result: Sweep, metric: str) -> ChartType:
    """All horizons: points, fitted laws and predicted curves."""
    names, series = _horizons(result)
    measured, drawn = [], []
    for s, name in enumerate(names):
        marked = _measured(result, metric, s)
        measured += [row | {"horizon": name} for row in marked]
        if result.has_fits:
            ends = marked[0]["n"], marked[-1]["n"]
            law = {"horizon": name, "line": FITTED}
            drawn += [law | row for row in _fitted(result, metric, s, *ends)]
        line = {"horizon": name, "line": "predicted"}
        drawn += [line | row for row in _predicted(result, metric, s)]
    kinds = Series("line", list(dict.fromkeys(row["line"] for row in drawn)))
    x, y = _axes(result, [*measured, *drawn])
    below = [lines(drawn, x, y, series, dashes=kinds)] if drawn else []
    return panel(*below, points(measured, x, y, series), title=TITLES[metric])


def _one_horizon(result: Sweep, metric: str, kinds: Series) -> ChartType:
    """One horizon: the fitted law with its band and exponent, and the predicted curve."""
    measured, fit = _measured(result, metric, 0), result.rate(metric, 0)
    n = np.geomspace(measured[0]["n"], measured[-1]["n"], SMOOTH)
    law = _fitted(result, metric, 0, *n)
    drawn, band = [row | {"kind": FITTED} for row in law], []
    interval = fit.band(n)
    if interval is not None:
        ends = zip(n.tolist(), *(end.tolist() for end in interval), strict=True)
        band = [{"n": at, "low": low, "high": high} for at, low, high in ends]
    if fit.law in BENT:
        bent = _rows(n, fit.selection.laws[fit.law].error(n))
        drawn += [row | {"kind": BENT[fit.law]} for row in bent]
    drawn += [row | {"kind": "predicted"} for row in _predicted(result, metric, 0)]
    x, y = _axes(result, [*measured, *drawn])
    below = [bands(band, x, y)] if band else []
    text = [f"β = {between(fit.exponent, fit.interval, 'd3')}"]
    text += [] if fit.predicted is None else [f"predicted {fit.predicted:.3f}"]
    return panel(
        *below,
        lines(drawn, x, y, kinds),
        points(measured, x, y),
        title=alt.TitleParams(text=TITLES[metric], subtitle=text),
    )


def _horizons(result: Sweep) -> tuple[list[str], Series]:
    """A name for each scale, and what tells them apart: the darkest is the smallest."""
    names = [f"{scale.horizon:.3g}" for scale in result.scales]
    if len(set(names)) < len(names):
        names = [f"{scale.horizon:.3g} (α = {scale.alpha!r})" for scale in result.scales]
    order = [names[s] for s in np.argsort(result.horizons, kind="stable")]
    circles = ("circle",) * len(names)
    return names, Series("horizon", order, "horizon H", shapes=circles, ordered=True)


def _kinds(kinds: Iterable[str]) -> Series:
    """The styles of some kinds of lines and points, in the order of ``STYLES``."""
    known = set(kinds)
    names = [name for name in STYLES if name in known]
    colours, shapes, dashes = zip(*(STYLES[name] for name in names), strict=True)
    return Series("kind", names, colours=colours, shapes=shapes, dashes=dashes)


def _measured(result: Sweep, metric: str, scale: int) -> list[dict[str, Any]]:
    """One row per size: of the fit, or of the replicates if there is none."""
    if result.has_fits:
        fit = result.rate(metric, scale)
        return [
            {"n": n, "error": error, "low": low, "high": high, "hollow": not fit.trusted}
            for n, error, low, high in zip(fit.sizes, fit.mean, fit.lower, fit.upper, strict=True)
        ]
    summary = getattr(result.scales[scale], metric)
    return [
        {"n": n, "error": mean}
        | ({} if noise is None else {"low": mean - NORMAL * noise, "high": mean + NORMAL * noise})
        for n, mean, noise in zip(result.sizes, summary.mean, summary.standard_error, strict=True)
    ]


def _fitted(result: Sweep, metric: str, scale: int, *sizes: float) -> list[dict[str, Any]]:
    fit, n = result.rate(metric, scale), np.asarray(sizes, dtype=np.float64)
    return _rows(n, fit.constant * n**-fit.exponent)


def _predicted(result: Sweep, metric: str, scale: int) -> list[dict[str, Any]]:
    errors = result.predictions[scale].errors if result.predictions else {}
    return _rows(result.sizes, errors[metric]) if metric in errors else []


def _rows(n: Any, error: Any) -> list[dict[str, Any]]:
    return [{"n": float(at), "error": float(e)} for at, e in zip(n, error, strict=True)]


def _exponent_rows(result: Sweep, metric: str) -> list[dict[str, Any]]:
    """Measured and predicted exponents at every scale, and lines of the others between them."""
    frame = result.exponents_table()
    rows: list[dict[str, Any]] = []
    for fit in records(frame[frame["metric"] == metric]):
        numbers = {name: fit[name] for name in ("horizon", "exponent", "low", "high")}
        rows.append({"kind": MEASURED, "hollow": not fit["trusted"]} | numbers)
        if fit["predicted"] is not None:
            known = {"horizon": fit["horizon"], "exponent": fit["predicted"]}
            rows.append({"kind": PREDICTED} | known)
    if result.law in WITHOUT_LIMIT:
        return rows
    horizons = np.sort(result.horizons)
    if horizons[0] > 0:
        horizons = np.geomspace(horizons[0] / 1.1, horizons[-1] * 1.1, SMOOTH)
    exponents_at = bounded_exponents if result.law in BOUNDED else gaussian_exponents
    for horizon in horizons.tolist():
        at_horizon = exponents_at(horizon)
        for kind, name in (
            (SHARPEST, SHARP[metric]),
            (REFERENCE, "paper_reference"),
            (BOUND, "paper_bound"),
        ):
            exponent = float(getattr(at_horizon, name))
            rows.append({"kind": kind, "horizon": horizon, "exponent": exponent})
    return rows


def _axes(result: Sweep, rows: list[dict[str, Any]]) -> tuple[Axis, Axis]:
    # an end that is near 0 is cut: it would press the rest together
    known = [row["error"] for row in rows]
    ends = [
        min(max(row[end], 0.5 * row["error"]), 2 * row["error"])
        for row in rows
        for end in ("low", "high")
        if row.get(end) is not None
    ]
    return (
        Axis("n", "tokens n", log=True, limits=limits(result.sizes, log=True)),
        Axis("error", "error", log=True, limits=limits([*known, *ends], log=True)),
    )


def _title(result: Sweep) -> str:
    head = result.study.head_record
    tokens = f"{head.tokens[:1].upper()}{head.tokens[1:]}"
    state = "" if result.complete else " (not complete)"
    return (
        f"{tokens} tokens, d = {head.key_dim}, {horizon_range(result)}, {result.replicates:,} "
        f"replicates{state}"
    )
