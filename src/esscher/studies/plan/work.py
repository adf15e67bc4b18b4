"""What is computed: calibration passages, budgets from them, and the check on unseen passages.

A passage is a cell, and so is an item of a task. The check needs the budgets, so that its cells
come after all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.options import AtMost, checked, options_of
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.cache.budgets import POWERS, Grid
from esscher.engine.cache.cache import check_reducible
from esscher.engine.cache.prompt import ObservedPrompt
from esscher.engine.cache.published import rule_named
from esscher.engine.models.choice import AnyModel, opened_model
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.reading import PassageReader, check_supported
from esscher.engine.text.packing import Passage, PassageSet, cut_again, first_passages
from esscher.engine.text.tasks.items import TaskItem, calibration_item, task_items
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell, CellRun
from esscher.studies.plan.check import (
    Budgets,
    check_items,
    check_results,
    check_tables,
    item_cell,
    passage_cell,
    realised_errors,
    values_of,
)
from esscher.studies.plan.effects import (
    FITTED,
    SELECTIONS,
    PassageEffects,
    budget_grid,
    measure_effects,
    read_passage,
)
from esscher.studies.plan.predict import Predicted, plan_tolerance, plan_total, plan_uniform
from esscher.studies.plan.result import VERSION, Check, Plan, PlanCell, Prediction, Total
from esscher.studies.plan.study import PlanStudy
from esscher.studies.plan.view import headline

if TYPE_CHECKING:
    from esscher.engine.text.documents import TextSource

#: Bytes of keys and values of calibration passages that are held until there is a plan: each is
#: read twice, before there is one and under it, and reading takes as long as everything else.
HELD_BYTES = 2**29
#: Calibration passages that were read, by number.
Held: TypeAlias = dict[int, tuple[ObservedPrompt, PassageReader]]


def read_texts(
    study: PlanStudy, loaded: LoadedModel, model: AnyModel, executor: CellExecutor
) -> PlanWork:
    """Take passages from the beginnings of the texts, and hide what tasks ask for."""
    check_supported(loaded)
    check_reducible(loaded)
    wanted = AtMost.unless(study.passages, max(1, study.kinds.count("prose")))
    prose = other = first_passages(loaded, study.text, wanted, study.length, study.column)
    if study.check is not None:
        other = read_check(study, loaded)
    # the shorter text decides where defaults ask for more than it has
    shorter = min(prose, other, key=lambda text: text.context)
    length, queries = shorter.context, int(study.query_count)
    if length < study.length:
        prose = cut_again(loaded, prose, study.kinds.count("prose") or 1, length)
        other = cut_again(loaded, other, study.check_passages or 1, length)
        if isinstance(study.query_count, AtMost):
            queries = min(queries, max(1, length // 4))
    study = study.fitted(
        shorter,
        loaded.outline,
        prefix=length - queries,
        query_count=queries,
        check_passages=0 if study.check is None else len(other),
    )
    while isinstance(study.passages, AtMost) and study.kinds.count("prose") > len(prose):
        study = replace(study, passages=AtMost(study.passages - 1))
    if study.kinds.count("prose") > len(prose):
        raise InputError(
            f"{prose.source!r} has only {len(prose)} passages of {length} tokens, but "
            f"{study.passages} are asked for; give more text, a prefix, or ask for fewer"
        )
    study = replace(study, passages=int(study.passages))
    kinds = study.kinds
    passages = prose.passages if "prose" in kinds else ()
    # retrieval passages end with questions about themselves: in the text, and in noise, in turn
    text = np.concatenate([passage.ids for passage in prose.passages])
    passages += tuple(
        calibration_item(
            loaded,
            i,
            study.prefix,
            study.query_count,
            seed=study.seed,
            haystack="noise" if i % 2 else text,
        )
        for i in range(kinds.count("retrieval"))
    )
    unseen: tuple[Passage, ...] = ()
    items: tuple[TaskItem, ...] = ()
    if study.check is not None:
        items = task_texts(study, loaded, other.passages)
        study, unseen = replace(study, check=other.record), other.passages
    study = replace(study, model=loaded.record, text=prose.record)
    return PlanWork(study, model, passages, unseen, items, executor)


def read_check(study: PlanStudy, loaded: LoadedModel) -> PassageSet:
    """Read the passages of the check; of a default number there may be fewer."""
    assert study.check is not None
    return first_passages(loaded, study.check, study.check_passages, study.length, study.column)


def task_texts(
    study: PlanStudy, loaded: LoadedModel, passages: Sequence[Passage]
) -> tuple[TaskItem, ...]:
    """Items of all tasks, in noise and in the text of the check, in turn."""
    text = np.concatenate([passage.ids for passage in passages])
    items: list[TaskItem] = []
    for task in study.tasks:
        for i in range(study.task_items):
            haystack = text if i % 2 else "noise"
            items += task_items(
                loaded, task, 1, study.prefix, seed=study.seed, haystack=haystack, first=i
            )
    return tuple(items)


@dataclass(frozen=True, eq=False)
class PlanWork:
    """A plan, ready to be made: see :class:`esscher.runs.old_study.Work`."""

    study: PlanStudy
    model: AnyModel
    calibration: tuple[Passage, ...]
    unseen: tuple[Passage, ...]
    items: tuple[TaskItem, ...]
    executor: CellExecutor

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield calibration passages, then those of the check and the items of tasks."""
        # an executor stays in this process
        study = replace(self.study, out=None, executor=None)
        names = study.calibration_cells
        held: Held | None = None if self.executor.remote else {}
        yield {
            name: Task(name, _calibration_cell, (self.model, passage, i, study, held))
            for i, (name, passage) in enumerate(zip(names, self.calibration, strict=True))
        }
        if not run.missing(study.trial_cells + study.check_cells + study.task_cells):
            return
        measured = {name: cell for name in names if (cell := run.read(name)) is not None}
        planned, uniform, _ = choose_budgets(study, measured, run)
        budgets = self.executor.share(
            {
                name: Budgets(own.budgets, own.powers, study.selection)
                for name, own in (("planned", planned), ("uniform", uniform))
            }
        )
        yield (
            {
                name: Task(name, _trial_cell, (self.model, passage, i, budgets, study, held))
                for i, (name, passage) in enumerate(
                    zip(study.trial_cells, self.calibration, strict=True)
                )
            }
            | {
                name: Task(name, _check_cell, (self.model, passage, budgets, study, study.against))
                for name, passage in zip(study.check_cells, self.unseen, strict=True)
            }
            | {
                name: Task(name, _item_cell, (self.model, item, budgets, study))
                for name, item in zip(study.task_cells, self.items, strict=True)
            }
        )


def _calibration_cell(
    model: AnyModel, passage: Passage, i: int, study: PlanStudy, held: Held | None
) -> Cell:
    with opened_model(model) as loaded:
        # nothing is fitted before there is a plan
        prompt, reader = read_passage(
            loaded, passage, study.prefix, study.keeping, study.score, fits=held is not None
        )
        bits = random_stream(study.seed, "plan gradients", i).integers(2**62)
        generator = torch.Generator().manual_seed(int(bits))
        sizes = budget_grid(study.prefix, study.keeping.count)
        effects = measure_effects(prompt, reader, sizes, generator)
    if held is not None:
        taken = sum(other.nbytes for other, _ in held.values())
        if taken + prompt.nbytes <= HELD_BYTES:
            held[i] = prompt, reader
    table = pd.concat(
        [
            pd.DataFrame({"what": name, "value": getattr(effects, name).ravel()})
            for name in ("effect", "square", "norm")
        ],
        ignore_index=True,
    )
    return Cell(PlanCell(sliding=effects.sliding), table)


def _trial_cell(
    model: AnyModel,
    passage: Passage,
    i: int,
    budgets: Mapping[str, Budgets],
    study: PlanStudy,
    held: Held | None,
) -> Cell:
    observed = None if held is None else held.pop(i, None)
    if observed is None:
        return _check_cell(model, passage, budgets, study, ())
    with opened_model(model):
        return passage_cell(*observed, budgets, (), study.seed)


def _check_cell(
    model: AnyModel,
    passage: Passage,
    budgets: Mapping[str, Budgets],
    study: PlanStudy,
    against: Sequence[str],
) -> Cell:
    rules = [rule_named(name) for name in against]
    with opened_model(model) as loaded:
        observed = read_passage(loaded, passage, study.prefix, study.keeping, study.score, rules)
        return passage_cell(*observed, budgets, rules, study.seed)


def _item_cell(
    model: AnyModel, item: TaskItem, budgets: Mapping[str, Budgets], study: PlanStudy
) -> Cell:
    rules = [rule_named(name) for name in study.against]
    with opened_model(model) as loaded:
        return item_cell(loaded, item, budgets, rules, study.keeping, study.score, study.seed)


def choose_budgets(
    study: PlanStudy, cells: Mapping[str, Cell], run: CellRun
) -> tuple[Predicted, Predicted, NDArray[np.int64]]:
    """Budgets of the plan, uniform ones with as many tokens in all, and the layers they reduce.

    Those are the layers without a sliding window.
    """
    model, sizes = study.model_record, budget_grid(study.prefix, study.keeping.count)
    shapes = {
        "effect": (model.layers, model.key_heads, SELECTIONS, len(sizes)),
        "square": (model.layers, model.heads, SELECTIONS, len(sizes)),
        "norm": (model.layers, model.heads),
    }
    stored = []
    for name in study.calibration_cells:
        table, sliding = cells[name].table, cells[name].about.sliding
        known = {"what", "value"} <= set(table.columns)
        if not known or table["value"].dtype.kind not in "fiu":
            raise run.damaged(name, "it has no effects")
        arrays: dict[str, Array] = {}
        for what, shape in shapes.items():
            numbers = table[table["what"] == what]["value"]
            if len(numbers) != np.prod(shape):
                raise run.damaged(name, f"its {what} is not one per layer, head, power and size")
            arrays[what] = numbers.to_numpy(dtype=np.float64).reshape(shape)
        if len(set(sliding)) >= model.layers or any(i >= model.layers for i in sliding):
            raise run.damaged(name, "its layers with a window are not those of the model")
        stored.append(PassageEffects(**arrays, sliding=sliding))
    layers = np.array([i for i in range(model.layers) if i not in stored[0].sliding])
    parts = [part.chosen(layers, study.selection) for part in stored]
    if study.tolerance is not None:
        planned = plan_tolerance(parts, sizes, study.tolerance)
    else:
        assert study.budget is not None
        total = int(study.budget * study.prefix) * len(layers) * model.key_heads
        planned = plan_total(parts, sizes, total)
    # what rounding leaves over is part of the plan, so uniform budgets may have it as well
    uniform = plan_uniform(parts, sizes, int(planned.budgets.mean()))
    first = FITTED if study.selection == "fitted" else 0
    planned, uniform = (
        replace(own, powers=own.powers + first).among(layers, model.layers, study.prefix)
        for own in (planned, uniform)
    )
    return planned, uniform, layers


def assemble(study: PlanStudy, cells: Mapping[str, Cell], run: CellRun) -> Plan:
    """Choose budgets, and say what they cost."""
    planned, uniform, layers = choose_budgets(study, cells, run)
    trial, unseen, items = (
        {name: cells[name] for name in names}
        for names in (study.trial_cells, study.check_cells, study.task_cells)
    )
    check_tables(study, trial, run, ())
    check_tables(study, unseen, run, study.against)
    check_items(study, items, run)
    prose = np.array([kind == "prose" for kind in study.kinds])
    tried = list(trial.values())
    effect, interval, retrieval = planned.cost(values_of(tried, "planned", "kl")[:, 0], prose)
    uniform_effect, _, _ = uniform.cost(values_of(tried, "uniform", "kl")[:, 0], prose)
    head_error = realised_errors(tried)
    check = None
    if unseen:
        check = check_results(list(unseen.values()), head_error, list(items.values()))
    counted = planned.budgets[layers]
    total = Total(tokens=int(counted.sum()), ratio=float(counted.mean() / study.prefix))
    predicted = Prediction(
        unit="KL in nats per token",
        effect=effect,
        interval=interval,
        uniform_effect=uniform_effect,
        uniform_powers=_grid(np.array(POWERS)[uniform.powers]),
        retrieval=retrieval,
        head_error=_grid(head_error),
        price=planned.price,
        gap=planned.gap,
    )
    budgets = tuple(tuple(row) for row in planned.budgets.tolist())
    return Plan.of(
        run,
        study,
        len(cells),
        headline(budgets, study.prefix, total.ratio, predicted, check),
        version=VERSION,
        model=study.model_record,
        prefix=study.prefix,
        keeping=study.keeping,
        budgets=budgets,
        ratios=_grid(planned.budgets / study.prefix),
        powers=_grid(np.array(POWERS)[planned.powers]),
        selection=study.selection,
        score=study.score,
        sliding=tuple(sorted(set(range(study.model_record.layers)) - set(layers.tolist()))),
        total=total,
        predicted=predicted,
        check=check,
    )


def _grid(values: Array) -> Grid:
    return tuple(tuple(row) for row in values.tolist())


def evaluate_plan(plan: Plan, loaded: LoadedModel, text: TextSource, **options: Any) -> Check:
    """Check a plan on another text and other tasks; see :meth:`Plan.evaluate`."""
    known = {option.name: option for option in options_of(type(plan.study))}
    given = {name: checked(known[name], value) for name, value in options.items()}
    if plan.study.check is None:  # defaults of a check are yet to be filled in
        given = {"check_passages": None, "against": None} | given
    study = replace(plan.study, check=text, **given).fill(loaded.outline)
    study = replace(study, model=plan.model)
    tokens = plan.token_budgets.tokens
    reduced = [i for i in range(len(tokens)) if i not in plan.sliding]
    equal = np.full_like(tokens, plan.prefix)
    equal[reduced] = int(tokens[reduced].mean())
    budgets = {
        name: Budgets(own, np.searchsorted(POWERS, np.asarray(powers)), plan.selection)
        for name, own, powers in (
            ("planned", tokens, plan.powers),
            ("uniform", equal, plan.predicted.uniform_powers),
        )
    }
    rules = [rule_named(name) for name in study.against]
    keeping, score, seed = plan.keeping, study.score, study.seed
    passages = read_check(study, loaded).passages
    cells = []
    for passage in passages:
        observed = read_passage(loaded, passage, plan.prefix, keeping, score, rules)
        cells.append(passage_cell(*observed, budgets, rules, seed))
    items = [
        item_cell(loaded, item, budgets, rules, keeping, score, seed)
        for item in task_texts(study, loaded, passages)
    ]
    return check_results(cells, np.asarray(plan.predicted.head_error), items)
