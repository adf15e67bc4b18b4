"""Rounds of faults against one run, and what must hold after each of them.

``python -m tests.soak --rounds 100 --seed 0`` prints what was done, and how the command ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

import esscher
from esscher.cli import main
from esscher.core.streams import random_stream
from esscher.runs.folder import is_locked
from tests.engine.models.folders import WORDS, decoder_tokenizer
from tests.engine.models.tiny import tiny_model

#: Commands import Esscher and these tests from where this process has them.
PLACES = (Path(esscher.__file__).parents[1], Path(__file__).parents[2])
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join(map(str, PLACES)),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
#: New parts that a round waits for before its fault, at most.
AHEAD = 5
#: Seconds after which a command should have ended, and its workers with it.
PATIENCE = 300.0
#: What must never be seen on standard error.
NEVER = re.compile(r"Traceback|Exception ignored|Error in atexit|Aborted!")


@dataclass(frozen=True)
class Subject:
    """A command whose run is put under load, and the pattern of files that say a part is there."""

    words: tuple[str, ...]
    part: str


def a_sweep(replicates: int) -> Subject:
    """A sweep whose replicates take about 30 ms each."""
    words = "sweep gaussian --dim 4 --horizon 1 --sizes 50,2000 --seed 7 --no-predict --replicates"
    return Subject((*words.split(), str(replicates)), "replicate-*.safetensors")


def a_probe(folder: Path, passages: int) -> Subject:
    """A probe of a tiny decoder, one cell per passage."""
    tiny_model("llama", max_position_embeddings=256).model.save_pretrained(folder / "model")
    decoder_tokenizer().save_pretrained(folder / "model")
    rng = np.random.default_rng(0)
    (folder / "text.txt").write_text(" ".join(rng.choice(WORDS, size=96 * (passages + 2))))
    words = (
        f"probe {folder}/model --text {folder}/text.txt --mode context --context 96 --tokens "
        f"{96 * passages} --sizes 8:32:3 --replicates 4 --layers 1 --heads 0"
    )
    return Subject(tuple(words.split()), "*.json")


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
    """

    def __init__(self, subject: Subject, folder: Path, seed: int) -> None:
        self.subject, self.folder, self.seed = subject, folder, seed
        self.run, twin = folder / "runs" / "run", folder / "twin"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.codes: defaultdict[str, Counter[int]] = defaultdict(Counter)
        assert self.end(self.start(twin)) == 0, self.error(self.processes[-1])
        self.truth, self.names = results(twin), sorted(self.parts(twin))

    def start(self, run: Path, workers: int = 1, file_size: int = 0) -> subprocess.Popen[bytes]:
        """Start the command in a session of its own; its files may be limited in size."""

        def prepare() -> None:
            # in the background of a shell Ctrl-C is ignored, and that is inherited
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if file_size:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

        words = [*self.subject.words, "--out", str(run)]
        words += ["--workers", str(workers)] if workers > 1 else []
        with (self.folder / "stderr").open("wb") as error:
            process = subprocess.Popen(
                [sys.executable, "-m", "esscher", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=error,
                start_new_session=True,
                env=ENVIRONMENT,
                preexec_fn=prepare,
            )
        os.replace(self.folder / "stderr", self.folder / f"{process.pid}.stderr")
        self.processes.append(process)
        return process

    def error(self, process: subprocess.Popen[bytes]) -> str:
        """What a command wrote to standard error."""
        return (self.folder / f"{process.pid}.stderr").read_text(errors="replace")

    def parts(self, run: Path) -> dict[str, str]:
        """Checksum of every file of the parts that are there, by name."""
        folder = run / "parts"
        stems = {path.stem for path in folder.glob(self.subject.part)}
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (sorted(folder.iterdir()) if stems else [])
            if path.stem in stems and not path.name.startswith(".")
        }

    def moment(self, process: subprocess.Popen[bytes], run: Path, rng: np.random.Generator) -> None:
        """Wait for one to five new parts, then some milliseconds."""
        goal = len(list((run / "parts").glob(self.subject.part))) + int(rng.integers(1, AHEAD + 1))
        end = time.monotonic() + PATIENCE
        while process.poll() is None and len(list((run / "parts").glob(self.subject.part))) < goal:
            assert time.monotonic() < end, "nothing is stored"
            time.sleep(0.004)
        time.sleep(float(rng.uniform(0.0, 0.05)))

    def end(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of a command and of its workers; return its exit code."""
        code = process.wait(PATIENCE)
        end = time.monotonic() + PATIENCE
        while left := session(process.pid):
            assert time.monotonic() < end, f"processes are left behind: {left}"
            time.sleep(0.01)
        assert not NEVER.search(self.error(process)), self.error(process)
        return code

    def round(self, number: int) -> str:
        """One round: a fault at a random moment, then the checks; return the fault's name."""
        from tests.soak.faults import FAULTS

        if self.run.exists() and sorted(self.parts(self.run)) == self.names:
            self.finish()  # done before its time: compare, and begin anew
            shutil.rmtree(self.run)
        # all faults in random order, then all again
        turn, card = divmod(number, len(FAULTS))
        fault = FAULTS[random_stream(self.seed, "soak order", turn).permutation(len(FAULTS))[card]]
        before = self.parts(self.run)
        damaged: set[str] = set()
        codes = fault.run(self, random_stream(self.seed, "soak", number), damaged)
        self.codes[fault.name].update(codes)
        story = f"round {number}, seed {self.seed}, {fault.name}: exit codes {codes}"
        assert set(codes) <= {0, *fault.codes}, story
        if not (self.run / "config.json").exists():
            return fault.name
        after = self.parts(self.run)
        lost = [name for name in before.keys() - damaged if after.get(name) != before[name]]
        assert not lost, f"{story}; lost or changed: {lost}"
        assert not is_locked(self.run), f"{story}; the lock is stuck"
        listed = CliRunner().invoke(main, ["ls", str(self.run.parent), "--json"])
        assert listed.exit_code == 0, (story, listed.output)
        (row,) = json.loads(listed.stdout)["runs"]
        assert row["state"] in ("stopped", "complete"), (story, row)
        assert row["done"] == len(list((self.run / "parts").glob(self.subject.part))), (story, row)
        shown = CliRunner().invoke(main, ["show", str(self.run)])
        assert shown.exit_code == 0, (story, shown.output)
        return fault.name

    def finish(self) -> None:
        """Run the rest without faults; everything must be as in the uninterrupted run."""
        process = self.start(self.run)
        assert self.end(process) == 0, self.error(process)
        assert sorted(self.parts(self.run)) == self.names
        assert results(self.run) == self.truth
        assert not list(self.run.rglob("*.tmp"))


def results(run: Path) -> dict[str, Any]:
    """Derived results of a run, without what differs from run to run: dates."""
    stored: dict[str, Any] = json.loads((run / "results.json").read_bytes())
    stored.pop("created", None)
    return stored


def session(leader: int) -> list[int]:
    """Processes in the session of a process, without those that only wait to be reaped."""
    members = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[3]) == leader:
            members.append(int(place.parent.name))
    return members


def soak(subject: Subject, folder: Path, rounds: int, seed: int, *, say: bool = False) -> Soak:
    """All rounds, then the comparison with the uninterrupted run.

    Parameters
    ----------
    subject, folder, seed
        As for :class:`Soak`.
    rounds
        How many.
    say
        Whether to print every round, and the exit codes at the end.
    """
    under_load = Soak(subject, folder, seed)
    try:
        for number in range(rounds):
            name = under_load.round(number)
            if say:
                print(f"round {number}: {name}", flush=True)
        under_load.finish()
    finally:
        for process in under_load.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if say:
        for name, codes in under_load.codes.items():
            counted = ", ".join(f"{code} ({times})" for code, times in sorted(codes.items()))
            print(f"{name}: exit codes (times) {counted}")
    return under_load
