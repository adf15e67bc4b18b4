"""The result as people see it: the tables, the cards and the sentences."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xarray as xr

from esscher.core.shown import between, rates_said, shown, two_digits
from esscher.core.variables import var, with_ends
from esscher.math.statistics.intervals import Ends, class_counts, rate_words
from esscher.runs.fits import Fit
from esscher.show.content import Card
from esscher.show.table_view import TableView
from esscher.studies.deep.combine import AGREES, SAME, UNDECIDED
from esscher.studies.deep.study import (
    WAYS,
    AnyDeep,
    DeepData,
    DeepStackSettings,
    DepthData,
    StackData,
)

TITLE = "Error through depth"
#: Variables that only tables show.
HEADS = var("", name="heads", format="n0", terminal="heads")
HORIZON = var(
    "bound",
    "H",
    name="horizon",
    terminal="H",
    help="horizon of the dense model: median over these heads, smallest and largest",
)


def is_stack(result: AnyDeep) -> bool:
    """Tell whether it is a Gaussian stack, not a model."""
    return isinstance(result.setup.settings, DeepStackSettings)


def shown_size(result: AnyDeep) -> int:
    """Return the size that tables of layers show: the largest of a stack, the middle of a model."""
    sizes = result.data["size"].values
    return int(sizes[-1 if is_stack(result) else len(sizes) // 2])


def layers(result: AnyDeep) -> xr.Dataset:
    """Return errors, growth and exponents by layer, at one size."""
    return result.data.sel(size=shown_size(result), drop=True)


def damage(result: AnyDeep) -> xr.Dataset:
    """Return the exponents of what becomes of a model's end, and which heads were sampled."""
    data = DeepData(result.data)
    table = data.damage.alone()
    sampled = table["sampled"].values.tolist()
    if "tercile" in data.dataset:
        horizon, tercile = data.horizon.values, data.tercile.values
        chosen = [horizon[(tercile == name) | (name in WAYS)] for name in sampled]
        ends = [(np.median(h), h.min(), h.max()) if h.size else [np.nan] * 3 for h in chosen]
        table["heads"] = "sampled", [len(h) for h in chosen]
        table["horizon"] = ("sampled", "bound"), np.array(ends)
    return table


TABLES = (
    TableView(
        "layers",
        "Relative error of the tokens by layer",
        ("curve", "layer"),
        (DepthData.error, DepthData.growth, Fit.exponent, Fit.trusted),
        layers,
        most=1000,
        page=False,
    ),
    TableView(
        "limit",
        "Measured limit of each layer against the recursion",
        ("layer",),
        (
            *(StackData.horizon, StackData.largest, StackData.largest_bound, StackData.agreement),
            *(StackData.rms, StackData.resolution, StackData.doubt),
        ),
        lambda result: result.data if is_stack(result) else result.data[[]],
        most=1000,
    ),
    TableView(
        "end",
        "End of the model against the dense one",
        ("sampled", "size"),
        (DeepData.kl, DeepData.top1, DeepData.perplexity, DeepData.ratio, DeepData.cosine),
        caption="With 95% intervals over passages, the draws of a passage averaged first.",
        most=1000,
    ),
    TableView(
        "damage",
        "What was sampled, and the exponent of the damage",
        ("sampled",),
        (HEADS, HORIZON, Fit.exponent, Fit.trusted, Fit.reasons),
        damage,
        caption="Damage: the KL to the dense model, or 1 - cosine.",
    ),
    TableView(
        "heads",
        "Heads by horizon",
        ("layer", "head"),
        (DeepData.horizon, DeepData.tercile),
        most=0,
        page=False,
    ),
    TableView(
        "errors",
        "All layers",
        ("layer", "curve", "size"),
        (DepthData.error, DepthData.growth, Fit.exponent, Fit.trusted, Fit.reasons),
        most=0,
        caption="95% intervals over replicates: samples of tokens, or passages, the draws of a "
        "passage averaged first (of a single passage over its draws: other texts may differ "
        "more).",
    ),
)


def subject(result: AnyDeep) -> str:
    """Return what was measured, in a line."""
    setup, settings = result.setup, result.setup.settings
    if isinstance(settings, DeepStackSettings):
        return (
            f"Gaussian stack, {settings.depth} layers, d = {settings.dim}, "
            f"H = {settings.horizon:g}, residual {settings.residual:g}, "
            f"{settings.replicates} replicates"
        )
    return (
        f"{setup.model.name} on {setup.text.source}, {settings.passages} passages of "
        f"{settings.context:,} tokens, {settings.draws} draws"
    )


def headline(result: AnyDeep) -> str:
    """Return the answer in a few sentences."""
    return _of_stack(result) if is_stack(result) else _of_model(result)


def _of_model(result: AnyDeep) -> str:
    """What the middle size costs a model, and how fast the damage falls."""
    data, way = layers(result), str(result.data["curve"].values[0])

    def at(quantity: str, factor: float = 1.0, how: str = "two") -> str:
        value, (low, high) = with_ends(factor * data[quantity].sel(sampled=way))
        return between(value, (low, high), how)

    keys = round(float(data["eligible"].mean()))
    text = f"With {shown_size(result)} of {keys} keys drawn in every layer ({way}), "
    if "kl" in data:
        text += (
            f"the next-token distribution is {at('kl')} nats from dense (KL), "
            f"the most likely token is the same in {at('top1', 100)}%, and "
            f"perplexity is {at('ratio')} times that of dense."
        )
    else:
        text += f"the embedding's cosine to dense is {at('cosine', how='d3')}."
    sentences = [text]
    value, (low, high) = with_ends(data["growth_per_layer"].sel(curve=way))
    if not np.isnan(value):
        factor = between(value, (low, high))
        if low > 1 or high < 1:
            verb = "grows" if low > 1 else "shrinks"
            sentences.append(
                f"The relative error of the tokens {verb} by a factor {factor} per layer."
            )
        else:
            sentences.append(
                "Whether the relative error of the tokens grows from layer to layer is undecided "
                f"(factor {factor} per layer)."
            )
    if fits := _intervals(data["exponent"].sel(curve=way)):
        sentences.append(f"The error falls {rates_said(class_counts(fits), 'layer')}.")
    value, (low, high) = with_ends(data["damage_exponent"].sel(sampled=way))
    if not np.isnan(value):
        name, exponent = "KL" if "kl" in data else "1 - cosine", between(value, (low, high))
        if low > 0:
            sentences.append(f"{name} falls like n^-{exponent}.")
        elif high < 0:
            sentences.append(f"{name} rises with n (exponent {exponent}).")
        else:
            sentences.append(f"Whether {name} falls with n is undecided (exponent {exponent}).")
    if "high_over_low" in data:
        value, (low, high) = with_ends(data["high_over_low"])
        sentences.append(
            "Sampling only the high-horizon third of the heads does "
            f"{between(value, (low, high))} times the damage of the low-horizon third"
            + ("." if low > 1 or high < 1 else ", which may be chance.")
        )
    if data.sizes["passage"] == 1:
        sentences.append(
            "There is one passage: intervals cover the draws of its keys, not other texts."
        )
    return " ".join(sentences)


def _of_stack(result: AnyDeep) -> str:
    """How errors grow in a Gaussian stack, and whether its limit is the recursion."""
    data = layers(result).sel(curve="map")
    first, last = (data.isel(layer=i) for i in (0, -1))
    errors = [two_digits(100 * float(part["error"][0])) for part in (first, last)]
    depth = data.sizes["layer"]
    text = (
        f"At n = {shown_size(result):,} a token is {errors[0]}% off its limit after one "
        f"layer and {errors[1]}% after {depth}"
    )
    value, ends = with_ends(data["growth_per_layer"])
    if not np.isnan(value):
        text += f", a factor {between(value, ends)} per layer"
    fits = [with_ends(part["exponent"]) for part in (first, last)]
    if not any(np.isnan(value) for value, _ in fits):
        said = [f"{between(value, ends)} ({rate_words(ends)})" for value, ends in fits]
        text += f"; its exponent is {said[0]} after the first layer and {said[1]} after the last"
        counts = class_counts(_intervals(data["exponent"]))
        text += f". The error falls {rates_said(counts, 'layer')}"
    agreement = str(last["agreement"].values)
    if agreement == UNDECIDED:
        doubt = str(last["doubt"].values)
        return f"{text}. Whether the recursion gives the limit is undecided: {doubt}."
    within = f"agrees with the recursion within {100 * SAME:g}% of a variance"
    return (
        f"{text}. The measured limit of depth {depth} "
        f"{within if agreement == AGREES else 'DIFFERS FROM the recursion'}: the largest of "
        f"{data.sizes['entry']} deviations is {float(last['largest']):.2f} standard errors (bound "
        f"{float(last['largest_bound']):.2f}; a standard error is "
        f"{100 * float(last['resolution']):.2g}% of a variance)."
    )


def notes(result: AnyDeep) -> list[str]:
    """Return what is said below the tables of a terminal."""
    said = [f"{subject(result)}; errors and growth at n = {shown_size(result):,}."]
    if "dense_perplexity" in result.data:
        dense = between(*with_ends(result["dense_perplexity"]), "s3")
        said.append(f"Perplexity of the dense model: {dense}.")
    return said


def cards(result: AnyDeep) -> list[Card]:
    """Return the numbers that matter."""
    data = layers(result).isel(curve=0)
    at = f"n = {shown_size(result):,}; "

    def card(array: xr.DataArray, what: str, how: str, note: str = at) -> list[Card]:
        value, (low, high) = with_ends(array)
        known = f"95% interval {shown(low, how)} to {shown(high, how)}"
        interval = "no interval" if np.isnan(low) else known
        return [] if np.isnan(value) else [Card(shown(value, how), what, note + interval)]

    return [
        *card(data["error"].isel(layer=0), "error after the first layer", "s3"),
        *card(data["error"].isel(layer=-1), "error after the last layer", "s3"),
        *card(data["growth_per_layer"], "growth factor per layer", "d3"),
        *card(data["exponent"].isel(layer=-1), "exponent after the last layer", "d3", ""),
    ]


def _intervals(exponents: xr.DataArray) -> Iterable[Ends]:
    """Intervals of the exponents that are known."""
    rows = exponents.transpose(..., "bound").values.tolist()
    return [(low, high) for value, low, high in rows if value == value]
