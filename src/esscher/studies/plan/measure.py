"""What is computed: calibration passages, budgets from them, and the check on unseen passages.

A passage is a cell, and so is an item of a task. The check needs the budgets, so that its cells
come after all others; articles need the bits with which published rules do best in the check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from msgspec import structs
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.options import AtMost
from esscher.core.streams import random_stream
from esscher.core.variables import joined
from esscher.engine.attention.bits import EXACT
from esscher.engine.cache.cache import check_reducible
from esscher.engine.cache.published import RULES
from esscher.engine.models.choice import AnyModel, opened_model
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.reading import check_supported
from esscher.engine.text.items import TaskItem, article_items, calibration_item, task_item
from esscher.engine.text.packing import Passage, cut_again, first_passages
from esscher.engine.text.questions import Article, read_questions
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Run
from esscher.runs.study import Setup, Work
from esscher.studies.plan.check import (
    article_cell,
    best_bits,
    item_cell,
    passage_cell,
    root_mean_square,
    set_check,
    set_questions,
)
from esscher.studies.plan.effects import (
    BITS,
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
    Ways,
    plan_tolerance,
    plan_total,
    plan_uniform,
)
from esscher.studies.plan.result import Plan
from esscher.studies.plan.study import (
    ALL,
    BASE,
    CalibrationCell,
    PassageCell,
    PlanData,
    PlanSettings,
    PlanStudy,
)

#: Mean effects over passages of the layers that are reduced, and what is predicted of the planned
#: and of the uniform budgets.
Prediction: TypeAlias = tuple[PassageEffects, Predicted, Predicted]


def read_texts(
    study: PlanStudy,
    settings: PlanSettings,
    loaded: LoadedModel,
    model: AnyModel,
    executor: CellExecutor,
) -> Work:
    """Take passages from the beginnings of the texts, and hide what tasks ask for."""
    check_supported(loaded)
    check_reducible(loaded)
    texts, length = {}, settings.length
    if study.plan is None:
        wanted = AtMost.unless(study.passages, max(1, settings.prose))
        texts["text"] = first_passages(loaded, study.text, wanted, length, study.column)
    if study.check is not None:
        count = settings.check_passages
        texts["check"] = first_passages(loaded, study.check, count, length, study.column)
    # the shorter text decides where defaults ask for more than it has
    shorter = min(texts.values(), key=lambda text: text.context)
    queries = int(settings.query_count)
    if shorter.context < length:
        for name, count in (("text", settings.prose or 1), ("check", settings.check_passages)):
            if name in texts:
                texts[name] = cut_again(loaded, texts[name], count, shorter.context)
        if isinstance(settings.query_count, AtMost):
            queries = min(queries, max(1, shorter.context // 4))
    unseen = texts["check"].passages if "check" in texts else ()
    values = {
        "prefix": shorter.context - queries,
        "query_count": queries,
        "check_passages": len(unseen) or None,
    }
    settings = study.fitted(shorter, loaded.outline, **values)
    prose = texts["text"].passages if settings.passages else ()
    while isinstance(settings.passages, AtMost) and settings.prose > len(prose):
        values["passages"] = AtMost(settings.passages - 1)
        settings = study.fitted(shorter, loaded.outline, **values)
    if settings.prose > len(prose):
        raise InputError(
            f"{texts['text'].source!r} has only {len(prose)} passages of {shorter.context} tokens, "
            f"but {settings.prose} are asked for; give more text, a prefix, or ask for fewer"
        )
    settings = structs.replace(
        settings, passages=int(settings.passages), retrieval=int(settings.retrieval)
    )
    calibration = list(prose) if settings.prose else []
    # retrieval passages end with questions about themselves: in the text, and in noise, in turn
    for i in range(settings.retrieval):
        haystack = None if i % 2 else np.concatenate([p.ids for p in prose])
        calibration.append(
            calibration_item(
                loaded,
                i,
                settings.prefix,
                settings.query_count,
                seed=settings.seed,
                haystack=haystack,
            )
        )
    items: dict[str, TaskItem] = {}
    for task in settings.tasks:
        for i, name in enumerate(settings.cells(task)):
            haystack = np.concatenate([p.ids for p in unseen]) if i % 2 else None
            items[name] = task_item(
                loaded, task, i, settings.prefix, seed=settings.seed, haystack=haystack
            )
    articles, questions = list[Article](), None
    if study.questions is not None:
        articles, questions = read_questions(study.questions)
        for article in articles:
            article_items(loaded, article)  # which refuses what the model cannot read
    records = {name: texts[name].record if name in texts else None for name in ("text", "check")}
    more = {"questions": questions, "plan": study.plan}
    setup = Setup(settings, {"model": loaded.record, **records, **more})
    return setup, partial(_batches, setup, model, calibration, unseen, items, articles, executor)


def _batches(
    setup: Setup[PlanSettings],
    model: AnyModel,
    calibration: Sequence[Passage],
    unseen: Sequence[Passage],
    items: Mapping[str, TaskItem],
    articles: Sequence[Article],
    executor: CellExecutor,
    run: Run,
) -> Iterator[Mapping[str, Task]]:
    """Yield calibration passages, then those of the check and items of tasks, then articles."""
    settings = setup.settings
    names = settings.cells("calibration")
    yield {
        name: Task(name, _calibration_cell, (model, passage, i, settings))
        for i, (name, passage) in enumerate(zip(names, calibration, strict=True))
    }
    if not run.missing(PlanStudy.cells(setup)):
        return
    cells = [cell for name in names if (cell := run.read(name)) is not None]
    budgets = executor.share(choose_budgets(setup, cells)[0])
    yield {
        name: Task(name, _passage_cell, (model, name, passage, budgets, settings))
        for kind, passages in (("trial", calibration), ("check", unseen))
        for name, passage in zip(settings.cells(kind), passages, strict=True)
    } | {
        name: Task(name, _cell, (model, item_cell, item, budgets, settings))
        for name, item in items.items()
    }
    if articles:
        checked = [cell for name in settings.cells("check") if (cell := run.read(name)) is not None]
        chosen = best_bits(joined(checked, "passage"))
        yield {
            name: Task(name, _cell, (model, article_cell, article, budgets, chosen, settings))
            for name, article in zip(PlanStudy.articles(setup), articles, strict=True)
        }


def _calibration_cell(
    model: AnyModel, passage: Passage, i: int, settings: PlanSettings
) -> xr.Dataset:
    with opened_model(model) as loaded:
        prefix, keeping, shape = settings.prefix, settings.keeping, loaded.shape
        # nothing is fitted before there is a plan
        read = read_passage(loaded, passage, prefix, keeping, settings.score, fits=False)
        bits = random_stream(settings.seed, "plan gradients", i).integers(2**62)
        generator = torch.Generator().manual_seed(int(bits))
        sizes = budget_grid(prefix, keeping.count)
        effects = measure_effects(*read, sizes, generator)
    data = CalibrationCell.new(**_axes(shape), selection=SELECTIONS, bits=BITS, budget=sizes)
    grouped = (shape.layers, shape.key_heads, -1)
    data.effect = effects.effect
    data.square = effects.square.reshape(*grouped, *effects.square.shape[2:])
    data.norm = effects.norm.reshape(grouped)
    data.sliding = np.isin(range(shape.layers), effects.sliding)
    return data.dataset


def _passage_cell(
    model: AnyModel,
    name: str,
    passage: Passage,
    budgets: Mapping[str, Budgets],
    settings: PlanSettings,
) -> xr.Dataset:
    rules = [RULES[rule] for rule in settings.against if name.startswith("check")]
    with opened_model(model) as loaded:
        prefix, keeping = settings.prefix, settings.keeping
        read = read_passage(loaded, passage, prefix, keeping, settings.score, rules)
        return passage_cell(*read, budgets, rules, settings.seed)


def _cell(model: AnyModel, measure: Callable[..., xr.Dataset], *given: Any) -> xr.Dataset:
    with opened_model(model) as loaded:
        return measure(loaded, *given)


def choose_budgets(
    setup: Setup[PlanSettings], cells: Sequence[xr.Dataset]
) -> tuple[dict[str, Budgets], NDArray[np.int64], Prediction | None]:
    """Choose budgets from the calibration passages, or take those of a plan that exists.

    Returns
    -------
    tuple[dict[str, Budgets], NDArray[np.int64], Prediction | None]
        ``planned``, and ``uniform`` ones with as many bytes in all, of the whole model; the layers
        that are reduced, those without a sliding window; and what is predicted, if the plan was not
        given.
    """
    settings, model, plan = setup.settings, setup.model, setup.records["plan"]
    if plan is not None:
        return given_budgets(plan), np.array(plan.reduced), None
    ways = Ways.of(settings.selection, settings.prefix, settings.keeping.count, model)
    stored = [CalibrationCell(cell) for cell in cells]
    layers = np.flatnonzero(~stored[0].sliding.values)
    parts = []
    for cell in stored:
        square, shape = cell.square.values, (model.layers, model.heads)
        effects = PassageEffects(
            cell.effect.values,
            square.reshape(*shape, *square.shape[3:]),
            cell.norm.values.reshape(shape),
        )
        parts.append(effects.chosen(layers, settings.selection))
    if settings.tolerance is not None:
        planned = plan_tolerance(parts, ways, settings.tolerance)
    else:
        assert settings.budget is not None
        dense = ways.nbytes.max() * len(layers) * model.key_heads
        planned = plan_total(parts, ways, int(settings.budget * dense))
    # what rounding leaves over is part of the plan, so uniform budgets may have it as well
    each = int(ways.nbytes[planned.way, planned.tokens].mean())
    uniform = plan_uniform(parts, ways, each)
    budgets = {
        name: each.budgets(layers, model.layers, ways)
        for name, each in (("planned", planned), ("uniform", uniform))
    }
    return budgets, layers, (average_effects(parts), planned, uniform)


def given_budgets(plan: Plan) -> dict[str, Budgets]:
    """Budgets of a plan that exists, and equal ones with the bits that most of its heads have."""
    bits = np.array(plan.bits or [[EXACT] * plan.model.key_heads] * plan.model.layers)
    given = Budgets(plan.tokens, np.array(plan.powers), bits, plan.nbytes, plan.selection)
    each = int(given.nbytes[plan.reduced].mean())
    kinds, counts = np.unique(bits[plan.reduced].reshape(-1, 2), axis=0, return_counts=True)
    frequent = kinds[counts.argmax()]
    tokens = np.arange(plan.prefix + 1)
    fits = plan.list_bytes(tokens, (int(frequent[0]), int(frequent[1]))) <= each
    equal = given._replace(tokens=given.tokens.copy(), bits=bits.copy(), nbytes=given.nbytes.copy())
    equal.tokens[plan.reduced] = tokens[fits].max()
    equal.bits[plan.reduced], equal.nbytes[plan.reduced] = frequent, each
    return {"planned": given, "uniform": equal}


def combine(setup: Setup[PlanSettings], cells: Mapping[str, xr.Dataset]) -> PlanData:
    """Choose budgets, and say what they cost."""
    settings, model, record = setup.settings, setup.model, setup.records["questions"]
    stored = {
        kind: [cells[name] for name in settings.cells(kind)]
        for kind in ("calibration", "trial", "check", *settings.tasks)
    }
    budgets, layers, prediction = choose_budgets(setup, stored.pop("calibration"))
    trials, unseen = stored.pop("trial"), stored.pop("check")
    data = PlanData.new(
        **_axes(model),
        budget=budget_grid(settings.prefix, settings.keeping.count) if trials else (),
        configuration=(*BASE, *settings.against) if unseen else (),
        passage=range(len(unseen)),
        task=(*stored, ALL) if stored else (),
        reference=BASE[:2],
        question=range(sum(record.counts) if record else 0),
    )
    planned = budgets["planned"]
    data.tokens, data.power, data.nbytes = planned.tokens, planned.powers, planned.nbytes
    data.key_bits, data.value_bits = np.moveaxis(planned.bits, -1, 0)
    data.sliding = ~np.isin(range(model.layers), layers)
    if prediction is not None:
        _set_prediction(data, settings, layers, prediction, PassageCell(joined(trials, "passage")))
    data.fill("predicted_error")
    if unseen:
        set_check(data, unseen, stored)
    if record is not None:
        set_questions(data, [cells[name] for name in PlanStudy.articles(setup)], record)
    data.fill()
    return data


def _axes(shape: Any) -> dict[str, range]:
    """Labels of layers, key heads, and the query heads of a group."""
    group = shape.heads // shape.key_heads
    return {"layer": range(shape.layers), "key_head": range(shape.key_heads), "query": range(group)}


def _set_prediction(
    data: PlanData,
    settings: PlanSettings,
    reduced: NDArray[np.int64],
    prediction: Prediction,
    trials: PassageCell,
) -> None:
    """Set what the plan is predicted to cost, from what it did to its calibration passages."""
    mean, planned, uniform = prediction
    prose = np.arange(settings.passages) < settings.prose
    kl = {
        name: np.ascontiguousarray(trials.kl.sel(configuration=name).values)
        for name in ("planned", "uniform")
    }
    effect, interval, retrieval = planned.cost(kl["planned"], prose)
    data.predicted_kl = [effect, *(interval or (None, None))]
    data.predicted_uniform_kl = uniform.cost(kl["uniform"], prose)[0]
    data.predicted_retrieval_kl = retrieval
    data.predicted_error = root_mean_square(trials.realised_error)
    # by the tokens that a key head keeps, selected as in the plan
    relative = np.sqrt(mean.square / mean.norm[..., None, None])
    layers, key_heads = mean.effect.shape[:2]
    relative = relative.reshape(layers, key_heads, -1, *relative.shape[2:])
    way = planned.way[..., None, None]
    by_budget = {
        "budget_effect": np.take_along_axis(mean.effect, way, axis=2)[:, :, 0],
        "budget_error": np.take_along_axis(relative, way[..., None], axis=3)[:, :, :, 0],
    }
    for name, values in by_budget.items():
        whole = np.full((data.tokens.sizes["layer"], *values.shape[1:]), np.nan)
        whole[reduced] = values
        setattr(data, name, whole)
