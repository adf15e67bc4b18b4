"""Words that the text repeats, some more often than others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from esscher.engine.text.tasks.task import Draft, asked, count_word, numbered
from esscher.engine.text.tasks.vocabulary import pick_coded


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
