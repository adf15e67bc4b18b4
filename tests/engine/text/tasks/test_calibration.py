"""Passages for calibration: needles in the text, and their answers in the tokens after it."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.engine.text.packing import Passage
from esscher.engine.text.tasks import TASKS
from esscher.engine.text.tasks.items import calibration_item, task_items
from tests.engine.models.tiny import tiny_model

LENGTH = 900


@pytest.mark.parametrize("kind", ["noise", "text"])
@pytest.mark.parametrize("queries", [1, 128, 2000])
def test_a_passage(kind, queries, decoder, text):
    source = "noise" if kind == "noise" else text
    passage = calibration_item(decoder, 2, LENGTH, queries, seed=1, haystack=source)
    assert isinstance(passage, Passage)
    assert passage.number == 2
    assert len(passage.ids) == len(passage.is_delimiter) == LENGTH + queries
    assert np.flatnonzero(passage.is_delimiter).tolist() == [0]
    decode = decoder.tokenizer.decode
    context, asked = decode(passage.ids[1:LENGTH]), decode(passage.ids[LENGTH:])
    assert "Question" not in context
    assert asked.startswith("\n\nQuestion: "[:queries])
    pairs = [pair.split("\nAnswer: ") for pair in asked.split("\n\nQuestion: ")[1:]]
    facts = [pair[1] for pair in pairs[:-1]]
    assert all(fact in context for fact in facts)
    if queries == 2000:
        assert len(set(facts[:4])) == len(set(facts)) == 4
        assert set(facts[4:8]) == set(facts[:4])
    # nothing in the last tokens of the text answers
    assert not any(fact in decode(passage.ids[LENGTH - 64 - len(fact) : LENGTH]) for fact in facts)


def test_passages_are_functions_of_number_and_seed(decoder, text):
    def ids(number, seed):
        return calibration_item(decoder, number, LENGTH, 64, seed=seed, haystack=text).ids.tolist()

    assert ids(0, 0) == ids(0, 0)
    assert len({tuple(ids(number, seed)) for number in range(4) for seed in range(3)}) == 12


def test_wording_is_not_that_of_the_tasks(decoder):
    """A plan calibrated on such passages has not seen the questions of the tasks."""
    passage = calibration_item(decoder, 0, LENGTH, 2000)
    asked = decoder.tokenizer.decode(passage.ids)
    for task in TASKS:
        (item,) = task_items(decoder, task, 1, 1500)
        needle = decoder.tokenizer.decode(item.context[slice(*item.needles[0])])
        assert not any(" ".join(three) in asked for three in _threes(needle.split()))


def _threes(words):
    return zip(words, words[1:], words[2:], strict=False)


def test_bad_input(decoder):
    with pytest.raises(InputError, match="length is 200, but a retrieval passage needs contexts"):
        calibration_item(decoder, 0, 200, 64)
    with pytest.raises(InputError, match="query_count is 0"):
        calibration_item(decoder, 0, LENGTH, 0)
    with pytest.raises(InputError, match="there is no tokenizer"):
        calibration_item(tiny_model("llama"), 0, LENGTH, 64)
