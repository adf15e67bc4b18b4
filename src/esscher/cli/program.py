"""The ``esscher`` command: a group whose errors are one line and exit code 2, never a traceback."""

from __future__ import annotations

from typing import Any

import click

from esscher import __version__
from esscher.cli.completion import complete_values, completion
from esscher.cli.endings import quiet_if_unread, terminable
from esscher.cli.figure import figure
from esscher.cli.generate import generate
from esscher.cli.hardmax import hardmax
from esscher.cli.man import man
from esscher.cli.report import report
from esscher.cli.reproduce import reproduce
from esscher.cli.runs import list_runs, show
from esscher.cli.schema import schema
from esscher.cli.study import study_command
from esscher.cli.theory import theory
from esscher.core.errors import EsscherError
from esscher.core.untrusted import printable
from esscher.core.validation import out_of_memory
from esscher.runs.provenance import started_by
from esscher.runs.registry import STUDIES

#: Where a context keeps the words of the command line.
_WORDS = "esscher.words"


class _Group(click.Group):
    """Turns errors that the user can put right into usage errors."""

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
                f"this machine has too little memory ({printable(str(error)) or 'none is left'}); "
                "ask for fewer tokens, smaller sizes, a lower dimension or a shorter context"
            ) from error
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            raise click.UsageError(printable(f"{place}{error.strerror or error}")) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="esscher")
def main() -> None:
    """Tell how many tokens attention needs.

    Softmax attention over n tokens estimates an infinite-token limit; its error falls like
    C n^-beta. Esscher computes the limit, the exponent, the constant and the n from which they
    hold.

    \b
    Example:
      esscher theory --horizon 1.5 --sizes 1e3:1e12
    """  # noqa: D301 - click's mark for verbatim lines


for command in (
    *map(study_command, STUDIES),
    generate,
    theory,
    hardmax,
    reproduce,
    list_runs,
    show,
    report,
    figure,
    schema,
    man,
    completion,
):
    main.add_command(command)
complete_values(main)
