"""The ``esscher`` command and the commands below it.

Commands are known by name and first sentence before one is imported: most bring numpy and more
with them, and nobody who asks for ``--help`` or presses the Tab key waits for that. A test compares
the sentences with those of the commands. Errors are one line and exit code 2, never a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from esscher import __version__
from esscher.cli.endings import quiet_if_unread, terminable
from esscher.core.command import started_by
from esscher.core.errors import EsscherError, out_of_memory
from esscher.core.shown import printable

#: What a command does, and where it is: module and name. A study's command has its name.
STUDIES = {
    "paper": "Check the claims of the paper one by one.",
    "probe": "Measure how many tokens each head of a model needs.",
    "sweep": "Measure how fast attention over synthetic tokens converges.",
    "deep": "Measure how errors of sampled attention grow through layers.",
    "sparse": "Compare sparse attention with dense attention in a model.",
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
    "ls": ("runs:list_runs", "List the runs in a directory and below it."),
    "show": ("runs:show", "Print the result of a stored run, or draw a figure of it."),
    "report": (
        "runs:report",
        "Write an HTML report about stored runs.",
    ),
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


#: Where a context keeps the words of the command line.
_WORDS = "esscher.words"


class _Group(click.Group):
    """Turns errors that the user can put right into usage errors; imports what a command needs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(commands=Commands(), **settings)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands for ``--help``, without importing them."""
        listed().format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer commands at the Tab key, without importing them, and options."""
        inside = listed().commands.items()
        found = [
            CompletionItem(name, help=command.get_short_help_str())
            for name, command in sorted(inside)
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words of the command line: runs remember which command made them."""
        ctx.meta[_WORDS] = ["esscher", *args]
        return super().parse_args(ctx, args)

    def make_context(self, *words: Any, **options: Any) -> click.Context:
        with quiet_if_unread():  # --help prints here
            return super().make_context(*words, **options)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with quiet_if_unread(), terminable(), started_by(ctx.meta[_WORDS]):
                return super().invoke(ctx)
        except EsscherError as error:
            raise click.UsageError(printable(str(error))) from error
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            raise click.UsageError(
                f"not enough memory ({printable(str(error)) or 'none is left'}); "
                "use fewer tokens, smaller sizes, a lower dimension or a shorter context"
            ) from error
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            raise click.UsageError(printable(f"{place}{error.strerror or error}")) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="esscher")
def main() -> None:
    """Find out how many tokens attention needs.

    Esscher measures how many tokens each head of a model needs (probe), plans how many each head
    keeps and checks the plan on held-out text (plan), and generates text with it (generate).

    The theory behind it: softmax attention over n tokens estimates an infinite-token limit, and its
    error falls like C n^-beta. Esscher computes the limit, the exponent, the constant, and how
    large n must be (theory).

    \b
    Examples:
      esscher paper --out runs/paper
      esscher probe demo:minilm --out runs/minilm
      esscher plan demo:smollm2 --check demo:code --budget 0.25
      esscher theory --horizon 1.5 --sizes 1e3:1e12
    """  # noqa: D301 - click's mark for verbatim lines
