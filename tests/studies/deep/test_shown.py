"""The chart and the page of deep stacks show what was measured."""

from __future__ import annotations

import html

import pytest

import esscher
from esscher.core.shown import shown
from esscher.show.content import draw
from esscher.show.table_view import summary
from esscher.studies.deep.charts import DRAWINGS
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
    frame = result.table("errors")
    curve = frame["curve"].iloc[0]
    rows = [row for row in panel_rows(chart, 0, "error", "low") if row["samples"] == curve]
    errors = {(row["layer"], row["size"]): row for row in rows}
    fits = {(row["layer"], row["curve"]): row for row in panel_rows(chart, 1, "exponent")}
    for known in frame.itertuples():
        if known.curve == curve:
            row = errors[known.layer, known.size]
            assert [row["error"], row["high"]] == pytest.approx(
                [known.error, known.error_high], rel=1e-5
            )
        row = fits[str(known.layer), names.get(known.curve, known.curve)]
        assert [row[key] for key in ("low", "exponent", "high")] == pytest.approx(
            [known.exponent_low, known.exponent, known.exponent_high], rel=1e-5
        )
        assert row["hollow"] == (not known.trusted)


def test_growth_and_limit_of_a_stack(stack):
    chart, names = draw(DRAWINGS, stack), {"cov": "covariance"}
    growth = {(row["layer"], row["curve"]): row for row in panel_rows(chart, 2, "growth")}
    for known in stack.table().dropna().itertuples():
        row = growth[str(known.layer), names.get(known.curve, known.curve)]
        assert [row["growth"], row["high"]] == pytest.approx(
            [known.growth, known.growth_high], rel=1e-5
        )
    shown = panel_rows(chart, 3, "score")
    for layer, largest in enumerate(stack["largest"].values):
        scores = [row["score"] for row in shown if row["layer"] == layer]
        assert max(map(abs, scores)) == pytest.approx(largest, rel=1e-5)


def test_the_end_of_a_model(decoder, encoder):
    chart = draw(DRAWINGS, decoder)
    ways, thirds = (panel_rows(chart, i, "value", "variant") for i in (2, 3))
    table = decoder.table("damage").set_index("sampled")
    exponent, high = table.loc["shared"], table.loc["high"]
    for rows, variant, name in (
        (ways, "shared", f"shared samples: KL ~ n^{-exponent['exponent']:.2f}"),
        (thirds, "high", f"high H ({high['horizon_low']:.1f} to {high['horizon_high']:.1f})"),
    ):
        values = {row["n"]: row["value"] for row in rows if row["variant"].startswith(name)}
        kl = decoder["kl"].sel(sampled=variant, bound="value")
        assert list(values) == kl["size"].values.tolist()
        assert list(values.values()) == pytest.approx(kl.values.tolist(), rel=1e-5)
    mean, low, _ = encoder["cosine"].values.ravel()
    (row,) = {(r["value"], r["high"]) for r in panel_rows(draw(DRAWINGS, encoder), 1, "value")}
    assert row == pytest.approx((1 - mean, 1 - low), rel=1e-5)


@pytest.mark.parametrize("run", RUNS)
def test_the_page_holds_the_numbers(run, request, tmp_path):
    result = request.getfixturevalue(run)
    page, gaussian = summary(result, "run"), run in ("stack", "shallow")
    assert page.cards[0].value == shown(result.table()["error"].iloc[0])
    assert ("no interval" in page.cards[0].note) == (run == "shallow")
    assert len(page.tables) == (2 if gaussian else 3)
    text = esscher.report(result, tmp_path / "report.html").read_text("utf-8")
    assert html.escape(result.headline, quote=False) in html.unescape(text)
    assert "<b> &" not in text
    assert (html.escape(HOSTILE.partition(" \x07")[0], quote=False) in text) != gaussian
