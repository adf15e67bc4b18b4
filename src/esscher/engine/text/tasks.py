"""Retrieval tasks that are generated: sentences to hide in a text, a question, and the answer.

They follow RULER (Hsieh et al. 2024, arXiv:2404.06654) in spirit. Everything is drawn from a seed,
and nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Draft:
    """An item of a task in words, before there is a text around it.

    Attributes
    ----------
    needles
        Sentences to hide in a text. The first of them is what is asked for, if one is.
    ordered
        Whether they have to come in this order.
    question
        The question with the beginning of its answer; no space at the end.
    answers
        What a right answer has to contain.
    answer
        How the answer goes on, word for word.
    spare
        Tokens that a model may use beyond those of the answer.
    """

    needles: tuple[str, ...]
    ordered: bool = False
    question: str
    answers: tuple[str, ...]
    answer: str
    spare: int = 8


def question_after(text: str, beginning: str) -> str:
    """A question as it follows a text, with the beginning of its answer."""
    return f"\n\nQuestion: {text}\nAnswer: {beginning}"


def numbered(words: Sequence[str]) -> str:
    """Words as a numbered list, after its first number, with which the question ends."""
    return "".join(f"\n{number}. {word}" for number, word in enumerate(words, 1))[4:]


# Words and numbers of which tasks are made.


def _words(text: str, separator: str | None = None) -> list[str]:
    return [" ".join(part.split()) for part in text.split(separator)]


ADJECTIVES = _words(
    """
    ancient amber bitter brave bright calm careful clever copper curious distant eager early
    empty faithful fancy frozen gentle golden grand happy hidden hollow honest humble idle
    jolly kind lazy little lively lonely loyal lucky marble mellow mighty modest narrow
    noble patient plain polite proud quick quiet rapid rare restless rough rusty silent
    silver simple sleepy slow smooth stormy strange sudden sturdy tender tiny velvet
    wandering warm wild wise wooden young
    """
)
NOUNS = _words(
    """
    anchor badger baker basket beacon beetle bridge candle canyon captain castle cedar
    cellar comet compass cricket dolphin dragon eagle engine falcon farmer feather fiddle
    forest fountain garden glacier hammer harbour hunter island kettle ladder lantern lemon
    lion mirror monkey mountain needle orchard otter painter parrot pepper piano pigeon
    pilot planet pocket poet rabbit ribbon river rocket saddle sailor salmon shadow shepherd
    spider squirrel tailor temple thunder tiger tower turtle valley violin walnut whistle
    willow window wizard
    """
)
CITIES = _words(
    """
    Athens Bergen Berlin Boston Bristol Cairo Chicago Copenhagen Cracow Dakar Delhi Denver
    Dublin Florence Geneva Glasgow Hamburg Havana Helsinki Istanbul Kyoto Lagos Lima Lisbon
    London Madrid Manila Melbourne Milan Montreal Nairobi Naples Oslo Paris Porto Prague
    Quebec Rome Seville Singapore Sofia Sydney Tokyo Toronto Venice Vienna Warsaw Zurich
    """
)
PEOPLE = _words(
    """
    Abbott Barlow Bennett Calder Carver Clayton Dalton Draper Ellis Fairfax Fletcher Gardner
    Granger Harper Hawkins Holloway Ingram Jarvis Keller Langley Lambert Mercer Merton
    Norris Osborne Palmer Parker Porter Quincy Ramsey Redmond Rowland Sawyer Sheldon Stanton
    Thatcher Turner Vaughan Walcott Webster Whitaker Winslow Yardley
    """
)
TRADES = _words(
    """
    baker blacksmith butcher captain carpenter clerk doctor driver farmer fisherman gardener
    hunter judge lawyer librarian merchant miller musician nurse painter pilot poet postman
    priest sailor sculptor shepherd soldier tailor teacher
    """
)
DEEDS = _words(
    """
    borrowed bought buried carried collected counted delivered found forgot gathered hid
    kept lent lost noticed opened painted polished repaired sold stole traded washed weighed
    """
)
NUMERALS = _words("three four five six seven eight nine ten eleven twelve")
THINGS = _words(
    """
    apples baskets bells blankets books boots bottles buttons candles carpets chairs clocks
    coins drums feathers flutes hammers hats keys kettles ladders lamps letters maps mirrors
    pearls plates ribbons ropes saddles shovels spoons statues stones umbrellas violins
    """
)
PLACES = _words(
    """
    behind the old mill, beside the river, near the railway station, under the stone bridge,
    at the edge of the forest, in the empty theatre, on the roof of the school, across the
    frozen lake, in the cellar of the town hall, outside the city walls, by the lighthouse,
    in the middle of the market, above the bakery, along the northern road, inside the
    chapel, next to the fountain
    """,
    ",",
)
TIMES = _words(
    """
    before sunrise, after the storm, during the long winter, on a rainy Tuesday, at
    midnight, before the guests arrived, after the harvest, in the last week of June, while
    the band was playing, on the first day of spring, just before the bells rang, when the
    snow began to melt
    """,
    ",",
)

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def pick(rng: np.random.Generator, words: Sequence[str], count: int) -> list[str]:
    """Draw different words."""
    return [words[i] for i in rng.choice(len(words), size=count, replace=False)]


def pick_one(rng: np.random.Generator, words: Sequence[str]) -> str:
    """Draw one word."""
    return words[int(rng.integers(len(words)))]


def pick_keys(rng: np.random.Generator, count: int) -> list[str]:
    """Draw keys such as ``brave otter``; no two share a word."""
    pairs = zip(pick(rng, ADJECTIVES, count), pick(rng, NOUNS, count), strict=True)
    return [f"{adjective} {noun}" for adjective, noun in pairs]


def pick_numbers(rng: np.random.Generator, count: int, digits: int) -> list[str]:
    """Draw different numbers of so many digits."""
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn[str(rng.integers(10 ** (digits - 1), 10**digits))] = None
    return list(drawn)


def pick_coded(rng: np.random.Generator, count: int, syllables: int) -> list[str]:
    """Draw different words that mean nothing, such as ``tobaki``."""
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        made = (pick_one(rng, CONSONANTS) + pick_one(rng, VOWELS) for _ in range(syllables))
        drawn["".join(made)] = None
    return list(drawn)


# The tasks.

#: Digits of the numbers of keys, and of the values of variables.
DIGITS, VALUE_DIGITS = 7, 5


def draft_keys(rng: np.random.Generator, keys: int) -> Draft:
    """Ask for the number of one of some keys (RULER's single and multi-key needle)."""
    drawn, numbers = pick_keys(rng, keys), pick_numbers(rng, keys, DIGITS)
    pairs = zip(drawn, numbers, strict=True)
    return Draft(
        needles=tuple(f"The magic number of the {key} is {number}." for key, number in pairs),
        question=question_after(
            f"What is the magic number of the {drawn[0]}?",
            f"The magic number of the {drawn[0]} is",
        ),
        answers=(numbers[0],),
        answer=numbers[0],
    )


def draft_values(rng: np.random.Generator) -> Draft:
    """Ask for all three numbers of a key (RULER's multi-value needle)."""
    (key,), numbers = pick_keys(rng, 1), pick_numbers(rng, 3, DIGITS)
    return Draft(
        needles=tuple(f"One of the magic numbers of the {key} is {n}." for n in numbers),
        ordered=True,
        question=question_after(
            f"What are the three magic numbers of the {key}?",
            f"The three magic numbers of the {key} are:\n1.",
        ),
        answers=tuple(numbers),
        answer=numbered(numbers),
        spare=16,
    )


def draft_variables(rng: np.random.Generator) -> Draft:
    """Ask for both variables of a value; one is set to the other (RULER's variable tracking)."""
    letters = pick(rng, LETTERS, 2)  # no two names begin with the same letter
    first, second = (
        letter + "".join(pick_one(rng, LETTERS) for _ in range(4)) for letter in letters
    )
    (value,) = pick_numbers(rng, 1, VALUE_DIGITS)
    return Draft(
        needles=(
            f"The variable {first} has the value {value}.",
            f"The variable {second} has the same value as the variable {first}.",
        ),
        ordered=True,
        question=question_after(
            f"Which two variables have the value {value}?",
            f"The two variables that have the value {value} are the variable",
        ),
        answers=(first, second),
        answer=f"{first} and the variable {second}",
    )


def draft_words(rng: np.random.Generator) -> Draft:
    """Ask for the three most frequent of six meaningless words (RULER's frequent words)."""
    words = pick_coded(rng, 6, 2)
    repeated = [w for w, n in zip(words, (10, 8, 6, 1, 1, 1), strict=True) for _ in range(n)]
    rng.shuffle(repeated)
    return Draft(
        needles=tuple(f"The coded word is {word}." for word in repeated),
        ordered=True,
        question=question_after(
            "What are the three most frequent coded words?",
            "The three most frequent coded words are:\n1.",
        ),
        answers=tuple(words[:3]),
        answer=numbered(words[:3]),
        spare=16,
    )


def draft_quote(rng: np.random.Generator) -> Draft:
    """Ask how a quoted sentence goes on, word for word."""
    speaker = f"{pick_one(rng, PEOPLE)} of {pick_one(rng, CITIES)}"
    first, second = pick(rng, ADJECTIVES, 2)
    beginning = f"The {first} {pick_one(rng, TRADES)}"
    deed, numeral = pick_one(rng, DEEDS), pick_one(rng, NUMERALS)
    rest = [deed, numeral, second, *(pick_one(rng, words) for words in (THINGS, PLACES, TIMES))]
    answer = " ".join(rest)
    return Draft(
        needles=(f'{speaker} once said: "{beginning} {answer}."',),
        question=question_after(
            f"What did {speaker} once say?", f'{speaker} once said: "{beginning}'
        ),
        answers=(answer,),
        answer=answer,
        spare=4,
    )


#: The tasks by name, in the order of tables; each draws an item.
TASKS: dict[str, Callable[[np.random.Generator], Draft]] = {
    "needle": partial(draft_keys, keys=1),
    "keys": partial(draft_keys, keys=4),
    "values": draft_values,
    "variables": draft_variables,
    "words": draft_words,
    "quote": draft_quote,
}
