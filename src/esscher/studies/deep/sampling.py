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

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models import AnyModel, LayerInputs, LoadedModel, opened_model
from esscher.engine.models.inputs import QUERY_BLOCK
from esscher.engine.reading import Pass, PassageReader, check_supported, compare_laws, surprise
from esscher.engine.sampled.sizes import PREFIX
from esscher.engine.text import Passage, PassageSet, first_passages
from esscher.math.coupling import CoupledMoments
from esscher.math.statistics import keys_apart
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell, CellRun
from esscher.studies.deep.result import TERCILES, DeepCell, TercileHeads
from esscher.studies.deep.study import DeepStudy


@dataclass(frozen=True, eq=False)
class KeySample:
    """Which keys of a passage are there.

    Attributes
    ----------
    certain
        True at positions that every query keeps, [length].
    drawn
        True at positions that were drawn, or how often each was, [length]; none of them is certain.
    """

    certain: Tensor
    drawn: Tensor


class KeyDraws:
    """Samples of the keys of one passage: a function of (seed, passage, way, draw, layer, n).

    Sizes are nested: the n keys are the first n of one random order.
    """

    def __init__(
        self, certain: NDArray[np.bool_], seed: int, passage: int, way: str, draw: int
    ) -> None:
        self._certain = torch.from_numpy(certain)
        self._eligible = np.flatnonzero(~certain)
        self._key = (seed, passage, way, draw)

    def sample(self, layer: int, n: int) -> KeySample:
        """The n keys of a layer; the same for every layer if they are ``"shared"``."""
        seed, passage, way, draw = self._key
        index = (passage, draw, layer) if way == "independent" else (passage, draw)
        order = random_stream(seed, f"deep {way}", *index).permutation(self._eligible)
        drawn = torch.zeros_like(self._certain)
        drawn[torch.from_numpy(order[:n])] = True
        return KeySample(self._certain, drawn)


def log_weights(inputs: LayerInputs, seen: Tensor, sample: KeySample, queries: slice) -> Tensor:
    """Logarithms of the weights, [queries, n_k]: ``ln(E_i / n_i)``, 0, or ``-inf`` if left out.

    Parameters
    ----------
    inputs
        The layer. Its keys are the last ones of the passage: a sliding cache has lost its start.
    seen
        Who sees whom, bool [queries, n_k].
    sample
        The keys that are there.
    queries
        The block of queries.
    """
    keys, device = inputs.k.shape[2], seen.device
    certain, drawn = (part[-keys:].to(device) for part in (sample.certain, sample.drawn))
    places = torch.arange(inputs.q.shape[2], device=device)[queries] + inputs.offset
    own = torch.zeros_like(seen)
    own[torch.arange(len(places), device=device), places] = True
    in_class = seen & ~certain & ~own
    times = in_class * drawn
    ratio = in_class.sum(-1, keepdim=True) / times.sum(-1, keepdim=True).clamp(min=1)
    weights = torch.zeros(seen.shape, device=device)
    weights[in_class] = -torch.inf
    return torch.where(times > 0, (times * ratio).log(), weights)


def sampled_attention(
    inputs: LayerInputs, sample: KeySample, heads: Collection[int] | None = None
) -> Tensor:
    """Attention output [1, heads, n_q, d_v] over a sample of the keys.

    Parameters
    ----------
    inputs
        The layer, for one passage.
    sample
        The keys that are there.
    heads
        Heads that see the sample only; the others attend to all keys. All heads if left out.
    """
    chosen = range(inputs.q.shape[1]) if heads is None else sorted(heads)
    output = inputs.q.new_empty(inputs.output_shape) if heads is None else inputs.own().clone()
    for start in range(0, inputs.q.shape[2], QUERY_BLOCK):
        queries = slice(start, start + QUERY_BLOCK)
        seen = inputs.visible(queries)[0]
        found = [log_weights(inputs, rows, sample, queries) for rows in seen]
        for head in chosen:
            logits = inputs.logits(0, head, queries, torch.float32)
            logits += found[min(head, len(found) - 1)]
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
        super().__init__(loaded, passage, prefix_length(loaded, passage))
        self.certain = certain_keys(loaded, passage)

    @property
    def eligible(self) -> int:
        """Number E of keys of which some are drawn."""
        return int(np.count_nonzero(~self.certain))


def prefix_length(loaded: LoadedModel, passage: Passage) -> int:
    """Tokens of a passage that a decoder has in its cache when the queries come."""
    return int(PREFIX * len(passage.ids)) if loaded.causal else 0


def certain_keys(loaded: LoadedModel, passage: Passage) -> NDArray[np.bool_]:
    """True at keys that are kept for certain, [length]."""
    certain = passage.is_delimiter.copy()
    certain[0] = True
    if loaded.causal:
        certain[prefix_length(loaded, passage) :] = True
    return certain


# Errors of a model whose keys are subsampled, on one passage.

#: Numbers of a layer. ``residual``, ``typical``: relative error of the tokens behind its block,
#: root mean square and median over tokens. ``common``: share of their error that is the same for
#: all, norm of the mean error over root mean square. ``attention``: relative error of the attention
#: output; ``fresh``: the part of it that the layer's own sample made.
LAYER_METRICS = ("residual", "typical", "common", "attention", "fresh")
#: What is measured at the end of a model.
DECODER_END, ENCODER_END = ("kl", "top1", "nll"), ("cosine",)
#: Stands for the end of the model where the tables have the number of a layer.
END = -1
COLUMNS = ["variant", "draw", "n", "layer", "quantity", "value"]


class PassageMeasurement:
    """A passage, its dense pass, and the errors of sampled ones."""

    def __init__(self, reader: SampledPassage) -> None:
        self.reader = reader
        self.dense = reader.read(lambda inputs: None)
        rows = reader.asking
        self._lengths = [_lengths(state[rows]) for state in self.dense.residual]
        self._sizes = [_norm(output[:, rows]) for output in self.dense.attention]

    def cell(
        self,
        variants: Mapping[str, tuple[str, Mapping[int, Collection[int]] | None]],
        sizes: Sequence[int],
        draws: int,
        seed: int,
    ) -> Cell:
        """Measure some variants at every size.

        Parameters
        ----------
        variants
            By name: how its keys are drawn, and the heads by layer that see the sample only (None
            for all heads of all layers).
        sizes
            Numbers n of keys.
        draws
            Samples per size.
        seed
            Seed of the samples.
        """
        rows: list[tuple[Any, ...]] = []
        for variant, (way, heads) in variants.items():
            for draw in range(draws):
                number = self.reader.passage.number
                keys = KeyDraws(self.reader.certain, seed, number, way, draw)
                for n in sizes:
                    found = self._errors(keys, n, heads)
                    rows += [(variant, draw, n, *entry) for entry in found]
        return Cell(self._about(), pd.DataFrame(rows, columns=COLUMNS))

    def _errors(
        self, keys: KeyDraws, n: int, heads: Mapping[int, Collection[int]] | None
    ) -> list[tuple[int, str, float]]:
        """(layer, quantity, value) of one sampled pass."""
        fresh: list[float] = []
        rows = self.reader.asking

        def replacement(inputs: LayerInputs) -> Tensor | None:
            chosen = None if heads is None else heads.get(inputs.layer, ())
            if chosen is not None and not chosen:
                fresh.append(0.0)
                return None
            output = sampled_attention(inputs, keys.sample(inputs.layer, n), chosen)
            fresh.append(_norm((output - inputs.own())[0].cpu()[:, rows]))
            return output

        found = self.reader.read(replacement)
        out: list[tuple[int, str, float]] = []
        for i in range(len(found.residual)):
            moved = (found.residual[i] - self.dense.residual[i])[rows].double()
            # token by token: a few tokens of huge norm must not stand for all
            relative = _lengths(moved) / self._lengths[i]
            whole = float(moved.square().sum(dim=-1).mean().sqrt())
            off = _norm((found.attention[i] - self.dense.attention[i])[:, rows])
            values = (
                float(relative.square().mean().sqrt()),
                float(relative.median()),
                _norm(moved.mean(dim=0)) / whole if whole > 0 else 0.0,
                off / self._sizes[i],
                fresh[i] / self._sizes[i],
            )
            out += [(i, name, value) for name, value in zip(LAYER_METRICS, values, strict=True)]
        return out + [(END, name, value) for name, value in self._end(found).items()]

    def _end(self, found: Pass) -> dict[str, float]:
        if not self.reader.loaded.causal:
            cosine = torch.cosine_similarity(found.end.double(), self.dense.end.double(), dim=0)
            return {"cosine": float(cosine)}
        return compare_laws(self.dense.end, found.end, self.reader.next_tokens)

    def _about(self) -> DeepCell:
        reader, causal = self.reader, self.reader.loaded.causal
        return DeepCell(
            passage=reader.passage.number,
            eligible=reader.eligible,
            queries=len(reader.asking),
            residual_norm=tuple(float(lengths.median()) for lengths in self._lengths),
            positions=len(reader.positions) if causal else None,
            dense_nll=surprise(self.dense.end, reader.next_tokens) if causal else None,
        )


def _lengths(values: Tensor) -> Tensor:
    """Norms along the last axis."""
    lengths: Tensor = torch.linalg.vector_norm(values.double(), dim=-1)
    return lengths


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values.double()))


# Horizons of a model's heads on real passages, and the terciles they fall into.


def head_horizons(reader: SampledPassage) -> Array:
    """Horizon of every head on a passage, [layer, head], from one dense pass.

    As :func:`esscher.probe` has it in context mode: queries against the keys that can be sampled,
    sinks set apart.
    """
    found: list[list[float]] = []

    def look(inputs: LayerInputs) -> None:
        keys = inputs.k.shape[2]
        candidates = np.flatnonzero(~reader.certain[-keys:])
        heads = range(inputs.q.shape[1])
        found.append([_horizon(inputs, head, reader.asking, candidates) for head in heads])

    reader.read(look)
    return np.array(found)


def _horizon(
    inputs: LayerInputs, head: int, asking: Tensor, candidates: NDArray[np.int64]
) -> float:
    logits = inputs.logits(0, head, dtype=torch.float32)[asking][:, torch.from_numpy(candidates)]
    # a window hides some keys from some queries; one that sees none of them has no say
    rows = torch.isfinite(logits).any(dim=-1)
    received = torch.softmax(logits[rows], dim=-1).mean(0).double().cpu().numpy()
    sinks = keys_apart(received)
    kept = np.setdiff1d(np.arange(len(candidates)), sinks)
    keys = inputs.k[0, head // inputs.group][torch.from_numpy(candidates[kept])]
    tilts = inputs.q[0, head][asking] * inputs.scaling
    found = CoupledMoments.of(tilts.double().cpu().numpy(), keys.double().cpu().numpy())
    return found.horizon


def split_terciles(horizons: Array, scope: str) -> dict[str, dict[int, tuple[int, ...]]]:
    """Heads of each tercile of the horizon, by layer.

    Parameters
    ----------
    horizons
        Of every head, [layer, head].
    scope
        ``"model"``: of all heads together. ``"layer"``: of the heads of each layer, so that every
        tercile has heads in every layer and depth plays no part.
    """
    layers, heads = horizons.shape
    if scope == "model":
        ranks = horizons.ravel().argsort(kind="stable").argsort().reshape(layers, heads)
        third = ranks * 3 // (layers * heads)
    else:
        ranks = horizons.argsort(axis=1, kind="stable").argsort(axis=1)
        third = ranks * 3 // heads
    return {
        name: {
            layer: tuple(int(h) for h in np.flatnonzero(third[layer] == number))
            for layer in range(layers)
        }
        for number, name in enumerate(TERCILES)
    }


def describe_terciles(
    horizons: Array, terciles: Mapping[str, Mapping[int, tuple[int, ...]]]
) -> dict[str, TercileHeads]:
    """How many heads each tercile has, their horizons, and how deep they lie on average."""
    out = {}
    for name, by_layer in terciles.items():
        own = [(layer, head) for layer, heads in by_layer.items() for head in heads]
        values = np.array([horizons[place] for place in own])
        out[name] = TercileHeads(
            heads=len(own),
            horizon_min=float(values.min()) if own else None,
            horizon_median=float(np.median(values)) if own else None,
            horizon_max=float(values.max()) if own else None,
            mean_layer=float(np.mean([layer for layer, _ in own])) if own else None,
        )
    return out


# What is computed: a replicate of a stack, or a passage and a way of sampling, is a cell.

#: By name of a variant: how its keys are drawn, and which heads by layer see the sample only (None
#: for all heads of all layers).
Variants: TypeAlias = Mapping[str, tuple[str, Mapping[int, Collection[int]] | None]]


def read_text(
    study: DeepStudy, loaded: LoadedModel, model: AnyModel, executor: CellExecutor
) -> DeepWork:
    """Take as many whole passages as are asked for, with room for every size."""
    check_supported(loaded)
    found = first_passages(loaded, study.text, study.passages, study.context, study.column)
    study = study.fitted(found, loaded.outline, context=found.context, passages=len(found))
    _check_sizes(study.sizes, [int(np.count_nonzero(~certain_keys(loaded, p))) for p in found])
    study = replace(study, model=loaded.record, text=found.record)
    return DeepWork(study, model, found, executor.remote)


def _check_sizes(sizes: tuple[int, ...], eligible: list[int]) -> None:
    """Refuse sizes that leave nothing out in some passage."""
    fewest = min(eligible)
    if sizes[-1] >= fewest:
        raise InputError(
            f"sizes go up to {sizes[-1]}, but passage {eligible.index(fewest)} has only {fewest} "
            "keys to draw from (all but the first one, delimiters and a decoder's last quarter); "
            f"give sizes below {fewest}"
        )


@dataclass(frozen=True, eq=False)
class DeepWork:
    """A model that is ready to be sampled: see :class:`esscher.runs.study.Work`."""

    study: DeepStudy
    model: AnyModel
    passages: PassageSet
    remote: bool

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield the horizons first: they say which heads are in which tercile."""
        study = self.study
        if study.terciles != "none":
            yield {"horizons": Task("horizons", _horizons_cell, (self.model, tuple(self.passages)))}
        dense = None if self.remote else DensePasses()  # workers have their own
        by_part: dict[str, Variants] = {way: {way: (way, None)} for way in study.ways}
        if study.terciles != "none":
            heads = split_terciles(_stored_horizons(run), study.terciles)
            by_part["terciles"] = {name: (study.ways[0], heads[name]) for name in TERCILES}
        yield {
            f"passage-{number}-{part}": Task(
                f"passage-{number}-{part}",
                _passage_cell,
                (self.model, passage, variants, study.sizes, study.draws, study.seed, dense),
            )
            for number, passage in enumerate(self.passages)
            for part, variants in by_part.items()
        }


def _horizons_cell(model: AnyModel, passages: tuple[Passage, ...]) -> Cell:
    """Horizon of every head, mean over the passages."""
    with opened_model(model) as loaded:
        found = [head_horizons(SampledPassage(loaded, passage)) for passage in passages]
    rows = np.asarray(np.mean(found, axis=0)).tolist()
    return Cell(DeepCell(horizons=tuple(tuple(row) for row in rows)))


def _stored_horizons(run: CellRun) -> Array:
    part = run.read("horizons")
    assert part is not None  # stored before anything that needs it
    if part.about.horizons is None:
        raise run.damaged("horizons", "it has no horizons")
    return np.array(part.about.horizons)


class DensePasses:
    """The dense pass of the last passage, which serves several cells."""

    def __init__(self) -> None:
        self._last: tuple[LoadedModel, tuple[int, bytes], PassageMeasurement] | None = None

    def of(self, loaded: LoadedModel, passage: Passage) -> PassageMeasurement:
        """The passage, read by the model."""
        # the number too: samples depend on it, and passages of a text may be equal
        which = passage.number, passage.ids.tobytes()
        if self._last is None or self._last[0] is not loaded or self._last[1] != which:
            self._last = None  # two passages need not be in memory together
            self._last = (loaded, which, PassageMeasurement(SampledPassage(loaded, passage)))
        return self._last[2]


#: That of a worker of a cluster.
_DENSE = DensePasses()


def _passage_cell(
    model: AnyModel,
    passage: Passage,
    variants: Variants,
    sizes: tuple[int, ...],
    draws: int,
    seed: int,
    dense: DensePasses | None,
) -> Cell:
    """Some variants on one passage."""
    with opened_model(model) as loaded:
        measured = (_DENSE if dense is None else dense).of(loaded, passage)
        return measured.cell(variants, sizes, draws, seed)
