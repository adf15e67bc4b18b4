"""What to do next: every result says which command goes on from it, and why.

A result knows which question comes next; it does not know how its model and text were named, or
where it was stored. The command line does, and fills both in (``cli/next_steps.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Stored(Enum):
    """A place that only the command line knows."""

    #: Where this run is stored.
    RUN = "RUN"


RUN = Stored.RUN


@dataclass(frozen=True)
class Corpus:
    """A text that was given by a name, as ``--text NAME=SOURCE``: stands for its source."""

    name: str


#: What an option is set to: a value, True for a flag alone, or what the command line knows.
Value = str | int | float | bool | Stored | Corpus


@dataclass(frozen=True)
class Step:
    """A command to run next.

    What was studied is filled in: the model and how it is loaded, the text, the law and its head,
    as far as the command takes them.

    Attributes
    ----------
    command
        Its name.
    why
        The question that it answers, or what it is good for: one sentence.
    options
        Options besides, and arguments, by flag or metavar, such as ``{"--budget": 0.25}``.
    again
        Whether it is the same command once more: all options that were given stay, unless
        ``options`` says otherwise.
    """

    command: str
    why: str
    options: Mapping[str, Value] = field(default_factory=dict)
    again: bool = False


def held_out(text: str) -> str:
    """Name a text that is always there, other than the one that was read."""
    return "demo:docs" if text == "demo:code" else "demo:code"


def plan_step(text: str, why: str) -> Step:
    """Plan budgets on the text that was read, and check them on another one.

    Parameters
    ----------
    text
        Source of the text.
    why
        As for a step.
    """
    return Step("plan", why, {"--check": held_out(text), "--budget": 0.25})


def once_more(command: str, why: str, **options: Value) -> Step:
    """Run the same command again with these options, such as ``passages=32``."""
    given = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    return Step(command, why, given, again=True)
