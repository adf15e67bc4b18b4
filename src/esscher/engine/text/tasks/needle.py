"""One needle: a number that the text mentions once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from esscher.engine.text.tasks.task import Draft, asked
from esscher.engine.text.tasks.vocabulary import pick_keys, pick_numbers


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
