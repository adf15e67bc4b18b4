"""A passage read many times with different attention: outputs of every layer and of the model.

In a decoder the beginning of a passage, the prefix, is read once, dense, and kept as a key cache;
the queries are the tokens after it. In an encoder all tokens are queries.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.engine.models.capture import attention_override
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.models.transformers_library import transformers_module
from esscher.engine.text.packing import Passage

#: Positions at most at which a decoder's next-token distributions are compared: each is as long as
#: the vocabulary.
POSITIONS = 256


@dataclass(frozen=True, eq=False)
class Pass:
    """Results of one pass of the model over a passage's queries.

    Attributes
    ----------
    attention
        Attention output of every layer before its output projection, [heads, n_q, d_v].
    residual
        Tokens after every block, [n_q, hidden].
    end
        Decoder: logarithms of the next-token probabilities at some positions, [positions,
        vocabulary]. Encoder: the passage's embedding, [hidden].
    """

    attention: list[Tensor]
    residual: list[Tensor]
    end: Tensor


class PassageReader:
    """A passage ready to be read many times, with different attention.

    Parameters
    ----------
    loaded, passage
        Model and passage.
    prefix
        Tokens of the passage that a decoder has in its cache when the queries come; 0 for an
        encoder.
    cache
        Transformers' own cache of a decoder that has read the prefix; made if it is left out. An
        encoder has none.

    Attributes
    ----------
    query_rows
        Rows of the queries at which errors are measured: all that are not delimiters.
    positions
        Rows of the queries at which next-token distributions are compared (decoders).
    """

    def __init__(
        self,
        loaded: LoadedModel,
        passage: Passage,
        prefix: int,
        cache: Any = None,
    ) -> None:
        check_supported(loaded)
        self.loaded, self.passage, self.prefix = loaded, passage, prefix
        self._ids = torch.from_numpy(passage.ids)[None].to(loaded.device)
        self.query_rows = torch.from_numpy(np.flatnonzero(~passage.is_delimiter[prefix:]))
        queries = len(passage.ids) - prefix
        # the last token's successor is not in the passage
        count = min(POSITIONS, queries - 1)
        spaced = np.unique(np.linspace(0, queries - 2, count).round().astype(np.int64))
        self.positions = torch.from_numpy(spaced)
        if cache is None and loaded.causal:
            cache = read_prompt(loaded, self._ids[0, :prefix], lambda inputs: None)
        self.cache = cache

    @property
    def next_tokens(self) -> Tensor:
        """The token that follows each of the positions."""
        return self._ids[0, self.prefix + self.positions + 1].cpu()

    def read(self, replacement: Callable[[LayerInputs], Tensor | None], cache: Any = None) -> Pass:
        """Read the queries.

        Parameters
        ----------
        replacement
            Computes attention, or returns None for the model's own.
        cache
            What a decoder has read before the queries; by default the dense prefix. It grows.
        """
        attention: list[Tensor] = []
        residual: list[Tensor] = []

        def watch(inputs: LayerInputs) -> Tensor | None:
            output = replacement(inputs)
            attention.append((inputs.original() if output is None else output)[0].cpu())
            return output

        def keep(module: Any, args: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            residual.append(hidden[0].detach().to("cpu", torch.float32))

        blocks = self.loaded.family.blocks(self.loaded.model)
        handles = [block.register_forward_hook(keep) for block in blocks]
        try:
            with torch.no_grad(), attention_override(self.loaded, watch):
                end = self.end(cache)
        finally:
            for handle in handles:
                handle.remove()
        return Pass(attention, residual, end.cpu())

    def end(self, cache: Any = None) -> Tensor:
        """Run the model on the queries, with whatever attention it has now; see :class:`Pass`."""
        loaded = self.loaded
        if loaded.causal:
            output = loaded.model(
                input_ids=self._ids[:, self.prefix :],
                # a copy: the call appends to the cache, and a sliding one cannot be cut back
                past_key_values=copy.deepcopy(self.cache) if cache is None else cache,
                use_cache=True,
                logits_to_keep=self.positions.to(loaded.device),
            )
            return torch.log_softmax(output.logits[0].to(torch.float32), dim=-1)
        options = {"use_cache": False} if loaded.family.decoder else {}
        output = loaded.backbone(
            input_ids=self._ids, attention_mask=torch.ones_like(self._ids), **options
        )
        text = torch.from_numpy(~self.passage.is_delimiter).to(loaded.device)
        states: Tensor = output.last_hidden_state[0]
        return states[text].to(torch.float32).mean(dim=0)


def read_prompt(loaded: LoadedModel, ids: Tensor, watch: Callable[[LayerInputs], None]) -> Any:
    """Let a decoder read a prompt [n] at once; return transformers' own cache of it.

    ``watch`` is called with the inputs of every layer.
    """
    cache = transformers_module().DynamicCache(config=loaded.model.config)
    with torch.no_grad(), attention_override(loaded, watch):
        loaded.backbone(
            input_ids=ids[None].to(loaded.device), past_key_values=cache, use_cache=True
        )
    return cache


def check_supported(loaded: LoadedModel) -> None:
    """Refuse a causal model without a next-token head."""
    loaded.outline.check_supported()
    if loaded.causal and loaded.model.get_output_embeddings() is None:
        raise InputError(
            f"{loaded.name!r} was loaded without its next-token head; load it by name, or as a "
            "model for causal language modelling"
        )


def compare_laws(dense: Tensor, other: Tensor, next_tokens: Tensor) -> dict[str, float]:
    """Compare next-token distributions, given as logarithms [positions, vocabulary].

    ``kl``: mean of KL(dense || other) in nats. ``top1``: share of positions with the same most
    likely token. ``nll``: mean surprise of the other one at the token that follows, in nats.
    """
    divergence = (dense.exp() * (dense - other)).sum(dim=-1, dtype=torch.float64)
    same = dense.argmax(dim=-1) == other.argmax(dim=-1)
    return {
        "kl": float(divergence.mean().clamp(min=0.0)),
        "top1": float(same.double().mean()),
        "nll": surprise(other, next_tokens),
    }


def surprise(law: Tensor, next_tokens: Tensor) -> float:
    """Mean surprise of distributions at the tokens that follow, in nats."""
    return float(-law.gather(1, next_tokens[:, None]).double().mean())
