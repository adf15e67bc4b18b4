"""Who measures the replicates: this process, worker processes, or any executor."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
)
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Lock
from threading import Thread
from types import TracebackType
from typing import Self

import numpy as np

from esscher.core.errors import InputError
from esscher.runs.cluster import Cluster
from esscher.runs.executors import Task
from esscher.runs.provenance import versions
from esscher.runs.signals import STOPPING, signals_held
from esscher.runs.threads import threads_per_worker
from esscher.studies.sweep.measure import METRICS, Plan, measure_replicate
from esscher.studies.sweep.parts import Part


def measure_part(plan: Plan, replicate: int, depth: int) -> Part:
    """Measure one replicate at the first ``depth`` sizes; runs wherever the executor runs it."""
    start = time.perf_counter()
    errors = np.full((len(METRICS), len(plan.scales), len(plan.sizes)), np.nan)
    errors[..., :depth] = measure_replicate(plan.up_to(depth), replicate)
    return Part(replicate, errors, versions(), time.perf_counter() - start)


class Crew:
    """Measures replicates of one plan; a context that leaves no process behind.

    Parameters
    ----------
    plan
        What to measure.
    executor
        Any executor; it is used, not shut down. The plan travels with every replicate, except on a
        cluster, whose workers get it once.
    workers
        Or a number of processes of our own, more than 1; they get the plan once.
    """

    def __init__(
        self, plan: Plan, executor: Executor | Cluster | None = None, workers: int = 1
    ) -> None:
        self._plan, self._executor = plan, executor
        self._pool: ProcessPoolExecutor | None = None
        if executor is None and workers > 1:
            # Not fork: it would copy locks of running threads (torch has some) in any state.
            context = multiprocessing.get_context("spawn")
            # The plan does not travel as an argument: what does not fit into a pipe's buffer is
            # taken only after a worker's imports, and they would start one after the other,
            # seconds each, deaf to signals.
            self._outlet, self._inlet = context.Pipe(duplex=False)
            self._pool = ProcessPoolExecutor(
                workers,
                mp_context=context,
                initializer=_start_worker,
                initargs=(self._outlet, context.Lock(), threads_per_worker(workers)),
            )
            self._giver = Thread(target=self._give, args=(workers,), daemon=True)
            self._giver.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is None:
            return
        with nullcontext() if kind is None else signals_held():
            if kind is not None:
                # Replicates in flight may take minutes; they are dropped, not waited for.
                for process in list((self._pool._processes or {}).values()):
                    process.kill()  # SIGTERM is blocked there
            self._pool.shutdown(cancel_futures=True)
            self._outlet.close()  # ends the thread, should it wait for workers that never came
            self._giver.join()
            self._inlet.close()

    def _give(self, workers: int) -> None:
        """Hand every worker the plan, when it has come so far."""
        with suppress(OSError):
            for _ in range(workers):
                self._inlet.send(self._plan)

    def run(self, replicates: Sequence[int], depth: int) -> Iterator[Part]:
        """Yield replicates, up to the same size, as they are done, in any order."""
        if self._pool is None and self._executor is None:
            for replicate in replicates:
                yield measure_part(self._plan, replicate, depth)
            return
        if isinstance(self._executor, Cluster):
            yield from self._run_on(self._executor, replicates, depth)
            return
        waiting: list[Future[Part]] = []
        try:
            # Processes that start here never see these signals; others than ours are ended by
            # SIGTERM, and must.
            with signals_held(STOPPING if self._executor is None else (signal.SIGINT,)):
                for replicate in replicates:
                    waiting.append(self._submit(replicate, depth))
            for future in as_completed(waiting):
                yield future.result()
        except BrokenExecutor as error:
            # Its own thread ends what waits; to cancel it meanwhile would be an error there.
            waiting.clear()
            raise InputError(
                f"a worker process died ({error}); the machine may have run out of memory. "
                "Every replicate stored so far is kept: start again, with fewer workers"
            ) from error
        finally:
            for future in waiting:
                future.cancel()

    def _run_on(self, cluster: Cluster, replicates: Sequence[int], depth: int) -> Iterator[Part]:
        if not replicates:
            return
        plan = cluster.share(self._plan)
        tasks = [Task(f"replicate-{r}", measure_part, (plan, r, depth)) for r in replicates]
        for _, part in cluster.run(tasks):
            yield part

    def _submit(self, replicate: int, depth: int) -> Future[Part]:
        if self._pool is not None:
            return self._pool.submit(_work, replicate, depth)
        assert isinstance(self._executor, Executor)
        return self._executor.submit(measure_part, self._plan, replicate, depth)


#: In a worker process, the plan it was started with; empty everywhere else.
_PLANS: list[Plan] = []


def _start_worker(outlet: Connection, one_at_a_time: Lock, threads: int) -> None:
    # The parent decides what Ctrl-C means. SIGTERM is blocked since the start of this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        with one_at_a_time:
            plan: Plan = outlet.recv()
    except (EOFError, OSError):  # the parent is gone already
        os._exit(1)
    import torch

    torch.set_num_threads(threads)
    _PLANS[:] = [plan]


def _end_with_parent() -> None:
    """Leave when the parent is gone: after ``kill -9`` nobody else ends this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(replicate: int, depth: int) -> Part:
    return measure_part(_PLANS[0], replicate, depth)
