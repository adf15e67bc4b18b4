"""``esscher man``: the manual pages, made from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from esscher import __version__
from esscher.cli.describe import ENVIRONMENT, EXIT_CODES, FILES, CommandPage, describe, describe_all
from esscher.cli.printing import say
from esscher.core.atomic import write_output
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
    """Print the manual page of a command, in the format of man.

    Without COMMAND: the page of esscher itself.

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
    pages = describe_all(group)
    for page in pages:
        write_output(folder / f"{_file_name(page.name)}.1", manual_page(page).encode())
    say(f"{len(pages)} pages in {folder}; man esscher shows the first.")


def _chosen(group: click.Group, command: str | None) -> CommandPage:
    if command is None:
        return describe(group)
    if command not in group.commands:
        known = ", ".join(group.commands)
        raise InputError(f"there is no command {command!r}; choose from {known}")
    return describe(group.commands[command], f"esscher {command}")


def manual_page(page: CommandPage) -> str:
    """Write a manual page as roff source, section 1."""
    name, summary = _file_name(page.name), page.paragraphs[0].split(". ")[0].removesuffix(".")
    others = [f"esscher-{called}" for called, _ in page.commands] or ["esscher"]
    sections = {
        "NAME": [f"{_text(name)} \\- {_text(summary[:1].lower() + summary[1:])}"],
        "SYNOPSIS": [f".B {_text(page.name)}", _text(page.usage)],
        "DESCRIPTION": [line for paragraph in page.paragraphs for line in _block(paragraph)],
        "COMMANDS": _tagged(page.commands),
        "OPTIONS": _tagged(page.options),
        "EXAMPLES": [line for example in page.examples for line in _block(f"$ {example}\n")],
        "EXIT STATUS": _tagged((str(code), meaning) for code, meaning in EXIT_CODES),
        "ENVIRONMENT": _tagged(ENVIRONMENT),
        "FILES": _tagged(FILES),
        "SEE ALSO": [",\n".join(f".BR {_text(other)} (1)" for other in others)],
    }
    lines = [f'.TH "{name.upper()}" "1" "" "Esscher {__version__}" "Esscher"']
    for heading, content in sections.items():
        lines += [f".SH {heading}", *content] if content else []
    return "\n".join(lines) + "\n"


def _file_name(name: str) -> str:
    return name.replace(" ", "-")


def _block(text: str) -> list[str]:
    """A paragraph; with a line break in it, it is shown line by line."""
    lines = [_text(line) for line in text.splitlines()]
    return [".PP", ".nf", *lines, ".fi"] if "\n" in text else [".PP", *lines]


def _tagged(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [line for tag, text in pairs for line in (".TP", f".B {_text(tag)}", _text(text))]


def _text(text: str) -> str:
    """Text that roff shows as it is: no escapes, no hyphenation points, no requests."""
    text = text.replace("\\", "\\e").replace("-", "\\-").rstrip()
    return f"\\&{text}" if text.startswith((".", "'")) else text
