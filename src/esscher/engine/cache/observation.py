"""What a few queries at the end of a prefix say about its keys.

Queries to come resemble the last ones that were. From the weights ``p_wj`` of W observed queries a
key gets the score

    s_j^2 = sum_h  mean_w p_hwj^2  |v_j - y_h|^2,

summed over the query heads h that share the key, ``y_h`` the mean output of the observed queries:
the key's share of the variance of a sampled head (see ``effects.py``). Weighing the differences by
the model's gradients gained nothing once budgets are planned, and would have to be stored.

The published rule of SnapKV is kept beside it, to compare with: the attention of the last 32
queries, summed over the group, each key taking the largest of its seven neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esscher.engine.models import LayerInputs

#: Queries that are observed. On SmolLM2 64 predict the effect of keys better than 16, 32, 128, 256.
WINDOW = 64
#: Queries and neighbours of the published rule.
PUBLISHED_WINDOW, NEIGHBOURS = 32, 7


@dataclass(frozen=True, eq=False)
class Observation:
    """Observed attention of one layer.

    Attributes
    ----------
    square
        Mean over the observed queries of their squared weights, [heads, n_k].
    recent
        Mean weights of the last 32 queries (an encoder's: of all observed ones), [heads, n_k].
    output
        Mean attention output of the observed queries, [heads, d_v].
    """

    square: Tensor
    recent: Tensor
    output: Tensor

    def score(self, values: Tensor) -> Tensor:
        """Scores of the keys, [key heads, n_k], given their values [key heads, n_k, d_v]."""
        group = len(self.square) // len(values)
        total = torch.zeros(values.shape[:2], dtype=torch.float32)
        for h, square in enumerate(self.square):
            apart = values[h // group].to(torch.float32) - self.output[h]
            total[h // group] += square[: values.shape[1]] * apart.square().sum(-1)
        return total.sqrt()

    def published_score(self, key_heads: int) -> Tensor:
        """Scores by the rule of SnapKV, [key heads, n_k]."""
        total = self.recent.reshape(key_heads, -1, self.recent.shape[-1]).sum(1)
        half = NEIGHBOURS // 2
        return torch.nn.functional.max_pool1d(total[:, None], NEIGHBOURS, 1, half)[:, 0]


def observe(inputs: LayerInputs, window: int = WINDOW, batch: int = 0) -> Observation:
    """Look at the last queries of one text (an encoder's: queries spread over the text).

    Queries at padding are none of the text's.
    """
    own = inputs.own_queries(batch)
    if inputs.causal:
        rows = own[-window:]
    else:
        rows = own[torch.linspace(0, len(own) - 1, min(window, len(own))).round().long()]
    first = int(rows[0])
    squares, recents, outputs = [], [], []
    for head in range(inputs.q.shape[1]):
        logits = inputs.logits(batch, head, slice(first, None), torch.float32)[rows - first]
        weights = torch.softmax(logits, dim=-1)
        squares.append(weights.square().mean(0))
        recents.append((weights[-PUBLISHED_WINDOW:] if inputs.causal else weights).mean(0))
        value = inputs.v[batch, head // inputs.group].to(torch.float32)
        outputs.append((weights @ value).mean(0))
    return Observation(torch.stack(squares), torch.stack(recents), torch.stack(outputs))
