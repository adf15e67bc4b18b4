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
from esscher.engine.text.tasks.items import Ids, TaskItem


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
            input_ids=torch.from_numpy(item.context)[None].to(loaded.device),
            past_key_values=cache,
            use_cache=True,
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
    return ask_each(loaded, cache, item)[0]


def ask_each(loaded: LoadedModel, cache: Any, item: TaskItem, count: int = 1) -> list[Answer]:
    """Ask the question of an item to every text of a cache, all at once.

    A model that generates spends its time on reading its weights: once for all of them.

    Parameters
    ----------
    loaded, cache, item
        As for :func:`~esscher.engine.text.tasks.asking.ask`.
    count
        Texts of the cache: parts of the item's text, say, that were kept in different ways.
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
        law = _laws_of_each(loaded, cache, _repeated(item.question, count))
        likely = _log_probabilities(loaded, copy.deepcopy(cache), law, item.answer_ids)
        new = _generate(loaded, cache, law, item.max_new)
    texts = [_text(loaded, item.question, own) for own in new]
    return [
        Answer(text=text, score=exact_match(item, text), log_probability=own)
        for text, own in zip(texts, likely, strict=True)
    ]


def _laws_of_each(loaded: LoadedModel, cache: Any, ids: Ids, last: int = 1) -> Tensor:
    """Let a model read on: log-probabilities of what follows the last tokens of every text.

    From tokens [texts, new], laws [texts, last, vocabulary]; the cache grows.
    """
    output = loaded.model(
        input_ids=torch.from_numpy(ids).to(loaded.device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=last,
    )
    return torch.log_softmax(output.logits[:, -last:].to(torch.float32), dim=-1)


def _log_probabilities(loaded: LoadedModel, cache: Any, law: Tensor, answer: Ids) -> list[float]:
    laws = [law]
    if len(answer) > 1:
        laws.append(_laws_of_each(loaded, cache, _repeated(answer[:-1], len(law)), len(answer) - 1))
    tokens = torch.from_numpy(answer).to(law.device).expand(len(law), -1)
    found = torch.cat(laws, dim=1).gather(2, tokens[..., None]).double()
    return [float(own) for own in found.mean((1, 2))]


def _generate(loaded: LoadedModel, cache: Any, law: Tensor, count: int) -> list[list[int]]:
    """The likeliest tokens of every text one after the other, up to an end of text."""
    ends = _ends(loaded)
    new: list[list[int]] = [[] for _ in law]
    going = set(range(len(law)))
    while True:
        tokens = law[:, -1].argmax(-1).tolist()
        going -= {i for i in going if tokens[i] in ends}
        for i in going:
            new[i].append(tokens[i])
        count -= 1
        if not going or count == 0:
            return new
        # texts that have ended are read on, and what they say is not listened to
        law = _laws_of_each(loaded, cache, np.array(tokens)[:, None])


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


def _repeated(ids: Ids, count: int) -> Ids:
    return np.repeat(ids[None], count, axis=0)
