"""``plan``: what is asked for is checked here, before torch and a model's weights are read."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from esscher.engine.models.choice import ModelChoice, ModelLike
from esscher.engine.text.documents import TextSource, check_text
from esscher.runs.executors import CellExecutor, Serial
from esscher.runs.place import check_run_place
from esscher.studies.plan.arguments import KIND, check_goal, make_request

if TYPE_CHECKING:
    from esscher.studies.plan.planned import Plan


def plan(
    model: ModelLike,
    text: TextSource,
    *,
    check: TextSource | None = None,
    budget: float | None = None,
    tolerance: float | None = None,
    prefix: int | None = None,
    queries: int | None = None,
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
        Hub name, folder, GGUF file, ``"demo:minilm"``, ``"demo:smollm2"``, or a model in
        memory: one of transformers, or :func:`esscher.wrap_model` of it with its tokenizer.
    text
        Calibration text; see :func:`esscher.engine.text.read_text`.
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
        Tokens after the prefix at which a decoder's errors are measured (default 128, at most a
        quarter of what the model reads).
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
    executor = executor or Serial()
    check_goal(budget, tolerance)
    choice = ModelChoice(model, device, dtype, revision, allow_pickle, allow_remote_code)
    choice.check_remote(executor.remote)
    ask = partial(
        make_request, budget=budget, tolerance=tolerance, prefix=prefix, queries=queries,
        passages=passages, check_passages=None if check is None else check_passages,
        measure=measure, seed=seed,
    )  # fmt: skip
    for source in (text,) if check is None else (text, check):
        check_text(source, column)
    check_run_place(out, KIND, ask(choice.outline).to_dict())
    from esscher.studies.plan.run import run_plan  # brings torch

    return run_plan(choice, (text, check), column, ask, out, executor, progress)
