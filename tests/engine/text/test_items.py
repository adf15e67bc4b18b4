"""Items of tasks: what is asked is in the text, once, and not where recent tokens would tell."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.engine.text.items import (
    NOISE,
    calibration_item,
    exact_match,
    free_end,
    task_item,
)
from esscher.engine.text.tasks import TASKS
from tests.engine.models.tiny import tiny_model

LENGTH, PASSAGE = 1500, 900


@pytest.fixture(params=["noise", "text"])
def source(request, text):
    return None if request.param == "noise" else text


def items(decoder, task, count, **options):
    return [task_item(decoder, task, number, LENGTH, **options) for number in range(count)]


def decoded(loaded, ids):
    return loaded.tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("task", TASKS)
def test_an_item(task, decoder, source):
    """Lengths, framing, needles and answers of every task in both kinds of text."""
    haystack = NOISE if source is None else decoded(decoder, source)
    for number, item in enumerate(items(decoder, task, 4, seed=3, haystack=source)):
        assert (item.task, item.number, len(item.context)) == (task, number, LENGTH)
        assert item.haystack == ("noise" if source is None else "text")
        assert item.context[0] == decoder.tokenizer.bos_token_id
        context, question = decoded(decoder, item.context), decoded(decoder, item.question)
        assert "Question:" in question
        assert not question.endswith(" ")
        for answer in item.answers:
            assert answer in context
            assert answer not in question
            assert answer not in decoded(decoder, item.context[-free_end(LENGTH) :])
            assert any(answer in decoded(decoder, item.context[a:b]) for a, b in item.needles)
        assert max(stop for _, stop in item.needles) <= LENGTH - free_end(LENGTH)
        assert decoded(decoder, item.answer_ids) == f" {item.answer}"
        assert exact_match(item, item.answer) == 1.0
        assert item.max_new > len(item.answer_ids)
        assert {a.dtype for a in (item.context, item.question, item.answer_ids)} == {np.dtype("i8")}
        # without its needles it is the text, and they lie between sentences
        inside = np.ones(LENGTH, dtype=bool)
        inside[0] = False
        for start, stop in item.needles:
            inside[start:stop] = False
            assert decoded(decoder, item.context[start - 1 : start]) == "."
            assert decoded(decoder, item.context[stop - 1 : stop + 1]) in (". ", '"\u0020')
        rest = decoded(decoder, item.context[inside])
        assert rest in (" ".join([NOISE] * 30) if source is None else haystack)


def test_an_item_is_a_function_of_its_number_and_the_seed(decoder, text):
    def ids(item):
        return (*item.context.tolist(), *getattr(item, "question", item.context).tolist())

    for task in TASKS:
        first = items(decoder, task, 5, seed=1, haystack=text)
        again = items(decoder, task, 5, seed=1, haystack=text)
        assert [ids(item) for item in first] == [ids(item) for item in again]
        other = items(decoder, task, 5, seed=2, haystack=text)
        assert not {ids(item) for item in first} & {ids(item) for item in other}
        assert len({item.answer for item in first}) == 5
    passages = [
        tuple(calibration_item(decoder, i, PASSAGE, 64, seed=seed, haystack=text).ids.tolist())
        for i in range(4)
        for seed in (0, 0, 1, 2)
    ]
    assert len(set(passages)) == 12


def test_depths_are_spread(decoder):
    for task in ("needle", "keys"):
        places = [item.needles[0][0] for item in items(decoder, task, 20)]
        depths = sorted(place / (LENGTH - free_end(LENGTH)) for place in places)
        # golden steps leave no gap of twice the mean; a needle and a sentence take a tenth
        assert np.diff([0.0, *depths, 1.0]).max() < 2 / 20 + 0.1


def test_words_and_variables(decoder):
    for item in items(decoder, "variables", 3):
        starts = [start for start, _ in item.needles]
        assert starts == sorted(starts)
        context, (first, second) = decoded(decoder, item.context), item.answers
        assert f"The variable {second} has the same value as the variable {first}." in context
    for item in items(decoder, "words", 3):
        context = decoded(decoder, item.context)
        assert [context.count(f" {word}.") for word in item.answers] == [10, 8, 6]


def test_match_of_answers(decoder):
    (item,) = items(decoder, "values", 1)
    first, second, third = item.answers
    assert item.answer == f"{first}\n2. {second}\n3. {third}"
    assert exact_match(item, f"{first}.\n2. {second}, {third}") == 1.0
    assert exact_match(item, f"1{first} and {second}0") == 0.0
    assert exact_match(item, f"the answer is:{second}") == pytest.approx(1 / 3)
    (quote,) = items(decoder, "quote", 1)
    assert exact_match(quote, quote.answer.upper().replace(" ", "\n")) == 1.0
    assert exact_match(quote, quote.answer[:-1]) == 0.0


def test_lengths_that_do_not_fit(decoder):
    for task in TASKS:
        with pytest.raises(
            InputError, match=f"length is 100, but the task '{task}' needs"
        ) as caught:
            task_item(decoder, task, 0, 100)
        least = int(str(caught.value).split("at least ")[1].split()[0].replace(",", ""))
        item = task_item(decoder, task, 0, least)
        assert len(item.context) == least
        assert max(stop for _, stop in item.needles) <= least - free_end(least)
        with pytest.raises(InputError, match="length is"):
            task_item(decoder, task, 0, least - 1)
    with pytest.raises(InputError, match="reads at most 4,096; give a length of at most"):
        task_item(decoder, "needle", 0, 4096)
    with pytest.raises(InputError, match="length is 200, but a retrieval passage needs contexts"):
        calibration_item(decoder, 0, 200, 64)
    with pytest.raises(InputError, match="there is no tokenizer"):
        task_item(tiny_model("llama"), "needle", 0, LENGTH)


# Passages for calibration: needles in the text, and their answers in the tokens after it.


@pytest.mark.parametrize("queries", [1, 128, 2000])
def test_a_calibration_passage(queries, decoder, source):
    passage = calibration_item(decoder, 2, PASSAGE, queries, seed=1, haystack=source)
    assert passage.number == 2
    assert len(passage.ids) == len(passage.is_delimiter) == PASSAGE + queries
    assert np.flatnonzero(passage.is_delimiter).tolist() == [0]
    decode = decoder.tokenizer.decode
    context, asked = decode(passage.ids[1:PASSAGE]), decode(passage.ids[PASSAGE:])
    assert "Question" not in context
    assert asked.startswith("\n\nQuestion: "[:queries])
    pairs = [pair.split("\nAnswer: ") for pair in asked.split("\n\nQuestion: ")[1:]]
    facts = [pair[1] for pair in pairs[:-1]]
    assert all(fact in context for fact in facts)
    if queries == 2000:
        assert len(set(facts[:4])) == len(set(facts)) == 4
        assert set(facts[4:8]) == set(facts[:4])
    # nothing in the last tokens of the text answers
    ends = (decode(passage.ids[PASSAGE - 64 - len(fact) : PASSAGE]) for fact in facts)
    assert not any(fact in end for fact, end in zip(facts, ends, strict=True))


def test_wording_is_not_that_of_the_tasks(decoder):
    """A plan calibrated on such passages has not seen the questions of the tasks."""
    asked = decoded(decoder, calibration_item(decoder, 0, PASSAGE, 2000).ids)
    for task in TASKS:
        (item,) = items(decoder, task, 1)
        needle = decoded(decoder, item.context[slice(*item.needles[0])]).split()
        threes = zip(needle, needle[1:], needle[2:], strict=False)
        assert not any(" ".join(three) in asked for three in threes)
