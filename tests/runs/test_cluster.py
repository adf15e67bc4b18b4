"""Tasks on real worker processes: results, faults, what is told about them."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from esscher.cli import main
from esscher.core.errors import InputError
from esscher.runs.cluster import Cluster, connect_cluster
from esscher.runs.executors import FailedCells, Serial, Task, compute_cells
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
        with connect_cluster(found.address) as connected:
            yield connected


def test_results_arrive_for_every_task(cluster: Cluster) -> None:
    tasks = [Task(f"cell-{i}", square, (float(i),)) for i in range(30)]
    found = dict(cluster.run(tasks))
    assert found == dict(Serial().run(tasks)) == {f"cell-{i}": float(i * i) for i in range(30)}


def test_a_shared_value_reaches_a_worker_once(cluster: Cluster) -> None:
    value = np.arange(1000.0)
    handle = cluster.share(value)
    found = dict(cluster.run([Task(f"cell-{i}", identity, (handle,)) for i in range(4)]))
    assert len({process for process, _ in found.values()}) == 1
    for _, received in found.values():
        np.testing.assert_array_equal(received, value)
    assert Serial().share(value) is value


def test_a_deadly_cell_is_named_and_the_others_are_stored(cluster: Cluster, tmp_path: Path) -> None:
    functions = {"deadly-1": deadly_cell, "failing-1": failing_cell}
    names = ["good-1", "deadly-1", "good-2", "failing-1", "good-3"]

    def task(name: str) -> Task:
        return Task(name, functions.get(name, good_cell), (float(name[-1]),))

    with open_run(tmp_path / "run", "test", "x", {}) as run, Reporter(None, False) as reporter:
        with pytest.raises(FailedCells) as caught:
            compute_cells(run, {name: task(name) for name in names}, reporter, cluster)
        assert sorted(caught.value.reasons) == ["deadly-1", "failing-1"]
        assert "deadly-1: it kills its workers" in str(caught.value)
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
    assert "1 cell could not be computed (replicate-000001: it kills its workers)" in done.stderr
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


def test_no_worker_is_said_and_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    with machines(tmp_path) as found:
        found.scheduler()

        def say(text: str) -> None:
            said.append(text)
            found.worker()

        with connect_cluster(found.address, say, patience=0.5) as cluster:
            assert dict(cluster.run([Task("a", square, (2.0,))])) == {"a": 4.0}
    assert said == [f"There is no worker at {found.address}; waiting for one."]


def test_no_scheduler() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        pytest.raises(InputError, match=f"there is no scheduler at {address}"),
        connect_cluster(address, timeout=1.0),
    ):
        pass
    with pytest.raises(InputError, match="timeout is 0"), connect_cluster(address, timeout=0):
        pass
    with pytest.raises(InputError, match="write its address"), connect_cluster("host"):
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
            pytest.raises(InputError, match=r"there is no scheduler at .*something else answers"),
            connect_cluster(address, timeout=2.0),
        ):
            pass


def test_somebody_who_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(InputError, match="no answer"), connect_cluster(address, timeout=0.5):
            pass
        assert time.monotonic() - start < 10


def test_a_worker_is_no_scheduler(cluster: Cluster) -> None:
    cluster._client.wait_for_workers(1)  # this test may be the first
    (worker,) = cluster._client.scheduler_info()["workers"]
    with pytest.raises(InputError, match="a worker answers there"), connect_cluster(worker):
        pass


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(FailedCells({"a": "b"})))
    assert error.reasons == {"a": "b"}
    assert "1 cell could not be computed (a: b)" in str(error)
