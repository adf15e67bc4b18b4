"""``tails``: what is asked for is checked here, before torch and a model's weights are read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from esscher.engine.models.choice import ModelChoice, ModelLike
from esscher.engine.text.documents import TextSource, check_text
from esscher.runs.executors import CellExecutor, Serial
from esscher.runs.place import check_run_place
from esscher.studies.tails.arguments import KIND, TOKENS, make_request

if TYPE_CHECKING:
    from esscher.studies.tails.result import Tails


def tails(
    model: ModelLike,
    text: TextSource,
    *,
    tokens: int = TOKENS,
    context: int | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
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
) -> Tails:
    """Test the sub-Gaussian assumption on the keys of every head and the tokens of every layer.

    Parameters
    ----------
    model
        Hub name, folder, GGUF file, ``"demo:minilm"``, ``"demo:smollm2"``, or a model in
        memory: one of transformers, or :func:`esscher.wrap_model` of it with its tokenizer.
    text
        File, folder, ``"-"``, ``"demo:docs"``, ``"demo:code"``, ...
    tokens, context
        Text tokens in all, and tokens of a passage (default 512, or what the model reads).
    layers, heads
        Which ones; all if left out.
    seed
        Of halves, starts, queries and resampling.
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
    executor = executor or Serial()
    choice = ModelChoice(model, device, dtype, revision, allow_pickle, allow_remote_code)
    choice.check_remote(executor.remote)
    ask = partial(
        make_request, tokens=tokens, context=context, layers=layers, heads=heads, seed=seed
    )
    check_text(text, column)
    check_run_place(out, KIND, ask(choice.outline).to_dict())
    from esscher.studies.tails.run import run_tails  # brings torch

    return run_tails(choice, text, column, ask, out, executor, progress)
