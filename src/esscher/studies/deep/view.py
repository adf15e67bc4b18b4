"""The result in a terminal, and on a page of a report."""

from __future__ import annotations

from typing import Any

from esscher.core.codec import Estimate
from esscher.core.shown import shown, with_error
from esscher.math.statistics import Rate
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.deep.charts import NAMES, subject
from esscher.studies.deep.result import STACK_CURVES, Deep

#: Words for the numbers of a model's end.
END_TITLES = {
    "kl": "KL (nats)",
    "top1": "same top token",
    "perplexity": "perplexity",
    "ratio": "over dense",
    "cosine": "cosine",
}


def print_result(result: Deep, console: PlainConsole) -> None:
    """Print all layers, and the end of the model or the measured limit."""
    if not result.layers:
        return
    if result.is_gaussian:
        _print_stack(console, result)
        return
    sizes, middle = result.sizes, len(result.sizes) // 2
    columns = sorted({0, middle, len(sizes) - 1})
    for way in result.growth:
        table = PlainTable(
            f"{subject(result)}, {way} samples: relative error by layer",
            least=("growth", f"n={sizes[middle]}"),
        )
        for column in ("layer", *(f"n={sizes[j]}" for j in columns), "growth", "exponent"):
            table.add_column(column, justify="right", no_wrap=True)
        for layer in result.layers:
            table.add_row(
                str(layer.layer),
                *(f"{100 * layer.error[way].mean[j]:.3g}%" for j in columns),
                _growth(layer.growth[way][middle]),
                _exponent(layer.fit[way]),
            )
        console.print(table)
    _print_end(console, result)
    if result.terciles is not None:
        where = "in each layer" if result.terciles.scope == "layer" else "in the whole model"
        table = PlainTable(f"Thirds of the heads by horizon, {where}")
        for name in ("third", "heads", "H from", "median", "to"):
            table.add_column(name, justify="left" if name == "third" else "right", no_wrap=True)
        for name, third in result.terciles.heads.items():
            horizons = (third.horizon_min, third.horizon_median, third.horizon_max)
            table.add_row(name, str(third.heads), *(shown(h, "d2", "-") for h in horizons))
        console.print(table)
    console.explain(
        "n=...: relative error of the tokens behind the block, root mean square; growth: ratio of "
        "the error to that of the layer before, at the middle size; exponent: of error ~ C "
        "n^-beta, corrected for drawing without replacement. In brackets: half the width of the "
        "95% interval over passages (draws of a passage averaged first; of a single passage over "
        "its draws), last digits. * marks exponents not to be trusted.",
    )


def _print_stack(console: PlainConsole, result: Deep) -> None:
    table = PlainTable(
        f"{subject(result)}: error of a token against its limit",
        least=("cov", "mean", "growth", "limit"),
    )
    for name in ("layer", f"n={result.sizes[-1]}", "growth", *STACK_CURVES, "limit"):
        table.add_column(name, justify="right", no_wrap=True)
    for layer, limit in zip(result.layers, result.limit, strict=True):
        table.add_row(
            str(layer.layer),
            f"{100 * layer.error['map'].mean[-1]:.3g}%",
            _growth(layer.growth["map"][-1]),
            *(_exponent(layer.fit[curve]) for curve in STACK_CURVES),
            "" if limit.largest is None else f"{limit.largest:.1f}",
        )
    console.print(table)
    last, bound = result.limit[-1], ""
    if last.bound is not None and last.doubt is None:
        bound = f" (the largest of {last.entries} stays below {last.bound:.1f} with 95%)"
    console.explain(
        "error: root mean square over tokens, relative; growth: ratio to the layer before, at the "
        "largest n; map, mean, cov: exponents of error ~ C n^-beta, in brackets half the width of "
        "the 95% interval (last digits), * marks those not to be trusted; limit: largest "
        f"deviation of the measured limit from the recursion, in standard errors{bound}.",
    )


def _print_end(console: PlainConsole, result: Deep) -> None:
    def value(name: str, variant: str, j: int) -> str:
        curve = result.end[name].get(variant)
        if curve is None or j >= len(curve.mean):
            return ""
        ends = curve.interval[j]
        half = "" if ends is None else f" ± {(ends[1] - ends[0]) / 2:.2g}"
        return f"{curve.mean[j]:.3g}{half}"

    table = PlainTable("End of the model against the dense one, ± half of the 95% interval")
    table.add_column("sampled", no_wrap=True)
    for name in ("n", *(END_TITLES[name] for name in result.end)):
        table.add_column(name, justify="right", no_wrap=True)
    for variant in result.damage:
        for j, n in enumerate(result.sizes):
            table.add_row(variant, str(n), *(value(name, variant, j) for name in result.end))
    if "perplexity" in result.end:
        table.add_row("nothing", "", *(value(name, "dense", 0) for name in result.end))
    console.print(table)
    for variant, fit in result.damage.items():
        if fit is not None:
            what = "KL" if "kl" in result.end else "1 - cosine"
            console.say(f"{what}, {variant}: exponent {_exponent(fit)}")


def _growth(step: Estimate | None) -> str:
    """Two decimals, with half the width of the interval in units of the last."""
    if step is None or step.value is None:
        return ""
    low, high = step.interval
    return with_error(step.value, None if low is None or high is None else (high - low) / 2, 2)


def _exponent(fit: Rate | None) -> str:
    if fit is None:
        return ""
    number = _growth(Estimate(value=fit.exponent, interval=fit.interval))
    return number + ("" if fit.trusted else "*")


def summary(result: Deep, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    tables: list[Table] = []
    if not result.layers:
        return Summary("Error through depth", subject(result), [], tables)
    if not result.is_gaussian:
        tables.append(
            Table(
                title="The end of the model in numbers",
                name=f"{name}-end",
                columns=[
                    Column("quantity", "quantity"),
                    Column("variant", "drawn"),
                    Column("n", "keys n", "n0", missing="all"),
                    Column("mean", "value", "s3", "low", "high"),
                ],
                data=data_of(result.end_table()),
                caption="With 95% intervals over passages, the draws of a passage averaged first.",
            )
        )
    frame = result.table()
    frame["curve"] = [NAMES.get(curve, curve) for curve in frame["curve"]]
    over = "passages, the draws of a passage averaged first"
    if result.is_gaussian:
        over = "replicates"
    elif len(result.eligible) == 1:
        over = "the draws of one passage, if there are several: other texts may differ more"
    tables.append(
        Table(
            title="All layers",
            name=f"{name}-layers",
            columns=[
                Column("layer", "layer", "n0"),
                Column("curve", "error of the" if result.is_gaussian else "samples"),
                Column("n", "n", "n0"),
                Column("error", "relative error", "p2", "error_low", "error_high"),
                Column("growth", "growth", "d3", "growth_low", "growth_high"),
                Column("exponent", "exponent", "d3", "exponent_low", "exponent_high"),
                Column("trusted", "trusted"),
            ],
            data=data_of(frame),
            caption=f"95% intervals over {over}.",
        )
    )
    return Summary("Error through depth", subject(result), _cards(result), tables)


def _cards(result: Deep) -> list[Card]:
    """Errors of the first and last layer, growth, and the exponent behind the last."""
    layers, curve = result.layers, next(iter(result.layers[0].error))
    j = len(result.sizes) - 1 if result.is_gaussian else len(result.sizes) // 2
    n = f"n = {result.sizes[j]:,}; "

    def note(ends: Any, how: str) -> str:
        if ends is None or ends[0] is None:
            return "no interval"
        return f"95% interval {shown(ends[0], how)} to {shown(ends[1], how)}"

    cards = []
    for name, layer in (("first", layers[0]), ("last", layers[-1])):
        mean, ends = layer.error[curve].mean[j], layer.error[curve].interval[j]
        cards.append(Card(shown(mean, "p2"), f"error after the {name} layer", n + note(ends, "p2")))
    growth, fit = result.growth[curve][j], layers[-1].fit[curve]
    if growth is not None:
        interval = n + note(growth.interval, "d3")
        cards.append(Card(shown(growth.value, "d3"), "growth factor per layer", interval))
    if fit is not None:
        interval = note(fit.interval, "d3")
        cards.append(Card(shown(fit.exponent, "d3"), "exponent after the last layer", interval))
    return cards
