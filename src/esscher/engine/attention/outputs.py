"""Outputs of attention over all tokens: the reference for attention over samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from esscher.core.validation import Array


def attention_outputs(
    tilts: Array,
    keys: Array,
    values: Array,
    *,
    scales: Sequence[float] = (1.0,),
    dtype: str = "float32",
    device: str = "cpu",
) -> Array:
    """Softmax attention of every tilt over all keys, axes [scale, query, d_v].

    Memory is that of the result: PyTorch's fused kernel never forms the logits of all pairs. It
    wants queries, keys and values of one width, so the narrower ones get columns of zeros.
    """
    kind = torch.float32 if dtype == "float32" else torch.float64
    width = max(keys.shape[1], values.shape[1])
    # centred, which changes nothing (weights sum to 1) and costs the fewest digits
    key_centre, value_centre = keys.mean(axis=0), values.mean(axis=0)
    q, k, v = (
        torch.from_numpy(np.pad(rows, ((0, 0), (0, width - rows.shape[1])))).to(device, kind)
        for rows in (tilts, keys - key_centre, values - value_centre)
    )
    outputs = np.empty((len(scales), len(tilts), values.shape[1]), dtype=np.dtype(dtype))
    with torch.inference_mode():
        for s, alpha in enumerate(scales):
            found = functional.scaled_dot_product_attention(
                q[None, None], k[None, None], v[None, None], scale=float(alpha)
            )
            outputs[s] = found[0, 0, :, : values.shape[1]].cpu().numpy() + value_centre
    return outputs
