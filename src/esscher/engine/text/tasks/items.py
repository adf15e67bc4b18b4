"""Items of tasks in tokens: a text with needles in it, a question about them, and the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.core.streams import random_stream
from esscher.core.validation import as_dim, as_seed
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.text.packing import Framing, Passage, framing_of
from esscher.engine.text.tasks.kinds import (
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

#: Name of the noise, and the sentences that it repeats (those of RULER).
NOISE = "noise"
SENTENCES = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
)
#: Characters that end a sentence, with those that may follow them; and those of scripts without
#: spaces.
ENDS, CLOSING, WIDE_ENDS = (".", "!", "?"), "\"'”’)»", ("。", "！", "？")
#: How tokenizers write the space or the line break before a word.
SPACES = ("▁", "Ġ", "Ċ", " ", "\n")
#: Tokens that are searched for the end of a sentence.
SEARCHED = 64

Ids: TypeAlias = NDArray[np.int64]
#: ``"noise"``, a text, or the tokens of one.
HaystackSource: TypeAlias = "str | Sequence[int] | NDArray[np.integer[Any]]"


@dataclass(frozen=True, eq=False)
class Haystack:
    """A text, in tokens.

    Attributes
    ----------
    kind
        ``"noise"`` or ``"text"``.
    ids
        All its tokens.
    framing
        The tokenizer.
    """

    kind: str
    ids: Ids
    framing: Framing

    def stretch(self, number: int, length: int, tokens: int, seed: int) -> Ids:
        """The text of an item.

        Parameters
        ----------
        number
            Of the item. Items take one stretch after the other, from a random place on; behind the
            end of the text they begin again, at other places.
        length
            Tokens by which stretches follow each other.
        tokens
            Tokens that are wanted, at most ``length``.
        seed
            Seed of the place.
        """
        if self.kind == NOISE:
            return self.ids[:tokens]
        starts = len(self.ids) - length + 1
        first = int(random_stream(seed, "haystack").integers(starts))
        start = (first + number * length) % starts
        room = min(SEARCHED, len(self.ids) - tokens - start)
        ends = self.sentence_ends(self.ids[start : start + room + 1])
        return self.ids[start + (int(ends[0]) if len(ends) else 0) :][:tokens]

    def place(self, ids: Ids, wanted: int, last: int) -> int:
        """The end of a sentence near ``wanted`` tokens and not after ``last``, if there is one."""
        begin = max(0, wanted - SEARCHED)
        around = self.sentence_ends(ids[begin : min(last, wanted + SEARCHED) + 1]) + begin
        around = around[around <= last]
        return int(around[np.argmin(np.abs(around - wanted))]) if len(around) else wanted

    def sentence_ends(self, ids: Ids) -> NDArray[np.int64]:
        """Numbers of tokens after which a sentence ends and another can begin; 0 is not one."""
        tokenizer = self.framing.tokenizer
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


def as_haystack(framing: Framing, source: HaystackSource, length: int) -> Haystack:
    """Tokens of a haystack.

    Parameters
    ----------
    framing
        The tokenizer.
    source
        ``"noise"``, a text, or the tokens of one.
    length
        Tokens that an item takes of it at most.

    Raises
    ------
    InputError
        If it has fewer, or is none of these.
    """
    if isinstance(source, str) and source == NOISE:
        once = len(framing.ids(SENTENCES))
        return Haystack(NOISE, framing.ids(" ".join([SENTENCES] * (length // once + 1))), framing)
    ids: NDArray[Any]
    if isinstance(source, str):
        # half characters would stop the tokenizer
        ids = framing.ids(source.encode("utf-8", "replace").decode())
    else:
        try:
            ids = np.asarray(source)
        except (TypeError, ValueError):
            ids = np.zeros(())
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise InputError(
                f"haystack is {shortened(source)}; it must be {NOISE!r}, a text, or a list of "
                "token ids"
            )
        known = framing.vocabulary
        if len(ids) and (ids.min() < 0 or (known is not None and ids.max() >= known)):
            raise InputError(
                f"the haystack has tokens from {ids.min()} to {ids.max()}, and the model knows 0 "
                f"to {'its last' if known is None else known - 1}; give tokens of its own tokenizer"
            )
    if len(ids) < length:
        raise InputError(
            f"the haystack has {len(ids):,} tokens, and {length:,} are needed; give a longer text "
            f"(the text itself, not the name of a file), or {NOISE!r}"
        )
    return Haystack("text", ids.astype(np.int64), framing)


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
    if not isinstance(task, str) or task not in TASKS:
        raise InputError(f"there is no task {shortened(task)}; choose from {', '.join(TASKS)}")
    count, length, seed = as_dim(count, "count"), as_dim(length, "length"), as_seed(seed)
    first = as_seed(first, "first")
    framing = framing_of(loaded)
    purpose = f"task {task}"
    numbers = range(first, first + count)
    drafts = [TASKS[task](random_stream(seed, purpose, number)) for number in numbers]
    needles = [[framing.ids(f" {needle}") for needle in draft.needles] for draft in drafts]
    check_length(f"the task {task!r}", framing, needles, length)
    hay = as_haystack(framing, haystack, length)
    items = []
    for number, draft, hidden in zip(numbers, drafts, needles, strict=True):
        depths = needle_depths(seed, purpose, number, len(hidden))
        if draft.ordered:
            depths.sort()
        context, places = hide(hay, hidden, depths, number, length, seed)
        question = framing.ids(draft.question)
        whole = framing.ids(f"{draft.question} {draft.answer}")
        if len(whole) > len(question) and np.array_equal(whole[: len(question)], question):
            answer = whole[len(question) :]
        else:  # joined, the last token of the question is another one
            answer = framing.ids(f" {draft.answer}")
        items.append(
            TaskItem(
                task=task,
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
            f"the task {task!r} with a context of {length:,} tokens takes {needed:,} with its "
            f"question and answer, but {loaded.name!r} reads at most {loaded.max_positions:,}; "
            f"give a length of at most {loaded.max_positions - needed + length:,}"
        )
    return items


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


def needle_depths(seed: int, purpose: str, number: int, count: int) -> list[float]:
    """Depths of an item's needles, from 0 to 1: evenly spread, and over all items golden steps."""
    first = (float(random_stream(seed, f"{purpose} depth").random()) + GOLDEN * number) % 1.0
    return [(first + i / count) % 1.0 for i in range(count)]


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


# Passages for calibrating a plan, whose last tokens look for what the text says.

PURPOSE = "retrieval passage"


def calibration_item(
    loaded: LoadedModel,
    number: int,
    length: int,
    query_count: int,
    *,
    seed: int = 0,
    haystack: HaystackSource = "noise",
) -> Passage:
    """Make a passage with four needles in it that ends with questions for them, and their answers.

    The needles are other sentences than those of the tasks, so that plans calibrated on them know
    nothing of the tasks' wording.

    Parameters
    ----------
    loaded
        A decoder with its tokenizer.
    number
        Of the passage.
    length
        Tokens of the text with the needles.
    query_count
        Tokens of questions and answers after it. They ask for one needle after the other, then
        again in another order, and are cut where they are long enough.
    seed
        Seed of the needles and of their places.
    haystack
        ``"noise"``, a text, or the tokens of one.

    Raises
    ------
    InputError
        If the model has no tokenizer, the length is too short, or the text.
    """
    length, query_count = as_dim(length, "length"), as_dim(query_count, "query_count")
    number, seed = as_seed(number, "number"), as_seed(seed)
    framing = framing_of(loaded)
    rng = random_stream(seed, PURPOSE, number)
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
    needles = [framing.ids(f" {beginning} {answer}.") for beginning, _, answer in facts]
    check_length("a retrieval passage", framing, [needles], length)
    hay = as_haystack(framing, haystack, length)
    depths = needle_depths(seed, PURPOSE, number, len(needles))
    context, _ = hide(hay, needles, depths, number, length, seed)
    parts: list[Ids] = [context]
    while sum(map(len, parts)) < length + query_count:
        for i in rng.permutation(len(facts)):
            beginning, question, answer = facts[i]
            parts.append(framing.ids(f"{question_after(question, beginning)} {answer}."))
    ids = np.concatenate(parts)[: length + query_count]
    is_delimiter = np.isin(ids, framing.delimiters)
    is_delimiter[: len(framing.prefix)] = True
    return Passage(number, ids, is_delimiter)
