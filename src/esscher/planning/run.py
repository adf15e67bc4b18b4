"""``plan``: budgets from one calibration pass, checked on text that it has not seen."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from esscher.atomic import write_atomically
from esscher.models import LoadedModel, load_for_tasks
from esscher.planning.arguments import PlanRequest, check_goal, make_request
from esscher.planning.compare import check_results
from esscher.planning.planned import KIND, PLAN, VERSION, Plan
from esscher.planning.predict import Predicted
from esscher.planning.selection import POWERS
from esscher.planning.stages import (
    budget_sizes,
    calibrate,
    check_plan,
    choose_budgets,
    take_passages,
)
from esscher.planning.words import headline
from esscher.runs import Cell, CellRun, open_run, run_folder
from esscher.runs.executors import CellExecutor, Serial
from esscher.runs.folder import LOG, as_json
from esscher.runs.progress import Reporter
from esscher.text import TextSource


def plan(
    model: str | LoadedModel,
    text: TextSource,
    *,
    check: TextSource | None = None,
    budget: float | None = None,
    tolerance: float | None = None,
    prefix: int | None = None,
    queries: int = 128,
    passages: int | None = None,
    check_passages: int = 16,
    measure: bool = False,
    seed: int = 0,
    column: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    allow_pickle: bool = False,
    allow_remote_code: bool = False,
    out: str | Path | None = None,
    executor: CellExecutor | None = None,
    progress: bool | None = None,
) -> Plan:
    """Token budgets of every key head, checked on unseen text.

    Parameters
    ----------
    model
        Hub name, folder, GGUF file, ``"demo:minilm"``, ``"demo:smollm2"``, or a loaded model.
    text
        Calibration text; see :func:`esscher.text.read_text`.
    check
        Text on which the plan is checked; no check if left out.
    budget
        Share of all tokens that is kept, over all layers and heads.
    tolerance
        Instead: relative output error that no head may exceed; the smallest budgets for it.
    prefix
        Tokens of a decoder's cache (default 4,096 or what the model allows), or of an encoder's
        passage (default 512 or what it allows).
    queries
        Tokens after the prefix at which a decoder's errors are measured.
    passages, check_passages
        Passages of the two texts, from their beginnings; by default a decoder is calibrated on 4,
        an encoder on 16.
    measure
        Measure what budgets cost by drawing samples of every size, instead of predicting it from
        one pass; slower, and more accurate where few tokens are left.
    seed
        Seed of the samples.
    column
        Column of a table that holds the text.
    device, dtype, revision, allow_pickle, allow_remote_code
        How to load the model.
    out
        Directory of the run; the same call resumes it. The plan is its ``plan.json``.
    executor
        Who computes the cells: this process, or a cluster from :func:`esscher.connect_cluster` or
        :func:`esscher.start_cluster`.
    progress
        Whether to draw a bar; by default if standard error is a terminal.
    """
    check_goal(budget, tolerance)
    executor = executor or Serial()
    loaded, shipped = load_for_tasks(
        executor.remote, model, device=device, dtype=dtype, revision=revision,
        allow_pickle=allow_pickle, allow_remote_code=allow_remote_code,
    )  # fmt: skip
    request = make_request(
        loaded, budget=budget, tolerance=tolerance, prefix=prefix, queries=queries,
        passages=passages, check_passages=None if check is None else check_passages,
        measure=measure, seed=seed,
    )  # fmt: skip
    calibration, source = take_passages(loaded, text, request.passages, request, column)
    held_out, other = (
        ([], None) if check is None
        else take_passages(loaded, check, request.check_passages, request, column)
    )  # fmt: skip
    configuration = asdict(request) | {
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
        "model": configuration["model"] | {"weight_hash": configuration["weight_hash"]},
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
