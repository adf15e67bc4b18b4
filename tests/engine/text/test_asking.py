"""Questions to a cache: the model's own answer, whichever cache it is, and no trace is left."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from esscher.engine.cache.cache import planned_cache, reduced_copy
from esscher.engine.cache.storage import Kept
from esscher.engine.models.transformers_library import quiet
from esscher.engine.text.items import ask, task_item
from esscher.engine.text.tasks import TASKS
from tests.engine.cache.plans import budgets_for
from tests.engine.models.demo import demo_model
from tests.engine.models.tiny import transformers

LENGTH = 1200
#: Rounding of float32 in log-probabilities of nats.
ROUNDING = 1e-5


def read_context(loaded, item, cache=None):
    """A cache that has read the text of an item; transformers' own unless another is given."""
    cache = transformers.DynamicCache(config=loaded.model.config) if cache is None else cache
    with torch.no_grad():
        loaded.backbone(torch.from_numpy(item.context)[None], past_key_values=cache, use_cache=True)
    return cache


@pytest.fixture(scope="module")
def asked(decoder, text):
    """An item of every task, with a cache that has read it."""
    items = {task: task_item(decoder, task, 0, LENGTH, haystack=text) for task in TASKS}
    return {task: (item, read_context(decoder, item)) for task, item in items.items()}


def every(decoder, step=1):
    """Every so many tokens, in all heads of all layers."""
    index = torch.arange(0, LENGTH, step)
    heads = [Kept(index, torch.zeros(len(index)))] * decoder.shape.key_heads
    return dict.fromkeys(range(decoder.shape.layers), heads)


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_the_models(task, decoder, asked):
    """Their text is what the model generates, their probability the direct computation."""
    item, cache = asked[task]
    (answer,) = ask(decoder, cache, item)
    ids = np.concatenate([item.context, item.question, item.answer_ids])
    with torch.no_grad():
        laws = decoder.model(input_ids=torch.from_numpy(ids)[None]).logits[0].log_softmax(-1)
    first = len(ids) - len(item.answer_ids)
    expected = np.mean([float(laws[i - 1, ids[i]]) for i in range(first, len(ids))])
    assert answer[2] == pytest.approx(expected, abs=ROUNDING)
    prompt = torch.from_numpy(ids[:first])[None]
    with quiet():
        new = decoder.model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=item.max_new,
            do_sample=False,
            pad_token_id=0,
        )[0, first:]
    assert answer[0] == decoder.tokenizer.decode(new, skip_special_tokens=True)
    # caches that hold all tokens answer alike
    planned = read_context(decoder, item, planned_cache(decoder, budgets_for(decoder, 1.0)))
    for other in (planned, reduced_copy(decoder, cache, every(decoder))):
        (same,) = ask(decoder, other, item)
        assert same[:2] == answer[:2]
        assert same[2] == pytest.approx(answer[2], abs=ROUNDING)


@pytest.mark.parametrize("ratio", [None, 0.25])
def test_the_cache_is_left_as_it_was(ratio, decoder, asked):
    item, cache = asked["values"]
    if ratio is not None:
        cache = read_context(decoder, item, planned_cache(decoder, budgets_for(decoder, ratio)))
    before, next_ids = copy.deepcopy(cache), torch.from_numpy(item.question)[None]
    first = ask(decoder, cache, item)
    assert cache.get_seq_length() == LENGTH
    assert ask(decoder, cache, item) == first
    with torch.no_grad():
        laws = [
            decoder.model(input_ids=next_ids, past_key_values=copy.deepcopy(other)).logits
            for other in (before, cache)
        ]
    assert torch.equal(*laws)


@pytest.mark.parametrize("task", TASKS)
def test_parts_of_a_text_answer_together_as_they_do_alone(task, decoder, asked):
    item, cache = asked[task]
    parts = [every(decoder, step) for step in (1, 2, 5, 9)]
    alone = [*(ask(decoder, reduced_copy(decoder, cache, part), item)[0] for part in parts)]
    together = ask(decoder, reduced_copy(decoder, cache, *parts), item, len(parts))
    assert len({answer[2] for answer in alone}) == len(parts)
    assert [answer[0] for answer in together] == [answer[0] for answer in alone]
    for answer, other in zip(together, alone, strict=True):
        assert answer[2] == pytest.approx(other[2], abs=ROUNDING)


def test_an_end_of_text_ends_the_answer(decoder, asked):
    """The model's first token is made an end."""
    item, cache = asked["needle"]
    first = ask(decoder, cache, item)[0][0][0]
    config, before = decoder.model.generation_config, decoder.model.generation_config.eos_token_id
    try:
        config.eos_token_id = [1, *decoder.tokenizer(first, add_special_tokens=False)["input_ids"]]
        assert ask(decoder, cache, item)[0][0] == ""
    finally:
        config.eos_token_id = before


@pytest.mark.slow
@pytest.mark.parametrize(("task", "least"), [("needle", 3), ("quote", 3), ("variables", 1.5)])
def test_smollm2_answers(task, least):
    """A real decoder understands the questions; tasks say little about one that does not."""
    loaded = demo_model("demo:smollm2")
    items = [task_item(loaded, task, number, 512) for number in range(3)]
    scores = [ask(loaded, read_context(loaded, item), item)[0][1] for item in items]
    assert sum(scores) >= least
