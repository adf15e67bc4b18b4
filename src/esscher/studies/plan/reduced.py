"""Attention on a reduced cache: kept keys of the prefix, and all that came after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from esscher.engine.models import LayerInputs
from esscher.studies.plan.selection import Kept


def reduced_attention(
    inputs: LayerInputs, kept: Sequence[Kept], prefix: int, batch: int = 0
) -> Tensor:
    """Attention output [heads, n_q, d_v] of one text.

    Parameters
    ----------
    inputs
        The layer. Its first ``prefix`` keys are the prefix.
    kept
        What is kept of the prefix, one per key head.
    prefix
        Length of the prefix. Later keys are all there, as far as a query sees them.
    batch
        Number of the text.
    """
    group, heads = inputs.group, inputs.q.shape[1]
    later = torch.arange(prefix, inputs.k.shape[2])
    output = torch.empty(inputs.output_shape[1:], dtype=torch.float32)
    for g in range(heads // group):
        index = torch.cat([kept[g].index, later])
        weight = torch.cat([kept[g].log_weight, torch.zeros(len(later))])
        key = inputs.k[batch, g, index].to(torch.float32)
        value = inputs.v[batch, g, index].to(torch.float32)
        mine = slice(g * group, (g + 1) * group)
        logits = inputs.q[batch, mine].to(torch.float32) @ key.T * inputs.scaling
        if inputs.softcap is not None:
            logits = torch.tanh(logits / inputs.softcap) * inputs.softcap
        if inputs.bias is not None:
            bias = inputs.bias
            if bias.ndim == 4:
                bias = bias[min(batch, len(bias) - 1)]
            logits = logits + (bias if len(bias) == 1 else bias[mine])[..., index]
        seen = inputs.visible()
        seen = seen[min(batch, len(seen) - 1)]
        seen = (seen if len(seen) == 1 else seen[mine])[..., index]
        logits = (logits + weight).masked_fill(~seen, -torch.inf)
        # a query at padding may see no key
        weights = torch.nan_to_num(torch.softmax(logits, dim=-1), nan=0.0)
        output[mine] = weights @ value
    return output
