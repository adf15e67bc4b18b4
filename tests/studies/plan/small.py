"""Small models, texts and options of plans that take a second."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from msgspec import structs

from esscher.engine.models.loaded import wrap_model
from esscher.studies.plan.check import set_check
from esscher.studies.plan.study import ItemCell, PassageCell, PlanData
from tests.engine.models.folders import WORDS, decoder_tokenizer, encoder_tokenizer
from tests.engine.models.tiny import tiny_model

DECODER = {"prefix": 120, "query_count": 12, "passages": 2, "check_passages": 3, "budget": 0.15}
#: Caches in which facts can be hidden; every rule.
OPTIONS = {
    "prefix": 224,
    "query_count": 12,
    "passages": 3,
    "check_passages": 2,
    "budget": 0.15,
    "against": "all",
    "tasks": ("values", "needle"),
    "task_items": 2,
}


def tiny(name="llama", positions=160, strength=12.0):
    model = tiny_model(name, max_position_embeddings=positions, strength=strength)
    tokenizer = decoder_tokenizer() if model.family.decoder else encoder_tokenizer()
    return wrap_model(model.model, tokenizer, name=name)


def roomy():
    """A decoder with room for questions about texts."""
    return tiny(positions=600, strength=6.0)


def prose(seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=1500))]


def item(task, haystack, number=0, **answered):
    """An item of a task, given score and log-probability of every configuration."""
    cell = ItemCell.new(item=[number], configuration=answered)
    cell.score, cell.log_probability = ([[both[i] for both in answered.values()]] for i in (0, 1))
    cell.haystack = [haystack]
    return cell.dataset


def checked_again(result, logs=None, passages=8, tasks=None):
    """The result of a plan with another check.

    Parameters
    ----------
    result
        A plan.
    logs
        Logarithm of the KL of every configuration, over that of the plan, by passage.
    passages
        How many there are.
    tasks
        Items by task.
    """
    before = result.data
    logs = logs or {"uniform": 0.0}
    names = ["dense", "planned", *logs]
    labels = {axis: before[axis].values for axis in ("layer", "key_head", "query", "budget")}
    shape = [len(labels[axis]) for axis in ("layer", "key_head", "query")]
    cells = []
    for i in range(passages):
        cell = PassageCell.new(**labels, passage=[i], configuration=names)
        kl = [0.0, 0.1] + [0.1 * np.exp(np.broadcast_to(x, passages)[i]) for x in logs.values()]
        cell.kl = cell.top1 = cell.nll = [kl]
        cell.error = np.full((1, len(names), shape[0]), 0.1)
        cell.realised_error = np.full((1, *shape), 0.2)
        cell.kept = np.full((1, len(names)), 100)
        cell.nbytes = np.full((1, len(names)), 1000)
        cells.append(cell.dataset)
    data = PlanData.new(
        **labels,
        passage=range(passages),
        configuration=names,
        task=[*tasks, "all"] if tasks else [],
        reference=names[:2],
        question=[],
    )
    for name in ("tokens", "power", "nbytes", "key_bits", "value_bits", "sliding"):
        data.dataset[name] = before[name]
    for name in before:
        if name.startswith(("predicted", "budget_")):
            data.dataset[name] = before[name]
    set_check(data, cells, tasks or {})
    data.fill()
    settings = structs.replace(
        result.setup.settings, check_passages=passages, against=tuple(names[3:])
    )
    setup = replace(result.setup, settings=settings)
    return replace(result, setup=setup, data=data.dataset.assign_attrs(before.attrs))
