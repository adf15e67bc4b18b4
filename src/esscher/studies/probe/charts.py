"""The curves of a head as rows of a chart: errors as measured, fitted and predicted.

Errors are relative to the root mean square norm of the head's outputs, that of the covariance to
its square.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    PREDICTORS,
    Probe,
    ProbeHead,
    ProbeLayer,
    by_need,
    enough_for,
)

COLOURS = {"mean": VERMILION, "map": BLUE, "cov": GREEN}
METRIC = Series(
    "metric",
    tuple(METRIC_NAMES.values()),
    colours=tuple(COLOURS.values()),
    shapes=("square", "circle", "triangle-up"),
)


def measured_of(found: Probe, head: ProbeHead, metric: str) -> list[dict[str, Any]]:
    """Return the errors at all sizes, with intervals at those of the fit."""
    if head.fit is None or head.curve is None:
        return []
    fit, scale = head.fit[metric], _scale(head, metric)
    ends = {
        n: {"low": low / scale, "high": high / scale}
        for n, low, high in zip(fit.sizes, fit.lower, fit.upper, strict=True)
        if low is not None and high is not None
    }
    return [
        {
            "metric": METRIC_NAMES[metric],
            "n": n,
            "error": mean / scale,
            "low": None,
            "high": None,
            "hollow": not fit.trusted,
        }
        | ends.get(n, {})
        for n, mean in zip(found.sizes, head.curve[metric].mean, strict=True)
    ]


def fitted_of(found: Probe, head: ProbeHead, metric: str) -> list[dict[str, Any]]:
    """Return the fitted law; nothing without one."""
    fit = None if head.fit is None else head.fit[metric]
    if fit is None or fit.constant is None:
        return []
    scale = _scale(head, metric)
    return [
        {"metric": METRIC_NAMES[metric], "n": n, "error": fit.constant * n**-fit.exponent / scale}
        for n in (found.sizes[0], found.sizes[-1])  # between which it is straight
    ]


def predicted_of(found: Probe, head: ProbeHead, metric: str) -> list[dict[str, Any]]:
    """Return what one pass predicts, with its 95% interval."""
    about, scale = head.predicted_error[metric], _scale(head, metric)
    return [
        {
            "metric": METRIC_NAMES[metric],
            "n": n,
            "error": error / scale,
            "low": max(error - NORMAL * noise, error / 10) / scale,
            "high": (error + NORMAL * noise) / scale,
        }
        for n, error, noise in zip(found.sizes, about.error, about.standard_error, strict=True)
        if error > 0
    ]


def _scale(head: ProbeHead, metric: str) -> float:
    return head.norm ** (2 if metric == "cov" else 1) or 1.0


def exponent_of(head: ProbeHead, metric: str) -> str:
    """Return the exponent with its interval, in words."""
    value, interval = head.exponent(metric)
    if value is None:
        return ""
    predicted = " (predicted)" if head.fit is None else ""
    return f"β = {between(value, interval, 'd3')}{predicted}"


def axes_of(rows: list[dict[str, Any]], lines_below: int) -> tuple[Axis, Axis]:
    """Return the axes of tokens and of errors; below the errors is room for lines of text."""
    errors = [row["error"] for row in rows] + [row.get("high") for row in rows]
    low, high = limits(errors, log=True)
    low *= (low / high) ** (0.09 * lines_below)
    x = Axis("n", "tokens n", log=True, limits=limits([row["n"] for row in rows], log=True))
    return x, Axis("error", "relative error", log=True, limits=(low, high))


# Charts of a probe: every head's numbers and curves, predictions, the heads of layers together.

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
FITTED, PREDICTED = "fitted C n^-β", "predicted"
HOLLOW = "hollow: not to be trusted"
NEVER = "×: no number of tokens up to 10^8 is enough"


def heads(found: Probe) -> ChartType:
    """Draw six numbers of every head."""
    return figure(_numbers(found, MAIN), _title(found), apart=True)


def explorer(found: Probe, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw what every head needs, and below it the curves of the one that is picked.

    At first, that is the one that needs most tokens.
    """
    every = {(head.layer, head.head): head for head in by_need(found)}
    if heads is not None:
        check_heads(heads, list(every))
    wanted = dict.fromkeys([*(heads or ()), *every])
    pick = picking(*next(iter(wanted)))
    kept = [every[one] for one in list(wanted)[:KEPT]]
    curves = [_picked_curves(found, kept, metric, pick) for metric in METRIC_NAMES]
    note = f"bars and bands: 95% intervals; {HOLLOW}"
    if any(head.tokens_for.percent_10 is None for head in found.heads):
        note += f"; {NEVER}"
    if len(kept) < len(every):
        note += f"; curves of the {len(kept):,} of {len(every):,} heads that need most tokens"
    return figure(
        [*_numbers(found, FIRST, pick), *curves],
        _title(found),
        note=note,
        least=WIDE,
        apart=True,
        pick=pick,
    )


def numbers(found: Probe) -> ChartType:
    """Draw the numbers of every head that the explorer leaves out: exponents above the others."""
    known = any(head.tails is not None for head in found.heads)
    rows = [[name for name in row if known or name != "proxy"] for row in OTHERS]
    figures = [figure(_numbers(found, row), least=FOUR, apart=True) for row in rows]
    return sheet(figures, _title(found))


def tokens(found: Probe) -> ChartType:
    """Draw the tokens that every head needs for 10% output error, sorted, with 95% intervals."""
    rows: list[dict[str, Any]] = []
    never = 0
    for about in by_need(found)[::-1]:
        layer, head = about.layer, about.head
        need, (low, high) = about.tokens_for.percent_10, about.tokens_for_interval.percent_10
        never += need is None
        if need is not None:
            rows.append(
                {
                    "layer": str(layer),
                    "head": head,
                    "name": f"head {layer}.{head}",
                    "rank": len(rows) + 1,
                    "tokens": need,
                    "low": low,
                    "high": high,
                }
            )
    ends = limits([row[key] for row in rows for key in ("tokens", "low", "high")], log=True)
    for row in rows:  # an end that is beyond every size leaves the chart
        row["high"] = 100 * ends[1] if row["high"] is None else row["high"]
    x = Axis("rank", "heads, sorted", whole=True, limits=(0.0, len(found.heads) + 1.0))
    y = Axis("tokens", "tokens for 10% output error", log=True, limits=ends)
    enough = {name: enough_for(found, share) for name, share in (("half", 0.5), ("90%", 0.9))}
    compare = [
        {"at": need, "name": f"enough for {name} of the heads: {shown(need, 'n3')}"}
        for name, need in enough.items()
        if need is not None
    ]
    names = [str(layer) for layer in sorted({head.layer for head in found.heads})]
    series = Series("layer", names, "layer", shapes=("circle",) * len(names), ordered=True)
    note = "bars: 95% intervals"
    note += f"; for {counted(never, 'head')} no number of tokens is enough" if never else ""
    drawn = panel(guides(compare, x, y, left=True), points(rows, x, y, series), height=170.0)
    return figure([drawn], _title(found), note=note)


def curves(found: Probe, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw errors of single heads against n, measured, fitted and predicted."""
    order = [(head.layer, head.head) for head in by_need(found)]
    if heads is None:
        at = np.unique(np.linspace(0, len(order) - 1, min(SHOWN, len(order))).astype(int))
        heads = [order[i] for i in at]
    check_heads(heads, order)
    kinds = Series("line", ("fitted", PREDICTED), dashes=DASHES[:2])
    panels = []
    for one in heads:
        about = found.head(*one)
        measured = [row for metric in METRIC_NAMES for row in measured_of(found, about, metric)]
        fitted = [
            row | {"line": "fitted"}
            for metric in METRIC_NAMES
            for row in fitted_of(found, about, metric)
        ]
        predicted = [
            row | {"line": PREDICTED}
            for metric in METRIC_NAMES
            for row in predicted_of(found, about, metric)
        ]
        x, y = axes_of([*measured, *fitted, *predicted], lines_below=3)
        text = "\n".join(f"{metric}: {exponent_of(about, metric)}" for metric in METRIC_NAMES)
        panels.append(
            panel(
                bands(predicted, x, y, METRIC),
                lines([*fitted, *predicted], x, y, METRIC, dashes=kinds),
                points(measured, x, y, METRIC),
                words([{"text": text}]),
                title=f"head {about.layer}.{about.head}: H = {about.horizon:.2f}",
            )
        )
    note = f"bars and bands: 95% intervals; {HOLLOW}"
    return figure(panels, _title(found), note=note)


def predicted(found: Probe) -> ChartType:
    """Draw measured exponents with 95% intervals against predicted ones, a panel per predictor."""
    table = [row | {"constant": 0.5} for row in records(found.table())]
    panels = []
    for metric, all_of in PREDICTORS.items():
        ends = limits([0.0, 0.6, *(row[name] for row in table for name in (metric, *all_of))])
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
            | {column: row[column] for column in all_of}
            for row, head in zip(table, found.heads, strict=True)
        ]
        for column, name in all_of.items():
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
    return figure(panels, _title(found), note=note, least=SLIM)


def layers(found: Probe) -> ChartType:
    """Draw the heads of each layer together: correlations above, numbers by layer below."""
    there = [layer for layer in found.layers if layer.heads_together is not None]
    at = np.unique(np.linspace(0, len(there) - 1, min(LAYERS, len(there))).astype(int))
    above = figure([_correlations(there[i]) for i in at])
    table = records(found.layers_table())
    queries = ("errors of the mean", "errors of queries")
    below = [
        _by_layer(
            table,
            "independent heads",
            dict(
                zip(
                    (*queries, "magnitudes"),
                    ("effective_heads", "effective_heads_map", "effective_magnitudes"),
                    strict=True,
                )
            ),
            guide={"at": max(row["heads"] for row in table), "name": "all heads"},
            least=0.0,
        ),
        _by_layer(
            table,
            "squared error of sum / sum of squared",
            dict(zip(queries, ("amplification", "amplification_map"), strict=True)),
            guide={"at": 1.0, "name": "independent errors"},
            least=0.0,
        ),
        _by_layer(
            table,
            "exponent of the mean error",
            {"heads side by side": "side_by_side", "output projection": "projected"},
            {"mean head": "heads_mean", "worst head": "heads_worst"},
            guide={"at": 0.5},
        ),
    ]
    note = (
        f"squares: correlation of the errors of heads at n = {found.sizes[-1]:,}, above the "
        "diagonal of the vectors, below of their magnitudes; bars: 95% intervals"
    )
    return sheet([above, figure(below, apart=True)], _title(found), note=note)


def _nothing(found: Probe) -> str | None:
    return None if found.heads else "no part of the run is complete"


def _nothing_measured(found: Probe) -> str | None:
    missing = "nothing was sampled (--predict)" if found.study.predict else None
    return _nothing(found) or missing


def _no_layers(found: Probe) -> str | None:
    there = any(layer.heads_together is not None for layer in found.layers)
    return _nothing_measured(found) or (
        None if there else "no layer has more than one head, measured on at least 4 replicates"
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
        caption="One point per head; on the dotted line both agree. A predictor is worth something "
        "if it is closer than always saying 1/2. Click a point to see the head.",
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


# Panels.


def _numbers(
    found: Probe, names: Sequence[str], pick: alt.Parameter | None = None
) -> list[ChartType]:
    rows = [row | {"lost": row["sinks"] + row["delimiters"]} for row in records(found.table())]
    panels = []
    for name in names:
        title, colours = NUMBERS[name]
        if name in METRIC_NAMES and found.study.predict:
            name, title = found.exponent_column(name), f"predicted {title}"
        panels.append(heatmap(rows, name, title, pick=pick, **colours))
    return panels


def _picked_curves(
    found: Probe, heads: Sequence[ProbeHead], metric: str, pick: alt.Parameter
) -> ChartType:
    """The curves of one metric of the head that is picked."""
    measured, drawn, text = [], [], []
    for head in heads:
        cell = {"layer": head.layer, "head": head.head}
        measured += [cell | row for row in measured_of(found, head, metric)]
        for name, rows_of in ((FITTED, fitted_of), (PREDICTED, predicted_of)):
            drawn += [cell | row | {"line": name} for row in rows_of(found, head, metric)]
        text.append(cell | {"text": exponent_of(head, metric)})
    x, y = axes_of([*measured, *drawn], lines_below=1)
    kinds = Series("line", (FITTED, PREDICTED), colours=(BLACK, VERMILION), dashes=DASHES[:2])
    within = [row for row in drawn if "low" in row]
    return panel(
        *([bands(within, x, y, colour=VERMILION, pick=pick)] if within else []),
        lines(drawn, x, y, kinds, pick=pick),
        points(measured, x, y, pick=pick),
        words(text, pick=pick),
        title=picked_title(METRIC_NAMES[metric]),
    )


def _correlations(layer: ProbeLayer) -> ChartType:
    found = layer.heads_together
    assert found is not None
    rows = [
        {
            "head": one,
            "other": two,
            "correlation": (found.correlation if i < j else found.magnitudes.correlation)[i][j],
        }
        for i, one in enumerate(found.heads)
        for j, two in enumerate(found.heads)
        if i != j
    ]
    return pairs(rows, "correlation", f"layer {layer.layer}")


def _by_layer(
    table: list[dict[str, Any]],
    title: str,
    measured: dict[str, str],
    compared: dict[str, str] | None = None,
    *,
    guide: dict[str, Any],
    least: float | None = None,
) -> ChartType:
    """Numbers of layers with intervals, and lines to compare with: names and columns."""
    compared = compared or {}
    names = (*measured, *compared)
    colours = (*(BLUE, VERMILION, GREEN)[: len(measured)], *(GREY,) * len(compared))
    shapes = (*("circle", "square", "triangle-up")[: len(measured)], *("stroke",) * len(compared))
    dashes = None
    if compared:
        dashes = (*DASHES[:1] * len(measured), DASHES[0], DASHES[2])
    series = Series("of", names, colours=colours, shapes=shapes, dashes=dashes)
    rows = [
        {
            "layer": str(row["layer"]),
            "of": name,
            "value": row[column],
            "low": row[f"{column}_low"],
            "high": row[f"{column}_high"],
        }
        for name, column in measured.items()
        for row in table
    ]
    other = [
        {"layer": str(row["layer"]), "of": name, "value": row[column]}
        for name, column in compared.items()
        for row in table
    ]
    known = [row.get(key) for row in (*rows, *other) for key in ("value", "low", "high")]
    low, high = limits([*known, guide["at"], least])
    x = Axis("layer", "layer", names=[str(row["layer"]) for row in table])
    y = Axis("value", limits=(low if least is None else least, high))
    below = [guides([guide], x, y), *([lines(other, x, y, series)] if other else [])]
    return panel(*below, points(rows, x, y, series, beside=True), title=title)


# What is read from the result beside its tables.


def _title(found: Probe) -> str:
    study = found.study
    return (
        f"{study.model_record.name} on {study.text_record.source}, {study.mode}, "
        f"{study.tokens:,} tokens, n = {study.sizes[0]:,} to {study.sizes[-1]:,}, "
        + ("predicted from one pass" if study.predict else counted(study.replicates, "replicate"))
    )
