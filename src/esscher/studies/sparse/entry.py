"""``sparse``: what is asked for is checked here, before torch and a model's weights are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.engine.models.choice import ModelChoice, ModelLike
from esscher.engine.text.documents import TextSource, check_text
from esscher.math.laws import STANDARD_LAWS
from esscher.runs.executors import CellExecutor, Serial
from esscher.runs.place import check_run_place
from esscher.studies.sparse.arguments import KIND, make_law_request, make_model_request

if TYPE_CHECKING:
    from esscher.studies.sparse.result import Sparsity

#: The text that a model reads unless another one is given.
TEXT = "demo:docs"


def sparse(
    subject: ModelLike,
    text: TextSource | None = None,
    *,
    patterns: str | Iterable[str] = "all",
    budgets: ArrayLike | None = None,
    horizon: float | None = None,
    dim: int | None = None,
    spectrum: ArrayLike | None = None,
    tau: ArrayLike | float | None = None,
    df: float | None = None,
    correlation: float | None = None,
    tokens: int | None = None,
    replicates: int | None = None,
    context: int | None = None,
    passages: int | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    draws: int | None = None,
    queries: int | None = None,
    seed: int = 0,
    column: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    allow_pickle: bool = False,
    allow_remote_code: bool = False,
    out: str | Path | None = None,
    executor: CellExecutor | None = None,
    progress: bool | None = None,
) -> Sparsity:
    """Measure the error of sparse patterns against dense attention, as their budget grows.

    Parameters
    ----------
    subject
        A law of tokens (``"gaussian"``, ...), or a model: hub name, folder, GGUF file,
        ``"demo:minilm"``, ``"demo:smollm2"``, or a model in memory: one of transformers, or
        :func:`esscher.wrap_model` of it with its tokenizer.
    text
        For a model: file, folder, ``"demo:docs"``, ...; see :func:`esscher.engine.text.read_text`.
    patterns
        Names of patterns, or ``"all"``; random selection is always among them.
    budgets
        Numbers of keys r that a query attends; 7 from 32 on if left out.
    horizon, dim, spectrum, tau, df
        For a law: the head, as for a sweep.
    correlation
        For Gaussian tokens: rho of an AR(1) sequence with the same marginal.
    tokens, replicates
        For a law: length of a sequence, and number of sequences.
    context, passages
        For a model: tokens of a passage, and number of passages.
    layers, heads
        For a model: which ones; all if left out.
    draws
        For a model: selections of every random pattern on a passage.
    queries
        Number of queries at which errors are measured.
    seed
        Seed of tokens, queries and selections.
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
    of_law = {
        "horizon": horizon, "dim": dim, "spectrum": spectrum, "tau": tau, "df": df,
        "correlation": correlation, "tokens": tokens, "replicates": replicates,
    }  # fmt: skip
    of_model = {
        "context": context, "passages": passages, "layers": layers, "heads": heads, "draws": draws,
    }  # fmt: skip
    loading = {
        "text": text, "column": column, "device": device, "dtype": dtype, "revision": revision,
        "allow_pickle": allow_pickle or None, "allow_remote_code": allow_remote_code or None,
    }  # fmt: skip
    common: dict[str, Any] = {
        "patterns": patterns, "budgets": budgets, "queries": queries, "seed": seed,
    }  # fmt: skip
    if isinstance(subject, str) and subject in STANDARD_LAWS:
        _refuse(of_model | loading, f"the law {subject!r}", "a model")
        law = make_law_request(subject, **of_law, **common)  # type: ignore[arg-type]
        check_run_place(out, KIND, law.to_dict())
        from esscher.studies.sparse.run import run_laws  # brings torch

        return run_laws(law, out, executor or Serial(), progress)
    executor = executor or Serial()
    choice = ModelChoice(
        subject, device or "cpu", dtype or "float32", revision, allow_pickle, allow_remote_code
    )
    choice.check_remote(executor.remote)
    _refuse(of_law, f"the model {choice.name!r}", f"a law ({', '.join(STANDARD_LAWS)})")
    ask = partial(
        make_model_request, context=context, passages=passages, layers=layers, heads=heads,
        draws=draws, patterns=patterns, budgets=budgets, queries=queries, seed=seed,
    )  # fmt: skip
    source = TEXT if text is None else text
    check_text(source, column)
    check_run_place(out, KIND, ask(choice.outline).to_dict())
    from esscher.studies.sparse.run import run_model  # brings torch

    return run_model(choice, source, column, ask, out, executor, progress)


def _refuse(options: dict[str, Any], subject: str, other: str) -> None:
    """Refuse options that would do nothing."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} is given, but {subject} has no use for it: it is for {other}")
