"""Rules on made data: what holds, what is contradicted, and what decides nothing."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.streams import random_stream
from esscher.show.content import Plot
from esscher.studies.paper import claims, models, study, synthetic
from esscher.studies.paper.charts import DRAW
from esscher.studies.paper.heads import set_exponents
from esscher.studies.paper.models import CAUSAL_METRICS, NEIGHBOUR, TOKEN
from esscher.studies.paper.study import Errors, Exponents, HeadErrors, PaperData


def judged(data, claim, settings):
    """The verdict on a claim, and those of its checks; its figure is drawn as well."""
    judgement = claims.CLAIMS[claim].judge(data, settings)
    assert Plot(DRAW[claim](data)).to_dict()
    return judgement.verdict, [check.verdict for check in judgement.checks]


# -- sweeps


def swept(exponent_of, settings, head="authors", noise=0.05, replicates=24):
    """A made sweep whose errors fall like n to a given power of H."""
    rng, alphas = np.random.default_rng(1), (0.5, 5.0, 50.0)
    sizes, horizons = np.array([200, 400, 800, 1600]), 0.1 * np.array(alphas) / 50**0.5
    raw = Errors.new(
        item=range(3), metric=synthetic.METRICS, replicate=range(replicates), size=sizes
    )
    powers = np.array([exponent_of(h) for h in horizons])[:, None, None]
    errors = sizes**-powers * np.exp(noise * rng.standard_normal((3, replicates, 4)))
    raw.error = np.stack([errors] * 3, axis=1)
    raw.expected = np.broadcast_to(sizes**-0.5, (3, 3, 4))
    unit = {"head": head, "alphas": alphas}
    data = synthetic.summarise_sweeps([unit], [raw.dataset], settings)
    data.horizon = horizons
    return data


def test_the_reference_holds_where_it_is_the_truth(settings):
    """In one convention: in the other one it is then contradicted."""
    data = PaperData.new()
    for factor in (1, 50):
        data.gaussian = swept(lambda h, factor=factor: 0.5 / (1 + factor * h * h), settings)
        verdict, checks = judged(data, "reference", settings)
        assert verdict == "holds"
        assert sorted(checks[1:]) == ["contradicted", "holds"]
    data.gaussian = swept(lambda h: 0.25, settings)
    assert judged(data, "reference", settings)[0] == "contradicted"
    data.gaussian = swept(lambda h: 0.5 / (1 + h * h), settings, noise=0.5, replicates=12)
    assert judged(data, "reference", settings)[0] == "undecided"


def test_the_bound_is_contradicted_by_one_slow_exponent(settings):
    data = made_heads([0.5, 0.4], [0.5, 1.0], width=0.05)
    data.gaussian = swept(lambda h: 0.6, settings)
    for exponent, noise, replicates, verdict in (
        (lambda h: 0.6, 0.05, 24, "holds"),
        (lambda h: 0.6 if h < 0.1 else 0.0, 0.01, 24, "contradicted"),
        (lambda h: 0.6, 1.0, 12, "undecided"),
    ):
        data.ablation = swept(exponent, settings, "ablation", noise, replicates)
        assert judged(data, "bound", settings)[0] == verdict


def test_exponents_on_a_ball_are_told_whatever_the_growth_of_the_constant(settings):
    rng, sizes = np.random.default_rng(0), np.array([100, 400, 1600])
    units = [{"radius": radius, "n": n} for radius in (1.0, 4.0, 16.0) for n in sizes]
    cells = []
    for unit in units:
        raw = Errors.new(item=[0], metric=["supremum"], replicate=range(12), size=[unit["n"]])
        raw.error = unit["n"] ** -0.5 * np.exp(0.3 * rng.standard_normal((1, 1, 12, 1)))
        cells.append(raw.dataset)
    data = PaperData.new()
    data.ball = synthetic.summarise_ball(units, cells, settings)
    judgement = claims.judge_ball(data, settings)
    assert "falls with exponents" in judgement.measured
    assert "R^" in judgement.measured or "(undecided)" in judgement.measured


# -- heads


def made_heads(beta, psi, width=0.02):
    """Heads with given exponents and Psi, six to a layer."""
    beta, psi = (np.asarray(x, dtype=float).reshape(-1, min(6, len(x))) for x in (beta, psi))
    heads = study.HeadExponents.new(
        layer=range(len(beta)), head=range(beta.shape[1]), metric=synthetic.METRICS
    )
    for name, factor in (("exponent", width), ("joint", 2 * width)):
        ends = beta[..., None, None] + factor * np.array([0.0, -1.0, 1.0])
        setattr(heads.fits, name, np.repeat(ends, 3, axis=2))
    heads.psi, heads.psi_one_sided = psi, 2 * psi
    heads.largest = np.full(len(beta), 1024)
    heads.fill()
    heads.fits.trusted = np.ones((*beta.shape, 3), bool)
    data = PaperData.new()
    data.dataset.update(heads.dataset)
    return data


def test_heads_that_are_as_the_paper_says(settings):
    psi = np.geomspace(0.1, 4, 24)
    data = made_heads(1 / (2 + 2 * psi), psi)
    assert judged(data, "heads", settings) == ("holds", ["holds"] * 5)


def test_heads_that_contradict_it(settings):
    psi = np.geomspace(0.1, 4, 24)
    verdict, checks = judged(made_heads(0.6 + 0.01 * psi, psi), "heads", settings)
    assert verdict == "contradicted"
    assert checks == ["holds", *["contradicted"] * 4]
    below_the_bound = made_heads(np.full(24, 0.2), np.full(24, 0.02))
    assert judged(below_the_bound, "heads", settings)[1][0] == "contradicted"


def test_heads_that_decide_nothing(settings):
    rng = np.random.default_rng(0)
    beta = 0.49 + 0.005 * rng.standard_normal(24)
    data = made_heads(beta, rng.permutation(np.geomspace(0.1, 4, 24)))
    verdict, checks = judged(data, "heads", settings)
    assert verdict == "undecided"
    assert checks[:4] == ["holds", "undecided", "undecided", "undecided"]


@pytest.mark.parametrize(
    ("amplification", "verdict"), [(1.0, "holds"), (1.5, "contradicted"), (1.05, "undecided")]
)
def test_heads_together(amplification, verdict, settings):
    data = made_heads(np.full(12, 0.5), np.ones(12))
    ends = amplification + 0.03 * np.array([[0.0, -1.0, 1.0]] * 2)
    data.heads.amplification, data.heads.effective_heads = ends, 6 * ends
    assert judged(data, "together", settings)[0] == verdict


@pytest.mark.parametrize(
    ("slope", "verdict"), [(-0.1, "holds"), (0.1, "contradicted"), (0.0, "undecided")]
)
def test_exponents_against_alpha(slope, verdict, settings):
    rng, alphas = np.random.default_rng(0), np.array([0.1, 1.0, 10.0])
    axes = ("alpha", "layer", "head")
    alpha = Exponents.new(*axes, alpha=alphas, layer=[0], head=range(6), metric=["mean"])
    beta = 0.4 + slope * np.log10(alphas)[:, None] + 0.01 * rng.standard_normal((3, 6))
    ends = beta[:, None, :, None, None] + 0.02 * np.array([0.0, -1.0, 1.0])
    alpha.exponent = alpha.joint = ends
    data = PaperData.new()
    data.alpha, data.ablation = alpha, swept(lambda h: 0.6, settings, "ablation")
    assert judged(data, "ablation", settings)[1][1] == verdict


@pytest.mark.parametrize(
    ("laws", "verdict"),
    [(("power",), "contradicted"), (("log",), "holds"), (("power", "log"), "undecided")],
)
def test_laws_of_the_argmax(laws, verdict, settings):
    sizes = np.array([16, 32, 64, 128, 256, 512])
    level = {"power": sizes**-0.4, "log": np.log(sizes) ** -1.5}
    errors = [
        level[laws[head % len(laws)]]
        * np.exp(0.02 * random_stream(2, "made", head).standard_normal((32, len(sizes))))
        for head in range(8)
    ]
    argmax = HeadErrors.new(layer=[0], head=range(8), metric=["mean"], size=sizes)
    set_exponents(argmax.fits, np.array(errors)[None, :, None], sizes, 0)
    means = np.mean(errors, axis=1)[None, :, None, :, None]
    argmax.error, argmax.tokens = np.repeat(means, 3, axis=-1), 2048
    data = PaperData.new()
    data.argmax = argmax
    check = claims.judge_argmax(data)
    assert check.verdict == verdict
    assert not check.counts


# -- whole models


def masked(settings, slower=0.0, factor=1.4, heads=8, replicates=6):
    """Errors of heads whose laws are known."""
    rng, sizes = np.random.default_rng(1), 2 ** np.arange(5, 16)
    raw = Errors.new(
        item=range(heads), metric=CAUSAL_METRICS, replicate=range(replicates), size=sizes
    )
    noise = rng.chisquare(30, size=(heads, 2, replicates, len(sizes))) / 30
    scale = np.array([factor**2 * sizes ** (2 * slower), np.ones(len(sizes))])[:, None]
    orders = np.array([2.0, 1.0])[:, None]
    position = [np.mean(20 / np.arange(n // 2 + 1, n + 1)) for n in sizes]
    outputs = np.tile([20 / sizes, position], (heads, 1, 1))[:, :, None]
    of_means = [noise * scale / sizes, noise * orders[..., None] / sizes]
    raw.error = np.concatenate([*of_means, np.repeat(outputs, replicates, axis=2)], axis=1)
    raw.expected = np.tile(np.concatenate([orders / sizes] * 3), (heads, 1, 1))
    data = PaperData.new()
    data.causal = models.summarise_causal([{"tokens": 1024}], [raw.dataset], settings)
    return data


def test_the_mask_is_judged_by_what_it_does(settings):
    same = masked(settings)
    assert judged(same, "causal", settings)[0] == "holds"
    assert float(same.causal.ratio[-1, 0]) == pytest.approx(1.4, rel=0.02)
    checks = judged(masked(settings, slower=0.2), "causal", settings)[1]
    assert checks[:2] == ["contradicted", "holds"]
    verdict, checks = judged(masked(settings, factor=0.9), "causal", settings)
    assert (verdict, checks[1]) == ("contradicted", "contradicted")


def answering(settings, bend=False, texts=150):
    """Losses that are a power of n, or end on a floor."""
    rng, data = np.random.default_rng(3), PaperData.new()
    for name, tasks in (("tokens", [TOKEN]), ("texts", [NEIGHBOUR, models.CLASS])):
        units = models.MEASUREMENTS[name].units(settings)
        sizes = units[0]["sizes"]
        rates = 0.5 * (sizes[1] / np.array(sizes)) ** 0.5
        if bend:
            rates[-1] = 0.3
        raw = study.Answers.new(task=tasks, item=range(texts), draw=[0], size=sizes)
        shape = len(tasks), texts, 1, len(sizes)
        raw.loss = rng.binomial(60, np.minimum(rates, 0.95), size=shape) / 60
        raw.accuracy = 0.8 - 0.5 * raw.loss
        raw.dense_accuracy = np.full(shape[:2], 0.8)
        raw.answers = np.full(shape[:2], 60)
        setattr(data, name, models.summarise_answers(units, [raw.dataset], settings))
    return data


def test_downstream_is_judged_by_its_law(settings):
    power = answering(settings)
    assert judged(power, "downstream", settings)[0] == "holds"
    for part in (power.tokens, power.texts):
        assert np.allclose(part.exponent.sel(bound="value"), 0.5, atol=0.05)
    assert judged(answering(settings, bend=True), "downstream", settings)[1][2] == "contradicted"
    # few texts decide nothing
    assert judged(answering(settings, texts=3), "downstream", settings)[0] == "undecided"
