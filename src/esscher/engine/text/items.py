"""Items of tasks in tokens: a text with needles in it, a question, and what a model answers."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.text.packing import Framing, Passage, framing_of, text_after
from esscher.engine.text.questions import Article
from esscher.engine.text.tasks import (
    ADJECTIVES,
    CITIES,
    NOUNS,
    TASKS,
    THINGS,
    pick,
    pick_coded,
    pick_numbers,
    pick_one,
    question_after,
)

Ids: TypeAlias = NDArray[np.int64]

#: Sentences that are repeated where there is no text to hide needles in (those of RULER).
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
#: Characters that end a sentence, with those that may follow them; and those of scripts without
#: spaces.
ENDS, CLOSING, WIDE_ENDS = (".", "!", "?"), "\"'”’)»", ("。", "！", "？")
#: How tokenizers write the space or the line break before a word.
SPACES = ("▁", "Ġ", "Ċ", " ", "\n")
#: Tokens that are searched for the end of a sentence.
SEARCHED = 64
#: The end of a context has no needle, so that recent tokens do not answer: a share, at least so
#: many tokens.
FREE_SHARE, FREE_TOKENS = 0.05, 64
#: Fewest tokens of an article: SnapKV, for one, asks from its last 64.
FEWEST = 65
#: A question about an article, after one that its title answers, and tokens of a reply beyond those
#: of the longest right answer.
ASKED = (
    "\n\nAnswer the questions with words of the text.\n\nQuestion: What is this text about?\n"
    "Answer: {}\n\nQuestion: {}\nAnswer:"
)
SPARE = 8
#: Steps between the depths of items: any number of them in a row is evenly spread.
GOLDEN = (math.sqrt(5) - 1) / 2


def sentence_ends(framing: Framing, ids: Ids) -> NDArray[np.int64]:
    """Numbers of tokens after which a sentence ends and another can begin; 0 is not one."""
    tokenizer = framing.tokenizer
    ends = []
    for i in range(1, len(ids)):
        text = tokenizer.decode([int(ids[i - 1])])
        if text.endswith(WIDE_ENDS):
            ends.append(i)
        elif text.rstrip(CLOSING).endswith(ENDS):
            following = tokenizer.convert_ids_to_tokens(int(ids[i]))
            if str(following).startswith(SPACES):
                ends.append(i)
    return np.array(ends, dtype=np.int64)


def free_end(length: int) -> int:
    """Tokens at the end of a context that have no needle among them."""
    return max(FREE_TOKENS, math.ceil(FREE_SHARE * length))


def hide(
    framing: Framing,
    needles: Sequence[str],
    number: int,
    length: int,
    *,
    name: str,
    purpose: str,
    seed: int,
    haystack: Ids | None,
    ordered: bool = False,
) -> tuple[Ids, tuple[tuple[int, int], ...]]:
    """Put needles between the sentences of a text.

    Needles are evenly spread over the depths of a text, which move on from item to item; there are
    none in its last 5 percent (or 64 tokens), so that recent tokens do not answer.

    Parameters
    ----------
    framing
        The tokenizer.
    needles, ordered
        Sentences to hide, and whether they come in this order.
    number, length
        Number of the item, and tokens in all.
    name, purpose, seed
        What the item is called, and the random stream of its places.
    haystack
        Tokens of the text, at least ``length``; items take one stretch after the other, from a
        random place on, and begin again behind its end. None repeats a few sentences.

    Returns
    -------
    The context, and the first and last place of each needle.

    Raises
    ------
    InputError
        If the length is too short for the needles; with the least length.
    """
    hidden = [framing.ids(f" {needle}") for needle in needles]
    taken = len(framing.prefix) + sum(map(len, hidden))
    least = taken + FREE_TOKENS
    while least - free_end(least) < taken:
        least += 1
    if length < least:
        raise InputError(
            f"length is {length:,}, but {name} needs contexts of at least {least:,} tokens"
        )
    tokens = length - taken
    if haystack is None:
        once = len(framing.ids(NOISE))
        ids = framing.ids(" ".join([NOISE] * (length // once + 1)))[:tokens]
    else:
        starts = len(haystack) - length + 1
        first = int(random_stream(seed, "haystack").integers(starts))
        start = (first + number * length) % starts
        room = min(SEARCHED, len(haystack) - tokens - start)
        ends = sentence_ends(framing, haystack[start : start + room + 1])
        ids = haystack[start + (int(ends[0]) if len(ends) else 0) :][:tokens]

    shift = float(random_stream(seed, f"{purpose} depth").random()) + GOLDEN * number
    depths = [(shift % 1.0 + i / len(hidden)) % 1.0 for i in range(len(hidden))]
    if ordered:
        depths.sort()
    last = tokens - free_end(length)
    at = []
    for depth in depths:
        # the end of a sentence near this depth, if there is one
        wanted = int(depth * (last + 1))
        begin = max(0, wanted - SEARCHED)
        around = sentence_ends(framing, ids[begin : min(last, wanted + SEARCHED) + 1]) + begin
        around = around[around <= last]
        at.append(int(around[np.argmin(np.abs(around - wanted))]) if len(around) else wanted)
    parts, done, size = [framing.prefix], 0, len(framing.prefix)
    places = [(0, 0)] * len(hidden)
    for i in sorted(range(len(hidden)), key=lambda i: at[i]):
        parts += [ids[done : at[i]], hidden[i]]
        size += at[i] - done
        done = at[i]
        places[i] = (size, size + len(hidden[i]))
        size = places[i][1]
    return np.concatenate([*parts, ids[done:]]), tuple(places)


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskItem:
    """A text, a question about it, and the answer.

    Attributes
    ----------
    task, number
        Name of the task, and number of the item.
    haystack
        ``"noise"`` or ``"text"``.
    context
        Token ids of the text, with the token for its beginning if the tokenizer has one.
    question
        Token ids of the question and of the beginning of its answer, which follow the text.
    answers
        What a right answer contains; see :func:`exact_match`.
    answer, answer_ids
        How the answer goes on, and its token ids.
    max_new
        Tokens to generate.
    needles
        First token of each needle, and the one behind its last.
    one_line
        Whether an answer ends with its line.
    """

    task: str
    number: int
    haystack: str
    context: Ids = field(repr=False)
    question: Ids = field(repr=False)
    answers: tuple[str, ...]
    answer: str
    answer_ids: Ids = field(repr=False)
    max_new: int
    needles: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    one_line: bool = False


def task_item(
    loaded: LoadedModel,
    task: str,
    number: int,
    length: int,
    *,
    seed: int = 0,
    haystack: Ids | None = None,
) -> TaskItem:
    """Make an item of a task: a function of the task, its number, the length, seed and haystack.

    Parameters
    ----------
    loaded
        A decoder with its tokenizer.
    task
        A name of ``TASKS``.
    number
        Number of the item.
    length
        Tokens of the text.
    seed
        Seed of words, numbers and places.
    haystack
        Tokens of a text in which needles are hidden; None repeats a few sentences (noise). Items
        take different stretches of a text.

    Raises
    ------
    InputError
        For a length that is too short for the needles or too long for the model.
    """
    framing = framing_of(loaded)
    purpose = f"task {task}"
    draft = TASKS[task](random_stream(seed, purpose, number))
    context, places = hide(
        framing,
        draft.needles,
        number,
        length,
        name=f"the task {task!r}",
        purpose=purpose,
        seed=seed,
        haystack=haystack,
        ordered=draft.ordered,
    )
    question = framing.ids(draft.question)
    answer = _answer_ids(framing, draft.question, draft.answer)
    max_new = len(answer) + draft.spare
    needed = length + len(question) + max_new
    if needed > loaded.max_positions:
        raise InputError(
            f"the task {task!r} with a context of {length:,} tokens takes {needed:,} with its "
            f"question and answer, but {loaded.name!r} reads at most {loaded.max_positions:,}; "
            f"give a length of at most {loaded.max_positions - needed + length:,}"
        )
    return TaskItem(
        task=task,
        number=number,
        haystack="noise" if haystack is None else "text",
        context=context,
        question=question,
        answers=draft.answers,
        answer=draft.answer,
        answer_ids=answer,
        max_new=max_new,
        needles=places,
    )


def _answer_ids(framing: Framing, question: str, answer: str) -> Ids:
    """Tokens of an answer behind its question."""
    before, whole = framing.ids(question), framing.ids(f"{question} {answer}")
    if len(whole) > len(before) and np.array_equal(whole[: len(before)], before):
        return whole[len(before) :]
    return framing.ids(f" {answer}")  # joined, the last token of the question is another one


def article_items(loaded: LoadedModel, article: Article) -> list[TaskItem]:
    """Make an item of every question about an article; the context is the whole article.

    Raises
    ------
    InputError
        If the article is too short, or too long for the model with a question and its answer.
    """
    framing, items = framing_of(loaded), list[TaskItem]()
    context = np.concatenate([framing.prefix, framing.ids(article.text)])
    for number, (text, answers) in enumerate(article.questions):
        asked = ASKED.format(article.title.replace("_", " "), text)
        ids = [_answer_ids(framing, asked, answer) for answer in answers]
        item = TaskItem(
            task="questions",
            number=number,
            haystack=article.title,
            context=context,
            question=framing.ids(asked),
            answers=answers,
            answer=answers[0],
            answer_ids=ids[0],
            max_new=max(map(len, ids)) + SPARE,
            one_line=True,
        )
        items.append(item)
    room = loaded.max_positions - max(len(item.question) + item.max_new for item in items)
    if not FEWEST <= len(context) <= room:
        raise InputError(
            f"the article {article.title!r} has {len(context):,} tokens; with a question and its "
            f"answer {loaded.name!r} reads {room:,}, and below {FEWEST} there is little to reduce: "
            "move paragraphs, with their questions, between the articles of the file"
        )
    return items


def calibration_item(
    loaded: LoadedModel,
    number: int,
    length: int,
    query_count: int,
    *,
    seed: int = 0,
    haystack: Ids | None = None,
) -> Passage:
    """Make a passage with four needles in it that ends with questions for them, and their answers.

    The needles are other sentences than those of the tasks, so that plans calibrated on them know
    nothing of the tasks' wording. Its last tokens look for what the text says.

    Parameters
    ----------
    loaded, number, seed, haystack
        As for :func:`task_item`.
    length
        Tokens of the text with the needles.
    query_count
        Tokens of questions and answers after it. They ask for one needle after the other, then
        again in another order, and are cut where they are long enough.

    Raises
    ------
    InputError
        If the length is too short.
    """
    framing, purpose = framing_of(loaded), "retrieval passage"
    rng = random_stream(seed, purpose, number)
    (code,), (amount,) = pick_numbers(rng, 1, 6), pick_numbers(rng, 1, 5)
    (word,) = pick_coded(rng, 1, 3)
    first, second = pick(rng, ADJECTIVES, 2)
    host, home, town = pick(rng, CITIES, 3)
    thing, animal = pick_one(rng, THINGS), pick_one(rng, NOUNS)
    facts = [  # beginning of the statement, question, answer
        (
            f"The code of the {first} {animal} is",
            f"What is the code of the {first} {animal}?",
            code,
        ),
        (
            f"The number of {thing} counted in {host} was",
            f"How many {thing} were counted in {host}?",
            amount,
        ),
        (
            f"The password of the station in {home} is",
            f"What is the password of the station in {home}?",
            word,
        ),
        (
            f"The {second} letter was sent to the city of",
            f"Where was the {second} letter sent?",
            town,
        ),
    ]
    context, _ = hide(
        framing,
        [f"{beginning} {answer}." for beginning, _, answer in facts],
        number,
        length,
        name="a retrieval passage",
        purpose=purpose,
        seed=seed,
        haystack=haystack,
    )
    parts: list[Ids] = [context]
    while sum(map(len, parts)) < length + query_count:
        for i in rng.permutation(len(facts)):
            beginning, question, answer = facts[i]
            parts.append(framing.ids(f"{question_after(question, beginning)} {answer}."))
    ids = np.concatenate(parts)[: length + query_count]
    is_delimiter = np.isin(ids, framing.delimiters)
    is_delimiter[: len(framing.prefix)] = True
    return Passage(number, ids, is_delimiter)


# Questions put to a model that has read a text.


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


def ask(
    loaded: LoadedModel, cache: Any, item: TaskItem, count: int = 1
) -> list[tuple[str, float, float]]:
    """Ask the question of an item to every text of a cache, all at once.

    A model that generates spends its time on reading its weights: once for all of them.

    Parameters
    ----------
    loaded
        A decoder with its tokenizer.
    cache
        Any cache that has read the text of the item and nothing else; it is left as it is.
    item
        The item.
    count
        Texts of the cache: parts of the item's text, say, that were kept in different ways.

    Returns
    -------
    For every text: what the model generated, after the beginning that the question gives; the share
    of what a right answer contains (:func:`exact_match`); and the mean log-probability of the
    tokens of the right answer, in nats, each given those before it.
    """
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
            if item.one_line:
                running -= {i for i in running if "\n" in tokenizer.decode([int(likeliest[i])])}
            for i in running:
                new[i].append(int(likeliest[i]))
            if not running or not remaining:
                break
            # texts that have ended are read on, but their tokens are not kept
            law = _next_token_laws(loaded, cache, likeliest[:, None])
    answers = []
    for ids, chance in zip(new, chances, strict=True):
        text = text_after(tokenizer, item.question.tolist(), ids)
        answers.append((text, exact_match(item, text), float(chance)))
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
