"""Who can reach a cluster that a command starts: sockets of its processes, and TLS."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import dask
import distributed  # noqa: F401 - its settings must be there before tests change some
import psutil
import pytest
from click.testing import CliRunner

from esscher.cli import main
from esscher.core.errors import InputError
from esscher.runs.cluster import Cluster, connect_cluster
from esscher.runs.cluster_file import on_this_machine, start_cluster
from esscher.runs.executors import Task
from tests.runs.processes import lines, machines, open_to, square

LOOPBACK = "127.0.0.1"
SWEEP = ["sweep", "gaussian", "--horizon", "1", "--dim", "2", "--sizes", "10:20:2"]
SWEEP += ["--replicates", "3", "--no-predict"]


def described(folder: Path, kind: str, **options: Any) -> Path:
    file = folder / "cluster.json"
    file.write_text(json.dumps({"kind": kind, "jobs": 1, "options": options}))
    return file


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


def page(cluster: Cluster, path: str) -> int:
    """Status of a page of the scheduler's web server."""
    port = cluster._client.scheduler_info()["services"]["dashboard"]
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}{path}", timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    ("options", "status"),
    [({}, 404), ({"processes": False}, 404), ({"dashboard_address": ":0"}, 200)],
)
def test_a_local_cluster_is_reached_from_this_machine_alone(
    tmp_path: Path, options: dict[str, Any], status: int
) -> None:
    me = psutil.Process()
    before = open_to([me])
    with start_cluster(described(tmp_path, "local", **options)) as cluster:
        assert works(cluster)
        found = open_to([me, *me.children(recursive=True)])
        assert page(cluster, "/health") == status
        assert page(cluster, "/info/main/workers.html") == status
    assert len(found) > len(before)
    assert set(found) - set(before) <= {LOOPBACK}


def test_addresses_of_dashboards() -> None:
    assert [on_this_machine(a) for a in (":0", 8787, "8787", " :8787")] == [
        "127.0.0.1:0", "127.0.0.1:8787", "127.0.0.1:8787", "127.0.0.1:8787",
    ]  # fmt: skip
    assert on_this_machine("0.0.0.0:8787") == "0.0.0.0:8787"  # somebody wants it


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_jobs_have_no_dashboards_and_use_tls(batch_system: Path, certificates: Path) -> None:
    """Scheduler, nanny and worker have to be reached by others; and they listen to nothing else."""
    options = {
        "cores": 1, "processes": 1, "memory": "1GB", "python": sys.executable,
        "log_directory": str(batch_system), "worker_extra_args": ["--lifetime", "10m"],
    }  # fmt: skip
    me = psutil.Process()
    before = [ip for ip in open_to([me]) if ip != LOOPBACK]
    wanted = settings(certificates, **{"distributed.comm.require-encryption": True})
    with (
        dask.config.set(wanted),
        start_cluster(described(batch_system, "slurm", **options)) as cluster,
    ):
        assert works(cluster)
        assert page(cluster, "/health") == 404
        job = psutil.Process(int(lines(batch_system / "submitted")[0]))
        here = [ip for ip in open_to([me]) if ip != LOOPBACK]
        there = open_to([job, *job.children(recursive=True)])
        assert str(cluster._address).startswith("tls://")
    assert len(here) - len(before) <= 2  # the scheduler, for both versions of IP
    assert LOOPBACK in there  # Dask's web server, without a dashboard
    script = (batch_system / "job.sh").read_text()
    for words in ("--no-dashboard --dashboard-address 127.0.0.1:0 --lifetime 10m",
                  f"--tls-cert {certificates / 'ours.pem'}"):  # fmt: skip
        assert words in script


def test_a_local_cluster_with_tls(tmp_path: Path, certificates: Path) -> None:
    wanted = settings(certificates, **{"distributed.comm.require-encryption": True})
    with dask.config.set(wanted), start_cluster(described(tmp_path, "local")) as cluster:
        assert str(cluster._address).startswith("tls://127.0.0.1:")
        assert works(cluster)


def test_a_scheduler_with_tls_serves_those_with_certificates(
    tmp_path: Path, certificates: Path
) -> None:
    ours = settings(certificates)
    with machines(tmp_path / "machines", "tls", as_environment(ours)) as found:
        found.scheduler()
        found.worker()
        with dask.config.set(ours), connect_cluster(found.address) as cluster:
            assert works(cluster)
        file = tmp_path / "scheduler.json"
        file.write_text(json.dumps({"address": found.address}))
        with dask.config.set(ours):
            done = CliRunner().invoke(main, [*SWEEP, "--scheduler", str(file)])
        assert done.exit_code == 0, done.output

        without = "uses TLS, but your Dask configuration has no distributed.comm.tls.ca-file"
        with pytest.raises(InputError, match=without), connect_cluster(found.address):
            pass
        with (
            dask.config.set(settings(certificates, "other")),
            pytest.raises(InputError, match="certificates of the same authority"),
            connect_cluster(found.address, timeout=2.0),
        ):
            pass
        plain = found.address.replace("tls://", "tcp://")
        with (
            pytest.raises(InputError, match="there is no scheduler"),
            connect_cluster(plain, timeout=2.0),
        ):
            pass


WANTED = {"distributed.comm.require-encryption": True}
CERT = "distributed.comm.tls.client.cert"


@pytest.mark.parametrize(
    ("place", "found", "message"),
    [
        ("--scheduler", {CERT: None}, "uses TLS, but your Dask configuration has no " + CERT),
        ("--scheduler", {CERT: "none.pem"}, CERT + " is none.pem, which cannot be read"),
        ("--scheduler", {CERT: 3}, CERT + " is 3; it must be the name of a PEM file"),
        ("--scheduler", {"distributed.comm.tls.client.key": "other"}, "do not work"),
        ("--scheduler", {"distributed.comm.tls.min-version": 7}, "configuration cannot be used"),
        ("tcp", WANTED, "which is not encrypted, but your Dask configuration wants"),
        ("--cluster", WANTED | {"distributed.comm.tls.scheduler.cert": None},
         "has no distributed.comm.tls.scheduler.cert"),
        ("--cluster", WANTED | {"distributed.comm.tls.ca-file": None}, "tls.ca-file"),
    ],
)  # fmt: skip
def test_half_a_configuration_is_refused_at_once(
    tmp_path: Path, certificates: Path, place: str, found: dict[str, Any], message: str
) -> None:
    if found.get("distributed.comm.tls.client.key") == "other":
        found = {"distributed.comm.tls.client.key": str(certificates / "other.key")}
    words = {
        "--scheduler": ["--scheduler", "tls://127.0.0.1:1"],
        "tcp": ["--scheduler", "tcp://127.0.0.1:1"],
        "--cluster": ["--cluster", str(described(tmp_path, "local"))],
    }[place]
    with dask.config.set(settings(certificates) | found):
        done = CliRunner().invoke(main, [*SWEEP, *words, "--out", str(tmp_path / "run")])
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()


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
