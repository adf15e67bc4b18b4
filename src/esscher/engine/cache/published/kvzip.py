"""KVzip: the largest weight that a token gets while the model repeats the prompt.

Kim, Kim, Kwon, Lee, Yun, Song: KVzip: Query-Agnostic KV Cache Compression with Context
Reconstruction, arXiv 2505.23416. The prompt is repeated in chunks (``repeat.py``). A token's score
is the largest weight among the queries that repeat its chunk, over the heads that share it; these
weights are normalised over the sinks, the chunk and the repetition alone. Budgets are whatever the
largest scores of all layers and heads make them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from esscher.engine.cache.published.rule import Rule, Scores, check_longer, largest, largest_of_all

if TYPE_CHECKING:
    from esscher.engine.cache.published.prefilled import Prefilled


@dataclass(frozen=True)
class KVzip(Rule):
    """Weights of the queries that repeat the prompt.

    Attributes
    ----------
    sinks
        First tokens that every head keeps.
    """

    cite = (
        "Kim et al., KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction, "
        "arXiv 2505.23416"
    )
    reads = "repeat"
    sinks: int = 4

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "kvzip"

    def look(self, layer: Prefilled) -> Scores:
        """Largest weights of the tokens that are repeated; 0 for those that are not."""
        if layer.repeated is None:
            raise AssertionError(f"the rule {self.name!r} looks at a repetition of the prompt")
        check_longer(layer, self.name, self.sinks)
        begin, end = layer.repeated
        sinks = min(self.sinks, begin)
        index = torch.cat(
            [
                torch.arange(sinks),
                torch.arange(begin, end),
                torch.arange(layer.prompt, layer.inputs.k.shape[2]),
            ]
        ).to(layer.inputs.k.device)
        scores = torch.zeros(layer.key_heads, layer.prompt)
        own = slice(sinks, sinks + end - begin)
        for g, row in enumerate(scores):
            for h in layer.query_heads(g):
                for queries in layer.blocks():
                    most = layer.weights(h, queries, index)[:, own].amax(0).cpu()
                    row[begin:end] = torch.maximum(row[begin:end], most)
        return Scores(scores)

    def _choose(self, found: Sequence[Scores], each: int) -> list[list[Tensor]]:
        scores = torch.stack([layer.scores for layer in found])
        scores[..., : self.sinks] = torch.inf
        layers, key_heads, tokens = scores.shape
        rows = scores.view(-1, tokens)
        budgets = largest_of_all(rows, each * len(rows))
        kept = [largest(own, budget) for own, budget in zip(rows, budgets, strict=True)]
        return [kept[i * key_heads : (i + 1) * key_heads] for i in range(layers)]
