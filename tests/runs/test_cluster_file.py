"""Descriptions of clusters: what they may say, and a batch system that runs their jobs."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from esscher.cli import main
from esscher.core.errors import InputError
from esscher.runs.cluster_file import ClusterDescription, _scale, read_description, start_cluster
from esscher.runs.executors import Task
from tests.runs.processes import lines, square


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_slurm_jobs_are_submitted_and_cancelled(batch_system: Path) -> None:
    options = {
        "queue": "normal", "cores": 1, "processes": 1, "memory": "1GB", "walltime": "00:10:00",
        "interface": "lo", "python": sys.executable, "log_directory": str(batch_system),
    }  # fmt: skip
    file = batch_system / "cluster.json"
    file.write_text(json.dumps({"kind": "slurm", "jobs": 1, "options": options}))
    with start_cluster(file) as cluster:
        found = dict(cluster.run([Task(f"cell-{i}", square, (float(i),)) for i in range(5)]))
    assert found == {f"cell-{i}": float(i * i) for i in range(5)}
    script = (batch_system / "job.sh").read_text()
    for line in ("#SBATCH -p normal", "#SBATCH -n 1", "#SBATCH -t 00:10:00"):
        assert line in script
    assert lines(batch_system / "cancelled") == lines(batch_system / "submitted")


def test_read(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("kind: slurm\nminimum: 2\nmaximum: 40\noptions:\n  walltime: '04:00:00'\n")
    assert read_description(file) == ClusterDescription("slurm", 2, 40, {"walltime": "04:00:00"})
    file.write_text('{"kind": "local", "jobs": 3}')
    assert read_description(file) == ClusterDescription("local", 3, 3, {})


def test_numbers_are_of_jobs_whatever_their_processes() -> None:
    """dask-jobqueue counts worker processes unless it is told that these are jobs."""
    asked: list[dict[str, int]] = []
    recorder = SimpleNamespace(scale=lambda **n: asked.append(n), adapt=lambda **n: asked.append(n))
    for kind in ("slurm", "local"):
        for low, high in ((3, 3), (2, 40)):
            _scale(recorder, ClusterDescription(kind, low, high))
    assert asked == [
        {"jobs": 3}, {"minimum_jobs": 2, "maximum_jobs": 40},
        {"n": 3}, {"minimum": 2, "maximum": 40},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: [", "neither YAML nor JSON"),
        ("- 1", "must hold kind, jobs and options"),
        ("kind: cray\njobs: 1", "kind is 'cray'; it must be one of slurm"),
        ("kind: slurm\njobs: 1\nqueue: normal", "'queue' is not known"),
        ("kind: slurm", "the number of jobs is missing"),
        ("kind: slurm\njobs: 0", "jobs is 0; it must be a whole number of at least 1"),
        ("kind: slurm\njobs: true", "jobs is True"),
        ("kind: slurm\njobs: 2\nmaximum: 4", "not both"),
        ("kind: slurm\nminimum: 5\nmaximum: 4", "maximum is 4; .* at least 5"),
        ("kind: slurm\njobs: 1\noptions: 3", "options must be a mapping"),
    ],
)
def test_bad_descriptions(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_description(file)


def test_bad_options_of_a_class(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("kind: slurm\njobs: 1\noptions: {memory: 1GB}")
    with (
        pytest.raises(InputError, match=r"cannot be started.*check its options"),
        start_cluster(file),
    ):
        pass


SWEEP = ["sweep", "gaussian", "--horizon", "1", "--dim", "2", "--sizes", "10:20:2"]


def test_the_command_line_refuses(tmp_path: Path) -> None:
    def error(*options: str) -> str:
        done = CliRunner().invoke(main, [*SWEEP, *options])
        assert done.exit_code == 2, done.output
        return " ".join(done.stderr.split())

    missing = str(tmp_path / "none.yaml")
    assert "cannot read the cluster file" in error("--cluster", missing)
    assert "choose one of them" in error("--cluster", missing, "--scheduler", "tcp://h:1")
    assert "leave it out with --scheduler" in error("--workers", "2", "--scheduler", "tcp://h:1")
    assert "write its address" in error("--scheduler", "host")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_dask(name: str, *arguments, **options):
        if name.split(".")[0] in ("distributed", "dask_jobqueue"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_dask)
    done = CliRunner().invoke(main, [*SWEEP, "--scheduler", "tcp://host:8786"])
    assert done.exit_code == 2
    assert 'pip install "esscher[cluster]"' in done.stderr
