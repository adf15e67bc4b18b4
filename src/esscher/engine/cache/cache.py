"""A transformers cache that holds part of the tokens, a different number in every key head.

It reads a prompt itself, or is filled from a prompt that was read once by dense attention, of which
caches of any part can be made (:class:`ObservedPrompt`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.shown import byte_count
from esscher.core.validation import as_dim, as_path
from esscher.engine.cache.budgets import Keeping, Score, TokenBudgets, check_repeat
from esscher.engine.cache.hooks import Call, attach
from esscher.engine.cache.layer import ReducedLayer, restore_sliding
from esscher.engine.cache.published import PromptLayer, Rule
from esscher.engine.cache.repeating import CHUNK, Instruction, repeat_prompt
from esscher.engine.cache.scores import (
    QUERIES,
    QueryTargets,
    Repetition,
    combined,
    observe_prompt,
)
from esscher.engine.cache.selection import PlannedRule, certain_keys, fit_kept
from esscher.engine.cache.storage import Kept
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.models.transformers_library import transformers_module
from esscher.engine.models.weights import rotation_of
from esscher.engine.reading import read_prompt

#: What becomes of tokens after the prompt: all are kept, or they share the budgets.
Decode: TypeAlias = Literal["keep", "budget"]

_transformers: Any = transformers_module("transformers.cache_utils")


class ReducedCache(_transformers.Cache):  # type: ignore[misc]
    """Keys and values of the tokens that a plan keeps; hand it to a model or to ``generate``.

    Made by :meth:`esscher.results.Plan.cache`. Layers with a sliding window are transformers' own:
    they hold few tokens by themselves.

    Attributes
    ----------
    rule
        Which tokens are kept; None for a cache that was filled from a dense one.
    decode, chunk
        As for :meth:`~esscher.results.Plan.cache`.
    call
        What is known about the call that goes on.
    instruction
        How the model is told to repeat a prompt; None if it need not, or has no tokenizer.
    weight_hash
        Of the model.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        rule: PlannedRule | None = None,
        *,
        decode: Decode = "keep",
        chunk: int | None = None,
    ) -> None:
        if decode not in ("keep", "budget"):
            raise InputError(f"decode is {decode!r}; choose 'keep' or 'budget'")
        self.rule, self.decode = rule, decode
        self.chunk = None if chunk is None else as_dim(chunk, "chunk")
        self.call = Call()
        self.weight_hash, self._key_heads = loaded.weight_hash, loaded.shape.key_heads
        repeats = rule is not None and rule.score == "repeat"
        if repeats:
            check_repeat(decode, chunk)
        self.instruction = Instruction.of(loaded) if repeats and loaded.tokenizer else None
        attach(loaded)
        layers = check_reducible(loaded)
        for number, layer in enumerate(layers):
            if type(layer) is _transformers.DynamicLayer:
                bounded = decode == "budget"
                layers[number] = ReducedLayer(number, rule, self.call, bounded=bounded)
        super().__init__(layers=layers)

    @property
    def reduced(self) -> list[ReducedLayer]:
        """The layers that hold part of the tokens."""
        return [layer for layer in self.layers if isinstance(layer, ReducedLayer)]

    def reset(self) -> None:
        """Forget everything; the cache can be used for another prompt."""
        self.call.finish()
        self.call.unfinished = False
        super().reset()

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the newest tokens; so many, as a negative number.

        Raises
        ------
        InputError
            If they were reduced already, or for a positive number.
        """
        with self.changing():
            super().crop(tokens_to_remove)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Change all layers within a block, or none: else the cache is unfinished behind it."""
        seen = self.get_seq_length()
        self.call.unfinished = True
        try:
            yield
            self.call.finish()
        except BaseException:
            self.call.finish()
            self.call.unfinished = any(layer.get_seq_length() != seen for layer in self.layers)
            raise
        self.call.unfinished = False

    def splits(self, tokens: int) -> bool:
        """Whether so many new tokens are read in pieces."""
        first = self.get_seq_length() == 0
        return self.chunk is not None and tokens > self.chunk and (first or self.decode == "budget")

    def repeats(self, tokens: int) -> bool:
        """Whether the model repeats so many new tokens before it is decided what is kept."""
        rule = self.rule
        if rule is None or rule.score != "repeat" or tokens == 0 or self.get_seq_length() > 0:
            return False
        return not all(rule.keeps_all(layer, tokens) for layer in range(len(self.layers)))

    @property
    def kept(self) -> NDArray[np.int64]:
        """Tokens held, [layers, key heads], of all texts together and with those after the prompt.

        A layer with a sliding window holds as many as its window at most.
        """
        rows = np.zeros((len(self.layers), self._key_heads), dtype=np.int64)
        for row, layer in zip(rows, self.layers, strict=True):
            if not isinstance(layer, ReducedLayer):
                row[:] = 0 if layer.keys is None else layer.keys.shape[0] * layer.keys.shape[2]
            elif layer.kept:
                row[:] = layer.kept
        return rows

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

        save_cache(self, as_path(path, "path"))

    def __repr__(self) -> str:
        if not self.reduced or self.reduced[0].segments is None:
            return "ReducedCache(empty)"
        texts, seen = self.reduced[0].batch_size, self.get_seq_length()
        share = self.nbytes / self.dense_nbytes
        return (
            f"ReducedCache({texts} text{'s' * (texts != 1)} of {seen:,} tokens, "
            f"{byte_count(self.nbytes)} of {byte_count(self.dense_nbytes)}: {share:.1%})"
        )


def check_reducible(loaded: LoadedModel) -> list[Any]:
    """Return the layers of the model's own cache; some of them must hold all tokens.

    Raises
    ------
    InputError
        If all its layers have a sliding window, or some hold what a plan cannot reduce.
    """
    layers: list[Any] = _transformers.DynamicCache(config=loaded.model.config).layers
    kinds = {type(layer) for layer in layers}
    sliding = _transformers.DynamicSlidingWindowLayer
    for kind in kinds - {_transformers.DynamicLayer, sliding}:
        raise InputError(
            f"the cache of {loaded.name!r} has layers of type {kind.__name__}, which a plan cannot "
            "reduce"
        )
    if kinds == {sliding}:
        raise InputError(
            f"all layers of {loaded.name!r} have a sliding window of {layers[0].sliding_window} "
            "tokens: its cache is small by itself, and a plan has nothing to reduce"
        )
    return layers


def planned_cache(
    loaded: LoadedModel,
    budgets: TokenBudgets,
    *,
    seed: int = 0,
    decode: Decode = "keep",
    length: int | None = None,
    chunk: int | None = None,
    score: Score | None = None,
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
    score
        By which queries tokens are scored; by default those that the budgets were planned for. With
        ``"repeat"`` all layers hold a prompt whole until the model has repeated it.
    """
    if score not in (None, *get_args(Score)):
        raise InputError(f"score is {score!r}; choose 'all', 'last' or 'repeat'")
    bound = None if length is None else as_dim(length, "length")
    rule = PlannedRule(loaded, budgets, seed, bound, score)
    if rule.score == "repeat":
        Instruction.of(loaded)  # there must be a tokenizer
    return ReducedCache(loaded, rule, decode=decode, chunk=chunk)


def reduced_copy(
    loaded: LoadedModel, dense: Any, *kept: Mapping[int, Sequence[Kept]]
) -> ReducedCache:
    """Make a cache that holds part of what a dense one does, or several parts of it.

    Parameters
    ----------
    loaded
        The model.
    dense
        A cache of transformers that has read one text; it is left as it is.
    kept
        What is kept by each key head, by layer; layers with a sliding window keep what they have.
        Several parts become a batch, as if they were of several texts.
    """
    out, count = ReducedCache(loaded), len(kept)
    for number, (layer, source) in enumerate(zip(out.layers, dense.layers, strict=True)):
        keys, values = (x.expand(count, -1, -1, -1) for x in (source.keys, source.values))
        if isinstance(layer, ReducedLayer):
            present = [torch.arange(keys.shape[2])] * count
            layer.fill(keys, values, [part[number] for part in kept], present)
        else:
            restore_sliding(layer, keys, values, source.cumulative_length)
    return out


def _bytes_of(layer: Any) -> int:
    return 0 if layer.keys is None else int(layer.keys.nbytes + layer.values.nbytes)


class ObservedPrompt:
    """A prompt that was read once; caches of any part of it can be made.

    Layers with a sliding window are left out: they are not reduced.

    Parameters
    ----------
    loaded
        A decoder.
    ids
        Tokens of the prompt, [n].
    keeping
        What is kept for certain.
    score
        By which queries tokens are scored.
    rules
        Published rules that score tokens too, each with a name of its own.
    fits
        Whether what is kept can be fitted to what queries get from all tokens.
    chunk
        Tokens that the model repeats at a time, if a score or a rule wants that.

    Attributes
    ----------
    rules
        The rules.
    cache
        Transformers' own, which has read the prompt.
    scores
        Scores of the tokens by layer, [key heads, n].
    rule_scores
        The same for every rule, by its name.
    certain
        True at tokens that are kept for certain, [n].
    """

    def __init__(
        self,
        loaded: LoadedModel,
        ids: NDArray[np.int64],
        keeping: Keeping,
        score: Score = "all",
        rules: Sequence[Rule] = (),
        fits: bool = True,
        chunk: int = CHUNK,
    ) -> None:
        self.loaded, self.rules, tokens = loaded, tuple(rules), torch.from_numpy(ids)
        self.certain = certain_keys(len(ids), keeping.sinks, keeping.recent)
        self.scores: dict[int, Tensor] = {}
        self.rule_scores: dict[str, dict[int, Tensor]] = {rule.name: {} for rule in rules}
        self._targets: dict[int, list[QueryTargets]] = {}
        repetitions: dict[int, list[Repetition]] = {}

        def add_scores(inputs: LayerInputs, repeated: tuple[int, int] | None) -> None:
            rotation = rotation_of(loaded, inputs.layer)
            layer = PromptLayer(inputs, len(ids), rotation, repeated)
            for rule in rules:
                if rule.reads == ("prompt" if repeated is None else "repeat"):
                    known, scores = self.rule_scores[rule.name], rule.score(layer)
                    before = known.get(inputs.layer, scores)
                    known[inputs.layer] = torch.maximum(before, scores)

        def read(inputs: LayerInputs) -> None:
            if inputs.window is not None:
                return
            add_scores(inputs, None)
            rotation = rotation_of(loaded, inputs.layer)
            most = QUERIES if fits else 0
            observed = observe_prompt(inputs, score, rotation, most=most)
            self.scores[inputs.layer], self._targets[inputs.layer] = observed

        def repeat(inputs: LayerInputs, begin: int, end: int) -> None:
            if inputs.window is not None:
                return
            add_scores(inputs, (begin, end))
            if score != "repeat":
                return
            count, group = end - begin, inputs.group
            known = repetitions.setdefault(
                inputs.layer, [Repetition(group, len(ids)) for _ in inputs.k[0]]
            )
            ends = inputs.offset + inputs.q.shape[2] - count + torch.arange(1, count + 1)
            query = inputs.q[0, :, -count:].to(torch.float32) * inputs.scaling
            for g, keys in enumerate(inputs.k[0].to(torch.float32)):
                heads = query[g * group : (g + 1) * group]
                known[g].add(heads, keys, ends.to(keys.device), inputs.softcap)

        self.cache = read_prompt(loaded, tokens, read)
        if score == "repeat" or any(rule.reads == "repeat" for rule in rules):
            repeat_prompt(loaded, tokens, self.cache, repeat, chunk)
        for layer, heads in repetitions.items():
            values = self.cache.layers[layer].values[0]
            repeated = [head.score(v) for head, v in zip(heads, values, strict=True)]
            self.scores[layer] = combined(self.scores[layer], torch.stack(repeated))

    @property
    def dense_nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(_bytes_of(layer) for layer in self.cache.layers)

    def fit(self, layer: int, kept: Sequence[Kept]) -> list[Kept]:
        """Fit what the key heads of a layer keep to what queries get from all tokens."""
        source = self.cache.layers[layer]
        heads = zip(kept, self._targets[layer], source.keys[0], source.values[0], strict=True)
        return [fit_kept(*head) for head in heads]

    def reduced(self, *kept: Mapping[int, Sequence[Kept]]) -> ReducedCache:
        """Make a cache that holds part of the prompt, by layer and key head.

        Several parts are stored as if they were of several texts.
        """
        return reduced_copy(self.loaded, self.cache, *kept)
