"""The result on a page of a report: errors of the first and last layer, the end, all layers."""

from __future__ import annotations

from typing import Any

from esscher.core.shown import with_error
from esscher.math.statistics import Rate
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of, ends_of
from esscher.show.numbers import shown
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.deep.charts import NAMES, subject
from esscher.studies.deep.result import Curve, Deep, Growth, Means
from esscher.studies.deep.study import DeepStackStudy


def summary(found: Deep, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    cards, tables = [], []
    if found.layers:
        cards = _cards(found)
        tables = [] if found.is_gaussian else [_end_table(found, name)]
        tables += [] if found.terciles is None else [_tercile_table(found, name)]
        tables.append(_layer_table(found, name))
    return Summary("Error through depth", subject(found), cards, tables)


def _cards(found: Deep) -> list[Card]:
    """Errors of the first and last layer, growth, and the exponent behind the last."""
    layers, curve = found.layers, next(iter(found.layers[0].error))
    j = len(found.sizes) - 1 if found.is_gaussian else len(found.sizes) // 2
    n = f"n = {found.sizes[j]:,}"
    out = []
    for name, layer in (("first", layers[0]), ("last", layers[-1])):
        error = layer.error[curve]
        out.append(
            Card(
                shown(error.mean[j], "p2"),
                f"error after the {name} layer",
                f"{n}; {_interval_note(error.interval[j], 'p2')}",
            )
        )
    growth = found.growth[curve][j]
    if growth is not None:
        out.append(
            Card(
                shown(growth.factor, "d3"),
                "growth factor per layer",
                f"{n}; {_interval_note(growth.interval, 'd3')}",
            )
        )
    fit = layers[-1].fit[curve]
    if fit is not None:
        out.append(
            Card(
                shown(fit.exponent, "d3"),
                "exponent after the last layer",
                _interval_note(fit.interval, "d3"),
            )
        )
    return out


def _interval_note(ends: Any, how: str) -> str:
    if ends is None or ends[0] is None:
        return "no interval"
    return f"95% interval {shown(ends[0], how)} to {shown(ends[1], how)}"


def _end_table(found: Deep, name: str) -> Table:
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


def _tercile_table(found: Deep, name: str) -> Table:
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
            Column(
                "horizon",
                "median horizon H",
                "d2",
                "horizon_low",
                "horizon_high",
                help="with the smallest and the largest",
            ),
            Column("layer", "mean layer", "d1"),
            Column(
                "error", f"error at n = {found.sizes[middle]:,}", "p1", "error_low", "error_high"
            ),
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
    )


def _layer_table(found: Deep, name: str) -> Table:
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


# The result in a terminal.

#: Words for the numbers of a model's end.
END_TITLES = {
    "kl": "KL (nats)",
    "top1": "same top token",
    "perplexity": "perplexity",
    "cosine": "cosine",
}


def print_result(found: Deep, console: PlainConsole) -> None:
    """Print all layers, and the end of the model or the measured limit."""
    study = found.study
    if isinstance(study, DeepStackStudy):
        if found.layers:
            _print_stack(console, found, study)
        return
    if not found.layers:
        return
    for way in found.growth:
        _print_layers(console, found, way, study.model_record.name)
    _print_end(console, found)
    _print_terciles(console, found)
    console.explain(
        "n=...: relative error of the tokens behind the block, root mean square. At the middle "
        "size, median: of the tokens; fresh: error that the layer's own sample makes, relative "
        "to that of its attention output; growth: ratio of the error to that of the layer before; "
        "exponent: of error ~ C n^-beta, corrected for drawing without replacement. In brackets: "
        "half the width of the 95% interval over passages (draws of a passage averaged first; of a "
        "single passage over its draws), last digits. * marks exponents not to be trusted.",
    )


def _print_stack(console: PlainConsole, found: Deep, study: DeepStackStudy) -> None:
    sizes = found.sizes
    table = PlainTable(
        f"{study.depth} layers, d = {study.dim}, H = {study.horizon:g}: error of a token against "
        "its limit",
        least=("cov", "mean", "growth", "limit"),
    )
    names = ("layer", f"n={sizes[-1]}", "growth", "map", "mean", "cov", "limit")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for layer, limit in zip(found.layers, found.limit, strict=True):
        table.add_row(
            str(layer.layer),
            f"{100 * layer.error['map'].mean[-1]:.3g}%",
            _growth(layer.growth["map"][-1]),
            *(_exponent(layer.fit[metric]) for metric in ("map", "mean", "cov")),
            "" if limit.largest is None else f"{limit.largest:.1f}",
        )
    console.print(table)
    console.explain(
        "error: root mean square over tokens, relative; growth: ratio to the layer before, at the "
        "largest n; map, mean, cov: exponents of error ~ C n^-beta, in brackets half the width of "
        "the 95% interval (last digits), * marks those not to be trusted; limit: largest "
        f"deviation of the measured limit from the recursion, in standard errors{_bound(found)}.",
    )


def _bound(found: Deep) -> str:
    limit = found.limit[-1]
    if limit.bound is None or limit.doubt is not None:
        return ""
    return f" (the largest of {limit.entries} stays below {limit.bound:.1f} with 95%)"


def _print_layers(console: PlainConsole, found: Deep, way: str, name: str) -> None:
    sizes, middle = found.sizes, len(found.sizes) // 2
    shown = sorted({0, middle, len(sizes) - 1})
    table = PlainTable(
        f"{name}, {way} samples: relative error by layer",
        least=("median", "fresh", "growth", f"n={sizes[middle]}"),
    )
    for column in (
        "layer",
        *(f"n={sizes[j]}" for j in shown),
        "median",
        "fresh",
        "growth",
        "exponent",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for layer in found.layers:
        assert layer.attention is not None  # a layer of a model has them all
        assert layer.fresh is not None
        assert layer.typical is not None
        whole = layer.attention[way].mean[middle]
        share = layer.fresh[way].mean[middle] / whole if whole > 0 else 0.0
        table.add_row(
            str(layer.layer),
            *(f"{100 * layer.error[way].mean[j]:.3g}%" for j in shown),
            f"{100 * layer.typical[way].mean[middle]:.3g}%",
            f"{100 * share:.0f}%",
            _growth(layer.growth[way][middle]),
            _exponent(layer.fit[way]),
        )
    console.print(table)


def _print_end(console: PlainConsole, found: Deep) -> None:
    end = found.end.quantities
    table = PlainTable("End of the model against the dense one, ± half of the 95% interval")
    table.add_column("sampled", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    for name in end:
        table.add_column(END_TITLES[name], justify="right", no_wrap=True)
    for variant in found.end.damage:
        for j, n in enumerate(found.sizes):
            table.add_row(variant, str(n), *(_interval(end[name][variant], j) for name in end))
    if "perplexity" in end:
        blank = [""] * (len(end) - 1)
        table.add_row("nothing", "", *blank, _interval(end["perplexity"]["dense"], 0))
    console.print(table)
    for variant, damage in found.end.damage.items():
        if damage.fit is not None:
            what = "KL" if found.end.kl else "1 - cosine"
            console.say(f"{what}, {variant}: exponent {_exponent(damage.fit)}")


def _print_terciles(console: PlainConsole, found: Deep) -> None:
    terciles = found.terciles
    if terciles is None:
        return
    middle = len(found.sizes) // 2
    where = "in each layer" if terciles.scope == "layer" else "in the whole model"
    table = PlainTable(
        f"Thirds of the heads by horizon, {where}", least=("layer", "heads", "median", "common")
    )
    for name in ("third", "heads", "H from", "median", "to", "layer", "error", "common"):
        table.add_column(name, justify="left" if name == "third" else "right", no_wrap=True)
    for name, about in terciles.heads.items():
        horizons = (about.horizon_min, about.horizon_median, about.horizon_max)
        table.add_row(
            name,
            str(about.heads),
            *("-" if horizon is None else f"{horizon:.2f}" for horizon in horizons),
            "-" if about.mean_layer is None else f"{about.mean_layer:.1f}",
            *(_percent(part, name, middle) for part in (terciles.error, terciles.common)),
        )
    console.print(table)
    console.explain(
        "layer: mean over the heads; error behind the last block and share of it that is common "
        f"to all tokens, with n = {found.sizes[middle]}.",
    )


def _percent(errors: dict[str, Means], name: str, j: int) -> str:
    return f"{100 * errors[name].mean[j]:.3g}%" if name in errors else ""


def _interval(found: Curve, j: int) -> str:
    ends = found.interval[j]
    if ends is None:
        return f"{found.mean[j]:.3g}"
    return f"{found.mean[j]:.3g} ± {(ends[1] - ends[0]) / 2:.2g}"


def _growth(step: Growth | None) -> str:
    return "" if step is None else _with_interval(step.factor, *step.interval)


def _exponent(fit: Rate | None) -> str:
    if fit is None:
        return ""
    return _with_interval(fit.exponent, *fit.interval) + ("" if fit.trusted else "*")


def _with_interval(value: float, low: float | None, high: float | None) -> str:
    """Two decimals, with half the width of the interval in units of the last."""
    return with_error(value, None if low is None or high is None else (high - low) / 2, 2)
