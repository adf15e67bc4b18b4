"""Tasks and runs on real worker processes: results, faults, what is told about them."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from esscher.cli import main
from esscher.core.errors import InputError
from esscher.engine.models.choice import ModelChoice, opened_model
from esscher.engine.models.load import load_model
from esscher.runs import executors
from esscher.runs.executors import CellExecutor, Cluster, Task, chosen_executor, connected
from esscher.studies.domains import domains
from tests.engine.models.folders import WORDS, decoder_tokenizer, save
from tests.engine.models.tiny import tiny_model
from tests.runs.processes import (
    deadly,
    failing,
    failing_at_first,
    free_port,
    identity,
    machines,
    refusing,
    slow_square,
    square,
)
from tests.runs.stack import run_stack, start, stored, wait_for_more


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    """A cluster with one worker that a nanny starts again when it dies."""
    with machines(tmp_path_factory.mktemp("machines")) as hosts:
        hosts.scheduler()
        hosts.worker(nanny=True)
        with connected(hosts.address) as executor:
            yield executor


def test_results_arrive_for_every_task(cluster: Cluster) -> None:
    tasks = [Task(f"cell-{i}", square, (float(i),)) for i in range(30)]
    result = dict(cluster.run(tasks))
    assert (
        result == dict(CellExecutor().run(tasks)) == {f"cell-{i}": float(i * i) for i in range(30)}
    )


def test_a_client_computes_cells(cluster: Cluster) -> None:
    """As with dask-jobqueue, whose jobs are workers of a client."""
    with chosen_executor(executor=cluster._client) as executor:
        assert dict(executor.run([Task("a", square, (3.0,))])) == {"a": 9.0}


def test_a_shared_value_reaches_a_worker_once(cluster: Cluster) -> None:
    value = np.arange(1000.0)
    handle = cluster.share(value)
    result = dict(cluster.run([Task(f"cell-{i}", identity, (handle,)) for i in range(4)]))
    assert len({process for process, _ in result.values()}) == 1
    for _, received in result.values():
        np.testing.assert_array_equal(received, value)
    assert CellExecutor().share(value) is value


def test_an_exception_is_forgiven_twice(cluster: Cluster, tmp_path: Path) -> None:
    result = dict(cluster.run([Task("a", failing_at_first, (str(tmp_path), 7.0))]))
    assert result == {"a": 7.0}
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


def test_cells_that_fail_are_named(cluster: Cluster) -> None:
    words = "1 cell could not be computed .deadly: KilledWorker"
    with pytest.raises(InputError, match=words):
        dict(cluster.run([Task("deadly", deadly, (1.0,))]))
    tasks = [Task("failing", failing, (1.0,))]
    tasks += [Task(f"good-{i}", square, (float(i),)) for i in range(3)]
    results: dict[str, float] = {}
    with pytest.raises(InputError, match="failing: RuntimeError: no result for 1"):
        results.update(cluster.run(tasks))
    assert results == {f"good-{i}": i * i for i in range(3)}


def test_no_scheduler(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A free port, no address, a file of something else, and a worker."""
    monkeypatch.setattr(executors, "TIMEOUT", 1.0)
    (tmp_path / "other.json").write_text('{"id": 3}')
    cluster._client.wait_for_workers(1)  # this test may be the first
    (worker,) = cluster._client.scheduler_info()["workers"]
    places = [f"tcp://127.0.0.1:{free_port()}", "host", str(tmp_path / "none.json")]
    for place in [*places, str(tmp_path / "other.json"), worker]:
        with (
            pytest.raises(InputError, match=f"there is no scheduler at {place}"),
            connected(place),
        ):
            pass


def test_no_worker_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "PATIENCE", 0.5)
    with machines(tmp_path) as hosts:
        hosts.scheduler()
        with (
            pytest.raises(InputError, match=f"no worker has come to {hosts.address} within 0.5 s"),
            connected(hosts.address) as cluster,
        ):
            dict(cluster.run([Task("a", square, (2.0,))]))


# Runs of studies: the same files here and there. The driver computes with as many threads as the
# machine has cores, the worker with one.


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder, a tiny decoder, and two texts."""
    folder = tmp_path_factory.mktemp("place")
    save(folder / "encoder")
    tiny_model("llama", max_position_embeddings=256).model.save_pretrained(folder / "decoder")
    decoder_tokenizer().save_pretrained(folder / "decoder")
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        (folder / f"{name}.txt").write_text(" ".join(rng.choice(WORDS, size=1500)))
    return folder


#: Options by name of the test; {} is the place of models and texts.
COMMANDS = {
    "probe": "probe {}/encoder --text {}/one.txt --tokens 300 --context 40 --sizes 8:32:3"
    " --replicates 4",
    "sparse": "sparse {}/decoder --text {}/one.txt --context 96 --passages 2 --budgets 8:32:3",
    "deep": "deep {}/decoder --text {}/one.txt --context 96 --passages 2 --sizes 8,24",
    "plan": "plan {}/decoder --text {}/one.txt --check {}/two.txt --budget 0.5 --prefix 96"
    " --passages 2 --check-passages 2",
    "context": "context {}/decoder --text {}/one.txt --context 128 --passages 3",
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "deep" else pytest.mark.slow) for n in COMMANDS]
)
def test_the_same_bytes_here_and_there(
    name: str, place: Path, cluster: Cluster, tmp_path: Path
) -> None:
    words = COMMANDS[name].replace("{}", str(place)).split()
    for where, more in (("here", []), ("there", ["--scheduler", cluster._address])):
        done = CliRunner().invoke(main, [*words, "--out", str(tmp_path / where), *more])
        assert done.exit_code == 0, done.output
    assert stored(tmp_path / "here") == stored(tmp_path / "there") != {}


def layers_of(model: ModelChoice) -> int:
    with opened_model(model) as loaded:
        return loaded.shape.layers


def test_other_weights_on_the_worker_are_refused(place: Path, cluster: Cluster) -> None:
    for name, words in (("encoder", "has other weights on the worker on"), ("none", "the worker")):
        choice = ModelChoice(str(place / name), weight_hash="0" * 64)
        with pytest.raises(InputError, match=words):
            dict(cluster.run([Task("a", layers_of, (choice,))]))


def test_a_model_in_memory_is_shared_with_workers(
    place: Path, cluster: Cluster, tmp_path: Path
) -> None:
    loaded = load_model(str(place / "encoder"))
    texts = {name: str(place / f"{name}.txt") for name in ("one", "two")}
    small = {"blocks": 6, "block_tokens": 120, "context": 40, "progress": False}
    for where, executor in (("here", None), ("there", cluster)):
        domains(loaded, texts, **small, out=tmp_path / where, executor=executor)
    assert stored(tmp_path / "here") == stored(tmp_path / "there")


@pytest.mark.slow
def test_workers_come_and_go_and_the_scheduler_is_restarted(tmp_path: Path) -> None:
    out, many = tmp_path / "run", ("--replicates", "400")
    with machines(tmp_path / "machines") as hosts:
        scheduler = hosts.scheduler()
        first, _ = hosts.worker(), hosts.worker()
        running = start(out, *many, "--scheduler", hosts.address)
        wait_for_more(running, out, 5)
        first.kill()  # in the middle; its replicates are measured by the other
        wait_for_more(running, out, 4)
        scheduler.kill()
        error = running.communicate(timeout=240)[1]
        kept = stored(out)
        assert running.returncode == 130, error
        assert f"The scheduler at {hosts.address} is gone. Stopped with {len(kept)} rep" in error
        assert "Run the same command again to resume" in error
        assert "Traceback" not in error
        assert 9 <= len(kept) < 400

        hosts.scheduler()  # at the same address; workers come back or are started anew
        hosts.worker()
        resumed = start(out, *many, "--scheduler", hosts.address)
        wait_for_more(resumed, out)
        hosts.worker()  # one more joins
        error = resumed.communicate(timeout=240)[1]
        assert resumed.returncode == 0, error
    run_stack(tmp_path / "here", 400)
    assert stored(out) == stored(tmp_path / "here")
