"""What is computed: calibration passages, budgets from them, and the check on unseen passages.

A passage is a cell, and so is an item of a task. The check needs the budgets, so that its cells
come after all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from msgspec import structs
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.options import AtMost
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.core.variables import joined
from esscher.engine.cache.budgets import Keeping
from esscher.engine.cache.cache import check_reducible
from esscher.engine.cache.prompt import ObservedPrompt
from esscher.engine.cache.published import rule_named
from esscher.engine.models.choice import AnyModel, opened_model
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.models.record import ModelRecord
from esscher.engine.reading import PassageReader, check_supported
from esscher.engine.text.packing import Passage, PassageSet, cut_again, first_passages
from esscher.engine.text.tasks.items import TaskItem, calibration_item, task_items
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Run
from esscher.runs.result import attributes_of
from esscher.runs.study import Setup
from esscher.studies.plan.check import (
    HAYSTACKS,
    item_cell,
    passage_cell,
    root_mean_square,
    set_check,
)
from esscher.studies.plan.effects import (
    SELECTIONS,
    PassageEffects,
    average_effects,
    budget_grid,
    measure_effects,
    read_passage,
)
from esscher.studies.plan.predict import (
    Budgets,
    Predicted,
    plan_tolerance,
    plan_total,
    plan_uniform,
)
from esscher.studies.plan.result import PlanResult, UsesPlan
from esscher.studies.plan.study import (
    ALL,
    BASE,
    CalibrationCell,
    MadePlan,
    PassageCell,
    PlanData,
    PlanSettings,
    PlanStudy,
)

if TYPE_CHECKING:
    from esscher.engine.text.documents import TextSource

#: Bytes of keys and values of calibration passages that are held until there is a plan: each is
#: read twice, before there is one and under it, and reading takes as long as everything else.
HELD_BYTES = 2**29
#: Calibration passages that were read, by number.
ReadPassages: TypeAlias = dict[int, tuple[ObservedPrompt, PassageReader]]
#: Options of a check of a plan that exists.
OPTIONS = (
    "against",
    "tasks",
    "task_items",
    "check_passages",
    "query_count",
    "score",
    "seed",
    "column",
)


def read_texts(
    study: PlanStudy,
    settings: PlanSettings,
    loaded: LoadedModel,
    model: AnyModel,
    executor: CellExecutor,
) -> PlanWork:
    """Take passages from the beginnings of the texts, and hide what tasks ask for."""
    check_supported(loaded)
    check_reducible(loaded)
    wanted = AtMost.unless(study.passages, max(1, settings.prose))
    prose = other = first_passages(loaded, study.text, wanted, settings.length, study.column)
    if study.check is not None:
        other = read_check(study.check, settings, loaded, study.column)
    # the shorter text decides where defaults ask for more than it has
    shorter = min(prose, other, key=lambda text: text.context)
    length, queries = shorter.context, int(settings.query_count)
    if length < settings.length:
        prose = cut_again(loaded, prose, settings.prose or 1, length)
        other = cut_again(loaded, other, settings.check_passages or 1, length)
        if isinstance(settings.query_count, AtMost):
            queries = min(queries, max(1, length // 4))
    checked = None if study.check is None else len(other)
    study = replace(study, prefix=length - queries, query_count=queries, check_passages=checked)
    try:
        settings = study.resolve(loaded.outline)
        while isinstance(settings.passages, AtMost) and settings.prose > len(prose):
            study = replace(study, passages=AtMost(settings.passages - 1))
            settings = study.resolve(loaded.outline)
    except InputError as error:
        known = f"{shorter.source!r} has only {shorter.text_tokens} tokens"
        raise InputError(f"{known}: {error}") from error
    if settings.prose > len(prose):
        raise InputError(
            f"{prose.source!r} has only {len(prose)} passages of {length} tokens, but "
            f"{settings.prose} are asked for; give more text, a prefix, or ask for fewer"
        )
    settings = structs.replace(
        settings, passages=int(settings.passages), retrieval=int(settings.retrieval)
    )
    # retrieval passages end with questions about themselves: in the text, and in noise, in turn
    text = np.concatenate([passage.ids for passage in prose.passages])
    retrieval = tuple(
        calibration_item(
            loaded,
            i,
            settings.prefix,
            settings.query_count,
            seed=settings.seed,
            haystack="noise" if i % 2 else text,
        )
        for i in range(settings.retrieval)
    )
    setup = Setup(
        settings,
        {
            "model": loaded.record,
            "text": prose.record,
            "check": None if study.check is None else other.record,
        },
    )
    unseen = other.passages if settings.check_passages else ()
    items = task_texts(settings, loaded, unseen)
    passages = (prose.passages if settings.prose else ()) + retrieval
    return PlanWork(setup, model, passages, unseen, items, executor)


def read_check(
    text: TextSource, settings: PlanSettings, loaded: LoadedModel, column: str | None
) -> PassageSet:
    """Read the passages of the check; of a default number there may be fewer."""
    return first_passages(loaded, text, settings.check_passages, settings.length, column)


def task_texts(
    settings: PlanSettings, loaded: LoadedModel, passages: Sequence[Passage]
) -> dict[str, TaskItem]:
    """Items of all tasks by the name of their cell, in noise and in the text of the check."""
    if not settings.tasks:
        return {}
    text = np.concatenate([passage.ids for passage in passages])
    items: dict[str, TaskItem] = {}
    for task in settings.tasks:
        for i, name in enumerate(settings.cells(task)):
            haystack = text if i % 2 else HAYSTACKS[0]
            (items[name],) = task_items(
                loaded, task, 1, settings.prefix, seed=settings.seed, haystack=haystack, first=i
            )
    return items


@dataclass(frozen=True, eq=False)
class PlanWork:
    """A plan, ready to be made: see :class:`esscher.runs.study.Work`."""

    setup: Setup[PlanSettings]
    model: AnyModel
    calibration: tuple[Passage, ...]
    unseen: tuple[Passage, ...]
    items: Mapping[str, TaskItem]
    executor: CellExecutor

    def batches(self, run: Run) -> Iterator[Mapping[str, Task]]:
        """Yield calibration passages, then those of the check and the items of tasks."""
        settings, model = self.setup.settings, self.model
        names = settings.cells("calibration")
        held: ReadPassages | None = None if self.executor.remote else {}
        yield {
            name: Task(name, _calibration_cell, (model, passage, i, settings, held))
            for i, (name, passage) in enumerate(zip(names, self.calibration, strict=True))
        }
        if not run.missing(PlanStudy.cells(self.setup)):
            return
        cells = [cell for name in names if (cell := run.read(name)) is not None]
        budgets = self.executor.share(choose_budgets(self.setup, cells).budgets)
        trials = zip(settings.cells("trial"), self.calibration, strict=True)
        checks = zip(settings.cells("check"), self.unseen, strict=True)
        yield (
            {
                name: Task(name, _trial_cell, (model, passage, i, budgets, settings, held))
                for i, (name, passage) in enumerate(trials)
            }
            | {
                name: Task(
                    name, _check_cell, (model, passage, budgets, settings, settings.against)
                )
                for name, passage in checks
            }
            | {
                name: Task(name, _item_cell, (model, item, budgets, settings))
                for name, item in self.items.items()
            }
        )


def _calibration_cell(
    model: AnyModel, passage: Passage, i: int, settings: PlanSettings, held: ReadPassages | None
) -> xr.Dataset:
    with opened_model(model) as loaded:
        # nothing is fitted before there is a plan
        prompt, reader = read_passage(
            loaded, passage, settings.prefix, settings.keeping, settings.score, fits=held is not None
        )
        bits = random_stream(settings.seed, "plan gradients", i).integers(2**62)
        generator = torch.Generator().manual_seed(int(bits))
        sizes = budget_grid(settings.prefix, settings.keeping.count)
        effects = measure_effects(prompt, reader, sizes, generator)
        shape = loaded.shape
    if held is not None:
        taken = sum(other.nbytes for other, _ in held.values())
        if taken + prompt.nbytes <= HELD_BYTES:
            held[i] = prompt, reader
    data = CalibrationCell.new(
        **_axes(shape), selection=SELECTIONS, budget=sizes
    )
    grouped = (shape.layers, shape.key_heads, -1)
    data.effect = effects.effect
    data.square = effects.square.reshape(*grouped, *effects.square.shape[2:])
    data.norm = effects.norm.reshape(grouped)
    data.sliding = np.isin(range(shape.layers), effects.sliding)
    return data.dataset


def _trial_cell(
    model: AnyModel,
    passage: Passage,
    i: int,
    budgets: Mapping[str, Budgets],
    settings: PlanSettings,
    held: ReadPassages | None,
) -> xr.Dataset:
    observed = None if held is None else held.pop(i, None)
    if observed is None:
        return _check_cell(model, passage, budgets, settings, ())
    with opened_model(model):
        return passage_cell(*observed, budgets, (), settings.seed)


def _check_cell(
    model: AnyModel,
    passage: Passage,
    budgets: Mapping[str, Budgets],
    settings: PlanSettings,
    against: Sequence[str],
) -> xr.Dataset:
    rules = [rule_named(name) for name in against]
    with opened_model(model) as loaded:
        observed = read_passage(
            loaded, passage, settings.prefix, settings.keeping, settings.score, rules
        )
        return passage_cell(*observed, budgets, rules, settings.seed)


def _item_cell(
    model: AnyModel, item: TaskItem, budgets: Mapping[str, Budgets], settings: PlanSettings
) -> xr.Dataset:
    rules = [rule_named(name) for name in settings.against]
    keeping, score, seed = settings.keeping, settings.score, settings.seed
    with opened_model(model) as loaded:
        return item_cell(loaded, item, budgets, rules, keeping, score, seed)


@dataclass(frozen=True, eq=False)
class Chosen:
    """Budgets that were chosen, and the effects by which they were.

    Attributes
    ----------
    layers
        Layers that are reduced: those without a sliding window.
    planned, uniform
        The plan, and equal budgets with as many tokens in all.
    effects
        Mean over passages, of these layers.
    budgets
        Of the whole model, by configuration.
    """

    layers: NDArray[np.int64]
    planned: Predicted
    uniform: Predicted
    effects: PassageEffects
    budgets: dict[str, Budgets]


def choose_budgets(setup: Setup[PlanSettings], cells: Sequence[xr.Dataset]) -> Chosen:
    """Choose the budgets of the plan, and equal ones, from the calibration passages."""
    settings, model = setup.settings, setup.model
    sizes = budget_grid(settings.prefix, settings.keeping.count)
    stored = [CalibrationCell(cell) for cell in cells]
    layers = np.flatnonzero(~stored[0].sliding.values)
    parts = []
    for cell in stored:
        square = cell.square.values
        effects = PassageEffects(
            cell.effect.values,
            square.reshape(model.layers, model.heads, *square.shape[3:]),
            cell.norm.values.reshape(model.layers, model.heads),
        )
        parts.append(effects.chosen(layers, settings.selection))
    if settings.tolerance is not None:
        planned = plan_tolerance(parts, sizes, settings.tolerance)
    else:
        assert settings.budget is not None
        total = int(settings.budget * settings.prefix) * len(layers) * model.key_heads
        planned = plan_total(parts, sizes, total)
    # what rounding leaves over is part of the plan, so uniform budgets may have it as well
    uniform = plan_uniform(parts, sizes, int(planned.tokens.mean()))
    budgets = {
        name: each.budgets(layers, model.layers, settings.prefix, settings.selection)
        for name, each in (("planned", planned), ("uniform", uniform))
    }
    return Chosen(layers, planned, uniform, average_effects(parts), budgets)


def combine(setup: Setup[PlanSettings], cells: Mapping[str, xr.Dataset]) -> PlanData:
    """Choose budgets, and say what they cost."""
    settings, model = setup.settings, setup.model
    calibration, trial, unseen = (
        [cells[name] for name in settings.cells(kind)] for kind in ("calibration", "trial", "check")
    )
    chosen = choose_budgets(setup, calibration)
    sizes = budget_grid(settings.prefix, settings.keeping.count)
    data = _new(settings, model, sizes)
    _set_plan(data, chosen.budgets, settings.keeping, chosen.layers)
    trials = PassageCell(joined(trial, "passage"))
    prose = np.arange(settings.passages) < settings.prose
    planned, uniform = (
        np.ascontiguousarray(trials.kl.sel(configuration=name).values)
        for name in ("planned", "uniform")
    )
    effect, interval, retrieval = chosen.planned.cost(planned, prose)
    data.predicted_kl = [effect, *(interval or (np.nan, np.nan))]
    data.predicted_uniform_kl = chosen.uniform.cost(uniform, prose)[0]
    for name, value in (
        ("predicted_retrieval_kl", retrieval),
        ("price", chosen.planned.price),
        ("gap", chosen.planned.gap),
    ):
        setattr(data, name, np.nan if value is None else value)
    data.predicted_error = root_mean_square(trials.realised_error)
    data.budget_effect, data.budget_error = _curves(chosen, model)
    if unseen:
        tasks = {task: [cells[name] for name in settings.cells(task)] for task in settings.tasks}
        set_check(data, unseen, tasks)
    data.fill()
    return data


def _axes(shape: Any) -> dict[str, range]:
    """Labels of layers, key heads, and the query heads of a group."""
    return {
        "layer": range(shape.layers),
        "key_head": range(shape.key_heads),
        "query": range(shape.heads // shape.key_heads),
    }


def _new(settings: PlanSettings, model: ModelRecord, sizes: Sequence[int] | Array) -> PlanData:
    """Return a result without variables, with the labels of its axes."""
    checked = settings.check_passages > 0
    return PlanData.new(
        **_axes(model),
        budget=sizes,
        configuration=(*BASE, *settings.against) if checked else (),
        passage=range(settings.check_passages),
        task=(*settings.tasks, ALL) if settings.tasks else (),
        haystack=HAYSTACKS,
    )


def _set_plan(
    data: PlanData, budgets: Mapping[str, Budgets], keeping: Keeping, layers: Any
) -> None:
    """Set what the plan is; ``layers`` are those that are reduced."""
    data.tokens, data.power, _ = budgets["planned"]
    data.uniform_power = budgets["uniform"].powers
    data.sliding = ~np.isin(data.tokens["layer"].values, layers)
    data.sinks, data.recent = keeping.sinks, keeping.recent


def _curves(chosen: Chosen, model: ModelRecord) -> tuple[Array, Array]:
    """Predicted KL of a key head, and errors of its query heads, by the tokens that it keeps."""
    mean, ways = chosen.effects, chosen.planned.ways[..., None, None]
    shape = (len(chosen.layers), model.key_heads, -1)
    relative = np.sqrt(mean.square / mean.norm[..., None, None])
    relative = relative.reshape(*shape, *mean.square.shape[2:])
    effect = np.take_along_axis(mean.effect, ways, axis=2)[:, :, 0]
    error = np.take_along_axis(relative, ways[..., None, :, :], axis=3)[:, :, :, 0]
    whole = [np.full((model.layers, *x.shape[1:]), np.nan) for x in (effect, error)]
    whole[0][chosen.layers], whole[1][chosen.layers] = effect, error
    return whole[0], whole[1]


def evaluate(
    source: UsesPlan, loaded: LoadedModel, text: TextSource, given: Mapping[str, Any]
) -> PlanResult:
    """Check a plan on another text and other tasks; see :meth:`Plan.evaluate`."""
    for name in given:
        if name not in OPTIONS:
            raise InputError(f"evaluate has no {name!r}; it takes {', '.join(OPTIONS)}")
    plan, known = source.plan, source if isinstance(source, PlanResult) else None
    options: dict[str, Any] = {"score": plan.score}
    if known is not None:
        names = OPTIONS if known.checked else ("query_count", "task_items", "seed")
        fields = known.setup.settings
        options |= {n: getattr(fields, n) for n in names if n in PlanSettings.__struct_fields__}
    study = PlanStudy(
        loaded,
        check=text,
        budget=plan.ratio,
        prefix=plan.prefix,
        selection=plan.selection,
        **(options | dict(given)),
    ).checked()
    settings = study.resolve(loaded.outline)
    passages = read_check(text, settings, loaded, study.column)
    settings = structs.replace(
        settings,
        query_count=int(settings.query_count),
        check_passages=len(passages),
        passages=0,
        retrieval=0,
    )
    equal = np.full_like(plan.tokens, plan.prefix)
    equal[plan.reduced] = int(plan.tokens[plan.reduced].mean())
    powers = plan.powers if known is None else known.data["uniform_power"].values
    budgets = {
        "planned": Budgets(plan.tokens, np.array(plan.powers), plan.selection),
        "uniform": Budgets(equal, np.array(powers), plan.selection),
    }
    rules = [rule_named(name) for name in settings.against]
    keeping, score, seed = plan.keeping, settings.score, settings.seed
    cells = []
    for passage in passages:
        observed = read_passage(loaded, passage, plan.prefix, keeping, score, rules)
        cells.append(passage_cell(*observed, budgets, rules, seed))
    items = task_texts(settings, loaded, passages.passages)
    answers = {
        name: item_cell(loaded, item, budgets, rules, keeping, score, seed)
        for name, item in items.items()
    }
    data = _new(settings, plan.model, () if known is None else known.data["budget"].values)
    if known is None:
        _set_plan(data, budgets, keeping, plan.reduced)
        MadePlan(data.dataset).fill()  # nothing is predicted
    else:
        for variable in MadePlan.variables():
            data.dataset[variable.name] = known.data[variable.name]
    tasks = {task: [answers[name] for name in settings.cells(task)] for task in settings.tasks}
    set_check(data, cells, tasks)
    data.fill()
    before = None if known is None else known.setup.records["text"]
    records = {"model": plan.model, "text": before, "check": passages.record}
    setup = Setup(settings, records)
    with PlanStudy.opened(setup, None) as run:
        attributes = attributes_of(PlanStudy, setup, PlanStudy.cells(setup), run.about)
    return PlanResult(PlanStudy, setup, data.dataset.assign_attrs(attributes))
