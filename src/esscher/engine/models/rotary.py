"""Rotary embeddings: how a layer turns queries and keys by their positions, and back."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from esscher.engine.models.loaded import LoadedModel

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
    return partial(_rotation, module, like, options)


def _rotation(
    module: Any, like: Tensor, options: dict[str, str], positions: Tensor
) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        cos, sin = copy.deepcopy(module)(like, positions[None].to(like.device), **options)
    return cos[0].to(torch.float32), sin[0].to(torch.float32)


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate states [..., n, d]; dimensions beyond those of cosines and sines stay as they are."""
    turned, rest = states[..., : cos.shape[-1]], states[..., cos.shape[-1] :]
    return torch.cat([turned * cos + _quarter(turned) * sin, rest], dim=-1)


def rotate_back(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Undo :func:`rotate`; embeddings that also scale are scaled back."""
    square = cos.square() + sin.square()
    return rotate(states, cos / square, -sin / square)


def _quarter(states: Tensor) -> Tensor:
    """A quarter turn: ``(a, b)`` becomes ``(-b, a)``, a and b the halves of the dimensions."""
    first, second = states.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)
