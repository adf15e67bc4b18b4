"""Numbers of the page on predictions are those of the stored results."""

from __future__ import annotations

import json

import pytest

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "predictions.md").read_text(encoding="utf-8")
STORED = json.loads((ROOT / "benchmarks/results/predictors.json").read_text(encoding="utf-8"))
SHOWN = ("minilm-wikipedia", "smollm2-wikipedia", "mpnet-wikipedia", "all")


@pytest.mark.parametrize("of", ["mean", "covariance", "map"])
@pytest.mark.parametrize("predictor", ["predicted on the range", "always 1/2"])
def test_errors_of_predictors(of: str, predictor: str) -> None:
    (row,) = (r for r in STORED["predictors"] if (r["of"], r["predictor"]) == (of, predictor))
    cells = " | ".join([of, predictor, *(f"{row[name]:.3f}" for name in SHOWN)])
    assert f"| {cells} |" in PAGE
    assert f"{row['all']:.3f}" in PAGE.split("\n## ")[0]


def test_flags() -> None:
    for row in STORED["flags"]:
        if row["flag"] in ("slow mean (predicted)", "slow map (predicted)"):
            counts = (row["raised at slow heads"], row["not raised at heads at 1/2"])
            cells = " | ".join([row["of"], row["flag"], *(f"{a} of {b}" for a, b in counts)])
            assert f"| {cells} |" in PAGE
