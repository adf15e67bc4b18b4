"""Predictors beside the trivial one."""

from __future__ import annotations

import numpy as np
import pandas as pd

from esscher.studies.probe.result import CONSTANT, beats_constant, predictor_table

COLUMNS = (
    "predicted_mean",
    "predicted_cov",
    "predicted_map",
    "predicted_khat",
    "sharp",
    "paper_reference",
    "paper_bound",
)


def frame(measured, **predicted):
    other = dict.fromkeys(COLUMNS, 0.5) | predicted
    return pd.DataFrame({"mean": measured, "cov": measured, "map": measured} | other)


def row(table, metric, name):
    found = table[(table["metric"] == metric) & (table["predictor"] == name)]
    assert len(found) == 1
    return found.iloc[0]


def test_the_constant_is_always_there():
    table = predictor_table(frame(np.linspace(0.3, 0.6, 40)))
    for metric in ("mean", "cov", "map"):
        constant = row(table, metric, CONSTANT)
        assert constant["skill"] == 0
        assert not beats_constant(constant)
        khat = row(table, metric, "one-pass k-hat")  # it says 1/2, too
        assert khat["skill"] == 0
        assert not beats_constant(khat)


def test_skill():
    rng = np.random.default_rng(0)
    measured = 0.45 + 0.05 * rng.standard_normal(60)
    good = measured + 0.01 * rng.standard_normal(60)
    bad = measured + 0.2 * rng.standard_normal(60)
    table = predictor_table(frame(measured, predicted_mean=good, sharp=bad))
    first = table[table["metric"] == "mean"].iloc[0]
    assert first["predictor"] == "predicted on the range"
    assert beats_constant(first)
    expected = 1 - np.abs(good - measured).mean() / np.abs(0.5 - measured).mean()
    assert np.isclose(first["skill"], expected)
    assert first["skill_low"] < expected < first["skill_high"]
    assert row(table, "mean", "Gaussian, conjectured")["skill_high"] < 0


def test_few_heads_have_no_interval():
    table = predictor_table(frame(np.array([0.4, 0.6]), predicted_mean=np.array([0.4, 0.6])))
    assert row(table, "mean", "predicted on the range")["skill"] == 1
    assert not beats_constant(row(table, "mean", "predicted on the range"))
