"""Attention to a sample of the keys, with weights that make it consistent.

Some keys of a passage are kept for certain, n of the E others are drawn without replacement. A
query attends to its own token and the kept ones with weight 1, and to the sampled ones among those
it sees with the weight E_i / n_i: E_i counts the keys of the sampled class that query i sees (its
own token is not one of them), n_i those of them that were drawn. Given n_i they are a uniform
sample of n_i out of E_i, so that numerator and denominator of the softmax are both unbiased. In a
decoder without windows E_i = E and n_i = n for every query; with n = E it is dense attention. Keys
that were drawn with replacement have this weight as often as they were drawn.

In a decoder the first three quarters of a passage are the prefix, whose keys are sampled; the
queries are the last quarter. In an encoder all tokens are queries and keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models.choice import AnyModel, opened_model
from esscher.engine.models.inputs import QUERY_BLOCK, LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.reading import Pass, PassageReader, check_supported, compare_laws, surprise
from esscher.engine.sampled.sizes import PREFIX
from esscher.engine.text.packing import Passage, first_passages
from esscher.math.coupling import CoupledMoments
from esscher.math.statistics import keys_apart
from esscher.runs.executors import Task
from esscher.runs.folder import Run
from esscher.runs.study import Setup, Work
from esscher.studies.deep.study import TERCILES, DeepSettings, DeepStudy, Horizons, PassageErrors

#: By name of a variant: how its keys are drawn, and which heads see the sample only, [layer, head]
#: (None for all).
Variants: TypeAlias = Mapping[str, tuple[str, NDArray[np.bool_] | None]]


def draw_keys(
    certain: NDArray[np.bool_], seed: int, passage: int, way: str, draw: int, layer: int, n: int
) -> Tensor:
    """True at the n keys of a layer that are drawn, [length]; none of them is certain.

    They are the first n of one random order, a function of (seed, passage, way, draw, layer); of
    all but the layer if they are ``"shared"``.
    """
    index = (passage, draw, layer) if way == "independent" else (passage, draw)
    order = random_stream(seed, f"deep {way}", *index).permutation(np.flatnonzero(~certain))
    drawn = torch.zeros(len(certain), dtype=torch.bool)
    drawn[torch.from_numpy(order[:n])] = True
    return drawn


def log_weights(
    inputs: LayerInputs, seen: Tensor, certain: Tensor, drawn: Tensor, queries: slice
) -> Tensor:
    """Logarithms of the weights, [queries, n_k]: ``ln(E_i / n_i)``, 0, or ``-inf`` if left out.

    Parameters
    ----------
    inputs
        The layer. Its keys are the last ones of the passage: a sliding cache has lost its start.
    seen
        Who sees whom, bool [queries, n_k].
    certain
        True at positions that every query keeps, [length].
    drawn
        True at positions that were drawn, or how often each was, [length]; none of them is certain.
    queries
        The block of queries.
    """
    keys, device = inputs.k.shape[2], seen.device
    certain, drawn = (part[-keys:].to(device) for part in (certain, drawn))
    places = torch.arange(inputs.q.shape[2], device=device)[queries] + inputs.offset
    itself = torch.zeros_like(seen)
    itself[torch.arange(len(places), device=device), places] = True
    in_class = seen & ~certain & ~itself
    times = in_class * drawn
    ratio = in_class.sum(-1, keepdim=True) / times.sum(-1, keepdim=True).clamp(min=1)
    weights = torch.zeros(seen.shape, device=device)
    weights[in_class] = -torch.inf
    return torch.where(times > 0, (times * ratio).log(), weights)


def sampled_attention(
    inputs: LayerInputs, certain: Tensor, drawn: Tensor, heads: Collection[int] | None = None
) -> Tensor:
    """Attention output [1, heads, n_q, d_v] over a sample of the keys.

    Parameters
    ----------
    inputs
        The layer, for one passage.
    certain, drawn
        The keys that are there; see :func:`log_weights`.
    heads
        Heads that see the sample only; the others attend to all keys. All heads if left out.
    """
    chosen = range(inputs.q.shape[1]) if heads is None else sorted(heads)
    output = inputs.q.new_empty(inputs.output_shape) if heads is None else inputs.original().clone()
    for start in range(0, inputs.q.shape[2], QUERY_BLOCK):
        queries = slice(start, start + QUERY_BLOCK)
        seen = inputs.visible(queries)[0]
        weights = [log_weights(inputs, rows, certain, drawn, queries) for rows in seen]
        for head in chosen:
            logits = inputs.logits(0, head, queries, torch.float32)
            logits += weights[min(head, len(weights) - 1)]
            value = inputs.v[0, head // inputs.group].to(torch.float32)
            output[0, head, queries] = (torch.softmax(logits, dim=-1) @ value).to(output.dtype)
    return output


class SampledPassage(PassageReader):
    """A passage ready to be read many times, with different samples of its keys.

    Attributes
    ----------
    certain
        True at keys that are kept for certain: position 0, delimiters, and in a decoder the last
        quarter, which attends to itself as usual.
    """

    def __init__(self, loaded: LoadedModel, passage: Passage) -> None:
        super().__init__(loaded, passage, int(PREFIX * len(passage.ids)) if loaded.causal else 0)
        self.certain = certain_keys(passage, loaded.causal)

    @cached_property
    def dense(self) -> Pass:
        """The passage as the model reads it."""
        return self.read(lambda inputs: None)

    def cell(self, variants: Variants, settings: DeepSettings) -> PassageErrors:
        """Measure some variants at every size."""
        sizes, draws = settings.sizes, settings.draws
        shape = len(variants), 1, draws, len(sizes)
        errors = np.empty((*shape, len(self.dense.residual)))
        end: dict[str, Array] = {}
        for v, (way, heads) in enumerate(variants.values()):
            for draw, j in np.ndindex(draws, len(sizes)):
                at = v, 0, draw, j
                errors[at], numbers = self.errors(way, heads, draw, sizes[j], settings.seed)
                for name, value in numbers.items():
                    end.setdefault(name, np.empty(shape))[at] = value
        data = PassageErrors.new(
            sampled=variants,
            passage=[self.passage.number],
            draw=range(draws),
            layer=range(len(self.dense.residual)),
            size=sizes,
        )
        data.error = errors.swapaxes(-2, -1)
        for name, values in end.items():
            setattr(data, name, values)
        data.eligible = [np.count_nonzero(~self.certain)]
        if self.loaded.causal:
            data.dense_nll = [surprise(self.dense.end, self.next_tokens)]
        return data

    def errors(
        self, way: str, heads: NDArray[np.bool_] | None, draw: int, n: int, seed: int
    ) -> tuple[list[float], Mapping[str, float]]:
        """Errors by layer of one sampled pass, and the numbers of the model's end.

        An error is that of the tokens behind a block, relative, root mean square over them.
        """
        certain = torch.from_numpy(self.certain)

        def replacement(inputs: LayerInputs) -> Tensor | None:
            chosen = None if heads is None else np.flatnonzero(heads[inputs.layer]).tolist()
            if chosen == []:
                return None
            number, layer = self.passage.number, inputs.layer
            drawn = draw_keys(self.certain, seed, number, way, draw, layer, n)
            return sampled_attention(inputs, certain, drawn, chosen)

        sampled = self.read(replacement)
        errors = []
        for state, dense in zip(sampled.residual, self.dense.residual, strict=True):
            off = torch.linalg.vector_norm((state - dense)[self.query_rows].double(), dim=-1)
            size = torch.linalg.vector_norm(dense[self.query_rows].double(), dim=-1)
            # token by token: a few tokens of huge norm must not stand for all
            errors.append(float((off / size).square().mean().sqrt()))
        if self.loaded.causal:
            return errors, compare_laws(self.dense.end, sampled.end, self.next_tokens)
        ends = sampled.end.double(), self.dense.end.double()
        return errors, {"cosine": float(torch.cosine_similarity(*ends, dim=0))}


def certain_keys(passage: Passage, causal: bool) -> NDArray[np.bool_]:
    """True at keys that are kept for certain, [length]."""
    certain = passage.is_delimiter.copy()
    certain[0] = True
    if causal:
        certain[int(PREFIX * len(passage.ids)) :] = True
    return certain


def head_horizons(reader: SampledPassage) -> Array:
    """Horizon of every head on a passage, [layer, head], from one dense pass.

    As :func:`esscher.probe` has it in context mode: queries against the keys that can be sampled,
    sinks set apart.
    """
    horizons: list[list[float]] = []

    def measure(inputs: LayerInputs) -> None:
        horizons.append([])
        candidates = np.flatnonzero(~reader.certain[-inputs.k.shape[2] :])
        for head in range(inputs.q.shape[1]):
            logits = inputs.logits(0, head, dtype=torch.float32)[reader.query_rows]
            logits = logits[:, torch.from_numpy(candidates)]
            # a window hides some keys from some queries; one that sees none of them has no say
            rows = torch.isfinite(logits).any(dim=-1)
            received = torch.softmax(logits[rows], dim=-1).mean(0).double().cpu().numpy()
            kept = np.setdiff1d(np.arange(len(candidates)), keys_apart(received))
            keys = inputs.k[0, head // inputs.group][torch.from_numpy(candidates[kept])]
            tilts = inputs.q[0, head][reader.query_rows] * inputs.scaling
            moments = (part.double().cpu().numpy() for part in (tilts, keys))
            horizons[-1].append(CoupledMoments.of(*moments).horizon)

    reader.read(measure)
    return np.array(horizons)


def split_terciles(horizons: Array, scope: str) -> NDArray[np.str_]:
    """Name of the tercile of the horizon that every head is in, [layer, head].

    Parameters
    ----------
    horizons
        Of every head, [layer, head].
    scope
        ``"model"``: of all heads together. ``"layer"``: of the heads of each layer, so that every
        tercile has heads in every layer and depth plays no part.
    """
    rows = horizons.reshape(1, -1) if scope == "model" else horizons
    ranks = rows.argsort(axis=1, kind="stable").argsort(axis=1)
    return np.asarray(np.array(TERCILES)[ranks * 3 // rows.shape[1]].reshape(horizons.shape))


# Cells: the horizons, and the passages.


def read_text(
    study: DeepStudy, settings: DeepSettings, loaded: LoadedModel, model: AnyModel
) -> Work:
    """Cut the text into whole passages, with room for every size."""
    check_supported(loaded)
    text = first_passages(loaded, study.text, settings.passages, settings.context, study.column)
    settings = study.fitted(text, loaded.outline, context=text.context, passages=len(text))
    eligible = [int(np.count_nonzero(~certain_keys(p, loaded.causal))) for p in text]
    fewest = min(eligible)
    if settings.sizes[-1] >= fewest:
        raise InputError(
            f"sizes go up to {settings.sizes[-1]}, but passage {eligible.index(fewest)} has only "
            f"{fewest} keys to draw from (all but the first one, delimiters and a decoder's last "
            f"quarter); give sizes below {fewest}"
        )
    setup = Setup(settings, {"model": loaded.record, "text": text.record})

    def batches(run: Run) -> Iterator[Mapping[str, Task]]:
        """Yield the horizons first: they say which heads are in which tercile."""
        variants: dict[str, tuple[str, NDArray[np.bool_] | None]] = {
            way: (way, None) for way in settings.ways
        }
        if settings.terciles != "none":
            yield {"horizons": Task("horizons", _horizons_cell, (model, tuple(text)))}
            cell = run.read("horizons")
            assert cell is not None  # stored before anything that needs it
            terciles = split_terciles(cell["horizon"].values, settings.terciles)
            variants |= {name: (settings.ways[0], terciles == name) for name in TERCILES}
        yield {
            name: Task(name, _passage_cell, (model, passage, variants, settings))
            for name, passage in zip(settings.cells, text, strict=True)
        }

    return setup, batches


def _horizons_cell(model: AnyModel, passages: tuple[Passage, ...]) -> xr.Dataset:
    """Horizon of every head, mean over the passages."""
    with opened_model(model) as loaded:
        horizons = [head_horizons(SampledPassage(loaded, passage)) for passage in passages]
        data = Horizons.new(layer=range(loaded.shape.layers), head=range(loaded.shape.heads))
        data.horizon = np.mean(horizons, axis=0)
        return data.dataset


def _passage_cell(
    model: AnyModel, passage: Passage, variants: Variants, settings: DeepSettings
) -> xr.Dataset:
    """All variants on one passage."""
    with opened_model(model) as loaded:
        return SampledPassage(loaded, passage).cell(variants, settings).dataset
