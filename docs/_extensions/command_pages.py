"""The reference of the command line, written from the commands themselves when the site is built.

A page that holds the line ``<!-- commands -->`` gets it in that place; on a forge the mark does not
show.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import NamedTuple

import click
from sphinx.application import Sphinx

from esscher.cli.program import main

MARK = "<!-- commands -->"
#: Exit codes of every command, and what they mean.
EXIT_CODES = (
    (0, "An answer was printed; that there is no infinite-token limit is an answer."),
    (1, "Its output was closed, as by head; what was stored is kept."),
    (2, "Wrong input: a message on standard error says what is wrong and how to fix it."),
    (130, "Stopped by Ctrl-C; the message says how to resume."),
    (143, "Stopped by SIGTERM, likewise: a batch system can queue the job again."),
)
#: Environment variables that change what a command does.
ENVIRONMENT = (
    ("HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE", "If 1, models are not looked up on the network."),
    ("HF_HOME", "Folder in which downloaded models are kept."),
    ("OMP_NUM_THREADS", "Threads of linear algebra per process."),
    ("COLUMNS", "Width of tables that are not printed to a terminal."),
    ("NO_COLOR", "If set, tables have no colours."),
)
#: Files of a run, the folder given as --out.
FILES = (
    ("RUN/config.json", "What was asked for, the command, and versions of packages."),
    ("RUN/parts/", "What was measured: a dataset per cell, with a checksum."),
    ("RUN/results.safetensors", "The result: a labelled dataset, which esscher.load reads."),
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
    inside = commands_of(command, context) if isinstance(command, click.Group) else {}
    return CommandPage(
        name=name,
        usage=" ".join(command.collect_usage_pieces(context)),
        paragraphs=paragraphs,
        examples=examples,
        options=[record for record in options if record is not None],
        commands=[(called, describe(found).paragraphs[0]) for called, found in inside.items()],
    )


def commands_of(group: click.Group, context: click.Context) -> dict[str, click.Command]:
    """The commands of a group, each imported."""
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in commands.items() if command is not None}


def describe_all(group: click.Group, name: str = "esscher") -> list[CommandPage]:
    """Take a group apart, and its commands."""
    commands = commands_of(group, click.Context(group))
    inside = [describe(command, f"{name} {called}") for called, command in commands.items()]
    return [describe(group, name), *inside]


def reference() -> str:
    """Every command, then what they have in common."""
    return "\n\n".join(
        [
            *map(_command, describe_all(main)),
            "## Exit codes",
            _table(("code", "meaning"), [(f"`{code}`", _plain(text)) for code, text in EXIT_CODES]),
            "## Environment",
            _table(("variable", "meaning"), _rows(ENVIRONMENT)),
            "## Files",
            "A run is the folder given as `--out`.",
            _table(("file", "content"), _rows(FILES)),
        ]
    )


def _command(page: CommandPage) -> str:
    parts = [f"## {page.name}", *map(_paragraph, page.paragraphs)]
    parts.append(f"```text\n{page.name} {page.usage}\n```")
    if page.commands:
        rows = [
            (f"[`{called}`](#esscher-{called})", _plain(text)) for called, text in page.commands
        ]
        parts.append(_table(("command", "what it does"), rows))
    rows = [(_code(written), _plain(text)) for written, text in page.options]
    parts.append(_table(("option", "meaning"), rows))
    if page.examples:
        parts.append("```console\n" + "\n".join(f"$ {line}" for line in page.examples) + "\n```")
    return "\n\n".join(parts)


def _paragraph(text: str) -> str:
    return f"```text\n{text}\n```" if "\n" in text else _plain(text)


def _rows(table: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [
        (", ".join(f"`{name}`" for name in first.split(", ")), _plain(text))
        for first, text in table
    ]


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [titles, ("---",) * len(titles), *rows]
    return "\n".join("| " + " | ".join(cell for cell in line) + " |" for line in lines)


def _code(text: str) -> str:
    escaped = text.replace("|", "\\|")  # or it would end the cell
    return f"`{escaped}`" if text else ""


def _plain(text: str) -> str:
    """Text without meaning for Markdown; options and capitals of arguments as code."""
    text = re.sub(r"([\\|*_<>\[\]`$])", r"\\\1", text)
    return re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", text)


def _insert(app: Sphinx, name: str, source: list[str]) -> None:
    if MARK in source[0]:
        source[0] = source[0].replace(MARK, reference())


def setup(app: Sphinx) -> dict[str, bool]:
    """Insert the reference where a page asks for it."""
    app.connect("source-read", _insert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
