"""Reach of heads: a tiny decoder that reads letters, and heads whose weights are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from msgspec import structs

import esscher
from esscher.cli.program import main
from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.models import wrap_model
from esscher.engine.models.scaling import LogitScale, scaled_attention
from esscher.engine.text.tasks import task_items
from esscher.studies.reach import Reach, ReachStudy
from esscher.studies.reach.budgets import DELTA, TRIALS, budget_coverage
from esscher.studies.reach.compare import scale_checks
from esscher.studies.reach.growth import grown_weights
from esscher.studies.reach.heads import judge, ratio_of_means
from esscher.studies.reach.measure import answer_item, measure_item, needed_keys, other_keys
from esscher.studies.reach.records import ARMS, ArmScore, CheckCell
from esscher.studies.reach.result import chosen_scales
from tests.engine.models.folders import encoder_tokenizer, letter_decoder, random_sentences
from tests.engine.models.tiny import tiny_model

ASKED = {"lengths": (200, 320), "tasks": ("needle",), "items": 2, "check_lengths": (260,),
         "check_items": 2}  # fmt: skip


@pytest.fixture(scope="module")
def decoder():
    return letter_decoder(640)


@pytest.fixture(scope="module")
def text() -> list[str]:
    return [random_sentences(1200)]


@pytest.fixture(scope="module")
def found(decoder, text) -> Reach:
    return esscher.reach(decoder, text, **ASKED)


def test_needed_keys_are_those_of_the_answer(decoder, text) -> None:
    (item,) = task_items(decoder, "needle", 1, 300, haystack=text[0])
    needed = needed_keys(item)
    assert item.context[needed].tolist() == item.answer_ids.tolist()
    others = other_keys(item)
    assert not set(others) & set(range(*item.needles[0]))
    assert others.max() < 300 - 64


def test_contributions_are_first_order_effects(decoder, text) -> None:
    """Hide the needed key from one head, a little: the answer changes as predicted."""
    (item,) = task_items(decoder, "needle", 1, 200, haystack=text[0])
    found = measure_item(decoder, item, (), 0)
    answered, needed = found.answered, torch.from_numpy(needed_keys(item))
    layer, head, part = 1, 2, 1e-3

    def push(inputs):
        output = inputs.own().clone()
        if inputs.layer == layer and inputs.offset > 0:
            rows = answered.rows
            logits = inputs.logits(0, head, rows, torch.float32)
            value = inputs.v[0, head // inputs.group]
            hidden = logits.scatter(1, needed[:, None], -torch.inf)
            gap = (torch.softmax(logits, -1) - torch.softmax(hidden, -1)) @ value
            output[0, head, rows] -= part * gap
        return output

    with esscher.engine.models.attention_override(decoder, push):
        pushed = answer_item(decoder, item)
    change = float((answered.odds - pushed.odds).mean()) / part
    row = next(r for r in found.rows if (r["layer"], r["head"]) == (layer, head))
    assert row["contribution"] == pytest.approx(change, rel=0.05, abs=2e-3)


def test_weights_and_entropy_are_those_of_the_definition(decoder, text) -> None:
    (item,) = task_items(decoder, "needle", 1, 200, haystack=text[0])
    found = measure_item(decoder, item, (200, 400), 0)
    inputs, needed = found.answered.layers[0], needed_keys(item)
    weights = torch.softmax(inputs.logits(0, 1, found.answered.rows), dim=-1).numpy()
    row = found.rows[1]
    assert row["weight"] == pytest.approx(weights[np.arange(len(needed)), needed].mean(), rel=1e-4)
    assert row["largest"] == pytest.approx(weights.max(axis=1).mean(), rel=1e-4)
    ordered = np.cumsum(np.sort(weights, axis=1)[:, ::-1], axis=1)
    k = row["certified_0.05"]
    assert np.all(ordered[:, k - 1] >= 0.95 - 1e-6)
    assert np.any(ordered[:, k - 2] < 0.95)
    # at its own length the prediction is the mean over draws of as many keys
    assert row["predicted_200"] == pytest.approx(row["weight"], rel=0.5)
    assert row["predicted_400"] < row["predicted_200"]


def test_grown_weights_are_those_of_drawn_keys() -> None:
    rng = random_stream(0, "grown")
    others, fixed, needed = rng.normal(size=150), np.array([1.0, 0.5]), 4.0
    found = grown_weights(others, needed, fixed, (150, 1200))
    drawn = np.exp(rng.choice(others, size=(2000, 1200))).sum(axis=1)
    weights = np.exp(needed) / (np.exp(needed) + np.exp(fixed).sum() + drawn)
    error = weights.std(ddof=1) / np.sqrt(len(weights))
    assert abs(found.weights[1] - weights.mean()) < 4 * error
    scale = found.scales[1]
    assert found.scales[0] == 1.0
    kept = np.exp(scale * needed) / (
        np.exp(scale * needed) + np.exp(scale * fixed).sum() + 1200 * np.exp(scale * others).mean()
    )
    start = np.exp(needed) / (np.exp(needed) + np.exp(fixed).sum() + np.exp(others).sum())
    assert kept == pytest.approx(start, rel=1e-3)
    # a key that is always there and larger than the needed one leaves no scale
    assert np.isnan(grown_weights(others, needed, np.array([6.0]), (1200,)).scales[0])


def test_budgets_keep_their_promise_on_light_tails_and_not_on_heavy_ones() -> None:
    rng = random_stream(0, "budgets")
    light = dict(budget_coverage(rng.uniform(1.0, 2.0, size=4000), 0.0, rng))
    # three keys with most of the weight, which pilot samples of 80 keys miss
    heavy = dict(budget_coverage(np.append(np.ones(3997), [3000.0] * 3), 0.0, rng))
    noise = np.sqrt(DELTA * (1 - DELTA) / TRIALS)
    assert light["coverage"] > 1 - DELTA - 3 * noise
    assert heavy["coverage"] < 1 - DELTA - 3 * noise
    assert heavy["coverage_top"] == 1.0


def test_heads_are_judged_by_shares() -> None:
    rng = random_stream(0, "judged")
    effects = np.abs(rng.normal(0.0, 1e-4, size=(12, 40)))
    effects[:, 3] = rng.uniform(0.5, 5.0, size=12)
    effects[:, 7] = rng.normal(0.0, 1.0, size=12)
    verdicts = judge(effects)
    assert verdicts[3] == "retrieves"
    assert verdicts[7] == "undecided"
    assert set(verdicts[10:]) == {"does not"}
    assert judge(effects[:1]) == ["undecided"] * 40


def test_ratio_of_means_covers() -> None:
    rng = random_stream(0, "ratio")
    inside = 0
    for _ in range(300):
        under = rng.gamma(4.0, size=8)
        over = 1.5 * under * rng.lognormal(0.0, 0.3, size=8) / np.exp(0.045)
        low, high = ratio_of_means(over, under).interval
        inside += low <= 1.5 <= high
    # 95%, and a binomial error of 1.3% over 300; jackknife intervals are a little short
    assert inside / 300 > 0.95 - 4 * 0.013


def test_result_has_all_parts(found: Reach, tmp_path: Path) -> None:
    assert found.complete
    assert found.cells == 8 + 2 + 2
    assert found.lengths == (200, 320)
    assert len(found.heads) == 12
    assert {one.arm for one in found.scales} == {"none", "log n", "yarn", "heads", "whole"}
    none = next(one for one in found.scales if one.arm == "none")
    assert none.surprise_change.value == 0.0
    assert none.needle_verdict == "undecided"
    assert [one.items for one in found.scores] == [8, 2]
    found.save(tmp_path / "reach.json")
    again = esscher.load(tmp_path / "reach.json")
    assert again.to_dict() == found.to_dict()
    assert sum(head.share for head in found.heads if head.share > 0) > 0
    for kind in found.charts():
        assert found.plot(kind).to_dict()


def test_check_is_added_to_a_run(decoder, text, tmp_path: Path) -> None:
    plain = {name: value for name, value in ASKED.items() if not name.startswith("check")}
    first = esscher.reach(decoder, text, out=tmp_path / "run", **plain)
    assert first.scales == ()
    second = esscher.reach(decoder, text, out=tmp_path / "run", **ASKED)
    assert second.heads == first.heads
    assert second.scales


def test_scales_multiply_logits(decoder) -> None:
    ids = torch.arange(2, 42)[None]
    slopes = np.zeros((3, 4))
    slopes[1, 2] = 0.5
    scale = LogitScale(slopes, 10.0)
    expected = {}

    def watch(seen):
        if seen.layer == 1:
            logits = seen.logits(0, 2)
            factor = 1 + 0.5 * np.log(np.maximum(np.arange(1, 41) / 10.0, 1.0))
            scaled = torch.softmax(logits * torch.from_numpy(factor)[:, None], dim=-1)
            expected["output"] = scaled @ seen.v[0, 2 // seen.group].double()

    outputs = {}

    def note(seen):
        if seen.layer == 1:
            outputs["output"] = seen.output[0, 2].double()

    with torch.no_grad():
        with esscher.engine.models.capturing(decoder, watch):
            plain = decoder.model(input_ids=ids).logits
        with scaled_attention(decoder, scale), esscher.engine.models.capturing(decoder, note):
            changed = decoder.model(input_ids=ids).logits
        after = decoder.model(input_ids=ids).logits
    torch.testing.assert_close(outputs["output"], expected["output"], rtol=1e-4, atol=1e-5)
    assert torch.equal(plain[:, :10], changed[:, :10])
    assert not torch.equal(plain, changed)
    assert torch.equal(plain, after)
    log = LogitScale.logarithmic(3, 4, 10.0).factors(0, torch.tensor([5, 100]))
    assert log[0].tolist() == pytest.approx([1.0, 2.0])
    yarn = LogitScale.yarn(3, 4, 10.0).factors(0, torch.tensor([100]))
    assert float(yarn[0, 0]) == pytest.approx((0.1 * np.log(10) + 1) ** 2)


def test_apply(found: Reach, decoder) -> None:
    ids = torch.arange(2, 80).repeat(4)[None, :300]
    with torch.no_grad():
        plain = decoder.model(input_ids=ids).logits
        with found.apply(decoder, "log n"):
            changed = decoder.model(input_ids=ids).logits
        with found.apply(decoder, "none"):
            same = decoder.model(input_ids=ids).logits
    assert torch.equal(plain, same)
    assert not torch.equal(plain, changed)
    with pytest.raises(InputError, match="arm is 'best'"), found.apply(decoder, "best"):
        pass
    with pytest.raises(InputError, match="3 layers of 4 heads"), scaled_attention(
        decoder, LogitScale(np.zeros((2, 2)), 10.0)
    ):  # fmt: skip
        pass


def test_verdicts_need_enough_items() -> None:
    def cell(number: int, surprise: float, task: str = "needle") -> CheckCell:
        score = ArmScore(surprise=2.0, log_probability=-0.5, right=True)
        lower = ArmScore(surprise=surprise, log_probability=-0.5, right=True)
        arms = dict.fromkeys(ARMS, score) | {"heads": lower}
        return CheckCell(task=task, number=number, length=300, arms=arms)

    cells = [cell(i, 1.9 + 0.001 * i) for i in range(4)]
    for count, verdict in ((2, "undecided"), (4, "better")):
        (own,) = [one for one in scale_checks(cells[:count]) if one.arm == "heads"]
        assert own.perplexity_verdict == verdict
        assert own.needle_verdict == "undecided"
    # items of the same number have the same text, which counts once
    both = cells[:2] + [cell(i, 1.9 + 0.001 * i, "quote") for i in range(2)]
    (again,) = [one for one in scale_checks(both) if one.arm == "heads"]
    (twice,) = [one for one in scale_checks(cells[:2]) if one.arm == "heads"]
    assert (again.items, again.perplexity_verdict) == (4, "undecided")
    assert again.surprise_change == twice.surprise_change


def test_scales_of_retrieving_heads(found: Reach) -> None:
    """Every head its own slope, and for all the mean by share."""
    retrieving = {3: (0.3, 0.02), 7: (0.1, 0.06), 9: (0.2, None)}
    heads = [
        structs.replace(head, verdict="retrieves", share=retrieving[i][0], slope=retrieving[i][1])
        if i in retrieving else structs.replace(head, verdict="does not")
        for i, head in enumerate(found.heads)
    ]  # fmt: skip
    scales = chosen_scales(replace(found, heads=tuple(heads)))
    own = scales["heads"].slopes.ravel()
    assert own.nonzero()[0].tolist() == [3, 7]
    assert own[[3, 7]].tolist() == [0.02, 0.06]
    assert scales["whole"].slopes == pytest.approx(np.full((3, 4), 0.03))
    assert scales["none"] is None
    assert scales["log n"].slopes[0, 0] == pytest.approx(1 / np.log(200))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lengths": (200, 5000)}, "reads at most 640 tokens"),
        ({"lengths": (-5, 300)}, "at least 1"),
        ({"lengths": (100, 300)}, "at least 192"),
        ({"lengths": (300, 200)}, "strictly increasing"),
        ({"tasks": ("riddle",)}, "there is no task 'riddle'"),
        ({"tasks": ()}, "tasks is empty"),
        ({"tasks": ("needle", "words")}, "choose from needle, keys, quote"),
        ({"items": 0}, "items is 0"),
        ({"check_lengths": (100,)}, "at least 192"),
        ({"check_lengths": (10_000,)}, "more than 4 times"),
    ],
)
def test_bad_input(decoder, text, change: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        esscher.reach(decoder, text, **ASKED | change)


def test_models_without_room_or_questions(text) -> None:
    with pytest.raises(InputError, match="reads at most 80 tokens; a text with a needle"):
        esscher.reach(letter_decoder(80), text)
    bert = wrap_model(tiny_model("bert").model, encoder_tokenizer())
    with pytest.raises(InputError, match="is an encoder"):
        esscher.reach(bert, text)
    result = CliRunner().invoke(main, ["reach", "demo:minilm", "--lengths", "512:1024:2"])
    assert result.exit_code == 2
    assert "choose a decoder, such as demo:smollm2" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--check", "0"), "--check contains n = 0"),
        (("--check", "-5"), "--check contains n = -5"),
        (("--check", "100"), "at least 192"),
        (("--check", "50000"), "give at most 32768"),
        (("--check-items", "0"), "check_items is 0"),
        (("--lengths", "5000:512:3"), "end above its start"),
        (("--lengths", "20000"), "give at most 8064"),
        (("--items", "0"), "items is 0"),
        (("--tasks", "values"), "choose from needle, keys, quote"),
    ],
)
def test_commands_are_refused_before_weights_are_read(
    options: tuple[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esscher.engine.models.load.load_model", None)
    result = CliRunner().invoke(main, ["reach", "demo:smollm2", *options])
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())


def test_a_task_that_is_named_twice_is_asked_once(decoder) -> None:
    study = ReachStudy("demo:smollm2", tasks=("quote", "needle", "quote"))
    assert study.fill(decoder.outline).tasks == ("quote", "needle")


def test_short_texts_are_refused(decoder) -> None:
    with pytest.raises(InputError, match="the longest text takes 320"):
        esscher.reach(decoder, ["Too short."], **ASKED)
