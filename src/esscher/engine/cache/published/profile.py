"""What calibration passages say about the heads of a model, for rules that need it.

Queries that come after a prompt are compared with what a rule kept of it. A token's **future
utility** in a key head is the most that it adds to a later token,

    u_j = sum_h  max_i p_hij  |W_h v_j|,

p the dense weights of the queries i after the prompt, summed over the query heads h that share the
key, and W_h their part of the output projection (the importance of LU-KV, arXiv 2602.08585, for
heads that share keys). What is lost with a budget of n is the utility of all tokens but the n that
the rule ranks highest.

How much a head **retrieves** is the squared error of its outputs, relative to the outputs, when it
keeps first and recent tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.engine.cache.published.criticalkv import output_norm
from esscher.engine.cache.published.prefilled import Prefilled
from esscher.engine.cache.published.rule import Scores
from esscher.engine.cache.published.streaming import sinks_and_recent

#: Tokens of a head that streams while ``retrieval`` is measured, as a share of the prompt; of
#: these, sinks are a fifth and 64 at most (64 of 320 in DuoAttention).
STREAMED, SINK_SHARE, SINKS = 1 / 8, 1 / 5, 64


@dataclass(frozen=True, eq=False)
class LayerProfile:
    """One layer on one passage: see :class:`Profile`."""

    lost: Array
    retrieval: Array


@dataclass(frozen=True, eq=False)
class Profile:
    """Heads of a model, measured on calibration passages.

    Attributes
    ----------
    prompt
        Length of the prompts.
    sizes
        Budgets, increasing; the last one is the whole prompt.
    lost
        Future utility that is lost with each budget, [layers, key heads, sizes].
    retrieval
        Relative squared error of heads that keep first and recent tokens, [layers, key heads].
    """

    prompt: int
    sizes: NDArray[np.int64]
    lost: Array
    retrieval: Array

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be budgets, and arrays that do not fit them."""
        sizes = self.sizes
        if not len(sizes) or np.any(np.diff(sizes) <= 0) or sizes[-1] != self.prompt:
            raise InputError(f"sizes must increase up to the prompt's {self.prompt} tokens")
        if self.lost.shape != (*self.retrieval.shape, len(sizes)) or self.retrieval.ndim != 2:
            raise InputError(
                f"a profile has lost [layers, key heads, sizes] and retrieval [layers, key heads], "
                f"not {self.lost.shape} and {self.retrieval.shape} for {len(sizes)} sizes"
            )

    @classmethod
    def mean(
        cls, passages: Sequence[Sequence[LayerProfile]], prompt: int, sizes: NDArray[np.int64]
    ) -> Profile:
        """Mean over passages, of each of which all layers were measured."""
        return cls(
            prompt=prompt,
            sizes=np.asarray(sizes, dtype=np.int64),
            lost=np.mean([[layer.lost for layer in layers] for layers in passages], axis=0),
            retrieval=np.mean(
                [[layer.retrieval for layer in layers] for layers in passages], axis=0
            ),
        )

    def check_shape(self, layers: int, key_heads: int) -> None:
        """Refuse a model with other layers.

        Raises
        ------
        InputError
            Naming both shapes.
        """
        if self.retrieval.shape != (layers, key_heads):
            raise InputError(
                f"the profile is of {self.retrieval.shape[0]} layers with "
                f"{self.retrieval.shape[1]} key heads, the prompt was read by {layers} with "
                f"{key_heads}"
            )


def measure_profile(layer: Prefilled, found: Scores, sizes: NDArray[np.int64]) -> LayerProfile:
    """Measure one layer on queries that come after the prompt.

    Parameters
    ----------
    layer
        The layer while it reads on after the prompt.
    found
        What the rule found when it looked at the prompt; what is lost is lost by its ranking.
    sizes
        Budgets, increasing; the last one is the whole prompt.
    """
    utility = torch.zeros(layer.key_heads, layer.prompt, dtype=torch.float64)
    retrieval = np.zeros(layer.key_heads)
    sinks, recent = streamed(int(STREAMED * layer.prompt))
    kept = torch.zeros(layer.inputs.k.shape[2], dtype=torch.bool)
    kept[sinks_and_recent(layer.prompt, sinks, recent)] = True
    kept[layer.prompt :] = True
    for g in range(layer.key_heads):
        for h in layer.query_heads(g):
            most, error = _measure_head(layer, h, g, kept.to(layer.inputs.k.device))
            norm = output_norm(layer.values(g), layer.output[h], order=2)
            utility[g] += (most * norm).double().cpu()
            retrieval[g] += error / layer.inputs.group
    return LayerProfile(lost=_lost(utility, found.scores, sizes), retrieval=retrieval)


def streamed(tokens: int) -> tuple[int, int]:
    """First and recent tokens of a head that streams, so many together."""
    sinks = min(SINKS, int(SINK_SHARE * tokens))
    return sinks, tokens - sinks


def _measure_head(layer: Prefilled, head: int, key_head: int, kept: Tensor) -> tuple[Tensor, float]:
    """Largest weights of the prompt's tokens [prompt], and the error of a head that streams."""
    values = layer.inputs.v[0, key_head].to(torch.float32)
    most = torch.zeros(layer.prompt, device=values.device)
    error = square = 0.0
    for queries in layer.blocks():
        logits = layer.inputs.logits(0, head, queries, torch.float32)
        weights = torch.softmax(logits, dim=-1)
        most = torch.maximum(most, weights[:, : layer.prompt].amax(0))
        output = weights @ values
        streams = torch.softmax(logits.masked_fill_(~kept, -torch.inf), dim=-1) @ values
        error += float((streams - output).square().sum(dtype=torch.float64))
        square += float(output.square().sum(dtype=torch.float64))
    return most, error / square if square > 0 else 0.0


def _lost(utility: Tensor, scores: Tensor, sizes: NDArray[np.int64]) -> Array:
    """Utility of all but the tokens with the largest scores, [key heads, sizes]."""
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    ranked = utility.gather(1, order)
    # summed from the least: a budget of everything loses exactly nothing
    left = ranked.flip(1).cumsum(1).flip(1)
    left = torch.cat([left, torch.zeros(len(left), 1, dtype=left.dtype)], dim=1)
    return np.asarray(left[:, torch.from_numpy(np.asarray(sizes, dtype=np.int64))].numpy())
