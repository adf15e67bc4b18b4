"""The commands in parts, for manual pages and the documentation."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

import click

#: Exit codes of every command, and what they mean.
EXIT_CODES = (
    (0, "An answer was printed; that there is no infinite-token limit is an answer."),
    (2, "Wrong input: a message on standard error says what is wrong and how to fix it."),
    (75, "Stopped by SIGTERM with the run stored: a batch system should queue the job again."),
    (130, "Stopped by Ctrl-C; the message says how to resume."),
    (141, "Its output was closed, as by head; what was stored is kept."),
    (143, "Stopped by SIGTERM without --out: there is nothing to resume."),
)
#: Environment variables that change what a command does.
ENVIRONMENT = (
    ("HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE", "If 1, models are not looked up on the network."),
    ("HF_HOME", "Folder in which downloaded models are kept."),
    ("ESSCHER_REQUEUE_CODE", "Exit code to use instead of 75: the RequeueExit of the site."),
    ("OMP_NUM_THREADS", "Threads of linear algebra per process."),
    ("COLUMNS", "Width of tables that are not printed to a terminal."),
    ("NO_COLOR", "If set, tables have no colours."),
)
#: Files of a run, the folder given as --out.
FILES = (
    ("RUN/config.json", "What was asked for, with versions of packages and the revision."),
    ("RUN/parts/", "What was measured, one part per cell, with checksums."),
    ("RUN/results.json", "The result, as --json prints it."),
    ("RUN/run.log", "Progress, a line a minute."),
    ("RUN/plan.json", "Of a plan: the budgets, as --save writes them."),
)


class CommandPage(NamedTuple):
    """A command in parts.

    Attributes
    ----------
    name
        With the name of the program, such as ``esscher probe``.
    usage
        What follows the name on a command line.
    paragraphs
        The description; a paragraph with more than one line is printed as it stands.
    examples
        Command lines.
    options, commands
        Pairs: how an option or a command is written, and what it means, as ``--help`` says it.
    """

    name: str
    usage: str
    paragraphs: list[str]
    examples: list[str]
    options: list[tuple[str, str]]
    commands: list[tuple[str, str]]


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
    paragraphs: list[str] = []
    examples: list[str] = []
    for block in inspect.cleandoc(command.help or "").split("\n\n"):
        if not block.startswith("\b"):
            paragraphs.append(" ".join(block.split()))
        elif re.match("\b\nExamples?:\n", block):
            lines = block.replace("\\\n", "").splitlines()[2:]
            examples += [" ".join(line.split()) for line in lines]
        else:
            paragraphs.append(block.removeprefix("\b\n"))
    options = [
        parameter.get_help_record(context)
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option)
    ]
    inside = command.commands if isinstance(command, click.Group) else {}
    return CommandPage(
        name=name,
        usage=" ".join(command.collect_usage_pieces(context)),
        paragraphs=paragraphs,
        examples=examples,
        options=[record for record in options if record is not None],
        commands=[(called, describe(found).paragraphs[0]) for called, found in inside.items()],
    )


def describe_all(group: click.Group, name: str = "esscher") -> list[CommandPage]:
    """Take a group apart, and its commands."""
    inside = [describe(command, f"{name} {called}") for called, command in group.commands.items()]
    return [describe(group, name), *inside]
