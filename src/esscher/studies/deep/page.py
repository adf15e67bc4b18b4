"""The result on a page of a report: errors of the first and last layer, the end, all layers."""

from __future__ import annotations

from typing import Any

from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of, ends_of
from esscher.show.numbers import shown
from esscher.studies.deep.charts import NAMES, subject
from esscher.studies.deep.result import Deep


def summary(found: Deep, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    cards, tables = [], []
    if found.layers:
        cards = _cards(found)
        tables = [] if found.is_gaussian else [_end(found, name)]
        tables += [] if found.terciles is None else [_terciles(found, name)]
        tables.append(_layers(found, name))
    return Summary("Error through depth", subject(found), cards, tables)


def _cards(found: Deep) -> list[Card]:
    """Errors of the first and last layer, growth, and the exponent behind the last."""
    layers, curve = found.layers, next(iter(found.layers[0].error))
    j = len(found.sizes) - 1 if found.is_gaussian else len(found.sizes) // 2
    n = f"n = {found.sizes[j]:,}"
    out = []
    for name, layer in (("first", layers[0]), ("last", layers[-1])):
        error = layer.error[curve]
        out.append(Card(shown(error.mean[j], "p2"), f"error after the {name} layer",
                        f"{n}; {_interval(error.interval[j], 'p2')}"))  # fmt: skip
    growth = found.growth[curve][j]
    if growth is not None:
        out.append(Card(shown(growth.factor, "d3"), "growth factor per layer",
                        f"{n}; {_interval(growth.interval, 'd3')}"))  # fmt: skip
    fit = layers[-1].fit[curve]
    if fit is not None:
        out.append(Card(shown(fit.exponent, "d3"), "exponent after the last layer",
                        _interval(fit.interval, "d3")))  # fmt: skip
    return out


def _interval(ends: Any, how: str) -> str:
    if ends is None or ends[0] is None:
        return "no interval"
    return f"95% interval {shown(ends[0], how)} to {shown(ends[1], how)}"


def _end(found: Deep, name: str) -> Table:
    return Table(
        title="The end of the model in numbers",
        name=f"{name}-end",
        columns=[
            Column("quantity", "quantity"),
            Column("variant", "drawn"),
            Column("n", "keys n", "n0", missing="all"),
            Column("mean", "value", "s3", "low", "high"),
        ],
        data=data_of(found.end_table()),
        caption="With 95% intervals over passages, the draws of a passage averaged first.",
    )


def _terciles(found: Deep, name: str) -> Table:
    terciles, middle = found.terciles, len(found.sizes) // 2
    assert terciles is not None  # or there is no table
    rows = [(third, about) for third, about in terciles.heads.items() if third in terciles.error]
    errors = [terciles.error[third] for third, _ in rows]
    low, high = ends_of(error.interval[middle] for error in errors)
    return Table(
        title="Heads by their horizon",
        name=f"{name}-terciles",
        columns=[
            Column("third", "third"),
            Column("heads", "heads", "n0"),
            Column("horizon", "median horizon H", "d2", "horizon_low", "horizon_high",
                   help="with the smallest and the largest"),
            Column("layer", "mean layer", "d1"),
            Column("error", f"error at n = {found.sizes[middle]:,}", "p1", "error_low",
                   "error_high"),
        ],
        data={
            "third": [third for third, _ in rows],
            "heads": [about.heads for _, about in rows],
            "horizon": [about.horizon_median for _, about in rows],
            "horizon_low": [about.horizon_min for _, about in rows],
            "horizon_high": [about.horizon_max for _, about in rows],
            "layer": [about.mean_layer for _, about in rows],
            "error": [error.mean[middle] for error in errors],
            "error_low": low,
            "error_high": high,
        },
        caption=f"One third of the heads of the {terciles.scope} is sampled at a time, the "
        "others are dense. Errors are of the last layer, with 95% intervals over passages.",
    )  # fmt: skip


def _layers(found: Deep, name: str) -> Table:
    frame = found.table()
    frame["curve"] = [NAMES.get(curve, curve) for curve in frame["curve"]]
    return Table(
        title="All layers",
        name=f"{name}-layers",
        columns=[
            Column("layer", "layer", "n0"),
            Column("curve", "error of the" if found.is_gaussian else "samples"),
            Column("n", "n", "n0"),
            Column("error", "relative error", "p2", "error_low", "error_high"),
            Column("growth", "growth", "d3", "growth_low", "growth_high"),
            Column("exponent", "exponent", "d3", "exponent_low", "exponent_high"),
            Column("trusted", "trusted"),
        ],
        data=data_of(frame),
        caption=f"95% intervals over {_over(found)}.",
    )


def _over(found: Deep) -> str:
    """What intervals are over."""
    if found.is_gaussian:
        return "replicates"
    if len(found.eligible) == 1:
        return "the draws of one passage, if there are several: other texts may differ more"
    return "passages, the draws of a passage averaged first"
