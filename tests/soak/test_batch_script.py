"""The batch script of the guide: run by bash, terminated as SLURM does it, queued again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esscher.runs.registry import load
from tests.soak.driver import ENVIRONMENT, a_sweep, results

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cluster.md"
REPLICATES = 60
BASH = shutil.which("bash")

pytestmark = pytest.mark.skipif(BASH is None, reason="the script is one of bash")


def script() -> str:
    """The script of the guide; its study is replaced by a sweep that takes seconds."""
    text = GUIDE.read_text()
    found = re.search(r"```bash\n(#!/bin/bash\n.*?)```", text, re.DOTALL)
    assert found is not None
    study = "esscher paper --scale paper"
    assert study in found[1]
    sweep = " ".join(["esscher", *a_sweep(REPLICATES).words])
    return found[1].replace(study, sweep)


def stand_ins(folder: Path) -> dict[str, str]:
    """``srun``, ``scontrol`` and ``esscher`` on the path; the second notes what it is told."""
    folder.mkdir()
    programs = {
        "srun": 'exec "$@"',
        "scontrol": f'echo "$@" >> {folder}/told',
        "esscher": f'exec {sys.executable} -m esscher "$@"',
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return ENVIRONMENT | {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_JOB_ID": "4711",
        "SCRATCH": str(folder.parent),
    }


def start(place: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    assert BASH is not None
    return subprocess.Popen(
        [BASH, str(place / "study.sh")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("site_code", [None, "99"])
def test_terminated_queued_again_and_finished(tmp_path: Path, site_code: str | None) -> None:
    environment = stand_ins(tmp_path / "bin")
    text = script()
    if site_code is not None:  # as the guide says: another code, which the script names
        environment["ESSCHER_REQUEUE_CODE"] = site_code
        text = text.replace('"$code" -eq 75', f'"$code" -eq {site_code}')
    (tmp_path / "study.sh").write_text(text)
    run, told = tmp_path / "study", tmp_path / "bin" / "told"

    job = start(tmp_path, environment)
    end = time.monotonic() + 90
    while len(list((run / "parts").glob("replicate-*.json"))) < 3:
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    os.killpg(job.pid, signal.SIGTERM)
    error = job.communicate(timeout=60)[1]
    assert job.returncode == int(site_code or 75), error
    assert told.read_text() == "requeue 4711\n"
    assert "Traceback" not in error
    kept = {path.name: path.read_bytes() for path in (run / "parts").iterdir()}
    assert 3 <= len(kept) < REPLICATES

    job = start(tmp_path, environment | {"SLURM_RESTART_COUNT": "1"})
    error = job.communicate(timeout=120)[1]
    assert job.returncode == 0, error
    assert told.read_text() == "requeue 4711\n"  # not again
    assert load(run).complete
    for name, data in kept.items():
        assert (run / "parts" / name).read_bytes() == data
    whole = tmp_path / "uninterrupted"
    words = [*a_sweep(REPLICATES).words, "--out", str(whole)]
    subprocess.run([sys.executable, "-m", "esscher", *words], env=ENVIRONMENT, check=True)
    assert results(run) == results(whole)


def test_a_job_that_gets_nowhere_is_not_queued_for_ever(tmp_path: Path) -> None:
    environment = stand_ins(tmp_path / "bin") | {"SLURM_RESTART_COUNT": "50"}
    (tmp_path / "study.sh").write_text(script())
    (tmp_path / "bin" / "esscher").write_text("#!/bin/sh\nexit 75\n")
    job = start(tmp_path, environment)
    assert job.communicate(timeout=30)[1] == ""
    assert job.returncode == 75
    assert not (tmp_path / "bin" / "told").exists()
    job = start(tmp_path, environment | {"SLURM_RESTART_COUNT": "49"})
    job.communicate(timeout=30)
    assert (tmp_path / "bin" / "told").read_text() == "requeue 4711\n"
