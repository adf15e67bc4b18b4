"""Which commands there are. They are known by name and first sentence before one is imported.

Most commands bring numpy and more with them; nobody who asks for ``--help`` or presses the Tab key
waits for those of all commands. What stands here is what the commands say of themselves; a test
compares.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module

import click

from esscher.cli.completion import complete_values

#: What a command does, and where it is: module and name. A study's command has its name.
STUDIES = {
    "probe": "Measure how every head of a model converges, and what one pass says about it.",
    "sweep": "Measure how fast attention over n tokens converges to its limit.",
    "deep": "Measure how the error of sampled attention travels through the layers of a model.",
    "deep-stack": (
        "Measure how the error of finite samples travels through a random stack of attention "
        "layers."
    ),
    "sparse": "Measure sparse attention patterns in a model against dense attention.",
    "sparse-law": "Measure sparse attention patterns on synthetic tokens against dense attention.",
    "plan": "Plan how many tokens every key head of a model keeps, and check the plan.",
    "context": "Measure how long a context each head of a decoder uses.",
    "tails": "Test whether the keys of a model are sub-Gaussian.",
    "domains": "Measure every head of a model on several corpora, and test what differs.",
    "reach": (
        "Measure how long a text the heads of a decoder can search, and predict it from a short "
        "one."
    ),
}
OTHERS = {
    "generate": (
        "generate:generate",
        "Generate text with a cache that keeps what a plan says, and tell what it took.",
    ),
    "theory": (
        "theory:theory",
        "Print what theory says about a head: its limit, how fast and from which n it is reached.",
    ),
    "hardmax": (
        "hardmax:hardmax",
        "Print the error of the mean output of hardmax attention: exact, leading, simulated.",
    ),
    "reproduce": (
        "reproduce:reproduce",
        "Redo an experiment of the published synthetic study: NAME, or all.",
    ),
    "ls": ("runs:list_runs", "List the runs below a directory."),
    "show": ("runs:show", "Print the results of a stored run, complete or not."),
    "report": (
        "report:report",
        "Write one HTML file about stored runs: the answer, then the evidence.",
    ),
    "figure": ("figure:figure", "Draw a figure of a stored run, in the quality of a paper."),
    "schema": ("schema:schema", "Print the JSON Schema of the files of a kind of run."),
    "man": ("man:man", "Print the manual page of a command, for man to show."),
    "completion": (
        "completion:completion",
        "Print the script that teaches a shell to complete esscher's command lines.",
    ),
}
#: First sentences by name, in the order of manual pages.
SENTENCES = STUDIES | {name: says for name, (_, says) in OTHERS.items()}


class Commands(MutableMapping[str, click.Command]):
    """The commands by name, each imported when it is first asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command | None] = dict.fromkeys(SENTENCES)

    def __getitem__(self, name: str) -> click.Command:
        found = self._loaded[name]
        if found is None:
            found = self._loaded[name] = _imported(name)
            complete_values(found, self)
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
