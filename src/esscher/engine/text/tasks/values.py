"""One key with several numbers, all of which are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from esscher.engine.text.tasks.task import Draft, asked, count_word, numbered
from esscher.engine.text.tasks.vocabulary import pick_keys, pick_numbers


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
