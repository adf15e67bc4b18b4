"""Whole probes: results, resuming, workers, bad input, and the real encoder."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

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
from esscher.math.statistics import fit_rate
from esscher.runs.executors import LocalPool
from esscher.runs.registry import load
from esscher.studies.probe import probe
from esscher.studies.probe.study import TOLERANCES, ProbeData
from tests.engine.models.demo import demo_model
from tests.engine.models.folders import decoder_tokenizer, encoder_tokenizer, save, tiny, words
from tests.engine.models.tiny import tiny_model
from tests.runs.stack import stored
from tests.runs.stopped import stopped_at
from tests.studies.probe.sizes import SEQUENCES, SMALL, same_numbers


def run(*arguments: str) -> Any:
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
        head = probe(loaded, text, **options).head(1, 2)
        psi, share = by_hand(loaded, text, tokens, options["context"], 1, 2)
        # the model and its capture compute in float32
        assert head["psi_one_sided"] == pytest.approx(psi, rel=1e-5)
        assert head["delimiter_share"] == pytest.approx(share, rel=1e-5)
        assert head["psi"] <= head["psi_one_sided"]


@pytest.mark.parametrize(
    ("name", "count", "tokens", "context", "cells"),
    [("bert", 100, 100, 80, 1), ("llama", 70, 70, 71, 1), ("llama", 300, 160, 80, 2)],
)
def test_defaults_are_what_is_there(name, count, tokens, context, cells, tmp_path):
    """Fewer tokens than the default are no mistake; the same call resumes."""
    options = {"replicates": 2, "layers": [0], "heads": [0], "out": tmp_path / "run"}
    result = probe(tiny(name), [words(count)], **options)
    settings = result.setup.settings
    assert (settings.tokens, settings.context, len(result.cells)) == (tokens, context, cells)
    assert settings.sizes[-1] <= tokens // 4
    assert settings.mode == ("pooled" if name == "bert" else "context")
    same_numbers(probe(tiny(name), [words(count)], **options).data, result.data)


@pytest.mark.parametrize(
    ("count", "options", "words_of"),
    [
        (20, {}, "has only 20 tokens, but 54 are needed"),
        (66, {"tokens": 500}, "has only 66 tokens, but 500 are needed"),
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
    result = probe(tiny(name), [words(2000)], mode=mode, out=tmp_path / "run", **options)
    assert result.complete
    data, sizes = ProbeData(result.data), np.array(options["sizes"], float)
    assert (result.data["layer"].values.tolist(), result.data.sizes["head"]) == (layers, 4)
    assert result.data.sizes["replicate"] == 6
    for layer, head, metric in np.ndindex(len(layers), 4, 3):
        here = ProbeData(result.data.isel(layer=layer, head=head, metric=metric))
        rate = fit_rate(here.replicate_error.values, sizes, seed=0)
        assert here.fit.exponent.values.tolist() == [rate.exponent, *rate.interval]
        assert float(here.standard_error) == rate.standard_error
        np.testing.assert_array_equal(here.error.sel(bound="value"), rate.mean)
        curve = np.log(here.one_pass.predicted_error.values)
        slope = np.polyfit(np.log(sizes), curve, 1, w=np.sqrt(rate.weights))[0]
        assert float(here.predicted_exponent.sel(bound="value")) == pytest.approx(-slope, rel=1e-9)
    value, low, high = data.one_pass.tokens.transpose("bound", ...).values
    assert (low <= value)[~np.isnan(value)].all()
    assert (value <= high)[~np.isnan(high)].all()
    assert (data.reference_share == 0).all()  # all tokens are queries
    effective = data.effective_heads.sel(bound="value")
    assert ((effective >= 1) & (effective <= 4)).all()
    amplification = data.amplification.sel(bound="value")
    assert ((amplification >= 0) & (amplification <= 4)).all()
    together = result.table("layers")
    assert list(together["layer"]) == layers
    exponents = data.fit.exponent.sel(metric="mean", bound="value")
    np.testing.assert_allclose(together["typical"], exponents.mean("head"))
    np.testing.assert_allclose(together["worst"], exponents.min("head"))
    assert list(together["worst_head"]) == exponents.argmin("head").values.tolist()
    frame = result.table()
    assert len(frame) == 4 * len(layers)
    assert (
        frame["tokens_10"].tolist()
        == result["tokens"].sel(within=0.1, bound="value").values.ravel().tolist()
    )
    json.dumps(result.to_dict(), allow_nan=False)
    assert load(tmp_path / "run").to_dict() == result.to_dict()
    result.save(tmp_path / "probe.safetensors")
    same_numbers(load(tmp_path / "probe.safetensors").data, result.data)


def test_a_head_says_what_it_needs(result):
    head = result.head(2, 1)
    said = repr(head)
    assert said.startswith("head 2.1: tokens for 10% ")
    for number in (head["psi"], head["exponent"].sel(metric="mean", bound="value")):
        assert f"{float(number):.2f}" in said
    for name in ("exponent mean", "predicted mean", "exponent map", "predicted map", "error"):
        assert name in said
    curves = head.curves()
    assert len(curves) == 3 * result.data.sizes["size"]
    scale = float(head["norm"])
    wanted = head["error"].sel(metric="cov", bound="value").values / scale**2
    np.testing.assert_allclose(curves["error"][curves["metric"] == "cov"], wanted)
    assert head.plot().to_dict()["title"]["text"].endswith("4 replicates")
    with pytest.raises(InputError, match=r"head 9\.0 was not measured"):
        result.head(9, 0)
    assert result.compare(result).different.empty


@pytest.mark.parametrize("mode", ["pooled", "context"])
def test_a_kill_and_workers_leave_the_same_file(mode: str, pool: LocalPool, tmp_path: Path) -> None:
    options = (SMALL if mode == "pooled" else SEQUENCES) | {"heads": [0, 3], "layers": [0, 1]}
    loaded, text = tiny("llama"), [words(2000)]
    whole = probe(loaded, text, mode=mode, out=tmp_path / "whole", **options)
    there = probe(loaded, text, mode=mode, out=tmp_path / "there", executor=pool, **options)
    with stopped_at("-1"):
        probe(loaded, text, mode=mode, out=tmp_path / "killed", **options)
    assert not load(tmp_path / "killed").complete
    again = probe(loaded, text, mode=mode, out=tmp_path / "killed", **options)
    assert again.complete
    for result in (there, again):
        same_numbers(result.data, whole.data)
        assert not list(result.folder.glob("cloud*"))
    assert stored(tmp_path / "whole") == stored(tmp_path / "there")


@pytest.mark.parametrize(
    ("family", "query"),
    [
        ("bert", "encoder.layer.0.attention.self.query"),
        ("llama", "layers.0.self_attn.q_proj"),
    ],
)
def test_scaled_tilts_are_those_of_scaled_weights(family, query):
    decoder = family == "llama"
    tokenizer = decoder_tokenizer() if decoder else encoder_tokenizer()
    options = {"layers": [0], **(SEQUENCES if decoder else SMALL)}
    whole = tiny_model(family).model
    halved = copy.deepcopy(whole)
    name = next(name for name, _ in halved.named_modules() if name.endswith(query))
    with torch.no_grad():
        for parameter in halved.get_submodule(name).parameters():
            parameter *= 0.5
    by_option = probe(wrap_model(whole, tokenizer), [words(1000)], alpha=0.5, **options)
    by_weights = probe(wrap_model(halved, tokenizer), [words(1000)], **options)
    same_numbers(by_option.data, by_weights.data)


BAD = [
    ({"tokens": 5000}, "5000"),
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


def test_command_on_a_folder(tmp_path: Path) -> None:
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
    assert np.shape(as_json["variables"]["tokens"]["values"]) == (2, 4, len(TOLERANCES), 3)
    assert load(out).headline in result.output
    shown = CliRunner().invoke(main, ["show", str(out), "--json"])
    assert json.loads(shown.stdout) == as_json


def test_the_real_encoder():
    """One layer of MiniLM on Python's documentation: exponents near 1/2, as predicted."""
    options = {"tokens": 2048, "layers": [4], "sizes": [64, 128, 256, 512]}
    model = demo_model("demo:minilm")
    result = probe(model, "demo:docs", replicates=16, **options)
    alone = probe(model, "demo:docs", predict=True, **options)
    table = result.table()
    assert len(table) == 12
    assert np.median(np.abs(table["exponent_mean"] - 0.5)) < 0.08
    for metric in ("mean", "cov", "map"):
        # what is left is mostly the noise of 16 samples
        ends = (table[f"exponent_{metric}_{end}"] for end in ("high", "low"))
        noise = np.median(np.subtract(*ends) / 3.92)
        off = table[f"predicted_exponent_{metric}"] - table[f"exponent_{metric}"]
        assert off.abs().median() < 2 * noise, metric
    # the same from one pass; beside measured ones, they have the weights of the fit
    np.testing.assert_array_equal(
        alone["predicted_exponent"].sel(bound="value"), result["curve_exponent"]
    )
