"""Charts of deep stacks: errors, exponents and growth by layer, and what becomes of the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from altair.typing import ChartType

from esscher.core.shown import shown
from esscher.show.chart import Axis, Series, bands, figure, guides, lines, panel, points
from esscher.show.content import Drawing
from esscher.show.frames import finite
from esscher.show.theme import BLUE, GREY, ORANGE, PURPLE, SKY, VERMILION, limits
from esscher.studies.deep.result import TERCILES, Curve, Deep, DeepEnd, Perplexity
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
#: Quantities of a model's end: title, whether the axis is logarithmic, and the dense one's.
END: dict[str, tuple[str, bool, float | None]] = {
    "kl": ("KL to dense (nats per token)", True, None),
    "cosine": ("1 - cosine to dense", True, None),
    "top1": ("same most likely token (share)", False, None),
    "perplexity": ("perplexity / dense perplexity", False, 1.0),
}
#: Points that a panel needs to stand beside another: one of up to so many layers, and of more.
NARROW, FEW, WIDE = 140.0, 12, 200.0
#: Share of a value beyond which its interval goes on below a logarithmic axis.
CUT = 0.05
SURE = "bars: 95% intervals"
HOLLOW = "hollow: not to be trusted"
NOTHING = "nothing is measured yet"


def depth(found: Deep) -> ChartType:
    """Draw errors and exponents by layer, with growth and limit of a stack, or a model's end."""
    curve, *others = found.layers[0].error
    panels = [_errors(found, curve, () if found.is_gaussian else others)]
    if _no_exponents(found) is None:
        panels.append(_exponents(found, "exponents"))
    if found.is_gaussian:
        if _no_growth(found) is None:
            title = f"error / error one layer before, n = {found.sizes[-1]:,}"
            panels += _growth(found, {len(found.sizes) - 1: title})
        panels.append(_limit(found))
    else:
        damage = "kl" if found.end.kl else "cosine"
        panels.append(_end(found, damage, _ways(found), "end of the model, all heads sampled"))
        if _no_terciles(found) is None:
            panels.append(_end(found, damage, _terciles(found), "one third of the heads sampled"))
    return figure(panels, subject(found), note=f"{SURE}; {HOLLOW}", least=WIDE, apart=True)


def errors(found: Deep) -> ChartType:
    """Draw relative errors by layer, a panel per curve, a line per n."""
    panels = [_errors(found, curve) for curve in found.layers[0].error]
    return figure(panels, subject(found), note=SURE, least=_least(found))


def exponents(found: Deep) -> ChartType:
    """Draw exponents by layer."""
    return figure([_exponents(found)], subject(found), note=f"{SURE}; {HOLLOW}")


def growth(found: Deep) -> ChartType:
    """Draw errors over those of the layer before, at the largest, the middle and the least n."""
    count = len(found.sizes)
    places = sorted({0, count // 2, count - 1}, reverse=True)
    panels = _growth(found, {j: f"n = {found.sizes[j]:,}" for j in places})
    return figure(panels, subject(found), note=SURE, least=_least(found))


def limit(found: Deep) -> ChartType:
    """Draw deviations of the measured limit from the recursion, in standard errors."""
    return figure([_limit(found)], subject(found))


def end(found: Deep) -> ChartType:
    """Draw how the model's end differs from the dense one, all heads sampled."""
    panels = [_end(found, name, _ways(found)) for name in END if name in found.end.quantities]
    return figure(panels, subject(found), note=SURE)


def terciles(found: Deep) -> ChartType:
    """Draw the same with a third of the heads sampled, by horizon."""
    own = _terciles(found)
    panels = [_end(found, name, own) for name in END if name in found.end.quantities]
    assert found.terciles is not None  # or the chart is not offered
    return figure(panels, subject(found), note=f"{found.terciles.keys} samples; {SURE}")


def _nothing(found: Deep) -> str | None:
    return None if found.layers else NOTHING


def _no_exponents(found: Deep) -> str | None:
    known = any(fit is not None for layer in found.layers for fit in layer.fit.values())
    return _nothing(found) or (None if known else "errors at one size have no exponent")


def _no_growth(found: Deep) -> str | None:
    steps = [step for layer in found.layers for own in layer.growth.values() for step in own]
    known = any(step is not None for step in steps)
    return _nothing(found) or (None if known else "there is only one layer")


def _no_limit(found: Deep) -> str | None:
    if not found.is_gaussian:
        return "only a Gaussian stack has a known limit"
    known = any(one.standard_error is not None for one in found.limit)
    return _nothing(found) or (None if known else "one replicate has no standard errors")


def _no_end(found: Deep) -> str | None:
    return "only a model has an end to compare" if found.is_gaussian else _nothing(found)


def _no_terciles(found: Deep) -> str | None:
    none = "heads were not sampled by terciles of the horizon"
    return _no_end(found) or (None if _terciles(found) else none)


DRAWINGS = (
    Drawing("depth", "errors and exponents by layer, and the end", depth, missing=_nothing),
    Drawing(
        "errors",
        "relative errors by layer",
        errors,
        missing=_nothing,
        heading="Error by layer",
        caption="Relative error of the tokens behind each layer, one line per n: in a stack "
        "against the infinite-token limit, in a model against attention over all keys.",
    ),
    Drawing(
        "exponents",
        "exponents by layer",
        exponents,
        missing=_no_exponents,
        heading="Exponents by layer",
        caption="β of error ~ C n^-β behind each layer.",
    ),
    Drawing(
        "growth",
        "growth of the error from layer to layer",
        growth,
        missing=_no_growth,
        heading="Growth from layer to layer",
        caption="Error over that of the layer before.",
    ),
    Drawing(
        "limit",
        "measured limit against the exact recursion",
        limit,
        missing=_no_limit,
        heading="Measured limit against the exact recursion",
        caption="Every entry of the mean and covariance of every layer, extrapolated from the "
        "measured sizes, minus what the recursion says. If both agree, all points of a layer lie "
        "in the band in 95% of the cases.",
    ),
    Drawing(
        "end",
        "divergence of the model's end from dense",
        end,
        missing=_no_end,
        heading="The end of the model",
        caption="What the model says, with n keys drawn in every layer, against dense attention; "
        "intervals are over passages.",
    ),
    Drawing(
        "terciles",
        "the same, a third of the heads sampled",
        terciles,
        missing=_no_terciles,
        heading="One third of the heads",
        caption="The same with keys drawn in one third of the heads only, by their horizon H; the "
        "others are dense.",
    ),
)


def subject(found: Deep) -> str:
    """Return what was measured, in a line."""
    study = found.study
    if isinstance(study, DeepStackStudy):
        return (
            f"Gaussian stack, {study.depth} layers, d = {study.dim}, H = {study.horizon:g}, "
            f"residual {study.residual:g}, {study.replicates} replicates"
        )
    return (
        f"{study.model_record.name} on {study.text_record.source}, {study.passages} passages of "
        f"{study.context:,} tokens, {study.draws} draws"
    )


def values_of(quantity: str, curve: Curve) -> tuple[Sequence[float], Sequence[Any]]:
    """Return a quantity of the end with its intervals: 1 minus a cosine, ratios of perplexities."""
    if isinstance(curve, Perplexity):
        return curve.ratio or (), curve.ratio_interval or ()
    if quantity == "cosine":
        ends = [None if pair is None else (1 - pair[1], 1 - pair[0]) for pair in curve.interval]
        return [1 - value for value in curve.mean], ends
    return curve.mean, curve.interval


def _errors(found: Deep, curve: str, others: Sequence[str] = ()) -> ChartType:
    """Errors of a curve at every n; of others at the middle n, dashed."""
    middle = len(found.sizes) // 2
    rows = _error_rows(found, curve)
    dashed = [row for other in others for row in _error_rows(found, other, [middle])]
    # panels of a model are about errors of the same tokens, those of a stack are not
    every = (curve,) if found.is_gaussian or others else found.growth
    y = _axis(
        [row for one in every for row in _error_rows(found, one)],
        "error",
        "relative error",
        log=True,
    )
    x = Axis("layer", "layer", whole=True, limits=limits([layer.layer for layer in found.layers]))
    series = Series("n", [f"{n:,}" for n in found.sizes], title="n", ordered=True)
    dashes = Series("samples", [curve, *others]) if others else None
    what = f"error of the {NAMES[curve]}" if found.is_gaussian else f"error, {curve} samples"
    drawn = lines([*rows, *dashed], x, y, series, dashes=dashes)
    return panel(drawn, points(rows, x, y, series), title=what)


def _error_rows(
    found: Deep, curve: str, places: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """One row per layer and size (of those at ``places``)."""
    return [
        {"layer": layer.layer, "n": f"{found.sizes[j]:,}", "samples": curve}
        | _numbers("error", layer.error[curve].mean[j], layer.error[curve].interval[j], log=True)
        for j in (range(len(found.sizes)) if places is None else places)
        for layer in found.layers
    ]


def _exponents(found: Deep, title: str = "") -> ChartType:
    rows = [
        {"layer": str(layer.layer), "curve": NAMES.get(curve, curve), "hollow": not fit.trusted}
        | _numbers("exponent", fit.exponent, fit.interval)
        for layer in found.layers
        for curve, fit in layer.fit.items()
        if fit is not None
    ]
    guide: list[dict[str, Any]] = [{"at": 0.0}, {"at": 0.5, "name": "1/2"}]
    y = _axis(rows, "exponent", "exponent β", also=(0.0, 0.5))
    return _by_layer(found, rows, y, guide, title)


def _growth(found: Deep, titles: dict[int, str]) -> list[ChartType]:
    """A panel per place in the sizes, with its title, all along the same axis."""
    rows = {
        j: [
            {"layer": str(layer.layer), "curve": NAMES.get(curve, curve)}
            | _numbers("factor", step.factor, step.interval, log=True)
            for layer in found.layers
            for curve, steps in layer.growth.items()
            if (step := steps[j]) is not None
        ]
        for j in titles
    }
    y = _axis(
        [row for own in rows.values() for row in own],
        "factor",
        "growth factor",
        log=True,
        also=(1.0,),
    )
    return [_by_layer(found, rows[j], y, [{"at": 1.0}], titles[j]) for j in titles]


def _by_layer(
    found: Deep, rows: list[dict[str, Any]], y: Axis, guide: list[dict[str, Any]], title: str
) -> ChartType:
    """Points of the curves, side by side at every layer."""
    there = {row["layer"] for row in rows}
    names = [str(layer.layer) for layer in found.layers if str(layer.layer) in there]
    x = Axis("layer", "layer", names=names)
    series = Series("curve", [NAMES.get(curve, curve) for curve in found.layers[0].error])
    return panel(guides(guide, x, y), points(rows, x, y, series, beside=True), title=title)


def _least(found: Deep) -> float:
    return NARROW if len(found.layers) <= FEW else WIDE


def _limit(found: Deep) -> ChartType:
    what = "95% bound of the largest"
    rows, bounds = [], []
    for one in found.limit:
        own = [finite(score) for score in one.deviations]
        rows += [{"layer": one.layer, "score": score} for score in own if score is not None]
        if one.bound is not None:
            bounds += [
                {"layer": one.layer + side, "low": -one.bound, "high": one.bound, "what": what}
                for side in (-0.5, 0.5)
            ]
    x = Axis("layer", "layer", whole=True, limits=(-0.5, len(found.layers) - 0.5))
    known = [row[key] for row in bounds for key in ("low", "high")]
    y = Axis(
        "score",
        "deviation (standard errors)",
        limits=limits([*known, *(row["score"] for row in rows)]),
    )
    drawn = bands(bounds, x, y, Series("what", (what,), colours=(GREY,)))
    return panel(
        drawn,
        guides([{"at": 0.0}], x, y),
        points(rows, x, y),
        title="measured limit minus recursion",
    )


def _end(found: Deep, quantity: str, variants: dict[str, str], title: str = "") -> ChartType:
    """A quantity against the keys drawn, a line per variant; ``variants`` has their names."""
    about, log, dense = END[quantity]
    rows = [
        {"variant": words, "n": n} | _numbers("value", value, ends, log=log)
        for variant, words in variants.items()
        for n, value, ends in zip(
            found.sizes, *values_of(quantity, found.end.quantities[quantity][variant]), strict=True
        )
    ]
    colours, shapes = zip(*(SAMPLED[variant] for variant in variants), strict=True)
    series = Series("variant", list(variants.values()), colours=colours, shapes=shapes)
    x = Axis("n", "keys drawn n", log=True, limits=limits(found.sizes, log=True))
    y = _axis(rows, "value", about, log=log, also=() if dense is None else (dense,))
    guide = [] if dense is None else [guides([{"at": dense}], x, y)]
    marks = lines(rows, x, y, series), points(rows, x, y, series)
    return panel(*guide, *marks, title=title)


def _ways(found: Deep) -> dict[str, str]:
    """How keys are drawn, with the rate of the damage."""
    return {way: f"{way} samples{_rate(found.end, way)}" for way in found.growth}


def _terciles(found: Deep) -> dict[str, str]:
    """Thirds of the heads that were measured, with their horizons and the rate of the damage."""
    if found.terciles is None:
        return {}
    names = {}
    for third in TERCILES:
        if third in found.end.damage:
            about = found.terciles.heads[third]
            low, high = (shown(h, "d1", "?") for h in (about.horizon_min, about.horizon_max))
            names[third] = f"{third} H ({low} to {high}){_rate(found.end, third)}"
    return names


def _rate(end: DeepEnd, variant: str) -> str:
    fit = end.damage[variant].fit
    what = "KL" if end.kl else "1 - cosine"
    return "" if fit is None else f": {what} ~ n^{-fit.exponent:.2f}"


def _numbers(field: str, value: float, ends: Any, *, log: bool = False) -> dict[str, Any]:
    low, high = (None, None) if ends is None else ends
    return {field: finite(value, log), "low": finite(low), "high": finite(high)}


def _axis(
    rows: list[dict[str, Any]], field: str, title: str, *, log: bool = False, also: Any = ()
) -> Axis:
    """The axis of numbers with intervals; on a logarithmic one those that reach 0 are cut."""
    known = [*also, *(row[key] for row in rows for key in (field, "high"))]
    for row in rows:
        low, value = row["low"], row[field]
        known.append(max(low, CUT * value) if log and None not in (low, value) else low)
    return Axis(field, title, log=log, limits=limits(known, log=log))
