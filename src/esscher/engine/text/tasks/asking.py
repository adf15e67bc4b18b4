"""Questions put to a model that has read a text: what it answers, and how likely the answer is."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.models.transformers_library import transformers_module
from esscher.engine.text.tasks.haystack import Ids
from esscher.engine.text.tasks.items import TaskItem


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model answered.

    Attributes
    ----------
    text
        What it generated, after the beginning that the question gives.
    score
        Share of what a right answer contains; see :func:`exact_match`.
    log_probability
        Mean over the tokens of the right answer, in nats, each given those before it.
    """

    text: str
    score: float
    log_probability: float


def exact_match(item: TaskItem, text: str) -> float:
    """Share of what a right answer contains that occurs in a text, as whole words.

    Case and the width of spaces do not matter (RULER's string match).
    """
    said = " ".join(text.split()).lower()
    found = [
        re.search(rf"(?<![0-9a-z]){re.escape(part.lower())}(?![0-9a-z])", said) is not None
        for part in item.answers
    ]
    return sum(found) / len(found)


def read_context(loaded: LoadedModel, item: TaskItem, cache: Any = None) -> Any:
    """Let a model read the text of an item.

    Parameters
    ----------
    loaded
        A decoder.
    item
        The item.
    cache
        An empty cache, which is filled; transformers' own if left out.
    """
    if cache is None:
        cache = transformers_module().DynamicCache(config=loaded.model.config)
    with torch.no_grad():
        loaded.backbone(
            input_ids=_batch(loaded, item.context), past_key_values=cache, use_cache=True
        )
    return cache


def ask(loaded: LoadedModel, cache: Any, item: TaskItem) -> Answer:
    """Ask the question of an item.

    Parameters
    ----------
    loaded
        A decoder with its tokenizer.
    cache
        Any cache that has read the text of the item and nothing else; it is left as it is.
    item
        The item.

    Raises
    ------
    InputError
        If the cache has read anything else.
    """
    seen = int(cache.get_seq_length())
    if seen != len(item.context):
        raise InputError(
            f"the cache has read {seen:,} tokens, and the text of the item has "
            f"{len(item.context):,}; let a new cache read it with read_context"
        )
    if loaded.model.get_output_embeddings() is None:
        raise InputError(
            f"{loaded.name!r} was loaded without its next-token head and cannot answer; load it by "
            "name, or as a model for causal language modelling"
        )
    with torch.no_grad():
        cache = copy.deepcopy(cache)
        law = next_laws(loaded, cache, item.question)
        log_probability = _log_probability(loaded, copy.deepcopy(cache), law, item.answer_ids)
        new = _generate(loaded, cache, law, item.max_new)
    text = _text(loaded, item.question, new)
    return Answer(text=text, score=exact_match(item, text), log_probability=log_probability)


def next_laws(loaded: LoadedModel, cache: Any, ids: Ids, last: int = 1) -> Tensor:
    """Let a model read on; return log-probabilities of what follows the last tokens.

    Parameters
    ----------
    loaded
        A decoder with its next-token head.
    cache
        What it has read before; it grows.
    ids
        Tokens.
    last
        How many of them; the result has a row for each.
    """
    output = loaded.model(
        input_ids=_batch(loaded, ids), past_key_values=cache, use_cache=True, logits_to_keep=last
    )
    return torch.log_softmax(output.logits[0, -last:].to(torch.float32), dim=-1)


def _log_probability(loaded: LoadedModel, cache: Any, law: Tensor, answer: Ids) -> float:
    laws = [law]
    if len(answer) > 1:
        laws.append(next_laws(loaded, cache, answer[:-1], len(answer) - 1))
    tokens = torch.from_numpy(answer).to(law.device)
    return float(torch.cat(laws).gather(1, tokens[:, None]).double().mean())


def _generate(loaded: LoadedModel, cache: Any, law: Tensor, count: int) -> list[int]:
    """The likeliest tokens one after the other, up to an end of text."""
    ends = _ends(loaded)
    new: list[int] = []
    while True:
        token = int(law[-1].argmax())
        if token in ends:
            return new
        new.append(token)
        if len(new) == count:
            return new
        law = next_laws(loaded, cache, np.array([token]))


def _ends(loaded: LoadedModel) -> set[int]:
    """Tokens that end a text."""
    config = getattr(loaded.model, "generation_config", None)
    found = {getattr(loaded.tokenizer, "eos_token_id", None)}
    named = getattr(config, "eos_token_id", None)
    found.update(named if isinstance(named, (list, tuple)) else [named])
    return {int(token) for token in found if token is not None}


def _text(loaded: LoadedModel, question: Ids, new: list[int]) -> str:
    """Text of new tokens; some tokenizers would drop the space before the first one."""
    tokenizer = loaded.tokenizer
    before = tokenizer.decode(question.tolist(), skip_special_tokens=True)
    both = tokenizer.decode([*question.tolist(), *new], skip_special_tokens=True)
    if both.startswith(before):
        return str(both[len(before) :])
    return str(tokenizer.decode(new, skip_special_tokens=True))


def _batch(loaded: LoadedModel, ids: Ids) -> Tensor:
    return torch.from_numpy(ids)[None].to(loaded.device)
