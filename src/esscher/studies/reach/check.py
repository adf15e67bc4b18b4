"""A held-out item with every scale: how well the text is read, and the question answered."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import numpy as np
import torch

from esscher.engine.models import LoadedModel
from esscher.engine.models.scaling import LogitScale, scaled_attention
from esscher.engine.models.transformers_library import transformers_module
from esscher.engine.reading import surprise
from esscher.engine.text.tasks import TaskItem
from esscher.engine.text.tasks.asking import next_laws
from esscher.studies.reach.records import ArmScore

#: Tokens at the end of a text at which a model's surprise is measured, those of needles left out.
READ = 256


def check_item(
    loaded: LoadedModel, item: TaskItem, scales: Mapping[str, LogitScale | None]
) -> dict[str, ArmScore]:
    """Read the text of an item and answer its question with each scale; None leaves logits alone.

    The scale is there from the first token of the text on.
    """
    found = {}
    for name, scale in scales.items():
        scaled = nullcontext() if scale is None else scaled_attention(loaded, scale)
        with torch.no_grad(), scaled:
            found[name] = _arm(loaded, item)
    return found


def _arm(loaded: LoadedModel, item: TaskItem) -> ArmScore:
    cache = transformers_module().DynamicCache(config=loaded.model.config)
    count = min(READ, len(item.context) - 1)
    laws = next_laws(loaded, cache, item.context, count + 1)[:-1].cpu()
    places = np.arange(len(item.context) - count, len(item.context))
    text = np.ones(count, dtype=bool)
    for start, end in item.needles:
        text &= (places < start) | (places >= end)
    following = torch.from_numpy(item.context[places])
    surprised = surprise(laws[text], following[text])
    answer = torch.from_numpy(item.answer_ids)
    ids = np.concatenate([item.question, item.answer_ids[:-1]])
    said = next_laws(loaded, cache, ids, len(answer)).cpu()
    return ArmScore(
        surprise=surprised,
        log_probability=-surprise(said, answer),
        right=bool((said.argmax(dim=-1) == answer).all()),
    )
