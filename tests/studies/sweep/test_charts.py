"""Charts of a sweep show what was measured, fitted and predicted."""

from __future__ import annotations

import numpy as np
import pytest

import esscher
from esscher.core.errors import InputError
from esscher.math.theory import exponents
from esscher.show.content import draw, offered
from esscher.studies.sweep.charts import (
    BOUND,
    DRAWINGS,
    MEASURED,
    PREDICTED,
    REFERENCE,
    SHARPEST,
)
from esscher.studies.sweep.predictions import SHARP
from esscher.studies.sweep.result import TITLES
from tests.show.drawn import panel_rows, texts

NAMES = {
    "swept": ("curve", "exponents", "predicted"),
    "one": ("curve", "exponents"),
    "laplace": ("curve", "exponents"),
}


@pytest.fixture
def found(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(
    ("found", "name"),
    [(run, name) for run, names in NAMES.items() for name in names],
    indirect=["found"],
)
def test_every_chart_is_drawn(found, name, capfd):
    written = texts(draw(DRAWINGS, found, name))
    assert "undefined" not in written
    assert set(TITLES.values()) <= set(written)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("found", NAMES, indirect=True)
def test_curves_hold_errors_fits_and_predictions(found):
    chart = draw(DRAWINGS, found, "curve")
    for i, metric in enumerate(TITLES):
        rows = panel_rows(chart, i, "n", "error")
        measured = [row for row in rows if "low" in row]
        for s in range(len(found.scales)):
            rate, horizon = found.rate(metric, s), f"{found.horizons[s]:.3g}"
            own = [row for row in measured if row.get("horizon", horizon) == horizon]
            for key, wanted in (
                ("n", rate.sizes),
                ("error", rate.mean),
                ("low", rate.lower),
                ("high", rate.upper),
            ):
                np.testing.assert_allclose([row[key] for row in own], wanted, rtol=1e-5)
            assert {row["hollow"] for row in own} == {not rate.trusted}
            drawn = {}
            for row in rows:
                if row.get("horizon", horizon) == horizon and "low" not in row:
                    drawn.setdefault(row.get("line") or row["kind"], []).append(row)
            for row in drawn["fitted law"]:
                wanted = rate.constant * row["n"] ** -rate.exponent
                assert row["error"] == pytest.approx(wanted, rel=1e-4)
            assert ("predicted" in drawn) == (found.predictions is not None)
            if found.predictions is not None:
                errors = found.predictions[s].errors[metric]
                shown = [row["error"] for row in drawn["predicted"]]
                np.testing.assert_allclose(shown, errors, rtol=1e-5)


def test_one_horizon_has_the_band_of_its_fit(one):
    chart = draw(DRAWINGS, one)
    for i, metric in enumerate(TITLES):
        rate = one.rate(metric)
        band = [row for row in panel_rows(chart, i, "low") if "error" not in row]
        n = np.log([row["n"] for row in band])
        design = np.stack([np.ones_like(n), -n], axis=1)
        spread = np.sqrt(np.einsum("ij,jk,ik->i", design, rate.covariance, design))
        line = np.log(rate.constant) - rate.exponent * n
        above = np.log([row["high"] for row in band]) - line
        np.testing.assert_allclose(above, rate.critical * spread, atol=1e-4)
    written = " ".join(texts(chart))
    low, high = one.rate("map").interval
    assert f"β = {one.rate('map').exponent:.3f} ({low:.3f} to {high:.3f})" in written
    assert f"predicted {one.rate('map').predicted:.3f}" in written


def test_exponents_and_theory(swept):
    chart = draw(DRAWINGS, swept, "exponents")
    for i, metric in enumerate(TITLES):
        by_kind = {}
        for row in panel_rows(chart, i, "kind"):
            by_kind.setdefault(row["kind"], {})[row["horizon"]] = row
        for s, horizon in enumerate(swept.horizons):
            fit = swept.rate(metric, s)
            row = by_kind[MEASURED][horizon]
            assert row["exponent"] == pytest.approx(fit.exponent, rel=1e-5)
            assert (row["low"], row["high"]) == pytest.approx(fit.interval, rel=1e-5)
            assert row["hollow"] is not fit.trusted
            assert by_kind[PREDICTED][horizon]["exponent"] == pytest.approx(fit.predicted, rel=1e-5)
        published = {REFERENCE: "paper_reference", BOUND: "paper_bound"}
        for kind, field in ({SHARPEST: SHARP[metric]} | published).items():
            line = by_kind[kind]
            assert min(line) <= min(swept.horizons) < max(swept.horizons) <= max(line)
            for horizon, row in line.items():
                wanted = getattr(exponents(horizon), field)
                assert row["exponent"] == pytest.approx(wanted, abs=1e-5)


def test_tokens_without_a_limit_have_no_asymptotic_exponent(laplace, one):
    assert SHARPEST in texts(draw(DRAWINGS, one, "exponents"))
    assert SHARPEST not in texts(draw(DRAWINGS, laplace, "exponents"))


def test_measured_against_predicted(swept):
    chart = draw(DRAWINGS, swept, "predicted")
    for i, metric in enumerate(TITLES):
        shown = {row["horizon"]: row for row in panel_rows(chart, i, "metric")}
        assert len(shown) == 3
        for s, horizon in enumerate(swept.horizons):
            fit, row = swept.rate(metric, s), shown[f"{horizon:.3g}"]
            assert row["predicted"] == pytest.approx(fit.predicted, rel=1e-5)
            assert row["exponent"] == pytest.approx(fit.exponent, rel=1e-5)
        off = np.mean([abs(row["predicted"] - row["exponent"]) for row in shown.values()])
        assert f"{off:.3f}" in texts(chart)


@pytest.mark.parametrize("found", ["swept", "one"], indirect=True)
def test_a_saved_result_is_drawn_without_its_replicates(found, tmp_path):
    found.save(tmp_path / "saved.json")
    saved = esscher.load(tmp_path / "saved.json")
    for name in found.charts():
        assert texts(saved.plot(name))
    whole, without = (panel_rows(draw(DRAWINGS, each), 0, "hollow") for each in (found, saved))
    assert whole == without


def test_one_size_has_no_fit():
    found = esscher.sweep(esscher.gaussian_head(0.5, 1), [32], 4)
    assert [one.name for one in offered(DRAWINGS, found)] == ["curve"]
    rows = panel_rows(draw(DRAWINGS, found), 0, "error")
    assert [row["error"] for row in rows] == pytest.approx(found.mean("mean")[0], rel=1e-5)
    assert texts(draw(DRAWINGS, found))
    with pytest.raises(InputError, match="takes at least 2 sizes"):
        draw(DRAWINGS, found, "exponents")
