"""The result as people see it: the tables and the sentences."""

from __future__ import annotations

import numpy as np
import xarray as xr

from esscher.core.shown import between, rates_said, two_digits
from esscher.core.variables import with_ends
from esscher.math.statistics.intervals import Ends, class_counts
from esscher.runs.fits import Fit
from esscher.show.table_view import TableView
from esscher.studies.deep.combine import AGREES, SAME, UNDECIDED
from esscher.studies.deep.study import (
    AnyDeep,
    DeepData,
    DeepStackSettings,
    DepthData,
    StackData,
)

TITLE = "Error through depth"


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
        "Exponent of the damage",
        ("sampled",),
        (Fit.exponent, Fit.trusted, Fit.reasons),
        lambda result: DeepData(result.data).damage.alone(),
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
    """Say what the middle size costs a model, and how fast the damage falls."""
    data, way = layers(result), str(result.data["curve"].values[0])

    def said(name: str, **labels: str) -> str:
        value, ends = with_ends(data[name].sel(labels))
        return "" if np.isnan(value) else between(value, ends, "d3" if name == "cosine" else "two")

    keys, decoder = round(float(data["eligible"].mean())), "kl" in data
    text = f"With {shown_size(result)} of {keys} keys drawn in every layer ({way}), "
    if decoder:
        text += (
            f"the next-token distribution is {said('kl', sampled=way)} nats from dense (KL), and "
            f"perplexity is {said('ratio', sampled=way)} times that of dense."
        )
    else:
        text += f"the embedding's cosine to dense is {said('cosine', sampled=way)}."
    if factor := said("growth_per_layer", curve=way):
        text += f" The relative error of the tokens changes by a factor {factor} per layer."
    if fits := _intervals(data["exponent"].sel(curve=way)):
        text += f" The error falls {rates_said(class_counts(fits), 'layer')}."
    if exponent := said("damage_exponent", sampled=way):
        text += f" {'KL' if decoder else '1 - cosine'} goes like n^-b, b = {exponent}."
    if "high_over_low" in data:
        text += (
            " Sampling only the high-horizon third of the heads does "
            f"{said('high_over_low')} times the damage of the low-horizon third."
        )
    if data.sizes["passage"] == 1:
        text += " There is one passage: intervals cover the draws of its keys, not other texts."
    return text


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
    if fits := _intervals(data["exponent"]):
        text += f". The error falls {rates_said(class_counts(fits), 'layer')}"
    agreement = str(last["agreement"].values)
    if agreement == UNDECIDED:
        doubt = str(last["doubt"].values)
        return f"{text}. Whether the recursion gives the limit is undecided: {doubt}."
    within = f"agrees with the recursion within {100 * SAME:g}% of a variance"
    return (
        f"{text}. The measured limit of depth {depth} "
        f"{within if agreement == AGREES else 'DIFFERS FROM the recursion'}: the largest of "
        f"{data.sizes['entry']} deviations is {float(last['largest']):.2f} standard errors (bound "
        f"{float(last['largest_bound']):.2f})."
    )


def notes(result: AnyDeep) -> list[str]:
    """Return what is said below the tables of a terminal."""
    said = [f"{subject(result)}; errors and growth at n = {shown_size(result):,}."]
    if "dense_perplexity" in result.data:
        dense = between(*with_ends(result["dense_perplexity"]), "s3")
        said.append(f"Perplexity of the dense model: {dense}.")
    return said


def _intervals(exponents: xr.DataArray) -> list[Ends]:
    """Intervals of the exponents that are known."""
    rows = exponents.transpose(..., "bound").values.tolist()
    return [(low, high) for value, low, high in rows if value == value]
