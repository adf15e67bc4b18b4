"""An encoder under a plan: in every call its heads attend to part of the tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from esscher.engine.cache.rule import PlannedRule
from esscher.engine.cache.selection import reduced_attention
from esscher.engine.models import LayerInputs


class ReducedEncoder:
    """Computes an encoder's attention, for :func:`~esscher.engine.models.attention_override`.

    What is kept of a text depends on its own tokens and the seed alone, not on its row in the batch
    and not on padding.
    """

    def __init__(self, rule: PlannedRule) -> None:
        self._rule = rule

    def __call__(self, inputs: LayerInputs) -> Tensor:
        """Attention output of a layer, [batch, heads, n_q, d_v]."""
        keys = inputs.k.shape[2]
        return torch.stack(
            [
                reduced_attention(inputs, self._rule.keep(inputs, batch), keys, batch)
                for batch in range(len(inputs.q))
            ]
        )
