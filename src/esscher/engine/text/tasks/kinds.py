"""What a task is: sentences to hide in a text, a question about them, and the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from esscher.core.errors import InputError
from esscher.core.shown import shortened

#: Numbers in words.
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


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


class Task(Protocol):
    """A kind of question about a text, of which any number can be made."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    @property
    def about(self) -> str:
        """What is asked, in a few words."""
        ...

    def draft(self, rng: np.random.Generator) -> Draft:
        """Make an item."""
        ...


def asked(question: str, beginning: str) -> str:
    """A question as it follows a text, with the beginning of its answer."""
    return f"\n\nQuestion: {question}\nAnswer: {beginning}"


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them: ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def numbered(words: Sequence[str]) -> str:
    """Words as a numbered list, after its first number, with which the question ends."""
    return "".join(f"\n{number}. {word}" for number, word in enumerate(words, 1))[4:]


def count_word(number: int) -> str:
    """A small number in words."""
    return COUNTS[number] if number < len(COUNTS) else str(number)


# Words and numbers of which tasks are made.


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(phrase.split()) for phrase in text.split(","))


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
PLACES = _phrases(
    """
    behind the old mill, beside the river, near the railway station, under the stone bridge,
    at the edge of the forest, in the empty theatre, on the roof of the school, across the
    frozen lake, in the cellar of the town hall, outside the city walls, by the lighthouse,
    in the middle of the market, above the bakery, along the northern road, inside the
    chapel, next to the fountain
    """
)
TIMES = _phrases(
    """
    before sunrise, after the storm, during the long winter, on a rainy Tuesday, at
    midnight, before the guests arrived, after the harvest, in the last week of June, while
    the band was playing, on the first day of spring, just before the bells rang, when the
    snow began to melt
    """
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
    found: dict[str, None] = {}
    while len(found) < count:
        found[str(rng.integers(10 ** (digits - 1), 10**digits))] = None
    return list(found)


def pick_coded(rng: np.random.Generator, count: int, syllables: int) -> list[str]:
    """Draw different words that mean nothing, such as ``tobaki``."""
    found: dict[str, None] = {}
    while len(found) < count:
        made = (pick_one(rng, CONSONANTS) + pick_one(rng, VOWELS) for _ in range(syllables))
        found["".join(made)] = None
    return list(found)


def pick_variables(rng: np.random.Generator, count: int, letters: int) -> list[str]:
    """Draw names of variables, such as ``QXKZW``; no two begin with the same letter."""
    return [
        first + "".join(pick_one(rng, LETTERS) for _ in range(letters - 1))
        for first in pick(rng, LETTERS, count)
    ]


# One needle: a number that the text mentions once.


def fact(key: str, number: str) -> str:
    """The sentence that gives a key its number."""
    return f"The magic number of the {key} is {number}."


def question_about(key: str) -> str:
    """The question for the number of a key."""
    return asked(f"What is the magic number of the {key}?", f"The magic number of the {key} is")


@dataclass(frozen=True)
class Needle:
    """The number of a key (RULER's single needle).

    Attributes
    ----------
    digits
        Of the number.
    """

    digits: int = 7

    name: ClassVar[str] = "needle"
    about: ClassVar[str] = "one number that the text mentions once"

    def draft(self, rng: np.random.Generator) -> Draft:
        """Make an item."""
        (key,), (number,) = pick_keys(rng, 1), pick_numbers(rng, 1, self.digits)
        return Draft(
            needles=(fact(key, number),),
            question=question_about(key),
            answers=(number,),
            answer=number,
        )


# One key with several numbers, all of which are asked for.


@dataclass(frozen=True)
class Values:
    """The numbers of a key (RULER's multi-value needle).

    Attributes
    ----------
    values
        How many there are.
    digits
        Of the numbers.
    """

    values: int = 3
    digits: int = 7

    name: ClassVar[str] = "values"
    about: ClassVar[str] = "all numbers of one key"

    def draft(self, rng: np.random.Generator) -> Draft:
        """Make an item."""
        (key,), numbers = pick_keys(rng, 1), pick_numbers(rng, self.values, self.digits)
        count = count_word(self.values)
        return Draft(
            needles=tuple(f"One of the magic numbers of the {key} is {n}." for n in numbers),
            ordered=True,
            question=asked(
                f"What are the {count} magic numbers of the {key}?",
                f"The {count} magic numbers of the {key} are:\n1.",
            ),
            answers=tuple(numbers),
            answer=numbered(numbers),
            spare=16,
        )


# Several keys with a number each, of which one is asked for.


@dataclass(frozen=True)
class Keys:
    """The number of a key, when others have numbers too (RULER's multi-key needle).

    Attributes
    ----------
    keys
        How many there are.
    digits
        Of the numbers.
    """

    keys: int = 4
    digits: int = 7

    name: ClassVar[str] = "keys"
    about: ClassVar[str] = "the number of one key among several"

    def draft(self, rng: np.random.Generator) -> Draft:
        """Make an item."""
        keys = pick_keys(rng, self.keys)
        numbers = pick_numbers(rng, self.keys, self.digits)
        return Draft(
            needles=tuple(map(fact, keys, numbers)),
            question=question_about(keys[0]),
            answers=(numbers[0],),
            answer=numbers[0],
        )


# A sentence that somebody is said to have said, to be repeated word for word.


@dataclass(frozen=True)
class Quote:
    """How a quoted sentence goes on, word for word."""

    name: ClassVar[str] = "quote"
    about: ClassVar[str] = "a quoted sentence, repeated word for word"

    def draft(self, rng: np.random.Generator) -> Draft:
        """Make an item."""
        speaker = f"{pick_one(rng, PEOPLE)} of {pick_one(rng, CITIES)}"
        first, second = pick(rng, ADJECTIVES, 2)
        beginning = f"The {first} {pick_one(rng, TRADES)}"
        rest = " ".join(
            [
                pick_one(rng, DEEDS),
                pick_one(rng, NUMERALS),
                second,
                pick_one(rng, THINGS),
                pick_one(rng, PLACES),
                pick_one(rng, TIMES),
            ]
        )
        return Draft(
            needles=(f'{speaker} once said: "{beginning} {rest}."',),
            question=asked(f"What did {speaker} once say?", f'{speaker} once said: "{beginning}'),
            answers=(rest,),
            answer=rest,
            spare=4,
        )


# Variables that are set to each other, so that all have the same value.


@dataclass(frozen=True)
class Variables:
    """The variables that have a value in the end (RULER's variable tracking).

    Attributes
    ----------
    hops
        Variables that are set to the one before; one more is set to the value itself.
    chains
        Values with variables of their own; one of them is asked for.
    digits
        Of the values.
    letters
        Of the names.
    """

    hops: int = 1
    chains: int = 1
    digits: int = 5
    letters: int = 5

    name: ClassVar[str] = "variables"
    about: ClassVar[str] = "variables that have a value because one was set to the other"

    def draft(self, rng: np.random.Generator) -> Draft:
        """Make an item."""
        length = self.hops + 1
        every = pick_variables(rng, self.chains * length, self.letters)
        values = pick_numbers(rng, self.chains, self.digits)
        # one chain after the other at every step
        chains = [every[i * length : (i + 1) * length] for i in range(self.chains)]
        needles = [
            _assignment(names, step, value)
            for step in range(length)
            for names, value in zip(chains, values, strict=True)
        ]
        asked_for, value = chains[0], values[0]
        count = count_word(length)
        return Draft(
            needles=tuple(needles),
            ordered=True,
            question=asked(
                f"Which {count} variables have the value {value}?",
                f"The {count} variables that have the value {value} are the variable",
            ),
            answers=tuple(asked_for),
            answer=listed([asked_for[0], *(f"the variable {name}" for name in asked_for[1:])]),
        )


def _assignment(names: list[str], step: int, value: str) -> str:
    if step == 0:
        return f"The variable {names[0]} has the value {value}."
    return f"The variable {names[step]} has the same value as the variable {names[step - 1]}."


# Words that the text repeats, some more often than others.


@dataclass(frozen=True)
class Words:
    """The most frequent of some words without meaning (RULER's frequent words).

    Attributes
    ----------
    counts
        How often each of the frequent words occurs.
    others
        Words that occur once.
    syllables
        Of the words.
    """

    counts: tuple[int, ...] = (10, 8, 6)
    others: int = 3
    syllables: int = 2

    name: ClassVar[str] = "words"
    about: ClassVar[str] = "the three most frequent of some coded words"

    def draft(self, rng: np.random.Generator) -> Draft:
        """Make an item."""
        frequent = len(self.counts)
        words = pick_coded(rng, frequent + self.others, self.syllables)
        counts = (*self.counts, *(1 for _ in range(self.others)))
        every = [word for word, count in zip(words, counts, strict=True) for _ in range(count)]
        rng.shuffle(every)
        count = count_word(frequent)
        return Draft(
            needles=tuple(f"The coded word is {word}." for word in every),
            ordered=True,
            question=asked(
                f"What are the {count} most frequent coded words?",
                f"The {count} most frequent coded words are:\n1.",
            ),
            answers=tuple(words[:frequent]),
            answer=numbered(words[:frequent]),
            spare=16,
        )


# The tasks by their names.

#: Tasks by name, in the order of tables.
TASKS: dict[str, Task] = {
    task.name: task for task in (Needle(), Keys(), Values(), Variables(), Words(), Quote())
}


def as_task(name: str) -> Task:
    """Return the task of that name.

    Raises
    ------
    InputError
        Naming the tasks that there are.
    """
    if not isinstance(name, str) or name not in TASKS:
        raise InputError(f"there is no task {shortened(name)}; choose from {', '.join(TASKS)}")
    return TASKS[name]
