"""``plan``: budgets from one calibration pass, checked on text that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from esscher.atomic import write_atomically
from esscher.models import LoadedModel, as_loaded
from esscher.planning.arguments import PlanRequest, make_request
from esscher.planning.calibrate import (
    ObservedPassage,
    PassageEffects,
    budget_grid,
    measure_effects,
)
from esscher.planning.check import Budgets, PassageCheck
from esscher.planning.compare import check_results
from esscher.planning.planned import KIND, VERSION, Plan
from esscher.planning.predict import Predicted, plan_tolerance, plan_total, plan_uniform
from esscher.planning.selection import POWERS
from esscher.planning.words import headline
from esscher.runs import Cell, CellRun, open_run, run_folder
from esscher.runs.folder import LOG, as_json
from esscher.runs.progress import Reporter
from esscher.streams import random_stream
from esscher.text import Passage, TextSource, read_passages

#: Name of the plan's file in a run's directory.
PLAN = "plan.json"


def plan(
    model: str | LoadedModel,
    text: TextSource,
    *,
    check: TextSource | None = None,
    budget: float | None = None,
    tolerance: float | None = None,
    prefix: int | None = None,
    queries: int = 128,
    passages: int = 4,
    check_passages: int = 16,
    seed: int = 0,
    column: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    allow_pickle: bool = False,
    allow_remote_code: bool = False,
    out: str | Path | None = None,
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
        Passages of the two texts, from their beginnings.
    seed
        Seed of the samples.
    column
        Column of a table that holds the text.
    device, dtype, revision, allow_pickle, allow_remote_code
        How to load the model.
    out
        Directory of the run; the same call resumes it. The plan is its ``plan.json``.
    progress
        Whether to draw a bar; by default if standard error is a terminal.
    """
    loaded = as_loaded(
        model, device=device, dtype=dtype, revision=revision, allow_pickle=allow_pickle,
        allow_remote_code=allow_remote_code,
    )  # fmt: skip
    request = make_request(
        loaded, budget=budget, tolerance=tolerance, prefix=prefix, queries=queries,
        passages=passages, check_passages=0 if check is None else check_passages, seed=seed,
    )  # fmt: skip
    calibration, source = _passages(loaded, text, request.passages, request, column)
    held_out, other = (
        ([], None) if check is None
        else _passages(loaded, check, request.check_passages, request, column)
    )  # fmt: skip
    configuration = asdict(request) | {
        "model": loaded.summary | {"name": Path(loaded.name).name},
        "weight_hash": loaded.weight_hash,
        "text": source,
        "check": other,
    }
    subject = configuration["model"]["name"]
    with run_folder(out) as folder, open_run(folder, KIND, subject, configuration) as run:
        with Reporter(folder / LOG, progress, "passages") as reporter:
            reporter.expect(len(calibration) + len(held_out), len(run.names()))
            sizes = budget_grid(request.keys, request.keeping.count)
            parts = _calibrate(loaded, calibration, sizes, request, run, reporter)
            planned = _planned(parts, sizes, request)
            # what rounding leaves over is part of the plan, so uniform budgets may have it as well
            each = int(planned.budgets.mean())
            uniform = plan_uniform(parts, sizes, each)
            cells = _check(loaded, held_out, planned, uniform, request, run, reporter)
        results = _results(run, request, planned, uniform, cells, loaded.causal)
        run.write_results(results)
        write_atomically(folder / PLAN, as_json(results))
        return Plan(results)


def _passages(
    loaded: LoadedModel,
    text: TextSource,
    count: int,
    request: PlanRequest,
    column: str | None,
) -> tuple[list[Passage], dict[str, Any]]:
    found = read_passages(
        loaded, text, tokens=count * request.length, context=request.length, column=column
    )
    about = {"source": found.source, "hash": found.text_hash}
    return list(found.passages)[:count], about


def _calibrate(
    loaded: LoadedModel,
    passages: Sequence[Passage],
    sizes: NDArray[np.int64],
    request: PlanRequest,
    run: CellRun,
    reporter: Reporter,
) -> list[PassageEffects]:
    parts = []
    for i, passage in enumerate(passages):
        name = f"calibration-{i}"
        cell = run.read(name)
        if cell is None:
            observed = ObservedPassage(loaded, passage, request.prefix, request.keeping)
            bits = random_stream(request.seed, "plan gradients", i).integers(2**62)
            generator = torch.Generator().manual_seed(int(bits))
            cell = _effects_cell(measure_effects(observed, sizes, generator))
            run.write(name, cell)
            reporter.advance()
        parts.append(_effects_of(cell))
    return parts


def _planned(
    parts: list[PassageEffects], sizes: NDArray[np.int64], request: PlanRequest
) -> Predicted:
    if request.tolerance is not None:
        return plan_tolerance(parts, sizes, request.tolerance)
    units = int(np.prod(parts[0].effect.shape[:2]))
    assert request.budget is not None
    return plan_total(parts, sizes, int(request.budget * request.keys) * units)


def _check(
    loaded: LoadedModel,
    passages: Sequence[Passage],
    planned: Predicted,
    uniform: Predicted,
    request: PlanRequest,
    run: CellRun,
    reporter: Reporter,
) -> list[Cell]:
    cells = []
    for i, passage in enumerate(passages):
        name = f"check-{i}"
        cell = run.read(name)
        if cell is None:
            observed = ObservedPassage(loaded, passage, request.prefix, request.keeping)
            cell = PassageCheck(observed, request.seed).cell(
                Budgets(planned.budgets, planned.powers), Budgets(uniform.budgets, uniform.powers)
            )
            run.write(name, cell)
            reporter.advance()
        cells.append(cell)
    return cells


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
