"""A plan that was made before, on other texts and tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from esscher.core.options import checked, options_of
from esscher.engine.cache.budgets import POWERS
from esscher.engine.cache.published import rule_named
from esscher.studies.plan.asked import item_cell
from esscher.studies.plan.calibrate import ObservedPassage
from esscher.studies.plan.check import PassageCheck
from esscher.studies.plan.compare import check_results
from esscher.studies.plan.configurations import Budgets, Chosen
from esscher.studies.plan.records import Check
from esscher.studies.plan.result import Plan
from esscher.studies.plan.work import read_check, task_texts

if TYPE_CHECKING:
    from esscher.engine.models import LoadedModel
    from esscher.engine.text.documents import TextSource
    from esscher.studies.plan.study import PlanStudy


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
