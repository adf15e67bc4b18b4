"""Scores of tasks from answered items."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from esscher.math.statistics.intervals import wilson
from esscher.runs.folder import Cell
from esscher.studies.plan.check import task_results
from esscher.studies.plan.result import END, PlanCell


def item(task, haystack, **answered):
    """An item, given score and log-probability of every configuration."""
    rows = [
        (name, END, measure, value)
        for name, both in answered.items()
        for measure, value in zip(("score", "log_probability"), both, strict=True)
    ]
    table = pd.DataFrame(rows, columns=["configuration", "layer", "measure", "value"])
    return Cell(PlanCell(task=task, haystack=haystack), table)


@pytest.mark.parametrize("count", [1, 2, 20, 500])
def test_intervals_are_wilsons(count):
    for right in {0, 1, count // 2, count}:
        expected = stats.binomtest(right, count).proportion_ci(method="wilson")
        assert wilson(right, count) == pytest.approx((expected.low, expected.high), abs=1e-12)
        low, high = wilson(right, count)
        assert 0.0 <= low <= right / count <= high <= 1.0


def test_scores_are_means_over_items():
    items = [
        item("needle", "noise", dense=(1.0, -0.1), planned=(1.0, -0.3), uniform=(0.0, -2.0)),
        item("needle", "text", dense=(1.0, -0.2), planned=(0.0, -0.9), uniform=(0.0, -3.0)),
        item("needle", "noise", dense=(1.0, -0.3), planned=(1.0, -0.5), uniform=(1.0, -1.0)),
        item("needle", "text", dense=(0.5, -0.4), planned=(1.0, -0.4), uniform=(0.0, -4.0)),
    ]
    tasks, _, totals = task_results(items)
    assert list(tasks) == ["needle"]
    assert totals == tasks["needle"]
    planned = totals["planned"]
    assert (planned.score, planned.n, planned.noise, planned.text) == (0.75, 4, 1.0, 0.5)
    assert planned.interval == wilson(3, 4)
    logs, dense = np.array([-0.3, -0.9, -0.5, -0.4]), np.array([-0.1, -0.2, -0.3, -0.4])
    assert planned.log_probability == pytest.approx(logs.mean())
    for of, values in ((planned.of_dense, logs - dense), (None, logs)):
        half = stats.t.ppf(0.975, 3) * stats.sem(values)
        ends = (values.mean() - half, min(values.mean() + half, np.inf if of else 0.0))
        found_ends = planned.log_probability_interval if of is None else of.interval
        assert found_ends == pytest.approx(ends)
        assert of is None or of.mean == pytest.approx(values.mean())
    assert totals["dense"].of_dense is None


def test_totals_leave_out_what_the_dense_model_cannot():
    can = [item("needle", "noise", dense=(1.0, -0.1), planned=(1.0, -0.2))] * 2
    half = [item("keys", "text", dense=(0.5, -1.0), planned=(0.0, -2.0))] * 2
    cannot = [item("words", "noise", dense=(0.4, -9.0), planned=(0.6, -9.0))] * 2
    tasks, dense_cannot, totals = task_results([*can, *half, *cannot])
    assert list(tasks) == ["needle", "keys", "words"]
    assert dense_cannot == ("words",)
    # half of the answers are enough
    assert totals["planned"].n == 4
    assert totals["planned"].score == 0.5
    assert totals["dense"].score == 0.75
    assert tasks["words"]["planned"].score == pytest.approx(0.6)
    assert task_results(cannot)[1:] == (("words",), {})
    assert task_results([]) == ({}, (), {})


def test_one_item_has_no_interval_of_log_probabilities():
    answered = item("keys", "text", dense=(1.0, -1.0), planned=(1.0, -2.0))
    planned = task_results([answered])[2]["planned"]
    assert planned.log_probability_interval is None
    assert planned.of_dense.interval is None
    assert (planned.noise, planned.text) == (None, 1.0)
