"""Questions to a cache: the model's own answer, whichever cache it is, and no trace is left."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.cache.cache import planned_cache, reduced_copy
from esscher.engine.cache.storage import Kept
from esscher.engine.models.transformers_library import quiet
from esscher.engine.text.tasks import TASKS
from esscher.engine.text.tasks.asking import ask, ask_each, read_context
from esscher.engine.text.tasks.items import task_items
from tests.engine.cache.plans import budgets_for
from tests.engine.models.tiny import transformers

LENGTH = 1200
#: Rounding of float32 in log-probabilities of nats.
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def asked(decoder, text):
    """An item of every task, with a cache that has read it."""
    found = {}
    for task in TASKS:
        (item,) = task_items(decoder, task, 1, LENGTH, haystack=text)
        found[task] = item, read_context(decoder, item)
    return found


def every(decoder, step=1):
    """Every so many tokens, in all heads of all layers."""
    index = torch.arange(0, LENGTH, step)
    heads = [Kept(index, torch.zeros(len(index)))] * decoder.shape.key_heads
    return dict.fromkeys(range(decoder.shape.layers), heads)


@pytest.mark.parametrize("task", TASKS)
def test_log_probability_is_the_direct_computation(task, decoder, asked):
    item, cache = asked[task]
    ids = np.concatenate([item.context, item.question, item.answer_ids])
    with torch.no_grad():
        laws = decoder.model(input_ids=torch.from_numpy(ids)[None]).logits[0].log_softmax(-1)
    first = len(ids) - len(item.answer_ids)
    expected = np.mean([float(laws[i - 1, ids[i]]) for i in range(first, len(ids))])
    assert ask(decoder, cache, item).log_probability == pytest.approx(expected, abs=ROUNDING)


@pytest.mark.parametrize("task", TASKS)
def test_text_is_what_the_model_generates(task, decoder, asked):
    item, cache = asked[task]
    ids = torch.from_numpy(np.concatenate([item.context, item.question]))[None]
    with quiet():
        new = decoder.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=item.max_new,
            do_sample=False,
            pad_token_id=0,
        )[0, ids.shape[1] :]
    expected = decoder.tokenizer.decode(new, skip_special_tokens=True)
    assert ask(decoder, cache, item).text == expected


@pytest.mark.parametrize("task", TASKS)
def test_caches_that_hold_all_tokens_answer_alike(task, decoder, asked):
    item, cache = asked[task]
    dense = ask(decoder, cache, item)
    planned = read_context(decoder, item, planned_cache(decoder, budgets_for(decoder, 1.0)))
    for other in (planned, reduced_copy(decoder, cache, every(decoder))):
        found = ask(decoder, other, item)
        assert found.text == dense.text
        assert found.score == dense.score
        assert found.log_probability == pytest.approx(dense.log_probability, abs=ROUNDING)


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
            decoder.model(input_ids=next_ids, past_key_values=copy.deepcopy(one)).logits
            for one in (before, cache)
        ]
    assert torch.equal(*laws)


@pytest.mark.parametrize("task", TASKS)
def test_parts_of_a_text_answer_together_as_they_do_alone(task, decoder, asked):
    item, cache = asked[task]

    parts = [every(decoder, step) for step in (1, 2, 5, 9)]
    alone = [ask(decoder, reduced_copy(decoder, cache, part), item) for part in parts]
    together = ask_each(decoder, reduced_copy(decoder, cache, *parts), item, len(parts))
    assert len({one.log_probability for one in alone}) == len(parts)
    assert [one.text for one in together] == [one.text for one in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=ROUNDING)


def test_an_end_of_text_ends_the_answer(decoder, asked):
    """The model's first token is made an end."""
    item, cache = asked["needle"]
    first = ask(decoder, cache, item).text[0]
    config, before = decoder.model.generation_config, decoder.model.generation_config.eos_token_id
    try:
        config.eos_token_id = [1, *decoder.tokenizer(first, add_special_tokens=False)["input_ids"]]
        assert ask(decoder, cache, item).text == ""
    finally:
        config.eos_token_id = before


def test_a_cache_that_has_read_something_else(decoder, asked):
    item, _ = asked["needle"]
    empty = transformers.DynamicCache(config=decoder.model.config)
    with pytest.raises(InputError, match="has read 0 tokens, and the text of the item has 1,200"):
        ask(decoder, empty, item)
