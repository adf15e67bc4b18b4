"""Three verdicts on a plan, what is best, scores of tasks, and the words, on known checks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from esscher.math.statistics.intervals import wilson
from esscher.studies.plan.check import closest, passages_needed
from tests.studies.plan.small import checked_again, item

#: Logarithms of ratios over passages: mean 0, spread 0.1.
SCATTER = np.array([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0]) * 0.1 * np.sqrt(7 / 8)


@pytest.fixture
def checked(small_plan):
    """Results of a check, given the mean logarithm of every KL over that of planned."""
    return lambda passages=8, **logs: checked_again(
        small_plan, {name: mean + SCATTER[:passages] for name, mean in logs.items()}, passages
    )


@pytest.mark.parametrize(
    ("mean", "verdict", "words"),
    [
        (0.5, "better", "it is 1.6 ("),
        (-0.5, "worse", "does NOT beat uniform budgets on this text: it is 1.6 ("),
        (0.05, "undecided", "Undecided with 8 passages"),
        (0.0, "undecided", "Undecided with 8 passages"),
    ],
)
def test_the_verdict_is_where_the_interval_lies(checked, mean, verdict, words):
    result = checked(uniform=mean, snapkv=1.0, streaming=1.0)
    _, low, high = result["over_planned"].sel(configuration="uniform").values
    half = stats.t.ppf(0.975, 7) * 0.1 / np.sqrt(8)
    assert [np.log(low), np.log(high)] == pytest.approx([mean - half, mean + half])
    assert result.verdict == verdict
    assert bool(result["passages_needed"].isnull()) == (verdict != "undecided" or mean == 0)
    assert words in result.headline


def test_what_cannot_be_told_apart_is_said(checked):
    result = checked(uniform=0.04, snapkv=0.5, streaming=0.6)
    assert result.best == ("planned", "uniform")
    assert float(result["passages_needed"]) > 8
    everything = checked(uniform=0.0, snapkv=0.0, streaming=0.0)
    assert sorted(everything.best) == ["planned", "snapkv", "streaming", "uniform"]


def test_one_passage_decides_nothing(checked):
    result = checked(passages=1, uniform=2.0, snapkv=2.0, streaming=2.0)
    assert result.verdict == "undecided"
    assert result["passages_needed"].isnull()
    assert "one passage has no interval. Check on more passages." in result.headline
    assert len(result.best) == 4
    for name in result.charts():
        assert result.plot(name).to_dict()


def test_as_many_passages_as_are_said_decide_in_4_of_5_checks():
    mean, spread = 0.1, 0.3
    logs = mean + spread * np.tile([-1.0, 1.0], 4) * np.sqrt(7 / 8)
    count = passages_needed(np.exp(logs), np.ones(8))
    rng = np.random.default_rng(0)
    drawn = mean + spread * rng.standard_normal((20_000, count))
    half = stats.t.ppf(0.975, count - 1) * drawn.std(axis=1, ddof=1) / np.sqrt(count)
    decided = np.mean(drawn.mean(axis=1) > half)
    # Monte Carlo error 0.3%, and 1% for the central instead of the noncentral law of Student
    assert abs(decided - 0.8) < 4 * 0.003 + 0.01
    assert passages_needed(np.ones(8), np.ones(8)) is None
    assert passages_needed(np.ones(1), np.ones(1)) is None


def test_the_closest_need_not_be_first_on_every_passage():
    rng = np.random.default_rng(0)
    common = rng.lognormal(0.0, 2.0, 16)  # passages differ far more than configurations
    assert closest(
        {"a": 1.3 * common, "b": common * np.exp(SCATTER[0] * rng.standard_normal(16))}
    ) == ["b"]


def test_scores_are_means_over_items(small_plan):
    items = [
        item("needle", "noise", 0, dense=(1.0, -0.1), planned=(1.0, -0.3), uniform=(0.0, -2.0)),
        item("needle", "text", 1, dense=(1.0, -0.2), planned=(0.0, -0.9), uniform=(0.0, -3.0)),
        item("needle", "noise", 2, dense=(1.0, -0.3), planned=(1.0, -0.5), uniform=(1.0, -1.0)),
        item("needle", "text", 3, dense=(0.5, -0.4), planned=(1.0, -0.4), uniform=(0.0, -4.0)),
    ]
    data = checked_again(small_plan, tasks={"needle": items}).data
    assert data.sel(task="needle").drop_vars("task").equals(data.sel(task="all").drop_vars("task"))
    planned = data.sel(task="needle", configuration="planned")
    assert planned["score"].values == pytest.approx([0.75, *wilson(3.0, 4)])
    assert float(data["items"].sel(task="needle")) == 4
    over = np.array([-0.2, -0.7, -0.2, 0.0])
    half = stats.t.ppf(0.975, 3) * over.std(ddof=1) / 2
    mean = over.mean()
    assert planned["over_dense"].values == pytest.approx([mean, mean - half, mean + half])
    assert data["over_dense"].sel(configuration="dense").isnull().all()


def test_totals_leave_out_what_the_dense_model_cannot(small_plan):
    def two(task, dense, planned):
        return [
            item(task, "text", i, dense=dense, planned=planned, uniform=(0.1, -1.0))
            for i in range(2)
        ]

    can = two("needle", (1.0, -0.1), (1.0, -0.2))
    half = two("keys", (0.5, -1.0), (0.0, -2.0))  # half of the answers are enough
    cannot = two("words", (0.4, -9.0), (0.6, -9.0))
    result = checked_again(small_plan, tasks={"needle": can, "keys": half, "words": cannot})
    assert result["dense_can"].values.tolist() == [True, True, False, True]
    assert result["items"].values.tolist() == [2, 2, 2, 4]
    score = result["score"].sel(bound="value").to_pandas()
    assert score.loc["all", ["dense", "planned"]].tolist() == [0.75, 0.5]
    assert score.loc["words", "planned"] == pytest.approx(0.6)
    nothing = checked_again(small_plan, tasks={"words": cannot})
    assert nothing["score"].sel(task="all").isnull().all()


@pytest.mark.parametrize("count", [1, 2, 20, 500])
def test_intervals_are_wilsons(count):
    for right in {0, 1, count // 2, count}:
        expected = stats.binomtest(right, count).proportion_ci(method="wilson")
        assert wilson(right, count) == pytest.approx((expected.low, expected.high), abs=1e-12)
        low, high = wilson(right, count)
        assert 0.0 <= low <= right / count <= high <= 1.0
