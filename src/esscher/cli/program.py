"""The ``esscher`` command and the commands below it.

Commands are known by name and first sentence before one is imported: most bring numpy and more
with them, and nobody who asks for ``--help`` waits for that. A test compares the sentences with
those of the commands. Errors are one line and exit code 2, never a traceback.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from esscher import __version__
from esscher.cli.printing import stoppable
from esscher.core.errors import EsscherError
from esscher.core.shown import printable
from esscher.studies import STUDIES

#: Commands that are no studies: where each is, and what it does.
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
SENTENCES = {name: says for name, (_, says) in (STUDIES | OTHERS).items() if says}


#: Where click's context has the words of the command line.
WORDS = "esscher.words"
#: Words of an exception by which memory ran out; torch has no class for it.
_NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory")


class _Group(click.Group):
    """Turns errors that the user can put right into usage errors; imports what a command needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, imported or not."""
        return [*SENTENCES, *(name for name in self.commands if name not in SENTENCES)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command when it is first asked for."""
        if cmd_name in STUDIES and cmd_name in SENTENCES and cmd_name not in self.commands:
            from esscher.cli.study import study_command

            self.commands[cmd_name] = study_command(cmd_name)
        elif cmd_name in OTHERS and cmd_name not in self.commands:
            module, _, title = OTHERS[cmd_name][0].partition(":")
            self.commands[cmd_name] = getattr(import_module(f"esscher.cli.{module}"), title)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands for ``--help``, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SENTENCES.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words of the command line: runs remember which command made them."""
        ctx.meta[WORDS] = ["esscher", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with stoppable():
                return super().invoke(ctx)
        except EsscherError as error:
            raise click.UsageError(printable(str(error))) from error
        except (MemoryError, RuntimeError) as error:
            message = printable(str(error))
            if not isinstance(error, MemoryError) and not any(w in message for w in _NO_MEMORY):
                raise
            raise click.UsageError(
                f"not enough memory ({message or 'none is left'}); use fewer tokens, smaller "
                "sizes, a lower dimension or a shorter context"
            ) from error
        except BrokenPipeError:  # nobody reads on, as with head: click ends without a word
            raise
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
