"""Whole plans on tiny models: results, files, resuming, applying, and bad input."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from msgspec import structs
from scipy import stats

import esscher
from esscher.core.errors import InputError
from esscher.runs.result import NotFinished
from esscher.studies.plan import Plan, PlanResult, measure, plan
from tests.engine.cache.plans import generated
from tests.studies.plan.small import DECODER, prose, tiny


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A checked plan, in a directory."""
    out = tmp_path_factory.mktemp("plans") / "run"
    return plan(tiny(), prose(0), check=prose(1), out=out, **DECODER)


def value(result, name, **labels):
    return result[name].sel(bound="value", **labels).values


def test_results_have_everything(stored, tmp_path):
    json.dumps(stored.to_dict(), allow_nan=False)
    tokens = stored["tokens"].values
    assert tokens.shape == stored["power"].shape == (3, 2)
    plan_bytes, dense = stored["nbytes"].sum(), float(stored["dense_bytes"])
    # what is left over is less than a token
    assert 0 <= DECODER["budget"] * dense - plan_bytes < 300
    np.testing.assert_array_equal(stored.plan.nbytes, stored["nbytes"])
    assert set(stored["key_bits"].values.ravel()) <= {4, 8, 16}
    names = ["dense", "planned", "uniform", "snapkv", "streaming"]
    assert stored["configuration"].values.tolist() == names
    _, low, high = stored["over_planned"].sel(configuration="uniform").values
    verdict = {(True, True): "better", (False, False): "worse"}.get(
        (low > 1, high > 1), "undecided"
    )
    assert stored.verdict == verdict
    assert set(stored.best) <= set(names)
    words = {"better": "The plan beats", "worse": "does NOT beat", "undecided": "Undecided with"}
    assert [name for name, message in words.items() if message in stored.headline] == [verdict]
    assert len(stored.table()) == 6
    again = esscher.load(stored.folder)
    assert isinstance(again, PlanResult)
    assert again.to_dict() == stored.to_dict()
    stored.save(tmp_path / "plan.safetensors")
    assert esscher.load(tmp_path / "plan.safetensors").to_dict() == stored.to_dict()


def test_the_record_is_a_file_of_its_own(stored, tmp_path):
    made = esscher.load(stored.folder / "plan.json")
    assert isinstance(made, Plan)
    assert made == stored.plan
    stored.save(tmp_path / "plan.json")
    tree = json.loads((tmp_path / "plan.json").read_text())
    tree["budgets"][0] = [50, 60]
    tree["selection"] = "topk"
    (tmp_path / "plan.json").write_text(json.dumps(tree))
    edited = esscher.load(tmp_path / "plan.json")
    assert edited.budgets == ((50, 60), *made.budgets[1:])
    assert edited.cache(tiny()).rule.budgets == edited.token_budgets
    assert repr(edited).startswith("plan for llama: ")


def test_older_plans_mean_what_they_meant(stored, tmp_path):
    tree = json.loads((stored.folder / "plan.json").read_text()) | {"version": 4}
    (tmp_path / "plan.json").write_text(json.dumps({k: v for k, v in tree.items() if k != "bits"}))
    old = esscher.load(tmp_path / "plan.json")
    assert old == structs.replace(stored.plan, bits=None)
    assert old.cache(tiny()).rule.budgets.bits_of(0, 0) == (16, 16)
    again = old.evaluate(tiny(), prose(1), check_passages=1, query_count=12)
    assert set(again["bits"].values) == {"16"}
    planned, uniform = again["kept"].values[1:3]
    assert planned == old.tokens.sum() >= uniform > planned - 6
    tree["version"] = 3
    measured = {"complete": True, "cells": 7, "configuration": {}, "versions": {}, "created": ""}
    measured |= {"headline": "", "ratios": [], "total": {}, "predicted": {}, "check": None}
    (tmp_path / "plan.json").write_text(json.dumps(tree | measured))
    assert esscher.load(tmp_path / "plan.json") == stored.plan
    (tmp_path / "plan.json").write_text(json.dumps(tree | {"budget": 3}))
    with pytest.raises(InputError, match="it has 'budget', which is not known"):
        esscher.load(tmp_path / "plan.json")


def test_a_killed_plan_resumes_to_the_same(stored, tmp_path, monkeypatch):
    done, count = measure.passage_cell, iter(range(9))

    def stops(*given):
        if next(count) == 1:
            raise KeyboardInterrupt
        return done(*given)

    monkeypatch.setattr(measure, "passage_cell", stops)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        plan(tiny(), prose(0), check=prose(1), out=out, **DECODER)
    monkeypatch.undo()
    with pytest.raises(NotFinished, match="there is no plan yet; run the command that began it"):
        _ = esscher.load(out).plan
    again = plan(tiny(), prose(0), check=prose(1), out=out, **DECODER)
    assert again.to_dict() | {"created": ""} == stored.to_dict() | {"created": ""}


def test_a_plan_that_exists_is_checked_again(stored):
    """Its budgets are those of the plan, and so is what they cost on the same text."""
    again = stored.evaluate(tiny(), prose(1), check_passages=3, query_count=12)
    assert again.plan == stored.plan
    for name in ("kl", "top1", "layer_error", "over_planned", "realised_error"):
        np.testing.assert_array_equal(again[name], stored[name])
    assert again["predicted_error"].isnull().all()
    assert again.verdict == stored.verdict
    assert again.headline.startswith("The plan keeps 15% of the bytes")
    for name in again.charts():
        assert again.plot(name).to_dict()
    other = stored.plan.evaluate(tiny(), prose(2), against="adakv", check_passages=2, score="last")
    assert other["configuration"].values.tolist() == ["dense", "planned", "uniform", "adakv"]
    with pytest.raises(InputError, match="either a budget"):
        stored.evaluate(tiny(), prose(1), budget=0.5)


def test_all_tokens_cost_nothing():
    result = plan(tiny(), prose(0), check=prose(1), **(DECODER | {"budget": 1.0}))
    assert np.all(result["tokens"] == 120)
    assert value(result, "kl", configuration="planned") < 1e-6
    assert value(result, "error", configuration="planned") < 1e-4
    assert value(result, "predicted_kl") == 0


def test_what_is_predicted_is_what_it_costs():
    """In nats, where errors are small: on the same passages, in realised_error samples."""
    more = {"budget": 0.9, "passages": 8, "check_passages": 8}
    result = plan(tiny(), prose(0), check=prose(0), **(DECODER | more))
    realised, low, high = result["kl"].sel(configuration="planned").values
    predicted, _, upper = result["predicted_kl"].values
    predicted_error = (upper - predicted) / stats.t.ppf(0.975, 7)
    realised_error = (high - low) / (2 * stats.t.ppf(0.975, 7))
    assert abs(predicted - realised) < 4 * np.hypot(predicted_error, realised_error)
    # the errors above are small enough to see a wrong unit
    assert np.hypot(predicted_error, realised_error) < 0.5 * realised


def test_heads_that_keep_all_tokens_have_no_error():
    """Computed again, their outputs differ by rounding, which is no error of the plan."""
    options = DECODER | {"budget": None, "tolerance": 0.0005}
    result = plan(tiny(), prose(1), check=prose(2), **options)
    whole = (result["tokens"].values == 120) & (result["key_bits"].values == 16)
    assert whole.any()
    for name in ("predicted_error", "realised_error"):
        assert not value(result, name)[whole].any()
        assert np.all(value(result, name)[~whole] > 1e-4)


def test_a_tolerance_is_predicted_to_be_kept():
    loose, tight = (
        plan(tiny(), prose(0), **(DECODER | {"budget": None, "tolerance": t})) for t in (0.5, 0.1)
    )
    for result, tolerance in ((loose, 0.5), (tight, 0.1)):
        assert np.all(value(result, "predicted_error") <= tolerance * (1 + 1e-6))
    fewer, more = loose["nbytes"].values, tight["nbytes"].values
    assert np.all(fewer <= more)
    assert fewer.sum() < more.sum()


def test_generation_under_a_plan_is_undone(stored):
    loaded = tiny()
    ids = torch.randint(4, 40, (2, 110), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids}
    before = generated(loaded, batch).logits
    with stored.apply(loaded.model):
        under = generated(loaded, batch).logits
    after = generated(loaded, batch).logits
    # the prompt is read dense, and what follows is not
    torch.testing.assert_close(under[0], before[0])
    assert (under[1] - before[1]).abs().max() > 1e-3 * before[1].abs().max()
    for one, other in zip(after, before, strict=True):
        torch.testing.assert_close(one, other)


def test_a_plan_is_refused_for_another_model(stored):
    other = tiny()
    with torch.no_grad():
        next(other.model.parameters()).add_(0.1)
    for model in (other, tiny("bert")):
        with pytest.raises(InputError, match="the plan is for 'llama'"), stored.apply(model):
            pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": 0.03}, "smallest possible budget is 0.0415,"),
        ({"budget": 1.5}, "budget is 1.5; a share must be above 0 and at most 1"),
        ({"budget": "-2 tokens"}, "budget is '-2 tokens'; write a share of the dense cache, such"),
        ({"budget": "0MB"}, "budget is '0MB'; a share must be above 0"),
        ({"budget": "3 tokens"}, "budget is 3 tokens, 0.025 of the dense cache; every head"),
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
def test_impossible_requests_name_what_is_possible(change, message, tmp_path):
    with pytest.raises(InputError, match=re.escape(message)):
        plan(tiny(), prose(0), out=tmp_path / "run", **(DECODER | change))
    assert not (tmp_path / "run").exists()


def test_encoders_have_no_cache_to_plan(tmp_path):
    with pytest.raises(InputError, match="bert is an encoder and has no cache"):
        plan(tiny("bert"), prose(0), out=tmp_path / "run", budget=0.5)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda r: r.update(version=2), "has version 2; this version of Esscher reads 3 to 5"),
        (lambda r: r.update(selection="largest"), "is damaged"),
        (lambda r: r.update(score="some"), "is damaged"),
        (lambda r: r.update(kind="tails"), "is of an earlier layout"),
        (lambda r: r.update(kind="nothing"), "no study 'nothing'"),
        (lambda r: r.update(budget=3), "it has 'budget', which is not known"),
        (lambda r: r["keeping"].update(middle=1), "keeping has 'middle', which"),
        (lambda r: r.update(budgets=[[1, 2]]), "is damaged"),
        (lambda r: r.update(budgets=[["x"]]), "is damaged"),
        (lambda r: r.update(powers=[[7.0, 7.0]] * 3), "is damaged"),
        (lambda r: r.update(keeping=None), "is damaged"),
        (lambda r: r.update(sliding=[-1]), "is damaged"),
        (lambda r: r["powers"].pop(), "one per layer and key head"),
    ],
)
def test_files_that_are_no_plans(damage, message, stored, tmp_path):
    tree = json.loads((stored.folder / "plan.json").read_text())
    damage(tree)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(tree))
    with pytest.raises(InputError, match=re.escape(message)):
        esscher.load(path)
