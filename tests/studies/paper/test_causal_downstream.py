"""Claims about whole models: known answers of the mask, of power laws, and of dense attention."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from esscher.show.content import Plot
from esscher.studies.paper import causal, downstream
from esscher.studies.paper.causal import CAUSAL, causal_errors, controlled_means, judge_causal
from esscher.studies.paper.claims import CLAIMS
from esscher.studies.paper.downstream import DOWNSTREAM, extrapolate, judge_downstream
from esscher.studies.paper.ledger import Setting

SETTING = Setting("quick", 0, "demo:minilm", "demo:smollm2", "demo:docs")


def cloud(seed=0, size=80, dim=3, horizon=0.6):
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.standard_normal((size, dim)), dtype=torch.float32)
    return horizon * x, x, torch.tanh(x)


def by_hand(q, k, v, drawn):
    """Outputs with and without mask from the whole matrix of weights, and the limit."""
    limit = torch.softmax(q.double() @ k.double().T, dim=-1) @ v.double()
    logits = q[drawn].double() @ k[drawn].double().T
    masked = logits.masked_fill(~torch.ones_like(logits, dtype=torch.bool).tril(), -torch.inf)
    outputs = [torch.softmax(part, dim=-1) @ v[drawn].double() for part in (masked, logits)]
    return *outputs, limit


def test_errors_are_those_of_the_whole_masked_matrix(monkeypatch):
    monkeypatch.setattr(causal, "BLOCK", 16)  # sizes end within blocks and at their ends
    q, k, v = cloud()
    sizes = (8, 24, 50, 300)
    rows = causal_errors(q, k, v, sizes, 2, seed=5, head=3)
    for row in rows:
        stream = causal.random_stream(5, "causal", 3, row["replicate"])
        drawn = torch.from_numpy(stream.integers(len(q), size=300))[: row["n"]]
        with_mask, without, limit = by_hand(q, k, v, drawn)
        for name, outputs in (("causal", with_mask), ("dense", without)):
            error = float((outputs.mean(dim=0) - limit.mean(dim=0)).square().sum())
            assert row[name] == pytest.approx(error, rel=1e-3, abs=1e-9)
        gaps = [(part - limit[drawn]).square().sum(dim=1) for part in (with_mask, without)]
        assert row["position"] == pytest.approx(float(gaps[0][row["n"] // 2 :].mean()), rel=1e-4)
        assert row["map"] == pytest.approx(float(gaps[1].mean()), rel=1e-4)


def test_first_order_of_uniform_attention_is_exact():
    # without tilts outputs are means of values: the first order is all there is
    q, k, v = cloud(horizon=0.0)
    rows = causal_errors(q, k, v, (16, 64), 3, seed=0)
    for row in rows:
        assert row["causal"] == pytest.approx(row["causal_first"], rel=1e-3)
        assert row["dense"] == pytest.approx(row["dense_first"], rel=1e-3)
        variance = float((v - v.mean(dim=0)).square().sum(dim=1).mean())
        n, harmonic = row["n"], np.sum(1 / np.arange(1, row["n"] + 1))
        assert row["dense_expected"] == pytest.approx(variance / n, rel=1e-4)
        assert row["causal_expected"] == pytest.approx((2 - harmonic / n) * variance / n, rel=1e-4)


def test_first_order_parts_have_the_expectation_that_is_stated():
    q, k, v = cloud(seed=1)
    rows = pd.DataFrame(causal_errors(q, k, v, (32,), 2000, seed=0))
    for kind in ("causal", "dense"):
        found = rows[f"{kind}_first"]
        error = found.std() / np.sqrt(len(found))
        assert abs(found.mean() - rows[f"{kind}_expected"][0]) < 4 * error


def test_a_control_removes_the_noise_that_it_explains():
    rng = np.random.default_rng(0)
    control = rng.exponential(size=(4, 50, 2))
    expected = np.ones((4, 2))
    np.testing.assert_allclose(controlled_means(3 * control, control, expected), 3.0)
    # a control that has nothing to do with the values leaves them about where they are
    values = rng.exponential(size=(4, 50, 2))
    assert np.abs(controlled_means(values, control, expected) - values.mean(axis=1)).max() < 0.15


def causal_table(slower=0.0, factor=1.4, heads=8, replicates=6):
    """Errors of heads whose laws are known."""
    rng = np.random.default_rng(1)
    rows = []
    for head in range(heads):
        for replicate in range(replicates):
            for n in CAUSAL["quick"].sizes:
                noise = rng.chisquare(30, size=2) / 30
                rows.append(
                    {
                        "layer": head,
                        "head": 0,
                        "replicate": replicate,
                        "n": n,
                        "causal": noise[0] * factor**2 * n ** (2 * slower) / n,
                        "dense": noise[1] / n,
                        "causal_first": noise[0] * 2 / n,
                        "dense_first": noise[1] / n,
                        "causal_expected": 2 / n,
                        "dense_expected": 1 / n,
                        "map": 20 / n,
                        "position": np.mean(20 / np.arange(n // 2 + 1, n + 1)),
                    }
                )
    return pd.DataFrame(rows)


def test_the_mask_is_judged_by_what_it_does():
    same = judge_causal({"causal": causal_table()}, SETTING)
    assert same.verdict == "holds"
    assert same.table("ratios")["ratio"].iloc[-1] == pytest.approx(1.4, rel=0.02)
    slow = judge_causal({"causal": causal_table(slower=0.2)}, SETTING)
    assert [check.verdict for check in slow.checks[:2]] == ["contradicted", "holds"]
    none = judge_causal({"causal": causal_table(factor=0.9)}, SETTING)
    assert none.checks[1].verdict == "contradicted"
    assert none.verdict == "contradicted"


@pytest.mark.parametrize("exponent", [0.3, 1.0])
def test_a_power_law_is_extrapolated(exponent):
    rng = np.random.default_rng(2)
    sizes = np.array([16, 64, 128, 256, 512, 2048])
    rates = 2 * sizes**-exponent
    losses = rng.binomial(50, np.minimum(rates, 1.0), size=(40, 6)) / 50
    fitted = (sizes >= 64) & (sizes <= 512)
    law = extrapolate(losses, sizes, fitted, 0.5 / 2000, seed=0)
    assert law.exponent[1] < exponent < law.exponent[2]
    assert law.predicted["fitted"][1] < 1 < law.predicted["fitted"][2]
    assert law.predicted["no change"][1] > 1


def downstream_table(ceiling=1.0, bend=False):
    """Losses that are a power of n, or end on a floor."""
    rng = np.random.default_rng(3)
    plan = DOWNSTREAM["quick"]
    rows = []
    for task, sizes in zip(
        downstream.TASKS, (plan.token_sizes, plan.text_sizes, plan.text_sizes), strict=True
    ):
        for text in range(150):
            for n in sizes:
                rate = ceiling * (0.3 if bend and n == sizes[-1] else (sizes[1] / n) ** 0.5 * 0.5)
                loss = rng.binomial(60, min(rate, 0.95)) / 60
                rows.append(
                    {
                        "task": task,
                        "text": text,
                        "draw": 0,
                        "n": n,
                        "loss": loss,
                        "accuracy": 0.8 - 0.5 * loss,
                        "dense_accuracy": 0.8,
                        "answers": 60,
                    }
                )
    return pd.DataFrame(rows)


def test_downstream_is_judged_by_its_law():
    power = judge_downstream({"downstream": downstream_table()}, SETTING)
    assert power.verdict == "holds"
    assert np.allclose(power.table("fits")["exponent"], 0.5, atol=0.05)
    floor = judge_downstream({"downstream": downstream_table(bend=True)}, SETTING)
    assert floor.checks[2].verdict == "contradicted"


def test_few_texts_decide_nothing():
    table = downstream_table()
    few = table[(table["text"] < 3)]
    assert judge_downstream({"downstream": few}, SETTING).verdict == "undecided"


def test_figures_are_drawn(tmp_path):
    entries = {
        "causal": judge_causal({"causal": causal_table()}, SETTING),
        "downstream": judge_downstream({"downstream": downstream_table()}, SETTING),
    }
    for name, found in entries.items():
        spec = CLAIMS[name].draw(found).to_dict()
        assert len(spec["concat"]) >= 2
    Plot(CLAIMS["causal"].draw(entries["causal"])).save(tmp_path / "causal.svg")


def test_every_key_once_is_dense_attention():
    """Keys drawn with replacement are weighted by how often they were drawn."""
    from esscher.engine.models.capture import run_captured
    from esscher.studies.deep.sampling import sampled_attention
    from tests.engine.models.tiny import tiny_model

    loaded = tiny_model("bert")
    ids = torch.arange(4, 24)[None]
    captures = []
    run_captured(loaded, ids, captures.append, layers=[1])
    certain = torch.zeros(20, dtype=torch.bool)
    certain[0] = True
    for times in (1, 3):
        found = sampled_attention(captures[0], certain, torch.where(certain, 0, times))
        torch.testing.assert_close(found, captures[0].own(), rtol=1e-4, atol=1e-5)
    # twice as often is twice the weight
    times = torch.where(certain, 0, 1)
    times[5] += 1
    found = sampled_attention(captures[0], certain, times)
    logits = captures[0].logits(0, 0)
    weights = logits.exp()
    in_class = torch.ones(20, 20, dtype=torch.bool) & ~certain & ~torch.eye(20, dtype=torch.bool)
    ratio = in_class.sum(-1, keepdim=True) / (in_class * times).sum(-1, keepdim=True)
    weights = torch.where(in_class, weights * times * ratio, weights)
    expected = weights @ captures[0].v[0, 0].double() / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(found[0, 0].double(), expected, rtol=1e-4, atol=1e-5)
