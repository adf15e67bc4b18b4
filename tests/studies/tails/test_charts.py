"""Charts of tails show what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from esscher.core.errors import InputError
from esscher.math.tails.verdict import NONE, SUB_GAUSSIAN
from esscher.show.content import draw, offered
from esscher.studies.tails.charts import DRAWINGS
from tests.runs.made import make
from tests.show.drawn import rows


@pytest.fixture(scope="module")
def found():
    return make("tails")[1]


@pytest.fixture(scope="module")
def judged(found):
    """More heads of either kind, on which the halves agree: single heads are judged."""
    ends = {SUB_GAUSSIAN: (4.0, 9.0), NONE: (0.3, 0.8)}
    heads = []
    for i, head in enumerate([head for head in found.heads for _ in range(5)]):
        said = (SUB_GAUSSIAN, NONE)[i % 2]
        tail = (structs.replace(head.tail[0], tau_interval=ends[said]),)
        number = head.head + 4 * (i % 5)
        heads.append(
            structs.replace(
                head,
                head=number,
                key_head=number,
                verdict=said,
                halves=(said, said),
                tail_halves=(tail, tail),
            )
        )
    return replace(found, heads=tuple(heads))


@pytest.mark.parametrize("name", [drawing.name for drawing in DRAWINGS])
def test_every_chart_is_drawn(judged, name, capfd):
    assert draw(DRAWINGS, judged, name)._repr_svg_().startswith("<svg")
    assert capfd.readouterr().err == ""


def test_verdicts_are_drawn_only_where_they_are_given(found, judged):
    table = judged.table().set_index(["layer", "head"])
    words = [table[name].to_dict() for name in ("verdict", "with_delimiters")]
    shown = rows(draw(DRAWINGS, judged), "word")
    assert shown
    for row in shown:
        assert row["word"] in [one[row["layer"], row["head"]] for one in words]
    assert not found.reproducible
    assert not rows(draw(DRAWINGS, found), "word")
    with pytest.raises(InputError, match="verdicts on single heads are not given"):
        draw(DRAWINGS, found, "verdicts")


def test_curves_hold_the_fits_of_the_heads_asked_for(found):
    shown = rows(draw(DRAWINGS, found, "curves", heads=[(1, 3)]), "tau")
    tail = found.head(1, 3).tail
    assert [row["tau"] for row in shown if "low" in row][: len(tail)] == pytest.approx(
        [at.tau for at in tail], rel=1e-5
    )
    assert {(row["layer"], row["head"]) for row in shown} == {(1, 3)}


def test_the_explorer_starts_at_the_head_of_largest_kurtosis(found):
    worst = max(found.heads, key=lambda head: head.kurtosis.value)
    (param,) = draw(DRAWINGS, found, "explorer").to_dict()["params"]
    assert param["value"] == [{"layer": worst.layer, "head": worst.head}]
    (param,) = draw(DRAWINGS, found, "explorer", heads=[(0, 3)]).to_dict()["params"]
    assert param["value"] == [{"layer": 0, "head": 3}]
    assert len(param["views"]) == 5


def test_layers_only_if_they_were_measured(found):
    shown = rows(draw(DRAWINGS, found, "layers"), "value")
    assert {row["layer"] for row in shown} == set(found.layers_table()["layer"])
    none = tuple(structs.replace(layer, hidden=None) for layer in found.layers)
    without = replace(found, layers=none)
    assert "layers" not in [drawing.name for drawing in offered(DRAWINGS, without)]
    with pytest.raises(InputError, match="the tokens of whole layers were not measured"):
        draw(DRAWINGS, without, "layers")


def test_heads_that_were_not_measured_are_refused(found):
    with pytest.raises(InputError, match=r"there is no head 7\.7 in this run"):
        draw(DRAWINGS, found, "curves", heads=[(7, 7)])
