"""How commands end: stopped by SIGTERM or Ctrl-C, or because nobody reads on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import esscher
from esscher.cli import main
from esscher.runs.progress import Reporter
from esscher.runs.registry import load
from esscher.studies.deep import stack as measure
from tests.cli.printed import run
from tests.runs.stack import ENVIRONMENT, stack


@pytest.fixture(autouse=True)
def _command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(main.commands, "stack", stack)
    monkeypatch.setattr(sys, "argv", ["esscher", "stack"])


def arrives(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, error: Exception | None = None
) -> None:
    """Let a signal arrive while replicate 2 is measured, and its exception become another one."""
    original = measure.measure_replicate

    def measured(source, sizes, replicate, seed):
        if replicate == 2:
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:
                if error is not None:
                    raise error from None
                raise
        return original(source, sizes, replicate, seed)

    monkeypatch.setattr(measure, "measure_replicate", measured)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    before = signal.getsignal(number)
    arrives(monkeypatch, number)
    words = ["stack", "--replicates", "4", "--out", str(tmp_path / "run")]
    result = run(*words)
    assert result.exit_code == code, result.output
    assert f"Stopped with 2 replicates stored in {tmp_path / 'run'}" in result.stderr
    assert "Run the same command again to resume:\n  esscher stack" in result.stderr
    assert signal.getsignal(number) is before
    assert len(load(tmp_path / "run").cells) == 2
    monkeypatch.undo()
    monkeypatch.setitem(main.commands, "stack", stack)
    assert run(*words).exit_code == 0


def test_without_a_directory_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    arrives(monkeypatch, signal.SIGINT)
    result = run("stack", "--replicates", "4")
    assert result.exit_code == 130
    assert "Nothing is stored; with --out RUN a run can be resumed" in result.stderr


def test_a_second_signal_does_not_break_the_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, ended = Reporter.__exit__, []

    def ending(self, *stop):
        ended.append(stop[0])
        signal.raise_signal(signal.SIGTERM)
        original(self, *stop)

    monkeypatch.setattr(Reporter, "__exit__", ending)
    arrives(monkeypatch, signal.SIGTERM)
    result = run("stack", "--replicates", "4", "--out", str(tmp_path / "run"))
    assert result.exit_code == 143
    assert ended == [KeyboardInterrupt]
    assert "stopped (KeyboardInterrupt): 2 of 4" in (tmp_path / "run" / "run.log").read_text()
    assert len(load(tmp_path / "run").cells) == 2


@pytest.mark.parametrize(
    "error", [ImportError("half"), esscher.InputError("a worker died"), OSError(5, "x")]
)
def test_the_signal_counts_whatever_became_of_its_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    arrives(monkeypatch, signal.SIGTERM, error)
    result = run("stack", "--replicates", "4", "--out", str(tmp_path / "run"))
    assert result.exit_code == 143, result.output
    assert "Run the same command again" in result.stderr


def test_commands_without_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def terminated() -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setitem(main.commands, "terminated", terminated)
    result = run("terminated")
    assert result.exit_code == 143
    assert result.stderr == "Stopped.\n"


@pytest.mark.parametrize("words", [["ls", "."], ["ls", ".", "--json"], ["--help"]])
def test_nobody_reads_what_is_printed(tmp_path: Path, words: list[str]) -> None:
    """As in ``esscher ls | head -1``: no message."""
    (tmp_path / "a" / "parts").mkdir(parents=True)
    (tmp_path / "a" / "config.json").write_text("{")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "esscher", *words],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
