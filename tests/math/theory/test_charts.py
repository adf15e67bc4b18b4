"""Charts of predictions show what was predicted."""

from __future__ import annotations

import pytest

import esscher
from esscher.core.errors import InputError
from esscher.math.charts import CURVES
from tests.show.drawn import panel_rows, texts

HEAD = esscher.gaussian_head(0.8, 1)


@pytest.fixture(scope="module")
def prediction():
    return esscher.predict(HEAD, [100, 1000, 10_000], queries="population")


def test_errors_and_local_exponents(prediction, capfd):
    chart = prediction.plot()
    errors, exponents = (panel_rows(chart, i, "curve", "n") for i in (0, 1))
    assert {row["curve"] for row in errors} == {CURVES[name][0] for name in prediction.curves}
    for name, curve in prediction.curves.items():
        own = [row["error"] for row in errors if row["curve"] == CURVES[name][0]]
        assert own == pytest.approx(curve.error.tolist(), rel=1e-5)
        own = [row["exponent"] for row in exponents if row["curve"] == CURVES[name][0]]
        assert own == pytest.approx(curve.local_slopes().tolist(), rel=1e-5)
    written = texts(chart)
    assert "Gaussian tokens, d = 1, H = 0.8, F = 0.8, queries: population" in written
    assert {"published reference", "published bound", "map, rms"} <= set(written)
    assert capfd.readouterr().err == ""


def test_the_burn_in_is_marked_if_it_lies_among_the_sizes(prediction):
    assert "burn-in" not in texts(prediction.plot())
    slow = esscher.predict(esscher.gaussian_head(2.4, 1), [100, 1000, 10_000], moments=False)
    assert "burn-in" in texts(slow.plot())
    marks = [row["at"] for row in panel_rows(slow.plot(), 0, "at")]
    assert marks == [pytest.approx(slow.burn_in, rel=1e-5)]


def test_without_curves_there_is_nothing_to_draw():
    laplace = esscher.law_head(esscher.laws.standard_law("laplace", 2), horizon=0.5)
    for prediction in (esscher.predict(HEAD), esscher.predict(laplace, [100, 1000])):
        with pytest.raises(InputError, match="there is no curve to draw"):
            prediction.plot()
