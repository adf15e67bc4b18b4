"""One passage through a model, dense or with replaced attention: what every layer and the end say.

In a decoder the first three quarters of a passage, the prefix, are read once, dense, and kept as a
key cache; the queries are the last quarter, which is what a reduced cache is asked. In an encoder
all tokens are queries.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.errors import InputError
from esscher.models import LayerInputs, LoadedModel, attention_override
from esscher.models._transformers import transformers_module
from esscher.probing.context import PREFIX
from esscher.text import Passage

#: Positions at most at which a decoder's next-token laws are compared: each is as long as the
#: vocabulary.
POSITIONS = 256


@dataclass(frozen=True, eq=False)
class Pass:
    """What one pass of the model over a passage's queries gave.

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

    attention: list[Tensor] = field(default_factory=list)
    residual: list[Tensor] = field(default_factory=list)
    end: Tensor = field(default_factory=lambda: torch.zeros(0))


class PassageReader:
    """A passage ready to be read many times, with different attention.

    Attributes
    ----------
    certain
        True at keys that are kept for certain: position 0, delimiters, and in a decoder the last
        quarter, which attends to itself as usual.
    asking
        Rows of the queries at which errors are measured: all that are not delimiters.
    """

    def __init__(self, loaded: LoadedModel, passage: Passage) -> None:
        check_supported(loaded)
        self.loaded, self.passage = loaded, passage
        self._ids = torch.from_numpy(passage.ids)[None].to(loaded.device)
        length = len(passage.ids)
        self.prefix = prefix_length(loaded, passage)
        self.certain = certain_keys(loaded, passage)
        self.asking = torch.from_numpy(np.flatnonzero(~passage.is_delimiter[self.prefix :]))
        queries = length - self.prefix
        # the last token's successor is not in the passage
        count = min(POSITIONS, queries - 1)
        spaced = np.unique(np.linspace(0, queries - 2, count).round().astype(np.int64))
        self.positions = torch.from_numpy(spaced)
        self._cache = self._read_prefix() if loaded.causal else None

    @property
    def eligible(self) -> int:
        """Number E of keys of which some are drawn."""
        return int(np.count_nonzero(~self.certain))

    @property
    def next_tokens(self) -> Tensor:
        """The token that follows each of the positions."""
        return self._ids[0, self.prefix + self.positions + 1].cpu()

    def read(self, replacement: Callable[[LayerInputs], Tensor | None]) -> Pass:
        """Read the queries; ``replacement`` computes attention, None for the model's own."""
        found = Pass()

        def watch(inputs: LayerInputs) -> Tensor | None:
            output = replacement(inputs)
            found.attention.append((inputs.own() if output is None else output)[0].cpu())
            return output

        with (
            torch.no_grad(),
            attention_override(self.loaded, watch),
            _watching_blocks(self.loaded, found.residual),
        ):
            end = self._next_token_laws() if self.loaded.causal else self._embedding()
        return Pass(found.attention, found.residual, end.cpu())

    def _read_prefix(self) -> Any:
        cache = transformers_module().DynamicCache(config=self.loaded.model.config)
        with torch.no_grad():
            self.loaded.backbone(
                input_ids=self._ids[:, : self.prefix], past_key_values=cache, use_cache=True
            )
        return cache

    def _next_token_laws(self) -> Tensor:
        # a copy: the call appends to the cache, and a sliding one cannot be cut back
        output = self.loaded.model(
            input_ids=self._ids[:, self.prefix :],
            past_key_values=copy.deepcopy(self._cache),
            use_cache=True,
            logits_to_keep=self.positions.to(self.loaded.device),
        )
        return torch.log_softmax(output.logits[0].to(torch.float32), dim=-1)

    def _embedding(self) -> Tensor:
        options = {"use_cache": False} if self.loaded.family.decoder else {}
        output = self.loaded.backbone(
            input_ids=self._ids, attention_mask=torch.ones_like(self._ids), **options
        )
        text = torch.from_numpy(~self.passage.is_delimiter).to(self.loaded.device)
        states: Tensor = output.last_hidden_state[0]
        return states[text].to(torch.float32).mean(dim=0)


def prefix_length(loaded: LoadedModel, passage: Passage) -> int:
    """Tokens of a passage that a decoder has in its cache when the queries come."""
    return int(PREFIX * len(passage.ids)) if loaded.causal else 0


def certain_keys(loaded: LoadedModel, passage: Passage) -> NDArray[np.bool_]:
    """True at keys that are kept for certain, [length]."""
    certain = passage.is_delimiter.copy()
    certain[0] = True
    if loaded.causal:
        certain[prefix_length(loaded, passage) :] = True
    return certain


def check_supported(loaded: LoadedModel) -> None:
    """Refuse a causal model that cannot be asked for next tokens on a key cache."""
    if not loaded.causal:
        return
    if not loaded.family.decoder:
        raise InputError(
            f"{loaded.name!r} is a causal {loaded.family.name} model, whose key cache cannot be "
            "read; choose an encoder, or a decoder of another family"
        )
    if loaded.model.get_output_embeddings() is None:
        raise InputError(
            f"{loaded.name!r} was loaded without its next-token head; load it by name, or as a "
            "model for causal language modelling"
        )


@contextlib.contextmanager
def _watching_blocks(loaded: LoadedModel, states: list[Tensor]) -> Iterator[None]:
    """Append what every block returns, within the block."""

    def keep(module: Any, args: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        states.append(hidden[0].detach().to("cpu", torch.float32))

    handles = [block.register_forward_hook(keep) for block in loaded.family.blocks(loaded.model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
