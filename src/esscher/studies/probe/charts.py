"""Charts of a probe: every head's numbers and curves, predictions, the heads of layers together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import altair as alt
import numpy as np
from altair.typing import ChartType

from esscher.core.shown import between, counted, shown
from esscher.show.cells import heatmap, pairs, picked_title, picking
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
from esscher.show.content import Drawing, check_heads
from esscher.show.frames import records
from esscher.show.theme import (
    BLACK,
    BLUE,
    DASHES,
    GREEN,
    GREY,
    SHARES,
    VERMILION,
    limits,
)
from esscher.studies.probe.result import (
    KEPT,
    METRIC_NAMES,
    NORMAL,
    Probe,
    ProbeHead,
    by_need,
    enough_for,
    subject,
)

#: Errors by colour and shape.
METRIC = Series(
    "metric",
    tuple(METRIC_NAMES.values()),
    colours=(VERMILION, BLUE, GREEN),
    shapes=("square", "circle", "triangle-up"),
)
FITTED, PREDICTED = "fitted C n^-β", "predicted"
#: Predicted exponents: column of the table of heads and name, by metric.
PREDICTORS = {
    "mean": {
        "predicted_mean": "predicted on the range",
        "sharp": "Gaussian, conjectured",
        "paper_reference": "published reference",
        "paper_bound": "published bound",
    },
    "cov": {"predicted_cov": "predicted on the range"},
    "map": {
        "predicted_map": "predicted on the range",
        "paper_reference": "published reference",
        "paper_bound": "published bound",
    },
}
#: Column of the table, title, and how it is coloured: colours, their ends (None: from the data).
NUMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    "at_context": ("error at the context", {"colours": SHARES, "log": True}),
    "tokens_10": ("tokens for 10% error", {"colours": SHARES, "log": True}),
    "mean": ("exponent, mean error", {"ends": (0.2, 0.6)}),
    "H": ("horizon H", {"colours": SHARES, "log": True}),
    "khat": ("one-pass k-hat", {"colours": SHARES, "ends": (0.0, 1.0)}),
    "map": ("exponent, map error", {"ends": (0.0, 0.6)}),
    "lost": ("sinks and delimiters", {"colours": SHARES, "ends": (0.0, 1.0)}),
    "cov": ("exponent, covariance error", {"ends": (0.2, 0.6)}),
    "ess": ("effective tokens of a query", {"log": True}),
    "proxy": ("variance proxy of the keys", {"colours": SHARES, "log": True}),
}
#: Those of the main chart.
MAIN = ("at_context", "tokens_10", "mean", "map", "H", "lost")
#: Those above the curves of the picked head, and rows of the others.
FIRST = ("at_context", "tokens_10", "H")
OTHERS = (("mean", "map", "cov"), ("khat", "lost", "ess", "proxy"))
#: Heads whose curves are drawn unless some are chosen.
SHOWN = 6
#: Points that a panel needs to stand beside another: one with many cells, four of them in a row of
#: the report, and a small one.
WIDE, FOUR, SLIM = 150.0, 140.0, 105.0
#: Layers whose correlations are drawn.
LAYERS = 6
HOLLOW = "hollow: not to be trusted"
NEVER = "×: no number of tokens up to 10^8 is enough"


def heads(result: Probe) -> ChartType:
    """Draw six numbers of every head."""
    return figure(_numbers(result, MAIN), _title(result), apart=True)


def explorer(result: Probe, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw what every head needs, and below it the curves of the one that is picked.

    At first, that is the one that needs most tokens.
    """
    every = {(head.layer, head.head): head for head in by_need(result)}
    if heads is not None:
        check_heads(heads, list(every))
    wanted = list(dict.fromkeys([*(heads or ()), *every]))
    pick, kept = picking(*wanted[0]), [every[place] for place in wanted[:KEPT]]
    kinds = Series("line", (FITTED, PREDICTED), colours=(BLACK, VERMILION), dashes=DASHES[:2])
    curves = []
    for metric, title in METRIC_NAMES.items():
        measured, drawn, text = curve_rows(result, kept, [metric])
        x, y = axes_of([*measured, *drawn], lines_below=1)
        within = [row for row in drawn if "low" in row]
        curves.append(
            panel(
                *([bands(within, x, y, colour=VERMILION, pick=pick)] if within else []),
                lines(drawn, x, y, kinds, pick=pick),
                points(measured, x, y, pick=pick),
                words(text, pick=pick),
                title=picked_title(title),
            )
        )
    note = f"bars and bands: 95% intervals; {HOLLOW}"
    if any(head.tokens_for["0.1"] is None for head in result.heads):
        note += f"; {NEVER}"
    if len(kept) < len(every):
        note += f"; curves of the {len(kept):,} of {len(every):,} heads that need most tokens"
    return figure(
        [*_numbers(result, FIRST, pick), *curves],
        _title(result),
        note=note,
        least=WIDE,
        apart=True,
        pick=pick,
    )


def numbers(result: Probe) -> ChartType:
    """Draw the numbers of every head that the explorer leaves out: exponents above the others."""
    known = any(head.tails is not None for head in result.heads)
    rows = [[name for name in row if known or name != "proxy"] for row in OTHERS]
    figures = [figure(_numbers(result, row), least=FOUR, apart=True) for row in rows]
    return sheet(figures, _title(result))


def tokens(result: Probe) -> ChartType:
    """Draw the tokens that every head needs for 10% output error, sorted, with 95% intervals."""
    rows: list[dict[str, Any]] = []
    for head in by_need(result)[::-1]:
        need, (low, high) = head.tokens_for["0.1"], head.tokens_for_interval["0.1"]
        if need is not None:
            place = {"layer": str(head.layer), "head": head.head, "rank": len(rows) + 1}
            name = f"head {head.layer}.{head.head}"
            rows.append(place | {"name": name, "tokens": need, "low": low, "high": high})
    ends = limits([row[key] for row in rows for key in ("tokens", "low", "high")], log=True)
    for row in rows:  # an end that is beyond every size leaves the chart
        row["high"] = 100 * ends[1] if row["high"] is None else row["high"]
    x = Axis("rank", "heads, sorted", whole=True, limits=(0.0, len(result.heads) + 1.0))
    y = Axis("tokens", "tokens for 10% output error", log=True, limits=ends)
    compare = [
        {"at": need, "name": f"enough for {name} of the heads: {shown(need, 'n3')}"}
        for name, share in (("half", 0.5), ("90%", 0.9))
        if (need := enough_for(result, share)) is not None
    ]
    names = [str(layer) for layer in sorted({head.layer for head in result.heads})]
    series = Series("layer", names, "layer", shapes=("circle",) * len(names), ordered=True)
    never, note = len(result.heads) - len(rows), "bars: 95% intervals"
    note += f"; for {counted(never, 'head')} no number of tokens is enough" if never else ""
    drawn = panel(guides(compare, x, y, left=True), points(rows, x, y, series), height=170.0)
    return figure([drawn], _title(result), note=note)


def curves(result: Probe, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw errors of single heads against n, measured, fitted and predicted."""
    order = [(head.layer, head.head) for head in by_need(result)]
    if heads is None:
        at = np.unique(np.linspace(0, len(order) - 1, min(SHOWN, len(order))).astype(int))
        heads = [order[i] for i in at]
    check_heads(heads, order)
    kinds = Series("line", (FITTED, PREDICTED), dashes=DASHES[:2])
    panels = []
    for place in heads:
        head = result.head(*place)
        measured, drawn, exponents = curve_rows(result, [head], METRIC_NAMES)
        x, y = axes_of([*measured, *drawn], lines_below=3)
        rows = zip(METRIC_NAMES, exponents, strict=True)
        text = "\n".join(f"{metric}: {row['text']}" for metric, row in rows)
        panels.append(
            panel(
                bands([row for row in drawn if "low" in row], x, y, METRIC),
                lines(drawn, x, y, METRIC, dashes=kinds),
                points(measured, x, y, METRIC),
                words([{"text": text}]),
                title=f"head {head.layer}.{head.head}: H = {head.horizon:.2f}",
            )
        )
    note = f"bars and bands: 95% intervals; {HOLLOW}"
    return figure(panels, _title(result), note=note)


def predicted(result: Probe) -> ChartType:
    """Draw measured exponents with 95% intervals against predicted ones, a panel per predictor."""
    table = records(result.table())
    panels = []
    for metric, predictors in PREDICTORS.items():
        ends = limits([0.0, 0.6, *(row[name] for row in table for name in (metric, *predictors))])
        rows = [
            {
                "name": f"head {row['layer']}.{row['head']}",
                "layer": row["layer"],
                "head": row["head"],
                "metric": METRIC_NAMES[metric],
                "measured": row[metric],
                "low": row[f"{metric}_low"],
                "high": row[f"{metric}_high"],
                "hollow": head.fit is None or not head.fit[metric].trusted,
            }
            | {column: row[column] for column in predictors}
            for row, head in zip(table, result.heads, strict=True)
        ]
        for column, name in predictors.items():
            x = Axis(column, "predicted exponent", limits=ends)
            y = Axis("measured", "measured exponent", limits=ends)
            off = [abs(row[column] - row["measured"]) for row in rows if row[column] is not None]
            text = f"mean |difference|\n{np.mean(off):.3f}" if off else "not predicted"
            panels.append(
                panel(
                    diagonal(x, y),
                    points(rows, x, y, METRIC),
                    words([{"text": text}], right=True),
                    title=alt.TitleParams(text=[name, METRIC_NAMES[metric]]),
                )
            )
    note = f"{counted(len(table), 'head')}; bars: 95% intervals; {HOLLOW}"
    return figure(panels, _title(result), note=note, least=SLIM)


#: Panels of the layers: title, columns by name, columns to compare with, a guide, the least value.
BY_LAYER: tuple[tuple[str, dict[str, str], dict[str, str], dict[str, Any], float | None], ...] = (
    (
        "independent heads",
        {
            "errors of the mean": "effective_heads",
            "errors of queries": "effective_heads_map",
            "magnitudes": "effective_magnitudes",
        },
        {},
        {"name": "all heads"},
        0.0,
    ),
    (
        "squared error of sum / sum of squared",
        {"errors of the mean": "amplification", "errors of queries": "amplification_map"},
        {},
        {"at": 1.0, "name": "independent errors"},
        0.0,
    ),
    (
        "exponent of the mean error",
        {"heads side by side": "side_by_side", "output projection": "projected"},
        {"mean head": "heads_mean", "worst head": "heads_worst"},
        {"at": 0.5},
        None,
    ),
)


def layers(result: Probe) -> ChartType:
    """Draw the heads of each layer together: correlations above, numbers by layer below."""
    known = [layer for layer in result.layers if layer.heads_together is not None]
    above = []
    for i in np.unique(np.linspace(0, len(known) - 1, min(LAYERS, len(known))).astype(int)):
        layer, together = known[i], known[i].heads_together or {}
        errors, norms = (together[name].correlation for name in ("mean", "magnitudes"))
        rows = [
            {"head": head, "other": other, "correlation": (errors if i < j else norms)[i][j]}
            for i, head in enumerate(layer.heads)
            for j, other in enumerate(layer.heads)
            if i != j
        ]
        above.append(pairs(rows, "correlation", f"layer {layer.layer}"))
    table = records(result.layers_table())
    most = {"at": max(row["heads"] for row in table)}
    below = [
        _by_layer(table, title, measured, compared, most | guide, least)
        for title, measured, compared, guide, least in BY_LAYER
    ]
    note = (
        f"squares: correlation of the errors of heads at n = {result.sizes[-1]:,}, above the "
        "diagonal of the vectors, below of their magnitudes; bars: 95% intervals"
    )
    return sheet([figure(above), figure(below, apart=True)], _title(result), note=note)


def _by_layer(
    table: list[dict[str, Any]],
    title: str,
    measured: dict[str, str],
    compared: dict[str, str],
    guide: dict[str, Any],
    least: float | None,
) -> ChartType:
    """Numbers of layers with intervals, and lines to compare with: columns by name."""
    count, others = len(measured), len(compared)
    series = Series(
        "of",
        (*measured, *compared),
        colours=(*(BLUE, VERMILION, GREEN)[:count], *(GREY,) * others),
        shapes=(*("circle", "square", "triangle-up")[:count], *("stroke",) * others),
        dashes=(*DASHES[:1] * count, DASHES[0], DASHES[2]) if compared else None,
    )
    marked, other = (
        [
            {"layer": str(row["layer"]), "of": name, "value": row[column]}
            | {end: row[f"{column}_{end}"] for end in ends}
            for name, column in columns.items()
            for row in table
        ]
        for columns, ends in ((measured, ("low", "high")), (compared, ()))
    )
    known = [row.get(key) for row in (*marked, *other) for key in ("value", "low", "high")]
    low, high = limits([*known, guide["at"], least])
    x = Axis("layer", "layer", names=[str(row["layer"]) for row in table])
    y = Axis("value", limits=(low if least is None else least, high))
    below = [guides([guide], x, y), *([lines(other, x, y, series)] if other else [])]
    return panel(*below, points(marked, x, y, series, beside=True), title=title)


def curve_rows(
    result: Probe, heads: Iterable[ProbeHead], metrics: Iterable[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return measured errors at all sizes, lines of fitted laws and predictions, and exponents.

    Errors are relative to the root mean square norm of the head's outputs, that of the covariance
    to its square. Measured and predicted ones have 95% intervals; exponents are in words.
    """
    measured: list[dict[str, Any]] = []
    drawn: list[dict[str, Any]] = []
    exponents: list[dict[str, Any]] = []
    for head, metric in product(heads, metrics):
        scale = head.norm ** (2 if metric == "cov" else 1) or 1.0
        fit = None if head.fit is None else head.fit[metric]
        place = {"layer": head.layer, "head": head.head, "metric": METRIC_NAMES[metric]}
        if fit is not None:
            ends = zip(fit.lower, fit.upper, strict=True)
            for n, error, (lower, upper) in zip(fit.sizes, fit.mean, ends, strict=True):
                low, high = (None if end is None else end / scale for end in (lower, upper))
                point = {"n": n, "error": error / scale, "low": low, "high": high}
                measured.append(place | point | {"hollow": not fit.trusted})
            for n in (result.sizes[0], result.sizes[-1]):  # between which it is straight
                error = fit.constant * n**-fit.exponent / scale
                drawn.append(place | {"line": FITTED, "n": n, "error": error})
        predicted = head.predicted_error[metric]
        errors = zip(predicted.error, predicted.standard_error, strict=True)
        for n, (error, noise) in zip(result.sizes, errors, strict=True):
            if error > 0:
                line = {"line": PREDICTED, "n": n, "error": error / scale}
                line["low"] = max(error - NORMAL * noise, error / 10) / scale
                line["high"] = (error + NORMAL * noise) / scale
                drawn.append(place | line)
        value, interval = head.exponent(metric)
        text = "" if value is None else f"β = {between(value, interval, 'd3')}"
        text += " (predicted)" if text and fit is None else ""
        exponents.append(place | {"text": text})
    return measured, drawn, exponents


def axes_of(rows: list[dict[str, Any]], lines_below: int) -> tuple[Axis, Axis]:
    """Return the axes of tokens and of errors; below the errors is room for lines of text."""
    errors = [row["error"] for row in rows] + [row.get("high") for row in rows]
    low, high = limits(errors, log=True)
    low *= (low / high) ** (0.09 * lines_below)
    x = Axis("n", "tokens n", log=True, limits=limits([row["n"] for row in rows], log=True))
    return x, Axis("error", "relative error", log=True, limits=(low, high))


def _numbers(
    result: Probe, names: Sequence[str], pick: alt.Parameter | None = None
) -> list[ChartType]:
    """Maps of numbers, layer by head."""
    rows = [row | {"lost": row["sinks"] + row["delimiters"]} for row in records(result.table())]
    panels = []
    for name in names:
        title, colours = NUMBERS[name]
        if name in METRIC_NAMES and result.study.predict:
            name, title = result.exponent_column(name), f"predicted {title}"
        panels.append(heatmap(rows, name, title, pick=pick, **colours))
    return panels


def _title(result: Probe) -> str:
    study = result.study
    how = "predicted from one pass" if study.predict else counted(study.replicates, "replicate")
    return f"{subject(result)}, {how}"


def _nothing(result: Probe) -> str | None:
    return None if result.heads else "no part of the run is complete"


def _nothing_measured(result: Probe) -> str | None:
    missing = "nothing was sampled (--predict)" if result.study.predict else None
    return _nothing(result) or missing


def _no_layers(result: Probe) -> str | None:
    known = any(layer.heads_together is not None for layer in result.layers)
    return _nothing_measured(result) or (
        None if known else "no layer has more than one head, measured on at least 4 replicates"
    )


DRAWINGS = (
    Drawing("heads", "six numbers of every head, layer by head", heads, missing=_nothing),
    Drawing(
        "explorer",
        "error, tokens and horizon of every head, and the curves of one (--head)",
        explorer,
        heads=True,
        missing=_nothing,
        heading="Every head",
        caption="Click a cell, or move with the arrow keys, to see the curves and numbers of that "
        "head. Errors are relative to the root mean square norm of the head's outputs (covariance: "
        "to its square). Dashed: predicted from one pass.",
    ),
    Drawing(
        "tokens",
        "tokens for 10% error of every head, sorted",
        tokens,
        missing=_nothing,
        heading="Tokens for 10% output error",
        caption="One point per head; click it to see the head.",
    ),
    Drawing(
        "numbers",
        "exponents, k-hat, sinks, effective tokens and tails of every head",
        numbers,
        missing=_nothing,
        heading="Exponents and attention of every head",
        caption="Click a cell to see the head.",
    ),
    Drawing(
        "curves",
        "errors of single heads against n, fitted and predicted (--head)",
        curves,
        heads=True,
        missing=_nothing,
    ),
    Drawing(
        "predicted",
        "measured against predicted exponents",
        predicted,
        missing=_nothing_measured,
        heading="Predicted against measured",
        caption="One point per head; on the dotted line both agree. Click a point to see the head.",
    ),
    Drawing(
        "layers",
        "the heads of each layer together",
        layers,
        missing=_no_layers,
        heading="Heads together",
        caption="The output projection adds up the errors of a layer's heads. Independent heads: "
        "(tr R)² / tr R², R being the correlations of their errors.",
    ),
)
