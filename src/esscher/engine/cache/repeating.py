"""What a decoder is told so that it repeats what it has read, as in KVzip (arXiv 2505.23416)."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from esscher.core.errors import InputError
from esscher.engine.models import LayerInputs, LoadedModel, attention_override
from esscher.engine.models.transformers_library import transformers_module

#: Tokens that are repeated at a time.
CHUNK = 2048
#: What the model is told, before the beginning of a text and before other parts, and what follows.
FIRST = "\n\nRepeat the previous context exactly."
LATER = "\n\nRepeat the part of the previous context exactly, starting with"
SUFFIX = "\n"
#: Tokens before a part, which say where it starts.
OVERLAP = 8


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

        told = [tensor(self.first)] if before is None else [tensor(self.later), before[-OVERLAP:]]
        return torch.cat([*told, tensor(self.suffix), part])

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


# A model repeats what it has just read with a reduced cache, which then decides what it keeps.

#: The argument of a model that is its cache.
ARGUMENT = "past_key_values"


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
    tokens, seen = given.shape[1], cache.get_seq_length()
    splits = cache.splits(tokens)
    if not (splits or cache.repeats(tokens)):
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
    piece = -(-tokens // -(-tokens // cache.chunk)) if splits else tokens
    remedy = (
        "choose score='all'" if splits else "read it in pieces (chunk=...) or choose score='all'"
    )
    cache.instruction.check_room(seen + tokens, min(piece, CHUNK), remedy)


def tokens_before(kwargs: dict[str, Any], start: int) -> list[Tensor] | None:
    """Last tokens of every text before a place among those of a call."""
    ids, mask = kwargs.get("input_ids"), kwargs.get("attention_mask")
    if ids is None:
        return None
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    found = zip(_own_tokens(ids, mask), _own_tokens(places, mask), strict=True)
    return [text[at < start][-OVERLAP:] for text, at in found]


def _own_tokens(ids: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Tokens of every text without padding."""
    if mask is None:
        return list(ids)
    there = mask[:, mask.shape[1] - ids.shape[1] :].to(torch.bool)
    return [text[own] for text, own in zip(ids, there, strict=True)]


@torch.no_grad()
def repeat_read(module: nn.Module, cache: Any, kwargs: dict[str, Any], chunk: int = CHUNK) -> None:
    """Let a model repeat the tokens of a call that is over, and decide what is kept of them.

    Parameters
    ----------
    module
        The backbone.
    cache
        The cache, whose layers wait.
    kwargs
        Arguments of the call.
    chunk
        Tokens that are repeated at a time.
    """
    ids, mask = kwargs["input_ids"], kwargs.get("attention_mask")
    own, seen = _own_tokens(ids, mask), cache.get_seq_length()
    lengths = cache.reduced[0].lengths
    begun = [int(length) > len(text) for length, text in zip(lengths, own, strict=True)]
    earlier = cache.call.earlier or [text[:0] for text in own]
    places = _places_behind(ids, mask, kwargs.get("position_ids"))
    for begin in range(0, max(map(len, own)), chunk):
        reads, rows = [], []
        for text, before, later in zip(own, earlier, begun, strict=True):
            part, known = text[begin : begin + chunk], torch.cat([before, text[:begin]])
            read = cache.instruction.reading(part, known if later or begin else None)
            reads.append(read if len(part) else part)
            rows.append((len(reads[-1]) - len(part), len(reads[-1])))
        batch, there = _padded(reads)
        call = {"input_ids": batch, ARGUMENT: cache, "use_cache": True}
        if mask is not None:
            call["attention_mask"] = torch.cat([mask[:, :seen], there.to(mask.dtype)], dim=1)
        if places is not None:
            call["position_ids"] = places[:, None] + torch.arange(
                batch.shape[1], device=places.device
            )
        _read_and_forget(module, cache, call, rows)
    for layer in cache.reduced:
        layer.decide()


def _read_and_forget(
    module: nn.Module, cache: Any, call: dict[str, Any], rows: list[tuple[int, int]]
) -> None:
    """Call a model, and take back what the cache has taken in."""
    sliding = [
        (layer, layer.keys, layer.values, layer.cumulative_length)
        for layer in cache.layers
        if layer.is_sliding
    ]
    cache.call.repeating = rows
    module(**call)
    cache.call.repeating = None
    for layer, *held in sliding:
        layer.keys, layer.values, layer.cumulative_length = held
    for layer in cache.reduced:
        layer.take_back(call["input_ids"].shape[1])


def _padded(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Tokens of a batch with padding on the right, and where there is none, [batch, width]."""
    width = max(map(len, texts))
    ids = texts[0].new_zeros(len(texts), width)
    there = torch.zeros_like(ids, dtype=torch.bool)
    for i, text in enumerate(texts):
        ids[i, : len(text)], there[i, : len(text)] = text, True
    return ids, there


def _places_behind(ids: Tensor, mask: Tensor | None, places: Tensor | None) -> Tensor | None:
    """Positions behind the last token of every text, [batch]; None if the model makes them."""
    if places is None:
        return None
    own = _own_tokens(places.expand(len(ids), -1), mask)
    return torch.stack([text[-1] + 1 if len(text) else places.new_zeros(()) for text in own])


# A decoder repeats its prompt, and somebody watches what it attends to.
#
# As in KVzip (arXiv 2505.23416): after the prompt the model is told to repeat it, and then reads it
# again, as if it did. Long prompts are repeated in chunks, each after the prompt alone.

#: Takes the inputs of a layer, and begin and end of the part of the prompt that is repeated.
Watch: TypeAlias = Callable[[LayerInputs, int, int], None]


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
    for begin in range(0, len(ids), chunk):
        end = min(begin + chunk, len(ids))
        read = instruction.reading(ids[begin:end], ids[:begin] if begin else None)

        def look(inputs: LayerInputs, begin: int = begin, end: int = end) -> None:
            watch(inputs, begin, end)

        with _borrowed(cache) as own, torch.no_grad(), attention_override(loaded, look):
            loaded.backbone(input_ids=read[None], past_key_values=own, use_cache=True)


@contextlib.contextmanager
def _borrowed(cache: Any) -> Iterator[Any]:
    """A cache that may grow within the block, and is what it was after it.

    Layers that hold everything make new tensors when they grow: the old ones are put back. Others
    change in place, and are copied.
    """
    plain = transformers_module("transformers.cache_utils").DynamicLayer
    if any(type(layer) is not plain for layer in cache.layers):
        yield copy.deepcopy(cache)
        return
    held = [(layer.keys, layer.values) for layer in cache.layers]
    try:
        yield cache
    finally:
        for layer, (keys, values) in zip(cache.layers, held, strict=True):
            layer.keys, layer.values = keys, values
