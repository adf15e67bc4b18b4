"""Published rules for what a decoder keeps of a prompt.

They are written from the papers and agree with kvpress 0.5.5 where that has them
(``benchmarks/kvpress.py`` measures how far). Unlike a plan they keep heads' best tokens and forget
the others. A rule scores the tokens in every layer once (:meth:`Rule.score`) and then chooses what
each key head keeps (:meth:`Rule.keep`). All rules keep the same number of tokens in all, so that
they can be compared. Equal scores are decided for the token that comes first, so that results can
be repeated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.validation import as_dim
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.weights import Rotation

#: Queries taken at a time: a block of weights has so many rows, and a column for every key.
BLOCK = 256


@dataclass(frozen=True, eq=False)
class PromptLayer:
    """One layer of a decoder that has read a prompt, or reads on after it; one text.

    Attributes
    ----------
    inputs
        Queries [1, heads, n_q, d], keys and values [1, key heads, n_k, d] as they enter the
        softmax. The layer has no sliding window.
    prompt
        The first so many keys are the prompt.
    rotation
        The model's rotary embedding in this layer; None if it has none.
    repeated
        Part of the prompt (begin, end) that the queries repeat; None if they are the prompt's own,
        or go on after it.
    """

    inputs: LayerInputs
    prompt: int
    rotation: Rotation | None
    repeated: tuple[int, int] | None = None

    @property
    def key_heads(self) -> int:
        """Number of key heads."""
        return int(self.inputs.k.shape[1])

    def query_heads(self, key_head: int) -> range:
        """Numbers of the query heads that share a key head."""
        group = self.inputs.group
        return range(key_head * group, (key_head + 1) * group)

    def weights(self, head: int, queries: slice, index: Tensor | None = None) -> Tensor:
        """Attention weights of some queries, [queries, keys], over all keys or some of them."""
        logits = self.inputs.logits(0, head, queries, torch.float32)
        return torch.softmax(logits if index is None else logits[:, index], dim=-1)

    def check_longer(self, rule: Rule, least: int) -> None:
        """Refuse a prompt that is not longer than what a rule keeps for certain.

        Raises
        ------
        InputError
            Naming both.
        """
        if self.prompt <= least:
            raise InputError(
                f"the prompt has {self.prompt} tokens; the rule {rule.name!r} needs more than "
                f"{least}"
            )


class Rule(ABC):
    """A published rule for what is kept of a prompt.

    Attributes
    ----------
    cite
        Authors, title and arXiv number.
    reads
        What the rule observes: the prompt's own reading, or its repetition by the model.
    """

    cite: ClassVar[str]
    reads: ClassVar[Literal["prompt", "repeat"]] = "prompt"

    @property
    def name(self) -> str:
        """Name of the rule: that of its class, in small letters."""
        return type(self).__name__.lower()

    @abstractmethod
    def score(self, layer: PromptLayer) -> Tensor:
        """Scores of the tokens of the prompt in one layer, [key heads, tokens], float32.

        The larger the score of a token, the better it is kept. Of several parts of a repetition
        the larger one counts.
        """

    def keep(self, scores: Sequence[Tensor], each: int) -> list[list[Tensor]]:
        """Choose what every key head keeps: increasing indices, by layer and key head.

        In all they are exactly ``each`` times the number of key heads of all layers.

        Parameters
        ----------
        scores
            From :meth:`score`, layer by layer. Layers that are not reduced are left out.
        each
            Tokens that a key head keeps on average.

        Raises
        ------
        InputError
            If there are not so many tokens.
        """
        each, (key_heads, tokens) = as_dim(each, "each"), scores[0].shape
        if each > tokens:
            raise InputError(f"each is {each:,}; the prompt has {tokens:,} tokens")
        kept = self._choose(scores, each)
        total, wanted = sum(len(i) for layer in kept for i in layer), each * len(scores) * key_heads
        if total != wanted:
            raise AssertionError(f"the rule {self.name!r} kept {total:,} tokens, not {wanted:,}")
        return kept

    def _choose(self, scores: Sequence[Tensor], each: int) -> list[list[Tensor]]:
        """The same number of tokens in every head, unless a rule has budgets of its own."""
        return [[largest(head, each) for head in layer] for layer in scores]


def largest(scores: Tensor, count: int) -> Tensor:
    """Indices of the largest of some scores [n], increasing; the first of equal ones."""
    order = torch.sort(scores, descending=True, stable=True).indices
    return order[:count].sort().values


def largest_of_all(scores: Tensor, count: int) -> list[int]:
    """How many of the largest scores of a table [rows, n] lie in each row."""
    rows = largest(scores.flatten(), count) // scores.shape[1]
    return torch.bincount(rows, minlength=len(scores)).tolist()


def padded(scores: Tensor, before: int, after: int) -> Tensor:
    """Surround scores by tokens that are kept first, as if they had the largest of all plus one."""
    top = float(scores.max()) + 1.0
    return torch.nn.functional.pad(scores, (before, after), value=top)


@dataclass(frozen=True)
class Streaming(Rule):
    """Sinks and recent tokens.

    Positions stay those of the text: tokens are not moved together.

    Attributes
    ----------
    sinks
        First tokens that are kept.
    """

    cite = "Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453"
    sinks: int = 4

    def score(self, layer: PromptLayer) -> Tensor:
        """The later a token, the larger its score; sinks have the largest."""
        layer.check_longer(self, self.sinks)
        scores = torch.arange(layer.prompt, dtype=torch.float32)
        scores[: self.sinks] += layer.prompt
        return scores.expand(layer.key_heads, -1)


@dataclass(frozen=True)
class SnapKV(Rule):
    """What the last queries of the prompt attended to, smoothed over neighbours.

    Sizes and the mean over heads that share a key are those of kvpress.

    Attributes
    ----------
    window
        Queries at the end of the prompt that are observed; their own tokens are kept.
    neighbours
        Tokens over which weights are averaged, an odd number; beyond the ends they are 0.
    """

    cite = (
        "Li et al., SnapKV: LLM Knows What You Are Looking for Before Generation, arXiv 2404.14469"
    )
    window: int = 64
    neighbours: int = 5

    def score(self, layer: PromptLayer) -> Tensor:
        """Mean weights of the last queries, of the heads that share a key, and of neighbours."""
        layer.check_longer(self, self.window)
        queries = layer.inputs.q.shape[2]
        last, before = slice(queries - self.window, queries), layer.prompt - self.window
        rows = []
        for g in range(layer.key_heads):
            heads = [layer.weights(h, last)[:, :before].mean(0) for h in layer.query_heads(g)]
            rows.append(torch.stack(heads).mean(0))
        smooth = torch.nn.functional.avg_pool1d(
            torch.stack(rows), self.neighbours, stride=1, padding=self.neighbours // 2
        )
        return padded(smooth, 0, self.window).cpu()


@dataclass(frozen=True)
class AdaKV(Rule):
    """The heads of a layer share its budget, tokens competing by SnapKV's scores.

    Attributes
    ----------
    scorer
        Scores the tokens.
    safeguard
        Share of the mean budget that every head keeps.
    """

    cite = (
        "Feng et al., Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for "
        "Efficient LLM Inference, arXiv 2407.11550"
    )
    scorer: SnapKV = field(default_factory=SnapKV)
    safeguard: float = 0.2

    def score(self, layer: PromptLayer) -> Tensor:
        """As the scorer."""
        return self.scorer.score(layer)

    def _choose(self, scores: Sequence[Tensor], each: int) -> list[list[Tensor]]:
        kept, certain = [], max(1, int(each * self.safeguard)) if self.safeguard > 0 else 0
        for layer in scores:
            safe = torch.zeros_like(layer, dtype=torch.bool)
            for row, head in zip(safe, layer, strict=True):
                row[largest(head, certain)] = True
            budgets = largest_of_all(layer.masked_fill(safe, torch.inf), each * len(layer))
            kept.append([largest(head, n) for head, n in zip(layer, budgets, strict=True)])
        return kept


@dataclass(frozen=True)
class KVzip(Rule):
    """The largest weight that a token gets while the model repeats the prompt.

    The prompt is repeated in chunks (``repeating.py``). A token's score is the largest weight among
    the queries that repeat its chunk, over the heads that share it; these weights are normalised
    over the sinks, the chunk and the repetition alone. Budgets are whatever the largest scores of
    all layers and heads make them.

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

    def score(self, layer: PromptLayer) -> Tensor:
        """Largest weights of the tokens that are repeated; 0 for those that are not."""
        assert layer.repeated is not None
        layer.check_longer(self, self.sinks)
        begin, end = layer.repeated
        sinks = min(self.sinks, begin)
        queries, keys = layer.inputs.q.shape[2], layer.inputs.k
        parts = [(0, sinks), (begin, end), (layer.prompt, keys.shape[2])]
        index = torch.cat([torch.arange(*part) for part in parts]).to(keys.device)
        scores = torch.zeros(layer.key_heads, layer.prompt)
        chunk = slice(sinks, sinks + end - begin)
        for g, row in enumerate(scores):
            for h in layer.query_heads(g):
                for start in range(0, queries, BLOCK):
                    block = slice(start, min(start + BLOCK, queries))
                    most = layer.weights(h, block, index)[:, chunk].amax(0).cpu()
                    row[begin:end] = torch.maximum(row[begin:end], most)
        return scores

    def _choose(self, scores: Sequence[Tensor], each: int) -> list[list[Tensor]]:
        table = torch.stack(list(scores))
        table[..., : self.sinks] = torch.inf
        layers, key_heads, tokens = table.shape
        rows = table.view(-1, tokens)
        budgets = largest_of_all(rows, each * len(rows))
        kept = [largest(head, budget) for head, budget in zip(rows, budgets, strict=True)]
        return [kept[i * key_heads : (i + 1) * key_heads] for i in range(layers)]


#: Rules by name.
RULES: dict[str, Rule] = {rule.name: rule for rule in (Streaming(), SnapKV(), AdaKV(), KVzip())}
