"""Caches of equal size: a small comparison, stopped and resumed, and its page."""

from __future__ import annotations

import json

import pytest
from benchmarks.cache import Comparison, arguments, run_parts, with_room
from benchmarks.cache_arms import compared
from benchmarks.cache_plans import Sources
from benchmarks.pages.cache import cache_finding
from benchmarks.pages.cache_lengths import lengths_finding
from benchmarks.pages.cache_rows import stored_rows
from benchmarks.pages.cache_tasks import tasks_finding

import esscher
from esscher.core.errors import InputError
from tests.engine.models.folders import random_words, tiny

PREFIX, BUDGET = 200, "0.5"
OPTIONS = [
    "data", "--out", "out", "--passages", "2", "--prefix", str(PREFIX), "--lengths", "208",
    "--curve-budgets", f"0.25,{BUDGET}", "--budgets", BUDGET, "--scores", "all,last,repeat",
    "--prose", "1,4", "--tasks", "needle",
    "--task-budgets", f"0.25,{BUDGET}", "--task-prefix", f"{PREFIX},208", "--items", "2",
]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return tiny("llama", max_position_embeddings=640, strength=12.0)


@pytest.fixture(scope="module")
def texts():
    return {name: [random_words(seed=i)] for i, name in enumerate(("novel", "code"), 1)}


@pytest.fixture(scope="module")
def run(model, texts, tmp_path_factory):
    out = tmp_path_factory.mktemp("cache") / "tiny"
    sources = Sources(model, [random_words()], out / "calibration", queries=12)
    comparison = Comparison(sources, texts, out)
    parts = ("curves", "lengths", "tasks", "ablation", "small")
    run_parts(comparison, parts, arguments().parse_args(OPTIONS))
    return comparison


def test_the_same_as_a_plan_and_its_check(run, model, texts):
    plan = esscher.plan(
        model, [random_words()], check=texts["novel"], budget=0.5, prefix=PREFIX, query_count=12,
        check_passages=2, against="all",
    )  # fmt: skip
    rows = stored_rows(run.out)
    curves = rows[(rows["part"] == "curves") & (rows["text"] == "novel") & (rows["budget"] == 0.5)]
    for name, found in plan.check.configurations.items():
        own = curves[curves["configuration"] == name]["kl"]
        assert own.mean() == pytest.approx(found.kl.mean, rel=1e-4)
    assert curves["kept"].nunique() == 1


def test_layers_with_a_window_are_left_alone(texts, tmp_path):
    model = tiny("gemma3_text", max_position_embeddings=640, strength=12.0)
    sources = Sources(model, [random_words()], tmp_path / "calibration", queries=12)
    comparison = Comparison(sources, {"novel": texts["novel"]}, tmp_path)
    run_parts(comparison, ("curves",), arguments().parse_args(OPTIONS))
    plan = esscher.plan(
        model, [random_words()], check=texts["novel"], budget=0.5, prefix=PREFIX, query_count=12,
        check_passages=2, against="snapkv",
    )  # fmt: skip
    assert plan.sliding
    rows = stored_rows(tmp_path)
    rows = rows[rows["budget"] == 0.5]
    for name, found in plan.check.configurations.items():
        own = rows[rows["configuration"] == name]
        assert own["kl"].mean() == pytest.approx(found.kl.mean, rel=1e-4)


def test_the_same_as_the_tasks_of_a_plan(run, model, texts):
    plan = esscher.plan(
        model, [random_words()], check=texts["novel"], budget=0.5, prefix=PREFIX, query_count=12,
        passages=3, check_passages=4, tasks="needle", task_items=2, against="kvzip,duo",
    )  # fmt: skip
    rows = stored_rows(run.out)
    for name, found in plan.check.tasks["needle"].items():
        own = rows[(rows["part"] == "tasks") & (rows["configuration"] == name)]
        own = own[(own["budget"] == 0.5) & (own["prefix"] == PREFIX)]
        assert own["log_probability"].mean() == pytest.approx(found.log_probability, abs=1e-4)
        assert own["score"].mean() == found.score


def test_what_is_there_is_not_done_again(run):
    (first, *_) = sorted(run.out.glob("curves/*/*/results.json"))
    before = first.read_text()
    found = json.loads(before)
    lost = found["rows"].pop()
    first.write_text(json.dumps(found))
    others = {p: p.stat().st_mtime_ns for p in run.out.rglob("*") if p.is_file() and p != first}
    run_parts(run, ("curves",), arguments().parse_args(OPTIONS))
    again = json.loads(first.read_text())["rows"]
    assert again[-1]["kl"] == pytest.approx(lost["kl"])
    assert len(again) == len(found["rows"]) + 1
    assert others == {path: path.stat().st_mtime_ns for path in others}


def test_the_page(run, tmp_path):
    finding = cache_finding([run.out])
    page = finding.write(tmp_path, formats=("png",)).read_text()
    parts = ("curves", "ablation", "small")
    assert set(finding.tables) == {f"tiny-{p}{kind}" for p in parts for kind in ("", "-rows")}
    small = finding.tables["tiny-small"]
    assert (small["predicted"] > 0).all()
    assert "a plan made for the largest scores (`--selection topk`): at 50% SnapKV" in page
    table = finding.tables["tiny-curves"]
    every = table[(table["text"] == "all") & (table["configuration"] == "uniform")]
    assert set(every["passages"]) == {4}
    assert (every["over_planned_low"] < every["over_planned"]).all()
    assert "nan" not in page
    assert str(tmp_path) not in page
    for name in ("tiny-curves", "tiny-ablation"):
        assert (tmp_path / f"{name}.png").stat().st_size > 1000


def test_a_rule_without_room_is_left_out(run, model, capsys):
    calibration = run.sources.calibration(PREFIX, 1, 0, [("all", 0.5)])
    arms = compared(calibration, (0.5,))
    assert with_room(arms, model, PREFIX) == arms
    longer = with_room(arms, model, 500)
    assert {arm.name for arm in arms} - {arm.name for arm in longer} == {"kvzip"}
    assert "reads 640 tokens at most, and cannot repeat" in capsys.readouterr().out


def test_the_page_of_lengths(run, tmp_path):
    finding = lengths_finding([run.out])
    page = finding.write(tmp_path, formats=("png",)).read_text()
    table, rows = finding.tables["tiny-lengths"], finding.tables["tiny-lengths-rows"]
    every = table[(table["text"] == "all") & (table["configuration"] == "uniform")]
    own = rows[rows["configuration"] == "uniform"]
    assert every["kl"].item() == pytest.approx(own["kl"].mean())
    assert len(own) == every["passages"].item() == 4
    assert "| configuration | 208 tokens |" in page
    assert "nan" not in page
    assert (tmp_path / "tiny-lengths.png").stat().st_size > 1000


def test_the_page_of_tasks(run, tmp_path):
    # these words are no answers to anything
    assert "Exact match by share" not in tasks_finding([run.out]).text
    finding = tasks_finding([run.out], least=0.0)
    page = finding.write(tmp_path, formats=("png",)).read_text()
    table, rows = finding.tables["tiny-tasks"], finding.tables["tiny-tasks-rows"]
    assert set(table["budget"]) == {0.25, 0.5}
    table, rows = (x[(x["budget"] == 0.25) & (x["prefix"] == PREFIX)] for x in (table, rows))
    both = rows.set_index(["configuration", "item"])["log_probability"]
    expected = (both["kvzip"] - both["planned"]).mean()
    found = table[table["configuration"] == "kvzip"]
    assert found["difference"].item() == pytest.approx(expected)
    assert "answer" not in rows
    assert "**Exact match by share of tokens kept" in page
    assert "25% of the tokens: exact match by length of the context" in page
    assert "| configuration | in repeated noise (1 item) | in the novel (1 item) |" in page
    assert "| configuration | 200 tokens | 208 tokens |" in page
    assert "nan" not in page
    for name in ("tiny-tasks", "tiny-tasks-shares"):
        assert (tmp_path / f"{name}.png").stat().st_size > 1000


@pytest.mark.parametrize("finding", [cache_finding, lengths_finding, tasks_finding])
def test_a_page_needs_results(finding, tmp_path):
    with pytest.raises(InputError, match="no runs"):
        finding([])
    with pytest.raises(InputError, match="no results"):
        finding([tmp_path])
