"""``esscher man``: the manual pages, made from the commands themselves."""

from __future__ import annotations

import re
from pathlib import Path

import click

from esscher import __version__
from esscher.cli.describe import (
    ENVIRONMENT,
    EXIT_CODES,
    FILES,
    CommandPage,
    Described,
    describe,
    describe_all,
)
from esscher.core.errors import InputError


@click.command()
@click.argument("command", metavar="[COMMAND]", required=False)
@click.option(
    "--install",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the pages of all commands into DIR/man1, such as ~/.local/share/man.",
)
@click.pass_context
def man(context: click.Context, command: str | None, install: Path | None) -> None:
    """Print the manual page of a command, for man to show.

    Without COMMAND it is the page of esscher itself.

    \b
    Examples:
      esscher man probe | man -l -
      esscher man --install ~/.local/share/man
    """  # noqa: D301 - click's mark for verbatim lines
    group = context.find_root().command
    assert isinstance(group, click.Group)
    if install is None:
        click.echo(manual_page(_chosen(group, command)), nl=False)
        return
    if command is not None:
        raise InputError(f"--install writes the pages of all commands; leave out {command!r}")
    folder = install.expanduser() / "man1"
    folder.mkdir(parents=True, exist_ok=True)
    pages = list(describe_all(group))
    for page in pages:
        (folder / f"{_file_name(page.name)}.1").write_text(manual_page(page), encoding="utf-8")
    click.echo(f"{len(pages)} pages in {folder}; man esscher shows the first.")


def _chosen(group: click.Group, command: str | None) -> CommandPage:
    if command is None:
        return describe(group)
    if command not in group.commands:
        known = ", ".join(group.commands)
        raise InputError(f"there is no command {command!r}; choose from {known}")
    return describe(group.commands[command], f"esscher {command}")


def manual_page(page: CommandPage) -> str:
    """One manual page as roff source, section 1."""
    name = _file_name(page.name)
    title = f'.TH "{name.upper()}" "1" "" "Esscher {__version__}" "Esscher"'
    parts = [
        title,
        ".SH NAME",
        f"{_text(name)} \\- {_text(_headline(page.summary))}",
        ".SH SYNOPSIS",
        f".B {_text(page.name)}",
        _text(page.usage),
        ".SH DESCRIPTION",
        *_paragraphs(page.paragraphs),
    ]
    for heading, described in (("COMMANDS", page.commands), ("OPTIONS", page.options)):
        if described:
            parts += [f".SH {heading}", *(line for one in described for line in _tagged(one))]
    if page.examples:
        parts += [".SH EXAMPLES"]
        for example in page.examples:
            parts += [".PP", ".nf", f"$ {_text(example)}", ".fi"]
    parts += [".SH EXIT STATUS"]
    parts += [line for code, text in EXIT_CODES for line in _tagged(Described(str(code), text))]
    for heading, table in (("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES)):
        parts += [f".SH {heading}"]
        parts += [line for first, text in table for line in _tagged(Described(first, text))]
    others = [f"esscher-{one.written}" for one in page.commands] or ["esscher"]
    parts += [".SH SEE ALSO", ",\n".join(f".BR {_text(other)} (1)" for other in others)]
    return "\n".join(parts) + "\n"


def _file_name(name: str) -> str:
    return name.replace(" ", "-")


def _headline(summary: str) -> str:
    """The summary as the one line of a NAME section: no full stop, no capital."""
    line = summary.split(". ")[0].removesuffix(".")
    return line[:1].lower() + line[1:]


def _paragraphs(paragraphs: tuple[str, ...]) -> list[str]:
    lines = []
    for paragraph in paragraphs:
        lines.append(".PP")
        if "\n" in paragraph:
            lines += [".nf", *(_text(line) for line in paragraph.splitlines()), ".fi"]
        else:
            lines.append(_text(paragraph))
    return lines


def _tagged(described: Described) -> list[str]:
    meaning = described.meaning
    if described.default:
        meaning += f" Default: {described.default}."
    return [".TP", f".B {_text(described.written)}", _text(meaning)]


def _text(text: str) -> str:
    """Text that roff shows as it is: no escapes, no hyphenation points, no requests."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"\s+$", "", text)
    return f"\\&{text}" if text.startswith((".", "'")) else text
