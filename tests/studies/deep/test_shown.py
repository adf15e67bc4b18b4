"""The chart of deep stacks show what was measured."""

from __future__ import annotations

import pytest

from esscher.show.content import draw
from esscher.studies.deep.charts import DRAWINGS
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
    chart = draw(DRAWINGS, result)
    frame = result.table("errors")
    curve = frame["curve"].iloc[0]
    rows = [row for row in panel_rows(chart, 0, "error", "low") if row["curve"] == curve]
    errors = {(row["layer"], row["size"]): row for row in rows}
    fits = {(row["layer"], row["curve"]): row for row in panel_rows(chart, 1, "exponent")}
    for known in frame.itertuples():
        if known.curve == curve:
            row = errors[known.layer, known.size]
            assert [row["error"], row["high"]] == pytest.approx(
                [known.error, known.error_high], rel=1e-5
            )
        row = fits[str(known.layer), known.curve]
        assert [row[key] for key in ("low", "exponent", "high")] == pytest.approx(
            [known.exponent_low, known.exponent, known.exponent_high], rel=1e-5
        )
        assert row["hollow"] == (not known.trusted)


def test_growth_of_a_stack(stack):
    chart = draw(DRAWINGS, stack)
    growth = {(row["layer"], row["curve"]): row for row in panel_rows(chart, 2, "growth")}
    for known in stack.table().dropna().itertuples():
        row = growth[str(known.layer), known.curve]
        assert [row["growth"], row["high"]] == pytest.approx(
            [known.growth, known.growth_high], rel=1e-5
        )


def test_the_end_of_a_model(decoder, encoder):
    chart = draw(DRAWINGS, decoder)
    for i, name in ((2, "shared"), (3, "high")):
        rows = [row for row in panel_rows(chart, i, "kl") if row["sampled"] == name]
        kl = decoder["kl"].sel(sampled=name, bound="value")
        drawn = {row["size"]: row["kl"] for row in rows}  # lines and points
        assert drawn == pytest.approx(kl.to_series().to_dict(), rel=1e-5)
    mean, low, _ = encoder["cosine"].values.ravel()
    (row,) = {
        (r["distance"], r["high"]) for r in panel_rows(draw(DRAWINGS, encoder), 1, "distance")
    }
    assert row == pytest.approx((1 - mean, 1 - low), rel=1e-5)
