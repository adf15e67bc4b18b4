"""What is printed of a plan."""

from __future__ import annotations

import pytest

from esscher.cli.study import print_result
from esscher.engine.models.record import ModelRecord
from esscher.engine.text.documents import TextRecord
from esscher.studies.plan import Keeping, Plan, PlanStudy
from esscher.studies.plan.result import Prediction, Total


@pytest.mark.parametrize(
    ("tokens", "said", "title"),
    [
        (
            [50] * 36,
            "24 more keep as many tokens as the last of these",
            "12 of 36 key heads, which",
        ),
        ([90] * 12 + [50] * 3, "3 more keep fewer tokens", "The 12 key heads that keep most"),
        (
            [90] * 11 + [50] * 3 + [40],
            "2 more keep as many tokens as the last of these, 1 keep",
            "",
        ),
        ([90, 50], "", "All key heads"),
    ],
)
def test_what_is_said_of_key_heads_that_are_not_shown(
    tokens: list[int], said: str, title: str, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tuple((1.0,) for _ in tokens)
    model = ModelRecord(
        name="m",
        family="",
        architecture="",
        layers=len(tokens),
        heads=1,
        key_heads=1,
        head_dim=1,
        hidden=1,
        causal=True,
        max_positions=200,
        dtype="float32",
        note="positions are left out",
    )
    predicted = Prediction(
        unit="",
        effect=0.0,
        interval=None,
        uniform_effect=0.0,
        uniform_powers=grid,
        head_error=grid,
        price=None,
        gap=None,
    )
    found = Plan(
        study=PlanStudy(model, TextRecord(source="a", hash=""), budget=0.5),
        complete=True,
        cells=1,
        versions={},
        created="",
        headline="Kept.",
        version=3,
        model=model,
        prefix=100,
        keeping=Keeping(sinks=1, recent=1),
        budgets=tuple((n,) for n in tokens),
        ratios=grid,
        powers=grid,
        selection="sample",
        score="all",
        sliding=(),
        predicted=predicted,
        check=None,
        total=Total(tokens=sum(tokens), ratio=0.5),
    )
    print_result(found)
    output = capsys.readouterr().out
    question, answer, note, *_ = output.splitlines()
    assert question == "How many tokens can each head drop, and what does it cost?"
    assert (answer, note) == ("Kept.", "Note: positions are left out.")
    assert title in output
    assert said in output
    assert ("--all shows them" in output) == bool(said)
