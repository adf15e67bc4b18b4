"""Tasks on real worker processes: results, faults, what is told about them."""

from __future__ import annotations

import json
import pickle
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client

from esscher.cli import main
from esscher.core.errors import InputError
from esscher.runs.cluster import Cluster, connected
from esscher.runs.executors import CellExecutor, FailedCells, Task, chosen_executor, compute_cells
from esscher.runs.folder import Cell, open_run
from esscher.runs.progress import Reporter
from esscher.runs.registry import load
from esscher.studies.sweep import study
from tests.runs.processes import (
    deadly,
    deadly_replicate,
    failing,
    failing_at_first,
    free_port,
    identity,
    lines,
    machines,
    refusing,
    slow_square,
    square,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    """A cluster with one worker that a nanny starts again when it dies."""
    with machines(tmp_path_factory.mktemp("machines")) as found:
        found.scheduler()
        found.worker(nanny=True)
        with connected(found.address) as executor:
            yield executor


def test_results_arrive_for_every_task(cluster: Cluster) -> None:
    tasks = [Task(f"cell-{i}", square, (float(i),)) for i in range(30)]
    found = dict(cluster.run(tasks))
    assert (
        found == dict(CellExecutor().run(tasks)) == {f"cell-{i}": float(i * i) for i in range(30)}
    )


def test_a_shared_value_reaches_a_worker_once(cluster: Cluster) -> None:
    value = np.arange(1000.0)
    handle = cluster.share(value)
    found = dict(cluster.run([Task(f"cell-{i}", identity, (handle,)) for i in range(4)]))
    assert len({process for process, _ in found.values()}) == 1
    for _, received in found.values():
        np.testing.assert_array_equal(received, value)
    assert CellExecutor().share(value) is value


def test_a_deadly_cell_is_named_and_the_others_are_stored(cluster: Cluster, tmp_path: Path) -> None:
    functions = {"deadly-1": deadly_cell, "failing-1": failing_cell}
    names = ["good-1", "deadly-1", "good-2", "failing-1", "good-3"]

    def task(name: str) -> Task:
        return Task(name, functions.get(name, good_cell), (float(name[-1]),))

    with open_run(tmp_path / "run", "test", "x", {}) as run, Reporter(None, False) as reporter:
        with pytest.raises(FailedCells) as caught:
            compute_cells(run, {name: task(name) for name in names}, reporter, cluster)
        assert sorted(caught.value.reasons) == ["deadly-1", "failing-1"]
        assert "deadly-1: KilledWorker" in str(caught.value)
        assert "failing-1: RuntimeError: no result for 1" in str(caught.value)
        assert run.names() == ["good-1", "good-2", "good-3"]
        # resumed, only those are tried again; and now they are well
        functions.clear()
        compute_cells(run, {name: task(name) for name in names}, reporter, cluster)
        assert run.names() == sorted(names)


def test_a_command_names_a_deadly_replicate_and_tries_it_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["sweep", "gaussian", "--horizon", "1", "--dim", "2", "--sizes", "20:80:3"]
    words += ["--replicates", "4", "--no-predict", "--out", str(tmp_path / "run")]
    words += ["--scheduler", cluster._address]
    monkeypatch.setattr(study, "measure_cell", deadly_replicate)
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2, done.output
    assert "1 cell could not be computed (replicate-000001: KilledWorker" in done.stderr
    assert load(tmp_path / "run").numbers == (0, 2, 3)
    monkeypatch.undo()
    assert CliRunner().invoke(main, words).exit_code == 0
    assert load(tmp_path / "run").complete


def good_cell(x: float) -> Cell:
    return Cell({"x": x})


def deadly_cell(x: float) -> Cell:
    return Cell({"x": deadly(x)})


def failing_cell(x: float) -> Cell:
    return Cell({"x": failing(x)})


def test_an_exception_is_forgiven_twice(cluster: Cluster, tmp_path: Path) -> None:
    found = dict(cluster.run([Task("a", failing_at_first, (str(tmp_path), 7.0))]))
    assert found == {"a": 7.0}
    assert len(list(tmp_path.glob("try-*"))) == 3


def test_bad_input_stops_at_once(cluster: Cluster) -> None:
    tasks = [Task("bad", refusing, (1.0,)), Task("other", square, (2.0,))]
    with pytest.raises(InputError, match="x is 1; it must be something else"):
        dict(cluster.run(tasks))


def test_other_versions_are_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cluster._versions, "numpy", "0.1")
    with pytest.raises(InputError, match=r"instead of 0\.1; install the same versions"):
        dict(cluster.run([Task("a", square, (1.0,))]))


def test_leaving_early_cancels_what_waits(cluster: Cluster) -> None:
    tasks = [Task(f"cell-{i}", slow_square, (float(i), 1.0)) for i in range(200)]
    results = cluster.run(tasks)
    next(results)
    results.close()
    start = time.monotonic()
    assert dict(cluster.run([Task("next", square, (3.0,))])) == {"next": 9.0}
    assert time.monotonic() - start < 60  # at most what was at work is waited for, not 199 s


def test_no_worker_comes(tmp_path: Path) -> None:
    with machines(tmp_path) as found:
        found.scheduler()
        with (
            pytest.raises(InputError, match=f"no worker has come to {found.address} within 0.5 s"),
            connected(found.address, patience=0.5) as cluster,
        ):
            dict(cluster.run([Task("a", square, (2.0,))]))


def test_no_scheduler(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"id": 3}')
    address = f"tcp://127.0.0.1:{free_port()}"
    for there in (address, "host", str(tmp_path / "none.json"), str(tmp_path / "other.json")):
        with (
            pytest.raises(InputError, match=f"there is no scheduler at {there}"),
            connected(there, timeout=1.0),
        ):
            pass


@pytest.mark.parametrize("address", ["foo://host:8786", "tcp://", "tcp://127.0.0.1", "tcp://h:x"])
def test_what_is_no_address(address: str) -> None:
    start = time.monotonic()
    words = ["sweep", "gaussian", "--horizon", "0.5", "--sizes", "9,20", "--scheduler", address]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, type(done.exception)) == (2, SystemExit)
    assert f"there is no scheduler at {address}" in done.stderr
    assert time.monotonic() - start < 10


def test_somebody_else_who_answers() -> None:
    """A web server, say."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            try:
                while True:
                    there, _ = server.accept()
                    with there:
                        there.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            except OSError:
                pass  # the server is closed

        threading.Thread(target=answer, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with (
            pytest.raises(InputError, match="there is no scheduler at"),
            connected(address, timeout=2.0),
        ):
            pass


def test_somebody_who_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(InputError, match="no scheduler"), connected(address, timeout=0.5):
            pass
        assert time.monotonic() - start < 10


def test_a_worker_is_no_scheduler(cluster: Cluster) -> None:
    cluster._client.wait_for_workers(1)  # this test may be the first
    (worker,) = cluster._client.scheduler_info()["workers"]
    with pytest.raises(InputError, match="a worker answers there"), connected(worker):
        pass


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
            with connected(found.address) as cluster:
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
                connected(address, timeout=2.0),
            ):
                pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_jobs_of_a_batch_system(batch_system: Path) -> None:
    """The recipe of the guide: dask-jobqueue submits jobs, its client computes cells."""
    from dask_jobqueue import SLURMCluster

    options = {
        "queue": "normal",
        "cores": 1,
        "processes": 1,
        "memory": "1GB",
        "walltime": "00:10:00",
        "interface": "lo",
        "python": sys.executable,
        "log_directory": str(batch_system),
    }
    with SLURMCluster(**options) as jobs, Client(jobs) as client:
        jobs.scale(jobs=1)
        with chosen_executor(executor=client) as executor:
            assert works(executor)
    assert "#SBATCH -p normal" in (batch_system / "job.sh").read_text()
    assert lines(batch_system / "cancelled") == lines(batch_system / "submitted")


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(FailedCells({"a": "b"})))
    assert error.reasons == {"a": "b"}
    assert "1 cell could not be computed (a: b)" in str(error)
