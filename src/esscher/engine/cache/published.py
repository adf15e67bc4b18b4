"""One layer of a decoder that has read a prompt: what rules look at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.validation import as_dim
from esscher.engine.cache.repeating import CHUNK, repeat_prompt
from esscher.engine.models import LayerInputs, LoadedModel
from esscher.engine.models.weights import Rotation, rotate, rotate_back, rotation_of

#: Queries taken at a time: a block of weights has so many rows, and a column for every key.
BLOCK = 256


@dataclass(frozen=True, eq=False)
class Prefilled:
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

    def values(self, key_head: int) -> Tensor:
        """Values of the prompt, [prompt, d_v]."""
        return self.inputs.v[0, key_head, : self.prompt].to(torch.float32)

    def keys(self, key_head: int) -> Tensor:
        """Keys of the prompt, [prompt, d]."""
        return self.inputs.k[0, key_head, : self.prompt].to(torch.float32)

    def weights(self, head: int, queries: slice, index: Tensor | None = None) -> Tensor:
        """Attention weights of some queries, [queries, keys], over all keys or some of them."""
        logits = self.inputs.logits(0, head, queries, torch.float32)
        return torch.softmax(logits if index is None else logits[:, index], dim=-1)

    def blocks(self) -> list[slice]:
        """All queries, some at a time."""
        count = self.inputs.q.shape[2]
        return [slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)]

    def unrotated(self, head: int) -> Tensor:
        """Queries of a head as they were before the rotary embedding, [n_q, d]."""
        query = self.inputs.q[0, head].to(torch.float32)
        if self.rotation is None:
            return query
        positions = self.inputs.offset + torch.arange(len(query), device=query.device)
        return rotate_back(query, *self.rotation(positions))


def prefilled_layer(
    loaded: LoadedModel,
    inputs: LayerInputs,
    prompt: int,
    repeated: tuple[int, int] | None = None,
) -> Prefilled:
    """Bring together what rules look at in a layer; see :class:`Prefilled`."""
    return Prefilled(inputs, prompt, rotation_of(loaded, inputs.layer), repeated)


# What published rules have in common: scores while a prompt is read, and a choice by them.
#
# A rule looks at every layer once (:meth:`Rule.look`) and then chooses what each key head keeps
# (:meth:`Rule.keep`). All rules keep the same number of tokens in all, so that they can be
# compared. Equal scores are decided for the token that comes first, so that results can be
# repeated.


@dataclass(frozen=True, eq=False)
class Scores:
    """What a rule made of one layer: the larger the score of a token, the better it is kept.

    Attributes
    ----------
    scores
        [key heads, tokens], float32.
    """

    scores: Tensor

    @property
    def tokens(self) -> int:
        """Number of tokens of the prompt."""
        return int(self.scores.shape[1])

    def joined(self, other: Scores) -> Scores:
        """The larger of two scores of every token: of two parts of a repetition."""
        return Scores(torch.maximum(self.scores, other.scores))


class Rule(ABC):
    """A published rule for what is kept of a prompt.

    Attributes
    ----------
    cite
        Authors, title and arXiv number.
    reads
        What the rule looks at: the prompt's own reading, or its repetition by the model.
    """

    cite: ClassVar[str]
    reads: ClassVar[Literal["prompt", "repeat"]] = "prompt"

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in the registry."""

    @abstractmethod
    def look(self, layer: Prefilled) -> Scores:
        """Score the tokens of the prompt in one layer."""

    @abstractmethod
    def _choose(self, found: Sequence[Scores], each: int) -> list[list[Tensor]]:
        """Choose what is kept, see :meth:`keep`."""

    def keep(self, found: Sequence[Scores], each: int) -> list[list[Tensor]]:
        """Choose what every key head keeps: increasing indices, by layer and key head.

        In all they are exactly ``each`` times the number of key heads of all layers.

        Parameters
        ----------
        found
            What :meth:`look` found, layer by layer. Layers that are not reduced are left out.
        each
            Tokens that a key head keeps on average.

        Raises
        ------
        InputError
            If there are not so many tokens.
        """
        each, tokens, key_heads = as_dim(each, "each"), found[0].tokens, len(found[0].scores)
        if each > tokens:
            raise InputError(f"each is {each:,}; the prompt has {tokens:,} tokens")
        kept = self._choose(found, each)
        total = sum(len(index) for layer in kept for index in layer)
        if total != each * len(found) * key_heads:
            raise AssertionError(
                f"the rule {self.name!r} kept {total:,} tokens in all, not "
                f"{each * len(found) * key_heads:,}"
            )
        return kept


class Scorer(Rule):
    """A rule that keeps the same number of tokens in every head: those with the largest scores."""

    def _choose(self, found: Sequence[Scores], each: int) -> list[list[Tensor]]:
        return [[largest(own, each) for own in layer.scores] for layer in found]


def named(rule: str, scorer: Scorer, published: type[Scorer]) -> str:
    """Name of a rule over a scorer; the one it was published with is not named."""
    return rule if type(scorer) is published else f"{rule}:{scorer.name}"


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


def check_longer(layer: Prefilled, rule: str, least: int) -> None:
    """Refuse a prompt that is not longer than what a rule keeps for certain.

    Raises
    ------
    InputError
        Naming both.
    """
    if layer.prompt <= least:
        raise InputError(
            f"the prompt has {layer.prompt} tokens; the rule {rule!r} needs more than {least}"
        )


# StreamingLLM: the first tokens and the latest ones.
#
# Xiao, Tian, Chen, Han, Lewis: Efficient Streaming Language Models with Attention Sinks,
# arXiv 2309.17453. Positions stay those of the text: tokens are not moved together.


@dataclass(frozen=True)
class Streaming(Scorer):
    """Sinks and recent tokens.

    Attributes
    ----------
    sinks
        First tokens that are kept.
    """

    cite = "Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453"
    sinks: int = 4

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "streaming"

    def look(self, layer: Prefilled) -> Scores:
        """The later a token, the larger its score; sinks have the largest."""
        check_longer(layer, self.name, self.sinks)
        scores = torch.arange(layer.prompt, dtype=torch.float32)
        scores[: self.sinks] += layer.prompt
        return Scores(scores.expand(layer.key_heads, -1))


# SnapKV: what the last queries of the prompt attended to, smoothed over neighbours.
#
# Li et al.: SnapKV: LLM Knows What You Are Looking for Before Generation, arXiv 2404.14469. Sizes
# and the mean over heads that share a key are those of kvpress.


@dataclass(frozen=True)
class SnapKV(Scorer):
    """An observation window.

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

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "snapkv"

    def look(self, layer: Prefilled) -> Scores:
        """Mean weights of the last queries, of the heads that share a key, and of neighbours."""
        check_longer(layer, self.name, self.window)
        last = slice(layer.inputs.q.shape[2] - self.window, layer.inputs.q.shape[2])
        before = layer.prompt - self.window
        mean = torch.stack(
            [
                torch.stack(
                    [layer.weights(h, last)[:, :before].mean(0) for h in layer.query_heads(g)]
                ).mean(0)
                for g in range(layer.key_heads)
            ]
        )
        smooth = torch.nn.functional.avg_pool1d(
            mean, self.neighbours, stride=1, padding=self.neighbours // 2
        )
        return Scores(padded(smooth, 0, self.window).cpu())


# Expected attention: the weights that normal queries at positions to come would have.
#
# Devoto, Jeblick, Jégou: Expected Attention: KV Cache Compression by Estimating Attention from
# Future Queries Distribution, arXiv 2510.00636. Queries before their rotation are taken for normal
# with the mean and the covariance of the prompt's own; with R the mean rotation of the positions to
# come, a key k has the expected weight
#
#     E exp(a <q, k>)  ~  exp(a <R m, k> + a^2 <k, R S R' k> / 2),
#
# a the factor of the logits, normalised over the keys. A soft bound of the logits is left out.


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


# AdaKV: the heads of a layer share its budget, tokens competing by their scores.
#
# Feng, Lv, Cao, Xie, Zhou: Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for
# Efficient LLM Inference, arXiv 2407.11550. Any scorer can be used; SnapKV is the published one.


@dataclass(frozen=True)
class AdaKV(Rule):
    """Budgets of heads by the largest scores of a layer.

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
    scorer: Scorer = field(default_factory=SnapKV)
    safeguard: float = 0.2

    @property
    def name(self) -> str:
        """Name in the registry, with that of the scorer if it is another."""
        return named("adakv", self.scorer, SnapKV)

    def look(self, layer: Prefilled) -> Scores:
        """As the scorer."""
        return self.scorer.look(layer)

    def _choose(self, found: Sequence[Scores], each: int) -> list[list[Tensor]]:
        out = []
        for layer in found:
            budgets = adaptive_budgets(layer.scores, each, self.safeguard)
            pairs = zip(layer.scores, budgets, strict=True)
            out.append([largest(own, budget) for own, budget in pairs])
        return out


def adaptive_budgets(scores: Tensor, each: int, safeguard: float) -> list[int]:
    """How many of a layer's largest scores lie in each head; every head has some for certain."""
    safe = safe_tokens(scores, each, safeguard)
    return largest_of_all(scores.masked_fill(safe, torch.inf), each * len(scores))


def safe_tokens(scores: Tensor, each: int, safeguard: float) -> Tensor:
    """True at the tokens that a head keeps whatever others have, [key heads, tokens]."""
    count = max(1, int(each * safeguard)) if safeguard > 0 else 0
    out = torch.zeros_like(scores, dtype=torch.bool)
    for row, own in zip(out, scores, strict=True):
        row[largest(own, count)] = True
    return out


# KVzip: the largest weight that a token gets while the model repeats the prompt.
#
# Kim, Kim, Kwon, Lee, Yun, Song: KVzip: Query-Agnostic KV Cache Compression with Context
# Reconstruction, arXiv 2505.23416. The prompt is repeated in chunks (``repeat.py``). A token's
# score is the largest weight among the queries that repeat its chunk, over the heads that share it;
# these weights are normalised over the sinks, the chunk and the repetition alone. Budgets are
# whatever the largest scores of all layers and heads make them.


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


# Rules look on while a decoder reads a prompt, and while it repeats it.


class Looking:
    """What some rules find in a prompt, layer by layer; layers with a sliding window are left out.

    Parameters
    ----------
    loaded
        The decoder.
    rules
        The rules, each with a name of its own.
    prompt
        Number of tokens of the prompt.

    Attributes
    ----------
    rules
        The rules.
    layers
        Numbers of the layers that were looked at.
    """

    def __init__(self, loaded: LoadedModel, rules: Sequence[Rule], prompt: int) -> None:
        self._loaded, self.rules, self._prompt = loaded, tuple(rules), prompt
        self._found: dict[str, dict[int, Scores]] = {rule.name: {} for rule in rules}
        self.layers: list[int] = []

    def watch(self, inputs: LayerInputs) -> None:
        """Look at a layer that reads the prompt, all of it at once."""
        if inputs.window is not None:
            return
        self.layers.append(inputs.layer)
        layer = prefilled_layer(self._loaded, inputs, self._prompt)
        for rule in self.rules:
            if rule.reads == "prompt":
                self._found[rule.name][inputs.layer] = rule.look(layer)

    def repeat(self, ids: Tensor, cache: Any, chunk: int = CHUNK) -> None:
        """Let the model repeat the prompt, if a rule wants to see that; see ``repeat.py``."""
        rules = [rule for rule in self.rules if rule.reads == "repeat"]

        def watch(inputs: LayerInputs, begin: int, end: int) -> None:
            if inputs.window is not None:
                return
            layer = prefilled_layer(self._loaded, inputs, self._prompt, (begin, end))
            for rule in rules:
                own, found = self._found[rule.name], rule.look(layer)
                before = own.get(inputs.layer)
                own[inputs.layer] = found if before is None else before.joined(found)

        if rules:
            repeat_prompt(self._loaded, ids, cache, watch, chunk)

    def found(self, rule: Rule) -> list[Scores]:
        """What a rule found, one per layer."""
        own = self._found[rule.name]
        return [own[layer] for layer in self.layers]


# Published rules for what a decoder keeps of a prompt, one per file.
#
# They are written from the papers and agree with kvpress 0.5.5 where that has them
# (``benchmarks/kvpress.py`` measures how far). Unlike a plan they keep heads' best tokens and
# forget the others.

#: Rules by name.
RULES: dict[str, Rule] = {
    rule.name: rule for rule in (Streaming(), SnapKV(), Expected(), AdaKV(), KVzip())
}
#: Rules over which others work.
SCORERS: dict[str, Scorer] = {
    name: rule for name, rule in RULES.items() if isinstance(rule, Scorer)
}


def rule_named(name: str) -> Rule:
    """Return the rule of a name; ``adakv:expected`` is AdaKV over the scores of another rule.

    Raises
    ------
    InputError
        Naming the rules that there are.
    """
    rule, _, scorer = name.partition(":")
    if not scorer and name in RULES:
        return RULES[name]
    if rule == "adakv" and scorer in SCORERS:
        return AdaKV(SCORERS[scorer])
    raise InputError(
        f"there is no rule {name!r}; choose among {', '.join(RULES)}, or adakv with a colon and "
        f"one of {', '.join(SCORERS)}"
    )
