"""Whole probes: results, resuming, bad input, and the real encoder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from esscher.cli.program import main
from esscher.core.errors import InputError
from esscher.engine.models.loaded import wrap_model
from esscher.engine.models.weights import head_weights
from esscher.engine.text.collect import iterate_passages
from esscher.engine.text.packing import read_passages
from esscher.runs.registry import load
from esscher.studies.probe import Probe, probe
from tests.engine.models.demo import demo_model
from tests.engine.models.folders import decoder_tokenizer, save, tiny, words
from tests.engine.models.tiny import tiny_model
from tests.runs.stopped import stopped_at
from tests.studies.probe.sizes import SEQUENCES, SMALL


@pytest.fixture(scope="module")
def two_heads(tmp_path_factory):
    """Two heads of an encoder, probed: the directory."""
    out = tmp_path_factory.mktemp("probe") / "run"
    probe(tiny(), [words(1000)], out=out, layers=[0], heads=[0, 1], **SMALL)
    return out


@pytest.fixture
def stored(two_heads, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(two_heads, tmp_path / "run")


def run(*arguments: str):
    return CliRunner().invoke(main, ["probe", *arguments])


def by_hand(loaded, text, tokens, context, layer, head):
    """One-sided Psi and the delimiters' share of the attention, of all tokens of a cloud."""
    hidden, shares = [], []
    for passage, capture in iterate_passages(
        loaded, read_passages(loaded, text, tokens=tokens, context=context), layers=[layer]
    ):
        weights = torch.softmax(capture.logits(0, head), dim=-1).numpy()
        asking = np.flatnonzero(~passage.is_delimiter)
        hidden.append(capture.hidden[0].double().numpy()[asking])
        shares.append(weights[asking][:, passage.is_delimiter].sum(axis=1))
    covariance = np.cov(np.concatenate(hidden)[:tokens].T, bias=True)
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    weights = head_weights(loaded, layer)
    matrix = weights.scaling * weights.W_k[head].T @ weights.W_q[head]
    psi = values[-1] * np.linalg.norm(root @ matrix, 2) ** 2
    return psi, np.concatenate(shares)[:tokens].mean()


def test_every_number_is_of_all_tokens():
    """The one-sided Psi and the share of delimiters as well, however many passages there are."""
    loaded, text = tiny(), [words(1000)]
    for tokens in (150, 300):
        options = SMALL | {"tokens": tokens, "layers": [1], "predict": True}
        found = probe(loaded, text, **options).head(1, 2)
        psi, share = by_hand(loaded, text, tokens, options["context"], 1, 2)
        # the model and its capture compute in float32
        assert found.psi_one_sided == pytest.approx(psi, rel=1e-5)
        assert found.delimiter_share == pytest.approx(share, rel=1e-5)
        assert found.psi <= found.psi_one_sided


@pytest.mark.parametrize(
    ("name", "count", "tokens", "context", "cells"),
    [("bert", 100, 100, 80, 1), ("llama", 70, 70, 71, 1), ("llama", 300, 160, 80, 2)],
)
def test_defaults_are_what_is_there(name, count, tokens, context, cells, tmp_path):
    """Fewer tokens than the default are no mistake; the same call resumes."""
    options = {"replicates": 2, "layers": [0], "heads": [0], "out": tmp_path / "run"}
    found = probe(tiny(name), [words(count)], **options)
    assert (found.study.tokens, found.study.context, found.cells) == (tokens, context, cells)
    assert found.sizes[-1] <= tokens // 4
    again = probe(tiny(name), [words(count)], **options)
    assert again.heads == found.heads


@pytest.mark.parametrize(
    ("count", "options", "words_of"),
    [
        (20, {}, "has only 20 tokens; give a text with at least 54"),
        (66, {"tokens": 500}, "has only 66 tokens, but 500 are asked for"),
        (66, {"context": 75}, "less than a passage of 75; give more text, or a context of at most"),
    ],
)
def test_too_little_text(count, options, words_of, tmp_path):
    with pytest.raises(InputError, match=words_of):
        probe(tiny("llama"), [words(count)], out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mode", ["pooled", "context"])
@pytest.mark.parametrize("name", ["bert", "llama", "gemma2"])
def test_results_have_everything(name, mode, tmp_path):
    # the second layer of the tiny Gemma is the one without a window
    layers = [1] if name == "gemma2" else [0, 2]
    options = (SMALL if mode == "pooled" else SEQUENCES) | {"layers": layers}
    found = probe(tiny(name), [words(2000)], mode=mode, out=tmp_path / "run", **options)
    assert isinstance(found, Probe)
    assert found.complete
    assert [(h.layer, h.head) for h in found.heads] == [
        (layer, head) for layer in layers for head in range(4)
    ]
    json.dumps(found.to_dict(), allow_nan=False)
    for head in found.heads:
        for metric in ("mean", "cov", "map"):
            fit = head.fit[metric]
            curve = np.log(head.predicted_error[metric].error)
            slope = np.polyfit(np.log(found.sizes), curve, 1, w=np.sqrt(fit.weights))[0]
            assert fit.predicted == pytest.approx(-slope, rel=1e-9)
            assert fit.predicted == head.predicted_exponent(metric)[0]
            assert (fit.sharp, fit.paper_bound) == (head.sharp[metric], head.paper_bound)
        for tolerance, tokens in head.tokens_for.items():
            low, high = head.tokens_for_interval[tolerance]
            assert tokens is None or low is not None
            assert None in (low, tokens, high) or low <= tokens <= high
        assert head.reference_share == 0  # all tokens are queries
    assert len(found.layers) == len(layers)
    for layer in found.layers:
        for metric, shared in layer.heads_together.items():
            assert np.shape(shared.correlation) == (4, 4)
            count = 1 if metric == "magnitudes" else len(options["sizes"])
            assert len(shared.effective_heads) == count
            assert all(1 <= number.value <= 4 for number in shared.effective_heads)
            assert all(0 <= number.value <= 4 for number in shared.amplification)
    together = found.layers_table()
    assert list(together["layer"]) == layers
    for row, layer in zip(together.itertuples(), found.layers, strict=True):
        exponents = [h.fit.mean.exponent for h in found.heads if h.layer == layer.layer]
        assert row.heads_mean == pytest.approx(np.mean(exponents))
        assert exponents[row.worst_head] == row.heads_worst == min(exponents)
        assert row.side_by_side == layer.fit.mean.exponent
    frame = found.table()
    assert len(frame) == 4 * len(layers)
    assert load(tmp_path / "run").to_dict() == found.to_dict()
    found.save(tmp_path / "probe.json")
    assert load(tmp_path / "probe.json").heads == found.heads
    data = found.to_xarray()
    assert dict(data.sizes) == {"layer": len(layers), "head": 4}
    assert float(data["H"].sel(layer=layers[0], head=2)) == found.head(layers[0], 2).horizon
    with pytest.raises(InputError, match=r"head 9\.0 was not measured"):
        found.head(9, 0)


@pytest.mark.parametrize("mode", ["pooled", "context"])
def test_a_killed_probe_resumes_to_the_same(mode, tmp_path):
    options = (SMALL if mode == "pooled" else SEQUENCES) | {"heads": [0, 3]}
    loaded, text = tiny("llama"), [words(2000)]
    whole = probe(loaded, text, mode=mode, **options)
    with stopped_at("-1"):
        probe(loaded, text, mode=mode, out=tmp_path / "run", **options)
    partial = load(tmp_path / "run")
    assert not partial.complete
    again = probe(loaded, text, mode=mode, out=tmp_path / "run", **options)
    assert again.complete
    assert again.heads == whole.heads
    assert not list((tmp_path / "run").glob("cloud*"))


def test_another_configuration_is_refused(stored):
    options = {"layers": [0], "heads": [0, 1], "out": stored, **SMALL}
    with pytest.raises(InputError, match="seed: stored 0, now 1"):
        probe(tiny(), [words(1000)], seed=1, **options)
    config = json.loads((stored / "config.json").read_text())
    del config["configuration"]["seed"]
    (stored / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="it has no 'seed'"):
        load(stored)
    with pytest.raises(InputError, match="seed: stored null, now 0"):
        probe(tiny(), [words(1000)], **options)


def rewrite(part, change):
    """Change what a cell says, as somebody might who writes a file of his own."""
    stored = json.loads(part.read_text())
    change(stored["about"]["layers"][0])
    part.write_text(json.dumps(stored))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda layer: layer["heads"].append(3), "one entry per head"),
        (lambda layer: layer["stats"].pop(), "one entry per head"),
        (lambda layer: layer["relative"].pop(), "one entry per head"),
        (lambda layer: layer["reference"]["cov_error"].pop(), "one entry per head"),
        (lambda layer: layer["sizes"].pop(), "at each size"),
        (lambda layer: layer["shape"].__setitem__(2, 10**6), "reshape"),
        (lambda layer: layer["shape"].__setitem__(2, 3), "rows"),
        (
            lambda layer: layer["stats"][0]["predicted_error"]["cov"]["error"].pop(),
            "predicted error",
        ),
        (lambda layer: layer["stats"][0].pop("khat"), "khat"),
    ],
)
def test_lists_that_do_not_go_together_are_refused(change, said, stored):
    (stored / "results.json").unlink()
    rewrite(stored / "parts" / "layer-0.json", change)
    with pytest.raises(InputError, match=f"layer-0.json is damaged .*{said}"):
        load(stored)


def test_matrices_are_square(found, tmp_path):
    tree = found.to_dict()
    tree["layers"][0]["heads_together"]["map"]["correlation"][2].pop()
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(tree))
    with pytest.raises(InputError, match="correlations of all pairs of heads"):
        load(path)


def test_the_mode_is_that_of_the_model():
    """Decoders are probed in context mode unless told otherwise, encoders in pooled mode."""
    text = [words(2000)]
    options = SEQUENCES | {"layers": [0], "heads": [0, 1]}
    found = probe(tiny("llama"), text, **options)
    assert found.study.mode == "context"
    assert found.cells == 3
    assert probe(tiny("bert"), text, **options).study.mode == "pooled"
    assert probe(tiny("llama"), text, mode="pooled", **options).study.mode == "pooled"


def test_several_passages_with_tails(tmp_path):
    """Numbers are means over passages, counts of tokens among them; they are stored and read."""
    model = tiny_model("llama", max_position_embeddings=1024)
    loaded = wrap_model(model.model, decoder_tokenizer(), name="llama")
    options = {"context": 800, "tokens": 1600, "sizes": [8, 16, 32], "replicates": 4}
    found = probe(loaded, [words(4000)], layers=[0], heads=[0, 1], out=tmp_path / "run", **options)
    one, two = (
        json.loads((tmp_path / "run" / "parts" / f"passage-{i}.json").read_text())["about"]
        for i in (0, 1)
    )
    stats = [cell["layers"][0]["stats"][1] for cell in (one, two)]
    head = found.head(0, 1)
    assert head.horizon == np.mean([s["horizon"] for s in stats])
    assert head.khat.n == np.mean([s["khat"]["n"] for s in stats])
    for i, tail in enumerate(head.tails.tail):
        each = [s["tails"]["tail"][i]["exceedances"] for s in stats]
        assert tail.exceedances == np.mean(each)
    assert load(tmp_path / "run").heads == found.heads


BAD = [
    ({"context": 500}, "reads at most"),
    ({"tokens": 5000}, "5000"),
    ({"tokens": 39, "sizes": None}, "a curve needs at least 40"),
    ({"layers": [7]}, "layers"),
    ({"heads": [9]}, "heads"),
    ({"sizes": [16, 16]}, "strictly increasing"),
    ({"sizes": [1, 16]}, "sizes"),
    ({"sizes": []}, "sizes"),
    ({"mode": "context", "tokens": 10**12, "context": 2}, "passages"),
]


@pytest.mark.parametrize(("change", "words_"), BAD)
def test_bad_input_is_refused(change, words_, tmp_path):
    with pytest.raises(InputError, match=words_):
        probe(tiny(), [words(1000)], out=tmp_path / "run", **(SMALL | change))
    assert not (tmp_path / "run").exists()


def test_command_on_a_folder(tmp_path: Path):
    save(tmp_path / "model")
    (tmp_path / "text.txt").write_text(words(1000))
    numbers = {"tokens": "300", "context": "32", "sizes": "16:128:4", "replicates": "5"}
    numbers |= {"layers": "0-1", "text": str(tmp_path / "text.txt")}
    options = [word for name, value in numbers.items() for word in (f"--{name}", value)]
    figure, out = tmp_path / "heads.png", tmp_path / "run"
    result = run(str(tmp_path / "model"), *options, "--out", str(out), "--figure", str(figure))
    assert result.exit_code == 0, result.output
    assert "Heads together" in result.output
    assert figure.stat().st_size > 10_000
    as_json = json.loads(run(str(tmp_path / "model"), *options, "--out", str(out), "--json").stdout)
    assert len(as_json["heads"]) == 8
    assert load(out).headline in result.output
    shown = CliRunner().invoke(main, ["show", str(out), "--json"])
    assert json.loads(shown.stdout) == as_json
    assert "k-hat" in CliRunner().invoke(main, ["show", str(out)]).output


def test_the_real_encoder():
    """One layer of MiniLM on Python's documentation: exponents near 1/2, as predicted."""
    options = {"tokens": 2048, "layers": [4], "sizes": [64, 128, 256, 512]}
    model = demo_model("demo:minilm")
    found = probe(model, "demo:docs", replicates=16, **options)
    alone = probe(model, "demo:docs", predict=True, **options)
    table = found.table()
    assert len(table) == 12
    assert np.median(np.abs(table["mean"] - 0.5)) < 0.08
    for metric in ("mean", "cov", "map"):
        # what is left is mostly the noise of 16 samples
        noise = np.median((table[f"{metric}_high"] - table[f"{metric}_low"]) / 3.92)
        gap = (table[f"predicted_{metric}"] - table[metric]).abs().median()
        assert gap < 2 * noise, metric
        # the same from one pass; beside measured ones, they have the weights of the fit
        assert list(alone.table()[f"predicted_{metric}"]) == [
            head.predicted_error[metric].exponent for head in found.heads
        ]
