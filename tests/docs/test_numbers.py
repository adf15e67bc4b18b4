"""Tables of pages that have a source file hold its numbers."""

from __future__ import annotations

import json

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "predictions.md"
FOUND = json.loads((ROOT / "benchmarks/results/predictors.json").read_text(encoding="utf-8"))
METRICS = ("mean", "covariance", "map")
COLUMNS = [*FOUND["runs"], "all"]


def rows() -> set[str]:
    """Rows of the page's tables, as cells with one space between them."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return {
        "|".join(c.strip() for c in line.strip("|").split("|")) for line in lines if "|" in line
    }


@pytest.mark.parametrize("row", FOUND["predictors"], ids=lambda r: f"{r['of']}-{r['predictor']}")
def test_errors_of_predictors(row: dict) -> None:
    skill = row["skill"]
    text = "" if skill is None else f"{skill[0]:.2f} ({skill[1]:.2f} to {skill[2]:.2f})"
    cells = [row["of"], row["predictor"], *(f"{row[name]:.3f}" for name in COLUMNS), text]
    assert "|".join(cells) in rows()


def test_errors_of_curves_and_flags() -> None:
    for row in FOUND["curves"]:
        shown = ["{:.0%}, {:.0%}".format(*row[name]) for name in COLUMNS]
        assert "|".join([row["of"], *shown]) in rows()
    for row in FOUND["flags"]:
        if row["of"] not in METRICS:  # told in a sentence
            continue
        counts = [row["raised at slow heads"], row["not raised at heads at 1/2"]]
        shown = [f"{right} of {of}" for right, of in counts]
        assert "|".join([row["of"], row["flag"], *shown]) in rows()


def test_the_summary_says_what_the_table_says() -> None:
    everywhere = {(r["of"], r["predictor"]): f"{r['all']:.3f}" for r in FOUND["predictors"]}
    summary = PAGE.read_text(encoding="utf-8").split("\n## ")[0]
    for metric in METRICS:
        assert everywhere[metric, "predicted on the range"] in summary
        assert everywhere[metric, "always 1/2"] in summary
