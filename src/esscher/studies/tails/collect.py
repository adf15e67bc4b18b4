"""What a layer's tokens are: keys, hidden states and some tilts, collected over passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from esscher.core.streams import random_stream
from esscher.engine.models import LayerCapture, LoadedModel
from esscher.engine.text import Passage, PassageSet, visit_passages

#: Queries whose logits are looked at.
QUERIES = 16
#: Bytes of keys and hidden states that are held at a time; more layers mean more passes.
HELD = 800_000_000

Rows = NDArray[np.float32]


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

    def sink(passage: Passage, capture: LayerCapture) -> None:
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
