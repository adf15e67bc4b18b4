"""Sweeps on a real cluster: the same bits as here, whatever happens to workers and scheduler."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import esscher
from esscher.runs.registry import load
from esscher.studies.sweep import sweep
from tests.runs.processes import ENVIRONMENT, Machines, machines

# So many that a sweep cannot be over before a test that has to wait for its turn kills something.
REPLICATES, SIZES = 120, "20:2000:4"
OPTIONS = (
    f"gaussian --dim 6 --horizon 0.9 --alpha 0.5,1 --sizes {SIZES} --replicates {REPLICATES} "
    "--seed 7 --no-predict"
)


def start(found: Machines, out: Path) -> subprocess.Popen[str]:
    """The command, in a process of its own."""
    command = [sys.executable, "-m", "esscher", "sweep", *OPTIONS.split(), "--out", str(out)]
    return subprocess.Popen(
        [*command, "--scheduler", found.address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def stored(out: Path) -> int:
    return len(list((out / "parts").glob("replicate-*.safetensors")))


def wait_for(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 240
    while stored(out) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def here() -> np.ndarray:
    """The same sweep in this process."""
    head = esscher.gaussian_head(0.9, 6)
    sizes = [20, 93, 431, 2000]
    curve = sweep(head, sizes, REPLICATES, 7, alpha=[0.5, 1.0], progress=False)
    return curve["replicate_error"].values


def assert_same(out: Path, here: np.ndarray) -> None:
    curve = load(out)
    assert curve.complete
    np.testing.assert_array_equal(curve["replicate_error"].values, here)


@pytest.mark.slow
def test_workers_come_and_go_and_the_scheduler_is_restarted(
    tmp_path: Path, here: np.ndarray
) -> None:
    out = tmp_path / "run"
    with machines(tmp_path / "machines") as found:
        scheduler = found.scheduler()
        first, _ = found.worker(), found.worker()
        sweeping = start(found, out)
        wait_for(out, 5, sweeping)
        first.kill()  # in the middle; its replicates are measured by the other
        wait_for(out, stored(out) + 4, sweeping)

        scheduler.kill()
        error = sweeping.communicate(timeout=240)[1]
        kept = stored(out)
        assert sweeping.returncode == 130, error
        assert f"The scheduler at {found.address} is gone. Stopped with {kept} replicates" in error
        assert "Run the same command again to resume" in error
        assert "Traceback" not in error
        assert 5 <= kept < REPLICATES

        found.scheduler()  # at the same address; workers come back or are started anew
        found.worker()
        resumed = start(found, out)
        wait_for(out, kept + 1, resumed)
        found.worker()  # one more joins
        error = resumed.communicate(timeout=240)[1]
        assert resumed.returncode == 0, error
    assert_same(out, here)
