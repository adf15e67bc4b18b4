"""Caches of equal size: a small comparison, stopped and resumed, and its page."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from benchmarks.cache import Comparison, arguments, run_parts, with_room
from benchmarks.cache_arms import compared
from benchmarks.cache_plans import Sources
from benchmarks.cache_tables import curve_table, in_best_bits, stored_rows, tables
from scipy import stats

import esscher
from esscher.core.errors import InputError
from esscher.studies.plan.study import PUBLISHED
from tests.engine.models.folders import random_words, tiny

PREFIX, BUDGET = 200, "0.2"
OPTIONS = (
    f"data --out out --passages 2 --prefix {PREFIX} --lengths 208 --curve-budgets 0.1,{BUDGET} "
    f"--budgets {BUDGET} --scores all,last,repeat --prose 1,4 --tasks needle "
    f"--task-budgets 0.1,{BUDGET} --task-prefix {PREFIX},208 --items 2"
).split()


@pytest.fixture(scope="module")
def model():
    return tiny("llama", max_position_embeddings=640, strength=12.0)


@pytest.fixture(scope="module")
def texts():
    return {name: [random_words(seed=i)] for i, name in enumerate(("novel", "code"), 1)}


@pytest.fixture(scope="module")
def run(model, texts, tmp_path_factory):
    out = tmp_path_factory.mktemp("cache") / "tiny"
    sources = Sources(model, [random_words()], out / "calibration", 12, "float32")
    comparison = Comparison(sources, texts, out)
    parts = ("curves", "lengths", "tasks", "ablation", "small")
    run_parts(comparison, parts, arguments().parse_args(OPTIONS))
    return comparison


def checked_plan(model, text, **options):
    options |= {"budget": 0.2, "prefix": PREFIX, "query_count": 12}
    return esscher.plan(model, [random_words()], check=text, **options)


def test_the_same_as_a_plan_and_its_check(run, model, texts):
    plan = checked_plan(model, texts["novel"], check_passages=2, against="all")
    rows = stored_rows(run.out)
    curves = rows[(rows["part"] == "curves") & (rows["text"] == "novel") & (rows["budget"] == 0.2)]
    curves = in_best_bits(curves[~curves["configuration"].isin(PUBLISHED)])
    for name, kl in plan.table("check").set_index("configuration")["kl"].items():
        distances = curves[curves["configuration"] == name]["kl"]
        assert distances.mean() == pytest.approx(kl, rel=1e-4)
    assert curves["bytes"].between(0.18, 0.204).all()


def test_layers_with_a_window_are_left_alone(texts, tmp_path):
    model = tiny("gemma3_text", max_position_embeddings=640, strength=12.0)
    sources = Sources(model, [random_words()], tmp_path / "calibration", 12, "float32")
    comparison = Comparison(sources, {"novel": texts["novel"]}, tmp_path)
    run_parts(comparison, ("curves",), arguments().parse_args(OPTIONS))
    plan = checked_plan(model, texts["novel"], check_passages=2, against="snapkv")
    assert plan.plan.sliding
    rows = stored_rows(tmp_path)
    rows = rows[(rows["budget"] == 0.2) & ~rows["configuration"].isin(PUBLISHED)]
    rows = in_best_bits(rows)
    for name, kl in plan.table("check").set_index("configuration")["kl"].items():
        measured = rows[rows["configuration"] == name]
        assert measured["kl"].mean() == pytest.approx(kl, rel=1e-4)


def test_the_same_as_the_tasks_of_a_plan(run, model, texts):
    options = {"passages": 3, "check_passages": 4, "tasks": "needle", "task_items": 2}
    plan = checked_plan(model, texts["novel"], against="kvzip,adakv", **options)
    rows = stored_rows(run.out)
    tasks = plan.table("tasks").set_index(["task", "configuration"])
    bits = plan.table("check").set_index("configuration")["bits"].to_dict()
    for name, row in tasks.loc["needle"].iterrows():
        name = f"{name} {bits[name]}" if name in PUBLISHED else name
        measured = rows[(rows["part"] == "tasks") & (rows["configuration"] == name)]
        measured = measured[(measured["budget"] == 0.2) & (measured["prefix"] == PREFIX)]
        assert measured["log_probability"].mean() == pytest.approx(row.log_probability, abs=1e-4)
        assert measured["score"].mean() == row.score


def test_what_is_there_is_not_done_again(run):
    (first, *_) = sorted(run.out.glob("curves/*/*/results.json"))
    before = first.read_text()
    stored = json.loads(before)
    lost = stored["rows"].pop()
    first.write_text(json.dumps(stored))
    others = {p: p.stat().st_mtime_ns for p in run.out.rglob("*") if p.is_file() and p != first}
    run_parts(run, ("curves",), arguments().parse_args(OPTIONS))
    again = json.loads(first.read_text())["rows"]
    assert again[-1]["kl"] == pytest.approx(lost["kl"])
    assert len(again) == len(stored["rows"]) + 1
    assert others == {path: path.stat().st_mtime_ns for path in others}


def made_rows(texts=3, passages=5):
    """Results in which uniform budgets are exp(1), exp(2), exp(3) times as far as the plan."""
    rows = [
        {
            "model": "m",
            "prefix": 100,
            "text": f"text {t}",
            "passage": p,
            "budget": 0.25,
            "configuration": name,
            "kept": 10,
            "kl": 0.01 * (1 + p) * np.exp(log),
            "top1": 0.9,
        }
        for t in range(texts)
        for p in range(passages)
        for name, log in (("planned", 0.0), ("uniform", 1.0 + t + 0.1 * (p - 2)), ("snapkv", 2.2))
    ]
    return pd.DataFrame(rows)


def test_over_several_texts_the_texts_are_the_units():
    table = curve_table(made_rows()).set_index(["text", "configuration"])
    every, single = (table.loc[(text, "uniform")] for text in ("all", "text 0"))
    half = stats.t.ppf(0.975, 2) * 1.0 / np.sqrt(3)  # of the means 1, 2, 3
    names = ["over_planned", "over_planned_low", "over_planned_high"]
    expected = np.exp([2.0, 2.0 - half, 2.0 + half])
    assert every[names].tolist() == pytest.approx(expected.tolist())
    assert (every["texts"], every["passages"]) == (3, 15)
    # of a single text they are its passages
    half = stats.t.ppf(0.975, 4) * 0.1 * np.sqrt(2.5) / np.sqrt(5)
    assert np.log(single["over_planned_high"]) == pytest.approx(1.0 + half)


def test_a_rule_without_room_is_left_out(run, model, capsys):
    calibration = run.sources.calibration(PREFIX, 1, 0, [("all", 0.2)])
    arms = compared(calibration, (0.2,))
    assert with_room(arms, model, PREFIX) == arms
    longer = with_room(arms, model, 500)
    assert {arm.name for arm in arms} - {arm.name for arm in longer} == {
        "kvzip",
        "kvzip 8",
        "kvzip 4",
    }
    assert "reads 640 tokens at most, and cannot repeat" in capsys.readouterr().out


def test_tables_are_those_of_the_results(run, tmp_path):
    made = tables(stored_rows(run.out))
    table, rows = made["curves"], made["curves-rows"]
    every = table[(table["text"] == "all") & (table["configuration"] == "uniform")]
    assert set(every["passages"]) == {4}
    assert (every["over_planned_low"] < every["over_planned"]).all()
    assert (made["small"]["predicted"] > 0).all()
    table, rows = made["lengths"], made["lengths-rows"]
    every = table[(table["text"] == "all") & (table["configuration"] == "uniform")]
    measured = rows[rows["configuration"] == "uniform"]
    assert every["kl"].item() == pytest.approx(measured["kl"].mean())
    table, rows = (
        x[(x["budget"] == 0.1) & (x["prefix"] == PREFIX)]
        for x in (made["tasks"], made["tasks-rows"])
    )
    both = rows.set_index(["configuration", "item"])["log_probability"]
    tried = [both[name].mean() for name in ("kvzip", "kvzip 8", "kvzip 4")]
    expected = max(tried) - both["planned"].mean()
    assert table[table["configuration"] == "kvzip"]["difference"].item() == pytest.approx(expected)
    assert "answer" not in rows
    with pytest.raises(InputError, match="no results"):
        stored_rows(tmp_path)
