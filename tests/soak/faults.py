"""The faults: what is done to a run, which exit codes may follow, what a user sees."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.soak.clock import YEAR
from tests.soak.driver import Round, Soak, mount, order, small_disk
from tests.soak.processes import Command

RESUME = "the line that resumes it"


@dataclass(frozen=True)
class Fault:
    """Something that happens to a run.

    Attributes
    ----------
    name
        As in the table of the documentation.
    run
        Does it.
    codes
        Exit codes that may follow, negative for signals; 0 (it was done before) always may.
    seen
        What a user sees, in the table.
    needs
        ``"mount"``: the right to mount a file system. ``"workers"``: a command with workers.
    weight
        How often it comes; those that are quick come twice.
    """

    name: str
    run: Callable[[Round], None]
    codes: tuple[int, ...]
    seen: str
    needs: str = ""
    weight: int = 2


def chosen_fault(soak: Soak, number: int) -> Fault:
    """The fault of a round."""
    faults = [fault for fault in FAULTS if possible(fault, soak)]
    return faults[order(len(faults), [f.weight for f in faults], soak.seed, number)]


def possible(fault: Fault, soak: Soak) -> bool:
    """Whether this machine and this command allow it, and there is time for it."""
    if soak.quick and fault.weight == 1:
        return False
    if fault.needs == "mount":
        return can_mount(soak.disk)
    return fault.needs != "workers" or soak.subject.workers


@cache
def can_mount(place: Path) -> bool:
    """Whether this process may mount file systems."""
    place.mkdir(parents=True, exist_ok=True)
    try:
        mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place))
    except (OSError, subprocess.CalledProcessError):
        return False
    subprocess.run(["umount", str(place)], check=True)
    return True


def _signal(*numbers: int, workers: int = 1, group: bool = False) -> Callable[[Round], None]:
    def run(this: Round) -> None:
        command = this.start(workers)
        if workers > 1 and signal.SIGINT in numbers:
            this.ahead = max(1, this.ahead)  # among imports it is Python's own, with a traceback
        this.moment(command)
        if workers > 1 and not this.ahead:  # while workers start
            time.sleep(float(this.rng.uniform(0.0, 8.0)))
        for number in numbers:
            command.signal(number, group)
            time.sleep(float(this.rng.uniform(0.0, 0.05)))
        this.end(command)

    return run


def _while_it_starts(this: Round) -> None:
    command = this.start(fresh=True)
    this.ahead = 0
    time.sleep(float(this.rng.uniform(0.0, 3.0)))
    command.signal(signal.SIGTERM if this.rng.random() < 0.5 else signal.SIGKILL)
    this.end(command)


def _suspended(this: Round) -> None:
    command = this.start()
    this.moment(command)
    command.signal(signal.SIGSTOP)
    time.sleep(0.2)
    command.signal(signal.SIGCONT)
    command.signal(signal.SIGTERM)
    this.end(command)


def _short_grace(this: Round) -> None:
    command = this.start()
    this.moment(command)
    command.signal(signal.SIGTERM)
    time.sleep(float(this.rng.uniform(0.0, 0.1)))
    command.signal(signal.SIGKILL)
    this.end(command)


def _other_signal(this: Round) -> None:
    command = this.start()
    this.moment(command)
    command.signal(int(this.rng.choice([signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU])))
    this.end(command)


def _one_worker(this: Round) -> None:
    command = this.start(workers=2)
    this.ahead = max(1, this.ahead)
    this.moment(command)
    if workers := command.workers():
        os.kill(int(this.rng.choice(workers)), signal.SIGKILL)
    if this.end(command) == 2:
        assert "a worker process died" in command.error()
        assert "Everything stored so far is kept" in command.error()


def _full_disk(this: Round) -> None:
    if not this.run.exists():
        return _stopped(this)
    room = int(this.rng.integers(1, 8)) * 4096
    with small_disk(this.run, this.soak.disk, room) as place:
        command = this.start(run=place)
        if this.end(command) == 2:
            assert "No space left on device" in command.error()
            assert not list(place.rglob("*.tmp"))
            return None
    return None


def _room_again(this: Round) -> None:
    """Room is made while nobody looks; the next process on the same disk goes on."""
    if not this.run.exists():
        return _stopped(this)
    with small_disk(this.run, this.soak.disk, 2 * 4096) as place:
        command = this.start(run=place)
        this.end(command)
        mount("-o", "remount,size=50m", str(this.soak.disk))
        again = this.start(run=place)
        this.moment(again, place)
        again.signal(signal.SIGTERM)
        this.end(again)
    return None


def _file_size(this: Round) -> None:
    command = this.start(file_size=int(this.rng.integers(200, 2500)))
    if this.end(command) == 2:
        assert "File too large" in command.error()


def _read_only(this: Round) -> None:
    if not this.run.exists():
        return _stopped(this)
    with small_disk(this.run, this.soak.disk, 1 << 20) as place:
        mount("-o", "remount,ro", str(this.soak.disk))
        command = this.start(run=place)
        assert this.end(command) == 2
        assert "Read-only file system" in command.error()
    return None


def _clock(this: Round) -> None:
    command = this.start(clock=int(this.rng.integers(1000)))
    this.moment(command)
    command.signal(signal.SIGTERM)
    this.end(command)


def _dates(this: Round) -> None:
    for path in [*this.run.rglob("*"), this.run] if this.run.exists() else []:
        when = time.time() + float(this.rng.uniform(-1, 1)) * YEAR
        os.utime(path, (when, when))
    _stopped(this)


def _two_at_once(this: Round) -> None:
    both = [this.start(), this.start()]
    this.ahead = max(1, this.ahead)
    refused: Command | None = None
    end = time.monotonic() + 60
    while refused is None and time.monotonic() < end:
        refused = next((command for command in both if command.poll() is not None), None)
        time.sleep(0.005)
    for command in both:
        if command is not refused:
            this.moment(command)
            command.signal(signal.SIGTERM)
    for command in both:
        if this.end(command) == 2:
            assert "another process (pid" in command.error()


def _damaged(this: Round) -> None:
    """A truncated part, or one with a flipped bit, as after a power cut on a bad disk."""
    part = this.a_part() if this.run.exists() else None
    if part is None:
        return _stopped(this)
    data = bytearray(part.read_bytes())
    if this.rng.random() < 0.5:
        data = data[: int(this.rng.integers(len(data)))]
    else:
        data[int(this.rng.integers(len(data)))] ^= 1 << int(this.rng.integers(8))
    part.write_bytes(data)
    this.damaged |= {part.with_suffix(suffix).name for suffix in (".json", ".parquet")}
    command = this.start()
    this.moment(command)
    command.signal(signal.SIGTERM)
    if this.end(command) == 2:
        named = (
            part
            if part.suffix == ".parquet" and not part.with_suffix(".json").exists()
            else (part.with_suffix(".json"))
        )
        assert f"{named} is damaged" in command.error()
        assert "delete" in command.error()
    # As the message says. A flipped bit that carries no number goes unnoticed.
    for suffix in (".json", ".parquet"):
        part.with_suffix(suffix).unlink(missing_ok=True)
    return None


def _lost_part(this: Round) -> None:
    part = this.a_part() if this.run.exists() else None
    if part is not None:
        this.damaged |= {part.with_suffix(suffix).name for suffix in (".json", ".parquet")}
        part.unlink()
    _stopped(this)


def _leftovers(this: Round) -> None:
    if this.run.exists():
        for name in (".config.json.77.tmp", "parts/.000003.parquet.99.tmp", ".results.json.1.tmp"):
            (this.run / name).write_bytes(this.rng.bytes(int(this.rng.integers(0, 4000))))
    this.ahead = max(1, this.ahead)
    _stopped(this)
    assert not list(this.run.rglob("*.tmp"))


def _derived(this: Round) -> None:
    for name in ("results.json", "run.log", "lock", "predictions.json"):
        path = this.run / name
        if path.exists():
            kind = int(this.rng.integers(3))
            if kind == 0:
                path.unlink()
            elif kind == 1:
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    _stopped(this)


def _other_host(this: Round) -> None:
    if this.run.exists():
        (this.run / "lock").write_text("pid 1 on another-host\n")
    _stopped(this)


def _moved(this: Round) -> None:
    if this.run.exists():
        other = this.run.with_name("moved")
        os.rename(this.run, other)
        command = this.start(run=other)
        this.moment(command, other)
        command.signal(signal.SIGTERM)
        this.end(command)
        os.rename(other, this.run)
        return
    _stopped(this)


def _stopped(this: Round) -> None:
    """End an ordinary process after a while, by one of the ways to end it."""
    command = this.start()
    this.moment(command)
    command.signal(int(this.rng.choice([signal.SIGTERM, signal.SIGINT])))
    this.end(command)


#: All faults, in the order of the table.
FAULTS = (
    Fault("`kill -9`", _signal(signal.SIGKILL), (-9,), "nothing; resume"),
    Fault(
        "`kill -9` of the command with `--workers 2`",
        _signal(signal.SIGKILL, workers=2),
        (-9,),
        "nothing; its workers end by themselves",
        "workers",
        1,
    ),
    Fault(
        "`kill -9` of the whole group with `--workers 2`",
        _signal(signal.SIGKILL, workers=2, group=True),
        (-9,),
        "nothing; resume",
        "workers",
        1,
    ),
    Fault(
        "`kill -9` of one worker of two (as for lack of memory)",
        _one_worker,
        (2,),
        '"a worker process died ...; start again, with fewer workers"',
        "workers",
        1,
    ),
    Fault("Ctrl-C", _signal(signal.SIGINT), (130,), RESUME),
    Fault("Ctrl-C twice", _signal(signal.SIGINT, signal.SIGINT), (130,), RESUME),
    Fault(
        "Ctrl-C to all processes with `--workers 2`",
        _signal(signal.SIGINT, workers=2, group=True),
        (130,),
        RESUME,
        "workers",
        1,
    ),
    Fault("SIGTERM", _signal(signal.SIGTERM), (75,), RESUME),
    Fault(
        "SIGTERM to all processes with `--workers 2`, as SLURM sends it",
        _signal(signal.SIGTERM, workers=2, group=True),
        (75,),
        RESUME,
        "workers",
        1,
    ),
    Fault(
        "SIGTERM three times",
        _signal(signal.SIGTERM, signal.SIGTERM, signal.SIGTERM),
        (75,),
        RESUME,
    ),
    Fault("SIGTERM, then SIGKILL within 0.1 s", _short_grace, (75, -9), "nothing, or " + RESUME),
    Fault("SIGSTOP, SIGCONT, SIGTERM (preemption)", _suspended, (75,), RESUME),
    Fault(
        "SIGTERM or SIGKILL in the first 3 s",
        _while_it_starts,
        (75, -15, -9),
        "nothing, or " + RESUME,
        weight=1,
    ),
    Fault(
        "SIGHUP, SIGUSR1 or SIGXCPU",
        _other_signal,
        (-signal.SIGHUP, -signal.SIGUSR1, -signal.SIGXCPU),
        "nothing: Esscher does not handle these; resume",
    ),
    Fault(
        "full disk (a small file system)",
        _full_disk,
        (2,),
        '"No space left on device; nothing that was stored before is lost: free some space ..."',
        "mount",
    ),
    Fault("full disk, then room again", _room_again, (2, 75), "the same; then it goes on", "mount"),
    Fault("files may not grow (limit of file size)", _file_size, (2,), '"File too large ..."'),
    Fault("read-only file system", _read_only, (2,), '"Read-only file system"', "mount"),
    Fault(
        "clock jumps by up to a year, 20 times a second",
        _clock,
        (75,),
        "odd dates in `run.log`",
    ),
    Fault("dates of all files up to a year off", _dates, (75, 130), RESUME),
    Fault(
        "two processes at once",
        _two_at_once,
        (2, 75),
        'the second: "another process (pid ...) is working on ..."',
    ),
    Fault(
        "a part truncated, or a bit of it flipped",
        _damaged,
        (2, 75, 130),
        '"... is damaged ...; delete this file and run the same command again"',
    ),
    Fault("a part lost", _lost_part, (75, 130), "nothing: it is computed again"),
    Fault("temporary files left behind", _leftovers, (75, 130), "nothing: they are removed"),
    Fault(
        "`results.json`, `run.log`, `lock` deleted or cut in half",
        _derived,
        (75, 130),
        "nothing: they are written anew",
    ),
    Fault("lock file of another host", _other_host, (75, 130), "nothing: nobody holds the lock"),
    Fault("directory moved", _moved, (75,), RESUME),
)
