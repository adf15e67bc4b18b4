"""The stages of a plan: passages, what they tell, the budgets, and the check on unseen ones.

Stored passage by passage: what has been computed is read, not computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from esscher.core.streams import random_stream
from esscher.engine.models import AnyModel, LoadedModel, opened_model
from esscher.engine.text import Passage, TextSource, read_passages
from esscher.runs import Cell, CellRun
from esscher.runs.executors import CellExecutor, Serial, Task, compute_cells
from esscher.runs.progress import Reporter
from esscher.studies.plan.arguments import PlanRequest
from esscher.studies.plan.calibrate import (
    CORNERS,
    SWEPT_CORNERS,
    ObservedPassage,
    PassageEffects,
    budget_grid,
    measure_effects,
)
from esscher.studies.plan.check import Budgets, PassageCheck
from esscher.studies.plan.predict import Predicted, plan_tolerance, plan_total, plan_uniform


def take_passages(
    loaded: LoadedModel,
    text: TextSource,
    count: int,
    request: PlanRequest,
    column: str | None = None,
) -> tuple[list[Passage], dict[str, Any]]:
    """Passages from the beginning of a text, and where they come from."""
    found = read_passages(
        loaded, text, tokens=count * request.length, context=request.length, column=column,
        passages=count,
    )  # fmt: skip
    about = {"source": found.source, "hash": found.text_hash}
    return list(found.passages)[:count], about


def budget_sizes(request: PlanRequest) -> NDArray[np.int64]:
    """Budgets at which effects are computed."""
    corners = SWEPT_CORNERS if request.measure else CORNERS
    return budget_grid(request.keys, request.keeping.count, corners)


def calibrate(
    model: AnyModel,
    passages: Sequence[Passage],
    sizes: NDArray[np.int64],
    request: PlanRequest,
    run: CellRun,
    reporter: Reporter,
    executor: CellExecutor | None = None,
) -> list[PassageEffects]:
    """Effects of every budget on every calibration passage."""
    names = [f"calibration-{i}" for i in range(len(passages))]

    def task(name: str) -> Task:
        i = names.index(name)
        return Task(name, _calibration_cell, (model, passages[i], i, sizes, request))

    compute_cells(run, names, task, reporter, executor, expected=True)
    return [_effects_of(cell) for name in names if (cell := run.read(name)) is not None]


def _calibration_cell(
    model: AnyModel, passage: Passage, i: int, sizes: NDArray[np.int64], request: PlanRequest
) -> Cell:
    with opened_model(model) as loaded:
        observed = ObservedPassage(loaded, passage, request.prefix, request.keeping)
        bits = random_stream(request.seed, "plan gradients", i).integers(2**62)
        generator = torch.Generator().manual_seed(int(bits))
        return _effects_cell(measure_effects(observed, sizes, generator, request.measure))


def check_plan(
    model: AnyModel,
    passages: Sequence[Passage],
    planned: Predicted,
    uniform: Predicted,
    request: PlanRequest,
    run: CellRun,
    reporter: Reporter,
    executor: CellExecutor | None = None,
) -> list[Cell]:
    """Measure a plan and what it is compared with on every unseen passage."""
    names = [f"check-{i}" for i in range(len(passages))]
    executor = executor or Serial()
    choice = executor.share((planned, uniform)) if passages else None

    def task(name: str) -> Task:
        return Task(name, _check_cell, (model, passages[names.index(name)], choice, request))

    compute_cells(run, names, task, reporter, executor, expected=True)
    return [cell for name in names if (cell := run.read(name)) is not None]


def _check_cell(
    model: AnyModel,
    passage: Passage,
    choice: tuple[Predicted, Predicted],
    request: PlanRequest,
) -> Cell:
    with opened_model(model) as loaded:
        return check_passage(loaded, passage, {"plan": choice}, request)["plan"]


def choose_budgets(
    parts: list[PassageEffects], sizes: NDArray[np.int64], request: PlanRequest
) -> tuple[Predicted, Predicted]:
    """Budgets of the plan, and uniform ones with as many tokens in all."""
    if request.tolerance is not None:
        planned = plan_tolerance(parts, sizes, request.tolerance)
    else:
        units = int(np.prod(parts[0].effect.shape[:2]))
        assert request.budget is not None
        planned = plan_total(parts, sizes, int(request.budget * request.keys) * units)
    # what rounding leaves over is part of the plan, so uniform budgets may have it as well
    return planned, plan_uniform(parts, sizes, int(planned.budgets.mean()))


def check_passage(
    loaded: LoadedModel,
    passage: Passage,
    choices: Mapping[str, tuple[Predicted, Predicted]],
    request: PlanRequest,
) -> dict[str, Cell]:
    """Measure plans and what they are compared with on one unseen passage, which is read once.

    Parameters
    ----------
    loaded, passage
        Model and passage.
    choices
        Planned and uniform budgets, by name.
    request
        What the plans were asked for; their budget or tolerance does not matter here.
    """
    observed = ObservedPassage(loaded, passage, request.prefix, request.keeping)
    check = PassageCheck(observed, request.seed, request.draws)
    return {
        name: check.cell(
            Budgets(planned.budgets, planned.powers), Budgets(uniform.budgets, uniform.powers)
        )
        for name, (planned, uniform) in choices.items()
    }


def _effects_cell(effects: PassageEffects) -> Cell:
    """One row per number; axes are kept beside them."""
    arrays = {"effect": effects.effect, "square": effects.square, "norm": effects.norm}
    table = pd.concat(
        [pd.DataFrame({"what": name, "value": a.ravel()}) for name, a in arrays.items()],
        ignore_index=True,
    )
    return Cell({"shapes": {name: list(a.shape) for name, a in arrays.items()}}, table)


def _effects_of(cell: Cell) -> PassageEffects:
    arrays = {}
    for name, shape in cell.about["shapes"].items():
        own = cell.table[cell.table["what"] == name]["value"]
        arrays[name] = own.to_numpy(dtype=np.float64).reshape(shape)
    return PassageEffects(**arrays)
