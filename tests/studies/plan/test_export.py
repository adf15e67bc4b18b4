"""Budgets for other runtimes: what the name of a file promises is what it holds."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import esscher
from esscher.core.errors import InputError
from tests.studies.plan.small import DECODER, prose, tiny


@pytest.fixture(scope="module")
def chosen():
    return esscher.plan(tiny(), prose(1), selection="topk", **DECODER)


def test_a_file_is_what_its_name_says(chosen, tmp_path):
    for name in ("a.json", "a.csv", "A.NPY"):
        chosen.export(tmp_path / name)
    assert json.loads((tmp_path / "a.json").read_text())["tokens"] == [*map(list, chosen.budgets)]
    table = pd.read_csv(tmp_path / "a.csv")
    assert table.tokens.tolist() == np.ravel(chosen.budgets).tolist()
    curves = np.load(tmp_path / "A.NPY")
    row = round(100 * (1 - chosen.total.ratio)) - 1
    np.testing.assert_allclose(curves[row], 1 - np.asarray(chosen.ratios), atol=1e-6)
    assert np.isnan(np.delete(curves, row, 0)).all()
    chosen.export(tmp_path / "budgets", format="csv")
    assert (tmp_path / "budgets").read_bytes() == (tmp_path / "a.csv").read_bytes()


@pytest.mark.parametrize(
    ("name", "format", "message"),
    [
        ("r.npz", None, "the name 'r.npz' does not say what to write"),
        ("r", None, "the name 'r' does not say what to write"),
        ("r.npy", "json", "'r.npy' is the name of a file of format 'kvpress'"),
        ("r.json", "kvpress", "let it end in .npy, or leave the format out"),
        ("r.npy", "numpy", "format is 'numpy'; choose"),
    ],
)
def test_names_that_say_something_else_are_refused(chosen, name, format, message, tmp_path):
    with pytest.raises(InputError, match=message):
        chosen.export(tmp_path / name, format=format)
    assert not list(tmp_path.iterdir())


def test_kvpress_is_told_what_it_loses(found, tmp_path):
    assert found.selection == "fitted"
    with pytest.warns(UserWarning, match="kvpress has no weights and fitted values") as said:
        found.export(tmp_path / "r.npy")
    assert said[0].filename == __file__
    assert np.load(tmp_path / "r.npy").shape == (99, *np.shape(found.ratios))
