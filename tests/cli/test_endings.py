"""SIGTERM and Ctrl-C: exit codes, and that nothing is left half done."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import esscher
from esscher.cli import main
from esscher.cli.printing import REQUEUE, REQUEUE_VARIABLE, STOPPED, TERMINATED
from esscher.runs.progress import Reporter
from esscher.runs.registry import load
from esscher.studies.sweep import SweepStudy, measure
from esscher.studies.sweep import sweep as run_sweep

SWEEP = ["sweep", "gaussian", "--dim", "2", "--horizon", "0.5", "--sizes", "10,40"]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(Path(esscher.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(autouse=True)
def signals():
    """A command that was terminated leaves SIGTERM ignored, for the rest of its process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def terminate_at(monkeypatch: pytest.MonkeyPatch, replicate: int, times: int = 1) -> None:
    """Let SIGTERM arrive while a replicate is measured."""
    original = measure.measure_replicate

    def measured(plan, r):
        if r == replicate:
            for _ in range(times):
                signal.raise_signal(signal.SIGTERM)
        return original(plan, r)

    monkeypatch.setattr(measure, "measure_replicate", measured)


def test_a_stored_run_asks_to_be_queued_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminate_at(monkeypatch, 2)
    result = run(*SWEEP, "--replicates", "4", "--no-predict", "--out", str(tmp_path / "run"))
    assert result.exit_code == REQUEUE == os.EX_TEMPFAIL, result.output
    assert f"Stopped with 2 replicates stored in {tmp_path / 'run'}" in result.output
    assert "exit code 75, queue the job again" in result.output
    monkeypatch.undo()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert load(tmp_path / "run").data.sizes["replicate"] == 2
    assert run(*SWEEP, "--replicates", "4", "--out", str(tmp_path / "run")).exit_code == 0


@pytest.mark.parametrize("value", ["0", "2", "130", "256", "-1", "7.5", "requeue", "\u0667"])
def test_a_bad_code_is_an_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(REQUEUE_VARIABLE, value)
    result = run(*SWEEP, "--replicates", "3", "--out", str(tmp_path / "run"))
    assert result.exit_code == 2
    assert f"ESSCHER_REQUEUE_CODE is '{value}'" in result.output
    assert "whole number from 1 to 255" in result.output
    assert not (tmp_path / "run").exists()
    assert (
        run("theory", "--horizon", "0.5").exit_code == 0
    )  # it runs no cells, and looks at no code


def test_a_second_signal_does_not_break_the_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, ended = Reporter.__exit__, []

    def ending(self, *stop):
        ended.append(stop[0])
        signal.raise_signal(signal.SIGTERM)
        original(self, *stop)

    monkeypatch.setattr(Reporter, "__exit__", ending)
    terminate_at(monkeypatch, 2, times=2)
    result = run(*SWEEP, "--replicates", "4", "--out", str(tmp_path / "run"))
    assert result.exit_code == REQUEUE
    assert ended == [KeyboardInterrupt]
    assert "stopped (KeyboardInterrupt): 2 of 4" in (tmp_path / "run" / "run.log").read_text()
    assert load(tmp_path / "run").data.sizes["replicate"] == 2


@pytest.mark.parametrize(
    "error", [ImportError("half"), esscher.InputError("a worker died"), OSError(5, "x")]
)
def test_the_signal_counts_whatever_became_of_its_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def measured(plan, r):
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise error from None

    monkeypatch.setattr(measure, "measure_replicate", measured)
    result = run(*SWEEP, "--replicates", "4", "--out", str(tmp_path / "run"))
    assert result.exit_code == REQUEUE, result.output
    assert "Run the same command again" in result.output


def test_commands_without_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def terminated() -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setitem(main.commands, "terminated", terminated)
    result = run("terminated")
    assert result.exit_code == TERMINATED == 128 + signal.SIGTERM
    assert "Nothing is stored" in result.output
    assert "nothing to resume" in result.output
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert run("theory", "--horizon", "0.5").exit_code == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_before_there_is_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(SweepStudy, "run", lambda study: signal.raise_signal(number))
    monkeypatch.setattr(sys, "argv", ["esscher", "sweep"])
    result = run(*SWEEP, "--out", str(tmp_path / "run"))
    assert result.exit_code == {signal.SIGINT: STOPPED, signal.SIGTERM: REQUEUE}[number]
    assert f"Stopped before {tmp_path / 'run'} was made" in result.stderr
    assert "Run the same command again:\n  esscher sweep" in result.stderr
    assert "resume" not in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [["ls", "."], ["ls", ".", "--json"], ["--help"]])
def test_nobody_reads_what_is_printed(tmp_path: Path, words: list[str]) -> None:
    """As in ``esscher ls | head -1``: no message, and the exit code of other programs."""
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
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_to_all_processes(tmp_path: Path, workers: int) -> None:
    """As SLURM sends it: workers must not turn it into a lack of memory."""
    out = tmp_path / "run"
    words = "sweep gaussian --dim 3 --horizon 1 --sizes 50,700 --seed 3 --replicates 3000 --out"
    child = subprocess.Popen(
        [sys.executable, "-m", "esscher", *words.split(), str(out), "--workers", str(workers)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    end = time.monotonic() + 90
    while len(list((out / "parts").glob("replicate-*.safetensors"))) < 3:
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGTERM)
    start = time.monotonic()
    error = child.communicate(timeout=60)[1]
    assert time.monotonic() - start < 25  # SLURM's default KillWait is 30 s
    assert child.returncode == REQUEUE, error
    done = int(re.search(r"Stopped with (\d+) replicates", error)[1])
    assert "Traceback" not in error
    assert "memory" not in error
    curve = load(out)
    assert curve.data.sizes["replicate"] == done
    # Two workers are not equally fast: 0, 1 and 3 may be stored when 2 is still being measured.
    first = curve["replicate"].values[:3]
    same = run_sweep(
        esscher.gaussian_head(1.0, 3), [50, 700], int(max(first)) + 1, 3, progress=False
    )
    errors, wanted = curve["replicate_error"], same["replicate_error"].sel(replicate=first)
    assert errors[:, :, :3].equals(wanted)
