"""``sweep``: error curves from independent replicates, reproducible, resumable, in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.validation import Array, as_path
from esscher.math.heads import Head
from esscher.runs.executors import CellExecutor, SchedulerLost, Task, chosen_executor
from esscher.runs.folder import LOG
from esscher.runs.progress import Reporter
from esscher.runs.provenance import versions
from esscher.runs.threads import one_blas_thread
from esscher.studies.sweep.adaptive import Schedule
from esscher.studies.sweep.arguments import make_configuration, make_request
from esscher.studies.sweep.curve import ErrorCurve
from esscher.studies.sweep.measure import METRICS, Plan, measure_replicate
from esscher.studies.sweep.parts import Part
from esscher.studies.sweep.predictions import ScalePrediction, predict_scales
from esscher.studies.sweep.reference import (
    Reference,
    measured_head,
    reference_moments,
    reference_notes,
    reference_outputs,
)
from esscher.studies.sweep.store import Request, Run, open_run, read_run


class SweepInterrupted(KeyboardInterrupt):
    """A sweep was stopped; what it had stored is kept, and the same call resumes it."""

    def __init__(self, done: int, folder: Path | None, reason: str = "") -> None:
        super().__init__(f"{reason or 'stopped'} after {done} replicates")
        self.done, self.folder, self.reason = done, folder, reason


def sweep(
    head: Head,
    sizes: ArrayLike,
    replicates: int = 64,
    seed: int = 0,
    *,
    scales: ArrayLike = (1.0,),
    queries: str = "tokens",
    query_count: int | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    reference_tokens: int | None = None,
    executor: CellExecutor | Executor | None = None,
    workers: int = 1,
    out: str | Path | None = None,
    precision: float | None = None,
    max_replicates: int | None = None,
    predict: bool = False,
    progress: bool | None = None,
) -> ErrorCurve:
    """Measure how the errors of attention over n tokens fall with n.

    Replicate r draws the largest number of tokens and gives the errors at all sizes from one pass.
    Its random stream is a function of (seed, r), so that the result is the same to the bit for any
    number of workers, any order of completion, and however often the sweep was killed and resumed.

    Parameters
    ----------
    head
        Any head. If its law has no infinite-token limit, ``reference_tokens`` stand for it.
    sizes
        Strictly increasing numbers of tokens, each at least 2.
    replicates
        Number of replicates; with ``precision``, the number after which it is judged first.
    seed
        Seed of the random streams.
    scales
        Multipliers alpha of the head's tilts, all measured on the same tokens.
    queries
        ``"tokens"``: the n tokens attend to each other. ``"population"``: ``query_count`` queries
        independent of the keys (default 1024); only the error of the keys is measured.
    query_count
        With ``"tokens"``: only the first ``query_count`` tokens ask (default: all).
    dtype
        ``"float32"`` (sums in float64) or ``"float64"``.
    device
        ``"cpu"``, or a device of PyTorch such as ``"cuda"``.
    reference_tokens
        Draw this many tokens once, and measure how attention over n of them (with replacement)
        approaches attention over all. By default only for laws without a limit, with 4 times the
        largest size.
    executor
        A cluster from :func:`esscher.connect_cluster` or :func:`esscher.start_cluster`, or any
        ``concurrent.futures.Executor``; it is not shut down.
    workers
        Or a number of worker processes, which share the cores.
    out
        Directory of the run. If it holds the same sweep, begun or with fewer replicates, that one
        is resumed.
    precision
        Go on until half the width of the 95% interval of the slope of the mean error is at most
        this at every scale. Replicates after the first ``replicates`` end at whatever size lowers
        the variance of the slope most for its work: most of them are small and cheap.
    max_replicates
        With ``precision``: the most work, in replicates of the largest size (default 16 times
        ``replicates``).
    predict
        Also predict the errors at these sizes from theory (seconds per scale), so that fitted
        exponents come with predicted ones. Kept in the run.
    progress
        Whether to draw a progress bar; by default if standard error is a terminal.

    Raises
    ------
    InputError
        For arguments that cannot be used, a directory of another configuration, one that another
        process works on, a damaged part, a full disk.
    SweepInterrupted
        On Ctrl-C (it is a ``KeyboardInterrupt``), or if the scheduler of a cluster is lost.
    """
    configuration = make_configuration(
        head, sizes, seed, scales, queries, query_count, dtype, device, reference_tokens
    )
    request = make_request(replicates, precision, max_replicates, configuration)

    drawn = measured_head(head, configuration)

    @cache
    def outputs() -> Array | None:
        return reference_outputs(drawn, configuration)

    def reference() -> Reference:
        with one_blas_thread():
            notes = reference_notes(head, configuration)
            return replace(reference_moments(drawn, outputs(), configuration), extra_notes=notes)

    folder = None if out is None else Path(out)
    with (
        chosen_executor(workers, executor) as chosen,
        _opened(folder, configuration, request, reference) as (run, limits),
    ):
        parts = {} if run is None else run.read_parts()
        schedule = Schedule(request, configuration, folder)
        schedule.check(parts)
        notes = limits.notes() if run is None else tuple(run.about["limit"]["notes"])
        plan = _plan(drawn, configuration, limits, outputs())
        try:
            shared = chosen.share(plan)
            with Reporter(None if folder is None else folder / LOG, progress) as reporter:
                while (batch := schedule.next_batch(parts)) is not None:
                    missing = [r for r in range(batch.start, batch.stop) if r not in parts]
                    reporter.expect(batch.stop, batch.stop - len(missing))
                    tasks = [
                        Task(f"replicate-{r}", measure_part, (shared, r, batch.depth))
                        for r in missing
                    ]
                    for _, part in chosen.run(tasks):
                        if run is not None:
                            run.write_part(part)
                        parts[part.replicate] = part
                        reporter.advance()
        except KeyboardInterrupt as stop:
            if run is not None:
                parts = run.read_parts(parts)  # the last may be stored and not yet counted
                # Without fits, which follow from the parts: whoever stopped it may not wait.
                stopped = _curve(parts, request, configuration, notes)
                run.write_results(stopped.to_dict(fits=False))
            reason = str(stop) if isinstance(stop, SchedulerLost) else ""
            raise SweepInterrupted(len(parts), folder, reason) from None
        schedule.check(parts)
        predictions = None if run is None else run.read_predictions()
        if predict and predictions is None:
            with one_blas_thread():
                predictions = predict_scales(head, configuration)
            if run is not None:
                run.write_predictions(predictions)
        curve = _curve(parts, request, configuration, notes, predictions)
        if run is not None:
            run.write_results(curve.to_dict())
        return curve


def measure_part(plan: Plan, replicate: int, depth: int) -> Part:
    """Measure one replicate at the first ``depth`` sizes; runs wherever the executor runs it."""
    start = time.perf_counter()
    errors = np.full((len(METRICS), len(plan.scales), len(plan.sizes)), np.nan)
    errors[..., :depth] = measure_replicate(plan.up_to(depth), replicate)
    return Part(replicate, errors, versions(), time.perf_counter() - start)


def load_curve(out: str | Path) -> ErrorCurve:
    """Read the curve of a stored run, complete or not, from its raw errors."""
    run = read_run(as_path(out, "out"))
    notes = tuple(run.about["limit"]["notes"])
    return _curve(run.read_parts(), run.request, run.configuration, notes, run.read_predictions())


@contextmanager
def _opened(
    folder: Path | None,
    configuration: dict[str, Any],
    request: Request,
    reference: Callable[[], Reference],
) -> Iterator[tuple[Run | None, Reference]]:
    if folder is None:
        yield None, reference()
        return
    with open_run(folder, configuration, request, reference) as opened:
        yield opened


def _plan(
    head: Head, configuration: dict[str, Any], limits: Reference, outputs: Array | None
) -> Plan:
    return Plan(
        head=head,
        sizes=tuple(configuration["sizes"]),
        scales=tuple(configuration["scales"]),
        seed=configuration["seed"],
        queries=configuration["queries"],
        query_count=configuration["query_count"],
        dtype=configuration["dtype"],
        device=configuration["device"],
        means=limits.means,
        covariances=limits.covariances,
        outputs=outputs,
    )


def _curve(
    parts: dict[int, Part],
    request: Request,
    configuration: dict[str, Any],
    notes: tuple[str, ...],
    predictions: tuple[ScalePrediction, ...] | None = None,
) -> ErrorCurve:
    """The curve of the replicates that are there."""
    schedule = Schedule(request, configuration)
    complete = True
    while complete and (batch := schedule.next_batch(parts)) is not None:
        complete = all(replicate in parts for replicate in range(batch.start, batch.stop))
    ending = schedule.notes if complete else ()
    numbers = sorted(parts)
    shape = len(METRICS), len(configuration["scales"]), 0, len(configuration["sizes"])
    errors = np.stack([parts[r].errors for r in numbers], axis=2) if numbers else np.empty(shape)
    made_by = [parts[r].versions for r in numbers] or [versions()]
    mixed = any(other != made_by[0] for other in made_by)
    if mixed:
        ending += ("replicates were measured by different versions of the software",)
    return ErrorCurve(
        errors=dict(zip(METRICS, errors, strict=True)),
        replicates=np.array(numbers, dtype=np.int64),
        configuration=configuration,
        versions=made_by[0],
        complete=complete,
        notes=notes + ending,
        predictions=predictions,
    )
