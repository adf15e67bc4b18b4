"""The result in a terminal."""

from __future__ import annotations

from esscher.core.shown import with_error
from esscher.math.statistics.records import FittedRate
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.deep.records import Curve, Growth, Means
from esscher.studies.deep.result import Deep
from esscher.studies.deep.study import DeepStackStudy

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


def _exponent(fit: FittedRate | None) -> str:
    if fit is None:
        return ""
    return _with_interval(fit.exponent, *fit.interval) + ("" if fit.trusted else "*")


def _with_interval(value: float, low: float | None, high: float | None) -> str:
    """Two decimals, with half the width of the interval in units of the last."""
    return with_error(value, None if low is None or high is None else (high - low) / 2, 2)
