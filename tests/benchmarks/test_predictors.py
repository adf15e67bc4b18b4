"""Predictors beside the trivial one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from benchmarks.predictors import CONSTANT, PREDICTORS, predictor_table


def table(measured, **predicted):
    columns = {column: 0.5 for columns in PREDICTORS.values() for column in columns}
    columns |= {f"exponent_{metric}": measured for metric in PREDICTORS}
    return predictor_table(pd.DataFrame(columns | predicted))


def row(frame, metric, name):
    return frame.set_index(["metric", "predictor"]).loc[metric, name]


def test_the_constant_is_always_there():
    frame = table(np.linspace(0.3, 0.6, 40))
    for metric in PREDICTORS:
        assert row(frame, metric, CONSTANT)["skill"] == 0
        assert np.isnan(row(frame, metric, CONSTANT)["skill_low"])
    # it says 1/2, too
    reference = row(frame, "map", "published reference")
    assert reference[["skill", "skill_low"]].tolist() == [0, 0]


def test_skill():
    rng = np.random.default_rng(0)
    measured = 0.45 + 0.05 * rng.standard_normal(60)
    good = measured + 0.01 * rng.standard_normal(60)
    bad = measured + 0.2 * rng.standard_normal(60)
    frame = table(measured, predicted_exponent_mean=good, sharp_mean=bad)
    first = frame[frame["metric"] == "mean"].iloc[0]
    assert first["predictor"] == "predicted on the range"
    expected = 1 - np.abs(good - measured).mean() / np.abs(0.5 - measured).mean()
    assert first["skill"] == pytest.approx(expected)
    assert 0 < first["skill_low"] < expected < first["skill_high"]
    assert row(frame, "mean", "Gaussian, conjectured")["skill_high"] < 0


def test_few_heads_have_no_interval():
    few = row(
        table([0.4, 0.6], predicted_exponent_mean=[0.4, 0.6]), "mean", "predicted on the range"
    )
    assert few["skill"] == 1
    assert few["skill_low"] is None
