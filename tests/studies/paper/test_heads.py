"""Claims about encoder heads: rows against a probe, exact expectations, rules on made tables."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pandas as pd
import pytest

from esscher.core.streams import random_stream
from esscher.show.chart import figure
from esscher.show.content import Plot
from esscher.studies.paper import heads
from esscher.studies.paper.ledger import Setting
from esscher.studies.probe import probe
from tests.engine.models.folders import random_words, save

SMALL = {"tokens": 300, "first": 16, "last": 128, "count": 4, "replicates": 8}


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Enough for the verdicts of made tables."""
    monkeypatch.setattr(heads, "RESAMPLES", 200)


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """A tiny encoder and a text, in files."""
    folder = tmp_path_factory.mktemp("encoder")
    save(folder / "bert")
    (folder / "text.txt").write_text(random_words(1000))
    return Setting("quick", 3, str(folder / "bert"), "", str(folder / "text.txt"))


def test_rows_are_those_of_a_probe(setting):
    rows = heads.MEASUREMENTS["heads"].measure({"part": 0} | SMALL, setting)
    found = probe(
        setting.encoder,
        setting.text,
        tokens=300,
        layers=[0],
        heads=[0, 1],
        sizes=[16, 32, 64, 128],
        replicates=8,
        seed=3,
    ).table()
    mine = pd.DataFrame(rows).head(2)
    same = {"H": "horizon", "bound": "paper_bound", "reference": "paper_reference"}
    same |= {name: name for name in ("layer", "head", "psi", "psi_one_sided", "H_unscaled")}
    for metric, end in product(heads.METRICS, ("", "_low", "_high")):
        same[f"{metric}{end}"] = f"exponent_{metric}{end}"
    for name, column in same.items():
        assert mine[name].tolist() == pytest.approx(found[column].tolist()), name
    one_sided = 1 / (2 * (1 + 32 * found["psi_one_sided"]))
    assert mine["bound_one_sided"].tolist() == pytest.approx(one_sided.tolist())
    assert (mine["mean_joint_low"] <= mine["mean_low"]).all()
    assert (mine["mean_joint_high"] >= mine["mean_high"]).all()


def test_parts_have_every_layer_once(setting):
    layers = [heads._layers(setting, part) for part in range(heads.PARTS)]
    count = setting.loaded(setting.encoder).shape.layers
    assert sorted(layer for part in layers for layer in part) == list(range(count))
    assert heads.MEASUREMENTS["heads"].measure({"part": heads.PARTS - 1} | SMALL, setting) == []
    for scale in ("quick", "standard", "paper"):
        assert len(heads.MEASUREMENTS["heads"].units(scale)) == heads.PARTS


def test_units_do_not_depend_on_what_ran_before(setting):
    measure = heads.MEASUREMENTS["alpha-heads"].measure
    first = measure({"alpha": 0.5} | SMALL, setting)
    measure({"alpha": 2.0} | SMALL, setting)
    heads._cloud.cache_clear()
    assert measure({"alpha": 0.5} | SMALL, setting) == first


def test_scaled_heads_have_scaled_horizons(setting):
    one, two = (
        pd.DataFrame(heads.MEASUREMENTS["alpha-heads"].measure({"alpha": a} | SMALL, setting))
        for a in (1.0, 2.0)
    )
    assert two["H"].tolist() == pytest.approx((2 * one["H"]).tolist())
    assert two["psi_one_sided"].tolist() == pytest.approx((4 * one["psi_one_sided"]).tolist())
    assert two["mean"].mean() < one["mean"].mean()


def test_windows_of_a_long_encoder(tmp_path, monkeypatch):
    """As BigBird's experiment, 100 times smaller."""
    save(tmp_path / "bird", "big_bird")
    (tmp_path / "text.txt").write_text(random_words(1000))
    setting = Setting("paper", 3, str(tmp_path / "bird"), "", str(tmp_path / "text.txt"))
    assert heads._measure_windows({"passage": 0, "queries": 5}, setting) == []
    monkeypatch.setattr(heads, "LONG_CONTEXT", 64)
    monkeypatch.setattr(heads, "HALF_WIDTHS", (4, 16, 3))
    monkeypatch.setattr(heads, "LONG_SIZES", (8, 32, 4))
    monkeypatch.setattr(heads, "RANDOM_KEYS", 6)
    rows = [
        row
        for passage in range(3)
        for row in heads._measure_windows({"passage": passage, "queries": 40}, setting)
    ]
    windows = pd.DataFrame(rows)
    shape = setting.loaded(setting.encoder).shape
    assert len(windows) == 3 * 3 * shape.layers * shape.heads
    assert sorted(windows["n"].unique()) == [15, 23, 39]
    found = pd.DataFrame(heads.MEASUREMENTS["heads"].measure({"part": 0} | SMALL, setting))
    assert (found["largest_n"] == 32).all()
    entry = heads._judge_heads({"heads": found, "windows": windows}, setting)
    assert entry.checks[-1].counts is False
    assert "over 3 passages" in entry.checks[-1].measured


def test_a_window_over_everything_has_no_error(monkeypatch):
    q, k, v = cloud(61)
    rng = random_stream(0, "test")
    monkeypatch.setattr(heads, "RANDOM_KEYS", 61)
    errors = heads.window_errors(q, k, v, (4, 16, 29), 30, rng)
    assert errors.max() < 1e-20  # every key beside the window is drawn
    monkeypatch.setattr(heads, "RANDOM_KEYS", 4)
    means = heads.window_errors(q, k, v, (4, 16, 29), 300, rng).mean(axis=0)
    assert (np.diff(means) < 0).all()
    assert 0 < means[-1] < means[0] < 2


def cloud(count=200, seed=0):
    x = np.random.default_rng(seed).standard_normal((count, 3)).astype(np.float32)
    return 2 * x, x, x + 1


def test_argmax_has_its_exact_expectation():
    q, k, v = cloud()
    sizes, replicates = (4, 16, 48), 600
    shift, square = heads.argmax_errors(q, k, v, sizes, replicates, random_stream(0, "test"))
    order = np.argsort(-(q @ k.T), axis=1)
    gap = (v[order] - v[order[:, :1]]).astype(float)
    left = 1 - np.arange(len(k) + 1) / len(k)
    for j, n in enumerate(sizes):
        chance = left[:-1] ** n - left[1:] ** n
        for found, expected in (
            (shift[:, j], np.einsum("r,qrd->d", chance, gap) / len(q)),
            (square[:, j, None], np.einsum("r,qrd->", chance, gap**2)[None] / len(q)),
        ):
            noise = found.std(axis=0, ddof=1) / np.sqrt(replicates)
            assert np.abs((found.mean(axis=0) - expected) / noise).max() < 3.5


def test_queries_are_taken_in_blocks(monkeypatch):
    q, k, v = (np.round(10 * part) for part in cloud())  # products are exact
    whole = heads.argmax_errors(q, k, v, (8, 32), 5, random_stream(1, "test"))
    monkeypatch.setattr(heads, "QUERIES", 37)
    parts = heads.argmax_errors(q, k, v, (8, 32), 5, random_stream(1, "test"))
    assert np.allclose(whole[0], parts[0])
    assert np.allclose(whole[1], parts[1])


def test_argmax_rows_go_up_to_a_quarter_of_the_tokens(setting):
    unit = {"part": 0, "tokens": 300, "first": 4, "replicates": 8}
    table = pd.DataFrame(heads.MEASUREMENTS["argmax-heads"].measure(unit, setting))
    assert sorted(table["n"].unique()) == [4, 8, 16, 32, 64]
    assert (table["mean_error_low"] <= table["mean_error"]).all()
    assert table.groupby("head")["mean_law"].nunique().max() == 1
    assert heads.judge_argmax_heads(table).counts is False
    assert Plot(figure([heads.draw_argmax_heads(table)])).to_dict()


def made(beta, psi, width=0.02, cov=None, bound=None):
    """A table of heads, six to a layer."""
    beta, psi = np.asarray(beta, dtype=float), np.asarray(psi, dtype=float)
    number = np.arange(len(beta))
    table = pd.DataFrame(
        {
            "layer": number // 6,
            "head": number % 6,
            "alpha": 1.0,
            "H": psi**0.5,
            "psi": psi,
            "psi_one_sided": 2 * psi,
            "H_unscaled": 4 * psi**0.5,
            "bound": 1 / (2 + 64 * psi) if bound is None else bound,
            "bound_one_sided": 0.0,
            "reference": 1 / (2 + 2 * psi),
            "reference_one_sided": 1 / (2 + 4 * psi),
            "largest_n": 1024,
        }
    )
    for metric, value in (("mean", beta), ("cov", beta if cov is None else cov), ("map", beta)):
        table[metric], table[f"{metric}_trusted"], table[f"{metric}_law"] = value, True, "power"
        for end, sign in (("low", -1), ("high", 1)):
            table[f"{metric}_{end}"] = value + sign * width
            table[f"{metric}_joint_{end}"] = value + sign * 2 * width
    return table


def verdicts(table):
    entry = heads.CLAIMS["heads"].judge({"heads": table}, Setting("quick", 0, "", "", ""))
    return entry.verdict, [check.verdict for check in entry.checks]


def test_the_figure_has_every_head():
    table = made(np.linspace(0.3, 0.5, 6), np.geomspace(0.1, 4, 6))
    entry = heads.CLAIMS["heads"].judge({"heads": table}, Setting("quick", 0, "", "", ""))
    drawn = json.dumps(Plot(heads.CLAIMS["heads"].draw(entry)).to_dict())
    assert all(f"head 0.{head}" in drawn for head in range(6))


def test_heads_that_are_as_the_paper_says():
    psi = np.geomspace(0.1, 4, 24)
    assert verdicts(made(1 / (2 + 2 * psi), psi)) == ("holds", ["holds"] * 5)


def test_heads_that_contradict_it():
    psi = np.geomspace(0.1, 4, 24)
    whole, each = verdicts(made(0.6 + 0.01 * psi, psi))
    assert whole == "contradicted"
    assert each == ["holds", *["contradicted"] * 4]
    below_the_bound = made(np.full(24, 0.2), psi, bound=np.full(24, 0.3))
    assert verdicts(below_the_bound)[1][0] == "contradicted"


def test_heads_that_decide_nothing():
    rng = np.random.default_rng(0)
    table = made(0.49 + 0.005 * rng.standard_normal(24), rng.permutation(np.geomspace(0.1, 4, 24)))
    whole, each = verdicts(table)
    assert whole == "undecided"
    assert each[:4] == ["holds", "undecided", "undecided", "undecided"]


@pytest.mark.parametrize(
    ("slope", "verdict"), [(-0.1, "holds"), (0.1, "contradicted"), (0.0, "undecided")]
)
def test_exponents_against_alpha(slope, verdict):
    rng = np.random.default_rng(0)
    table = pd.concat(
        made(0.4 + slope * np.log10(alpha) + 0.01 * rng.standard_normal(6), np.ones(6)).assign(
            alpha=alpha
        )
        for alpha in (0.1, 1.0, 10.0)
    )
    assert heads.judge_alpha_heads(table).verdict == verdict
    if verdict == "holds":
        assert Plot(figure([heads.draw_alpha_heads(table)])).to_dict()


@pytest.mark.parametrize(
    ("laws", "verdict"),
    [(("power",), "contradicted"), (("log",), "holds"), (("power", "log"), "undecided")],
)
def test_laws_of_the_argmax(laws, verdict):
    sizes = np.array([16, 32, 64, 128, 256, 512])
    level = {"power": sizes**-0.4, "log": np.log(sizes) ** -1.5}
    rows = []
    for head in range(8):
        noise = 0.02 * random_stream(2, "made", head).standard_normal((32, len(sizes)))
        errors = level[laws[head % len(laws)]] * np.exp(noise)
        about = {"layer": 0, "head": head} | heads._fitted("mean", errors, sizes, 0)
        rows += [
            about | {"n": n, "tokens": 2048, "mean_error": errors[:, j].mean()}
            for j, n in enumerate(sizes)
        ]
    assert heads.judge_argmax_heads(pd.DataFrame(rows)).verdict == verdict


def test_errors_of_zero_have_no_exponent():
    found = heads._fitted("mean", np.zeros((4, 3)), (8, 16, 32), 0)
    assert np.isnan(found["mean"])
    assert found["mean_law"] == "none"
