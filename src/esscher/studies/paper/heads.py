"""Measurements of the heads of an encoder: exponents beside Psi, scaled tilts, the argmax.

All tokens of a text are one cloud, of which n are drawn with replacement, as in a pooled probe:
exponents are those of :func:`esscher.probe` with the same options and seed. What one pass predicts
besides is left out here, which is most of a probe's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.core.variables import BOUNDS, bounds, joined
from esscher.engine.sampled.sizes import METRICS
from esscher.math.statistics import fit_rate
from esscher.math.statistics.intervals import mean_bounds
from esscher.studies.paper.study import (
    Exponents,
    HeadErrors,
    HeadExponents,
    Measurement,
    PaperSettings,
    Unit,
    by_scale,
)
from esscher.studies.paper.synthetic import geometric

if TYPE_CHECKING:
    from esscher.engine.models.loaded import LoadedModel
    from esscher.engine.models.weights import HeadWeights
    from esscher.engine.text.collect import CloudFile

#: Units of a measurement of all layers: unit i has the layers i, i + 6 and so on.
PARTS = 6
#: Longest passage, as in a probe.
CONTEXT = 512
#: Queries whose logits are held at a time.
QUERIES = 1_024


@lru_cache(maxsize=2)
def loaded_model(name: str) -> LoadedModel:
    """Return a model; a process loads it once."""
    from esscher.engine.models.load import load_model

    return load_model(name)


@lru_cache(maxsize=2)
def _cloud(
    settings: PaperSettings, layers: tuple[int, ...], tokens: int
) -> tuple[CloudFile, dict[int, tuple[HeadWeights, Array | None]]]:
    """Tokens of some layers; by layer its weights, and the covariance of hidden states."""
    from esscher.engine.models.weights import head_weights
    from esscher.engine.sampled.pooled import PassageMoments
    from esscher.engine.sampled.sizes import FEWEST_KEYS
    from esscher.engine.text.collect import collect_cloud
    from esscher.engine.text.packing import read_passages

    loaded = loaded_model(settings.encoder)
    context = loaded.outline.context(None, CONTEXT)
    passages = read_passages(
        loaded, settings.text, tokens=tokens, context=context, least=FEWEST_KEYS
    )
    tokens = min(tokens, passages.text_tokens)
    weights = {layer: head_weights(loaded, layer) for layer in layers}
    seen = PassageMoments(passages, tokens, [at for at in layers if weights[at].linear])
    cloud = collect_cloud(loaded, passages, tokens=tokens, layers=layers, watch=seen.take)
    return cloud, {layer: (weights[layer], seen.covariance(layer)) for layer in layers}


def _layers(settings: PaperSettings, part: int) -> tuple[int, ...]:
    return tuple(range(part, loaded_model(settings.encoder).shape.layers, PARTS))


def set_exponents(
    data: Exponents, errors: Array, sizes: Sequence[int], seed: int, heads: int = 1
) -> None:
    """Fit exponents to errors with axes [..., replicate, size].

    Intervals are at 95% for a head, and for all ``heads`` together. Where errors are 0 at most
    sizes there is no exponent.
    """

    def fitted(replicates: Array) -> tuple[list[float], list[float], float, str, bool]:
        try:
            rate = fit_rate(replicates, sizes, seed=seed)
        except InputError:  # errors are 0 at most sizes
            return bounds(None, None), bounds(None, None), float("nan"), "none", False
        level = 1 - 0.05 / heads
        joint = rate if heads == 1 else fit_rate(replicates, sizes, seed=seed, level=level)
        laws = rate.selection.laws
        over = laws["logarithmic"].criterion - laws["power"].criterion if laws else float("nan")
        ends = bounds(rate.exponent, rate.interval), bounds(rate.exponent, joint.interval)
        return *ends, over, rate.verdict, rate.trusted

    lead = errors.shape[:-2]
    answers = [fitted(errors[place]) for place in np.ndindex(lead)]
    columns: Any = list(zip(*answers, strict=True)) or [[]] * 5  # of no layer
    data.exponent, data.joint = (np.reshape(column, (*lead, 3)) for column in columns[:2])
    data.over_log, data.law = (np.reshape(column, lead) for column in columns[2:4])
    data.trusted = np.reshape(np.array(columns[4], bool), lead)


def measure_heads(unit: Unit, settings: PaperSettings) -> HeadExponents:
    """Psi in both conventions, exponents, and what the heads of a layer have in common."""
    from esscher.engine.sampled.layer import output_gram
    from esscher.engine.sampled.pooled import measure_pooled
    from esscher.studies.probe.combine import amplification, effective_heads
    from esscher.studies.probe.measure import one_sided_psi

    sizes, seed, layers = tuple(unit["sizes"]), settings.seed, _layers(settings, unit["part"])
    shape = loaded_model(settings.encoder).shape
    data = HeadExponents.new(layer=layers, head=range(shape.heads), metric=METRICS)
    horizon, one_sided = np.full((2, len(layers), shape.heads), np.nan)
    shared = np.full((2, len(layers), len(BOUNDS)), np.nan)
    errors = np.empty((len(layers), shape.heads, len(METRICS), unit["replicates"], len(sizes)))
    for i, layer in enumerate(layers):
        cloud, weights = _cloud(settings, layers, unit["tokens"])
        gram = output_gram(weights[layer][0].W_o)
        measured, numbers = measure_pooled(cloud, layer, sizes, unit["replicates"], seed, gram)
        errors[i] = measured.errors[:, : shape.heads].swapaxes(0, 1)  # the last one: their sum
        horizon[i] = [head.coupled.horizon for head in numbers]
        psi = one_sided_psi(*weights[layer])
        if psi is not None:
            one_sided[i] = [psi[head] for head in measured.heads]
        if measured.products is not None and len(measured.heads) > 1:
            last = measured.products[0][:, -1]  # of mean outputs, at the largest size
            shared[:, i] = effective_heads(last, seed), amplification(last, seed)
    data.psi, data.psi_one_sided = horizon**2, one_sided
    data.effective_heads, data.amplification = shared
    data.largest = np.full(len(layers), sizes[-1])
    set_exponents(data.fits, errors, sizes, seed, shape.layers * shape.heads)
    return data


def measure_alpha(unit: Unit, settings: PaperSettings) -> HeadErrors:
    """Exponents of the mean in the second layer: all alphas see the same samples."""
    from esscher.engine.sampled.pooled import measure_pooled

    shape = loaded_model(settings.encoder).shape
    layer = min(1, shape.layers - 1)
    cloud, _ = _cloud(settings, (layer,), unit["tokens"])
    measured, _ = measure_pooled(
        cloud, layer, tuple(unit["sizes"]), unit["replicates"], settings.seed, None, unit["alpha"]
    )
    data = HeadErrors.new(layer=[layer], head=measured.heads, metric=["mean"])
    mean = measured.errors[METRICS.index("mean"), : shape.heads]
    set_exponents(data.fits, mean[None, :, None], unit["sizes"], settings.seed)
    return data


def summarise_alpha(
    units: Sequence[Unit], cells: Sequence[xr.Dataset], settings: PaperSettings
) -> Exponents:
    """Exponents by alpha."""
    alphas = [unit["alpha"] for unit in units]
    scaled = [cell.expand_dims(alpha=[at]) for cell, at in zip(cells, alphas, strict=True)]
    return Exponents(joined(scaled, "alpha"), ("alpha", "layer", "head"))


def argmax_errors(
    queries: NDArray[np.float32],
    keys: NDArray[np.float32],
    values: NDArray[np.float32],
    sizes: Sequence[int],
    replicates: int,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Errors of attention that takes the key with the largest logit, among n keys of a cloud.

    All queries see the same n keys, drawn with replacement; smaller samples are the beginnings of
    larger ones. The limit of a query is the value of the largest of all keys.

    Parameters
    ----------
    queries, keys, values
        Rows of a head.
    sizes, replicates, rng
        Sizes of samples, how many there are, and their random stream.

    Returns
    -------
    Mean over the queries of output less limit, axes [replicate, size, coordinate], and of its
    square, axes [replicate, size].
    """
    samples = rng.integers(len(keys), size=(replicates, sizes[-1]))
    shift = np.zeros((replicates, len(sizes), values.shape[1]))
    square = np.zeros((replicates, len(sizes)))
    for start in range(0, len(queries), QUERIES):
        asking = queries[start : start + QUERIES]
        every = np.arange(len(asking))
        limit = values[(asking @ keys.T).argmax(axis=1)].astype(np.float64)
        for r, sample in enumerate(samples):
            logits = asking @ keys[sample].T
            largest = np.full(len(asking), -np.inf, dtype=np.float32)
            chosen = np.zeros(len(asking), dtype=np.int64)
            first = 0
            for j, n in enumerate(sizes):
                place = logits[:, first:n].argmax(axis=1) + first
                better = logits[every, place] > largest
                chosen[better] = sample[place[better]]
                largest[better] = logits[every, place][better]
                gap = values[chosen] - limit
                shift[r, j] += gap.sum(axis=0)
                square[r, j] += (gap**2).sum()
                first = n
    return shift / len(queries), square / len(queries)


def measure_argmax(unit: Unit, settings: PaperSettings) -> HeadErrors:
    """Errors of the mean output and of the map of every head."""
    layers, replicates = _layers(settings, unit["part"]), unit["replicates"]
    heads = loaded_model(settings.encoder).shape.heads
    cloud, _ = _cloud(settings, layers, unit["tokens"])
    sizes = [unit["first"]]
    while 2 * sizes[-1] <= cloud.rows / 4:
        sizes.append(2 * sizes[-1])
    errors = np.empty((replicates, len(layers), heads, 2, len(sizes)))
    for i, layer in enumerate(layers):
        view = cloud.layer(layer)
        for head in view.heads:
            q, k, v = map(np.array, view.head(head))
            rng = random_stream(settings.seed, "argmax of heads", layer, head)
            shift, square = argmax_errors(q, k, v, sizes, replicates, rng)
            whole = np.concatenate(
                [v[(q[s : s + QUERIES] @ k.T).argmax(axis=1)] for s in range(0, len(q), QUERIES)]
            )
            norm = float(np.sqrt((whole.astype(np.float64) ** 2).sum(axis=1).mean()))
            errors[:, i, head, 0] = np.linalg.norm(shift, axis=2) / norm
            errors[:, i, head, 1] = np.sqrt(square) / norm
    data = HeadErrors.new(layer=layers, head=range(heads), metric=["mean", "map"], size=sizes)
    data.error, data.tokens = mean_bounds(errors, 0.0), cloud.rows
    set_exponents(data.fits, np.moveaxis(errors, 0, -2), sizes, settings.seed)
    return data


ALL = range(PARTS)
SCALES: dict[str, dict[str, Unit]] = {
    "heads": by_scale(
        "part tokens sizes replicates",
        (ALL, 6_144, geometric(64, 1_024, 5), 32),
        (ALL, 9_216, geometric(64, 2_048, 6), 160),
        (ALL, 9_216, geometric(64, 384, 10), 500),
        (ALL, 9_216, geometric(1_000, 3_000, 12), 500),
    ),
    "alpha": {
        scale: {
            "alpha": [float(f"{alpha:.6g}") for alpha in np.geomspace(first, 10, count)],
            "tokens": tokens,
            "sizes": sizes,
            "replicates": replicates,
        }
        for scale, first, count, tokens, sizes, replicates in (
            ("quick", 0.1, 4, 4_096, geometric(64, 1_024, 5), 32),
            ("standard", 0.1, 7, 9_216, geometric(64, 2_048, 6), 96),
            ("paper", 0.01, 13, 9_216, geometric(64, 2_048, 10), 200),
        )
    },
    "argmax": {
        "quick": {"part": ALL, "tokens": 2_048, "replicates": 48, "first": 16},
        "standard": {"part": ALL, "tokens": 4_096, "replicates": 64, "first": 16},
        "paper": {"part": ALL, "tokens": 9_216, "replicates": 256, "first": 16},
    },
}
MEASUREMENTS = {
    "heads": Measurement(SCALES["heads"], measure_heads, "layer", ("part",)),
    "alpha": Measurement(SCALES["alpha"], measure_alpha, summarise_alpha, ("alpha",)),
    "argmax": Measurement(SCALES["argmax"], measure_argmax, "layer", ("part",)),
}
