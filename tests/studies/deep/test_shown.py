"""The chart and the page of deep stacks show what was measured."""

from __future__ import annotations

import html
from dataclasses import replace

import pytest

import esscher
from esscher.core.errors import InputError
from esscher.show.content import draw
from esscher.studies.deep.charts import DRAWINGS
from esscher.studies.deep.view import summary
from tests.runs.made import HOSTILE
from tests.show.drawn import panel_rows, texts

RUNS = ("stack", "shallow", "decoder", "encoder")


@pytest.mark.parametrize("run", RUNS)
def test_the_chart_is_drawn(run, request, capfd):
    written = texts(draw(DRAWINGS, request.getfixturevalue(run)))
    assert not {"undefined", "NaN", "null"} & set(written)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("run", ["stack", "decoder"])
def test_errors_and_exponents_hold_their_intervals(run, request):
    result = request.getfixturevalue(run)
    chart, names = draw(DRAWINGS, result), {"cov": "covariance"}
    curve = next(iter(result.layers[0].error))
    rows = [row for row in panel_rows(chart, 0, "error", "low") if row["samples"] == curve]
    errors = {(row["layer"], row["n"]): row for row in rows}
    fits = {(row["layer"], row["curve"]): row for row in panel_rows(chart, 1, "exponent")}
    for layer in result.layers:
        for j, n in enumerate(result.sizes):
            row, error = errors[layer.layer, str(n)], layer.error[curve]
            assert row["error"] == pytest.approx(error.mean[j], rel=1e-5)
            assert row["high"] == pytest.approx(error.interval[j][1], rel=1e-5)
        for name, fit in layer.fit.items():
            row = fits[str(layer.layer), names.get(name, name)]
            assert [row[key] for key in ("low", "exponent", "high")] == pytest.approx(
                [fit.interval[0], fit.exponent, fit.interval[1]], rel=1e-5
            )
            assert row["hollow"] == (not fit.trusted)


def test_growth_and_limit_of_a_stack(stack):
    chart, names = draw(DRAWINGS, stack), {"cov": "covariance"}
    growth = {(row["layer"], row["curve"]): row for row in panel_rows(chart, 2, "factor")}
    for layer in stack.layers[1:]:
        for curve, steps in layer.growth.items():
            row = growth[str(layer.layer), names.get(curve, curve)]
            assert row["factor"] == pytest.approx(steps[-1].value, rel=1e-5)
            assert row["high"] == pytest.approx(steps[-1].interval[1], rel=1e-5)
    shown = panel_rows(chart, 3, "score")
    for limit in stack.limit:
        scores = [row["score"] for row in shown if row["layer"] == limit.layer]
        assert max(map(abs, scores)) == pytest.approx(limit.largest, rel=1e-5)


def test_the_end_of_a_model(decoder, encoder):
    chart = draw(DRAWINGS, decoder)
    ways, thirds = (panel_rows(chart, i, "value", "variant") for i in (2, 3))
    exponent = decoder.damage["shared"].exponent
    heads = decoder.terciles.heads["high"]
    for rows, variant, name in (
        (ways, "shared", f"shared samples: KL ~ n^{-exponent:.2f}"),
        (thirds, "high", f"high H ({heads.horizon_min:.1f} to {heads.horizon_max:.1f})"),
    ):
        values = {row["n"]: row["value"] for row in rows if row["variant"].startswith(name)}
        assert list(values) == list(decoder.sizes)
        assert list(values.values()) == pytest.approx(decoder.end["kl"][variant].mean, rel=1e-5)
    cosine = encoder.end["cosine"]["shared"]
    (row,) = {(r["value"], r["high"]) for r in panel_rows(draw(DRAWINGS, encoder), 1, "value")}
    assert row == pytest.approx((1 - cosine.mean[0], 1 - cosine.interval[0][0]), rel=1e-5)


@pytest.mark.parametrize("run", RUNS)
def test_the_page_holds_the_numbers(run, request, tmp_path):
    result = request.getfixturevalue(run)
    page = summary(result, "run")
    gaussian = result.is_gaussian
    curve, j = next(iter(result.layers[0].error)), -1 if gaussian else len(result.sizes) // 2
    assert page.cards[0].value == f"{100 * result.layers[0].error[curve].mean[j]:.2f}%"
    assert ("no interval" in page.cards[0].note) == (run == "shallow")
    assert len(page.tables) == (1 if gaussian else 2)
    text = esscher.report(result, tmp_path / "report.html").read_text("utf-8")
    assert html.escape(result.headline, quote=False) in html.unescape(text)
    assert "<b> &" not in text
    assert (html.escape(HOSTILE.partition(" \x07")[0], quote=False) in text) != gaussian


def test_nothing_measured_is_no_error(decoder):
    nothing = replace(decoder, layers=(), growth={}, end={}, damage={}, terciles=None)
    page = summary(nothing, "run")
    assert (list(page.cards), list(page.tables)) == ([], [])
    with pytest.raises(InputError, match="nothing is measured yet"):
        draw(DRAWINGS, nothing)
