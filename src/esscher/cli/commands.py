"""Which commands there are. They are known by name and first sentence before one is imported.

Most commands bring numpy and more with them; nobody who asks for ``--help`` or presses the Tab key
waits for those of all commands. What stands here is what the commands say of themselves; a test
compares.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module

import click

#: What a command does, and where it is: module and name. A study's command has its name.
STUDIES = {
    "paper": "Check the claims of the paper one by one.",
    "probe": "Measure how many tokens each head of a model needs.",
    "sweep": "Measure how fast attention over synthetic tokens converges.",
    "deep": "Measure how errors of sampled attention grow through layers.",
    "deep-stack": ("Measure how errors grow through a random stack of layers."),
    "sparse": "Compare sparse attention with dense attention in a model.",
    "sparse-law": "Compare sparse with dense attention on synthetic tokens.",
    "plan": "Plan how many tokens each head keeps, and check the plan.",
    "context": "Measure how long a context each head of a decoder uses.",
    "tails": "Test whether the keys of a model have light tails.",
    "domains": "Test whether heads behave differently on different text.",
}
OTHERS = {
    "generate": (
        "generate:generate",
        "Generate text under a plan, and report speed and memory.",
    ),
    "theory": (
        "theory:theory",
        "Predict how fast a head converges, and how large n must be.",
    ),
    "hardmax": (
        "hardmax:hardmax",
        "Print the error of hardmax attention, exact and simulated.",
    ),
    "ls": ("runs:list_runs", "List the runs in a directory and below it."),
    "show": ("runs:show", "Print the result of a stored run, complete or not."),
    "report": (
        "report:report",
        "Write an HTML report about stored runs.",
    ),
    "figure": ("figure:figure", "Draw a figure of a stored run, ready for a paper."),
}
#: First sentences by name.
SENTENCES = STUDIES | {name: says for name, (_, says) in OTHERS.items()}


class Commands(MutableMapping[str, click.Command]):
    """The commands by name, each imported when it is first asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command | None] = dict.fromkeys(SENTENCES)

    def __getitem__(self, name: str) -> click.Command:
        found = self._loaded[name]
        if found is None:
            found = self._loaded[name] = _imported(name)
        return found

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)


def _imported(name: str) -> click.Command:
    if name in STUDIES:
        from esscher.cli.study import study_command

        return study_command(name)
    module, _, title = OTHERS[name][0].partition(":")
    found: click.Command = getattr(import_module(f"esscher.cli.{module}"), title)
    return found


def listed() -> click.Group:
    """Return a group of the same commands with nothing but their names and first sentences."""
    return click.Group(
        commands={name: click.Command(name, help=says) for name, says in SENTENCES.items()}
    )
