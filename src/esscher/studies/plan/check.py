"""What is compared: planned and uniform budgets, and published rules, on one prompt.

All of them keep the same number of tokens in all. ``planned`` and ``uniform`` choose tokens inside
a head in the same way and differ in the budgets alone; published rules have scores and budgets of
their own, and forget what they do not keep. Layers with a sliding window are left alone by all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.codec import Interval
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.cache.budgets import POWERS, Keeping, Score, SelectionKind
from esscher.engine.cache.fitting import Fit
from esscher.engine.cache.prompt import ObservedPrompt
from esscher.engine.cache.published import Rule
from esscher.engine.cache.selection import (
    Kept,
    reduced_attention,
    select_largest,
    select_sample,
    spread_starts,
)
from esscher.engine.models import LayerInputs, LoadedModel
from esscher.engine.reading import Pass, compare_laws, surprise
from esscher.engine.text.tasks.asking import ask, ask_each
from esscher.engine.text.tasks.items import TaskItem
from esscher.math.statistics.intervals import (
    exponentials,
    mean_and_interval,
    replicates_needed,
    wilson,
)
from esscher.runs.folder import Cell, CellRun
from esscher.studies.plan.effects import ObservedPassage
from esscher.studies.plan.result import (
    END,
    CacheBytes,
    Check,
    Configuration,
    HeadErrors,
    LayerMeans,
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


@dataclass(frozen=True, eq=False)
class Budgets:
    """Budgets of every key head and how its tokens are selected.

    Attributes
    ----------
    tokens, powers
        [layers, key heads]; ``powers`` are indices into ``POWERS``.
    selection
        A weighted sample, or the largest scores.
    """

    tokens: NDArray[np.int64]
    powers: NDArray[np.int64]
    selection: SelectionKind = "sample"

    def select(
        self, layer: int, g: int, scores: Tensor, certain: NDArray[np.bool_], start: float
    ) -> Kept:
        """Choose the keys of one key head, not fitted; ``start`` is the randomness of a sample."""
        tokens = int(self.tokens[layer, g])
        if self.selection == "topk":
            return select_largest(scores, certain, tokens)
        return select_sample(scores, certain, tokens, POWERS[self.powers[layer, g]], start)

    def select_layer(
        self,
        layer: int,
        scores: Tensor,
        certain: NDArray[np.bool_],
        starts: Sequence[float],
        fit: Fit | None,
    ) -> list[Kept]:
        """Choose the keys of all key heads of a layer, and fit them if that is the selection."""
        kept = [
            self.select(layer, g, own, certain, start)
            for g, (own, start) in enumerate(zip(scores, starts, strict=True))
        ]
        if self.selection != "fitted" or fit is None:
            return kept
        return [fit.of(g, own) for g, own in enumerate(kept)]


@dataclass(frozen=True, eq=False)
class Chosen:
    """What is compared, and all that it takes.

    Attributes
    ----------
    planned, uniform
        Budgets of the plan, and equal ones.
    rules
        Published rules.
    """

    planned: Budgets
    uniform: Budgets
    rules: tuple[Rule, ...] = ()

    @property
    def without_rules(self) -> Chosen:
        """Budgets of the plan and equal ones alone."""
        return Chosen(self.planned, self.uniform)


#: Name of a text, and its number: the samples of another one are others.
Named: TypeAlias = tuple[str, int]


def starts(name: Named, seed: int, layer: int, g: int, draws: int) -> list[float]:
    """Starts of the samples of a key head."""
    purpose, number = name
    first = float(random_stream(seed, purpose, number, layer, g).random())
    return [float(start) for start in spread_starts(first, draws)]


def kept_layers(
    prompt: ObservedPrompt, chosen: Chosen, named: Named, seed: int
) -> dict[str, KeptLayers]:
    """Return what every configuration keeps of a decoder's prompt.

    Parameters
    ----------
    prompt
        The prompt, which the rules have looked at.
    chosen
        What is compared.
    named
        Name and number of the prompt.
    seed
        Seed of the samples.
    """
    out: dict[str, KeptLayers] = {}
    for name, budgets in (("planned", chosen.planned), ("uniform", chosen.uniform)):
        out[name] = {
            layer: budgets.select_layer(
                layer,
                scores,
                prompt.certain,
                [starts(named, seed, layer, g, 1)[0] for g in range(len(scores))],
                prompt.fit(layer),
            )
            for layer, scores in prompt.scores.items()
        }
    layers = prompt.looking.layers
    each = int(chosen.uniform.tokens[list(prompt.scores)].mean())
    for rule in chosen.rules:
        found = rule.keep(prompt.looking.found(rule), each)
        out[rule.name] = {
            layer: [Kept(index, torch.zeros(len(index))) for index in own]
            for layer, own in zip(layers, found, strict=True)
        }
    return out


def count_kept(kept: KeptLayers) -> int:
    """Tokens that are kept in all layers and key heads together."""
    return sum(len(one.index) for own in kept.values() for one in own)


# Dense, uniform, planned and published selections on unseen text.
#
# The dense prefix of a passage is read once; only the tokens after it are read again, with a cache
# that holds what a configuration keeps.

#: Of the samples of a check; see :func:`~esscher.studies.plan.check.starts`.
PURPOSE = "plan check"


class PassageCheck:
    """One held-out passage: its dense pass, and what every configuration makes of it.

    Parameters
    ----------
    observed
        The passage.
    chosen
        What is compared.
    seed
        Seed of the samples.
    """

    def __init__(self, observed: ObservedPassage, chosen: Chosen, seed: int) -> None:
        self.observed = observed
        self.dense = observed.reader.read(lambda inputs: None)
        named = (PURPOSE, observed.reader.passage.number)
        self._kept = kept_layers(observed.prompt, chosen, named, seed)

    def cell(self) -> Cell:
        """Measure all configurations; the table has (configuration, layer, measure, value)."""
        rows: list[tuple[str, int, str, float]] = []
        reader, taken = self.observed.reader, None
        for name, own in self._kept.items():
            cache = self.observed.prompt.reduced(own)
            if name == "planned":
                taken = CacheBytes(planned=cache.nbytes, dense=cache.dense_nbytes)
            found = reader.read(lambda inputs: None, cache)
            rows += [(name, layer, "error", e) for layer, e in enumerate(self._errors(found))]
            ends = compare_laws(self.dense.end, found.end, reader.next_tokens)
            rows += [(name, END, measure, float(value)) for measure, value in ends.items()]
        for layer, errors in enumerate(self.head_errors()):
            rows += [(f"head {h}", layer, "realised", float(e)) for h, e in enumerate(errors)]
        table = pd.DataFrame(rows, columns=["configuration", "layer", "measure", "value"])
        about = PlanCell(
            passage=reader.passage.number,
            dense_nll=surprise(self.dense.end, reader.next_tokens),
            cache=taken,
            kept={name: count_kept(own) for name, own in self._kept.items()},
        )
        return Cell(about, table)

    def head_errors(self) -> Array:
        """Relative error of each head's output when only it is reduced, [layers, heads].

        It is 0 where nothing is reduced: in layers with a sliding window, and where all keys are
        kept.
        """
        found: list[Array] = []

        def look(inputs: LayerInputs) -> None:
            if inputs.window is not None:
                found.append(np.zeros(inputs.q.shape[1]))
                return
            own = inputs.own()[0].to(torch.float32)
            kept = self._kept["planned"][inputs.layer]
            apart = reduced_attention(inputs, kept, self.observed.keys) - own
            # with all keys the difference is rounding, not an error
            whole = torch.tensor([len(one.index) == self.observed.keys for one in kept])
            apart[whole.repeat_interleave(inputs.group)] = 0.0
            square = apart.square().sum(-1).mean(-1)
            norm = own.square().sum(-1).mean(-1)
            found.append((square / norm).sqrt().double().numpy())

        self.observed.reader.read(look)
        return np.stack(found)

    def _errors(self, found: Pass) -> list[float]:
        """Relative error of every layer's attention output."""
        rows = self.observed.reader.asking
        out = []
        for dense, other in zip(self.dense.attention, found.attention, strict=True):
            difference = torch.linalg.vector_norm((other - dense)[:, rows].double())
            out.append(float(difference / torch.linalg.vector_norm(dense[:, rows].double())))
        return out


# Does what is kept answer questions? Generated tasks on the caches of all configurations.


def item_cell(
    loaded: LoadedModel,
    item: TaskItem,
    chosen: Chosen,
    keeping: Keeping,
    score: Score,
    seed: int,
) -> Cell:
    """Ask the question of an item with a dense cache, and with those of all configurations.

    The table is as that of a checked passage, with the measures ``score`` and
    ``log_probability``.
    """
    prompt = ObservedPrompt(loaded, item.context, keeping, score, chosen.rules)
    kept = kept_layers(prompt, chosen, (f"task {item.task} {item.haystack}", item.number), seed)
    reduced = ask_each(loaded, prompt.reduced(*kept.values()), item, len(kept))
    found_by = {"dense": ask(loaded, prompt.cache, item), **dict(zip(kept, reduced, strict=True))}
    rows: list[tuple[str, int, str, float]] = []
    answers: dict[str, str] = {}
    for name, found in found_by.items():
        answers[name] = found.text
        rows += [
            (name, END, "score", found.score),
            (name, END, "log_probability", found.log_probability),
        ]
    about = PlanCell(
        task=item.task,
        haystack=item.haystack,
        answer=item.answer,
        answers=answers,
        kept={name: count_kept(own) for name, own in kept.items()},
    )
    return Cell(about, pd.DataFrame(rows, columns=["configuration", "layer", "measure", "value"]))


# From checked passages to numbers with intervals, and the verdict.
#
# Passages are the independent units: means have Student's interval over them, and configurations
# are compared by the paired logarithm of their ratio, passage by passage: an interval that lies on
# one side of 0 decides.

#: A head's prediction counts as right within this factor.
FACTOR = 1.5
#: Divergences below this are rounding, and count as equal.
ROUNDING = 1e-9


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
    tables = [cell.table for cell in cells]
    first = tables[0]
    names: list[Configuration] = list(
        dict.fromkeys(first[first["measure"] == "error"]["configuration"])
    )
    measures: dict[Configuration, Measures] = {}
    distances: dict[Configuration, Array] = {}
    for name in names:
        rows = [table[table["configuration"] == name] for table in tables]
        measures[name] = _measures(rows, cells, name)
        distances[name] = np.maximum(divergences(cells, name), ROUNDING)
    planned, uniform = distances["planned"], distances["uniform"]
    ratios: dict[Configuration, Mean] = {
        name: paired_ratio(distances[name], planned) for name in names if name != "planned"
    }
    verdict = verdict_of(ratios["uniform"])
    best = closest(distances)
    nearest = distances[best[0]]
    named: dict[str, Any] = {name: one for name, one in measures.items() if ":" not in name}
    return Check(
        passages=len(cells),
        dense=_dense(cells),
        **named,
        others={name: found for name, found in measures.items() if ":" in name},
        ratios=ratios,
        verdict=verdict,
        earned=verdict == "better",
        passages_needed=passages_needed(uniform, planned) if verdict == "undecided" else None,
        best=tuple(best),
        over_best={n: paired_ratio(distances[n], nearest) for n in names if n != best[0]},
        heads=_calibration(cells, predicted_error),
        # budgets are numbers of tokens: all passages take the same
        cache=cells[0].about.cache,
        **task_results(items),
    )


def check_tables(
    study: PlanStudy, cells: Mapping[str, Cell], run: CellRun, others: Sequence[str]
) -> None:
    """Refuse stored passages that lack measures of a plan, of uniform budgets or of others.

    Raises
    ------
    InputError
        Naming the cell.
    """
    model = study.model_record
    names = ["planned", "uniform", *others]
    layers = range(model.layers)
    wanted = {(name, layer, "error") for name in names for layer in layers}
    wanted |= {(name, END, measure) for name in names for measure in ("kl", "top1", "nll")}
    wanted |= {(f"head {h}", n, "realised") for h in range(model.heads) for n in layers}
    for name, cell in cells.items():
        about, found = cell.about, _rows(name, cell, run)
        if set(found) != wanted or len(found) != len(wanted):
            raise run.damaged(name, "its table is not of all configurations, layers and heads")
        if about.dense_nll is None or set(about.kept or ()) != set(names):
            raise run.damaged(name, "it does not say what dense attention gives")


def check_items(study: PlanStudy, cells: Mapping[str, Cell], run: CellRun) -> None:
    """Refuse stored items of tasks that lack what the others have.

    Raises
    ------
    InputError
        Naming the cell.
    """
    names = ["planned", "uniform", *study.against]
    wanted = {
        (name, END, measure)
        for name in ("dense", *names)
        for measure in ("score", "log_probability")
    }
    for cell_name, cell in cells.items():
        found = _rows(cell_name, cell, run)
        if set(found) != wanted or len(found) != len(wanted):
            raise run.damaged(cell_name, "its table is not of all configurations")
        about = cell.about
        if about.task not in study.tasks or about.haystack not in ("noise", "text"):
            raise run.damaged(cell_name, "it does not say what was asked")
        if set(about.kept or ()) != set(names):
            raise run.damaged(cell_name, "it does not say what was kept")


def _rows(name: str, cell: Cell, run: CellRun) -> list[tuple[Any, ...]]:
    """What the values of a cell's table are of."""
    table, columns = cell.table, ("configuration", "layer", "measure", "value")
    if not set(columns) <= set(table.columns) or table["value"].dtype.kind not in "fiu":
        raise run.damaged(name, "its table lacks columns")
    return list(zip(*(table[column] for column in columns[:3]), strict=True))


def _measures(rows: list[pd.DataFrame], cells: Sequence[Cell], name: str) -> Measures:
    by_layer = np.stack([_layers(row) for row in rows])
    layers = mean_and_interval(by_layer, 0.0)
    surprise = _end(rows, "nll")
    more = surprise - np.array([cell.about.dense_nll for cell in cells])
    return Measures(
        kl=_mean(_end(rows, "kl"), 0.0),
        top1=_mean(_end(rows, "top1"), 0.0, 1.0),
        perplexity=mean_exponential(surprise),
        perplexity_ratio=mean_exponential(more),
        kept=cells[0].about.kept[name],
        error=_mean(by_layer.mean(axis=1), 0.0),
        layer_error=LayerMeans(
            mean=tuple(layers["mean"]),
            standard_error=tuple(layers["standard_error"]),
            interval=tuple(ends_of(ends) for ends in layers["interval"]),
        ),
    )


def _dense(cells: Sequence[Cell]) -> Measures:
    """What dense attention has by definition, and its perplexity."""
    exact = Mean(mean=0.0, interval=(0.0, 0.0))
    one = Mean(mean=1.0, interval=(1.0, 1.0))
    surprise = np.array([cell.about.dense_nll for cell in cells])
    return Measures(kl=exact, top1=one, perplexity=mean_exponential(surprise), error=exact)


def _mean(values: Array, lowest: float, highest: float = np.inf) -> Mean:
    """The mean over passages."""
    found = mean_and_interval(values[:, None], lowest, highest)
    return Mean(
        mean=found["mean"][0],
        standard_error=found["standard_error"][0],
        interval=ends_of(found["interval"][0]),
    )


def _end(rows: list[pd.DataFrame], measure: str) -> Array:
    picked = [row[(row["layer"] == END) & (row["measure"] == measure)] for row in rows]
    return np.array([float(row["value"].iloc[0]) for row in picked])


def _layers(row: pd.DataFrame) -> Array:
    own = row[row["measure"] == "error"].sort_values("layer")
    return own["value"].to_numpy(dtype=np.float64)


def divergences(cells: Sequence[Cell], name: Configuration) -> Array:
    """KL of a configuration from dense on every passage."""
    rows = [cell.table[cell.table["configuration"] == name] for cell in cells]
    return _end(rows, "kl")


def realised_errors(cells: Sequence[Cell]) -> Array:
    """Relative error of every head when only it is reduced, [layers, heads]: over passages, rms."""
    squares = []
    for cell in cells:
        own = cell.table[cell.table["measure"] == "realised"]
        head = own["configuration"].str.removeprefix("head ").astype(int)
        by_head = own.assign(head=head).pivot(index="layer", columns="head", values="value")
        squares.append(by_head.to_numpy(dtype=np.float64) ** 2)
    return np.asarray(np.sqrt(np.mean(squares, axis=0)))


def _calibration(cells: Sequence[Cell], predicted: Array) -> HeadErrors:
    """Predicted against realised relative error of every head, when only it is reduced."""
    realised = realised_errors(cells)
    shown = (predicted > 0) & (realised > 0)
    ratio = realised[shown] / predicted[shown]
    within = float(np.mean((ratio < FACTOR) & (ratio > 1 / FACTOR))) if shown.any() else None
    return HeadErrors(
        predicted=tuple(map(tuple, predicted.tolist())),
        realised=tuple(map(tuple, realised.tolist())),
        factor=FACTOR,
        within_factor=within,
        median_ratio=float(np.median(ratio)) if shown.any() else None,
    )


N = TypeVar("N", bound=str)


def paired_ratio(over: Array, under: Array) -> Mean:
    """How many times larger distances are than others on the same passages, with interval."""
    return mean_exponential(np.log(over / under))


def mean_exponential(logs: Array) -> Mean:
    """Exponential of the mean of logarithms over passages, with interval."""
    found = exponentials(logs[:, None])
    return Mean(mean=found["mean"][0], interval=ends_of(found["interval"][0]))


def ends_of(interval: list[float] | None) -> tuple[float, float] | None:
    """Return the ends of an interval as records hold them."""
    return None if interval is None else (interval[0], interval[1])


def verdict_of(ratio: Mean) -> Verdict:
    """Judge the plan by the ratio of the distance of another configuration to its own."""
    interval = ratio.interval
    if interval is not None and interval[0] > 1:
        return "better"
    if interval is not None and interval[1] < 1:
        return "worse"
    return "undecided"


def passages_needed(over: Array, under: Array) -> int | None:
    """Passages in all with which a check would decide in 4 of 5 cases.

    See :func:`replicates_needed`: m is the mean and s the spread of the paired logarithms of the
    ratio. None if there is no spread yet, or if m is so small that no reasonable number decides.
    """
    logs = np.log(over / under)
    if len(logs) < 2:
        return None
    return replicates_needed(float(logs.mean()), float(logs.std(ddof=1)))


def closest(distances: Mapping[N, Array]) -> list[N]:
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


# From answered items to scores of tasks, with intervals.

#: A task on which the dense model scores less than this is one that it cannot do.
PASSES = 0.5


def task_results(items: Sequence[Cell]) -> dict[str, Any]:
    """Scores of all tasks, those that the dense model cannot do, and totals over the others."""
    tasks = list(dict.fromkeys(cell.about.task for cell in items))
    scores = {task: _scores([cell for cell in items if cell.about.task == task]) for task in tasks}
    cannot = tuple(task for task in tasks if scores[task]["dense"].score < PASSES)
    counted = [cell for cell in items if cell.about.task not in cannot]
    return {
        "tasks": scores,
        "dense_cannot": cannot,
        "totals": _scores(counted) if counted else {},
    }


def _scores(items: Sequence[Cell]) -> TaskScores:
    kinds = np.array([cell.about.haystack for cell in items])
    names = list(dict.fromkeys(items[0].table["configuration"]))
    logs = {name: _values(items, name, "log_probability") for name in names}
    found: TaskScores = {}
    for name in names:
        own = _values(items, name, "score")
        likely = mean_and_interval(logs[name][:, None], highest=0.0)
        found[name] = TaskScore(
            score=float(own.mean()),
            interval=wilson(float(own.sum()), len(own)),
            n=len(own),
            log_probability=likely["mean"][0],
            log_probability_interval=_ends(likely["interval"][0]),
            of_dense=None if name == "dense" else _difference(logs[name] - logs["dense"]),
            **{
                kind: float(own[kinds == kind].mean())
                for kind in ("noise", "text")
                if np.any(kinds == kind)
            },
        )
    return found


def _difference(values: Array) -> Mean:
    found = mean_and_interval(values[:, None])
    return Mean(
        mean=found["mean"][0],
        standard_error=found["standard_error"][0],
        interval=_ends(found["interval"][0]),
    )


def _values(items: Sequence[Cell], name: str, measure: str) -> Array:
    """A measure of every item, for one configuration."""
    out = []
    for cell in items:
        table = cell.table
        own = table[(table["configuration"] == name) & (table["measure"] == measure)]["value"]
        out.append(float(own.iloc[0]))
    return np.array(out)


def _ends(interval: list[float] | None) -> Interval | None:
    return None if interval is None else (interval[0], interval[1])
