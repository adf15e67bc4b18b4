"""The schedule of a sweep: batch after batch, until there are enough replicates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.runs.threads import one_blas_thread
from esscher.studies.sweep.measure import METRICS
from esscher.studies.sweep.precision import relative_covariance, slope_half_widths
from esscher.studies.sweep.schedule import Batch, WorkModel, next_batch

if TYPE_CHECKING:
    from esscher.studies.sweep.study import SweepStudy

#: The metric whose exponent a precision is about.
PRECISION_METRIC = "mean"


class Schedule:
    """Says which batch comes next, given the replicates that are there.

    ``notes`` is filled when the work ends before the precision is reached.
    """

    def __init__(self, study: SweepStudy, folder: Path) -> None:
        self._study, self._folder = study, folder
        self._sizes = np.asarray(study.sizes, dtype=np.float64)
        self._work = WorkModel.for_sizes(self._sizes, study.query_count)
        self.batches: list[Batch] = []
        self.notes: tuple[str, ...] = ()

    def next_batch(self, parts: Mapping[int, Array]) -> Batch | None:
        """The next batch, of which some replicates may be there; ``None`` at the end.

        ``parts`` are the errors of the replicates that are there, axes [metric, scale, size]. All
        of the batches before must be among them.
        """
        if not self.batches:
            following: Batch | None = Batch(0, self._study.replicates, len(self._sizes))
        else:
            following = self._another(parts)
        if following is not None:
            self.batches.append(following)
            self._check_depths(parts, following)
        return following

    def check(self, parts: Mapping[int, Array]) -> None:
        """Refuse replicates beyond those that are asked for."""
        end = self.batches[-1].stop if self.batches else self._study.replicates
        if self._study.precision is not None and not self.batches:
            return  # the end is not known yet
        if any(replicate >= end for replicate in parts):
            raise InputError(
                f"{self._folder} holds {len(parts)} replicates, more than the {end} asked for now; "
                f"ask for at least {max(parts) + 1}, or choose another directory"
            )

    def _another(self, parts: Mapping[int, Array]) -> Batch | None:
        precision, most = self._study.precision, self._study.max_replicates
        if precision is None or most is None:
            return None
        errors = self._errors(parts)
        with one_blas_thread():
            widths = slope_half_widths(errors, self._sizes, self._study.seed)
            widest = int(np.argmax(widths))
            if widths[widest] <= precision:
                return None
            left = most - self._work.spent(self.batches)
            following = next_batch(
                self.batches,
                np.log(self._sizes),
                relative_covariance(errors[widest]),
                self._work,
                left,
            )
        if following is None:
            self.notes = (
                f"after the work of {most} replicates the slope of the {PRECISION_METRIC} error is "
                f"known to +- {widths[widest]:.2g}, not to the +- {precision:g} asked for",
            )
        return following

    def _errors(self, parts: Mapping[int, Array]) -> Array:
        """Errors that the precision is about, axes [scale, replicate, size]."""
        metric = METRICS.index(PRECISION_METRIC)
        count = self.batches[-1].stop
        return np.stack([parts[r][metric] for r in range(count)], axis=1)

    def _check_depths(self, parts: Mapping[int, Array], batch: Batch) -> None:
        for replicate in parts:
            if not batch.start <= replicate < batch.stop:
                continue
            depth = int(np.isfinite(parts[replicate][0, 0]).sum())
            if depth != batch.depth:
                raise InputError(
                    f"{self._folder} holds replicate {replicate} up to size number {depth}, "
                    f"not {batch.depth}: it was begun with another number of replicates before "
                    "precision was judged; give the same one, or choose another directory"
                )
