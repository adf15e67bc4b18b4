"""Charts of sparse patterns show what was measured."""

from __future__ import annotations

import pytest

from esscher.core.errors import InputError
from esscher.show.content import draw, offered
from esscher.studies.sparse.charts import DRAWINGS, METRICS, STYLES, best_pattern
from esscher.studies.sparse.result import student
from tests.runs.made import HOSTILE, make
from tests.show.drawn import panel_rows, texts

OF_A_LAW = ("patterns", "curves", "exponents", "limit", "bias")
OF_A_MODEL = ("patterns", "curves", "exponents", "bias", "explorer", "heads")


@pytest.mark.parametrize(
    ("run", "name"),
    [*(("sparse-law", name) for name in OF_A_LAW), *(("sparse", name) for name in OF_A_MODEL)],
)
def test_every_chart_is_drawn(run, name, capfd):
    written = texts(draw(DRAWINGS, make(run)[1], name))
    assert "undefined" not in written
    assert capfd.readouterr().err == ""


def test_a_law_has_a_limit_and_a_model_has_heads():
    law, model = make("sparse-law")[1], make("sparse")[1]
    assert tuple(one.name for one in offered(DRAWINGS, law)) == OF_A_LAW
    assert tuple(one.name for one in offered(DRAWINGS, model)) == OF_A_MODEL
    with pytest.raises(InputError, match="tokens of a model have no known infinite-token limit"):
        draw(DRAWINGS, model, "limit")
    with pytest.raises(InputError, match="tokens of a law have no heads"):
        draw(DRAWINGS, law, "explorer")


@pytest.mark.parametrize(("name", "reference"), [("curves", "dense"), ("limit", "limit")])
def test_curves_hold_the_errors_with_their_intervals(name, reference):
    found = make("sparse-law")[1]
    chart = draw(DRAWINGS, found, name)
    for i, metric in enumerate(METRICS):
        shown = {
            (row["pattern"], row["budget"]): row for row in panel_rows(chart, i, "error", "low")
        }
        assert len(shown) == len(found.patterns) * len(found.budgets)
        for pattern, about in found.patterns.items():
            curve = about.curve.by_reference[reference][metric]
            for budget, mean, noise in zip(
                found.budgets, curve.mean, curve.standard_error, strict=True
            ):
                row = shown[pattern, budget]
                assert row["error"] == pytest.approx(mean, rel=1e-5)
                assert row["high"] == pytest.approx(mean + student(found) * noise, rel=1e-5)
    floors = [row["at"] for row in panel_rows(chart, 1, "at")]
    wanted = [] if reference == "dense" else [found.dense_against_limit.mean]
    assert floors == pytest.approx(wanted, rel=1e-5)


def test_exponents_stand_beside_their_verdicts():
    found = make("sparse-law")[1]
    chart = draw(DRAWINGS, found, "exponents")
    shown = {(row["pattern"], row["metric"]): row for row in panel_rows(chart, 0, "exponent")}
    for name, pattern in found.patterns.items():
        label = name if name == "random" else f"{name}: {pattern.verdict}"
        for metric, title in METRICS.items():
            fit, row = pattern.fit[metric], shown[label, title]
            assert [row[key] for key in ("low", "exponent", "high")] == pytest.approx(
                [fit.interval[0], fit.exponent, fit.interval[1]], rel=1e-5
            )
            assert row["hollow"] == (not fit.trusted or fit.law != "power")
        assert label in texts(chart)


def test_bias_holds_the_shares():
    found = make("sparse-law")[1]
    shown = panel_rows(draw(DRAWINGS, found, "bias"), 0, "share")
    for name, pattern in found.patterns.items():
        own = [row["share"] for row in shown if row["pattern"] == name]
        assert own == pytest.approx(list(pattern.bias.share or ()), rel=1e-5, abs=1e-12)


def test_heatmaps_hold_the_numbers_of_the_heads():
    found = make("sparse")[1]
    table = found.heads_table().set_index(["pattern", "layer", "head"])
    exponents, errors = draw(DRAWINGS, found, "heads"), draw(DRAWINGS, found, "explorer")
    for i, name in enumerate(found.patterns):
        for chart, number, column, field in (
            (exponents, i, "exponent", f"{name} exponent"),
            (errors, i + 1, "last_error", f"{name} error"),
        ):
            shown = {
                (row["layer"], row["head"]): row[field] for row in panel_rows(chart, number, field)
            }
            assert shown == pytest.approx(table.loc[name][column].to_dict(), rel=1e-5)
    words = panel_rows(errors, len(found.patterns) + 1, "word")
    assert {(row["layer"], row["head"]): row["word"] for row in words} == {
        (unit.layer, unit.head): best_pattern(unit) for unit in found.heads
    }


def test_the_explorer_shows_the_curves_of_a_head():
    found = make("sparse")[1]
    chart = draw(DRAWINGS, found, "explorer")
    worst = max(found.heads, key=lambda unit: unit.patterns["random"].map.error[-1])
    (param,) = chart.to_dict()["params"]
    assert param["value"] == [{"layer": worst.layer, "head": worst.head}]
    assert len(param["views"]) == len(found.patterns) + 2
    shown = panel_rows(chart, len(found.patterns) + 2, "pattern", "error")
    for unit in found.heads:
        for name, pattern in unit.patterns.items():
            place = (unit.layer, unit.head, name)
            own = [
                row["error"]
                for row in shown
                if (row["layer"], row["head"], row["pattern"]) == place
            ]
            assert own == pytest.approx(list(pattern.map.error), rel=1e-5)
    with pytest.raises(InputError, match=r"there is no head 7\.7 in this run"):
        draw(DRAWINGS, found, "explorer", heads=[(7, 7)])


def test_patterns_can_be_told_apart_and_names_are_text():
    assert len({(colour, shape) for colour, shape, _, _ in STYLES.values()}) == len(STYLES)
    assert len({letter for *_, letter in STYLES.values()}) == len(STYLES)
    written = " ".join(texts(draw(DRAWINGS, make("sparse")[1], "curves")))
    for word in HOSTILE.replace("\x07", "\ufffd").split():
        assert word in written
