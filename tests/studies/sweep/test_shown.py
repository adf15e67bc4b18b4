"""Charts and sentences of a sweep show what was measured, fitted and predicted."""

from __future__ import annotations

import numpy as np
import pytest

import esscher
from esscher.core.errors import InputError
from esscher.math.theory import exponents
from esscher.studies.sweep.charts import BOUND, MEASURED, PREDICTED, REFERENCE, SHARPEST
from esscher.studies.sweep.combine import SHARP
from esscher.studies.sweep.view import TITLES
from tests.show.drawn import panel_rows, texts


@pytest.fixture(params=["swept", "one", "laplace"])
def result(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", ["curve", "exponents"])
def test_every_chart_is_drawn(result, name, capfd):
    written = texts(result.plot(name))
    assert "undefined" not in written
    assert set(TITLES.values()) <= set(written)
    assert capfd.readouterr().err == ""


def test_curves_hold_errors_fits_and_predictions(result):
    chart = result.plot("curve")
    for i, metric in enumerate(TITLES):
        rows = panel_rows(chart, i, "n", "error")
        for alpha in result.data["alpha"].values:
            rate, at = result.rate(metric, alpha), result.data.sel(metric=metric, alpha=alpha)
            horizon = f"{float(at['horizon']):.3g}"
            of_scale = [row for row in rows if row["horizon"] == horizon]
            measured = [row for row in of_scale if "low" in row]
            for key, wanted in (
                ("n", rate.sizes),
                ("error", rate.mean),
                ("low", rate.lower),
                ("high", rate.upper),
            ):
                np.testing.assert_allclose([row[key] for row in measured], wanted, rtol=1e-5)
            assert {row["hollow"] for row in measured} == {not rate.trusted}
            drawn = {}
            for row in of_scale:
                if "low" not in row:
                    drawn.setdefault(row["line"], []).append(row)
            for row in drawn["fitted law"]:
                wanted = rate.constant * row["n"] ** -rate.exponent
                assert row["error"] == pytest.approx(wanted, rel=1e-4)
            curve = at["predicted_error"].sel(tokens=at["size"].values).dropna("tokens").values
            shown = [row["error"] for row in drawn.get("predicted", [])]
            np.testing.assert_allclose(shown, curve, rtol=1e-5)
            assert len(shown) == (4 if result.setup.settings.predict else 0)


def test_exponents_and_theory(swept, laplace):
    chart = swept.plot("exponents")
    for i, metric in enumerate(TITLES):
        by_kind = {}
        for row in panel_rows(chart, i, "kind"):
            by_kind.setdefault(row["kind"], {})[row["horizon"]] = row
        for alpha, horizon in swept["horizon"].to_series().items():
            rate, row = swept.rate(metric, alpha), by_kind[MEASURED][horizon]
            assert row["exponent"] == pytest.approx(rate.exponent, rel=1e-5)
            assert (row["low"], row["high"]) == pytest.approx(rate.interval, rel=1e-5)
            assert row["hollow"] is not rate.trusted
            predicted = by_kind[PREDICTED][horizon]["exponent"]
            assert predicted == pytest.approx(rate.predicted, rel=1e-5)
        published = {REFERENCE: "paper_reference", BOUND: "paper_bound"}
        for kind, field in ({SHARPEST: SHARP[metric]} | published).items():
            for horizon, row in by_kind[kind].items():
                wanted = getattr(exponents(horizon), field)
                assert row["exponent"] == pytest.approx(wanted, abs=1e-5)
    assert SHARPEST not in texts(laplace.plot("exponents"))


def test_a_saved_result_is_the_same(swept, tmp_path):
    swept.save(tmp_path / "saved")
    saved = esscher.load(tmp_path / "saved")
    assert saved.data.identical(swept.data)
    stored, made = saved.rate("map", 2.0), swept.rate("map", 2.0)
    assert repr(stored) == repr(made)
    assert stored.table().equals(made.table())


def test_one_size_has_errors_and_no_fit():
    result = esscher.sweep(esscher.gaussian_head(0.5, 1), [32], 4)
    assert list(result.charts()) == ["curve"]
    rows = panel_rows(result.plot(), 0, "error")
    mean = result["error"].sel(metric="mean", bound="value").item()
    assert [row["error"] for row in rows] == pytest.approx([mean], rel=1e-5)
    with pytest.raises(InputError, match="takes at least 2 sizes"):
        result.plot("exponents")
    assert list(result.tables()) == ["errors", "replicates"]
    assert result.headline.startswith("At H = 0.5 no rate can be fitted to the error of the mean")
