"""The last lines of a first screen: which command to run next, as it can be typed."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from textwrap import fill
from typing import Any

import click

from esscher.cli.commands import STUDIES, Commands
from esscher.core.command import command as command_at_work
from esscher.core.next_steps import RUN, Corpus, Step, Value
from esscher.core.shown import printable

#: Parameters that say what is studied: a step takes them over as they were given.
SUBJECT = frozenset(
    {"model", "text", "column", "device", "dtype", "revision", "allow_pickle", "allow_remote_code",
     "law", "horizon", "dim", "spectrum", "tau", "df"}
)  # fmt: skip
#: Parameters that let a model run code. A stored command may be a stranger's: they are not copied.
RISKY = frozenset({"allow_pickle", "allow_remote_code"})
#: Parameters that say where to write: a command that is run once more does not overwrite.
PLACES = frozenset({"out", "figure", "save", "as_json"})
#: What stands before the steps that are shown, the first one and the second.
LEADS = ("Next", "Or")


@dataclass(frozen=True)
class Given:
    """A command line: the command, and the values of its parameters as they were typed.

    Parameters that were left out are not among the values.
    """

    command: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def given_by(words: Sequence[str]) -> Given:
    """Read the words of a command line, without the program's name.

    What is no command line of this version gives nothing.
    """
    commands = Commands()
    if not words or words[0] not in commands:
        return Given()
    name, command = words[0], commands[words[0]]
    context = click.Context(command, info_name=name, resilient_parsing=True)
    try:
        values, _, _ = command.make_parser(context).parse_args(list(words[1:]))
    except click.UsageError:
        return Given()
    # click marks what was left out by None, or by an object of its own
    return Given(
        name, {k: v for k, v in values.items() if isinstance(v, str | bool | list | tuple)}
    )


def given_now() -> Given:
    """Read the command line of the command at work."""
    return given_by((command_at_work() or [])[1:])


def given_before(words: Sequence[str] | None) -> Given:
    """Read the command line that made a stored run, without what lets a model run code."""
    given = given_by((words or [])[1:])
    return Given(given.command, {k: v for k, v in given.values.items() if k not in RISKY})


def say_next(
    steps: Iterable[Step],
    given: Given | None = None,
    run: Path | None = None,
    saved: Path | None = None,
    err: bool = False,
) -> None:
    """Print the commands to run next, and why.

    Parameters
    ----------
    steps
        What to do, the most useful first.
    given
        The command line that names what was studied; by default that of the command at work.
    run, saved
        Directory of its run, and file of its result; None if there is none.
    err
        Whether to print to standard error.
    """
    known = given_now() if given is None else given
    lines = ((step.why, command_line(step, known, run, saved)) for step in steps)
    shown = [(why, words) for why, words in lines if words is not None]
    width = shutil.get_terminal_size().columns
    for lead, (why, words) in zip(LEADS, shown, strict=False):
        # a command is never broken into lines, so that it can be copied
        click.echo(printable(f"{lead}: {shlex.join(words)}"), err=err)
        blank = " " * (len(lead) + 2)
        click.echo(
            fill(printable(why), width, initial_indent=blank, subsequent_indent=blank), err=err
        )


def command_line(
    step: Step, given: Given, run: Path | None = None, saved: Path | None = None
) -> list[str] | None:
    """Return the words of a step; None if something that it needs is not known.

    Parameters
    ----------
    step, given, run, saved
        As for :func:`say_next`.
    """
    stored = run or saved
    if stored is None and RUN in step.options.values():
        if given.command not in STUDIES:
            return None
        # there is nothing yet that the step could work on: first the run has to be stored
        store = {"--out": f"runs/{given.command}"}
        step = Step(given.command, step.why, store, again=True)
    changed = {name: _known(value, given, stored) for name, value in step.options.items()}
    if None in changed.values():
        return None
    if run is not None and step.command in STUDIES and "--out" not in changed:
        changed["--out"] = str(_place(step, run))
    arguments: list[str] = []
    options: list[str] = []
    for parameter in Commands()[step.command].params:
        value = _value(parameter, changed, given, step.again)
        if isinstance(parameter, click.Option):
            options += [] if value is None else _words(parameter, value)
        elif value is not None:
            arguments += value if isinstance(value, tuple) else [str(value)]
        elif parameter.required:
            return None
    return ["esscher", step.command, *arguments, *options]


def _known(value: Value, given: Given, stored: Path | None) -> Any:
    """A value with what the command line knows in its place; None if it does not."""
    if value is RUN:
        return str(stored)
    if isinstance(value, Corpus):
        named = dict(text.partition("=")[::2] for text in given.values.get("texts", []))
        return named.get(value.name)
    return value


def _value(parameter: click.Parameter, changed: dict[str, Any], given: Given, again: bool) -> Any:
    """What a parameter is set to: by the step, or as it was before; None if it is left out."""
    names = parameter.opts if isinstance(parameter, click.Option) else [parameter.metavar or ""]
    for name in names:
        if name in changed:
            return changed[name]
    kept = parameter.name not in PLACES if again else parameter.name in SUBJECT
    return given.values.get(parameter.name or "") if kept else None


def _words(option: click.Option, value: Any) -> list[str]:
    flag = max(option.opts, key=len)
    if isinstance(value, bool):
        return [flag] if value else option.secondary_opts[:1]
    values = value if isinstance(value, list) else [value]
    shown = [f"{one:g}" if isinstance(one, float) else str(one) for one in values]
    return [word for one in shown for word in (flag, one)]


def _place(step: Step, run: Path) -> Path:
    """A directory beside this run; the run itself if the step goes on with its cells."""
    from esscher.core.options import options_of
    from esscher.runs.registry import study_named

    kept = {o.flag for o in options_of(study_named(step.command)) if o.changeable}
    if step.again and step.options.keys() <= kept:
        return run
    here = run if run.name not in ("", "..") else run.resolve()
    name = here.name if step.again else f"{here.name}-{step.command}"
    first = [] if step.again else [here.with_name(name)]
    places = chain(first, (here.with_name(f"{name}-{number}") for number in count(2)))
    return next(place for place in places if not place.exists())
