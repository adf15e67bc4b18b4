"""Rounds of faults against one run, and what must hold after each of them.

``python -m tests.soak --rounds 100 --seed 0`` prints the table of the documentation.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from esscher.cli import main
from esscher.core.streams import random_stream
from esscher.runs.folder import is_locked
from tests.soak.processes import Command, Starter, session
from tests.soak.subjects import Subject, results

#: New parts that a round waits for before its fault, at most.
AHEAD = 5
#: Exit code 143 is also what a shell says of a process that SIGTERM ended before it had begun.
BEFORE_IT_HAD_BEGUN = -15
#: Seconds until the processes of a killed command must be gone.
GONE = 60.0
#: What must never be seen on standard error.
NEVER = re.compile(r"Traceback|Exception ignored|Error in atexit|Aborted!")
#: What Python says when it cleans up after a command that was killed, and must not say otherwise.
CLEANING = "resource_tracker"


@dataclass
class Tally:
    """What came of the rounds with one fault."""

    rounds: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    kept: int = 0
    new: int = 0


class Soak:
    """A run, its uninterrupted twin, and the rounds.

    Parameters
    ----------
    subject
        What to run.
    folder
        Where; everything is below it.
    seed
        Of the choice of faults and moments.
    quick
        Whether to leave out faults that take many seconds.
    """

    def __init__(self, subject: Subject, folder: Path, seed: int, quick: bool = False) -> None:
        self.subject, self.seed, self.quick = subject, seed, quick
        self.place = folder / "runs"
        self.run = self.place / "run"
        self.twin = folder / "twin"
        self.disk = folder / "disk"
        self.starter = Starter(folder / "output", subject.modules)
        self.tallies: dict[str, Tally] = {}
        done = self.starter.forked(subject.command(self.twin))
        assert done.wait(600) == 0, done.error()
        self._truth = subject.numbers(self.twin, subject.parts(self.twin))
        self._checked: dict[str, str] = {}
        #: Runs that were compared with the uninterrupted one, from the first to the last number.
        self.finished = 0

    def round(self, number: int) -> str:
        """One round: a fault at a random moment, then the checks; return the fault's name."""
        from tests.soak.faults import chosen_fault

        if self.run.exists() and self.subject.parts(self.run) == sorted(self._truth):
            self.finish()  # done before its time: compare, and begin anew
            shutil.rmtree(self.run)
            self._checked.clear()
        fault = chosen_fault(self, number)
        this = Round(self, number)
        tally = self.tallies.setdefault(fault.name, Tally())
        before = self.subject.files(self.run) if self.run.exists() else {}
        try:
            fault.run(this)
            this.check(before, fault.codes)
        except BaseException as error:
            print(
                f"\nround {number} of seed {self.seed}: {fault.name}\n{this.story()}\n"
                f"{traceback.format_exc()}",
                flush=True,
            )
            if isinstance(error, AssertionError):
                raise AssertionError(
                    f"round {number}, seed {self.seed}, {fault.name}: {error}\n{this.story()}"
                ) from error
            raise
        after = self.subject.files(self.run) if self.run.exists() else {}
        tally.rounds += 1
        tally.codes.update(code for code in this.codes if code is not None)
        tally.kept += len(before.keys() & after.keys())
        tally.new += len(after.keys() - before.keys())
        return fault.name

    def finish(self) -> None:
        """Run the rest without faults; everything must be as in the uninterrupted run."""
        last = self.starter.forked(self.subject.command(self.run))
        assert last.wait(600) == 0, last.error()
        parts = self.subject.parts(self.run)
        assert parts == sorted(self._truth)
        assert self.subject.numbers(self.run, parts) == self._truth
        assert results(self.run) == results(self.twin)
        assert not list(self.run.rglob("*.tmp"))
        self.finished += 1

    def close(self) -> None:
        """End what was started."""
        self.starter.close()

    def numbers_are_right(self) -> None:
        """Compare the parts that are new, or have changed, with the uninterrupted run."""
        files = self.subject.files(self.run)
        new = [n for n in self.subject.parts(self.run) if self._checked.get(n) != files[n]]
        for name, value in self.subject.numbers(self.run, new).items():
            assert value == self._truth[name], f"{name} differs from the uninterrupted run"
            self._checked[name] = files[name]

    def table(self) -> str:
        """What was tried and what happened, as Markdown."""
        from tests.soak.faults import FAULTS

        lines = [
            "| what was done to it | rounds | exit codes (times) | kept | new | what you see |",
            "|---|---|---|---|---|---|",
        ]
        for fault in FAULTS:
            tally = self.tallies.get(fault.name)
            if tally is None:
                continue
            codes = ", ".join(f"{shown(c)} ({n})" for c, n in sorted(tally.codes.items()))
            lines.append(
                f"| {fault.name} | {tally.rounds} | {codes} | {tally.kept} | {tally.new} | "
                f"{fault.seen} |"
            )
        return "\n".join(lines)


class Round:
    """One round: what a fault needs to do its work."""

    def __init__(self, soak: Soak, number: int) -> None:
        self.soak, self.subject = soak, soak.subject
        self.rng = random_stream(soak.seed, "soak", number)
        self.ahead = int(self.rng.integers(0, AHEAD + 1))
        self.delay = float(self.rng.uniform(0.0, 0.05 if self.ahead else 0.4))
        #: Names of parts that the fault damaged or removed; all others must be there afterwards.
        self.damaged: set[str] = set()
        self.commands: list[Command] = []
        self.codes: list[int | None] = []

    @property
    def run(self) -> Path:
        """The directory of the run."""
        return self.soak.run

    def parts(self) -> list[str]:
        """Names of the parts that are there."""
        return self.subject.parts(self.run)

    def a_part(self) -> Path | None:
        """The file of some part; None if there is none yet."""
        files = sorted(self.subject.files(self.run))
        if not files:
            return None
        return self.run / "parts" / files[int(self.rng.integers(len(files)))]

    def start(
        self,
        workers: int = 1,
        *,
        fresh: bool = False,
        file_size: int = 0,
        clock: int | None = None,
        run: Path | None = None,
    ) -> Command:
        """Start the command on the run."""
        words = self.subject.command(run or self.run, workers)
        if workers > 1 or fresh:
            command = self.soak.starter.fresh(words)
        else:
            command = self.soak.starter.forked(words, file_size, clock)
        self.commands.append(command)
        return command

    def moment(self, command: Command, run: Path | None = None) -> None:
        """Wait for the moment of the fault: some new parts, then some milliseconds."""
        place = run or self.run
        before = len(self.subject.parts(place))
        end = time.monotonic() + 120
        while command.poll() is None and len(self.subject.parts(place)) < before + self.ahead:
            assert time.monotonic() < end, "nothing is stored"
            time.sleep(0.004)
        time.sleep(self.delay)

    def end(self, command: Command) -> int:
        """Wait for the end of a command; remember its exit code."""
        code = command.wait()
        self.codes.append(code)
        end = time.monotonic() + GONE
        while left := session(command.pid):
            assert time.monotonic() < end, f"processes are left behind: {left}"
            time.sleep(0.01)
        return code

    def check(self, before: dict[str, str], codes: tuple[int, ...]) -> None:
        """What must hold after every round."""
        if not before:  # many faults need a run; without one it was begun, and stopped somehow
            codes = (*codes, 75, 130)
        for command, code in zip(self.commands, self.codes, strict=True):
            early = code == BEFORE_IT_HAD_BEGUN and 75 in codes and not self.ahead
            assert code in (*codes, 0) or early, f"exit code {code}"
            assert not NEVER.search(command.error()), "not a message for users"
            assert code == -9 or CLEANING not in command.error(), "something is left behind"
        if not self.run.exists():
            assert not before
            return
        after = self.subject.files(self.run)
        lost = [n for n in before if n not in self.damaged and after.get(n) != before[n]]
        assert not lost, f"lost or changed: {lost}"
        if not (self.run / "config.json").exists():
            return
        self.soak.numbers_are_right()
        assert not is_locked(self.run), "the lock is stuck"
        self._look()

    def _look(self) -> None:
        """``esscher ls`` and ``esscher show``, as a user would look."""
        listed = CliRunner().invoke(main, ["ls", str(self.soak.place), "--json"])
        assert listed.exit_code == 0, listed.output
        rows = json.loads(listed.stdout)["runs"]
        assert [(row["kind"], row["run"]) for row in rows] == [(self.subject.kind, "run")], rows
        assert rows[0]["state"] in ("stopped", "complete"), rows
        assert rows[0]["done"] == len(self.parts())
        shown_run = CliRunner().invoke(main, ["show", str(self.run)])
        assert shown_run.exit_code == 0, shown_run.output

    def story(self) -> str:
        """What is needed to understand a failure."""
        lines = [f"after {self.ahead} new parts and {self.delay * 1000:.0f} ms"]
        for k, command in enumerate(self.commands):
            code = self.codes[k] if k < len(self.codes) else command.poll()
            lines.append(f"process {command.pid}: exit code {code}\n{command.error()}")
        return "\n".join(lines)


@contextmanager
def small_disk(run: Path, disk: Path, room: int) -> Iterator[Path]:
    """Move a run to a file system of its own that has little room left; afterwards move it back."""
    block = 4096
    files = [path for path in run.rglob("*") if path.is_file()]
    used = sum(-(-path.stat().st_size // block) for path in files) * block
    disk.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", f"size={used + room}", "tmpfs", str(disk))
    try:
        place = disk / "run"
        shutil.copytree(run, place)
        try:
            yield place
        finally:
            mount("-o", f"remount,rw,size={used + room + 50_000_000}", str(disk))
            shutil.rmtree(run)
            shutil.copytree(place, run)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def mount(*words: str) -> None:
    """Mount something; an error if this process may not."""
    subprocess.run(["mount", *words], check=True, capture_output=True)


def shown(code: int) -> str:
    """An exit code as a shell shows it."""
    return str(128 - code) if code < 0 else str(code)


def soak(
    subject: Subject,
    folder: Path,
    rounds: int,
    seed: int,
    *,
    quick: bool = False,
    say: bool = False,
) -> Soak:
    """All rounds, then the comparison with the uninterrupted run.

    Parameters
    ----------
    subject, folder, seed
        As for :class:`Soak`.
    rounds
        How many.
    quick
        Whether to leave out faults that take many seconds.
    say
        Whether to print every round, and the table at the end.
    """
    under_load = Soak(subject, folder, seed, quick)
    start = time.monotonic()
    try:
        for number in range(rounds):
            begun = time.monotonic()
            name = under_load.round(number)
            if say:
                print(f"round {number}: {name}, {time.monotonic() - begun:.1f} s", flush=True)
        under_load.finish()
    finally:
        under_load.close()
    if say:
        parts = len(subject.parts(under_load.run))
        seconds = time.monotonic() - start
        print(
            f"{rounds} rounds, seed {seed}, {seconds:.0f} s; {under_load.finished} runs of {parts} "
            "parts finished, all as the uninterrupted one.\n"
        )
        print(under_load.table())
    return under_load


def order(count: int, weights: list[int], seed: int, number: int) -> int:
    """Place of the fault of a round: all faults in random order, then all again.

    Those with weight 2 come twice in each turn.
    """
    deck = [place for place, weight in enumerate(weights) for _ in range(weight)]
    assert len(weights) == count
    turn, card = divmod(number, len(deck))
    return int(
        np.asarray(deck)[random_stream(seed, "soak order", turn).permutation(len(deck))][card]
    )
