"""Schedulers with TLS, by Dask's own configuration, and jobs of a batch system."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import dask
import pytest
from click.testing import CliRunner
from distributed import Client

from esscher.cli import main
from esscher.core.errors import InputError
from esscher.runs.cluster import Cluster, connect_cluster
from esscher.runs.executors import Task, chosen_executor
from tests.runs.processes import lines, machines, square

SWEEP = ["sweep", "gaussian", "--horizon", "1", "--dim", "2", "--sizes", "10:20:2"]
SWEEP += ["--replicates", "3", "--no-predict"]


def works(cluster: Cluster) -> bool:
    tasks = [Task(f"cell-{i}", square, (float(i),)) for i in range(3)]
    return dict(cluster.run(tasks)) == {f"cell-{i}": float(i * i) for i in range(3)}


def settings(folder: Path, name: str = "ours", **more: Any) -> dict[str, Any]:
    """Dask's configuration for TLS."""
    pem, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    found = {"distributed.comm.tls.ca-file": pem}
    for role in ("client", "scheduler", "worker"):
        found |= {f"distributed.comm.tls.{role}.cert": pem, f"distributed.comm.tls.{role}.key": key}
    return found | more


def as_environment(found: dict[str, Any]) -> dict[str, str]:
    """The same configuration as environment variables."""
    return {
        "DASK_" + name.upper().replace(".", "__").replace("-", "_"): str(value)
        for name, value in found.items()
    }


def test_a_scheduler_with_tls_serves_those_with_certificates(
    tmp_path: Path, certificates: Path
) -> None:
    ours = settings(certificates)
    with machines(tmp_path / "machines", "tls", as_environment(ours)) as found:
        found.scheduler()
        found.worker()
        file = tmp_path / "scheduler.json"
        file.write_text(json.dumps({"address": found.address}))
        with dask.config.set(ours):
            with connect_cluster(found.address) as cluster:
                assert works(cluster)
            done = CliRunner().invoke(main, [*SWEEP, "--scheduler", str(file)])
        assert done.exit_code == 0, done.output
        plain = found.address.replace("tls://", "tcp://")
        for address, config in (
            (found.address, {}),
            (found.address, settings(certificates, "other")),
            (found.address, ours | {"distributed.comm.tls.client.cert": "none.pem"}),
            (plain, ours | {"distributed.comm.require-encryption": True}),
            (plain, {}),
        ):
            with (
                dask.config.set(config),
                pytest.raises(InputError, match="there is no scheduler at"),
                connect_cluster(address, timeout=2.0),
            ):
                pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_jobs_of_a_batch_system(batch_system: Path) -> None:
    """The recipe of the guide: dask-jobqueue submits jobs, its client computes cells."""
    from dask_jobqueue import SLURMCluster

    options = {
        "queue": "normal", "cores": 1, "processes": 1, "memory": "1GB", "walltime": "00:10:00",
        "interface": "lo", "python": sys.executable, "log_directory": str(batch_system),
    }  # fmt: skip
    with SLURMCluster(**options) as jobs, Client(jobs) as client:
        jobs.scale(jobs=1)
        with chosen_executor(executor=client) as executor:
            assert works(executor)
    assert "#SBATCH -p normal" in (batch_system / "job.sh").read_text()
    assert lines(batch_system / "cancelled") == lines(batch_system / "submitted")


def test_a_scheduler_file_that_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    with (
        pytest.raises(InputError, match="cannot be read"),
        connect_cluster(str(file), timeout=0.2),
    ):
        pass
    file.write_text('{"id": 3}')
    with pytest.raises(InputError, match="no address"), connect_cluster(str(file)):
        pass
