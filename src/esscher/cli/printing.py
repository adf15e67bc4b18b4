"""How commands print results, and how they read names of texts and files."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
    "Output": ("out", "figure", "save", "save_cache", "as_json", "everything"),
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


# How commands end: with what was found, because nobody reads on, or stopped by a signal.
#
# Ctrl-C is a person, who reads how to resume: exit code 130. SIGTERM is a batch system that takes
# the machine away: the exit code asks it to queue the job again, if the run is stored and can be
# resumed.

#: Exit code of a command whose reader has gone, as of one that SIGPIPE ends: 128 + 13.
UNREAD = 141


@contextmanager
def quiet_if_unread() -> Iterator[None]:
    """End a command without a word when what it prints into has been closed, as by ``head``."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffers must go somewhere when Python ends.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        raise click.exceptions.Exit(UNREAD) from None


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


#: Exit code of a command that was stopped by Ctrl-C, by convention 128 + SIGINT.
STOPPED = 130
#: Exit code after SIGTERM if the run is stored: EX_TEMPFAIL of sysexits.h, "try again later".
REQUEUE = 75
#: Exit code after SIGTERM if nothing is stored, by convention 128 + SIGTERM.
TERMINATED = 143
#: Environment variable with the exit code on which this batch system queues a job again.
REQUEUE_VARIABLE = "ESSCHER_REQUEUE_CODE"
#: Codes that mean something else: wrong input, Ctrl-C.
_TAKEN = (2, STOPPED)


#: Whether SIGTERM arrived, whether Ctrl-C was pressed, and where the command that SIGTERM met
#: stores its run (None if nowhere).
_SIGNALS: dict[str, Any] = {"terminated": False, "interrupted": False, "out": None}


def requeue_code() -> int:
    """Exit code after SIGTERM when a run is stored; the site's own one is in the environment.

    Raises
    ------
    InputError
        If the environment variable holds no usable code.
    """
    text = os.environ.get(REQUEUE_VARIABLE, "").strip()
    if not text:
        return REQUEUE
    code = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= code <= 255 or code in _TAKEN:
        raise InputError(
            f"{REQUEUE_VARIABLE} is {text!r}; it must be a whole number from 1 to 255 other than "
            f"{' and '.join(map(str, _TAKEN))}: the exit code on which the batch system queues a "
            "job again (RequeueExit of SLURM)"
        )
    return code


def how_to_resume(stop: BaseException, out: Path | None) -> str:
    """What to tell a user whose command was stopped."""
    # not at the top: --help ends without a run, and need not wait for what runs bring with them
    from esscher.runs.study import Interrupted

    why = ""
    if isinstance(stop, Interrupted):
        why = f"{stop.reason}. " if stop.reason else ""
    elif isinstance(stop, EsscherError | OSError):
        why = f"{stop}. "
    if out is None:
        return f"{why}Stopped. Nothing is stored; with --out RUN a run can be resumed."
    name = Path(sys.argv[0]).name
    program = ["python", "-m", "esscher"] if name == "__main__.py" else [name]
    command = shlex.join([*program, *sys.argv[1:]])
    if not (out.is_dir() and any(out.iterdir())):
        return f"{why}Stopped before {out} was made. Run the same command again:\n  {command}"
    done = f" with {stop.done} {stop.unit} stored" if isinstance(stop, Interrupted) else ""
    return f"{why}Stopped{done} in {out}. Run the same command again to resume:\n  {command}"


@contextmanager
def terminable() -> Iterator[None]:
    """The whole of a command: SIGTERM stops it once and decides its exit code, and so does Ctrl-C.

    What the command does meanwhile (an import, a computation, writing, printing) may turn the
    exception of the signal handler into any other; the signal counts, not the exception.
    """
    _SIGNALS.update(terminated=False, interrupted=False, out=None)

    def interrupt(number: int, frame: FrameType | None) -> None:
        _SIGNALS["interrupted"] = True
        raise KeyboardInterrupt

    def stop(number: int, frame: FrameType | None) -> None:
        # A second one must not interrupt the storing. SIGKILL is what comes after the grace period.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _SIGNALS["terminated"] = True
        context = click.get_current_context(silent=True)
        _SIGNALS["out"] = None if context is None else context.params.get("out")
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: leave signals alone
        yield
        return
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except BaseException as error:
        if not _SIGNALS["terminated"]:
            pressed = _SIGNALS["interrupted"] or isinstance(error, KeyboardInterrupt)
            # while it prepared itself, or printed; with an exit code all is said already
            if pressed and not isinstance(error, click.exceptions.Exit):
                click.echo("Stopped.", err=True)
                raise click.exceptions.Exit(STOPPED) from None
            raise
        code = TERMINATED  # to begin again from nothing, again and again, is nobody's wish
        if _SIGNALS["out"] is not None:
            with suppress(InputError):  # the signal came before the variable was looked at
                code = requeue_code()
        say(how_to_resume(error, _SIGNALS["out"]), err=True)
        meaning = "nothing to resume" if code == TERMINATED else "queue the job again"
        click.echo(f"Terminated by SIGTERM: exit code {code}, {meaning}.", err=True)
        raise click.exceptions.Exit(code) from None
    finally:
        if not _SIGNALS["terminated"]:  # else it stays ignored until the process has ended
            signal.signal(signal.SIGTERM, before)
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # Registered last, so that it comes first, before what others do when Python ends.
        atexit.unregister(_end_in_peace)
        atexit.register(_end_in_peace)


@contextmanager
def resumable(out: Path | None) -> Iterator[None]:
    """A block that can be stopped from outside; then it says how to resume, and the command ends.

    Parameters
    ----------
    out
        Where the results are stored, if anywhere.

    Raises
    ------
    InputError
        At the beginning, if the environment holds an unusable exit code.
    """
    requeue_code()
    try:
        yield
    except KeyboardInterrupt as stop:
        if _SIGNALS["terminated"]:
            raise  # for the end of the whole command
        before = signal.getsignal(signal.SIGINT)
        with suppress(ValueError):  # only the main thread may
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever presses it twice has been heard
        try:
            say(how_to_resume(stop, out), err=True)
        finally:
            with suppress(ValueError):
                signal.signal(signal.SIGINT, before)
        raise click.exceptions.Exit(STOPPED) from None


def _end_in_peace() -> None:
    """Everything is stored and said: a signal now could only break the end of Python."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
