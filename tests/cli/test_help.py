"""Every command explains itself: description, options with meaning and default, examples."""

from __future__ import annotations

import re
from pathlib import Path

import click
from click.testing import CliRunner

from esscher.cli import main
from esscher.cli.printing import STOPPED
from esscher.cli.program import SENTENCES, STUDIES
from esscher.runs import registry

COMMANDS = main.list_commands(None)
#: An option in a help text.
OPTION = r"^  (?:-\w, )?--[a-z]"


def test_the_list_says_what_the_commands_say() -> None:
    """``--help`` shows first sentences without importing the commands that they are of."""
    assert list(SENTENCES) == COMMANDS
    for name in COMMANDS:
        command = main.get_command(None, name)
        assert command.get_short_help_str(1000) == SENTENCES[name]
        assert not command.hidden


def test_the_commands() -> None:
    """Studies of synthetic tokens that are functions alone have none."""
    assert {*STUDIES, "deep-stack", "sparse-law"} == set(registry.STUDIES)
    assert len(COMMANDS) == 14
    options = 0
    for name in COMMANDS:
        command = main.get_command(None, name)
        text = command.get_help(click.Context(command))
        options += len(re.findall(OPTION, text, re.M))
        first = text.partition("Options:\n")[2].partition("\n\n")[0]
        assert len(re.findall(OPTION, first, re.M)) <= 10
    assert options <= 200


def test_exit_codes_are_those_of_the_program() -> None:
    codes = {0, 1, 2, *STOPPED.values()}
    page = (Path(__file__).parents[2] / "docs/command-line.md").read_text()
    table = page[page.index("## Exit codes") :]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)] == sorted(codes)
    assert CliRunner().invoke(main, ["theory", "--horizon", "-1"]).exit_code == 2
    assert CliRunner().invoke(main, ["theory", "--horizon", "0.5"]).exit_code == 0
