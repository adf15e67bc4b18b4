"""Three verdicts on a plan, what is best, and the words for it, on checks with known ratios."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from esscher.runs.folder import Cell
from esscher.studies.plan.check import END, check_results, closest, passages_needed
from esscher.studies.plan.result import PlanCell
from esscher.studies.plan.view import headline

#: Logarithms of ratios over passages: mean 0, spread 0.1.
SCATTER = np.array([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0]) * 0.1 * np.sqrt(7 / 8)


def checked(passages=8, **logs):
    """Results of a check, given the mean logarithm of every KL over that of planned."""
    cells = []
    for scatter in SCATTER[:passages]:
        values = {name: np.exp(mean + scatter) for name, mean in logs.items()}
        rows = [
            (name, layer, measure, 0.1 * value)
            for name, value in ({"planned": 1.0} | values).items()
            for layer, measure in ((END, "kl"), (END, "top1"), (END, "nll"), (0, "error"))
        ]
        rows.append(("head 0", 0, "realised", 0.2))
        table = pd.DataFrame(rows, columns=["configuration", "layer", "measure", "value"])
        kept = dict.fromkeys(("planned", *logs), 100)
        cells.append(Cell(PlanCell(passage=0, dense_nll=0.05, kept=kept), table))
    return check_results(cells, np.array([[0.2]]))


def said(check, budgets=((30, 70),)):
    return headline(budgets, 100, 0.5, None, check)


@pytest.mark.parametrize(
    ("mean", "verdict"), [(0.5, "better"), (-0.5, "worse"), (0.05, "undecided"), (0.0, "undecided")]
)
def test_the_verdict_is_where_the_interval_lies(mean, verdict):
    check = checked(uniform=mean, snapkv=1.0, streaming=1.0)
    low, high = check.ratios["uniform"].interval
    half = stats.t.ppf(0.975, 7) * 0.1 / np.sqrt(8)
    assert [np.log(low), np.log(high)] == pytest.approx([mean - half, mean + half])
    assert check.verdict == verdict
    assert (check.passages_needed is None) == (verdict != "undecided" or mean == 0)


def test_a_plan_that_is_worse_is_not_called_chance():
    text = said(checked(uniform=-0.5, snapkv=0.2, streaming=1.0))
    assert (
        "does NOT beat uniform budgets on this text: it is 1.6 (1.5 to 1.8) times farther from "
        "dense, by the geometric mean over passages." in text
    )
    assert "chance" not in text
    assert "closer than SnapKV" not in text
    assert "Use uniform budgets: closer to dense than everything else that was measured" in text
    assert text.endswith("1.6 (1.5 to 1.8) times closer than the plan.")


def test_what_cannot_be_told_apart_is_said():
    check = checked(uniform=0.04, snapkv=0.5, streaming=0.6)
    assert check.best == ("planned", "uniform")
    text = said(check)
    assert "Undecided with 8 passages whether the plan is better than uniform budgets" in text
    more = check.passages_needed - 8
    assert (
        f"{more} more passages ({more + 8} in all) would probably decide (in 4 of 5 cases" in text
    )
    assert "if ratio and spread stay as they are)." in text
    assert text.endswith(
        "The plan and uniform budgets cannot be told apart with 8 passages; all others are farther "
        "from dense than the plan."
    )
    everything = checked(uniform=0.0, snapkv=0.0, streaming=0.0)
    assert sorted(everything.best) == ["planned", "snapkv", "streaming", "uniform"]
    assert said(everything).endswith("cannot be told apart with 8 passages.")


def test_one_passage_decides_nothing():
    check = checked(passages=1, uniform=2.0, snapkv=2.0, streaming=2.0)
    assert (check.verdict, check.passages_needed) == ("undecided", None)
    assert "one passage has no interval. Check on more passages." in said(check)
    assert len(check.best) == 4


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
