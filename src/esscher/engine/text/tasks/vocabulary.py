"""Words and numbers of which tasks are made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
