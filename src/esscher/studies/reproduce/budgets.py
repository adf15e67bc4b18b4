"""Plans at several budgets, calibrated on one text and checked on several others.

The same stages as ``esscher plan``. Calibration does not depend on the budget, and an unseen
passage is read once for all budgets, so that this costs little more than one plan with its check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from esscher.core.errors import InputError
from esscher.engine.models import LoadedModel, ModelChoice, ModelLike
from esscher.engine.text import Passage, TextSource, check_text
from esscher.runs import Cell, CellRun, open_run, read_run
from esscher.runs.executors import Task, compute_cells
from esscher.runs.folder import LOG
from esscher.runs.place import check_run_place
from esscher.runs.progress import Reporter
from esscher.studies.plan.arguments import PlanRequest, make_request
from esscher.studies.plan.compare import check_results
from esscher.studies.plan.predict import Predicted
from esscher.studies.plan.stages import (
    budget_sizes,
    calibrate,
    check_passage,
    choose_budgets,
    take_passages,
)

KIND = "budgets"
#: Planned and uniform budgets, by share of the tokens kept (as text: keys of JSON).
Choices = dict[str, tuple[Predicted, Predicted]]


def budget_study(
    model: ModelLike,
    text: TextSource,
    checks: Mapping[str, TextSource],
    *,
    budgets: Sequence[float] = (0.125, 0.25, 0.5),
    prefix: int | None = None,
    queries: int | None = None,
    passages: int | None = None,
    check_passages: int = 16,
    seed: int = 0,
    out: str | Path,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Plan at every budget from one calibration, check each plan on every text.

    Parameters
    ----------
    model, text, prefix, queries, passages, check_passages, seed, progress
        As for :func:`esscher.plan`.
    checks
        Unseen texts, by name.
    budgets
        Shares of the tokens kept.
    out
        Directory of the run; the same call resumes it.
    """
    if not budgets or not checks:
        raise InputError("give at least one budget and one text to check plans on")
    for source in (text, *checks.values()):
        check_text(source)
    choice = ModelChoice(model)
    check_run_place(out, KIND)
    requests = {
        f"{budget:g}": make_request(
            choice.outline, budget=budget, tolerance=None, prefix=prefix, queries=queries,
            passages=passages, check_passages=check_passages, measure=False, seed=seed,
        )
        for budget in budgets
    }  # fmt: skip
    request = next(iter(requests.values()))
    loaded = choice.load()
    calibration, source = take_passages(loaded, text, request.passages, request)
    unseen = {
        name: take_passages(loaded, other, request.check_passages, request)
        for name, other in checks.items()
    }
    configuration = asdict(replace(request, budget=None)) | {
        "budgets": list(budgets),
        **loaded.record,
        "text": source,
        "checks": {name: about for name, (_, about) in unseen.items()},
    }
    folder = Path(out)
    subject = configuration["model"]["name"]
    with open_run(folder, KIND, subject, configuration) as run:
        with Reporter(folder / LOG, progress, "passages") as reporter:
            total = len(calibration) + sum(len(found) for found, _ in unseen.values())
            reporter.expect(total, len(run.names()))
            sizes = budget_sizes(request)
            parts = calibrate(loaded, calibration, sizes, request, run, reporter)
            choices = {name: choose_budgets(parts, sizes, r) for name, r in requests.items()}
            for name, (found, _) in unseen.items():
                _check(loaded, name, found, choices, request, run, reporter)
        results = _results(run, choices, loaded.causal)
        run.write_results(results)
        return results


def load_budget_study(out: str | Path) -> dict[str, Any]:
    """Read the results of a finished study."""
    results = read_run(Path(out), KIND).read_results()
    if results is None:
        raise InputError(f"the study in {out} is not finished; run it again, it resumes")
    return results


def _check(
    loaded: LoadedModel,
    text: str,
    passages: Sequence[Passage],
    choices: Choices,
    request: PlanRequest,
    run: CellRun,
    reporter: Reporter,
) -> None:
    unseen = {f"check-{text}-{i}": passage for i, passage in enumerate(passages)}

    def task(name: str) -> Task:
        return Task(name, _check_cell, (loaded, unseen[name], choices, request))

    compute_cells(run, list(unseen), task, reporter, expected=True)


def _check_cell(
    loaded: LoadedModel, passage: Passage, choices: Choices, request: PlanRequest
) -> Cell:
    """Checks of all budgets on one passage as one cell."""
    found = check_passage(loaded, passage, choices, request)
    tables = [cell.table.assign(budget=name) for name, cell in found.items()]
    about = {name: cell.about for name, cell in found.items()}
    return Cell({"budgets": about}, pd.concat(tables, ignore_index=True))


def _only(cell: Cell, budget: str) -> Cell:
    own = cell.table[cell.table["budget"] == budget].drop(columns="budget")
    return Cell(cell.about["budgets"][budget], own.reset_index(drop=True))


def _results(run: CellRun, choices: Choices, causal: bool) -> dict[str, Any]:
    configuration = run.configuration
    found = []
    for text in configuration["checks"]:
        names = [f"check-{text}-{i}" for i in range(configuration["check_passages"])]
        cells = [cell for name in names if (cell := run.read(name)) is not None]
        for budget, (planned, uniform) in choices.items():
            own = [_only(cell, budget) for cell in cells]
            found.append(
                {
                    "text": text,
                    "budget": float(budget),
                    "predicted": planned.effect,
                    "predicted_interval": planned.interval and list(planned.interval),
                    "predicted_uniform": uniform.effect,
                    "gap": planned.gap,
                    "check": check_results(own, planned.head_error, causal),
                }
            )
    return {
        "kind": KIND,
        "complete": True,
        "configuration": configuration,
        "versions": run.about["versions"],
        "created": run.about["created"],
        "budgets": {
            name: {
                "tokens": planned.budgets.tolist(),
                "smallest": int(planned.budgets.min()),
                "largest": int(planned.budgets.max()),
                "mean": float(np.mean(planned.budgets)),
            }
            for name, (planned, _) in choices.items()
        },
        "found": found,
    }
