"""What the command line says about itself, in parts: for manual pages and the documentation."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import click

#: Exit codes of every command, and what they mean.
EXIT_CODES = (
    (0, "An answer was printed; that there is no infinite-token limit is an answer."),
    (2, "Wrong input: a message on standard error names the value, the place and the remedy."),
    (75, "Stopped by SIGTERM, the run is stored: a batch system should queue the job again."),
    (130, "Stopped by Ctrl-C; the message says how to resume."),
    (141, "What it prints into was closed, as by head; what was stored is kept."),
    (143, "Stopped by SIGTERM without --out: there is nothing to resume."),
)
#: Environment variables that change what a command does.
ENVIRONMENT = (
    ("HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE", "Set to 1, models are not looked for on the network."),
    ("HF_HOME", "Folder in which models from a hub are kept."),
    ("ESSCHER_REQUEUE_CODE", "Exit code to give instead of 75: that of the site's RequeueExit."),
    ("OMP_NUM_THREADS", "Threads that the linear algebra of a process uses."),
    ("COLUMNS", "Width of tables that do not go to a terminal."),
    ("NO_COLOR", "Set to anything, tables have no colours."),
)
#: Files of a run, the folder given as --out.
FILES = (
    ("RUN/config.json", "What was asked for, with versions of packages and the revision."),
    ("RUN/parts/", "What was measured, one part per replicate or cell, with checksums."),
    ("RUN/results.json", "What follows from it; what --json prints."),
    ("RUN/run.log", "Progress, a line a minute."),
    ("RUN/limit.npz", "Of a sweep: the limit that errors are taken against."),
    ("RUN/plan.json", "Of a plan: the budgets, as --save writes them."),
)


@dataclass(frozen=True)
class Described:
    """An option or a command: how it is written, and what it means.

    Attributes
    ----------
    written
        As on the command line, with the name of its value.
    meaning
        One or two sentences.
    default
        What holds when it is not given; empty if nothing does.
    """

    written: str
    meaning: str
    default: str = ""


@dataclass(frozen=True)
class CommandPage:
    """Everything there is to say about one command.

    Attributes
    ----------
    name
        With the name of the program, such as ``esscher probe``.
    usage
        What follows the name on a command line.
    summary
        The first sentence of the description.
    paragraphs
        The whole description; a paragraph with more than one line is printed as it stands.
    examples
        Command lines.
    options, commands
        Parts of the command line; commands are those of a group. Arguments are in the usage and the
        description.
    """

    name: str
    usage: str
    summary: str
    paragraphs: tuple[str, ...]
    examples: tuple[str, ...]
    options: tuple[Described, ...]
    commands: tuple[Described, ...]


def describe(command: click.Command, name: str = "esscher") -> CommandPage:
    """Take a command apart.

    Parameters
    ----------
    command
        Any command or group of click.
    name
        Its name on the command line, with the program's.
    """
    context = click.Context(command, info_name=name, **command.context_settings)
    paragraphs, examples = _help_parts(inspect.cleandoc(command.help or ""))
    options = [
        _option(parameter, context)
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    inside = command.commands.items() if isinstance(command, click.Group) else ()
    return CommandPage(
        name=name,
        usage=" ".join(command.collect_usage_pieces(context)),
        summary=paragraphs[0] if paragraphs else "",
        paragraphs=tuple(paragraphs),
        examples=tuple(examples),
        options=tuple(options),
        commands=tuple(
            Described(called, describe(inner, f"{name} {called}").summary)
            for called, inner in inside
            if not inner.hidden
        ),
    )


def describe_all(group: click.Group, name: str = "esscher") -> Iterator[CommandPage]:
    """The group's own page, then those of its commands."""
    yield describe(group, name)
    for called, command in group.commands.items():
        if not command.hidden:
            yield describe(command, f"{name} {called}")


def _option(option: click.Option, context: click.Context) -> Described:
    record = option.get_help_record(context)
    written, meaning = record if record is not None else ("/".join(option.opts), "")
    default = ""
    if "default" in (extra := option.get_help_extra(context)):
        default = extra["default"]
    plain = option.help or meaning
    if option.required:
        plain += " Required."
    return Described(written, plain, default)


def _help_parts(text: str) -> tuple[list[str], list[str]]:
    """Paragraphs and examples of a help text; click marks verbatim ones with a backspace."""
    paragraphs: list[str] = []
    examples: list[str] = []
    for block in text.strip().split("\n\n"):
        verbatim = block.startswith("\b")
        lines = block.removeprefix("\b").strip("\n").splitlines()
        if verbatim and lines[0].strip() in ("Example:", "Examples:"):
            whole = "\n".join(line.strip() for line in lines[1:])
            examples += whole.replace("\\\n", "").splitlines()
        elif verbatim:
            paragraphs.append("\n".join(lines))
        else:
            paragraphs.append(" ".join(line.strip() for line in lines))
    return paragraphs, examples
