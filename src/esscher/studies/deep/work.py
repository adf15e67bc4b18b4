"""What is computed: a replicate of a stack, or a passage and a way of sampling, is a cell."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.engine.models import AnyModel, LoadedModel, opened_model
from esscher.engine.reading import check_supported
from esscher.engine.text import Passage, PassageSet, whole_passages
from esscher.math.limits import GaussianStack, StackLimit
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell, CellRun
from esscher.runs.study import OneBatch
from esscher.studies.deep.horizons import head_horizons, split_terciles
from esscher.studies.deep.measure import PassageMeasurement
from esscher.studies.deep.records import TERCILES, DeepCell
from esscher.studies.deep.sampling import SampledPassage, certain_keys
from esscher.studies.deep.stack import measure_replicate
from esscher.studies.deep.study import DeepStackStudy, DeepStudy

#: By name of a variant: how its keys are drawn, and which heads by layer see the sample only (None
#: for all heads of all layers).
Variants: TypeAlias = Mapping[str, tuple[str, Mapping[int, Collection[int]] | None]]


def draw_stack(study: DeepStackStudy, executor: CellExecutor) -> OneBatch:
    """Draw the stack, and say so if it is impossible."""
    source = executor.share(study.stack())
    tasks = {
        name: Task(name, _replicate_cell, (source, study.sizes, number, study.seed))
        for number, name in enumerate(study.cells())
    }
    return OneBatch(study, tasks)


def _replicate_cell(
    source: tuple[GaussianStack, StackLimit], sizes: tuple[int, ...], replicate: int, seed: int
) -> Cell:
    stack, limit = source
    return measure_replicate(stack, limit, sizes, replicate, seed)


def read_text(
    study: DeepStudy, loaded: LoadedModel, model: AnyModel, executor: CellExecutor
) -> DeepWork:
    """Take as many whole passages as are asked for, with room for every size."""
    check_supported(loaded)
    found = whole_passages(
        loaded, study.text, count=study.passages, context=study.context, column=study.column
    )
    study = study.fitted(found, loaded.outline, context=found.context, passages=len(found))
    _check_sizes(study.sizes, [int(np.count_nonzero(~certain_keys(loaded, p))) for p in found])
    study = replace(study, model=loaded.record, text=found.record)
    return DeepWork(study, model, found, executor.remote)


def _check_sizes(sizes: tuple[int, ...], eligible: list[int]) -> None:
    """Refuse sizes that leave nothing out in some passage."""
    fewest = min(eligible)
    if sizes[-1] >= fewest:
        raise InputError(
            f"sizes go up to {sizes[-1]}, but passage {eligible.index(fewest)} has only {fewest} "
            "keys to draw from (all but the first one, delimiters and a decoder's last quarter); "
            f"give sizes below {fewest}"
        )


@dataclass(frozen=True, eq=False)
class DeepWork:
    """A model that is ready to be sampled: see :class:`esscher.runs.study.Work`."""

    study: DeepStudy
    model: AnyModel
    passages: PassageSet
    remote: bool

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield the horizons first: they say which heads are in which tercile."""
        study = self.study
        if study.terciles != "none":
            yield {"horizons": Task("horizons", _horizons_cell, (self.model, tuple(self.passages)))}
        dense = None if self.remote else DensePasses()  # workers have their own
        by_part: dict[str, Variants] = {way: {way: (way, None)} for way in study.ways}
        if study.terciles != "none":
            heads = split_terciles(_stored_horizons(run), study.terciles)
            by_part["terciles"] = {name: (study.ways[0], heads[name]) for name in TERCILES}
        yield {
            f"passage-{number}-{part}": Task(
                f"passage-{number}-{part}",
                _passage_cell,
                (self.model, passage, variants, study.sizes, study.draws, study.seed, dense),
            )
            for number, passage in enumerate(self.passages)
            for part, variants in by_part.items()
        }


def _horizons_cell(model: AnyModel, passages: tuple[Passage, ...]) -> Cell:
    """Horizon of every head, mean over the passages."""
    with opened_model(model) as loaded:
        found = [head_horizons(SampledPassage(loaded, passage)) for passage in passages]
    rows = np.asarray(np.mean(found, axis=0)).tolist()
    return Cell(DeepCell(horizons=tuple(tuple(row) for row in rows)))


def _stored_horizons(run: CellRun) -> Array:
    part = run.read("horizons")
    assert part is not None  # stored before anything that needs it
    if part.about.horizons is None:
        raise run.damaged("horizons", "it has no horizons")
    return np.array(part.about.horizons)


class DensePasses:
    """The dense pass of the last passage, which serves several cells."""

    def __init__(self) -> None:
        self._last: tuple[LoadedModel, tuple[int, bytes], PassageMeasurement] | None = None

    def of(self, loaded: LoadedModel, passage: Passage) -> PassageMeasurement:
        """The passage, read by the model."""
        # the number too: samples depend on it, and passages of a text may be equal
        which = passage.number, passage.ids.tobytes()
        if self._last is None or self._last[0] is not loaded or self._last[1] != which:
            self._last = None  # two passages need not be in memory together
            self._last = (loaded, which, PassageMeasurement(SampledPassage(loaded, passage)))
        return self._last[2]


#: That of a worker of a cluster.
_DENSE = DensePasses()


def _passage_cell(
    model: AnyModel,
    passage: Passage,
    variants: Variants,
    sizes: tuple[int, ...],
    draws: int,
    seed: int,
    dense: DensePasses | None,
) -> Cell:
    """Some variants on one passage."""
    with opened_model(model) as loaded:
        measured = (_DENSE if dense is None else dense).of(loaded, passage)
        return measured.cell(variants, sizes, draws, seed)
