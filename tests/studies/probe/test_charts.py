"""Charts of a probe show what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.show.content import draw, offered
from esscher.studies.probe import charts, probe, view
from esscher.studies.probe.charts import DRAWINGS
from esscher.studies.probe.result import METRIC_NAMES
from tests.engine.models.folders import tiny, words
from tests.runs.made import HOSTILE, changed, make, wide_probe
from tests.show.drawn import panel_rows, rows, texts, unpacked
from tests.studies.probe.sizes import SMALL


@pytest.mark.parametrize("width", ["single", "double"])
@pytest.mark.parametrize("name", [drawing.name for drawing in DRAWINGS])
def test_every_chart_is_drawn_and_names_are_text(found, name, width, capfd):
    written = " ".join(texts(draw(DRAWINGS, found, name), width))
    for word in HOSTILE.replace("\x07", "\ufffd").split():
        assert word in written
    assert capfd.readouterr().err == ""


NUMBERS = {
    "heads": charts.MAIN,
    "explorer": charts.FIRST,
    "numbers": [name for row in charts.OTHERS for name in row],
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_heatmaps_hold_the_numbers_of_the_table(found, kind):
    table = found.table().set_index(["layer", "head"])
    table["lost"] = table["sinks"] + table["delimiters"]
    chart = draw(DRAWINGS, found, kind)
    tails = any(head.tails is not None for head in found.heads)
    for name in NUMBERS[kind]:
        if name == "proxy" and not tails:
            continue
        shown = {(row["layer"], row["head"]): row[name] for row in rows(chart, name)}
        assert shown == pytest.approx(table[name].to_dict(), rel=1e-5)


def test_the_main_chart_comes_first(found):
    assert offered(DRAWINGS, found)[0].name == "heads"
    assert next(iter(found.charts())) == "heads"


def test_a_report_shows_every_number_of_a_head_once(found):
    assert sorted([*NUMBERS["explorer"], *NUMBERS["numbers"]]) == sorted(charts.NUMBERS)
    assert len(charts.MAIN) == 6


def curves_of(chart, number, layer, head):
    """Rows of the curves of one metric in the explorer, for one head."""
    return [
        row
        for row in panel_rows(chart, len(charts.FIRST) + number, "n")
        if (row["layer"], row["head"]) == (layer, head)
    ]


def test_the_explorer_has_the_curves_of_every_head(found):
    chart = draw(DRAWINGS, found, "explorer")
    for number, metric in enumerate(METRIC_NAMES):
        for head in found.heads:
            fit, scale = head.fit[metric], head.norm ** (2 if metric == "cov" else 1)
            own = curves_of(chart, number, head.layer, head.head)
            measured = [row for row in own if "hollow" in row]
            assert [row["n"] for row in measured] == list(found.sizes)
            for key, values in (
                ("error", head.curve[metric].mean),
                ("low", fit.lower),
                ("high", fit.upper),
            ):
                shown = [row[key] for row in measured]
                np.testing.assert_allclose(shown, np.array(values) / scale, rtol=1e-5)
            assert {row["hollow"] for row in measured} == {not fit.trusted}
            law = {row["n"]: row["error"] for row in own if row.get("line") == charts.FITTED}
            assert law == pytest.approx(
                {
                    n: fit.constant * n**-fit.exponent / scale
                    for n in (found.sizes[0], found.sizes[-1])
                },
                rel=1e-5,
            )
            guess = [row for row in own if row.get("line") == charts.PREDICTED]
            errors = {row["n"]: row["error"] for row in guess}
            wanted = np.array(head.predicted_error[metric].error) / scale
            np.testing.assert_allclose([errors[n] for n in found.sizes], wanted, rtol=1e-5)
            (said,) = [
                row["text"]
                for row in panel_rows(chart, len(charts.FIRST) + number, "text")
                if (row["layer"], row["head"]) == (head.layer, head.head)
            ]
            assert said.startswith(f"β = {fit.exponent:.3f} (")


def test_the_explorer_starts_at_the_head_that_needs_most_tokens(found):
    worst = max(found.heads, key=lambda head: head.tokens_for.percent_10 or np.inf)
    (param,) = draw(DRAWINGS, found, "explorer").to_dict()["params"]
    assert param["value"] == [{"layer": worst.layer, "head": worst.head}]
    (param,) = draw(DRAWINGS, found, "explorer", heads=[(0, 2)]).to_dict()["params"]
    assert param["value"] == [{"layer": 0, "head": 2}]


def test_too_many_heads_leave_the_curves_that_matter(monkeypatch):
    probe = wide_probe(4, 5)
    monkeypatch.setattr(charts, "KEPT", 7)
    chart = draw(DRAWINGS, probe, "explorer", heads=[(3, 3)])
    kept = {(row["layer"], row["head"]) for row in panel_rows(chart, len(charts.FIRST), "n")}
    assert len(kept) == 7
    assert (3, 3) in kept
    needed = {(h.layer, h.head): h.tokens_for.percent_10 or np.inf for h in probe.heads}
    others = [need for one, need in needed.items() if one not in kept]
    assert min(needed[one] for one in kept - {(3, 3)}) >= max(others)
    assert "curves of the 7 of 20 heads that need most tokens" in chart.chart.title.subtitle


def test_curves_of_chosen_heads(found):
    chart = draw(DRAWINGS, found, "curves", heads=[(2, 1), (0, 2)])
    for number, (layer, head) in enumerate(((2, 1), (0, 2))):
        about = found.head(layer, head)
        shown = panel_rows(chart, number, "hollow")
        for metric, name in METRIC_NAMES.items():
            own = [row["error"] for row in shown if row["metric"] == name]
            scale = about.norm ** (2 if metric == "cov" else 1)
            np.testing.assert_allclose(own, np.array(about.fit[metric].mean) / scale, rtol=1e-5)
    assert f"head 2.1: H = {found.head(2, 1).horizon:.2f}" in texts(chart)
    with pytest.raises(InputError, match=r"no head 5\.1 .* layers 0, 2 and heads 0 to 2"):
        draw(DRAWINGS, found, "curves", heads=[(5, 1)])
    with pytest.raises(InputError, match="takes no heads; that is for explorer, curves"):
        draw(DRAWINGS, found, "heads", heads=[(0, 0)])


def test_predicted_exponents(found):
    table, chart = found.table(), draw(DRAWINGS, found, "predicted")
    table["constant"] = 0.5
    written = texts(chart)
    number = 0
    for metric, all_of in charts.PREDICTORS.items():
        for column in all_of:
            shown = panel_rows(chart, number, column, "measured", "name")
            assert [row["measured"] for row in shown] == pytest.approx(
                list(table[metric]), rel=1e-5
            )
            assert [row[column] for row in shown] == pytest.approx(list(table[column]), rel=1e-5)
            trusted = [head.fit[metric].trusted for head in found.heads]
            assert [row["hollow"] for row in shown] == [not one for one in trusted]
            assert f"{np.mean(np.abs(table[column] - table[metric])):.3f}" in written
            number += 1
    assert number == 15


def test_tokens_are_sorted_with_their_intervals(found):
    table = found.table().sort_values("tokens_10")
    shown = rows(draw(DRAWINGS, found, "tokens"), "tokens", "low")
    assert [row["tokens"] for row in shown] == pytest.approx(list(table["tokens_10"]), rel=1e-5)
    assert [row["low"] for row in shown] == pytest.approx(list(table["tokens_10_low"]), rel=1e-5)
    assert [row["name"] for row in shown] == [
        f"head {row.layer}.{row.head}" for row in table.itertuples()
    ]

    def never(results):
        results["heads"][0]["tokens_for"]["0.1"] = None
        results["heads"][0]["tokens_for_interval"]["0.1"] = [None, None]

    chart = draw(DRAWINGS, changed(found, never), "tokens")
    assert len(rows(chart, "tokens", "low")) == len(found.heads) - 1
    assert "for 1 head no number of tokens is enough" in chart.chart.title.subtitle


def test_heads_together(found):
    chart = draw(DRAWINGS, found, "layers")
    together = found.layers[0].heads_together
    spec = chart.to_dict()
    above = spec["vconcat"][0]["concat"][0]
    shown = unpacked(spec["datasets"][above["data"]["name"]])
    assert len(shown) == 6
    for row in shown:
        i, j = (together.heads.index(row[key]) for key in ("head", "other"))
        of = together.correlation if i < j else together.magnitudes.correlation
        assert row["correlation"] == pytest.approx(of[i][j], rel=1e-5)
    table = found.layers_table().set_index("layer")
    for row in rows(chart, "of", "low"):
        column = {
            "errors of the mean": ("effective_heads", "amplification"),
            "errors of queries": ("effective_heads_map", "amplification_map"),
            "magnitudes": ("effective_magnitudes",),
            "heads side by side": ("side_by_side",),
            "output projection": ("projected",),
        }[row["of"]]
        values = [table.loc[int(row["layer"]), name] for name in column]
        assert any(row["value"] == pytest.approx(value, rel=1e-5) for value in values)


def test_what_cannot_be_drawn(found):
    alone = make("probe-one")[1]
    assert "layers" not in [drawing.name for drawing in offered(DRAWINGS, alone)]
    with pytest.raises(InputError, match="no layer has more than one head"):
        draw(DRAWINGS, alone, "layers")
    empty = replace(found, heads=(), layers=())
    assert offered(DRAWINGS, empty) == []
    with pytest.raises(InputError, match="no part of the run is complete"):
        draw(DRAWINGS, empty)


@pytest.fixture(scope="module")
def alone():
    """Two heads that were predicted from one pass; nothing was sampled."""
    return probe(tiny(), [words(1000)], layers=[0], heads=[0, 1], predict=True, **SMALL)


def test_what_is_predicted_is_called_so(alone):
    """Columns, titles and exponents; a column of measured exponents has none."""
    table = alone.table()
    assert table[["mean", "mean_low", "cov", "map", "map_high"]].isna().all(axis=None)
    for name in ("predicted_mean", "predicted_mean_low", "predicted_map_high"):
        assert table[name].notna().all()
    assert "predicted_mean" in alone.shown()[0].columns
    for kind in ("heads", "explorer", "numbers"):
        text = " ".join(texts(draw(DRAWINGS, alone, kind), "double"))
        assert "predicted from one pass" in text, kind
        assert "replicates" not in text, kind
    chart = draw(DRAWINGS, alone, "heads")
    assert "predicted exponent, mean error" in texts(chart, "double")
    shown = [row["predicted_mean"] for row in rows(chart, "predicted_mean")]
    assert shown == pytest.approx(list(table["predicted_mean"]), rel=1e-5)
    assert "(predicted)" in " ".join(texts(draw(DRAWINGS, alone, "curves"), "double"))


def test_what_is_predicted_in_reports(alone):
    summary = view.summary(alone, "run")
    columns = {column.key for column in summary.tables[-1].columns}
    assert "mean" not in columns
    assert "predicted_mean" in columns
    assert any("predicted" in card.note for card in summary.cards if "converge" in card.label)


def test_sinks_and_delimiters_are_apart_in_reports(found):
    table = view.summary(found, "run").tables[-1]
    names = {column.key: column.title for column in table.columns}
    assert names["sinks"] == "in sinks"
    assert names["delimiters"] == "in delimiters"
    assert table.data["sinks"] == [head.sinks.share for head in found.heads]
    assert table.data["delimiters"] == [head.delimiter_share for head in found.heads]


def test_flags_are_separated_by_commas(found):
    """A name holds no comma, so that splitting the column gives the names back."""
    for row, head in zip(found.table()["flags"], found.heads, strict=True):
        assert row.split(", ") == (list(dict.fromkeys(flag.flag for flag in head.flags)) or [""])


def test_heads_print_themselves_in_a_line(found):
    head = found.heads[0]
    assert repr(head).startswith(f"head {head.layer}.{head.head}: H = {head.horizon:.3g}, ")
    assert len(repr(head)) < 250


def test_numbers_as_a_labelled_dataset(found):
    data = found.to_xarray()
    assert dict(data.sizes) == {"layer": 2, "head": 3}
    for head in found.heads:
        at = data.sel(layer=head.layer, head=head.head)
        assert float(at["H"]) == head.horizon
        assert float(at["mean"]) == head.fit.mean.exponent
    assert data.attrs["headline"] == found.headline
