"""``plan``: budgets from one calibration pass, checked on text that it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from esscher.core.atomic import write_atomically
from esscher.core.codec import as_json
from esscher.engine.models import ModelChoice, Outline
from esscher.engine.models.same_weights import SAMPLE
from esscher.engine.reading import check_supported
from esscher.engine.text import TextSource
from esscher.runs import Cell, CellRun, open_run, run_folder
from esscher.runs.executors import CellExecutor
from esscher.runs.folder import LOG
from esscher.runs.progress import Reporter
from esscher.studies.plan.arguments import KIND, PlanRequest
from esscher.studies.plan.compare import check_results
from esscher.studies.plan.planned import PLAN, VERSION, Plan
from esscher.studies.plan.predict import Predicted
from esscher.studies.plan.selection import POWERS
from esscher.studies.plan.stages import (
    budget_sizes,
    calibrate,
    check_plan,
    choose_budgets,
    take_passages,
)
from esscher.studies.plan.words import headline


def run_plan(
    choice: ModelChoice,
    texts: tuple[TextSource, TextSource | None],
    column: str | None,
    ask: Callable[[Outline], PlanRequest],
    out: str | Path | None,
    executor: CellExecutor,
    progress: bool | None,
) -> Plan:
    """Load the model, make the plan and check it; see :func:`esscher.plan`."""
    loaded, shipped = choice.for_tasks(executor.remote, progress)
    check_supported(loaded)
    request = ask(loaded.outline)
    text, check = texts
    calibration, source = take_passages(loaded, text, request.passages, request, column)
    held_out, other = (
        ([], None) if check is None
        else take_passages(loaded, check, request.check_passages, request, column)
    )  # fmt: skip
    configuration = request.to_dict() | {
        **loaded.record,
        "text": source,
        "check": other,
    }
    subject = configuration["model"]["name"]
    with run_folder(out) as folder, open_run(folder, KIND, subject, configuration) as run:
        with Reporter(folder / LOG, progress, "passages") as reporter:
            reporter.expect(len(calibration) + len(held_out), len(run.names()))
            sizes = budget_sizes(request)
            parts = calibrate(shipped, calibration, sizes, request, run, reporter, executor)
            planned, uniform = choose_budgets(parts, sizes, request)
            cells = check_plan(
                shipped, held_out, planned, uniform, request, run, reporter, executor
            )
        results = _results(run, request, planned, uniform, cells, loaded.causal)
        run.write_results(results)
        write_atomically(folder / PLAN, as_json(results))
        return Plan(results)


def _results(
    run: CellRun,
    request: PlanRequest,
    planned: Predicted,
    uniform: Predicted,
    cells: list[Cell],
    causal: bool,
) -> dict[str, Any]:
    configuration = run.configuration
    check = check_results(cells, planned.head_error, causal) if cells else None
    results: dict[str, Any] = {
        "kind": KIND,
        "version": VERSION,
        "complete": True,
        "model": configuration["model"]
        | {name: configuration[name] for name in ("weight_hash", SAMPLE) if name in configuration},
        "prefix": request.keys,
        "keeping": asdict(request.keeping),
        "budgets": planned.budgets.tolist(),
        "ratios": (planned.budgets / request.keys).tolist(),
        "powers": np.array(POWERS)[planned.powers].tolist(),
        "total": {
            "tokens": int(planned.budgets.sum()),
            "ratio": float(planned.budgets.mean() / request.keys),
        },
        "predicted": {
            "unit": "KL in nats per token" if causal else "1 - cosine",
            "effect": planned.effect,
            "interval": None if planned.interval is None else list(planned.interval),
            "uniform_effect": uniform.effect,
            "head_error": planned.head_error.tolist(),
            "price": planned.price,
            "gap": planned.gap,
        },
        "check": check,
        "configuration": configuration,
        "versions": run.about["versions"],
        "created": run.about["created"],
    }
    return results | {"headline": headline(results)}
