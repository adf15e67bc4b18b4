"""What is computed: calibration passages, budgets from them, and the check on unseen passages.

A passage is a cell, and so is an item of a task. The check needs the budgets, so that its cells
come after all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.options import AtMost, checked, options_of
from esscher.core.streams import random_stream
from esscher.engine.cache.budgets import POWERS, Grid
from esscher.engine.cache.cache import check_reducible
from esscher.engine.cache.published import Rule, rule_named
from esscher.engine.models import AnyModel, LoadedModel, opened_model
from esscher.engine.reading import check_supported
from esscher.engine.text import Passage, PassageSet
from esscher.engine.text.packing import cut_again, first_passages
from esscher.engine.text.tasks.items import TaskItem, calibration_item, task_items
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell, CellRun
from esscher.studies.plan.check import (
    Budgets,
    Chosen,
    PassageCheck,
    check_items,
    check_results,
    check_tables,
    divergences,
    item_cell,
    realised_errors,
)
from esscher.studies.plan.effects import (
    FITTED,
    SELECTIONS,
    HeldPassages,
    ObservedPassage,
    PassageEffects,
    budget_grid,
    measure_effects,
)
from esscher.studies.plan.predict import Predicted, plan_tolerance, plan_total, plan_uniform
from esscher.studies.plan.result import VERSION, Check, Plan, PlanCell, Prediction, Shapes, Total
from esscher.studies.plan.study import PlanStudy
from esscher.studies.plan.view import headline

if TYPE_CHECKING:
    from esscher.engine.models import LoadedModel
    from esscher.engine.text.documents import TextSource
    from esscher.studies.plan.study import PlanStudy


#: Arrays of a calibration passage that its table has.
ARRAYS = ("effect", "square", "norm")


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
    study, prose, other = _fitted(study, loaded, prose, other)
    kinds = study.kinds
    passages = prose.passages if "prose" in kinds else ()
    passages += _retrieval_passages(study, loaded, prose.passages, kinds.count("retrieval"))
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


def _fitted(
    study: PlanStudy, loaded: LoadedModel, prose: PassageSet, other: PassageSet
) -> tuple[PlanStudy, PassageSet, PassageSet]:
    """Let the shorter text decide where defaults ask for more than it has."""
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
    return replace(study, passages=int(study.passages)), prose, other


def _retrieval_passages(
    study: PlanStudy, loaded: LoadedModel, passages: Sequence[Passage], count: int
) -> tuple[Passage, ...]:
    """Passages that end with questions about themselves: in the text, and in noise, in turn."""
    text = np.concatenate([passage.ids for passage in passages])
    return tuple(
        calibration_item(
            loaded,
            i,
            study.prefix,
            study.query_count,
            seed=study.seed,
            haystack="noise" if i % 2 else text,
        )
        for i in range(count)
    )


def task_texts(
    study: PlanStudy, loaded: LoadedModel, passages: Sequence[Passage]
) -> tuple[TaskItem, ...]:
    """Items of all tasks, in noise and in the text of the check, in turn."""
    text = np.concatenate([passage.ids for passage in passages])
    found: list[TaskItem] = []
    for task in study.tasks:
        for i in range(study.task_items):
            haystack = text if i % 2 else "noise"
            found += task_items(
                loaded, task, 1, study.prefix, seed=study.seed, haystack=haystack, first=i
            )
    return tuple(found)


@dataclass(frozen=True, eq=False)
class PlanWork:
    """A plan, ready to be made: see :class:`esscher.runs.study.Work`."""

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
        held = None if self.executor.remote else HeldPassages()
        yield {
            name: Task(name, _calibration_cell, (self.model, passage, i, study, held))
            for i, (name, passage) in enumerate(zip(names, self.calibration, strict=True))
        }
        if not run.missing(study.trial_cells + study.check_cells + study.task_cells):
            return
        found = {name: cell for name in names if (cell := run.read(name)) is not None}
        chosen = chosen_of(study, found, run)
        choice, plain = self.executor.share(chosen), self.executor.share(chosen.without_rules)
        yield (
            {
                name: Task(name, _trial_cell, (self.model, passage, i, plain, study, held))
                for i, (name, passage) in enumerate(
                    zip(study.trial_cells, self.calibration, strict=True)
                )
            }
            | {
                name: Task(name, _check_cell, (self.model, passage, choice, study))
                for name, passage in zip(study.check_cells, self.unseen, strict=True)
            }
            | {
                name: Task(name, _item_cell, (self.model, item, choice, study))
                for name, item in zip(study.task_cells, self.items, strict=True)
            }
        )


def _calibration_cell(
    model: AnyModel, passage: Passage, i: int, study: PlanStudy, held: HeldPassages | None
) -> Cell:
    with opened_model(model) as loaded:
        # nothing is fitted before there is a plan
        observed = ObservedPassage(
            loaded,
            passage,
            study.prefix,
            study.keeping,
            study.score,
            asks=held is not None,
        )
        bits = random_stream(study.seed, "plan gradients", i).integers(2**62)
        generator = torch.Generator().manual_seed(int(bits))
        effects = measure_effects(observed, budget_sizes(study), generator)
    if held is not None:
        held.put(i, observed)
    # one row per number; axes are kept beside them
    arrays = {name: getattr(effects, name) for name in ARRAYS}
    table = pd.concat(
        [pd.DataFrame({"what": name, "value": a.ravel()}) for name, a in arrays.items()],
        ignore_index=True,
    )
    shapes = Shapes(**{name: tuple(a.shape) for name, a in arrays.items()})
    return Cell(PlanCell(shapes=shapes, sliding=effects.sliding), table)


def _trial_cell(
    model: AnyModel,
    passage: Passage,
    i: int,
    chosen: Chosen,
    study: PlanStudy,
    held: HeldPassages | None,
) -> Cell:
    observed = None if held is None else held.take(i)
    if observed is None:
        return _check_cell(model, passage, chosen, study)
    with opened_model(model):
        return PassageCheck(observed, chosen, study.seed).cell()


def _check_cell(model: AnyModel, passage: Passage, chosen: Chosen, study: PlanStudy) -> Cell:
    with opened_model(model) as loaded:
        observed = ObservedPassage(
            loaded, passage, study.prefix, study.keeping, study.score, chosen.rules
        )
        return PassageCheck(observed, chosen, study.seed).cell()


def _item_cell(model: AnyModel, item: TaskItem, chosen: Chosen, study: PlanStudy) -> Cell:
    with opened_model(model) as loaded:
        return item_cell(loaded, item, chosen, study.keeping, study.score, study.seed)


def rules_of(study: PlanStudy) -> tuple[Rule, ...]:
    """Published rules that the plan is compared with."""
    return tuple(rule_named(name) for name in study.against)


def budget_sizes(study: PlanStudy) -> NDArray[np.int64]:
    """Budgets at which effects are computed."""
    return budget_grid(study.prefix, study.keeping.count)


def effects_of(study: PlanStudy, cells: Mapping[str, Cell], run: CellRun) -> list[PassageEffects]:
    """Effects of budgets on all calibration passages, as they are stored."""
    count = len(budget_sizes(study))
    return [
        _stored_effects(study, name, cells[name], count, run) for name in study.calibration_cells
    ]


def choose_budgets(
    study: PlanStudy, stored: Sequence[PassageEffects], layers: NDArray[np.int64]
) -> tuple[Predicted, Predicted]:
    """Budgets of the plan, and uniform ones with as many tokens in all."""
    sizes = budget_sizes(study)
    parts = [part.chosen(layers, study.selection) for part in stored]
    if study.tolerance is not None:
        planned = plan_tolerance(parts, sizes, study.tolerance)
    else:
        units = len(layers) * study.model_record.key_heads
        assert study.budget is not None
        planned = plan_total(parts, sizes, int(study.budget * study.prefix) * units)
    # what rounding leaves over is part of the plan, so uniform budgets may have it as well
    uniform = plan_uniform(parts, sizes, int(planned.budgets.mean()))
    first = FITTED if study.selection == "fitted" else 0
    planned, uniform = (
        replace(found, powers=found.powers + first).among(
            layers, study.model_record.layers, study.prefix
        )
        for found in (planned, uniform)
    )
    return planned, uniform


def chosen_of(study: PlanStudy, cells: Mapping[str, Cell], run: CellRun) -> Chosen:
    """What the check compares."""
    stored, layers = effects_of(study, cells, run), planned_layers(study, cells)
    planned, uniform = (
        Budgets(found.budgets, found.powers, study.selection)
        for found in choose_budgets(study, stored, layers)
    )
    return Chosen(planned, uniform, rules_of(study))


def planned_layers(study: PlanStudy, cells: Mapping[str, Cell]) -> NDArray[np.int64]:
    """Layers whose keys are reduced: those without a sliding window."""
    sliding = set(cells[study.calibration_cells[0]].about.sliding)
    return np.array([i for i in range(study.model_record.layers) if i not in sliding])


def _stored_effects(
    study: PlanStudy, name: str, cell: Cell, sizes: int, run: CellRun
) -> PassageEffects:
    """Effects of budgets on a calibration passage, as they are stored."""
    model, about = study.model_record, cell.about
    wanted = {
        "effect": (model.layers, model.key_heads, SELECTIONS, sizes),
        "square": (model.layers, model.heads, SELECTIONS, sizes),
        "norm": (model.layers, model.heads),
    }
    known = {"what", "value"} <= set(cell.table.columns)
    if about.shapes is None or not known or cell.table["value"].dtype.kind not in "fiu":
        raise run.damaged(name, "it has no effects")
    arrays: dict[str, Any] = {}
    for what, shape in wanted.items():
        own = cell.table[cell.table["what"] == what]["value"]
        if getattr(about.shapes, what) != shape or len(own) != np.prod(shape):
            raise run.damaged(name, f"its {what} is not one per layer, head, power and size")
        arrays[what] = own.to_numpy(dtype=np.float64).reshape(shape)
    if len(set(about.sliding)) >= model.layers or any(i >= model.layers for i in about.sliding):
        raise run.damaged(name, "its layers with a window are not those of the model")
    return PassageEffects(**arrays, sliding=about.sliding)


def assemble(study: PlanStudy, cells: Mapping[str, Cell], run: CellRun) -> Plan:
    """Choose budgets, and say what they cost."""
    stored = effects_of(study, cells, run)
    layers = planned_layers(study, cells)
    planned, uniform = choose_budgets(study, stored, layers)
    trial, unseen, items = (
        {name: cells[name] for name in names}
        for names in (study.trial_cells, study.check_cells, study.task_cells)
    )
    check_tables(study, trial, run, ())
    check_tables(study, unseen, run, study.against)
    check_items(study, items, run)
    prose = np.array([kind == "prose" for kind in study.kinds])
    tried = list(trial.values())
    cost = planned.cost(divergences(tried, "planned"), prose)
    head_error = realised_errors(tried)
    check = None
    if unseen:
        check = check_results(list(unseen.values()), head_error, list(items.values()))
    counted = planned.budgets[layers]
    total = Total(tokens=int(counted.sum()), ratio=float(counted.mean() / study.prefix))
    predicted = Prediction(
        unit="KL in nats per token",
        effect=cost.effect,
        interval=cost.interval,
        uniform_effect=uniform.cost(divergences(tried, "uniform"), prose).effect,
        uniform_powers=_grid(np.array(POWERS)[uniform.powers]),
        retrieval=cost.retrieval,
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


def _grid(values: NDArray[np.float64]) -> Grid:
    return tuple(tuple(row) for row in values.tolist())


# A plan that was made before, on other texts and tasks.


def evaluate_plan(plan: Plan, loaded: LoadedModel, text: TextSource, **options: Any) -> Check:
    """Check a plan; see :meth:`Plan.evaluate`."""
    study = _study(plan, loaded, text, options)
    chosen = _chosen(plan, study.against)
    passages = read_check(study, loaded).passages
    keeping, score = plan.keeping, study.score
    cells = []
    for passage in passages:
        observed = ObservedPassage(loaded, passage, plan.prefix, keeping, score, chosen.rules)
        cells.append(PassageCheck(observed, chosen, study.seed).cell())
    items = [
        item_cell(loaded, item, chosen, keeping, score, study.seed)
        for item in task_texts(study, loaded, passages)
    ]
    predicted = np.asarray(plan.predicted.head_error)
    return check_results(cells, predicted, items)


def _study(plan: Plan, loaded: LoadedModel, text: TextSource, options: dict[str, Any]) -> PlanStudy:
    """The plan's own study with other options of its check."""
    known = {option.name: option for option in options_of(type(plan.study))}
    given = {name: checked(known[name], value) for name, value in options.items()}
    if plan.study.check is None:  # defaults of a check are yet to be filled in
        given = {"check_passages": None, "against": None} | given
    study = replace(plan.study, check=text, **given).fill(loaded.outline)
    return replace(study, model=plan.model)


def _chosen(plan: Plan, against: tuple[str, ...]) -> Chosen:
    rules = tuple(rule_named(name) for name in against)
    tokens = plan.token_budgets.tokens
    reduced = [i for i in range(len(tokens)) if i not in plan.sliding]
    each = np.full_like(tokens, plan.prefix)
    each[reduced] = int(tokens[reduced].mean())
    powers, uniform = (
        np.searchsorted(POWERS, np.asarray(grid))
        for grid in (plan.powers, plan.predicted.uniform_powers)
    )
    return Chosen(
        Budgets(tokens, powers, plan.selection), Budgets(each, uniform, plan.selection), rules
    )
