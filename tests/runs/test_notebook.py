"""A notebook cell that ends in a result shows its table and its chart, whatever is in them."""

from __future__ import annotations

import html

import pytest

import esscher
from tests.runs.made import HOSTILE, RUNS, make


def escaped(page: str) -> bool:
    """Whether nothing in a page runs or loads; the names of models hold a tag."""
    return not any(word in page.lower() for word in ("<b>", "<script", "javascript:", "onerror="))


@pytest.mark.parametrize("name", [name for name in RUNS if name != "theory"])
def test_results_of_studies(name: str) -> None:
    result = make(name)[1]
    page = result._repr_html_()
    assert html.escape(result.headline) in page
    assert "<table" in page
    assert "<svg" in page
    assert escaped(page)
    assert HOSTILE not in page
    if len(frame := result.table()) > 20:
        assert f"{len(frame) - 20:,} more rows" in page


def test_results_of_theory_and_rates() -> None:
    prediction = esscher.predict(esscher.gaussian_head(0.5), [100, 1000], "population")
    assert prediction._repr_html_().count("<tr") == 3  # a heading and a row for each size
    errors = [[1.0, 0.5, 0.25], [1.1, 0.5, 0.26], [0.9, 0.52, 0.24], [1.0, 0.49, 0.25]]
    rate = esscher.fit_rate(errors, [100, 200, 400])
    assert escaped(prediction._repr_html_())
    assert "95% interval" in rate._repr_html_()
