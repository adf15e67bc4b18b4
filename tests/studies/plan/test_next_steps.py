"""What to do with a plan, by what its check found: every reason has its own advice."""

from __future__ import annotations

import pytest

from esscher.cli import main
from esscher.cli.next_steps import command_line, given_by
from esscher.engine.models.record import ModelRecord
from esscher.engine.text.documents import TextRecord
from esscher.studies.plan import Keeping, Plan, PlanStudy
from esscher.studies.plan.next_steps import next_steps
from esscher.studies.plan.records import Check, HeadErrors, Mean, Measures, Prediction, Total

GRID = ((0.1, 0.1),)


def measures(distance: float, causal: bool) -> Measures:
    error = Mean(mean=0.1, interval=None)
    if causal:
        end = Mean(mean=distance, interval=None)
        return Measures(kl=end, top1=end, perplexity=end, perplexity_ratio=end, error=error)
    return Measures(cosine=Mean(mean=1 - distance, interval=None), error=error)


def check(verdict="undecided", causal=True, distance=0.2, needed=None, within=0.9, best=None):
    return Check(
        passages=16,
        dense=measures(0.0, causal),
        planned=measures(distance, causal),
        uniform=measures(distance, causal),
        ratios={"uniform": Mean(mean=1.0, interval=(0.9, 1.1))},
        verdict=verdict,
        earned=verdict == "better",
        passages_needed=needed,
        best=best or ("planned",),
        over_best={"uniform": Mean(mean=1.0, interval=None)},
        heads=HeadErrors(predicted=GRID, realised=GRID, factor=1.5, within_factor=within,
                         median_ratio=1.0),
    )  # fmt: skip


def plan(
    found=None,
    causal=True,
    budgets=((50, 200),),
    ratio=0.25,
    selection="",
    text="demo:docs",
    **options,
) -> Plan:
    selection = selection or ("fitted" if causal else "sample")
    model = ModelRecord(
        name="m", family="", architecture="", layers=1, heads=2, key_heads=2, head_dim=1,
        hidden=1, causal=causal, max_positions=4096, dtype="float32",
    )  # fmt: skip
    predicted = Prediction(
        unit="KL", effect=0.1, interval=None, uniform_effect=0.2, uniform_powers=GRID,
        head_error=GRID, price=None, gap=None,
    )  # fmt: skip
    asked = {"budget": 0.25, "passages": 6} | options
    if "tolerance" in options:
        asked["budget"] = None
    made = object.__new__(Plan)  # without the checks of files: only what advice reads matters here
    for name, value in {
        "study": PlanStudy(model, TextRecord(source=text, hash=""), **asked), "model": model,
        "prefix": 500, "keeping": Keeping(sinks=1, recent=1), "budgets": budgets,
        "predicted": predicted, "check": found, "selection": selection,
        "total": Total(tokens=250, ratio=ratio),
    }.items():  # fmt: skip
        object.__setattr__(made, name, value)
    return made


def first(found: Plan):
    steps = next_steps(found)
    given = given_by(["plan", "m", "--text", "a.txt", "--check", "b.txt", "--budget", "0.25"])
    for step in steps:  # all of them can be typed
        words = command_line(step, given)
        assert words is not None
        main.commands[words[1]].make_context(words[1], words[2:])
    return steps[0].command, dict(steps[0].options), steps[0].why


def test_an_unchecked_plan_is_to_be_checked():
    assert first(plan())[1] == {"--check": "demo:code"}


def test_a_plan_that_earned_its_place_is_used():
    command, options, _ = first(plan(check("better")))
    assert command == "generate"
    assert options["--compare"] is True
    # what it names is there: a text that comes with Esscher, or a file of the user's
    assert options["--prompt"] == "demo:code"
    assert first(plan(check("better"), text="a.txt"))[1]["--prompt"] == "prompt.txt"
    encoder = plan(check("better", causal=False), causal=False)
    assert first(encoder)[:2] == ("plan", {"--budget": 0.125})
    _, options, why = first(plan(check("better", best=("snapkv",))))
    assert options == {"--passages": 24}
    assert why.startswith("SnapKV was closer to dense")


@pytest.mark.parametrize(
    ("found", "options", "said"),
    [
        (check(distance=0.001), {"--budget": 0.125}, "almost nothing"),
        (check("worse", distance=3.0), {"--budget": 0.5}, "far from dense"),
        (check(needed=40), {"--check-passages": 40}, "40 held-out passages"),
        (check(needed=4000), {"--budget": 0.125}, "too small to tell"),
        (check("worse", within=0.2), {"--passages": 24}, "Only 20% of the predicted"),
        (check("worse"), {"--passages": 24}, "Calibrate on more text"),
    ],
)
def test_a_plan_that_did_not_says_what_to_change(found, options, said):
    step = first(plan(found))
    assert step[1] == options
    assert said in step[2]


def test_heads_that_are_alike_leave_nothing_to_choose():
    _, options, why = first(plan(check("worse"), budgets=((100, 110),)))
    assert options == {"--budget": 0.125}
    assert "about the same share" in why


def test_another_selection_may_be_closer():
    assert first(plan(check("worse"), selection="topk"))[1] == {"--selection": "fitted"}
    encoder = plan(check("worse", causal=False), causal=False, selection="topk")
    assert first(encoder)[1] == {"--selection": "sample"}


def test_a_tolerance_is_changed_instead_of_a_budget():
    _, options, why = first(plan(check(), tolerance=0.05, ratio=0.97))
    assert options == {"--tolerance": 0.1}
    assert "only 3% of the tokens" in why
    _, options, _ = first(plan(check(distance=3.0), tolerance=0.1))
    assert options == {"--tolerance": 0.05}


def test_no_budget_is_suggested_that_a_plan_would_refuse():
    found = plan(check(distance=0.001), budget=0.01)
    assert all("--budget" not in step.options for step in next_steps(found))
    whole = plan(check("worse", distance=3.0), budget=0.75)
    assert all(step.options.get("--budget", 0.5) < 1 for step in next_steps(whole))
