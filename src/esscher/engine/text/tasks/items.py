"""Items of a task: a text with needles in it, a question about them, and the answer, in tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import as_dim, as_seed
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.text.packing import Framing, framing_of
from esscher.engine.text.tasks.haystack import Haystack, HaystackSource, Ids, as_haystack
from esscher.engine.text.tasks.registry import as_task
from esscher.engine.text.tasks.task import Draft, Task

#: The end of a context has no needle, so that recent tokens do not answer: a share, at least so
#: many tokens.
FREE_SHARE, FREE_TOKENS = 0.05, 64
#: Steps between the depths of items: any number of them in a row is evenly spread.
GOLDEN = (math.sqrt(5) - 1) / 2


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
    needles: tuple[tuple[int, int], ...] = field(repr=False)


def task_items(
    loaded: LoadedModel,
    task: str,
    count: int,
    length: int,
    *,
    seed: int = 0,
    haystack: HaystackSource = "noise",
    first: int = 0,
) -> list[TaskItem]:
    """Make items of a task.

    An item is a function of the task, its number, the length, the seed and the haystack, not of
    how many are made. Needles lie at all depths, in turn, but not in the last 5 percent (or 64
    tokens) of a text: recent tokens do not answer.

    Parameters
    ----------
    loaded
        A decoder with its tokenizer.
    task
        A name of ``TASKS``.
    count
        How many items.
    length
        Tokens of each text.
    seed
        Seed of words, numbers and places.
    haystack
        In what needles are hidden: ``"noise"``, a text, or the tokens of one. Items take different
        stretches of a text.
    first
        Number of the first item.

    Raises
    ------
    InputError
        For an unknown task, a model without a tokenizer, a length that is too short for the
        needles or too long for the model, and a text that is too short.
    """
    return make_items(
        loaded, as_task(task), count, length, seed=seed, haystack=haystack, first=first
    )


def make_items(
    loaded: LoadedModel,
    task: Task,
    count: int,
    length: int,
    *,
    seed: int = 0,
    haystack: HaystackSource = "noise",
    first: int = 0,
) -> list[TaskItem]:
    """Make items of any task; arguments as in :func:`task_items`."""
    count, length, seed = as_dim(count, "count"), as_dim(length, "length"), as_seed(seed)
    first = as_seed(first, "first")
    framing = framing_of(loaded, True)
    purpose = f"task {task.name}"
    numbers = range(first, first + count)
    drafts = [task.draft(random_stream(seed, purpose, number)) for number in numbers]
    hidden = [needle_ids(framing, draft.needles) for draft in drafts]
    check_length(f"the task {task.name!r}", framing, hidden, length)
    hay = as_haystack(framing, haystack, length)
    start = float(random_stream(seed, f"{purpose} depth").random())
    items = []
    for number, draft, needles in zip(numbers, drafts, hidden, strict=True):
        depths = spread_depths((start + GOLDEN * number) % 1.0, len(needles), draft.ordered)
        context, places = hide(hay, needles, depths, number, length, seed)
        question, answer = question_ids(framing, draft)
        items.append(
            TaskItem(
                task=task.name,
                number=number,
                haystack=hay.kind,
                context=context,
                question=question,
                answers=draft.answers,
                answer=draft.answer,
                answer_ids=answer,
                max_new=len(answer) + draft.spare,
                needles=places,
            )
        )
    needed = length + max(len(item.question) + item.max_new for item in items)
    if needed > loaded.max_positions:
        raise InputError(
            f"the task {task.name!r} with a context of {length:,} tokens takes {needed:,} with its "
            f"question and answer, but {loaded.name!r} reads at most {loaded.max_positions:,}; "
            f"give a length of at most {loaded.max_positions - needed + length:,}"
        )
    return items


def needle_ids(framing: Framing, needles: Sequence[str]) -> list[Ids]:
    """Tokens of sentences that follow others."""
    return [framing.ids(f" {needle}") for needle in needles]


def check_length(name: str, framing: Framing, hidden: Sequence[Sequence[Ids]], length: int) -> None:
    """Check that a context has room for its needles and for an end without any.

    Raises
    ------
    InputError
        With the least length.
    """
    taken = len(framing.prefix) + max(sum(map(len, needles)) for needles in hidden)
    least = taken + FREE_TOKENS
    while least - free_end(least) < taken:
        least += 1
    if length < least:
        raise InputError(
            f"length is {length:,}, but {name} needs contexts of at least {least:,} tokens"
        )


def free_end(length: int) -> int:
    """Tokens at the end of a context that have no needle among them."""
    return max(FREE_TOKENS, math.ceil(FREE_SHARE * length))


def spread_depths(first: float, count: int, ordered: bool) -> list[float]:
    """Depths of the needles of an item, from 0 to 1, evenly spread from the first one on."""
    depths = [(first + i / count) % 1.0 for i in range(count)]
    return sorted(depths) if ordered else depths


def hide(
    haystack: Haystack,
    needles: Sequence[Ids],
    depths: Sequence[float],
    number: int,
    length: int,
    seed: int,
) -> tuple[Ids, tuple[tuple[int, int], ...]]:
    """Put needles between the sentences of a text.

    Parameters
    ----------
    haystack, number, seed
        The text, the number of the item, and the seed of its place in the text.
    needles, depths
        Tokens of the needles, and how deep they lie.
    length
        Tokens in all.

    Returns
    -------
    The context, and the first and last place of each needle.
    """
    prefix = haystack.framing.prefix
    tokens = length - len(prefix) - sum(map(len, needles))
    ids = haystack.stretch(number, length, tokens, seed)
    last = tokens - free_end(length)
    at = [haystack.place(ids, int(depth * (last + 1)), last) for depth in depths]
    parts, done, size = [prefix], 0, len(prefix)
    places = [(0, 0)] * len(needles)
    for i in sorted(range(len(needles)), key=lambda i: at[i]):
        parts += [ids[done : at[i]], needles[i]]
        size += at[i] - done
        done = at[i]
        places[i] = (size, size + len(needles[i]))
        size = places[i][1]
    return np.concatenate([*parts, ids[done:]]), tuple(places)


def question_ids(framing: Framing, draft: Draft) -> tuple[Ids, Ids]:
    """Tokens of a question, and those with which its answer goes on."""
    question = framing.ids(draft.question)
    both = framing.ids(f"{draft.question} {draft.answer}")
    if len(both) > len(question) and np.array_equal(both[: len(question)], question):
        return question, both[len(question) :]
    # joined, the last token of the question is another one
    return question, framing.ids(f" {draft.answer}")
