"""Questions of a file about its articles, asked after the cache was reduced."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import esscher
from esscher.core.errors import InputError
from esscher.engine.attention.bits import list_bytes
from esscher.engine.cache.cache import ObservedPrompt
from esscher.engine.text.items import article_items, ask
from esscher.engine.text.questions import read_questions, squad_scores
from esscher.studies.plan import measure
from esscher.studies.plan.check import over_articles, scaled_budgets
from tests.studies.plan.small import DECODER, prose, roomy

OPTIONS = DECODER | {"against": "snapkv", "check_passages": 2}


def tree(words=(300, 70)):
    """Articles of so many words, longer and shorter than the prefix, in SQuAD's format."""
    articles = []
    for number, count in enumerate(words):
        text = prose(10 + number)[0].split()[:count]
        qas = [
            {"id": str(i), "question": f"What is {text[i]}?", "answers": [{"text": text[i + 1]}]}
            for i in range(3 - number)
        ]
        qas[0]["answers"].append({"text": " ".join(text[:3]), "answer_start": 0})
        qas.append({"id": "no", "question": "Why?", "answers": [], "is_impossible": True})
        paragraphs = [
            {"context": " ".join(text[:20]), "qas": qas},
            {"context": " ".join(text[20:]), "qas": []},
        ]
        articles.append({"title": f"Article_{number}", "paragraphs": paragraphs})
    return {"version": "v2.0", "data": articles}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("questions") / "squad.json"
    path.write_text(json.dumps(tree()))
    return path


@pytest.fixture(scope="module")
def answered(file, tmp_path_factory):
    out = tmp_path_factory.mktemp("questions") / "run"
    return esscher.plan(roomy(), prose(0), check=prose(1), questions=file, out=out, **OPTIONS)


def test_every_configuration_replies(answered, file):
    assert answered["article"].values.tolist() == ["Article_0"] * 3 + ["Article_1"] * 2
    replies, frame = answered.table("replies"), answered.table("questions")
    assert frame["configuration"].tolist() == ["dense", "planned", "uniform", "snapkv"]
    assert len(replies) == 5 * 4
    record = answered.setup.records["questions"]
    assert (record.source, record.counts) == (str(file), (3, 2))
    assert f"5 questions of {file} about 2 articles: mean F1 is" in answered.headline
    assert frame["f1_over_dense"].isna().tolist() == [True, False, False, False]
    assert frame["f1_over_planned"].isna().tolist() == [False, True, False, False]
    assert esscher.load(answered.folder).to_dict() == answered.to_dict()


def test_the_dense_model_replies_to_the_whole_article(answered, file):
    loaded, article = roomy(), read_questions(file)[0][0]
    assert article.text.count("\n\n") == 1
    items = article_items(loaded, article)
    prompt = ObservedPrompt(loaded, items[0].context, answered.plan.keeping)
    for number, item in enumerate(items):
        ((reply, _, _),) = ask(loaded, prompt.cache, item)
        shown = answered.data.isel(question=number).sel(configuration="dense")
        assert (shown["reply"].item(), shown["answer"].item()) == (reply, item.answer)
        assert shown["reply_f1"].item() == squad_scores(reply, item.answers)[1]
        assert "\n" not in reply


@pytest.mark.parametrize("count", [30, 90, 400])
def test_budgets_scale_to_the_article_as_in_a_cache(answered, count):
    loaded, plan = roomy(), answered.plan
    ids = np.resize(np.arange(5, 40), count)
    prompt = ObservedPrompt(loaded, ids, plan.keeping)
    both = scaled_budgets(measure.given_budgets(plan), plan.prefix, prompt)
    rule = plan.cache(loaded).rule
    for layer in range(plan.model.layers):
        expected = np.minimum(rule.room(layer, count), count)
        np.testing.assert_array_equal(both["planned"].tokens[layer], expected)
    planned, uniform = (each.nbytes.mean() for each in both.values())
    token = list_bytes(1, 0, count, loaded.shape.head_dim, 4, (16, 16))
    assert planned - token < uniform <= planned


def test_a_plan_that_exists_is_asked_too_and_an_interrupt_loses_one_article(
    answered, file, tmp_path, monkeypatch
):
    done, count = measure.article_cell, iter(range(9))

    def stops(*given):
        if next(count) == 1:
            raise KeyboardInterrupt
        return done(*given)

    options = {"questions": file, "against": "snapkv", "check_passages": 2, "query_count": 12}
    monkeypatch.setattr(measure, "article_cell", stops)
    with pytest.raises(KeyboardInterrupt):
        answered.plan.evaluate(roomy(), prose(1), out=tmp_path / "run", **options)
    monkeypatch.undo()
    parts = {path.stem for path in (tmp_path / "run" / "parts").iterdir()}
    assert "questions-0" in parts
    assert "questions-1" not in parts
    again = answered.plan.evaluate(roomy(), prose(1), out=tmp_path / "run", **options)
    # uniform budgets have the bits of most heads now, where they had those that cost least
    for name in ("dense", "planned"):
        labels = {"configuration": name}
        assert again["reply"].sel(labels).equals(answered["reply"].sel(labels))
        assert again["f1"].sel(labels).equals(answered["f1"].sel(labels))


def test_articles_are_the_units():
    values = np.array([1.0, 0.0, 1.0, 1.0, 0.0])
    terms = over_articles(values, np.array([0, 0, 0, 1, 1]))
    assert terms.mean() == pytest.approx(values.mean())
    # 2 of 3 are right, and 1 of 2: their sums over 3 and 2 times the mean, by 2.5 questions
    assert terms == pytest.approx([0.6 + (2 - 1.8) / 2.5, 0.6 + (1 - 1.2) / 2.5])
    assert over_articles(values, np.zeros(5, dtype=int)).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t.pop("data"), "squad.json: the file has no 'data', as SQuAD's files do"),
        (
            lambda t: t["data"][0].update(paragraphs=3),
            "data[0].paragraphs is damaged: it is 3; it must be a list",
        ),
        (
            lambda t: t["data"][0]["paragraphs"][1].pop("context"),
            "squad.json: data[0].paragraphs[1] has no 'context'",
        ),
        (
            lambda t: t["data"][0]["paragraphs"][0]["qas"][1].update(answers=[]),
            "data[0].paragraphs[0].qas[1] has no words in its question, or no answer with words",
        ),
        (
            lambda t: t["data"][0]["paragraphs"][0]["qas"][1].update(question=None),
            "qas[1].question is damaged: it is None; it must be a string",
        ),
        (lambda t: t.update(data=[]), "has no question with an answer; give a file in SQuAD's"),
    ],
)
def test_files_in_another_format_are_refused_before_a_model_is_loaded(damage, message, tmp_path):
    wrong, path = tree(), tmp_path / "squad.json"
    damage(wrong)
    path.write_text(json.dumps(wrong))
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        esscher.plan("demo:smollm2", check="demo:code", questions=path, budget=0.5)
    assert str(path) in str(caught.value)


def test_what_cannot_be_asked_is_refused(file, tmp_path):
    with pytest.raises(InputError, match="questions are part of a check; give a text with"):
        esscher.plan(roomy(), prose(0), questions=file, **(OPTIONS | {"against": None}))
    with pytest.raises(InputError, match=r"there is no file of questions 'nothing\.json'"):
        esscher.plan(roomy(), prose(0), check=prose(1), questions="nothing.json", **OPTIONS)
    for words in (30, 900):
        (tmp_path / "one.json").write_text(json.dumps(tree((words,))))
        with pytest.raises(InputError, match=r"'Article_0' has .* 'llama' reads 5.*, and below 65"):
            article_items(roomy(), read_questions(tmp_path / "one.json")[0][0])
