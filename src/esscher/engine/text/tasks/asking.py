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
    text = " ".join(text.split()).lower()
    matches = [
        re.search(rf"(?<![0-9a-z]){re.escape(part.lower())}(?![0-9a-z])", text) is not None
        for part in item.answers
    ]
    return sum(matches) / len(matches)


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
    tokenizer = loaded.tokenizer
    named = getattr(getattr(loaded.model, "generation_config", None), "eos_token_id", None)
    ends = {tokenizer.eos_token_id, *(named if isinstance(named, (list, tuple)) else [named])}
    with torch.no_grad():
        cache = copy.deepcopy(cache)
        law = _next_token_laws(loaded, cache, np.repeat(item.question[None], count, axis=0))
        # how likely the right answer is
        laws = [law]
        if len(item.answer_ids) > 1:
            before = np.repeat(item.answer_ids[None, :-1], count, axis=0)
            last = before.shape[1]
            laws.append(_next_token_laws(loaded, copy.deepcopy(cache), before, last))
        tokens = torch.from_numpy(item.answer_ids).to(law.device).expand(count, -1)
        chances = torch.cat(laws, dim=1).gather(2, tokens[..., None]).double().mean((1, 2))
        # the likeliest tokens of every text one after the other, up to an end of text
        new: list[list[int]] = [[] for _ in range(count)]
        running = set(range(count))
        for remaining in range(item.max_new - 1, -1, -1):
            likeliest = law[:, -1].argmax(-1).cpu().numpy()
            running -= {i for i in running if int(likeliest[i]) in ends}
            for i in running:
                new[i].append(int(likeliest[i]))
            if not running or not remaining:
                break
            # texts that have ended are read on, but their tokens are not kept
            law = _next_token_laws(loaded, cache, likeliest[:, None])
    answers = []
    question = tokenizer.decode(item.question.tolist(), skip_special_tokens=True)
    for ids, chance in zip(new, chances, strict=True):
        # some tokenizers would drop the space before the first new token
        text = str(tokenizer.decode([*item.question.tolist(), *ids], skip_special_tokens=True))
        if text.startswith(question):
            text = text[len(question) :]
        else:
            text = str(tokenizer.decode(ids, skip_special_tokens=True))
        score = exact_match(item, text)
        answers.append(Answer(text=text, score=score, log_probability=float(chance)))
    return answers


def _next_token_laws(loaded: LoadedModel, cache: Any, ids: Ids, last: int = 1) -> Tensor:
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
