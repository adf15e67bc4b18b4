"""Passages for calibrating a plan, whose last tokens look for what the text says."""

from __future__ import annotations

import numpy as np

from esscher.core.streams import random_stream
from esscher.core.validation import as_dim, as_seed
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.text.packing import Passage, framing_of
from esscher.engine.text.tasks.haystack import HaystackSource, Ids, as_haystack
from esscher.engine.text.tasks.items import (
    GOLDEN,
    check_length,
    hide,
    needle_ids,
    spread_depths,
)
from esscher.engine.text.tasks.task import asked
from esscher.engine.text.tasks.vocabulary import (
    ADJECTIVES,
    CITIES,
    NOUNS,
    THINGS,
    pick,
    pick_coded,
    pick_numbers,
    pick_one,
)

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
    framing = framing_of(loaded, True)
    rng = random_stream(seed, PURPOSE, number)
    facts = _facts(rng)
    needles = needle_ids(framing, [f"{said} {answer}." for said, _, answer in facts])
    check_length("a retrieval passage", framing, [needles], length)
    hay = as_haystack(framing, haystack, length)
    start = float(random_stream(seed, f"{PURPOSE} depth").random())
    depths = spread_depths((start + GOLDEN * number) % 1.0, len(needles), False)
    context, _ = hide(hay, needles, depths, number, length, seed)
    parts: list[Ids] = [context]
    while sum(map(len, parts)) < length + query_count:
        for i in rng.permutation(len(facts)):
            said, question, answer = facts[i]
            parts.append(framing.ids(f"{asked(question, said)} {answer}."))
    ids = np.concatenate(parts)[: length + query_count]
    is_delimiter = np.isin(ids, framing.delimiters)
    is_delimiter[: len(framing.prefix)] = True
    return Passage(number, ids, is_delimiter)


def _facts(rng: np.random.Generator) -> list[tuple[str, str, str]]:
    """Four facts: how each is said, how it is asked for, and the answer."""
    (code,), (amount,) = pick_numbers(rng, 1, 6), pick_numbers(rng, 1, 5)
    (word,) = pick_coded(rng, 1, 3)
    first, second = pick(rng, ADJECTIVES, 2)
    host, home, town = pick(rng, CITIES, 3)
    thing, animal = pick_one(rng, THINGS), pick_one(rng, NOUNS)
    return [
        (f"The code of the {first} {animal} is", f"What is the code of the {first} {animal}?",
         code),
        (f"The number of {thing} counted in {host} was", f"How many {thing} were counted in "
         f"{host}?", amount),
        (f"The password of the station in {home} is", f"What is the password of the station in "
         f"{home}?", word),
        (f"The {second} letter was sent to the city of", f"Where was the {second} letter sent?",
         town),
    ]  # fmt: skip
