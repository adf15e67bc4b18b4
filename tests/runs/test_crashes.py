"""Sweeps in processes of their own that are killed, interrupted and terminated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import esscher
from esscher.runs.registry import load
from esscher.studies.sweep import Sweep, sweep
from tests.studies.sweep.small import assert_same

REPLICATES, SIZES, SCALES = 120, [10, 60, 300], [0.5, 1.0]
CHILD = f"""
import sys
import esscher
from esscher.studies.sweep import sweep

if __name__ == "__main__":
    sweep(
        esscher.gaussian_head(0.9, 6),
        {SIZES},
        {REPLICATES},
        7,
        alpha={SCALES},
        out=sys.argv[1],
        workers=int(sys.argv[2]),
    )
"""


def start(folder: Path, workers: int = 1) -> subprocess.Popen[bytes]:
    script = folder.parent / "child.py"
    script.write_text(CHILD)
    scratch = folder.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    environment = {"PYTHONPATH": str(Path(esscher.__file__).parents[1]), "TMPDIR": str(scratch)}
    return subprocess.Popen(
        [sys.executable, str(script), str(folder), str(workers)],
        stderr=subprocess.PIPE,
        start_new_session=True,  # its own group, to be interrupted as a terminal does it
        env=os.environ | environment,
    )


def stored(folder: Path) -> int:
    return len(list((folder / "parts").glob("replicate-*.safetensors")))


def wait_for_more(child: subprocess.Popen[bytes], folder: Path, before: int) -> None:
    """Wait until the child has stored something new, or has ended."""
    end = time.monotonic() + 60
    while stored(folder) <= before and child.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.002)


def finish(folder: Path | None) -> Sweep:
    head = esscher.gaussian_head(0.9, 6)
    return sweep(head, SIZES, REPLICATES, 7, alpha=SCALES, out=folder)


def kill_often(folder: Path, kills: int, seed: int) -> None:
    """Kill a sweep at random moments and check that nothing stored is ever lost."""
    rng = np.random.default_rng(seed)
    for kill in range(kills):
        before = stored(folder)
        child = start(folder)
        if kill % 3 == 0:  # while it starts: imports, directory, lock, configuration
            time.sleep(float(rng.uniform(0.0, 1.5)))
        else:
            wait_for_more(child, folder, before)
            time.sleep(float(rng.uniform(0.0, 0.05)))
        child.kill()
        child.communicate()
        assert stored(folder) >= before
        if (folder / "config.json").exists():
            assert load(folder).data.sizes.get("replicate", 0) == stored(folder)


def test_killed_four_times_equals_the_uninterrupted(tmp_path: Path) -> None:
    kill_often(tmp_path / "run", 4, seed=0)
    assert_same(finish(tmp_path / "run"), finish(None))
    assert not list((tmp_path / "run").rglob("*.tmp"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes in /proc")
def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    child = start(folder, workers=2)
    wait_for_more(child, folder, 0)
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    assert len(children) >= 2
    child.kill()
    child.communicate()
    end = time.monotonic() + 20
    while any(_runs(pid) for pid in children):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert list((tmp_path / "scratch").iterdir()) == []
    # the lock went with the process, and so the run can be resumed at once
    assert_same(finish(folder), finish(None))


def _runs(pid: str) -> bool:
    """Whether a process exists and is not just waiting for its parent to notice its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_stops_and_leaves_a_run_to_resume(tmp_path: Path, workers: int) -> None:
    folder = tmp_path / "run"
    child = start(folder, workers)
    wait_for_more(child, folder, 0)
    os.killpg(child.pid, signal.SIGINT)
    error = child.communicate(timeout=30)[1].decode()
    assert "Interrupted" in error
    assert error.count("Traceback") == 1
    assert 0 < stored(folder) < REPLICATES
    assert not load(folder).complete
    assert_same(finish(folder), finish(None))


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = start(folder)
    wait_for_more(first, folder, 0)
    first.send_signal(signal.SIGSTOP)  # alive, and not ending meanwhile
    try:
        second = start(folder)
        error = second.communicate(timeout=60)[1].decode()
    finally:
        first.send_signal(signal.SIGCONT)
    assert second.returncode == 1
    assert f"another process (pid {first.pid} on" in error
    first.communicate(timeout=60)
    assert first.returncode == 0
    assert_same(load(folder), finish(None))
