"""Numbers that no command can use: a message and exit code 2, never a traceback."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from esscher.cli import main

#: Commands with numeric options that need no model, with as little work as possible.
COMMANDS = {
    "theory": ["--horizon=0.5", "--sizes=100,200"],
    "sweep": ["gaussian", "--horizon=0.5", "--sizes=16,32", "--replicates=2"],
}
LISTS = {"--sizes", "--spectrum", "--tau", "--alpha"}


def cases():
    for name in COMMANDS:
        for option in main.get_command(None, name).params:
            written = option.opts[-1]
            if option.type is click.FLOAT or written in LISTS:
                values = ["nan", "inf", "1e400", "x"]
            elif option.type is click.INT:
                values = ["1.5", "-1", "nan", "1" + 30 * "0"]
            else:
                continue
            for value in values:
                # a seed may be as large as one likes
                if not (written == "--seed" and value.endswith("000")):
                    yield pytest.param(name, written, value, id=f"{name} {written} {value}")


@pytest.mark.parametrize(("name", "option", "value"), list(cases()))
def test_numbers_out_of_range_are_usage_errors(name, option, value):
    words = [word for word in COMMANDS[name] if not word.startswith(f"{option}=")]
    if option == "--spectrum":
        words = [word for word in words if not word.startswith("--horizon")]
    if (name, option) == ("theory", "--df"):
        words.append("--law=student")
    if (name, option) == ("sweep", "--df"):
        words[0] = "student"
    result = CliRunner().invoke(main, [name, *words, f"{option}={value}"])
    assert result.exit_code == 2, (result.output, result.exception)
    assert "Error: " in result.output


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 74.5 GiB for an array"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 80 GB"),
    ],
)
def test_too_little_memory_is_a_message(error, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("esscher.math.theory.predict", fail)
    result = CliRunner().invoke(main, ["theory", "--horizon=0.5"])
    assert result.exit_code == 2
    assert "not enough memory" in result.output
    assert str(error) in result.output
