"""Every command explains itself: description, options with meaning and default, examples."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from esscher.cli import main
from esscher.cli.endings import REQUEUE, STOPPED, TERMINATED, UNREAD
from esscher.cli.program import LISTED, SENTENCES, STUDIES
from esscher.runs import registry

COMMANDS = main.list_commands(None)


def test_the_list_says_what_the_commands_say() -> None:
    """``--help`` shows first sentences without importing the commands that they are of."""
    assert list(LISTED.commands) == COMMANDS == list(SENTENCES)
    for name in COMMANDS:
        command = main.get_command(None, name)
        assert LISTED.commands[name].get_short_help_str(60) == command.get_short_help_str(60)
        assert command.get_short_help_str(1000) == SENTENCES[name]
        assert not command.hidden


def test_the_commands() -> None:
    """Studies of synthetic tokens that are functions alone have none."""
    assert {*STUDIES, "deep-stack", "sparse-law"} == set(registry.STUDIES)
    assert len(COMMANDS) == 14
    for name in COMMANDS:
        command = main.get_command(None, name)
        text = command.get_help(click.Context(command))
        first = text.partition("Options:\n")[2].partition("\n\n")[0]
        assert len(re.findall(r"^  (?:-\w, )?--", first, re.M)) <= 10


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_begins_with_a_question_and_ends_with_a_command(name: str) -> None:
    study = registry.study_named(name)
    assert study.asks.endswith("?")
    program, command, *words = study.next_step.split()
    assert program == "esscher"
    flags = {flag for option in parameters(command) for flag in option.opts}
    assert {word for word in words if word.startswith("--")} <= flags


def parameters(name: str) -> list[click.Parameter]:
    return main.get_command(None, name).params


@pytest.mark.parametrize("name", COMMANDS)
def test_description_and_examples(name: str) -> None:
    help = main.get_command(None, name).help or ""
    assert help[0].isupper()
    examples = re.split("Examples?:\n", help)[1].splitlines()
    assert examples[0].lstrip().startswith(f"esscher {name}")


def test_exit_codes_are_those_of_the_program() -> None:
    codes = {0, 2, REQUEUE, STOPPED, UNREAD, TERMINATED}
    page = (Path(__file__).parents[2] / "docs/command-line.md").read_text()
    table = page[page.index("## Exit codes") :]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)] == sorted(codes)
    assert CliRunner().invoke(main, ["theory", "--horizon", "-1"]).exit_code == 2
    assert CliRunner().invoke(main, ["theory", "--horizon", "0.5"]).exit_code == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_about_the_command_line(name: str) -> None:
    """Options of studies are arguments in Python too; what is only there is not said here."""
    text = CliRunner().invoke(main, [name, "--help"], terminal_width=100).output
    for other in ("in Python", "In Python", ":func:", ":class:", "``"):
        assert other not in text
