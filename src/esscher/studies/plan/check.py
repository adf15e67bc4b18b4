"""The check: planned and uniform budgets and published rules on held-out text, against dense.

All of them keep the same number of tokens in all. ``planned`` and ``uniform`` choose tokens inside
a head in the same way and differ in the budgets alone; published rules have scores and budgets of
their own, and forget what they do not keep. Layers with a sliding window are left alone by all.

The dense prefix of a passage is read once; only the tokens after it are read again, with a cache
that holds what a configuration keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.cache.budgets import POWERS, Keeping, Score, SelectionKind
from esscher.engine.cache.prompt import ObservedPrompt
from esscher.engine.cache.published import Rule
from esscher.engine.cache.selection import reduced_attention, select_keys
from esscher.engine.cache.storage import Kept
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.reading import PassageReader, compare_laws, surprise
from esscher.engine.text.tasks.asking import ask, ask_each
from esscher.engine.text.tasks.items import TaskItem
from esscher.math.statistics.intervals import (
    Means,
    exponentials,
    mean_and_interval,
    replicates_needed,
    wilson,
)
from esscher.runs.folder import Cell, CellRun
from esscher.studies.plan.result import (
    END,
    CacheBytes,
    Check,
    Configuration,
    HeadErrors,
    Mean,
    Measures,
    PlanCell,
    TaskScore,
    TaskScores,
    Verdict,
)

if TYPE_CHECKING:
    from esscher.studies.plan.study import PlanStudy

#: What is kept of a prompt, by layer and key head.
KeptLayers: TypeAlias = dict[int, list[Kept]]
#: Name of a text, and its number: the samples of another one are others.
Named: TypeAlias = tuple[str, int]
#: Name of the passages of a check.
PURPOSE = "plan check"
#: Columns of the tables of cells.
COLUMNS = ("configuration", "layer", "measure", "value")
#: A head's prediction counts as right within this factor.
FACTOR = 1.5
#: Divergences below this are rounding, and count as equal.
ROUNDING = 1e-9
#: A task on which the dense model scores less than this is one that it cannot do.
PASSES = 0.5


class Budgets(NamedTuple):
    """Budgets of every key head and how its tokens are selected.

    ``tokens`` and ``powers`` are [layers, key heads]; powers are indices into ``POWERS``.
    """

    tokens: NDArray[np.int64]
    powers: NDArray[np.int64]
    selection: SelectionKind = "sample"

    def keep(self, prompt: ObservedPrompt, named: Named, seed: int) -> KeptLayers:
        """Choose the tokens of a prompt, by layer and key head."""
        out: KeptLayers = {}
        for layer, scores in prompt.scores.items():
            out[layer] = [
                select_keys(
                    self.selection,
                    head,
                    prompt.certain,
                    int(self.tokens[layer, g]),
                    POWERS[self.powers[layer, g]],
                    sample_start(named, seed, layer, g),
                )
                for g, head in enumerate(scores)
            ]
            if self.selection == "fitted":
                out[layer] = prompt.fit(layer, out[layer])
        return out


def sample_start(named: Named, seed: int, layer: int, g: int) -> float:
    """The randomness of the sample of a key head, in [0, 1)."""
    return float(random_stream(seed, *named, layer, g).random())


def kept_layers(
    prompt: ObservedPrompt,
    budgets: Mapping[str, Budgets],
    rules: Sequence[Rule],
    named: Named,
    seed: int,
) -> dict[str, KeptLayers]:
    """Return what every configuration keeps of a prompt.

    Parameters
    ----------
    prompt
        The prompt, which the rules have scored.
    budgets
        Those of the plan, ``planned``, and equal ones, ``uniform``.
    rules
        Published rules.
    named
        Name and number of the prompt.
    seed
        Seed of the samples.
    """
    out = {name: own.keep(prompt, named, seed) for name, own in budgets.items()}
    each = int(budgets["uniform"].tokens[list(prompt.scores)].mean())
    for rule in rules:
        scores = prompt.rule_scores[rule.name]
        kept = rule.keep(list(scores.values()), each)
        out[rule.name] = {
            layer: [Kept(index, torch.zeros(len(index))) for index in heads]
            for layer, heads in zip(scores, kept, strict=True)
        }
    return out


def count_kept(kept: KeptLayers) -> int:
    """Tokens that are kept in all layers and key heads together."""
    return sum(len(head.index) for layer in kept.values() for head in layer)


def passage_cell(
    prompt: ObservedPrompt,
    reader: PassageReader,
    budgets: Mapping[str, Budgets],
    rules: Sequence[Rule],
    seed: int,
) -> Cell:
    """Measure all configurations on one passage; parameters are those of :func:`kept_layers`.

    The table has ``COLUMNS``: errors of attention outputs by layer, KL, top-1 agreement and
    surprise at the model's end, and the realised error of every head.
    """
    number = reader.passage.number
    kept = kept_layers(prompt, budgets, rules, (PURPOSE, number), seed)
    dense, taken = reader.read(lambda inputs: None), None
    rows: list[tuple[str, int, str, float]] = []
    for name, layers in kept.items():
        cache = prompt.reduced(layers)
        if name == "planned":
            taken = CacheBytes(planned=cache.nbytes, dense=cache.dense_nbytes)
        reduced = reader.read(lambda inputs: None, cache)
        for layer, (exact, output) in enumerate(
            zip(dense.attention, reduced.attention, strict=True)
        ):
            exact, output = exact[:, reader.query_rows], output[:, reader.query_rows]
            difference = torch.linalg.vector_norm((output - exact).double())
            relative = float(difference / torch.linalg.vector_norm(exact.double()))
            rows.append((name, layer, "error", relative))
        ends = compare_laws(dense.end, reduced.end, reader.next_tokens)
        rows += [(name, END, measure, float(value)) for measure, value in ends.items()]
    for layer, errors in enumerate(head_errors(prompt, reader, kept["planned"])):
        rows += [(f"head {h}", layer, "realised", float(e)) for h, e in enumerate(errors)]
    record = PlanCell(
        passage=number,
        dense_nll=surprise(dense.end, reader.next_tokens),
        cache=taken,
        kept={name: count_kept(layers) for name, layers in kept.items()},
    )
    return Cell(record, pd.DataFrame(rows, columns=list(COLUMNS)))


def head_errors(prompt: ObservedPrompt, reader: PassageReader, kept: KeptLayers) -> Array:
    """Relative error of each head's output when only it is reduced, [layers, heads].

    It is 0 where nothing is reduced: in layers with a sliding window, and where all keys are kept.
    """
    errors: list[Array] = []
    keys = len(prompt.certain)

    def measure(inputs: LayerInputs) -> None:
        if inputs.window is not None:
            errors.append(np.zeros(inputs.q.shape[1]))
            return
        exact = inputs.own()[0].to(torch.float32)
        difference = reduced_attention(inputs, kept[inputs.layer], keys) - exact
        # with all keys the difference is rounding, not an error
        whole = torch.tensor([len(head.index) == keys for head in kept[inputs.layer]])
        difference[whole.repeat_interleave(inputs.group)] = 0.0
        square = difference.square().sum(-1).mean(-1)
        norm = exact.square().sum(-1).mean(-1)
        errors.append((square / norm).sqrt().double().numpy())

    reader.read(measure)
    return np.stack(errors)


def item_cell(
    loaded: LoadedModel,
    item: TaskItem,
    budgets: Mapping[str, Budgets],
    rules: Sequence[Rule],
    keeping: Keeping,
    score: Score,
    seed: int,
) -> Cell:
    """Ask the question of an item with a dense cache, and with those of all configurations.

    The table is as that of a checked passage, with the measures ``score`` and
    ``log_probability``.
    """
    prompt = ObservedPrompt(loaded, item.context, keeping, score, rules)
    named = f"task {item.task} {item.haystack}", item.number
    kept = kept_layers(prompt, budgets, rules, named, seed)
    reduced = ask_each(loaded, prompt.reduced(*kept.values()), item, len(kept))
    replies = {"dense": ask(loaded, prompt.cache, item), **dict(zip(kept, reduced, strict=True))}
    rows = [
        (name, END, measure, getattr(reply, measure))
        for name, reply in replies.items()
        for measure in ("score", "log_probability")
    ]
    record = PlanCell(
        task=item.task,
        haystack=item.haystack,
        answer=item.answer,
        answers={name: reply.text for name, reply in replies.items()},
        kept={name: count_kept(layers) for name, layers in kept.items()},
    )
    return Cell(record, pd.DataFrame(rows, columns=list(COLUMNS)))


# From cells to numbers with intervals, and the verdict.
#
# Passages are the independent units: means have Student's interval over them, and configurations
# are compared by the paired logarithm of their ratio, passage by passage: an interval that lies on
# one side of 0 decides.


def check_tables(
    study: PlanStudy, cells: Mapping[str, Cell], run: CellRun, rules: Sequence[str]
) -> None:
    """Refuse stored passages that lack measures of a plan, of uniform budgets or of rules.

    Raises
    ------
    InputError
        Naming the cell.
    """
    model, names = study.model_record, ["planned", "uniform", *rules]
    layers = range(model.layers)
    wanted = {(name, layer, "error") for name in names for layer in layers}
    wanted |= {(name, END, measure) for name in names for measure in ("kl", "top1", "nll")}
    wanted |= {(f"head {h}", n, "realised") for h in range(model.heads) for n in layers}
    for name, cell in cells.items():
        if not _has_rows(cell, wanted):
            raise run.damaged(name, "its table is not of all configurations, layers and heads")
        if cell.about.dense_nll is None or set(cell.about.kept or ()) != set(names):
            raise run.damaged(name, "it does not say what dense attention gives")


def check_items(study: PlanStudy, cells: Mapping[str, Cell], run: CellRun) -> None:
    """Refuse stored items of tasks that lack what the others have.

    Raises
    ------
    InputError
        Naming the cell.
    """
    names, measures = ["planned", "uniform", *study.against], ("score", "log_probability")
    wanted = {(name, END, measure) for name in ("dense", *names) for measure in measures}
    for name, cell in cells.items():
        if not _has_rows(cell, wanted):
            raise run.damaged(name, "its table is not of all configurations")
        record = cell.about
        if record.task not in study.tasks or record.haystack not in ("noise", "text"):
            raise run.damaged(name, "it does not say what was asked")
        if set(record.kept or ()) != set(names):
            raise run.damaged(name, "it does not say what was kept")


def _has_rows(cell: Cell, wanted: set[tuple[str, int, str]]) -> bool:
    """Whether the table of a cell has these rows, and numbers in them."""
    table = cell.table
    if not set(COLUMNS) <= set(table.columns) or table["value"].dtype.kind not in "fiu":
        return False
    rows = list(zip(*(table[column] for column in COLUMNS[:3]), strict=True))
    return set(rows) == wanted and len(rows) == len(wanted)


def values_of(cells: Sequence[Cell], name: Configuration, measure: str) -> Array:
    """A measure of one configuration in every cell, [cells, layers], or [cells, 1] at the end."""
    rows = []
    for cell in cells:
        table = cell.table
        table = table[(table["configuration"] == name) & (table["measure"] == measure)]
        rows.append(table.sort_values("layer")["value"].to_numpy(dtype=np.float64))
    return np.stack(rows)


def check_results(
    cells: Sequence[Cell], predicted_error: Array, items: Sequence[Cell] = ()
) -> Check:
    """Measures of every configuration, comparisons with planned, and calibration by head.

    Parameters
    ----------
    cells
        One per passage.
    predicted_error
        Predicted relative error of every head, [layers, heads].
    items
        Items of tasks.
    """
    first, exact = cells[0].about, Mean(mean=0.0, interval=(0.0, 0.0))
    assert first.kept is not None
    dense_nll = np.array([cell.about.dense_nll for cell in cells])
    measures: dict[Configuration, Measures] = {
        "dense": Measures(
            kl=exact,
            top1=Mean(mean=1.0, interval=(1.0, 1.0)),
            perplexity=mean_exponential(dense_nll),
            error=exact,
        )
    }
    distances: dict[Configuration, Array] = {}
    for name, kept in first.kept.items():
        kl, top1, nll = (values_of(cells, name, end)[:, 0] for end in ("kl", "top1", "nll"))
        errors = values_of(cells, name, "error")
        by_layer = mean_and_interval(errors, 0.0)
        distances[name] = np.maximum(kl, ROUNDING)
        measures[name] = Measures(
            kl=mean_of(kl, 0.0),
            top1=mean_of(top1, 0.0, 1.0),
            perplexity=mean_exponential(nll),
            perplexity_ratio=mean_exponential(nll - dense_nll),
            kept=kept,
            error=mean_of(errors.mean(axis=1), 0.0),
            layer_error=tuple(_column(by_layer, layer) for layer in range(errors.shape[1])),
        )
    planned, uniform = distances["planned"], distances["uniform"]
    ratios = {n: paired_ratio(own, planned) for n, own in distances.items() if n != "planned"}
    verdict, best = verdict_of(ratios["uniform"]), closest(distances)
    nearest = distances[best[0]]
    scores, cannot, totals = task_results(items)
    realised = realised_errors(cells)
    shown = (predicted_error > 0) & (realised > 0)
    ratio = realised[shown] / predicted_error[shown]
    within = float(np.mean((ratio < FACTOR) & (ratio > 1 / FACTOR))) if shown.any() else None
    heads = HeadErrors(
        predicted=tuple(map(tuple, predicted_error.tolist())),
        realised=tuple(map(tuple, realised.tolist())),
        factor=FACTOR,
        within_factor=within,
        median_ratio=float(np.median(ratio)) if shown.any() else None,
    )
    return Check(
        passages=len(cells),
        measures=measures,
        ratios=ratios,
        verdict=verdict,
        passages_needed=passages_needed(uniform, planned) if verdict == "undecided" else None,
        best=tuple(best),
        over_best={n: paired_ratio(own, nearest) for n, own in distances.items() if n != best[0]},
        heads=heads,
        # budgets are numbers of tokens: all passages take the same
        cache=first.cache,
        tasks=scores,
        dense_cannot=cannot,
        totals=totals,
    )


def task_results(
    items: Sequence[Cell],
) -> tuple[dict[str, TaskScores], tuple[str, ...], TaskScores]:
    """Scores of all tasks, those that the dense model cannot do, and totals over the others."""
    tasks = list(dict.fromkeys(item.about.task for item in items))
    scores = {task: _scores([i for i in items if i.about.task == task]) for task in tasks}
    cannot = tuple(task for task in tasks if scores[task]["dense"].score < PASSES)
    counted = [item for item in items if item.about.task not in cannot]
    return scores, cannot, _scores(counted) if counted else {}


def _scores(items: Sequence[Cell]) -> TaskScores:
    """Scores of every configuration on some items of tasks, dense included."""
    kinds = np.array([cell.about.haystack for cell in items])
    names = list(dict.fromkeys(items[0].table["configuration"]))
    logs = {name: values_of(items, name, "log_probability")[:, 0] for name in names}
    scores: TaskScores = {}
    for name in names:
        right, likely = values_of(items, name, "score")[:, 0], mean_of(logs[name], highest=0.0)
        scores[name] = TaskScore(
            score=float(right.mean()),
            interval=wilson(float(right.sum()), len(right)),
            n=len(right),
            log_probability=likely.mean,
            log_probability_interval=likely.interval,
            of_dense=None if name == "dense" else mean_of(logs[name] - logs["dense"]),
            **{
                kind: float(right[kinds == kind].mean())
                for kind in ("noise", "text")
                if np.any(kinds == kind)
            },
        )
    return scores


def realised_errors(cells: Sequence[Cell]) -> Array:
    """Relative error of every head when only it is reduced, [layers, heads]: over passages, rms."""
    squares = []
    for cell in cells:
        rows = cell.table[cell.table["measure"] == "realised"]
        head = rows["configuration"].str.removeprefix("head ").astype(int)
        by_head = rows.assign(head=head).pivot(index="layer", columns="head", values="value")
        squares.append(by_head.to_numpy(dtype=np.float64) ** 2)
    return np.asarray(np.sqrt(np.mean(squares, axis=0)))


def mean_of(values: Array, lowest: float = -np.inf, highest: float = np.inf) -> Mean:
    """The mean over passages, with Student's interval, which ends where the quantity does."""
    return _column(mean_and_interval(values[:, None], lowest, highest), 0)


def mean_exponential(logs: Array) -> Mean:
    """Exponential of the mean of logarithms over passages, with interval."""
    return _column(exponentials(logs[:, None]), 0)


def _column(means: Means, i: int) -> Mean:
    return Mean(
        mean=means.mean[i], interval=means.interval[i], standard_error=means.standard_error[i]
    )


def paired_ratio(over: Array, under: Array) -> Mean:
    """How many times larger distances are than others on the same passages, with interval."""
    return mean_exponential(np.log(over / under))


def verdict_of(ratio: Mean) -> Verdict:
    """Judge the plan by the ratio of the distance of another configuration to its own."""
    low, high = ratio.interval or (1.0, 1.0)
    if low > 1:
        return "better"
    return "worse" if high < 1 else "undecided"


def passages_needed(over: Array, under: Array) -> int | None:
    """Passages in all with which a check would decide in 4 of 5 cases.

    See :func:`replicates_needed`: m is the mean and s the spread of the paired logarithms of the
    ratio. None if there is no spread yet, or if m is so small that no reasonable number decides.
    """
    logs = np.log(over / under)
    if len(logs) < 2:
        return None
    return replicates_needed(float(logs.mean()), float(logs.std(ddof=1)))


def closest(distances: Mapping[Configuration, Array]) -> list[Configuration]:
    """Names of the configurations closest to dense, the closest first.

    More than one if the passages cannot tell them from the closest.
    """
    order = sorted(distances, key=lambda name: float(np.log(distances[name]).mean()))
    first = distances[order[0]]
    return [
        name
        for name in order
        if name == order[0] or verdict_of(paired_ratio(distances[name], first)) != "better"
    ]
