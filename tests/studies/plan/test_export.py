"""Budgets for other runtimes: what the name of a file promises is what it holds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import esscher
from esscher.core.errors import InputError
from tests.studies.plan.small import DECODER, prose, tiny


@pytest.fixture(scope="module")
def topk_plan():
    return esscher.plan(tiny(), prose(1), selection="topk", **DECODER)


def test_a_file_is_what_its_name_says(topk_plan, tmp_path):
    for name in ("a.csv", "A.NPY"):
        topk_plan.export(tmp_path / name)
    table = pd.read_csv(tmp_path / "a.csv")
    same = topk_plan.table().rename(columns={"nbytes": "bytes"})
    assert set(table.pop("key_bits")) == set(table.pop("value_bits")) == {16}
    pd.testing.assert_frame_equal(table, same[list(table)], check_dtype=False)
    curves, plan = np.load(tmp_path / "A.NPY"), topk_plan.plan
    row = round(100 * (1 - plan.ratio)) - 1
    np.testing.assert_allclose(curves[row], 1 - plan.ratios, atol=1e-6)
    assert np.isnan(np.delete(curves, row, 0)).all()


@pytest.mark.parametrize("name", ["r.npz", "r", "r.json"])
def test_other_names_are_refused(topk_plan, name, tmp_path):
    with pytest.raises(InputError, match=f"the name '{name}' does not say what to write"):
        topk_plan.export(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_kvpress_warns_of_what_it_loses(small_plan, tmp_path):
    assert small_plan.plan.selection == "fitted"
    with pytest.warns(
        UserWarning, match="kvpress has no bits, weights and fitted values"
    ) as caught:
        small_plan.export(tmp_path / "r.npy")
    assert caught[0].filename == __file__
    assert np.load(tmp_path / "r.npy").shape == (99, 3, 2)
