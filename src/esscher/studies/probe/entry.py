"""``probe``: what is asked for is checked here, before torch and the model's weights are read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from esscher.engine.models.choice import ModelChoice, ModelLike
from esscher.engine.text.documents import TextSource, check_text
from esscher.runs.executors import CellExecutor, Serial
from esscher.runs.place import check_run_place
from esscher.studies.probe.arguments import KIND, make_request

if TYPE_CHECKING:
    from esscher.studies.probe.result import Probe


def probe(
    model: ModelLike,
    text: TextSource,
    *,
    mode: str = "pooled",
    tokens: int | None = None,
    context: int | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    sizes: ArrayLike | None = None,
    replicates: int = 32,
    seed: int = 0,
    sampling: str = "with",
    column: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    allow_pickle: bool = False,
    allow_remote_code: bool = False,
    out: str | Path | None = None,
    executor: CellExecutor | None = None,
    progress: bool | None = None,
) -> Probe:
    """Measure how every head of a model converges, and what one pass says about it.

    Parameters
    ----------
    model
        Hub name, folder, GGUF file, ``"demo:minilm"``, ``"demo:smollm2"``, or a model in
        memory: one of transformers, or :func:`esscher.wrap_model` of it with its tokenizer.
    text
        File, folder, ``"-"``, ``"demo:docs"``, ``"demo:code"``, ...; see
        :func:`esscher.engine.text.read_text`.
    mode
        ``"pooled"``: the tokens of all passages as one cloud (the paper's protocol). ``"context"``:
        real sequences, with positions and visibility kept.
    tokens, context
        Tokens in all (default 9,216 pooled; two passages in context), and of a passage.
    layers, heads
        Which ones; all if left out.
    sizes, replicates
        Numbers of tokens n, and samples of the largest one.
    seed
        Seed of the samples.
    sampling
        ``"with"`` or ``"without"`` replacement (pooled mode); errors without replacement are
        divided by the finite-population factor sqrt((N - n)/(N - 1)).
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
        make_request, mode=mode, tokens=tokens, context=context, layers=layers, heads=heads,
        sizes=sizes, replicates=replicates, seed=seed, sampling=sampling,
    )  # fmt: skip
    check_text(text, column)
    check_run_place(out, KIND, ask(choice.outline).to_dict())
    from esscher.studies.probe.run import run_probe  # brings torch

    return run_probe(choice, text, column, ask, out, executor, progress)
