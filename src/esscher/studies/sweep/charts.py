"""Charts of a sweep: errors with fitted laws and predicted curves, exponents by horizon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt
import numpy as np
from altair.typing import ChartType

from esscher.core.shown import between
from esscher.core.variables import table
from esscher.math.theory import exponents as gaussian_exponents
from esscher.math.theory.rates import bounded_exponents
from esscher.show.chart import Axis, Series, bands, figure, guides, lines, panel, points
from esscher.show.content import Drawing
from esscher.show.frames import records
from esscher.show.theme import BLUE, GREEN, GREY, LINE, ORANGE, PURPLE, VERMILION, limits
from esscher.studies.sweep.combine import SHARP
from esscher.studies.sweep.study import Sweep
from esscher.studies.sweep.view import TITLES, subject

#: Laws of bounded tokens, whose asymptotic exponents are 1/2, and laws without a limit.
BOUNDED, WITHOUT_LIMIT = ("sphere", "cube", "signs", "finite"), ("laplace", "student")
#: Points of a smooth line.
SMOOTH = 60
WHOLE, DASHED, DOTTED, BOTH = (1, 0), (4, 2), (1, 2), (6, 2, 1, 2)
MEASURED, PREDICTED = "measured", "predicted on the same sizes"
SHARPEST, REFERENCE, BOUND = "asymptotic, conjectured", "published reference", "published bound"
FITTED, CURVE = "fitted law", "predicted"
#: Laws that may fit better than a power of n.
BENT = {
    "logarithmic": "logarithmic law",
    "floor": "law with a floor",
    "two powers": "law of two powers",
}
#: Colour, shape and dashes of everything that is drawn over the horizon, or over n at one horizon.
STYLES: dict[str, tuple[str, str, tuple[int, ...]]] = {
    MEASURED: (BLUE, "circle", WHOLE),
    PREDICTED: (VERMILION, "cross", DASHED),
    SHARPEST: (GREEN, LINE, WHOLE),
    REFERENCE: (GREY, LINE, BOTH),
    BOUND: (GREY, LINE, DOTTED),
    FITTED: (BLUE, LINE, WHOLE),
    CURVE: (VERMILION, LINE, DASHED),
    BENT["logarithmic"]: (PURPLE, LINE, DOTTED),
    BENT["floor"]: (GREEN, LINE, DOTTED),
    BENT["two powers"]: (ORANGE, LINE, DOTTED),
}
SURE = "bars: 95% intervals; hollow: not to be trusted"


def curve(result: Sweep) -> ChartType:
    """Draw errors against n, fitted laws and predicted curves: all horizons, or one in detail."""
    detailed = result.data.sizes["alpha"] == 1 and result.has_fits
    draw = _one_horizon if detailed else _all_horizons
    return figure([draw(result, metric) for metric in TITLES], subject(result), note=SURE)


def exponents(result: Sweep) -> ChartType:
    """Draw fitted exponents beside predicted, asymptotic and published ones."""
    rows = {metric: _exponent_rows(result, metric) for metric in TITLES}
    kinds = _kinds(row["kind"] for of_metric in rows.values() for row in of_metric)
    panels = []
    for metric, of_metric in rows.items():
        measured = [row for row in of_metric if row["kind"] == MEASURED]
        marked = [row for row in of_metric if row["kind"] in (MEASURED, PREDICTED)]
        at = {row["horizon"] for row in of_metric}
        log = min(at) > 0
        x = Axis("horizon", "horizon H", log=log, limits=limits(at, log=log))
        # a prediction may be anything before the burn-in; it shall not press the rest together
        tops = [min(row["exponent"], 1.0) for row in of_metric if row["kind"] == PREDICTED]
        ends = [row[end] for row in measured for end in ("low", "high") if row[end] is not None]
        ends += [row["exponent"] for row in measured]
        least, most = min([-0.05, *(end - 0.02 for end in ends)]), max(0.62, *ends, *tops) + 0.03
        y = Axis("exponent", "exponent β", limits=(least, most))
        panels.append(
            panel(
                guides([{"at": 0.0}], x, y),
                lines([row for row in of_metric if row["kind"] != MEASURED], x, y, kinds),
                points(marked, x, y, kinds),
                title=TITLES[metric],
            )
        )
    return figure(panels, subject(result), note=SURE)


DRAWINGS = (
    Drawing(
        "curve",
        "errors against n with fitted law and prediction",
        curve,
        missing=lambda result: None if result.cells else "no replicate is complete",
        heading="Errors against the number of tokens",
        caption="Mean over replicates. Both axes are logarithmic: a power law is a straight line.",
    ),
    Drawing(
        "exponents",
        "exponents against the horizon",
        exponents,
        missing=lambda result: (
            None if result.has_fits else "how fast errors fall takes at least 2 sizes"
        ),
        heading="Exponents against the horizon",
        caption="Exponents β of error ~ C n^-β; intervals from resampled replicates. The table "
        "says why a fit is not to be trusted.",
    ),
)


def _all_horizons(result: Sweep, metric: str) -> ChartType:
    """All horizons: points, fitted laws and predicted curves; the darkest is the smallest."""
    data = result.data.sel(metric=metric)
    names = [f"{horizon:.3g}" for horizon in data["horizon"].values]
    if len(set(names)) < len(names):
        alphas = data["alpha"].values.tolist()
        names = [f"{name} (α = {alpha!r})" for name, alpha in zip(names, alphas, strict=True)]
    order = [names[place] for place in np.argsort(data["horizon"].values, kind="stable")]
    measured, drawn = [], []
    for place, name in enumerate(names):
        at = data.isel(alpha=place)
        measured += [row | {"horizon": name} for row in _measured(at)]
        exponent, constant = (float(at[key].sel(bound="value")) for key in ("exponent", "constant"))
        ends = np.array(result.setup.settings.sizes, float)[[0, -1]]
        for line, rows in (
            (FITTED, _rows(ends, constant * ends**-exponent)),
            (CURVE, _predicted(at)),
        ):
            drawn += [row | {"horizon": name, "line": line} for row in rows]
    circles = ("circle",) * len(names)
    series = Series("horizon", order, "horizon H", shapes=circles, ordered=True)
    dashes = Series("line", list(dict.fromkeys(row["line"] for row in drawn)))
    x, y = _axes(result, [*measured, *drawn])
    below = [lines(drawn, x, y, series, dashes=dashes)] if drawn else []
    return panel(*below, points(measured, x, y, series), title=TITLES[metric])


def _one_horizon(result: Sweep, metric: str) -> ChartType:
    """One horizon: the fitted law with its band and exponent, and the predicted curve."""
    at = result.data.sel(metric=metric).isel(alpha=0)
    measured, drawn, below, text = _measured(at), [], [], ["no rate can be fitted"]
    sizes = result.setup.settings.sizes
    n = np.geomspace(sizes[0], sizes[-1], SMOOTH)
    x, y = _axes(result, [*measured, *_predicted(at)])
    if np.isfinite(at["exponent"].values[0]):
        rate = result.rate(metric)
        drawn = [row | {"kind": FITTED} for row in _rows(n, rate.constant * n**-rate.exponent)]
        if rate.law in BENT:
            bent = _rows(n, rate.selection.laws[rate.law].error(n))
            drawn += [row | {"kind": BENT[rate.law]} for row in bent]
        if (band := rate.band(n)) is not None:
            ends = zip(n.tolist(), *(end.tolist() for end in band), strict=True)
            below = [bands([{"n": m, "low": low, "high": high} for m, low, high in ends], x, y)]
        text = [f"β = {between(rate.exponent, rate.interval, 'd3')}"]
        text += [] if rate.predicted is None else [f"predicted {rate.predicted:.3f}"]
    drawn += [row | {"kind": CURVE} for row in _predicted(at)]
    laws = result["law"].values.ravel().tolist()
    there = [FITTED, *(BENT[law] for law in laws if law in BENT)]
    kinds = _kinds([*there, CURVE] if result["predicted"].notnull().any() else there)
    return panel(
        *below,
        lines(drawn, x, y, kinds),
        points(measured, x, y),
        title=alt.TitleParams(text=TITLES[metric], subtitle=text),
    )


def _kinds(kinds: Iterable[str]) -> Series:
    """The styles of some kinds of lines and points, in the order of ``STYLES``."""
    known = set(kinds)
    names = [name for name in STYLES if name in known]
    colours, shapes, dashes = zip(*(STYLES[name] for name in names), strict=True)
    return Series("kind", names, colours=colours, shapes=shapes, dashes=dashes)


def _measured(at: Any) -> list[dict[str, Any]]:
    """One row per size with an error, of one metric at one alpha."""
    hollow = bool(at["exponent"].notnull().any()) and not bool(at["trusted"])
    return [
        {"n": row["size"], "error": row["error"], "low": row["error_low"]}
        | {"high": row["error_high"], "hollow": hollow}
        for row in records(table(at, ("size",), ["error"]))
        if row["error"]
    ]


def _predicted(at: Any) -> list[dict[str, Any]]:
    return _rows(at["size"].values, at["predicted_error"].sel(tokens=at["size"].values).values)


def _rows(n: Any, error: Any) -> list[dict[str, Any]]:
    pairs = zip(np.asarray(n, float).tolist(), error.tolist(), strict=True)
    return [{"n": m, "error": e} for m, e in pairs if np.isfinite(e)]


def _exponent_rows(result: Sweep, metric: str) -> list[dict[str, Any]]:
    """Measured and predicted exponents at every alpha, and lines of the others between them."""
    frame = result.table("exponents")
    rows: list[dict[str, Any]] = []
    for fit in records(frame[(frame["metric"] == metric) & frame["exponent"].notna()]):
        ends = {end: fit[f"exponent_{end}"] for end in ("low", "high")}
        at = {"horizon": fit["horizon"]}
        rows.append(
            at
            | ends
            | {"kind": MEASURED, "exponent": fit["exponent"], "hollow": not fit["trusted"]}
        )
        if fit.get("predicted") is not None:
            rows.append(at | {"kind": PREDICTED, "exponent": fit["predicted"]})
    law = result.head_record.law
    horizons = np.sort(result["horizon"].values)
    if law in WITHOUT_LIMIT:
        return rows
    if horizons[0] > 0:
        horizons = np.geomspace(horizons[0] / 1.1, horizons[-1] * 1.1, SMOOTH)
    exponents_at = bounded_exponents if law in BOUNDED else gaussian_exponents
    names = {SHARPEST: SHARP[metric], REFERENCE: "paper_reference", BOUND: "paper_bound"}
    for horizon in horizons.tolist():
        known = exponents_at(horizon)
        for kind, name in names.items():
            exponent = float(getattr(known, name))
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
    sizes = result.setup.settings.sizes
    return (
        Axis("n", "tokens n", log=True, limits=limits(sizes, log=True)),
        Axis("error", "error", log=True, limits=limits([*known, *ends], log=True)),
    )
