"""Variables that are set to each other, so that all have the same value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from esscher.engine.text.tasks.task import Draft, asked, count_word, listed
from esscher.engine.text.tasks.vocabulary import pick_numbers, pick_variables


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
