"""Files, anchors, commands and options that the pages mention exist."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import click
import pytest

from esscher.cli import main
from tests.docs.pages import ROOT, anchors, command_lines, inline_commands, pages, prose

PAGES = pages()
#: Placeholders of command lines in prose, not commands.
PLACEHOLDERS = {"COMMAND", "NAME", "norms"}  # norms: the study that a guide adds


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"!?\[[^\]]*\]\(([^)\s]+)\)", prose(text)):
        target, _, anchor = match[1].partition("#")
        if re.match(r"[a-z]+:", match[1]):
            continue  # the network; `make docs-links` follows those
        place = page if not target else (page.parent / target).resolve()
        assert place.exists(), f"{name(page)} links to {match[1]}, which does not exist"
        if anchor and place.suffix == ".md":
            known = anchors(place.read_text(encoding="utf-8"))
            assert anchor in known, f"{name(page)} links to {match[1]}; there is no such heading"


def parse(words: list[str]) -> None:
    """Read a command line as click does, without running the command."""
    if not words or words[0].startswith("-"):
        with pytest.raises(click.exceptions.Exit) as end:
            main.make_context("esscher", list(words))
        assert end.value.exit_code == 0
        return
    command = main.get_command(None, words[0])
    assert command is not None, f"there is no command {words[0]!r}"
    with suppress(click.exceptions.Exit):  # --help ends right there
        command.make_context(f"esscher {words[0]}", list(words[1:]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_command_lines_can_be_read(page: Path) -> None:
    for line, words in command_lines(page.read_text(encoding="utf-8")):
        if PLACEHOLDERS & set(words):
            continue
        try:
            parse(words)
        except click.UsageError as error:
            pytest.fail(f"{name(page)}:{line}: esscher {' '.join(words)}: {error.message}")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_of_commands_in_prose_exist(page: Path) -> None:
    """Commands in a sentence are often cut short, so only their options are looked at."""
    for line, words in inline_commands(page.read_text(encoding="utf-8")):
        if PLACEHOLDERS & {words[0]}:
            continue
        if words[0].startswith("-"):
            parse(words)
            continue
        assert words[0] in main.list_commands(None), f"{name(page)}:{line}: no command {words[0]!r}"
        params = main.get_command(None, words[0]).params
        known = {option for p in params for option in (*p.opts, *p.secondary_opts)}
        for option in (word.split("=")[0] for word in words if word.startswith("--")):
            assert option in known | {"--help"}, f"{name(page)}:{line}: {words[0]} has no {option}"


def test_options_in_tables_of_the_command_line_page_exist() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        names = re.findall(r"esscher ([a-z]+)", section.splitlines()[0])
        if not names:
            continue
        known = {
            option
            for name in names
            for p in main.get_command(None, name).params
            for option in (*p.opts, *p.secondary_opts)
        }
        for row in re.findall(r"^\| (`-[^|]*) \|", section, re.M):
            for option in re.findall(r"--[a-z][a-z-]*", row):
                assert option in known, f"{names}: {option}"
