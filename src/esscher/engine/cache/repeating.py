"""A decoder repeats what it has read, as in KVzip (arXiv 2505.23416).

After a prompt the model is told to repeat it, and then reads it again, as if it did. Long prompts
are repeated in chunks, each after the prompt alone. With a reduced cache the queries of the
repetition score what is kept (:func:`repeat_read`); with a dense one they are observed
(:func:`repeat_prompt`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from esscher.core.errors import InputError
from esscher.engine.models.capture import attention_override
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.models.transformers_library import transformers_module

#: The argument of a model that is its cache.
ARGUMENT = "past_key_values"
#: Tokens that are repeated at a time.
CHUNK = 2048
#: What the model is told, before the beginning of a text and before other parts, and what follows.
FIRST = "\n\nRepeat the previous context exactly."
LATER = "\n\nRepeat the part of the previous context exactly, starting with"
SUFFIX = "\n"
#: Tokens before a part, which say where it starts.
OVERLAP = 8
#: Takes the inputs of a layer, and begin and end of the part of the prompt that is repeated.
Watch: TypeAlias = Callable[[LayerInputs, int, int], None]


@dataclass(frozen=True)
class Instruction:
    """The instruction in tokens of a model.

    Attributes
    ----------
    name, max_positions
        Of the model: its name, and the longest text it can read.
    first, later, suffix
        Tokens of the three texts.
    """

    name: str
    max_positions: int
    first: tuple[int, ...]
    later: tuple[int, ...]
    suffix: tuple[int, ...]

    @classmethod
    def of(cls, loaded: LoadedModel) -> Instruction:
        """Read it with a model's tokenizer.

        Raises
        ------
        InputError
            If there is none.
        """
        if loaded.tokenizer is None:
            raise InputError(
                f"{loaded.name!r} was loaded without a tokenizer, and cannot be told to repeat a "
                "prompt; hand it in with its tokenizer (esscher.wrap_model(model, tokenizer)), or "
                "choose score='all'"
            )
        texts = (
            tuple(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])
            for text in (FIRST, LATER, SUFFIX)
        )
        return cls(loaded.name, loaded.max_positions, *texts)

    def reading(self, part: Tensor, before: Tensor | None) -> Tensor:
        """Tokens that repeat a part of a text, the last of them the part itself.

        Parameters
        ----------
        part
            Tokens, [n].
        before
            Those of the text before the part; None if it is the beginning.
        """

        def tensor(ids: Sequence[int]) -> Tensor:
            return torch.tensor(ids, dtype=part.dtype, device=part.device)

        task = [tensor(self.first)] if before is None else [tensor(self.later), before[-OVERLAP:]]
        return torch.cat([*task, tensor(self.suffix), part])

    def check_room(self, prompt: int, part: int, remedy: str) -> None:
        """Refuse a prompt after which the model cannot read a part of so many tokens again.

        Raises
        ------
        InputError
            With the numbers, and the remedy.
        """
        more = part + len(self.suffix) + max(len(self.first), len(self.later) + OVERLAP)
        if prompt + more > self.max_positions:
            raise InputError(
                f"{self.name!r} reads {self.max_positions:,} tokens at most, and cannot repeat a "
                f"prompt of {prompt:,} tokens with {more:,} more; {remedy}"
            )


def check_repeatable(cache: Any, kwargs: dict[str, Any]) -> None:
    """Refuse a call whose tokens would have to be repeated and cannot be.

    Raises
    ------
    InputError
        If tokens were not handed in as numbers, the mask cannot be read, there is no tokenizer, or
        the model cannot read so many tokens.
    """
    if cache.rule is None or cache.rule.score != "repeat":
        return
    ids = kwargs.get("input_ids")
    given = ids if ids is not None else kwargs.get("inputs_embeds")
    if given is None:
        return
    tokens = given.shape[1]
    if not cache.repeats(tokens):
        return
    if ids is None:
        raise InputError(
            "a prompt that was handed in as inputs_embeds cannot be repeated; hand in input_ids, "
            "or choose score='all'"
        )
    mask = kwargs.get("attention_mask")
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 2):
        raise InputError(
            "a prompt can be repeated with an attention mask [batch, tokens], and this model was "
            "handed another; choose score='all' (a model that also reads images makes its masks "
            "itself: load its text model)"
        )
    if cache.instruction is None:
        raise InputError(
            "the model was handed in without its tokenizer, and cannot be told to repeat a prompt; "
            "make the cache with esscher.wrap_model(model, tokenizer), or with score='all'"
        )
    cache.instruction.check_room(tokens, min(tokens, CHUNK), "choose score='all'")


def _without_padding(ids: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Tokens of every text without padding."""
    if mask is None:
        return list(ids)
    there = mask[:, mask.shape[1] - ids.shape[1] :].to(torch.bool)
    return [text[valid] for text, valid in zip(ids, there, strict=True)]


@torch.no_grad()
def repeat_read(module: nn.Module, cache: Any, kwargs: dict[str, Any]) -> None:
    """Let a model repeat the tokens of a call that is over, and decide what is kept of them.

    Parameters
    ----------
    module
        The backbone.
    cache
        The cache, whose layers wait.
    kwargs
        Arguments of the call.
    """
    ids, mask, places = (kwargs.get(n) for n in ("input_ids", "attention_mask", "position_ids"))
    assert ids is not None
    texts, seen = _without_padding(ids, mask), cache.get_seq_length()
    behind = None
    if places is not None:  # else the model makes them
        by_text = _without_padding(places.expand(len(ids), -1), mask)
        behind = torch.stack([p[-1] + 1 if len(p) else places.new_zeros(()) for p in by_text])
    sliding = [layer for layer in cache.layers if layer.is_sliding]
    for begin in range(0, max(map(len, texts)), CHUNK):
        reads, rows = [], []
        for text in texts:
            part = text[begin : begin + CHUNK]
            read = cache.instruction.reading(part, text[:begin] if begin else None)
            reads.append(read if len(part) else part)
            rows.append((len(reads[-1]) - len(part), len(reads[-1])))
        width = max(map(len, reads))
        batch = ids.new_zeros(len(reads), width)
        there = torch.zeros_like(batch, dtype=torch.bool)
        for i, read in enumerate(reads):
            batch[i, : len(read)], there[i, : len(read)] = read, True
        call = {"input_ids": batch, ARGUMENT: cache, "use_cache": True}
        if mask is not None:
            call["attention_mask"] = torch.cat([mask[:, :seen], there.to(mask.dtype)], dim=1)
        if behind is not None:
            call["position_ids"] = behind[:, None] + torch.arange(width, device=behind.device)
        before_call = [(layer.keys, layer.values, layer.cumulative_length) for layer in sliding]
        cache.call.repeating = rows
        module(**call)
        cache.call.repeating = None
        # what the cache has taken in is taken back
        for layer, state in zip(sliding, before_call, strict=True):
            layer.keys, layer.values, layer.cumulative_length = state
        for layer in cache.reduced:
            layer.tail.length -= width
            layer.seen -= width
    for layer in cache.reduced:
        layer.finish_repetition()


def repeat_prompt(
    loaded: LoadedModel, ids: Tensor, cache: Any, watch: Watch, chunk: int = CHUNK
) -> None:
    """Let a decoder repeat a prompt that it has read.

    Parameters
    ----------
    loaded
        The decoder, with its tokenizer.
    ids
        Tokens of the prompt, [n].
    cache
        Transformers' own cache that has read them; it is afterwards as it was before.
    watch
        Called with the inputs of every layer for every chunk. Queries are the instruction and the
        chunk; keys are the prompt, the instruction and the chunk (in a layer with a sliding window,
        the last of them), each query seeing those before it.
    chunk
        Tokens that are repeated at a time.

    Raises
    ------
    InputError
        If there is no tokenizer, or the model cannot read so many tokens.
    """
    ids = ids.flatten().to(loaded.device)
    instruction = Instruction.of(loaded)
    instruction.check_room(len(ids), min(chunk, len(ids)), "use a shorter prompt")
    dense = transformers_module("transformers.cache_utils").DynamicLayer
    for begin in range(0, len(ids), chunk):
        end = min(begin + chunk, len(ids))
        read = instruction.reading(ids[begin:end], ids[:begin] if begin else None)

        def look(inputs: LayerInputs, begin: int = begin, end: int = end) -> None:
            watch(inputs, begin, end)

        # layers that hold everything make new tensors when they grow, others change in place
        copied = copy.copy(cache)
        copied.layers = [
            copy.copy(layer) if type(layer) is dense else copy.deepcopy(layer)
            for layer in cache.layers
        ]
        with torch.no_grad(), attention_override(loaded, look):
            loaded.backbone(input_ids=read[None], past_key_values=copied, use_cache=True)
