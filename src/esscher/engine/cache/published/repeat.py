"""A decoder repeats its prompt, and somebody watches what it attends to.

As in KVzip (arXiv 2505.23416): after the prompt the model is told to repeat it, and then reads it
again, as if it did. Long prompts are repeated in chunks, each after the prompt alone.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from esscher.engine.cache.instruction import CHUNK, Instruction
from esscher.engine.models import LayerInputs, LoadedModel, attention_override
from esscher.engine.models.transformers_library import transformers_module

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
