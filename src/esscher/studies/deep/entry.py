"""``deep``: what is asked for is checked here, before torch and a model's weights are read."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from esscher.engine.models.choice import ModelChoice, ModelLike
from esscher.engine.text.documents import TextSource, check_text
from esscher.runs.executors import CellExecutor, Serial
from esscher.runs.place import check_run_place
from esscher.studies.deep.arguments import (
    GAUSSIAN,
    KIND,
    make_model_request,
    make_stack_request,
    refuse,
)

if TYPE_CHECKING:
    from esscher.studies.deep.result import Depth

#: Text unless one is given.
TEXT = "demo:docs"


def deep(
    model: ModelLike,
    text: TextSource | None = None,
    *,
    budgets: ArrayLike | None = None,
    context: int | None = None,
    passages: int | None = None,
    draws: int | None = None,
    mode: str | None = None,
    terciles: str | None = None,
    depth: int | None = None,
    dim: int | None = None,
    horizon: float | None = None,
    residual: float | None = None,
    output_scale: float | None = None,
    tau: float | None = None,
    sizes: ArrayLike | None = None,
    replicates: int | None = None,
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
) -> Depth:
    """Measure how the error of sampled attention travels through layers.

    Parameters
    ----------
    model
        Hub name, folder, GGUF file, ``"demo:minilm"``, ``"demo:smollm2"``, or a model in memory
        (see :func:`esscher.probe`); or ``"gaussian"`` for a random stack of attention layers on
        Gaussian tokens, whose limit is an exact recursion.
    text
        For models: see :func:`esscher.engine.text.read_text`; ``"demo:docs"`` if left out.
    budgets
        For models: numbers n of keys that are drawn; five up to half of the keys if left out.
    context, passages, draws
        For models: tokens of a passage (512; decoders 1024), number of passages (4), samples of
        each budget (2).
    mode
        For models: ``"independent"`` samples in every layer, the same tokens in all layers
        (``"shared"``), or ``"both"`` (default).
    terciles
        For models: subsample only a third of the heads at a time, by horizon: of all heads of the
        ``"model"`` (default), of each ``"layer"``, or ``"none"``.
    depth, dim, horizon, residual, output_scale, tau
        For ``"gaussian"``: see :func:`esscher.studies.deep.stack.random_stack`; 12, 8, 0.5,
        1, 0.5, 0.
    sizes, replicates
        For ``"gaussian"``: numbers of tokens n (256 to 8,192), and samples (32).
    seed
        Seed of samples, tokens and weights.
    column
        Column of a table that holds the text.
    device, dtype, revision, allow_pickle, allow_remote_code
        How to load the model.
    out
        Directory of the run; the same call resumes it.
    executor
        Who computes the cells: this process, or a cluster from :func:`esscher.connect_cluster` or
        :func:`esscher.start_cluster`.
    progress
        Whether to draw a bar; by default if standard error is a terminal.
    """
    for_models: dict[str, object] = {
        "text": text, "budgets": budgets, "context": context, "passages": passages,
        "draws": draws, "mode": mode, "terciles": terciles, "column": column,
        "revision": revision,
    }  # fmt: skip
    for_stacks: dict[str, object] = {
        "depth": depth, "dim": dim, "horizon": horizon, "residual": residual,
        "output_scale": output_scale, "tau": tau, "sizes": sizes, "replicates": replicates,
    }  # fmt: skip
    executor = executor or Serial()
    if isinstance(model, str) and model == GAUSSIAN:
        refuse(for_models, "models", "a Gaussian stack takes sizes and replicates")
        request = make_stack_request(
            depth=depth, dim=dim, horizon=horizon, residual=residual, output_scale=output_scale,
            tau=tau, sizes=sizes, replicates=replicates, seed=seed,
        )  # fmt: skip
        check_run_place(out, KIND, request.to_dict())
        from esscher.studies.deep.run import run_stack  # brings torch

        return run_stack(request, out, executor, progress)
    refuse(for_stacks, 'Gaussian stacks ("gaussian")', "a model takes budgets, passages and draws")
    choice = ModelChoice(model, device, dtype, revision, allow_pickle, allow_remote_code)
    choice.check_remote(executor.remote)
    ask = partial(
        make_model_request, budgets=budgets, context=context, passages=passages, draws=draws,
        mode=mode, terciles=terciles, seed=seed,
    )  # fmt: skip
    source = TEXT if text is None else text
    check_text(source, column)
    check_run_place(out, KIND, ask(choice.outline).to_dict())
    from esscher.studies.deep.run import run_model  # brings torch

    return run_model(choice, source, column, ask, out, executor, progress)
