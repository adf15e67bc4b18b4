"""A sentence that somebody is said to have said, to be repeated word for word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from esscher.engine.text.tasks.task import Draft, asked
from esscher.engine.text.tasks.vocabulary import (
    ADJECTIVES,
    CITIES,
    DEEDS,
    NUMERALS,
    PEOPLE,
    PLACES,
    THINGS,
    TIMES,
    TRADES,
    pick,
    pick_one,
)


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
