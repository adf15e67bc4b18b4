"""Tasks and cells: the tails of a layer's keys, logits and hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.options import AtMost
from esscher.core.streams import random_stream
from esscher.engine.models.choice import AnyModel, opened_model
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.text.collect import visit_passages
from esscher.engine.text.packing import Passage, PassageSet, equal_passages, read_passages
from esscher.math.tails.candidates import SHARES
from esscher.math.tails.candidates import Cloud as CloudNumbers
from esscher.math.tails.cloud import (
    FEWEST,
    FEWEST_PASSAGES,
    QUICK,
    THOROUGH,
    cloud_tails,
    logit_shape,
    norm_shape,
)
from esscher.math.tails.verdict import evidence, half_verdicts, judge
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Run
from esscher.runs.study import Setup, Work
from esscher.studies.tails.study import LayerTails, TailsSettings, TailsStudy

#: Queries whose logits are looked at.
QUERIES = 16
#: Bytes of keys and hidden states that are held at a time; more layers mean more passes.
HELD = 800_000_000
#: Tokens at the end of the tail that are named.
NAMED = 5

Rows = NDArray[np.float32]


def read_text(
    study: TailsStudy,
    settings: TailsSettings,
    loaded: LoadedModel,
    model: AnyModel,
    executor: CellExecutor,
) -> Work:
    """Take as many whole passages as the tokens fill, at least four."""
    passages = read_passages(
        loaded,
        study.text,
        tokens=settings.tokens,
        context=settings.context,
        column=study.column,
        least=FEWEST,
    )
    # what is left of the text at its end may be a passage of a few tokens only
    whole = tuple(p for p in passages.passages if len(p.ids) == settings.context)
    kept = whole if len(whole) >= FEWEST_PASSAGES else passages.passages
    if len(kept) < FEWEST_PASSAGES and isinstance(settings.context, AtMost):
        passages = equal_passages(loaded, passages, FEWEST_PASSAGES, settings.context)
        kept = passages.passages
    if len(kept) < FEWEST_PASSAGES:
        longest = (passages.text_tokens - 1) // (FEWEST_PASSAGES - 1)
        raise InputError(
            f"{passages.source!r} has only {passages.text_tokens} tokens, in passages of "
            f"{settings.context}, and at least {FEWEST_PASSAGES} passages are needed; give more "
            f"text, or a context of at most {longest}"
        )
    settings = msgspec.structs.replace(
        settings,
        tokens=min(int(settings.tokens), passages.text_tokens),
        context=int(passages.context),
    )
    setup = Setup(settings, {"model": loaded.record, "text": passages.record})
    passages = replace(passages, passages=kept)

    def batches(run: Run) -> Iterator[Mapping[str, Task]]:
        """Yield layers: here, as many as fit into memory, which share one pass over the text."""
        if executor.remote:
            # a layer is a task, which reads the passages itself: keys of all layers are too much
            # to be shipped, and workers need not see the same directories
            text = executor.share(passages)
            yield {
                name: Task(name, _layer_cell, (model, text, layer, settings.heads, settings.seed))
                for name, layer in zip(TailsStudy.cells(setup), settings.layers, strict=True)
            }
            return
        names = run.missing(TailsStudy.cells(setup))
        if not names:
            return
        rows = token_rows(passages, loaded.causal, settings.seed)
        # layers whose keys and hidden states fit into memory together
        shape = loaded.shape
        each = 4 * len(rows.ids) * (shape.key_heads * shape.head_dim + shape.hidden)
        count = max(1, HELD // each)
        for start in range(0, len(names), count):
            group = {
                name: int(name.removeprefix("layer-")) for name in names[start : start + count]
            }
            collected = collect_layers(loaded, passages, rows, list(group.values()))
            yield {
                name: Task(
                    name,
                    measure_layer,
                    (layer, collected.pop(layer), rows, settings.heads, settings.seed, loaded),
                )
                for name, layer in group.items()
            }

    return setup, batches


def _layer_cell(
    model: AnyModel, passages: PassageSet, layer: int, heads: tuple[int, ...], seed: int
) -> xr.Dataset:
    """One layer in another process."""
    with opened_model(model) as loaded:
        rows = token_rows(passages, loaded.causal, seed)
        tokens = collect_layers(loaded, passages, rows, [layer])[layer]
        return measure_layer(layer, tokens, rows, heads, seed, loaded)


# What a layer's tokens are: keys, hidden states and some tilts, collected over passages.


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Which token each row is.

    Attributes
    ----------
    ids, passage
        Token and number of its passage.
    apart
        Delimiters and, in a decoder, the first token of a passage, which has no context and acts
        as a sink: no part of the cloud, but looked at separately.
    asking
        Rows whose queries are kept, none of them apart.
    """

    ids: NDArray[np.int64]
    passage: NDArray[np.int64]
    apart: NDArray[np.bool_]
    asking: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LayerTokens:
    """The tokens of one layer, in the order of the rows.

    Attributes
    ----------
    keys
        [key heads, tokens, d], as they enter the softmax.
    hidden
        [tokens, hidden], what the layer's projections are applied to; None where it is not known.
    tilts
        [heads, queries, d]: queries times the factor of the logits.
    softcap
        Bound of the logits, or None.
    """

    keys: Rows
    hidden: Rows | None
    tilts: Rows
    softcap: float | None


def token_rows(passages: PassageSet, causal: bool, seed: int) -> TokenRows:
    """The rows of a cloud: every token of every passage."""
    ids = np.concatenate([passage.ids for passage in passages])
    number = np.concatenate([np.full(len(p.ids), p.number) for p in passages])
    apart = np.concatenate([passage.is_delimiter for passage in passages])
    if causal:
        apart[np.unique(number, return_index=True)[1]] = True
    rng = random_stream(seed, "tail queries")
    text = np.flatnonzero(~apart)
    asking = np.sort(rng.choice(text, size=min(QUERIES, len(text)), replace=False))
    return TokenRows(ids, number, apart, asking)


def collect_layers(
    loaded: LoadedModel, passages: PassageSet, rows: TokenRows, layers: Sequence[int]
) -> dict[int, LayerTokens]:
    """Run the model over the passages once and keep what some layers see."""
    shape, count = loaded.shape, len(rows.ids)
    keys = {i: np.empty((shape.key_heads, count, shape.head_dim), np.float32) for i in layers}
    tilts = {
        i: np.empty((shape.heads, len(rows.asking), shape.head_dim), np.float32) for i in layers
    }
    hidden: dict[int, Rows] = {}
    softcaps: dict[int, float | None] = {}
    first = np.cumsum([0, *(len(passage.ids) for passage in passages)])
    starts = {passage.number: int(at) for passage, at in zip(passages, first, strict=False)}

    def sink(passage: Passage, capture: LayerInputs) -> None:
        layer, start = capture.layer, starts[passage.number]
        stop = start + len(passage.ids)
        keys[layer][:, start:stop] = _numpy(capture.k[0])
        inside = np.flatnonzero((rows.asking >= start) & (rows.asking < stop))
        if len(inside):
            at = torch.from_numpy(rows.asking[inside] - start)
            tilts[layer][:, inside] = _numpy(capture.q[0][:, at]) * capture.scaling
        if capture.hidden is not None:
            if layer not in hidden:
                hidden[layer] = np.empty((count, capture.hidden.shape[-1]), np.float32)
            hidden[layer][start:stop] = _numpy(capture.hidden[0])
        softcaps[layer] = capture.softcap

    visit_passages(loaded, passages, sink, layers=layers)
    return {
        layer: LayerTokens(keys[layer], hidden.get(layer), tilts[layer], softcaps[layer])
        for layer in layers
    }


def _numpy(tensor: torch.Tensor) -> Rows:
    return np.asarray(tensor.detach().to("cpu", torch.float32).numpy())


# The tails of one layer: its hidden states, and the keys and logits of its heads.


def measure_layer(
    layer: int,
    tokens: LayerTokens,
    rows: TokenRows,
    heads: Sequence[int],
    seed: int,
    loaded: LoadedModel,
) -> xr.Dataset:
    """Measure a layer.

    Parameters
    ----------
    layer, tokens, rows
        Which layer, what it sees, which tokens.
    heads
        Query heads.
    seed
        Of halves, starts and resampling.
    loaded
        The model, for the text of a token, and for how many heads share a key head.
    """
    text = np.flatnonzero(~rows.apart)
    passage = rows.passage[text]
    shared = loaded.shape.heads // loaded.shape.key_heads
    by_key = {
        key_head: _cloud(tokens.keys[key_head], rows, seed, loaded)
        for key_head in sorted({head // shared for head in heads})
    }
    data = LayerTails.new(
        layer=[layer],
        head=heads,
        subset=("text", "all"),
        part=("both", "first", "second"),
        half=("first", "second"),
        threshold=range(len(SHARES)),
        rank=range(NAMED),
    )
    data.key_head = [[head // shared for head in heads]]
    shapes = []
    for head in heads:
        keys = tokens.keys[head // shared][text].astype(np.float64)
        logits = tokens.tilts[head].astype(np.float64) @ keys.T
        if tokens.softcap is not None:
            logits = tokens.softcap * np.tanh(logits / tokens.softcap)
        shapes.append(logit_shape(logits, passage))
    data.logits_k = [shapes]
    hidden = None if tokens.hidden is None else _cloud(tokens.hidden, rows, seed, loaded)
    for name, values in next(iter(by_key.values())).items():
        setattr(data.keys, name, [[by_key[head // shared][name] for head in heads]])
        if hidden is None:  # not known: nothing but NaN and empty words
            unknown: Any = "" if values.dtype.kind == "U" else np.nan
            setattr(data.hidden, name, np.full_like(values[None], unknown))
        else:
            setattr(data.hidden, name, hidden[name][None])
    return data.dataset


def _cloud(
    tokens: Rows, rows: TokenRows, seed: int, loaded: LoadedModel
) -> dict[str, NDArray[Any]]:
    """Tails of one cloud by variable: its text tokens, then, with less effort, all of them."""
    text = np.flatnonzero(~rows.apart)
    chosen, everything = tokens[text].astype(np.float64), tokens.astype(np.float64)
    numbers, projection = cloud_tails(chosen, rows.passage[text], seed=seed, effort=THOROUGH)
    subsets = [_numbers(numbers, norm_shape(chosen, rows.passage[text]))]
    if rows.apart.any():
        other, _ = cloud_tails(everything, rows.passage, seed=seed, effort=QUICK)
        subsets.append(_numbers(other, norm_shape(everything, rows.passage)))
    else:
        empty = {n: "" if x.dtype.kind == "U" else np.nan for n, x in subsets[0].items()}
        subsets.append({n: np.full_like(x, empty[n]) for n, x in subsets[0].items()})
    cloud = {name: np.array([subset[name] for subset in subsets]) for name in subsets[0]}
    # the tokens that reach furthest along the worst direction, each text once
    ids, furthest = rows.ids[text], dict[int, float]()
    for row in np.argsort(-np.abs(projection)):
        furthest.setdefault(int(ids[row]), float(projection[row]))
        if len(furthest) == NAMED:
            break
    missing = NAMED - len(furthest)
    names = [str(loaded.tokenizer.decode([token])) for token in furthest]
    cloud["tail_token"] = np.array([*names, *[""] * missing])
    cloud["tail_projection"] = np.array([*furthest.values(), *[np.nan] * missing])
    return cloud


def _numbers(cloud: CloudNumbers, norms: Sequence[float]) -> dict[str, NDArray[Any]]:
    """The numbers of a cloud and the verdict on it, by variable."""
    verdict, decided_by = judge(cloud)
    parts = (cloud.tail, *cloud.tail_halves)

    def fits(number: Any) -> NDArray[Any]:
        """A number of every comparison, by part and threshold; NaN where there is none so high."""
        width = np.shape(number(cloud.tail[0]))
        values = np.full((len(parts), len(SHARES), *width), np.nan)
        for i, part in enumerate(parts):
            for j, comparison in enumerate(part):
                values[i, j] = number(comparison)
        return values

    numbers = {
        "tokens": float(cloud.tokens),
        "passages": float(cloud.passages),
        "proxy": [cloud.proxy, *cloud.proxy_halves],
        "kurtosis": cloud.kurtosis,
        "tau": [decided_by.tau, *decided_by.tau_interval],
        "beyond": decided_by.threshold,
        "norms_k": norms,
        "largest": cloud.largest,
        "agreement": cloud.agreement,
        "verdict": verdict,
        "half_verdict": list(half_verdicts(cloud)),
        "evidence": evidence(decided_by),
        "fit_threshold": fits(lambda fit: fit.threshold),
        "fit_tokens": fits(lambda fit: fit.exceedances),
        "fit_tau": fits(lambda fit: [fit.tau, *fit.tau_interval]),
    }
    return {name: np.asarray(value) for name, value in numbers.items()}
