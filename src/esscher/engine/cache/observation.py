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
        values = values.to(device=self.square.device, dtype=torch.float32)
        output = self.output.view(len(values), -1, values.shape[-1])
        square = self.square.view(len(values), -1, self.square.shape[-1])[..., : values.shape[1]]
        # |v - y|^2, [key heads, group, n_k]
        apart = values.square().sum(-1)[:, None] - 2 * output @ values.mT
        apart = (apart + output.square().sum(-1, keepdim=True)).clamp_(min=0.0)
        return apart.mul_(square).sum(1).sqrt_()

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
    key_heads, group = inputs.k.shape[1], inputs.group
    query = inputs.q[batch, :, rows].to(torch.float32)
    keys, values = (x[batch].to(torch.float32) for x in (inputs.k, inputs.v))
    logits = capped(
        query.reshape(key_heads, group * len(rows), -1) @ keys.mT * inputs.scaling, inputs.softcap
    ).view(key_heads * group, len(rows), -1)
    if inputs.bias is not None:
        bias = (
            inputs.bias[min(batch, len(inputs.bias) - 1)] if inputs.bias.ndim == 4 else inputs.bias
        )
        logits += bias[:, rows]
    # in a causal text without padding all rows see what lies before the first of them
    plain = inputs.causal and inputs.visible_mask is None and inputs.window is None
    near = int(rows[0]) + inputs.offset if plain else 0
    seen = inputs.visible(slice(int(rows[0]), int(rows[-1]) + 1))
    seen = seen[min(batch, len(seen) - 1)][:, rows - rows[0], near:]
    logits[..., near:].masked_fill_(~seen, -torch.inf)
    weights = torch.softmax(logits, dim=-1)
    mean = weights.mean(1)
    recent = weights[:, -PUBLISHED_WINDOW:].mean(1) if inputs.causal else mean
    # the mean of the outputs is the output of the mean weights
    output = mean.view(key_heads, group, -1) @ values
    return Observation(
        square=weights.square_().mean(1).cpu(),
        recent=recent.cpu(),
        output=output.view(key_heads * group, -1).cpu(),
    )


def scores_again(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    log_weight: Tensor,
    visible: Tensor,
    scaling: float,
    softcap: float | None,
) -> Tensor:
    """Scores of keys that have weights already, by the queries of one key head.

    The same as :meth:`Observation.score`, a key that stands for several counting as often: what is
    judged again is the sample, not the tokens it was drawn from.

    Parameters
    ----------
    query
        Observed queries of the heads that share the keys, [group, w, d_k].
    keys, values, log_weight
        [n, d_k], [n, d_v], [n].
    visible
        Which keys each query sees, [w, n].
    scaling, softcap
        Of the logits.
    """
    query, keys, values = (x.to(torch.float32) for x in (query, keys, values))
    logits = capped(query @ keys.T * scaling, softcap) + log_weight
    logits = logits.masked_fill_(~visible, -torch.inf)
    weights = torch.nan_to_num(torch.softmax(logits, dim=-1), nan=0.0)
    total = torch.zeros(len(keys), device=keys.device)
    for own in weights:
        apart = values - (own @ values).mean(0)
        total += own.square().mean(0) * apart.square().sum(-1)
    return total.sqrt()


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """Logits within a soft bound, if there is one."""
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap
