"""A transformers cache that holds part of the tokens, a different number in every key head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.shown import byte_count
from esscher.core.validation import as_dim
from esscher.engine.cache.attachment import attach
from esscher.engine.cache.budgets import TokenBudgets
from esscher.engine.cache.call import Call
from esscher.engine.cache.layer import ReducedLayer
from esscher.engine.cache.rule import PlannedRule
from esscher.engine.cache.selection import Kept
from esscher.engine.models import LoadedModel
from esscher.engine.models.transformers_library import transformers_module

#: What becomes of tokens after the prompt: all are kept, or they share the budgets.
Decode: TypeAlias = Literal["keep", "budget"]

_transformers: Any = transformers_module("transformers.cache_utils")


class ReducedCache(_transformers.Cache):  # type: ignore[misc]
    """Keys and values of the tokens that a plan keeps; hand it to a model or to ``generate``.

    Made by :meth:`esscher.results.Plan.cache`. Layers with a sliding window are transformers' own:
    they hold few tokens by themselves.

    Attributes
    ----------
    budgets
        What each key head keeps.
    """

    def __init__(
        self, loaded: LoadedModel, budgets: TokenBudgets, rule: PlannedRule | None, *,
        decode: Decode = "keep", chunk: int | None = None,
    ) -> None:  # fmt: skip
        if decode not in ("keep", "budget"):
            raise InputError(f"decode is {decode!r}; choose 'keep' or 'budget'")
        self.budgets, self.rule, self.decode = budgets, rule, decode
        self.chunk = None if chunk is None else as_dim(chunk, "chunk")
        self.call = Call()
        attach(loaded)
        super().__init__(layers=self._make_layers(loaded))

    def _make_layers(self, loaded: LoadedModel) -> list[Any]:
        own = _transformers.DynamicCache(config=loaded.model.config).layers
        if len(own) != loaded.shape.layers:
            own = [_transformers.DynamicLayer() for _ in range(loaded.shape.layers)]
        layers: list[Any] = []
        for number, layer in enumerate(own):
            if type(layer) is _transformers.DynamicLayer:
                bounded = self.decode == "budget"
                layers.append(ReducedLayer(number, self.rule, self.call, bounded=bounded))
            elif type(layer) is _transformers.DynamicSlidingWindowLayer:
                layers.append(layer)
            else:
                raise InputError(
                    f"layer {number} of {loaded.name!r} caches {type(layer).__name__}, which a "
                    "plan cannot reduce"
                )
        return layers

    @property
    def reduced(self) -> list[ReducedLayer]:
        """The layers that hold part of the tokens."""
        return [layer for layer in self.layers if isinstance(layer, ReducedLayer)]

    def reset(self) -> None:
        """Forget everything; the cache can be used for another prompt."""
        self.call.handed = None
        super().reset()

    def splits(self, tokens: int) -> bool:
        """Whether so many new tokens are read in pieces."""
        first = self.get_seq_length() == 0
        return self.chunk is not None and tokens > self.chunk and (first or self.decode == "budget")

    def stop_reading(self) -> None:
        """A prompt was read in pieces, to its end."""
        if self.decode == "keep":
            for layer in self.reduced:
                layer.recent = None

    @property
    def kept(self) -> NDArray[np.int64]:
        """Tokens held, [layers, key heads], of all texts together and with those after the prompt.

        A layer with a sliding window holds as many as its window at most.
        """
        key_heads = self.budgets.model.key_heads
        return np.array(
            [
                (layer.kept if isinstance(layer, ReducedLayer) else [_held(layer)] * key_heads)
                or [0] * key_heads
                for layer in self.layers
            ],
            dtype=np.int64,
        )

    @property
    def nbytes(self) -> int:
        """Bytes that the cache takes: keys, values, weights, and room for tokens to come."""
        return sum(
            layer.nbytes if isinstance(layer, ReducedLayer) else _bytes_of(layer)
            for layer in self.layers
        )

    @property
    def dense_nbytes(self) -> int:
        """Bytes that transformers' own cache would take for the same tokens."""
        return sum(
            layer.dense_nbytes if isinstance(layer, ReducedLayer) else _bytes_of(layer)
            for layer in self.layers
        )

    def save(self, path: str | Path) -> None:
        """Write the cache to a safetensors file; :func:`esscher.load_cache` reads it.

        Raises
        ------
        InputError
            If it is empty, or the file cannot be written; an old file is then as it was.
        """
        from esscher.engine.cache.saved import save_cache

        save_cache(self, Path(path))

    def __repr__(self) -> str:
        if not self.reduced or self.reduced[0].segments is None:
            return "ReducedCache(empty)"
        texts, seen = self.reduced[0].batch_size, self.get_seq_length()
        share = self.nbytes / self.dense_nbytes
        return (
            f"ReducedCache({texts} text{'s' * (texts != 1)} of {seen:,} tokens, "
            f"{byte_count(self.nbytes)} of {byte_count(self.dense_nbytes)}: {share:.1%})"
        )


def planned_cache(
    loaded: LoadedModel,
    budgets: TokenBudgets,
    *,
    seed: int = 0,
    decode: Decode = "keep",
    length: int | None = None,
    chunk: int | None = None,
) -> ReducedCache:
    """Make an empty cache that keeps budgets of what it will be handed.

    Parameters
    ----------
    loaded, budgets
        The model, and what its key heads keep.
    seed
        Seed of the samples.
    decode
        ``"keep"`` holds all tokens after the prompt, ``"budget"`` lets them share the budgets.
    length
        Budgets are shares of all tokens seen; with a length, of so many at most.
    chunk
        Read prompts in pieces of so many tokens.
    """
    bound = None if length is None else as_dim(length, "length")
    rule = PlannedRule(budgets, seed, bound)
    return ReducedCache(loaded, budgets, rule, decode=decode, chunk=chunk)


def reduced_copy(
    loaded: LoadedModel, budgets: TokenBudgets, dense: Any, kept: Sequence[Sequence[Kept]]
) -> ReducedCache:
    """Make a cache of one text that holds part of what a dense one does.

    Parameters
    ----------
    loaded, budgets
        The model, and what describes its key heads.
    dense
        A cache of transformers that has read one text; it is left as it is.
    kept
        What is kept, by layer and key head; layers with a sliding window keep what they have.
    """
    out = ReducedCache(loaded, budgets, None)
    for number, (layer, own) in enumerate(zip(out.layers, dense.layers, strict=True)):
        if isinstance(layer, ReducedLayer):
            tokens = own.keys.shape[2]
            layer.fill(own.keys, own.values, [kept[number]], [tokens], seen=tokens)
        else:
            layer.lazy_initialization(own.keys, own.values)
            layer.keys, layer.values = own.keys, own.values
            layer.cumulative_length = own.cumulative_length
    return out


def _held(layer: Any) -> int:
    return 0 if layer.keys is None else int(layer.keys.shape[0] * layer.keys.shape[2])


def _bytes_of(layer: Any) -> int:
    return 0 if layer.keys is None else int(layer.keys.nbytes + layer.values.nbytes)
