"""What is computed: calibration passages, budgets from them, and the check on unseen passages.

A passage is a cell. The check needs the budgets, so that its cells come after all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from esscher.core.streams import random_stream
from esscher.engine.cache.budgets import POWERS, Grid
from esscher.engine.cache.cache import check_reducible
from esscher.engine.models import AnyModel, LoadedModel, opened_model
from esscher.engine.reading import check_supported
from esscher.engine.text import Passage
from esscher.engine.text.packing import first_passages
from esscher.runs.cells import Cell, CellRun
from esscher.runs.executors import CellExecutor, Task
from esscher.studies.plan.calibrate import (
    CORNERS,
    SWEPT_CORNERS,
    ObservedPassage,
    PassageEffects,
    budget_grid,
    measure_effects,
)
from esscher.studies.plan.check import Budgets, PassageCheck
from esscher.studies.plan.compare import check_results, check_tables
from esscher.studies.plan.predict import Predicted, plan_tolerance, plan_total, plan_uniform
from esscher.studies.plan.result import VERSION, Plan, PlanCell, Prediction, Shapes, Total
from esscher.studies.plan.study import PlanStudy
from esscher.studies.plan.words import headline

#: Planned and uniform budgets.
Choice: TypeAlias = tuple[Predicted, Predicted]


def read_texts(
    study: PlanStudy, loaded: LoadedModel, model: AnyModel, executor: CellExecutor
) -> PlanWork:
    """Take passages from the beginnings of the texts."""
    check_supported(loaded)
    if loaded.causal:
        check_reducible(loaded)
    calibration = first_passages(loaded, study.text, study.passages, study.length, study.column)
    unseen: tuple[Passage, ...] = ()
    if study.check is not None:
        other = first_passages(
            loaded, study.check, study.check_passages, study.length, study.column
        )
        study, unseen = replace(study, check=other.record), other.passages
    study = replace(study, model=loaded.record, text=calibration.record)
    return PlanWork(study, model, calibration.passages, unseen, executor)


@dataclass(frozen=True, eq=False)
class PlanWork:
    """A plan, ready to be made: see :class:`esscher.runs.study.Work`."""

    study: PlanStudy
    model: AnyModel
    calibration: tuple[Passage, ...]
    unseen: tuple[Passage, ...]
    executor: CellExecutor

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield calibration passages, then those of the check."""
        # an executor stays in this process
        study = replace(self.study, out=None, executor=None)
        names = study.calibration_cells
        yield {
            name: Task(name, _calibration_cell, (self.model, passage, i, study))
            for i, (name, passage) in enumerate(zip(names, self.calibration, strict=True))
        }
        if not self.unseen or not run.missing(study.check_cells):
            return
        found = {name: cell for name in names if (cell := run.read(name)) is not None}
        choice = self.executor.share(choose_budgets(study, found, run))
        yield {
            name: Task(name, _check_cell, (self.model, passage, choice, study))
            for name, passage in zip(study.check_cells, self.unseen, strict=True)
        }


def _calibration_cell(model: AnyModel, passage: Passage, i: int, study: PlanStudy) -> Cell:
    with opened_model(model) as loaded:
        observed = ObservedPassage(loaded, passage, study.prefix, study.keeping)
        bits = random_stream(study.seed, "plan gradients", i).integers(2**62)
        generator = torch.Generator().manual_seed(int(bits))
        effects = measure_effects(observed, budget_sizes(study), generator, study.sampled)
    # one row per number; axes are kept beside them
    arrays = {"effect": effects.effect, "square": effects.square, "norm": effects.norm}
    table = pd.concat(
        [pd.DataFrame({"what": name, "value": a.ravel()}) for name, a in arrays.items()],
        ignore_index=True,
    )
    shapes = Shapes(**{name: tuple(a.shape) for name, a in arrays.items()})
    return Cell(PlanCell(shapes=shapes, sliding=effects.sliding), table)


def _check_cell(model: AnyModel, passage: Passage, choice: Choice, study: PlanStudy) -> Cell:
    with opened_model(model) as loaded:
        observed = ObservedPassage(loaded, passage, study.prefix, study.keeping)
        planned, uniform = (Budgets(found.budgets, found.powers) for found in choice)
        return PassageCheck(observed, study.seed, study.draws).cell(planned, uniform)


def budget_sizes(study: PlanStudy) -> NDArray[np.int64]:
    """Budgets at which effects are computed."""
    corners = SWEPT_CORNERS if study.sampled else CORNERS
    return budget_grid(study.prefix, study.keeping.count, corners)


def choose_budgets(study: PlanStudy, cells: Mapping[str, Cell], run: CellRun) -> Choice:
    """Budgets of the plan, and uniform ones with as many tokens in all."""
    sizes = budget_sizes(study)
    parts = [
        _effects_of(study, name, cells[name], len(sizes), run) for name in study.calibration_cells
    ]
    layers = planned_layers(study, cells)
    parts = [part.of_layers(layers) for part in parts]
    if study.tolerance is not None:
        planned = plan_tolerance(parts, sizes, study.tolerance)
    else:
        units = len(layers) * study.model_record.key_heads
        assert study.budget is not None
        planned = plan_total(parts, sizes, int(study.budget * study.prefix) * units)
    # what rounding leaves over is part of the plan, so uniform budgets may have it as well
    uniform = plan_uniform(parts, sizes, int(planned.budgets.mean()))
    count = study.model_record.layers
    return planned.among(layers, count, study.prefix), uniform.among(layers, count, study.prefix)


def planned_layers(study: PlanStudy, cells: Mapping[str, Cell]) -> NDArray[np.int64]:
    """Layers whose keys are reduced: those without a sliding window."""
    sliding = set(cells[study.calibration_cells[0]].about.sliding)
    return np.array([i for i in range(study.model_record.layers) if i not in sliding])


def _effects_of(
    study: PlanStudy, name: str, cell: Cell, sizes: int, run: CellRun
) -> PassageEffects:
    """Effects of budgets on a calibration passage, as they are stored."""
    model, about = study.model_record, cell.about
    wanted = {
        "effect": (model.layers, model.key_heads, len(POWERS), sizes),
        "square": (model.layers, model.heads, len(POWERS), sizes),
        "norm": (model.layers, model.heads),
    }
    if about.shapes is None or not {"what", "value"} <= set(cell.table.columns):
        raise run.damaged(name, "it has no effects")
    arrays: dict[str, Any] = {}
    for what, shape in wanted.items():
        own = cell.table[cell.table["what"] == what]["value"]
        if getattr(about.shapes, what) != shape or len(own) != np.prod(shape):
            raise run.damaged(name, f"its {what} is not one per layer, head, power and size")
        arrays[what] = own.to_numpy(dtype=np.float64).reshape(shape)
    if len(set(about.sliding)) >= model.layers or any(i >= model.layers for i in about.sliding):
        raise run.damaged(name, "its layers with a window are not those of the model")
    return PassageEffects(**arrays, sliding=about.sliding)


def assemble(study: PlanStudy, cells: Mapping[str, Cell], run: CellRun) -> Plan:
    """Choose budgets, and say what they cost."""
    planned, uniform = choose_budgets(study, cells, run)
    unseen = {name: cells[name] for name in study.check_cells}
    check_tables(study, unseen, run)
    check = None
    if unseen:
        check = check_results(list(unseen.values()), planned.head_error, study.causal)
    counted = planned.budgets[planned_layers(study, cells)]
    total = Total(tokens=int(counted.sum()), ratio=float(counted.mean() / study.prefix))
    predicted = Prediction(
        unit="KL in nats per token" if study.causal else "1 - cosine",
        effect=planned.effect,
        interval=planned.interval,
        uniform_effect=uniform.effect,
        head_error=_grid(planned.head_error),
        price=planned.price,
        gap=planned.gap,
    )
    budgets = tuple(tuple(row) for row in planned.budgets.tolist())
    return Plan.of(
        run,
        study,
        len(cells),
        headline(budgets, study.prefix, total.ratio, predicted, check),
        version=VERSION,
        model=study.model_record,
        prefix=study.prefix,
        keeping=study.keeping,
        budgets=budgets,
        ratios=_grid(planned.budgets / study.prefix),
        powers=_grid(np.array(POWERS)[planned.powers]),
        total=total,
        predicted=predicted,
        check=check,
    )


def _grid(values: NDArray[np.float64]) -> Grid:
    return tuple(tuple(row) for row in values.tolist())
