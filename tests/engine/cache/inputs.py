"""The inputs of a layer that no model made."""

from __future__ import annotations

import dataclasses

import torch

from esscher.engine.models.inputs import LayerInputs


def layer_inputs(heads=4, key_heads=2, queries=6, keys=40, d=5, strength=1.0, seed=0, **changes):
    """Random queries at the end of random keys, causal."""
    generator = torch.Generator().manual_seed(seed)
    inputs = LayerInputs(
        layer=0,
        q=strength * torch.randn(1, heads, queries, d, generator=generator),
        k=torch.randn(1, key_heads, keys, d, generator=generator),
        v=torch.randn(1, key_heads, keys, d, generator=generator),
        scaling=d**-0.5,
        softcap=None,
        window=None,
        bias=None,
        causal=True,
        valid=None,
        visible_mask=None,
        offset=keys - queries,
        hidden=None,
        original=lambda: torch.zeros(0),
    )
    inputs = dataclasses.replace(inputs, **changes)
    return dataclasses.replace(inputs, original=lambda: inputs.attend(torch.float32))
