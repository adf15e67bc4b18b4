"""How commands print results, and how they read names of texts and files."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from esscher.core.atomic import check_writable
from esscher.core.errors import EsscherError, InputError
from esscher.core.shown import printable
from esscher.show.content import check_ending


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object; a number that JSON cannot hold is an error here, not in the reader."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def say(text: str, err: bool = False) -> None:
    """Print a line; names of files and folders may hold anything, also escapes for a terminal."""
    click.echo(printable(text), err=err)


#: Options by the block of ``--help`` that has them; all others come first, as far as ten.
BLOCKS = {
    "Model and text": ("column", "layers", "heads", "device", "dtype", "revision"),
    "Run": ("seed", "workers", "scheduler"),
    "Output": ("out", "figure", "save", "save_cache", "as_json"),
}
#: Most options in the first block.
FIRST = 10


class BlockCommand(click.Command):
    """A command whose ``--help`` has its options in blocks."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options: at most ten basic ones, then the rest in groups."""
        block_of = {name: block for block, names in BLOCKS.items() for name in names}
        blocks: dict[str, list[tuple[str, str]]] = {"Options": [], "More options": []}
        blocks |= {block: [] for block in BLOCKS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            last = "--help" in parameter.opts
            block = "Output" if last else block_of.get(parameter.name or "", "Options")
            if block == "Options" and len(blocks[block]) == FIRST:
                block = "More options"
            blocks[block].append(record)
        for block, records in blocks.items():
            if records:
                with formatter.section(block):
                    formatter.write_dl(records)


def named_sources(texts: Sequence[str], option: str) -> dict[str, str]:
    """Read ``NAME=SOURCE`` options; a name is given once."""
    named: dict[str, str] = {}
    for text in texts:
        name, mark, source = text.partition("=")
        name = name.strip()
        if not mark or not name or not source:
            raise InputError(
                f"{option} {text!r} has no {'source' if mark and name else 'name'}; write "
                "NAME=SOURCE, such as wiki=articles.txt"
            )
        if name in named:
            raise InputError(
                f"{option} {text!r}: the name {name!r} is taken by {named[name]!r}; give every "
                "one its own name"
            )
        named[name] = source
    return named


def check_figure(path: Path | None, option: str = "--figure") -> None:
    """Refuse a figure of an unknown format or at a bad place before anything is computed."""
    if path is not None:
        check_ending(path, option)
    check_output(path, option)


def check_output(path: Path | None, option: str) -> None:
    """Refuse a file that could not be written, before anything is computed."""
    if path is not None:
        check_writable(path, f"{option} {path}")


def finish(
    results: Callable[[], dict[str, Any]],
    show: Callable[[], None],
    as_json: bool,
    out: Path | None,
    files: Mapping[str, Path | None] | None = None,
    next_step: str = "",
) -> None:
    """Print the results, then the places of what was written, then what to do next.

    Parameters
    ----------
    results
        Everything, for ``--json``: then nothing else is printed.
    show
        Prints it for people.
    as_json
        Whether to print JSON.
    out
        Directory of the run, if it was stored.
    files
        Other files that were written, by what they are.
    next_step
        The command that goes on from here.
    """
    if as_json:
        print_json(results())
        return
    show()
    for name, place in {**(files or {}), "Run": out}.items():
        if place is not None:
            say(f"{name}: {place}")
    if out is not None:
        page = shlex.quote(str(out / "report.html"))
        say(f"Report: esscher report {shlex.quote(str(out))} -o {page}")
    if next_step:
        say(f"Next: {next_step}")


#: Exit code of a command by the signal that stopped it, by convention 128 + its number.
STOPPED = {signal.SIGINT: 130, signal.SIGTERM: 143}


@contextmanager
def stoppable() -> Iterator[None]:
    """Run a command so that Ctrl-C or SIGTERM stops it once, with a note on how to resume.

    What the command does meanwhile (an import, a computation, printing) may turn the exception of
    the signal handler into any other; the signal counts, not the exception.
    """
    came: list[signal.Signals] = []
    context: list[click.Context | None] = [None]

    def stop(number: int, frame: FrameType | None) -> None:
        for known in STOPPED:  # a second one must not interrupt the storing
            signal.signal(known, signal.SIG_IGN)
        came.append(signal.Signals(number))
        context[0] = click.get_current_context(silent=True)
        raise KeyboardInterrupt

    try:
        # in the background of a shell Ctrl-C is ignored, and stays so
        heeded = [n for n in STOPPED if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, stop) for number in heeded}
    except ValueError:  # not in the main thread: leave signals alone
        yield
        return
    try:
        yield
    except BaseException as error:
        if not came and not isinstance(error, KeyboardInterrupt):
            raise
        stores = context[0] is not None and "out" in context[0].params
        out = context[0].params["out"] if context[0] is not None and stores else None
        say(how_to_resume(error, out, stores), err=True)
        raise click.exceptions.Exit(STOPPED[(came or [signal.SIGINT])[0]]) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def how_to_resume(stop: BaseException, out: Path | None, stores: bool) -> str:
    """Return what to tell a user whose command was stopped.

    Parameters
    ----------
    stop
        The exception by which it ended.
    out, stores
        Directory of its run, if one was given; and whether the command takes one.
    """
    # not at the top: --help ends without a run, and need not wait for what runs bring with them
    from esscher.runs.study import Interrupted

    why = done = ""
    if isinstance(stop, Interrupted):
        why = f"{stop.reason}. " if stop.reason else ""
        done, out = f" with {stop.done} {stop.unit} stored", stop.folder
    elif isinstance(stop, EsscherError):
        why = f"{stop}. "
    elif not stores:
        return "Stopped."
    if out is None:
        return f"{why}Stopped. Nothing is stored; with --out RUN a run can be resumed."
    name = Path(sys.argv[0]).name
    program = ["python", "-m", "esscher"] if name == "__main__.py" else [name]
    command = shlex.join([*program, *sys.argv[1:]])
    return f"{why}Stopped{done} in {out}. Run the same command again to resume:\n  {command}"
