"""What is computed: a layer is a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.options import AtMost
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models import AnyModel, LayerInputs, LoadedModel, opened_model
from esscher.engine.text import Passage, PassageSet, read_passages, visit_passages
from esscher.engine.text.packing import equal_passages
from esscher.math.tails.cloud import FEWEST, CloudTails, cloud_tails, logit_shape, norm_shape
from esscher.math.tails.directions import FEWEST as FEWEST_PASSAGES
from esscher.math.tails.directions import QUICK
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell, CellRun
from esscher.studies.tails.study import (
    CloudWithNorms,
    FurthestToken,
    HeadCloud,
    LayerTails,
    TailsStudy,
    TokenCloud,
)

#: Queries whose logits are looked at.
QUERIES = 16
#: Bytes of keys and hidden states that are held at a time; more layers mean more passes.
HELD = 800_000_000
#: Tokens at the end of the tail that are named.
NAMED = 5

Rows = NDArray[np.float32]


def read_text(
    study: TailsStudy, loaded: LoadedModel, model: AnyModel, executor: CellExecutor
) -> TailsWork:
    """Take as many whole passages as the tokens fill, at least four."""
    found = read_passages(
        loaded,
        study.text,
        tokens=study.tokens,
        context=study.context,
        column=study.column,
        least=FEWEST,
    )
    # what is left of the text at its end may be a passage of a few tokens only
    whole = tuple(p for p in found.passages if len(p.ids) == study.context)
    kept = whole if len(whole) >= FEWEST_PASSAGES else found.passages
    if len(kept) < FEWEST_PASSAGES and isinstance(study.context, AtMost):
        found = equal_passages(loaded, found, FEWEST_PASSAGES, study.context)
        kept = found.passages
    if len(kept) < FEWEST_PASSAGES:
        longest = (found.text_tokens - 1) // (FEWEST_PASSAGES - 1)
        raise InputError(
            f"{found.source!r} has only {found.text_tokens} tokens, in passages of "
            f"{study.context}, and at least {FEWEST_PASSAGES} passages are needed; give more text, "
            f"or a context of at most {longest}"
        )
    tokens = min(int(study.tokens), found.text_tokens)
    study = replace(study, tokens=tokens, context=found.context)
    study = replace(study, model=loaded.record, text=found.record)
    return TailsWork(study, loaded, model, replace(found, passages=kept), executor)


@dataclass(frozen=True, eq=False)
class TailsWork:
    """A test of tails that is ready: see :class:`esscher.runs.study.Work`.

    In this process, layers share a pass over the text if they take at most ``held`` bytes together.
    """

    study: TailsStudy
    loaded: LoadedModel
    model: AnyModel
    passages: PassageSet
    executor: CellExecutor
    held: int = HELD

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield layers: here, as many as fit into memory, which share one pass over the text."""
        study = self.study
        if self.executor.remote:
            # a layer is a task, which reads the passages itself: keys of all layers are too much
            # to be shipped, and workers need not see the same directories
            text = self.executor.share(self.passages)
            yield {
                f"layer-{layer}": Task(
                    f"layer-{layer}",
                    _layer_cell,
                    (self.model, text, layer, study.heads, study.seed),
                )
                for layer in study.layers
            }
            return
        layers = [int(name.removeprefix("layer-")) for name in run.missing(study.cells())]
        if not layers:
            return
        rows = token_rows(self.passages, self.loaded.causal, study.seed)
        for group in layer_groups(self.loaded, layers, len(rows.ids), self.held):
            collected = collect_layers(self.loaded, self.passages, rows, group)
            yield {
                f"layer-{layer}": Task(
                    f"layer-{layer}",
                    _measured,
                    (self.loaded, layer, collected.pop(layer), rows, study.heads, study.seed),
                )
                for layer in group
            }


def _layer_cell(
    model: AnyModel, passages: PassageSet, layer: int, heads: tuple[int, ...], seed: int
) -> Cell:
    """One layer in another process."""
    with opened_model(model) as loaded:
        rows = token_rows(passages, loaded.causal, seed)
        tokens = collect_layers(loaded, passages, rows, [layer])[layer]
        return _measured(loaded, layer, tokens, rows, heads, seed)


def _measured(
    loaded: LoadedModel,
    layer: int,
    tokens: LayerTokens,
    rows: TokenRows,
    heads: tuple[int, ...],
    seed: int,
) -> Cell:
    group = loaded.shape.heads // loaded.shape.key_heads
    return Cell(measure_layer(layer, tokens, rows, heads, group, seed, _label(loaded)))


def _label(loaded: LoadedModel) -> Callable[[int], str]:
    return lambda token: str(loaded.tokenizer.decode([token]))


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


def layer_groups(
    loaded: LoadedModel, layers: Sequence[int], tokens: int, held: int
) -> list[list[int]]:
    """Layers that fit into ``held`` bytes of memory together, in order."""
    shape = loaded.shape
    each = 4 * tokens * (shape.key_heads * shape.head_dim + shape.hidden)
    count = max(1, held // each)
    return [list(layers[i : i + count]) for i in range(0, len(layers), count)]


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
    group: int,
    seed: int,
    label: Callable[[int], str],
) -> LayerTails:
    """Measure a layer.

    Parameters
    ----------
    layer, tokens, rows
        Which layer, what it sees, which tokens.
    heads, group
        Query heads, and how many of them share a key head.
    seed
        Of halves, starts and resampling.
    label
        A token's text.
    """
    text = np.flatnonzero(~rows.apart)
    by_key = {
        key_head: _cloud(tokens.keys[key_head], rows, text, seed, label)
        for key_head in sorted({head // group for head in heads})
    }
    listed = []
    for head in heads:
        keys = tokens.keys[head // group][text].astype(np.float64)
        logits = _capped(tokens.tilts[head].astype(np.float64) @ keys.T, tokens.softcap)
        listed.append(
            HeadCloud(
                layer=layer,
                head=head,
                key_head=head // group,
                logits=logit_shape(logits, rows.passage[text]),
                **structs.asdict(by_key[head // group]),
            )
        )
    hidden = None if tokens.hidden is None else _cloud(tokens.hidden, rows, text, seed, label)
    return LayerTails(layer=layer, heads=tuple(listed), hidden=hidden)


def _cloud(
    tokens: Rows, rows: TokenRows, text: NDArray[np.int64], seed: int, label: Callable[[int], str]
) -> TokenCloud:
    """Tails of one cloud: text tokens, then, with less effort, everything."""
    own = tokens[text].astype(np.float64)
    found = cloud_tails(own, rows.passage[text], seed=seed)
    with_all = None
    if rows.apart.any():
        everything = tokens.astype(np.float64)
        other = cloud_tails(everything, rows.passage, seed=seed, effort=QUICK).numbers
        with_all = CloudWithNorms(
            norms=norm_shape(everything, rows.passage), **structs.asdict(other)
        )
    return TokenCloud(
        norms=norm_shape(own, rows.passage[text]),
        tokens_in_tail=_named(found, rows.ids[text], label),
        with_delimiters=with_all,
        **structs.asdict(found.numbers),
    )


def _named(
    found: CloudTails, ids: NDArray[np.int64], label: Callable[[int], str]
) -> tuple[FurthestToken, ...]:
    """The tokens that reach furthest along the worst direction, each text once."""
    out: dict[int, float] = {}
    for row in np.argsort(-np.abs(found.projection)):
        out.setdefault(int(ids[row]), float(found.projection[row]))
        if len(out) == NAMED:
            break
    return tuple(FurthestToken(token=label(t), projection=value) for t, value in out.items())


def _capped(logits: Array, softcap: float | None) -> Array:
    return logits if softcap is None else np.asarray(softcap * np.tanh(logits / softcap))
