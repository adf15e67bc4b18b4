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

from esscher.models import LoadedModel
from esscher.planning.arguments import PlanRequest
from esscher.planning.calibrate import (
    CORNERS,
    SWEPT_CORNERS,
    ObservedPassage,
    PassageEffects,
    budget_grid,
    measure_effects,
)
from esscher.planning.check import Budgets, PassageCheck
from esscher.planning.predict import Predicted, plan_tolerance, plan_total, plan_uniform
from esscher.runs import Cell, CellRun
from esscher.runs.progress import Reporter
from esscher.streams import random_stream
from esscher.text import Passage, TextSource, read_passages


def take_passages(
    loaded: LoadedModel,
    text: TextSource,
    count: int,
    request: PlanRequest,
    column: str | None = None,
) -> tuple[list[Passage], dict[str, Any]]:
    """Passages from the beginning of a text, and where they come from."""
    found = read_passages(
        loaded, text, tokens=count * request.length, context=request.length, column=column
    )
    about = {"source": found.source, "hash": found.text_hash}
    return list(found.passages)[:count], about


def budget_sizes(request: PlanRequest) -> NDArray[np.int64]:
    """Budgets at which effects are computed."""
    corners = SWEPT_CORNERS if request.measure else CORNERS
    return budget_grid(request.keys, request.keeping.count, corners)


def calibrate(
    loaded: LoadedModel,
    passages: Sequence[Passage],
    sizes: NDArray[np.int64],
    request: PlanRequest,
    run: CellRun,
    reporter: Reporter,
) -> list[PassageEffects]:
    """Effects of every budget on every calibration passage."""
    parts = []
    for i, passage in enumerate(passages):
        name = f"calibration-{i}"
        cell = run.read(name)
        if cell is None:
            observed = ObservedPassage(loaded, passage, request.prefix, request.keeping)
            bits = random_stream(request.seed, "plan gradients", i).integers(2**62)
            generator = torch.Generator().manual_seed(int(bits))
            cell = _effects_cell(measure_effects(observed, sizes, generator, request.measure))
            run.write(name, cell)
            reporter.advance()
        parts.append(_effects_of(cell))
    return parts


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
