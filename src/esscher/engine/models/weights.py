"""Weights of the heads of a layer, as float64 matrices."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from esscher.core.validation import Array, as_indices
from esscher.engine.models.loaded import LoadedModel


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """Projections of one layer by query head; grouped key heads are repeated for their queries.

    ``q = W_q x + b_q`` and so on, with x the hidden states that enter the attention (after the
    normalisation before it, if there is one). Where ``linear`` is False, the model turns (rotary
    positions) or normalises q and k afterwards.

    Attributes
    ----------
    W_q, W_k
        [heads, d_k, hidden].
    W_v
        [heads, d_v, hidden].
    W_o
        [heads, hidden, d_v]; the layer's output is the sum over heads of ``W_o y``, plus b_o.
    b_q, b_k, b_v
        [heads, d]; zero where the model has none.
    b_o
        [hidden].
    scaling
        Factor of the logits, 1/sqrt(d_k) in most models.
    linear
        Whether nothing happens to q and k after these maps.
    """

    W_q: Array
    b_q: Array
    W_k: Array
    b_k: Array
    W_v: Array
    b_v: Array
    W_o: Array
    b_o: Array
    scaling: float
    linear: bool


def head_weights(loaded: LoadedModel, layer: int) -> HeadWeights:
    """Read the weights of a layer's heads.

    Raises
    ------
    InputError
        For a layer that does not exist.
    """
    family, shape = loaded.family, loaded.shape
    (number,) = as_indices([layer], shape.layers, "layer")
    block = family.blocks(loaded.model)[number]
    group = shape.heads // shape.key_heads
    maps = family.maps(block)

    def numpy(tensor: Tensor) -> Array:
        return np.asarray(tensor.detach().cpu().to(torch.float64).numpy())

    def by_head(weight: Tensor, bias: Tensor | None, repeat: int) -> tuple[Array, Array]:
        """Weight [heads, d, hidden] and bias [heads, d], each head ``repeat`` times."""
        offset = np.zeros(len(weight)) if bias is None else numpy(bias)
        matrix = numpy(weight).reshape(-1, shape.head_dim, weight.shape[1])
        vector = offset.reshape(-1, shape.head_dim)
        return np.repeat(matrix, repeat, axis=0), np.repeat(vector, repeat, axis=0)

    W_q, b_q = by_head(*maps[0], 1)
    W_k, b_k = by_head(*maps[1], group)
    W_v, b_v = by_head(*maps[2], group)
    output, output_bias = maps[3]
    W_o = numpy(output).reshape(len(output), shape.heads, -1).transpose(1, 0, 2)
    scaling = getattr(family.attention(block), "scaling", None)
    return HeadWeights(
        W_q=W_q,
        b_q=b_q,
        W_k=W_k,
        b_k=b_k,
        W_v=W_v,
        b_v=b_v,
        W_o=np.ascontiguousarray(W_o),
        b_o=np.zeros(len(output)) if output_bias is None else numpy(output_bias),
        scaling=shape.head_dim**-0.5 if scaling is None else float(scaling),
        linear=family.linear,
    )


# Rotary embeddings: how a layer turns queries and keys by their positions, and back.

#: Cosines and sines [n, rotated dimensions] of a rotary embedding, from positions [n].
Rotation: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]


def rotation_of(loaded: LoadedModel, layer: int) -> Rotation | None:
    """Return the rotary embedding of a layer; None if the layer has none.

    Some embeddings change with the longest position they were asked for. What is asked here is
    asked of a copy.
    """
    module = getattr(loaded.backbone, "rotary_emb", None)
    block = loaded.family.blocks(loaded.model)[layer]
    # SmolLM 3 leaves some layers without positions
    if module is None or not getattr(loaded.family.attention(block), "use_rope", True):
        return None
    options = {}
    if "layer_type" in inspect.signature(module.forward).parameters:
        options["layer_type"] = loaded.family.config(loaded.model).layer_types[layer]
    like = torch.zeros(1, dtype=loaded.dtype, device=loaded.device)

    def rotation(positions: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            cos, sin = copy.deepcopy(module)(like, positions[None].to(like.device), **options)
        return cos[0].to(torch.float32), sin[0].to(torch.float32)

    return rotation


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate states [..., n, d]; dimensions beyond those of cosines and sines stay as they are."""
    turned, rest = states[..., : cos.shape[-1]], states[..., cos.shape[-1] :]
    first, second = turned.chunk(2, dim=-1)
    quarter = torch.cat([-second, first], dim=-1)  # turned by 90 degrees
    return torch.cat([turned * cos + quarter * sin, rest], dim=-1)
