"""``domains``: what is asked for is checked here, before torch and a model's weights are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from esscher.engine.models.choice import ModelChoice, ModelLike
from esscher.engine.text.documents import TextSource
from esscher.runs.executors import CellExecutor, chosen_executor
from esscher.runs.place import check_run_place
from esscher.studies.domains.arguments import KIND, as_level, check_corpora, make_request

if TYPE_CHECKING:
    from esscher.studies.domains.result import Domains


def domains(
    model: ModelLike,
    texts: Mapping[str, TextSource],
    *,
    blocks: int = 6,
    block_tokens: int | None = None,
    mode: str | None = None,
    context: int | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    alpha: float = 0.05,
    measure: bool = False,
    replicates: int = 8,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    allow_pickle: bool = False,
    allow_remote_code: bool = False,
    out: str | Path | None = None,
    workers: int = 1,
    executor: CellExecutor | None = None,
    progress: bool | None = None,
) -> Domains:
    """Measure every head on several corpora, and say what differs beyond chance.

    Parameters
    ----------
    model
        Hub name, folder, GGUF file, ``"demo:minilm"``, ``"demo:smollm2"``, or a model in
        memory: one of transformers, or :func:`esscher.wrap_model` of it with its tokenizer.
    texts
        Corpora by name; each a source as :func:`esscher.engine.text.read_text` takes it.
    blocks
        Blocks of every corpus, at least 3; spread over the whole of it.
    block_tokens
        Tokens of a block: 2,000 in pooled mode, one passage in context mode, if left out.
    mode
        ``"pooled"``: the tokens of a block as one cloud, the default for encoders. ``"context"``:
        real sequences, the default for decoders.
    context
        Tokens that the model reads at a time: 512 pooled and 1,024 in context mode, if left out.
    layers, heads
        Which ones; all if left out.
    alpha
        False discovery rate, and one minus the level of intervals. Not part of the measurement:
        another one needs no new run.
    measure
        Also measure the exponent of the mean error in every block, by ``replicates`` samples.
    replicates
        Samples of a block with ``measure``.
    seed
        Seed of the places of the blocks, of samples and of permutations.
    device, dtype, revision, allow_pickle, allow_remote_code
        How to load the model.
    out
        Directory of the run; the same call resumes it.
    workers
        Number of worker processes, which share the cores; each has the model in memory.
    executor
        Or a cluster from :func:`esscher.connect_cluster` or :func:`esscher.start_cluster`.
    progress
        Whether to draw a bar; by default if standard error is a terminal.
    """
    level = as_level(alpha)
    choice = ModelChoice(model, device, dtype, revision, allow_pickle, allow_remote_code)
    ask = partial(
        make_request, mode=mode, blocks=blocks, block_tokens=block_tokens, context=context,
        layers=layers, heads=heads, measure=measure, replicates=replicates, seed=seed,
    )  # fmt: skip
    with chosen_executor(workers, executor) as chosen:
        named = check_corpora(texts)
        check_run_place(out, KIND, ask(choice.outline).to_dict())
        from esscher.studies.domains.run import run_domains  # brings torch

        return run_domains(choice, named, ask, level, out, chosen, progress)
