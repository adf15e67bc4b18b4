"""Results in a notebook: every class that shows itself as HTML escapes what it was given."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import esscher

#: Classes of the old core that a call or a command of the package returns, and that print a table.
RESULTS = tuple(
    kind
    for kind in map(vars(esscher.results).get, esscher.results.__all__)
    if kind is not esscher.results.Result and issubclass(kind, esscher.results.Result)
)
HOSTILE = "<script>alert('x')</script>"


def check(page: str) -> None:
    assert page
    assert "<script" not in page.lower()
    assert "javascript:" not in page.lower()
    assert "onerror=" not in page.lower()


def test_what_theory_returns() -> None:
    head = esscher.gaussian_head(0.5)
    prediction = esscher.predict(head, [100, 1000], "population", moments=False)
    page = prediction._repr_html_()
    check(page)
    assert page.count("<tr") == 3  # a heading and a row for each size


def test_what_a_sweep_returns() -> None:
    curve = esscher.sweep(esscher.gaussian_head(0.5), [50, 100, 200], 8)
    check(curve._repr_html_())
    check(curve.rate("mean")._repr_html_())


@pytest.mark.parametrize("kind", RESULTS)
def test_what_a_run_returns_is_escaped(kind: type[Any]) -> None:
    """Names of models, of files and of tokens come from outside: here all of them are scripts."""

    class Hostile(kind):  # type: ignore[misc, valid-type]
        headline = subject = HOSTILE

        def table(self) -> pd.DataFrame:
            return pd.DataFrame({HOSTILE: [HOSTILE], "error": [0.5]})

        def shown(self) -> list[pd.DataFrame]:
            return [self.table()]

    page = object.__new__(Hostile)._repr_html_()
    check(page)
    assert "&lt;script&gt;" in page
    assert "<table" in page
