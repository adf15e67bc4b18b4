"""Whole plans on tiny models: results, files, resuming, applying, and bad input."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from scipy import stats

from esscher.core.errors import InputError
from esscher.runs.old_result import NotFinished
from esscher.runs.registry import load
from esscher.studies.plan import plan, work
from tests.engine.cache.plans import generated
from tests.studies.plan.small import DECODER, prose, tiny


@pytest.fixture(scope="module")
def checked_plan():
    """A checked plan as its file has it."""
    return json.dumps(plan(tiny(), prose(0), check=prose(1), **DECODER).to_dict())


def test_results_have_everything(tmp_path):
    loaded, options = tiny(), DECODER
    found = plan(loaded, prose(0), check=prose(1), out=tmp_path / "run", **options)
    results = found.to_dict()
    json.dumps(results, allow_nan=False)
    keys = options["prefix"]
    shape = (loaded.shape.layers, loaded.shape.key_heads)
    tokens = found.token_budgets.tokens
    assert tokens.shape == np.shape(found.powers) == shape
    assert tokens.sum() == int(options["budget"] * keys) * np.prod(shape)
    names = {"uniform", "planned", "snapkv", "streaming"}
    assert set(found.check.configurations) == names
    for name_ in ("dense", *names):
        assert {"mean", "interval"} <= set(results["check"]["measures"][name_]["kl"])
    # all of them keep as many tokens
    assert {one.kept for one in found.check.configurations.values()} == {tokens.sum()}
    interval = results["check"]["ratios"]["uniform"]["interval"]
    verdict = {(True, True): "better", (False, False): "worse"}.get(
        (interval[0] > 1, interval[1] > 1), "undecided"
    )
    assert results["check"]["verdict"] == found.verdict == verdict
    assert set(found.best) <= names
    assert set(results["check"]["over_best"]) | {found.best[0]} == names
    assert load(tmp_path / "run").to_dict() == results
    words = {"better": "The plan beats", "worse": "does NOT beat", "undecided": "Undecided with"}
    assert [name for name, said in words.items() if said in found.headline] == [verdict]
    assert len(found.table()) == np.prod(shape)
    found.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json").to_dict() == results


def test_a_killed_plan_resumes_to_the_same(tmp_path, monkeypatch):
    loaded = tiny()
    whole = plan(loaded, prose(0), check=prose(1), **DECODER).to_dict()
    done, count = work.passage_cell, iter(range(9))

    def stops(*given):
        if next(count) == 1:
            raise KeyboardInterrupt
        return done(*given)

    monkeypatch.setattr(work, "passage_cell", stops)
    with pytest.raises(KeyboardInterrupt):
        plan(loaded, prose(0), check=prose(1), out=tmp_path / "run", **DECODER)
    monkeypatch.undo()
    with pytest.raises(NotFinished, match="is not finished; run the command that began it again"):
        load(tmp_path / "run")
    again = plan(loaded, prose(0), check=prose(1), out=tmp_path / "run", **DECODER).to_dict()
    assert again | {"created": ""} == whole | {"created": ""}


def test_all_tokens_cost_nothing():
    found = plan(tiny(), prose(0), check=prose(1), **(DECODER | {"budget": 1.0}))
    assert np.all(found.token_budgets.tokens == 120)
    check = found.to_dict()["check"]
    assert check["measures"]["planned"]["kl"]["mean"] < 1e-6
    assert check["measures"]["planned"]["error"]["mean"] < 1e-4
    assert found.to_dict()["predicted"]["effect"] == 0


def test_what_is_predicted_is_what_it_costs():
    """In nats, where errors are small: on the same passages, in other samples."""
    more = {"budget": 0.9, "passages": 8, "check_passages": 8}
    found = plan(tiny(), prose(0), check=prose(0), **(DECODER | more)).to_dict()
    cost, predicted = found["check"]["measures"]["planned"]["kl"], found["predicted"]
    realised = cost["mean"]
    own = (predicted["interval"][1] - predicted["effect"]) / stats.t.ppf(0.975, 7)
    other = (cost["interval"][1] - cost["interval"][0]) / (2 * stats.t.ppf(0.975, 7))
    assert abs(predicted["effect"] - realised) < 4 * np.hypot(own, other)
    # the errors above are small enough to see a wrong unit
    assert np.hypot(own, other) < 0.5 * realised


def test_heads_that_keep_all_tokens_have_no_error():
    """Computed again, their outputs differ by rounding, which is no error of the plan."""
    asked = DECODER | {"budget": None, "tolerance": 0.01}
    found = plan(tiny(), prose(1), check=prose(2), **asked)
    group = found.model.heads // found.model.key_heads
    whole = np.repeat(np.array(found.budgets) == found.prefix, group, axis=1)
    assert whole.any()
    for errors in (found.predicted.head_error, found.check.heads.realised):
        assert not np.any(np.array(errors)[whole])
        assert np.all(np.array(errors)[~whole] > 1e-4)


def test_a_tolerance_is_predicted_to_be_kept():
    loose, tight = (
        plan(tiny(), prose(0), **(DECODER | {"budget": None, "tolerance": t})) for t in (0.5, 0.1)
    )
    for found, tolerance in ((loose, 0.5), (tight, 0.1)):
        error = np.array(found.to_dict()["predicted"]["head_error"])
        assert np.all(error <= tolerance * (1 + 1e-6))
    fewer, more = loose.token_budgets.tokens, tight.token_budgets.tokens
    assert np.all(fewer <= more)
    assert fewer.sum() < more.sum()


def test_generation_under_a_plan_is_undone():
    loaded = tiny()
    found = plan(loaded, prose(0), **DECODER)
    ids = torch.randint(4, 40, (2, 110), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids}
    before = generated(loaded, batch).logits
    with found.apply(loaded.model):
        under = generated(loaded, batch).logits
    after = generated(loaded, batch).logits
    # the prompt is read dense, and what follows is not
    torch.testing.assert_close(under[0], before[0])
    assert (under[1] - before[1]).abs().max() > 1e-3 * before[1].abs().max()
    for one, other in zip(after, before, strict=True):
        torch.testing.assert_close(one, other)


def test_a_plan_is_refused_for_another_model(tmp_path):
    found = plan(tiny(), prose(0), **DECODER)
    other = tiny()
    with torch.no_grad():
        next(other.model.parameters()).add_(0.1)
    with pytest.raises(InputError, match="the plan is for 'llama'"), found.apply(other):
        pass
    with pytest.raises(InputError, match="the plan is for 'llama'"), found.apply(tiny("bert")):
        pass


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"budget": 0.03}, "smallest possible budget is 0.0417,"),
        ({"budget": 1.5}, "budget is 1.5; it must be a number of at most 1"),
        ({"budget": 25}, "did you mean 0.25?"),
        ({"query_count": 0}, "query_count is 0"),
        ({"tolerance": 1.0, "budget": None}, "tolerance is 1.0; it must be a number below 1"),
        ({"budget": None}, "either a budget"),
        ({"tolerance": 0.1}, "either a budget"),
        ({"budget": None, "tolerance": 1e-9}, "smallest possible tolerance is 0.0001"),
        ({"prefix": 155}, "longest possible prefix is 148"),
        ({"prefix": 9}, "at least 16"),
        ({"seed": -1}, "seed is -1"),
        ({"passages": 0}, "passages is 0"),
    ],
)
def test_impossible_requests_name_what_is_possible(change, said, tmp_path):
    with pytest.raises(InputError, match=re.escape(said)):
        plan(tiny(), prose(0), out=tmp_path / "run", **(DECODER | change))
    assert not (tmp_path / "run").exists()


def test_encoders_have_no_cache_to_plan(tmp_path):
    with pytest.raises(InputError, match="bert is an encoder and has no cache"):
        plan(tiny("bert"), prose(0), out=tmp_path / "run", budget=0.5)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda r: r.update(version=2), "has version 2; this version of Esscher reads 3"),
        (lambda r: r.update(selection="largest"), "is damaged"),
        (lambda r: r.update(score="some"), "is damaged"),
        (lambda r: r.update(kind="domains"), "is damaged"),
        (lambda r: r.update(kind="nothing"), "no study 'nothing'"),
        (lambda r: r.update(budget=3), "it has 'budget', which is not known"),
        (lambda r: r["keeping"].update(middle=1), "keeping has 'middle', which"),
        (lambda r: r.update(budgets=[[1, 2]]), "is damaged"),
        (lambda r: r.update(budgets=[["x"]]), "is damaged"),
        (lambda r: r.update(powers=[[7.0, 7.0]] * 3), "is damaged"),
        (lambda r: r.update(keeping=None), "is damaged"),
        (lambda r: r["check"].update(verdict="perhaps"), "check.verdict is 'perhaps'"),
        (lambda r: r["check"]["ratios"].pop("uniform"), "does not compare what it measured"),
        (lambda r: r["check"].update(best=[]), "check.best"),
        (lambda r: r["check"]["measures"]["planned"].pop("kl"), "check.measures[...] has no 'kl'"),
        (lambda r: r["check"]["measures"]["snapkv"]["layer_error"].pop(), "not of all layers"),
        (lambda r: r["check"]["heads"]["realised"].pop(), "one per layer and head"),
        (lambda r: r["predicted"]["head_error"][0].pop(), "one per layer and head"),
        (lambda r: r["powers"].pop(), "one per layer and key head"),
    ],
)
def test_files_that_are_no_plans(damage, said, checked_plan, tmp_path):
    tree = json.loads(checked_plan)
    damage(tree)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(tree))
    with pytest.raises(InputError, match=re.escape(said)):
        load(path)


@pytest.mark.parametrize("selection", ["fitted", "sample"])
def test_passages_that_are_read_again_give_the_same_plan(selection, monkeypatch):
    """As many are held between calibration and trial as there is room for."""
    count, read = [], work.read_passage
    monkeypatch.setattr(work, "read_passage", lambda *a, **b: count.append(a) or read(*a, **b))
    model, options = tiny(), DECODER | {"selection": selection}
    held = plan(model, prose(0), **options).to_dict()
    assert len(count) == DECODER["passages"]
    monkeypatch.setattr(work, "HELD_BYTES", 0)
    again = plan(model, prose(0), **options).to_dict()
    assert len(count) == 3 * DECODER["passages"]
    assert held | {"created": ""} == again | {"created": ""}
