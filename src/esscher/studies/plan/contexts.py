"""``context_lengths``: which heads of a decoder still gain from more tokens, which do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from esscher.core.validation import as_path
from esscher.engine.models import (
    AnyModel,
    LayerCapture,
    LoadedModel,
    ModelChoice,
    Outline,
    opened_model,
)
from esscher.engine.text import Passage, TextSource, read_passages, visit_passages
from esscher.runs import Cell, CellRun, open_run, read_run, run_folder
from esscher.runs.executors import CellExecutor, Task, compute_cells
from esscher.runs.folder import LOG
from esscher.runs.progress import Reporter
from esscher.runs.result import RunResult
from esscher.studies.plan.arguments import CONTEXT_KIND as KIND
from esscher.studies.plan.arguments import ContextRequest, shortest_context
from esscher.studies.plan.saturation import doublings, layer_changes, relative_changes, saturation


@dataclass(frozen=True, eq=False, repr=False)
class ContextUse(RunResult):
    """Context lengths of every head."""

    def to_frame(self) -> pd.DataFrame:
        """Return a data frame, one row per head.

        A head with an open end has no ``length``, and its ``note`` says how much it still changes.
        """
        columns = ("layer", "head", "length", "low", "high", "limit", "open", "extrapolated")
        rows = []
        for head in self.results["heads"]:
            low, high = head["interval"]
            about = head | {"low": low, "high": high}
            rows.append(
                {name: about[name] for name in columns}
                | {
                    "exponent": head["exponent"],
                    "last_change": head["change"][-1],
                    "note": head["note"],
                }
            )
        numbers = ("length", "low", "high", "limit", "exponent", "last_change")
        return pd.DataFrame(rows).astype(dict.fromkeys(numbers, np.float64) if rows else {})

    def shown(self) -> list[pd.DataFrame]:
        """Return the heads, those that use the longest context first."""
        table = self.to_frame()
        return [table if table.empty else longest_first(table)]


def longest_first(heads: pd.DataFrame) -> pd.DataFrame:
    """Heads with an open end, by how much they change, then the others by their length."""
    return heads.sort_values(["open", "length", "last_change"], ascending=False, kind="stable")


def run_contexts(
    choice: ModelChoice,
    text: TextSource,
    column: str | None,
    ask: Callable[[Outline], ContextRequest],
    out: str | Path | None,
    executor: CellExecutor,
    progress: bool | None,
) -> ContextUse:
    """Load the model and measure; see :func:`esscher.context_lengths`."""
    loaded, shipped = choice.for_tasks(executor.remote, progress)
    request = ask(loaded.outline)
    count = request.passages
    found = read_passages(
        loaded, text, tokens=count * request.length, context=request.length, column=column,
        passages=count,
    )  # fmt: skip
    configuration: dict[str, Any] = request.to_dict() | {
        **loaded.record,
        "text": found.source,
        "text_hash": found.text_hash,
    }
    subject = configuration["model"]["name"]
    with run_folder(out) as folder, open_run(folder, KIND, subject, configuration) as run:
        with Reporter(folder / LOG, progress, "passages") as reporter:
            names = _names(run)
            reporter.expect(count, count - len(run.missing(names)))
            passage_of = dict(zip(names, found.passages, strict=False))
            compute_cells(
                run,
                list(passage_of),
                lambda name: Task(name, _passage_cell, (shipped, passage_of[name], request)),
                reporter,
                executor,
                expected=True,
            )
        results = _results(run)
        run.write_results(results)
        return ContextUse(results)


def _passage_cell(model: AnyModel, passage: Passage, request: ContextRequest) -> Cell:
    with opened_model(model) as loaded:
        return _measure(loaded, passage, request)


def load_context(out: str | Path) -> ContextUse:
    """Read the results of a stored run, complete or not."""
    return ContextUse(_results(read_run(as_path(out, "out"), KIND)))


def _names(run: CellRun) -> list[str]:
    return [f"passage-{i}" for i in range(run.configuration["passages"])]


def _measure(loaded: LoadedModel, passage: Passage, request: ContextRequest) -> Cell:
    lengths = doublings(request.context, shortest_context(request.context))
    rows: list[dict[str, Any]] = []
    norms: list[list[float]] = []
    windows: list[int | None] = []

    def sink(passage: Passage, capture: LayerCapture) -> None:
        with torch.inference_mode():
            changes, norm = layer_changes(capture, request.queries, lengths)
        norms.append(norm.tolist())
        windows.append(capture.window)
        for head, change in enumerate(changes):
            rows.extend(
                {"layer": capture.layer, "head": head, "length": int(n), "square": float(c)}
                for n, c in zip(lengths[:-1], change, strict=True)
            )

    visit_passages(loaded, [passage], sink)
    return Cell({"norms": norms, "windows": windows}, pd.DataFrame(rows))


def _results(run: CellRun) -> dict[str, Any]:
    configuration = run.configuration
    cells = [cell for name in _names(run) if (cell := run.read(name)) is not None]
    lengths = doublings(configuration["context"], shortest_context(configuration["context"]))
    heads: list[dict[str, Any]] = []
    if cells:
        norms = np.array([cell.about["norms"] for cell in cells])
        shape = (*norms.shape, len(lengths) - 1)
        squares = np.stack([cell.table["square"].to_numpy() for cell in cells]).reshape(shape)
        limits = _limits(configuration, cells[0], norms.shape[1])
        for layer, head in np.ndindex(*norms.shape[1:]):
            own, norm = squares[:, layer, head], norms[:, layer, head]
            found = saturation(
                own, norm, lengths, configuration["tolerance"], configuration["seed"],
                limits[layer],
            )  # fmt: skip
            change = relative_changes(own, norm).tolist()
            longest = configuration["context"]
            note = f"still changing by {change[-1]:.0%} at {longest:,}" if found.is_open else ""
            about = {"layer": layer, "head": head, "change": change, "note": note}
            heads.append(about | found.to_dict())
    results: dict[str, Any] = {
        "kind": KIND,
        "complete": len(cells) == configuration["passages"],
        "configuration": configuration,
        "versions": run.about["versions"],
        "created": run.about["created"],
        "lengths": lengths.tolist(),
        "heads": heads,
    }
    return results | {"headline": _headline(results)}


def _limits(configuration: dict[str, Any], cell: Cell, layers: int) -> list[float]:
    """Most tokens that the heads of each layer can see: its window, or what the model reads."""
    reads = configuration["model"].get("max_positions")
    windows = cell.about.get("windows") or [None] * layers  # older runs have none
    return [min(np.inf if n is None else n for n in (reads, window)) for window in windows]


def _headline(results: dict[str, Any]) -> str:
    heads, longest = results["heads"], results["configuration"]["context"]
    if not heads:
        return "Nothing has been measured yet."
    tolerance, half = results["configuration"]["tolerance"], longest // 2
    lengths = np.array([np.inf if head["open"] else head["length"] for head in heads])
    sentence = (
        f"{np.sum(lengths <= half)} of {len(heads)} heads are within {100 * tolerance:g}% of what "
        f"they become at {half:,} tokens of context"
    )
    beyond = int(np.sum((lengths > longest) & np.isfinite(lengths)))
    if beyond:
        most = max(head["length"] for head in heads if not head["open"])
        sentence += f"; {beyond} gain beyond {longest:,}, by extrapolation up to {most:,.0f}"
    changes = [head["change"][-1] for head in heads if head["open"]]
    if changes:
        one = "is still changing, by" if len(changes) == 1 else "are still changing, by up to"
        sentence += f"; {len(changes)} {one} {max(changes):.0%} at {longest:,}"
    middle = float(np.median(lengths))
    uses = f"uses {middle:,.0f} tokens" if np.isfinite(middle) else f"still changes at {longest:,}"
    return f"{sentence}. The median head {uses}."
