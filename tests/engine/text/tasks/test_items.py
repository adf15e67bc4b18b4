"""Items of tasks: what is asked is in the text, once, and not where recent tokens would tell."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.engine.text.tasks import TASKS
from esscher.engine.text.tasks.asking import exact_match
from esscher.engine.text.tasks.items import SENTENCES, free_end, task_items
from tests.engine.models.tiny import tiny_model

LENGTH = 1500


@pytest.fixture(params=["noise", "text"])
def source(request, text):
    return "noise" if request.param == "noise" else text


def said(loaded, ids):
    return loaded.tokenizer.decode(ids, skip_special_tokens=True)


def same(items, others):
    return [i.context.tolist() + i.question.tolist() for i in items] == [
        i.context.tolist() + i.question.tolist() for i in others
    ]


@pytest.mark.parametrize("task", TASKS)
def test_an_item(task, decoder, source):
    """Lengths, framing, needles and answers of every task in both kinds of text."""
    items = task_items(decoder, task, 4, LENGTH, seed=3, haystack=source)
    assert [item.number for item in items] == [0, 1, 2, 3]
    assert {item.haystack for item in items} == {"noise" if source == "noise" else "text"}
    for item in items:
        assert item.task == task
        assert len(item.context) == LENGTH
        assert item.context[0] == decoder.tokenizer.bos_token_id
        context, question = said(decoder, item.context), said(decoder, item.question)
        assert "Question:" in question
        assert not question.endswith(" ")
        for answer in item.answers:
            assert answer in context
            assert answer not in question
            assert answer not in said(decoder, item.context[-free_end(LENGTH) :])
            assert any(answer in said(decoder, item.context[a:b]) for a, b in item.needles)
        assert max(stop for _, stop in item.needles) <= LENGTH - free_end(LENGTH)
        assert said(decoder, item.answer_ids) == f" {item.answer}"
        assert exact_match(item, item.answer) == 1.0
        assert item.max_new > len(item.answer_ids)
        assert {a.dtype for a in (item.context, item.question, item.answer_ids)} == {np.dtype("i8")}


@pytest.mark.parametrize("task", TASKS)
def test_without_its_needles_a_context_is_the_text(task, decoder, source):
    for item in task_items(decoder, task, 2, LENGTH, haystack=source):
        inside = np.ones(LENGTH, dtype=bool)
        inside[0] = False
        for start, stop in item.needles:
            inside[start:stop] = False
        rest = said(decoder, item.context[inside])
        assert rest in (" ".join([SENTENCES] * 30) if source == "noise" else source)
        # between sentences
        for start, stop in item.needles:
            assert said(decoder, item.context[start - 1 : start]) == "."
            assert said(decoder, item.context[stop - 1 : stop + 1]) in (". ", '"\u0020')


@pytest.mark.parametrize("task", TASKS)
def test_an_item_is_a_function_of_its_number_and_the_seed(task, decoder, text):
    items = task_items(decoder, task, 5, LENGTH, seed=1, haystack=text)
    assert same(items, task_items(decoder, task, 5, LENGTH, seed=1, haystack=text))
    assert same(items[3:], task_items(decoder, task, 2, LENGTH, seed=1, haystack=text, first=3))
    other = task_items(decoder, task, 5, LENGTH, seed=2, haystack=text)
    assert not any(same([a], [b]) for a in items for b in other)
    assert len({item.answer for item in items}) == 5


def test_tokens_of_a_text_are_as_good_as_the_text(decoder, text):
    ids = decoder.tokenizer(text, add_special_tokens=False)["input_ids"]
    items = task_items(decoder, "needle", 3, LENGTH, haystack=text)
    assert same(items, task_items(decoder, "needle", 3, LENGTH, haystack=ids))
    assert same(items, task_items(decoder, "needle", 3, LENGTH, haystack=np.array(ids, np.int32)))


def test_depths_are_spread(decoder):
    for task in ("needle", "keys"):
        items = task_items(decoder, task, 20, LENGTH)
        depths = sorted(item.needles[0][0] / (LENGTH - free_end(LENGTH)) for item in items)
        # golden steps leave no gap of twice the mean; a needle and a sentence take a tenth
        assert np.diff([0.0, *depths, 1.0]).max() < 2 / 20 + 0.1


def test_variables_come_in_order(decoder):
    for item in task_items(decoder, "variables", 3, LENGTH):
        starts = [start for start, _ in item.needles]
        assert starts == sorted(starts)
        context, (first, second) = said(decoder, item.context), item.answers
        assert f"The variable {second} has the same value as the variable {first}." in context


def test_frequent_words_are_the_most_frequent(decoder):
    for item in task_items(decoder, "words", 3, LENGTH):
        context = said(decoder, item.context)
        assert [context.count(f" {word}.") for word in item.answers] == [10, 8, 6]


def test_match_of_answers(decoder):
    (item,) = task_items(decoder, "values", 1, LENGTH)
    first, second, third = item.answers
    assert item.answer == f"{first}\n2. {second}\n3. {third}"
    assert exact_match(item, f"{first}.\n2. {second}, {third}") == 1.0
    assert exact_match(item, f"1{first} and {second}0") == 0.0
    assert exact_match(item, f"the answer is:{second}") == pytest.approx(1 / 3)
    (quote,) = task_items(decoder, "quote", 1, LENGTH)
    assert exact_match(quote, quote.answer.upper().replace(" ", "\n")) == 1.0
    assert exact_match(quote, quote.answer[:-1]) == 0.0


def test_too_short_lengths(decoder, text):
    for task in TASKS:
        with pytest.raises(InputError, match=f"length is 100, but the task '{task}' needs") as said:
            task_items(decoder, task, 3, 100, haystack=text)
        least = int(str(said.value).split("at least ")[1].split()[0].replace(",", ""))
        for item in task_items(decoder, task, 3, least):
            assert len(item.context) == least
            assert max(stop for _, stop in item.needles) <= least - free_end(least)
        with pytest.raises(InputError, match="length is"):
            task_items(decoder, task, 3, least - 1)


def test_bad_input(decoder, text):
    with pytest.raises(InputError, match="there is no task 'needles'; choose from needle, keys, v"):
        task_items(decoder, "needles", 1, LENGTH)
    with pytest.raises(InputError, match="there is no tokenizer"):
        task_items(tiny_model("llama"), "needle", 1, LENGTH)
    with pytest.raises(InputError, match="reads at most 4,096; give a length of at most"):
        task_items(decoder, "needle", 1, 4096)
    with pytest.raises(InputError, match="has 1,000 tokens, and 1,500 are needed"):
        task_items(decoder, "needle", 1, LENGTH, haystack=text[:1000])
    with pytest.raises(InputError, match="tokens from 5 to 98, and the model knows 0 to 97"):
        task_items(decoder, "needle", 1, LENGTH, haystack=[5, 98] * 2000)
    for wrong in ([0.5] * 2000, 3, [[1] * 2000], None):
        with pytest.raises(InputError, match="a text, or a list of token ids"):
            task_items(decoder, "needle", 1, LENGTH, haystack=wrong)
    for name in ("count", "length", "seed", "first"):
        with pytest.raises(InputError, match=f"{name} is -1"):
            task_items(decoder, **{"task": "needle", "count": 1, "length": 9} | {name: -1})
