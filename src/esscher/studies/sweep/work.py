"""What is computed: a replicate is a cell; batch after batch, until there are enough of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from esscher.core.validation import Array
from esscher.math.heads import Head
from esscher.runs.executors import CellExecutor, Task, one_blas_thread
from esscher.runs.folder import Cell, CellRun
from esscher.runs.provenance import versions
from esscher.studies.sweep.cells import (
    LIMIT,
    PREDICTIONS,
    Predictions,
    Replicate,
    cell_name,
    limit_cell,
    replicate_cell,
    replicate_errors,
    stored_limit,
    stored_predictions,
)
from esscher.studies.sweep.measure import METRICS, Plan, measure_replicate
from esscher.studies.sweep.predictions import predict_scales
from esscher.studies.sweep.reference import (
    Reference,
    measured_head,
    reference_moments,
    reference_notes,
    reference_outputs,
)
from esscher.studies.sweep.schedule import Schedule
from esscher.studies.sweep.study import SweepStudy


@dataclass(frozen=True, eq=False)
class SweepWork:
    """A sweep that is ready: see :class:`esscher.runs.study.Work`.

    Attributes
    ----------
    study
        The sweep, with a record of its head.
    head
        The head.
    executor
        Who computes.
    """

    study: SweepStudy
    head: Head
    executor: CellExecutor

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield replicates; with a precision, further batches follow from what was measured.

        The limit is stored before the first of them, predictions after the last.
        """
        study = self.study
        schedule = Schedule(study, run.folder)
        known = replicate_errors(study.stored(run), study, run)
        schedule.check(known)
        limit = stored_limit(run, study) or self._limit(run)
        plan = None
        while (batch := schedule.next_batch(known)) is not None:
            missing = [n for n in range(batch.start, batch.stop) if n not in known]
            if not missing:
                continue
            if plan is None:
                plan = self.executor.share(self._plan(limit))
            names = [cell_name(number) for number in missing]
            yield {
                name: Task(name, measure_cell, (plan, number, batch.depth))
                for name, number in zip(names, missing, strict=True)
            }
            if study.precision is not None:  # what comes next depends on it
                new = {name: cell for name in names if (cell := run.read(name)) is not None}
                known |= replicate_errors(new, study, run)
        schedule.check(known)
        if study.predict and stored_predictions(run, study) is None:
            with one_blas_thread():
                found = predict_scales(self.head, study)
            run.write(PREDICTIONS, Cell(Predictions(scales=found)))

    @cached_property
    def drawn(self) -> Head:
        """The head whose tokens are drawn."""
        return measured_head(self.head, self.study)

    @cached_property
    def outputs(self) -> Array | None:
        """The limit's outputs at all rows of a head from arrays."""
        with one_blas_thread():
            return reference_outputs(self.drawn, self.study)

    def _limit(self, run: CellRun) -> Reference:
        """Compute the limit and store it: a resumed run compares with the very same numbers."""
        with one_blas_thread():
            notes = reference_notes(self.head, self.study)
            found = reference_moments(self.drawn, self.outputs, self.study)
        limit = replace(found, extra_notes=notes)
        run.write(LIMIT, limit_cell(limit))
        return limit

    def _plan(self, limit: Reference) -> Plan:
        study = self.study
        return Plan(
            head=self.drawn,
            sizes=study.sizes,
            scales=study.alpha,
            seed=study.seed,
            queries=study.queries,
            query_count=study.query_count,
            dtype=study.dtype,
            device=study.device,
            means=limit.means,
            covariances=limit.covariances,
            outputs=self.outputs,
        )


def measure_cell(plan: Plan, replicate: int, depth: int) -> Cell:
    """Measure one replicate at the first ``depth`` sizes, in this process or in another one."""
    start = time.perf_counter()
    errors: Array = np.full((len(METRICS), len(plan.scales), len(plan.sizes)), np.nan)
    errors[..., :depth] = measure_replicate(plan.up_to(depth), replicate)
    about = Replicate(versions=versions(), seconds=time.perf_counter() - start, depth=depth)
    return replicate_cell(plan.scales, plan.sizes, replicate, errors, about)
