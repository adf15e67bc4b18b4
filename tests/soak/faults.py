"""The faults: what is done to a run, and which exit codes may follow."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.soak.driver import Soak, session

Rng = np.random.Generator


@dataclass(frozen=True)
class Fault:
    """Something that happens to a run.

    Attributes
    ----------
    name
        For messages.
    run
        Does it; adds the names of files that it damaged to a set, and returns the exit codes.
    codes
        Exit codes that may follow, negative for signals; 0 (it was done before) always may.
    """

    name: str
    run: Callable[[Soak, Rng, set[str]], list[int]]
    codes: tuple[int, ...]


def _signals(*numbers: int, workers: int = 1, group: bool = False) -> Callable[..., list[int]]:
    """Signals to the command, or to all of its processes, at a random moment of its work."""

    def run(soak: Soak, rng: Rng, damaged: set[str]) -> list[int]:
        process = soak.start(soak.run, workers)
        soak.moment(process, soak.run, rng)
        for number in numbers:
            if process.poll() is None:
                (os.killpg if group else os.kill)(process.pid, number)
            time.sleep(float(rng.uniform(0.0, 0.05)))
        return [soak.end(process)]

    return run


_stopped = _signals(signal.SIGTERM)


def _while_it_starts(soak: Soak, rng: Rng, damaged: set[str]) -> list[int]:
    process = soak.start(soak.run)
    time.sleep(float(rng.uniform(0.0, 3.0)))
    process.send_signal(signal.SIGTERM if rng.random() < 0.5 else signal.SIGKILL)
    return [soak.end(process)]


def _one_worker(soak: Soak, rng: Rng, damaged: set[str]) -> list[int]:
    process = soak.start(soak.run, workers=2)
    soak.moment(process, soak.run, rng)
    workers = [
        pid
        for pid in session(process.pid)
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    if workers:
        os.kill(int(rng.choice(workers)), signal.SIGKILL)
    code = soak.end(process)
    assert code != 2 or "a worker process died" in soak.error(process)
    return [code]


def _file_size(soak: Soak, rng: Rng, damaged: set[str]) -> list[int]:
    process = soak.start(soak.run, file_size=int(rng.integers(200, 2500)))
    code = soak.end(process)
    assert code != 2 or "File too large" in soak.error(process)
    return [code]


def _two_at_once(soak: Soak, rng: Rng, damaged: set[str]) -> list[int]:
    pair = [soak.start(soak.run), soak.start(soak.run)]
    end = time.monotonic() + 60
    while all(process.poll() is None for process in pair) and time.monotonic() < end:
        time.sleep(0.005)
    codes = []
    for process in pair:
        if process.poll() is None:
            soak.moment(process, soak.run, rng)
            process.send_signal(signal.SIGTERM)
        codes.append(soak.end(process))
        assert codes[-1] != 2 or "another process (pid" in soak.error(process)
    return codes


def _damaged_part(soak: Soak, rng: Rng, damaged: set[str]) -> list[int]:
    """A part cut off, or with a flipped bit, as after a power cut; or no part at all."""
    names = sorted(soak.parts(soak.run))
    if not names:
        return _stopped(soak, rng, damaged)
    part = soak.run / "parts" / str(rng.choice(names))
    pair = [part.with_suffix(suffix) for suffix in (".json", ".parquet")]
    damaged |= {path.name for path in pair}
    data, kind = bytearray(part.read_bytes()), int(rng.integers(3))
    if kind == 0:
        part.unlink()
    elif kind == 1:
        part.write_bytes(data[: int(rng.integers(len(data)))])
    else:
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        part.write_bytes(data)
    codes = _stopped(soak, rng, damaged)
    if codes == [2]:
        error = soak.error(soak.processes[-1])
        assert "is damaged" in error
        assert "delete" in error
    # as the message says; a flipped bit that carries no number goes unnoticed
    for path in pair:
        path.unlink(missing_ok=True)
    return codes


def _other_files(soak: Soak, rng: Rng, damaged: set[str]) -> list[int]:
    """Temporary files left behind, derived files cut or gone, the lock of another machine."""
    if soak.run.exists():
        for name in (".config.json.77.tmp", "parts/.000003.parquet.99.tmp"):
            (soak.run / name).parent.mkdir(exist_ok=True)
            (soak.run / name).write_bytes(rng.bytes(int(rng.integers(0, 4000))))
        for path in (soak.run / "results.json", soak.run / "run.log"):
            if path.exists() and rng.random() < 0.5:
                path.unlink()
            elif path.exists():
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        (soak.run / "lock").write_text("pid 1 on another-host\n")
    codes = _stopped(soak, rng, damaged)
    assert not list(soak.run.rglob("*.tmp"))
    return codes


def _moved(soak: Soak, rng: Rng, damaged: set[str]) -> list[int]:
    if not soak.run.exists():
        return _stopped(soak, rng, damaged)
    other = soak.run.with_name("moved")
    os.rename(soak.run, other)
    process = soak.start(other)
    soak.moment(process, other, rng)
    process.send_signal(signal.SIGTERM)
    code = soak.end(process)
    os.rename(other, soak.run)
    return [code]


KILL, INT, TERM = signal.SIGKILL, signal.SIGINT, signal.SIGTERM
FAULTS = (
    Fault("kill -9", _signals(KILL), (-9,)),
    Fault("kill -9 of the command with workers", _signals(KILL, workers=2), (-9,)),
    Fault("kill -9 of one worker", _one_worker, (2,)),
    Fault("Ctrl-C twice", _signals(INT, INT), (130,)),
    Fault("Ctrl-C to all, with workers", _signals(INT, workers=2, group=True), (130,)),
    Fault("SIGTERM three times", _signals(TERM, TERM, TERM), (75,)),
    Fault("SIGTERM to all, with workers", _signals(TERM, workers=2, group=True), (75,)),
    Fault("SIGTERM, then kill -9", _signals(TERM, KILL), (75, -9)),
    Fault("preemption", _signals(signal.SIGSTOP, signal.SIGCONT, TERM), (75,)),
    Fault("SIGTERM or kill -9 while it starts", _while_it_starts, (75, 143, -15, -9)),
    Fault("files may not grow", _file_size, (2,)),
    Fault("two processes at once", _two_at_once, (2, 75)),
    Fault("a part damaged or lost", _damaged_part, (2, 75)),
    Fault("other files damaged or left over", _other_files, (75,)),
    Fault("directory moved", _moved, (75,)),
)
