"""The chart of deep stacks: errors, exponents and growth by layer, and what becomes of the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from altair.typing import ChartType

from esscher.core.shown import shown
from esscher.show.chart import Axis, Series, bands, figure, guides, lines, panel, points
from esscher.show.content import Drawing
from esscher.show.frames import finite
from esscher.show.theme import BLUE, GREY, ORANGE, PURPLE, SKY, VERMILION, limits
from esscher.studies.deep.result import TERCILES, Deep
from esscher.studies.deep.study import DeepStackStudy

#: Curves of a layer in words; those of a model, ways of drawing keys, are words already.
NAMES = {"map": "map", "mean": "mean", "cov": "covariance"}
#: Colours and shapes of what is sampled in a model.
SAMPLED = {
    "independent": (BLUE, "circle"),
    "shared": (VERMILION, "square"),
    "low": (SKY, "circle"),
    "middle": (ORANGE, "square"),
    "high": (PURPLE, "triangle-up"),
}
#: Points that a panel needs to stand beside another.
WIDE = 200.0
#: Share of a value beyond which its interval goes on below a logarithmic axis.
CUT = 0.05


def subject(result: Deep) -> str:
    """Return what was measured, in a line."""
    study = result.study
    if isinstance(study, DeepStackStudy):
        return (
            f"Gaussian stack, {study.depth} layers, d = {study.dim}, H = {study.horizon:g}, "
            f"residual {study.residual:g}, {study.replicates} replicates"
        )
    return (
        f"{study.model_record.name} on {study.text_record.source}, {study.passages} passages of "
        f"{study.context:,} tokens, {study.draws} draws"
    )


def depth(result: Deep) -> ChartType:
    """Draw errors and exponents by layer, with growth and limit of a stack, or a model's end."""
    panels = [_errors(result)]
    fits = [
        {"layer": str(layer.layer), "curve": NAMES.get(curve, curve), "hollow": not fit.trusted}
        | _numbers("exponent", fit.exponent, fit.interval)
        for layer in result.layers
        for curve, fit in layer.fit.items()
        if fit is not None
    ]
    if fits:
        y = _axis(fits, "exponent", "exponent β", also=(0.0, 0.5))
        guide: list[dict[str, Any]] = [{"at": 0.0}, {"at": 0.5, "name": "1/2"}]
        panels.append(_by_layer(result, fits, y, guide, "exponents"))
    if result.is_gaussian:
        steps = [
            {"layer": str(layer.layer), "curve": NAMES[curve]}
            | _numbers("factor", step.value, step.interval, log=True)
            for layer in result.layers
            for curve, growth in layer.growth.items()
            if (step := growth[-1]) is not None
        ]
        if steps:
            y = _axis(steps, "factor", "growth factor", log=True, also=(1.0,))
            title = f"error / error one layer before, n = {result.sizes[-1]:,}"
            panels.append(_by_layer(result, steps, y, [{"at": 1.0}], title))
        panels.append(_limit(result))
    else:
        what = "KL" if "kl" in result.end else "1 - cosine"
        rates = {
            variant: "" if fit is None else f": {what} ~ n^{-fit.exponent:.2f}"
            for variant, fit in result.damage.items()
        }
        ways = {way: f"{way} samples{rates[way]}" for way in result.growth}
        panels.append(_end(result, ways, "end of the model, all heads sampled"))
        thirds = {}
        for third in TERCILES:
            if result.terciles is not None and third in rates:
                heads = result.terciles.heads[third]
                low, high = (shown(h, "d1", "?") for h in (heads.horizon_min, heads.horizon_max))
                thirds[third] = f"{third} H ({low} to {high}){rates[third]}"
        if thirds:
            panels.append(_end(result, thirds, "one third of the heads sampled"))
    note = "bars: 95% intervals; hollow: not to be trusted"
    return figure(panels, subject(result), note=note, least=WIDE, apart=True)


DRAWINGS = (
    Drawing(
        "depth",
        "errors and exponents by layer, and the end",
        depth,
        missing=lambda result: None if result.layers else "nothing is measured yet",
        heading="Errors by layer, and the end",
        caption="Relative error of the tokens behind each layer, one line per n: in a stack "
        "against the infinite-token limit, in a model against attention over all keys; β of error "
        "~ C n^-β. Last, the measured limit of a stack against the exact recursion (if both agree, "
        "all points of a layer lie in the band in 95% of the cases), or what a model says with n "
        "keys drawn, in all heads or in one third of them by horizon.",
    ),
)


def _errors(result: Deep) -> ChartType:
    """Errors of the first curve at every n; of a model's other one at the middle n, dashed."""
    curve, *others = result.layers[0].error
    rows = [
        {"layer": layer.layer, "n": f"{n:,}", "samples": name}
        | _numbers("error", layer.error[name].mean[j], layer.error[name].interval[j], log=True)
        for name in (curve, *([] if result.is_gaussian else others))
        for j, n in enumerate(result.sizes)
        if name == curve or j == len(result.sizes) // 2
        for layer in result.layers
    ]
    whole = [row for row in rows if row["samples"] == curve]
    x = Axis("layer", "layer", whole=True, limits=limits([row["layer"] for row in rows]))
    y = _axis(whole, "error", "relative error", log=True)
    series = Series("n", [f"{n:,}" for n in result.sizes], title="n", ordered=True)
    dashes = None if result.is_gaussian or not others else Series("samples", [curve, *others])
    title = f"error of the {NAMES[curve]}" if result.is_gaussian else f"error, {curve} samples"
    return panel(lines(rows, x, y, series, dashes=dashes), points(whole, x, y, series), title=title)


def _by_layer(
    result: Deep, rows: list[dict[str, Any]], y: Axis, guide: list[dict[str, Any]], title: str
) -> ChartType:
    """Points of the curves, side by side at every layer."""
    there = {row["layer"] for row in rows}
    names = [str(layer.layer) for layer in result.layers if str(layer.layer) in there]
    x = Axis("layer", "layer", names=names)
    series = Series("curve", [NAMES.get(curve, curve) for curve in result.layers[0].error])
    return panel(guides(guide, x, y), points(rows, x, y, series, beside=True), title=title)


def _limit(result: Deep) -> ChartType:
    """Deviations of the measured limit from the recursion, in standard errors."""
    what = "95% bound of the largest"
    rows, bounds = [], []
    for limit in result.limit:
        if limit.standard_error is not None and limit.bound is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                noise = np.array(limit.standard_error)
                scores = np.subtract(limit.measured, limit.exact) / noise
            rows += [{"layer": limit.layer, "score": x} for x in scores.tolist() if np.isfinite(x)]
            bounds += [
                {"layer": limit.layer + side, "low": -limit.bound, "high": limit.bound}
                | {"what": what}
                for side in (-0.5, 0.5)
            ]
    x = Axis("layer", "layer", whole=True, limits=(-0.5, len(result.layers) - 0.5))
    known = [row[key] for row in bounds for key in ("low", "high")]
    ends = limits([*known, *(row["score"] for row in rows)])
    y = Axis("score", "deviation (standard errors)", limits=ends)
    return panel(
        bands(bounds, x, y, Series("what", (what,), colours=(GREY,))),
        guides([{"at": 0.0}], x, y),
        points(rows, x, y),
        title="measured limit minus recursion",
    )


def _end(result: Deep, variants: dict[str, str], title: str) -> ChartType:
    """KL, or 1 - cosine, against the keys drawn: a line per variant, by their names."""
    rows = []
    for variant, name in variants.items():
        curve = (result.end.get("kl") or result.end["cosine"])[variant]
        for n, value, ends in zip(result.sizes, curve.mean, curve.interval, strict=True):
            if "kl" not in result.end:
                value, ends = 1 - value, None if ends is None else (1 - ends[1], 1 - ends[0])
            rows.append({"variant": name, "n": n} | _numbers("value", value, ends, log=True))
    colours, shapes = zip(*(SAMPLED[variant] for variant in variants), strict=True)
    series = Series("variant", list(variants.values()), colours=colours, shapes=shapes)
    x = Axis("n", "keys drawn n", log=True, limits=limits(result.sizes, log=True))
    what = "KL to dense (nats per token)" if "kl" in result.end else "1 - cosine to dense"
    y = _axis(rows, "value", what, log=True)
    return panel(lines(rows, x, y, series), points(rows, x, y, series), title=title)


def _numbers(field: str, value: Any, ends: Any, *, log: bool = False) -> dict[str, Any]:
    low, high = (None, None) if ends is None else ends
    return {field: finite(value, log), "low": finite(low), "high": finite(high)}


def _axis(
    rows: list[dict[str, Any]],
    field: str,
    title: str,
    *,
    log: bool = False,
    also: Sequence[float] = (),
) -> Axis:
    """The axis of numbers with intervals; on a logarithmic one those that reach 0 are cut."""
    known = [*also, *(row[key] for row in rows for key in (field, "high"))]
    for row in rows:
        low, value = row["low"], row[field]
        known.append(max(low, CUT * value) if log and None not in (low, value) else low)
    return Axis(field, title, log=log, limits=limits(known, log=log))
