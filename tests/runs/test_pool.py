"""Tasks in worker processes of this machine: results, shared values, faults, and what remains."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esscher.core.errors import InputError
from esscher.runs.executors import (
    CellExecutor,
    LocalPool,
    OnFutures,
    Task,
    asked_threads,
    available_cores,
    chosen_executor,
    threads_per_worker,
    use_threads,
)
from tests.runs.processes import refusing, square


def failing(x: float, folder: str) -> float:
    """Raise an exception each time, and leave a file that says so."""
    (Path(folder) / f"{time.monotonic_ns()}").touch()
    raise RuntimeError(f"no result for {x:g}\nat all")


def slow(seconds: float) -> None:
    """Take some time, with a temporary file."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "file").touch()
        time.sleep(seconds)


def state() -> tuple[str, bool, bool]:
    """Return the threads of this process, and whether Ctrl-C and SIGTERM leave it alone."""
    return (
        os.environ["OMP_NUM_THREADS"],
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        signal.getsignal(signal.SIGTERM) is signal.SIG_IGN,
    )


def received(value: Any, x: int, again: Any = None) -> tuple[int, int, float]:
    """Return the process, the object that the value is there, and its sum."""
    time.sleep(0.05)  # so that both workers have something to do
    assert again is None or again is value
    return os.getpid(), id(value), float(value.rows.sum()) + x


class Counted:
    """An array that counts how often it is sent."""

    def __init__(self, rows: np.ndarray[Any, Any]) -> None:
        self.rows, self.sent = rows, 0

    def __reduce__(self) -> tuple[type[Counted], tuple[Any]]:
        self.sent += 1
        return Counted, (self.rows,)


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    """Two workers for all tests that leave them alive."""
    with LocalPool(2) as workers:
        yield workers


def test_results_arrive_for_every_task(pool: LocalPool) -> None:
    tasks = [Task(f"cell-{i}", square, (float(i),)) for i in range(40)]
    assert dict(pool.run(tasks)) == dict(CellExecutor().run(tasks))
    assert dict(pool.run([])) == {}


def test_a_shared_value_reaches_each_worker_once(pool: LocalPool) -> None:
    value = Counted(np.arange(200_000.0))  # more than a pipe holds
    total = float(value.rows.sum())
    handle = pool.share(value)
    for start in (0, 12):  # it is kept between two runs
        tasks = [Task(f"cell-{i}", received, (handle, i)) for i in range(start, start + 12)]
        tasks.append(Task("twice", received, (handle, 0, handle)))
        result = dict(pool.run(tasks))
        assert all(result[t.name][2] == total + t.arguments[1] for t in tasks)
    processes = {process for process, _, _ in result.values()}
    assert os.getpid() not in processes
    assert len({where[:2] for where in result.values()}) == len(processes)
    assert value.sent == 1


def test_what_cannot_be_sent_is_refused(pool: LocalPool) -> None:
    with pytest.raises(InputError, match=r"cannot be sent to worker processes \(TypeError: cannot"):
        pool.share(threading.Lock())
    assert dict(pool.run([Task("a", square, (3.0,))])) == {"a": 9.0}


def test_a_cell_that_fails_is_named_after_the_others(pool: LocalPool, tmp_path: Path) -> None:
    tasks = [Task("bad", failing, (1.0, str(tmp_path)))]
    tasks += [Task(f"cell-{i}", square, (float(i),)) for i in range(5)]
    names = []
    words = r"1 cell could not be computed \(bad: RuntimeError: no result for 1\)"
    with pytest.raises(InputError, match=words):
        names.extend(name for name, _ in pool.run(tasks))
    assert sorted(names) == [f"cell-{i}" for i in range(5)]
    assert len(list(tmp_path.iterdir())) == 1


def test_bad_input_stops_at_once(pool: LocalPool) -> None:
    tasks = [Task("bad", refusing, (1.0,)), *(Task(f"{i}", slow, (0.5,)) for i in range(200))]
    start = time.monotonic()
    with pytest.raises(InputError, match="x is 1; it must be something else"):
        dict(pool.run(tasks))
    assert dict(pool.run([Task("next", square, (3.0,))])) == {"next": 9.0}
    assert time.monotonic() - start < 30  # what had not begun was dropped


def test_workers_share_the_cores_and_see_no_signals(pool: LocalPool) -> None:
    ((_, result),) = pool.run([Task("a", state)])
    assert result == (str(threads_per_worker(2)), True, True)


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = available_cores()
    for asked, number in (("1", 1), ("4,2", 4), ("", None), ("0", None), ("many", None)):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert asked_threads() == number
        assert threads_per_worker(1) == min(cores, number or cores)
        assert threads_per_worker(10 * cores) == 1
    before = torch.get_num_threads()
    try:
        use_threads(3)
        assert asked_threads() == torch.get_num_threads() == 3
    finally:  # small matrix products of later tests depend on it in their last bits
        torch.set_num_threads(before)


def test_the_chosen_executor() -> None:
    with chosen_executor() as serial:
        assert isinstance(serial, CellExecutor)
    with chosen_executor(2) as pool:
        assert isinstance(pool, LocalPool)
        assert pool.remote
    with chosen_executor(executor=serial) as chosen:
        assert chosen is serial
    with ThreadPoolExecutor(1) as threads, chosen_executor(executor=threads) as adapted:
        assert isinstance(adapted, OnFutures)
        assert list(adapted.run([Task("a", square, (adapted.share(2.0),))])) == [("a", 4.0)]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"workers": 100_000}, r"workers is 100000, but this process may use \d+ core.* at most"),
        ({"workers": 2, "executor": CellExecutor()}, "leave it out with an executor"),
        ({"workers": 2, "scheduler": "tcp://h:1"}, "leave it out with an executor or a sch"),
    ],
)
def test_only_one_can_be_chosen(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words), chosen_executor(**asked):
        pass
