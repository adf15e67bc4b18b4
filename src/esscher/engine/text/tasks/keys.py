"""Several keys with a number each, of which one is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from esscher.engine.text.tasks.needle import fact, question_about
from esscher.engine.text.tasks.task import Draft
from esscher.engine.text.tasks.vocabulary import pick_keys, pick_numbers


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
