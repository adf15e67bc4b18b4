"""Expected attention: the weights that normal queries at positions to come would have.

Devoto, Jeblick, Jégou: Expected Attention: KV Cache Compression by Estimating Attention from
Future Queries Distribution, arXiv 2510.00636. Queries before their rotation are taken for normal
with the mean and the covariance of the prompt's own; with R the mean rotation of the positions to
come, a key k has the expected weight

    E exp(a <q, k>)  ~  exp(a <R m, k> + a^2 <k, R S R' k> / 2),

a the factor of the logits, normalised over the keys. A soft bound of the logits is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from esscher.engine.cache.published.rule import Scorer, Scores, check_longer, padded
from esscher.engine.models.rotary import rotate

if TYPE_CHECKING:
    from esscher.engine.cache.published.prefilled import Prefilled


@dataclass(frozen=True)
class Expected(Scorer):
    """Expected attention times the norm of the value.

    Attributes
    ----------
    sinks
        First tokens that are kept, and whose queries are left out: they are unlike others.
    future
        Number of positions to come.
    """

    cite = (
        "Devoto et al., Expected Attention: KV Cache Compression by Estimating Attention from "
        "Future Queries Distribution, arXiv 2510.00636"
    )
    sinks: int = 4
    future: int = 512

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "expected"

    def look(self, layer: Prefilled) -> Scores:
        """Expected weights, mean over the heads that share a key, times norms of values."""
        check_longer(layer, self.name, self.sinks)
        turn = self._mean_rotation(layer)
        out = []
        for g in range(layer.key_heads):
            keys = layer.keys(g)[self.sinks :]
            mean = torch.stack([self._weights(layer, h, keys, turn) for h in layer.query_heads(g)])
            norm = torch.linalg.vector_norm(layer.values(g)[self.sinks :], dim=-1)
            out.append(mean.mean(0) * norm)
        return Scores(padded(torch.stack(out), self.sinks, 0).cpu())

    def _mean_rotation(self, layer: Prefilled) -> Tensor:
        """Mean rotation of the positions to come, a matrix [d, d] that acts from the right."""
        query = layer.inputs.q
        unit = torch.eye(query.shape[-1], device=query.device)
        if layer.rotation is None:
            return unit
        positions = torch.arange(layer.prompt, layer.prompt + self.future, device=query.device)
        cos, sin = layer.rotation(positions)
        return rotate(unit, cos.mean(0), sin.mean(0))

    def _weights(self, layer: Prefilled, head: int, keys: Tensor, turn: Tensor) -> Tensor:
        """Expected weights of one head, [keys]."""
        query, scaling = layer.unrotated(head)[self.sinks :], layer.inputs.scaling
        mean = query.mean(0)
        spread = (query - mean) @ turn / len(query) ** 0.5
        covariance = spread.T @ spread
        logits = scaling * keys @ (mean @ turn)
        logits += scaling**2 / 2 * ((keys @ covariance) * keys).sum(-1)
        return torch.softmax(logits, dim=-1)
