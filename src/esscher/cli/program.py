"""The ``esscher`` command: a group whose errors are one line and exit code 2, never a traceback."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from esscher import __version__
from esscher.cli.commands import Commands, listed
from esscher.cli.endings import quiet_if_unread, terminable
from esscher.core.command import started_by
from esscher.core.errors import EsscherError, out_of_memory
from esscher.core.shown import printable

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
