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

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.streams import random_stream
from esscher.engine.models import LayerInputs, LoadedModel
from esscher.engine.models.inputs import QUERY_BLOCK
from esscher.engine.reading import PassageReader
from esscher.engine.sampled.sizes import PREFIX
from esscher.engine.text import Passage


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
