"""Charts of deep stacks show what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from esscher.core.errors import InputError
from esscher.show.content import draw, offered
from esscher.studies.deep.charts import DRAWINGS
from esscher.studies.deep.result import DeepEnd
from tests.show.drawn import panel_rows, texts

OFFERED = {
    "stack": ("depth", "errors", "exponents", "growth", "limit"),
    "shallow": ("depth", "errors", "exponents"),
    "decoder": ("depth", "errors", "exponents", "growth", "end", "terciles"),
    "encoder": ("depth", "errors", "growth", "end"),
}


@pytest.mark.parametrize(
    ("run", "name"), [(run, name) for run, names in OFFERED.items() for name in names]
)
def test_every_chart_is_drawn(run, name, request, capfd):
    written = texts(draw(DRAWINGS, request.getfixturevalue(run), name))
    assert not {"undefined", "NaN", "null"} & set(written)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("run", OFFERED)
def test_what_is_offered(run, request):
    found = request.getfixturevalue(run)
    assert tuple(one.name for one in offered(DRAWINGS, found)) == OFFERED[run]


def test_what_is_missing_is_said(stack, shallow, decoder, encoder):
    for found, name, words in (
        (stack, "end", "only a model has an end"),
        (stack, "terciles", "only a model has an end"),
        (decoder, "limit", "only a Gaussian stack has a known limit"),
        (shallow, "growth", "there is only one layer"),
        (shallow, "limit", "one replicate has no standard errors"),
        (encoder, "exponents", "errors at one size have no exponent"),
        (encoder, "terciles", "heads were not sampled by terciles"),
    ):
        with pytest.raises(InputError, match=words):
            draw(DRAWINGS, found, name)
    for name in OFFERED["decoder"]:
        nothing = replace(decoder, layers=(), growth={}, end=DeepEnd(), terciles=None)
        with pytest.raises(InputError, match="nothing is measured yet"):
            draw(DRAWINGS, nothing, name)


@pytest.mark.parametrize("run", ["stack", "decoder"])
def test_errors_hold_their_intervals(run, request):
    found = request.getfixturevalue(run)
    chart = draw(DRAWINGS, found, "errors")
    for i, curve in enumerate(found.layers[0].error):
        shown = {(row["layer"], row["n"]): row for row in panel_rows(chart, i, "error", "low")}
        assert len(shown) == len(found.layers) * len(found.sizes)
        for layer in found.layers:
            for j, n in enumerate(found.sizes):
                row, error = shown[layer.layer, str(n)], layer.error[curve]
                assert row["error"] == pytest.approx(error.mean[j], rel=1e-5)
                assert row["high"] == pytest.approx(error.interval[j][1], rel=1e-5)


def test_the_other_way_of_drawing_is_dashed_at_the_middle_size(decoder):
    shown = panel_rows(draw(DRAWINGS, decoder), 0, "error", "samples")
    dashed = [row for row in shown if row["samples"] == "shared"]
    assert {row["n"] for row in dashed} == {"10"}
    wanted = [layer.error["shared"].mean[1] for layer in decoder.layers]
    assert [row["error"] for row in dashed] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("run", ["stack", "decoder"])
def test_exponents_and_growth(run, request):
    found = request.getfixturevalue(run)
    words = {"cov": "covariance"}
    shown = {
        (row["layer"], row["curve"]): row
        for row in panel_rows(draw(DRAWINGS, found, "exponents"), 0, "exponent")
    }
    growth = draw(DRAWINGS, found, "growth")
    at = [
        {(row["layer"], row["curve"]): row for row in panel_rows(growth, i, "factor")}
        for i in range(3)
    ]
    for layer in found.layers:
        for curve, fit in layer.fit.items():
            place = (str(layer.layer), words.get(curve, curve))
            assert [shown[place][key] for key in ("low", "exponent", "high")] == pytest.approx(
                [fit.interval[0], fit.exponent, fit.interval[1]], rel=1e-5
            )
            assert shown[place]["hollow"] == (not fit.trusted)
            for i, step in enumerate(reversed(layer.growth[curve])):
                if step is None:
                    assert place not in at[i]
                else:
                    assert at[i][place]["factor"] == pytest.approx(step.factor, rel=1e-5)
                    assert at[i][place]["high"] == pytest.approx(step.interval[1], rel=1e-5)


def test_deviations_of_the_limit_lie_over_their_bounds(stack):
    chart = draw(DRAWINGS, stack, "limit")
    shown, bands = panel_rows(chart, 0, "score"), panel_rows(chart, 0, "what")
    for one in stack.limit:
        own = [row["score"] for row in shown if row["layer"] == one.layer]
        assert own == pytest.approx(one.deviations, rel=1e-5)
        wide = [row for row in bands if row["layer"] in (one.layer - 0.5, one.layer + 0.5)]
        assert one.bound in [pytest.approx(row["high"], rel=1e-5) for row in wide]
        assert all(row["low"] == -row["high"] for row in wide)


def values_of(chart, number, name):
    """Values of a panel by size, of the curve whose name begins like this."""
    shown = panel_rows(chart, number, "value", "variant")
    return {row["n"]: row["value"] for row in shown if row["variant"].startswith(name)}


def test_the_end_of_a_decoder(decoder):
    chart, end = draw(DRAWINGS, decoder, "end"), decoder.end
    for i, wanted in enumerate(
        (
            {way: end.kl[way].mean for way in decoder.growth},
            {way: end.top1[way].mean for way in decoder.growth},
            {way: end.perplexity[way].ratio for way in decoder.growth},
        )
    ):
        for way, values in wanted.items():
            shown = values_of(chart, i, f"{way} samples")
            assert list(shown) == list(decoder.sizes)
            assert list(shown.values()) == pytest.approx(list(values), rel=1e-5)
    exponent = end.kl["shared"].fit.exponent
    assert f"shared samples: KL ~ n^{-exponent:.2f}" in texts(chart)


def test_the_end_of_an_encoder_is_one_minus_its_cosine(encoder):
    shown = panel_rows(draw(DRAWINGS, encoder, "end"), 0, "value", "variant")
    cosine = encoder.end.cosine["shared"]
    for row in shown:
        assert [row["value"], row["high"]] == pytest.approx(
            [1 - cosine.mean[0], 1 - cosine.interval[0][0]], rel=1e-5
        )


def test_terciles_are_named_by_their_horizons(decoder):
    chart = draw(DRAWINGS, decoder, "terciles")
    for third in ("low", "middle", "high"):
        about = decoder.terciles.heads[third]
        name = f"{third} H ({about.horizon_min:.1f} to {about.horizon_max:.1f})"
        shown = values_of(chart, 0, name)
        assert list(shown.values()) == pytest.approx(list(decoder.end.kl[third].mean), rel=1e-5)


def test_names_are_text(decoder, hostile):
    written = " ".join(texts(draw(DRAWINGS, decoder, "exponents")))
    for word in hostile.replace("\x07", "\ufffd").split():
        assert word in written
