"""Tasks on real worker processes: results, faults, what is told about them."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from esscher.cli import main
from esscher.core.errors import InputError
from esscher.runs.executors import CellExecutor, Cluster, Task, chosen_executor, connected
from esscher.runs.registry import load
from esscher.studies.sweep import measure
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
        with connected(found.address) as executor:
            yield executor


def test_results_arrive_for_every_task(cluster: Cluster) -> None:
    tasks = [Task(f"cell-{i}", square, (float(i),)) for i in range(30)]
    found = dict(cluster.run(tasks))
    assert (
        found == dict(CellExecutor().run(tasks)) == {f"cell-{i}": float(i * i) for i in range(30)}
    )


def test_a_client_computes_cells(cluster: Cluster) -> None:
    """As with dask-jobqueue, whose jobs are workers of a client."""
    with chosen_executor(executor=cluster._client) as executor:
        assert dict(executor.run([Task("a", square, (3.0,))])) == {"a": 9.0}


def test_a_shared_value_reaches_a_worker_once(cluster: Cluster) -> None:
    value = np.arange(1000.0)
    handle = cluster.share(value)
    found = dict(cluster.run([Task(f"cell-{i}", identity, (handle,)) for i in range(4)]))
    assert len({process for process, _ in found.values()}) == 1
    for _, received in found.values():
        np.testing.assert_array_equal(received, value)
    assert CellExecutor().share(value) is value


def test_a_command_names_a_deadly_replicate_and_tries_it_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["sweep", "gaussian", "--horizon", "1", "--dim", "2", "--sizes", "20:80:3"]
    words += ["--replicates", "4", "--no-predict", "--out", str(tmp_path / "run")]
    words += ["--scheduler", cluster._address]
    monkeypatch.setattr(measure, "measure_cell", deadly_replicate)
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2, done.output
    assert "1 cell could not be computed (replicate-000001: KilledWorker" in done.stderr
    assert load(tmp_path / "run")["replicate"].values.tolist() == [0, 2, 3]
    monkeypatch.undo()
    assert CliRunner().invoke(main, words).exit_code == 0
    assert load(tmp_path / "run").complete


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


def test_cells_that_fail_are_named_after_the_others(cluster: Cluster) -> None:
    tasks = [Task("deadly", deadly, (1.0,)), Task("failing", failing, (1.0,))]
    tasks += [Task(f"good-{i}", square, (float(i),)) for i in range(3)]
    results: dict[str, float] = {}

    def collect() -> None:
        for name, result in cluster.run(tasks):
            results[name] = result

    with pytest.raises(InputError, match="2 cells could not be computed") as caught:
        collect()
    assert "deadly: KilledWorker" in str(caught.value)
    assert "failing: RuntimeError: no result for 1" in str(caught.value)
    assert results == {f"good-{i}": i * i for i in range(3)}


def test_no_scheduler(cluster: Cluster, tmp_path: Path) -> None:
    """A free port, no address, a file of something else, who does not answer, and a worker."""
    (tmp_path / "other.json").write_text('{"id": 3}')
    cluster._client.wait_for_workers(1)  # this test may be the first
    (worker,) = cluster._client.scheduler_info()["workers"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        places = [f"tcp://127.0.0.1:{port}" for port in (free_port(), silent.getsockname()[1])]
        places += ["host", "foo://host:8786", "tcp://127.0.0.1", str(tmp_path / "none.json")]
        for place in [*places, str(tmp_path / "other.json"), worker]:
            start = time.monotonic()
            with (
                pytest.raises(InputError, match=f"there is no scheduler at {place}"),
                connected(place, timeout=1.0),
            ):
                pass
            assert time.monotonic() - start < 10
