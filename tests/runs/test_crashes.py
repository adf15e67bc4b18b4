"""Runs that are killed, interrupted and damaged: what is stored stays, and the end is the same."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from esscher.runs.folder import is_locked
from esscher.runs.registry import load
from tests.runs.stack import REPLICATES, run_stack, start, stored, wait_for_more

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")
KILL, INT, TERM = signal.SIGKILL, signal.SIGINT, signal.SIGTERM


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the same run, which nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_stack(out)
    return out


def assert_resumed(out: Path, whole: Path) -> None:
    """Finish a run; its files are those of the undisturbed one, but for the date."""
    result = run_stack(out)
    assert stored(out) == stored(whole)
    first, second = (load(place).data.drop_attrs() for place in (out, whole))
    assert first.identical(second)
    assert result.data.drop_attrs().identical(second)
    assert not list(out.rglob("*.tmp"))
    assert not is_locked(out)


def test_two_workers_store_the_same(tmp_path: Path, whole: Path) -> None:
    run_stack(tmp_path / "run", workers=2)
    assert_resumed(tmp_path / "run", whole)


def test_killed_again_and_again(tmp_path: Path, whole: Path) -> None:
    out, rng = tmp_path / "run", np.random.default_rng(0)
    for number in range(4):
        before = stored(out)
        child = start(out)
        if number == 0:  # while it starts: imports, directory, lock, configuration
            time.sleep(float(rng.uniform(0.0, 1.5)))
        else:
            wait_for_more(child, out)
            time.sleep(float(rng.uniform(0.0, 0.05)))
        child.kill()
        child.communicate()
        assert before.items() <= stored(out).items()
        if (out / "config.json").exists():
            assert len(load(out).cells) == len(stored(out))
    assert_resumed(out, whole)


@pytest.mark.parametrize(
    ("numbers", "group", "code"),
    [
        ((KILL,), False, -9),
        ((INT, INT), False, 130),
        ((INT,), True, 130),
        ((TERM, TERM), False, 143),
        ((TERM,), True, 143),
    ],
    ids=["kill -9", "Ctrl-C twice", "Ctrl-C to all", "SIGTERM twice", "SIGTERM to all"],
)
def test_signals_with_workers(
    tmp_path: Path, whole: Path, numbers: tuple[int, ...], group: bool, code: int
) -> None:
    out = tmp_path / "run"
    child = start(out, "--workers", "2")
    wait_for_more(child, out)
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    for number in numbers:
        (os.killpg if group else os.kill)(child.pid, number)
    error = child.communicate(timeout=60)[1]
    assert child.returncode == code, error
    assert "Traceback" not in error
    assert "memory" not in error
    if code > 0:
        done = len(stored(out))
        assert 0 < done < REPLICATES
        assert f"Stopped with {done} replicates stored in {out}. Run the same command" in error
    end = time.monotonic() + 20
    while any(_runs(pid) for pid in children):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # no temporary files
    assert_resumed(out, whole)


def _runs(pid: str) -> bool:
    """Whether a process exists and is not just waiting for its parent to notice its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_that_is_killed(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    child = start(out, "--workers", "2")
    wait_for_more(child, out)
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    worker = [p for p in children if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]
    os.kill(int(worker[0]), KILL)
    error = child.communicate(timeout=60)[1]
    assert child.returncode == 2
    assert "a worker process died" in error
    assert "run out of memory. Everything stored so far is kept" in error
    assert_resumed(out, whole)
