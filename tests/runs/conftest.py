"""What several tests of clusters need: a batch system, and certificates."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.runs.processes import ENVIRONMENT, lines

#: A batch system on this machine: a job is a process, its id that of the process.
SBATCH = """#!/bin/sh
cp "$1" "{folder}/job.sh"
setsid sh "{folder}/job.sh" >"{folder}/job.log" 2>&1 &
echo $! >>"{folder}/submitted"
echo $!
"""
SCANCEL = """#!/bin/sh
for job in "$@"; do echo "$job" >>"{folder}/cancelled"; kill -9 -- "-$job"; done
"""


@pytest.fixture
def batch_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """``sbatch`` and ``scancel`` as programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        program = programs / name
        program.write_text(text.format(folder=tmp_path))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    yield tmp_path
    for job in lines(tmp_path / "submitted"):
        if job not in lines(tmp_path / "cancelled"):
            os.killpg(int(job), 9)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities that sign themselves, ``ours`` and ``other``: NAME.pem and NAME.key."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with openssl")
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("ours", "other"):
        subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
                "-subj",
                f"/CN={name}",
                "-keyout",
                folder / f"{name}.key",
                "-out",
                folder / f"{name}.pem",
            ],
            check=True,
            capture_output=True,
        )
    return folder
