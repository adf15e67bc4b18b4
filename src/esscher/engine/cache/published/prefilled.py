"""One layer of a decoder that has read a prompt: what rules look at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esscher.engine.models import LayerInputs, LoadedModel
from esscher.engine.models.rotary import Rotation, rotate_back, rotation_of

#: Queries taken at a time: a block of weights has so many rows, and a column for every key.
BLOCK = 256


@dataclass(frozen=True, eq=False)
class Prefilled:
    """One layer of a decoder that has read a prompt, or reads on after it; one text.

    Attributes
    ----------
    inputs
        Queries [1, heads, n_q, d], keys and values [1, key heads, n_k, d] as they enter the
        softmax. The layer has no sliding window.
    prompt
        The first so many keys are the prompt.
    rotation
        The model's rotary embedding in this layer; None if it has none.
    repeated
        Part of the prompt (begin, end) that the queries repeat; None if they are the prompt's own,
        or go on after it.
    """

    inputs: LayerInputs
    prompt: int
    rotation: Rotation | None
    repeated: tuple[int, int] | None = None

    @property
    def key_heads(self) -> int:
        """Number of key heads."""
        return int(self.inputs.k.shape[1])

    def query_heads(self, key_head: int) -> range:
        """Numbers of the query heads that share a key head."""
        group = self.inputs.group
        return range(key_head * group, (key_head + 1) * group)

    def values(self, key_head: int) -> Tensor:
        """Values of the prompt, [prompt, d_v]."""
        return self.inputs.v[0, key_head, : self.prompt].to(torch.float32)

    def keys(self, key_head: int) -> Tensor:
        """Keys of the prompt, [prompt, d]."""
        return self.inputs.k[0, key_head, : self.prompt].to(torch.float32)

    def weights(self, head: int, queries: slice, index: Tensor | None = None) -> Tensor:
        """Attention weights of some queries, [queries, keys], over all keys or some of them."""
        logits = self.inputs.logits(0, head, queries, torch.float32)
        return torch.softmax(logits if index is None else logits[:, index], dim=-1)

    def blocks(self) -> list[slice]:
        """All queries, some at a time."""
        count = self.inputs.q.shape[2]
        return [slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)]

    def unrotated(self, head: int) -> Tensor:
        """Queries of a head as they were before the rotary embedding, [n_q, d]."""
        query = self.inputs.q[0, head].to(torch.float32)
        if self.rotation is None:
            return query
        positions = self.inputs.offset + torch.arange(len(query), device=query.device)
        return rotate_back(query, *self.rotation(positions))


def prefilled_layer(
    loaded: LoadedModel,
    inputs: LayerInputs,
    prompt: int,
    repeated: tuple[int, int] | None = None,
) -> Prefilled:
    """Bring together what rules look at in a layer; see :class:`Prefilled`."""
    return Prefilled(inputs, prompt, rotation_of(loaded, inputs.layer), repeated)
