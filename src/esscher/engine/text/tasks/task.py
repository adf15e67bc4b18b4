"""What a task is: sentences to hide in a text, a question about them, and the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

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
