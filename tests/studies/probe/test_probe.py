"""Whole probes: results, resuming, bad input, and the real encoder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from esscher.cli.program import main
from esscher.core.errors import InputError
from esscher.engine.models import wrap_model
from esscher.studies.probe import Probe, load_probe, probe
from esscher.studies.probe.combine import average
from tests.engine.models.demo import demo_model
from tests.engine.models.folders import decoder_tokenizer, encoder_tokenizer, save
from tests.engine.models.tiny import tiny_model
from tests.engine.text.test_passages import words
from tests.runs.stopped import stopped_at

SEQUENCES = {"context": 64, "tokens": 192, "sizes": [4, 8, 16], "replicates": 6}
SMALL = {"tokens": 300, "context": 32, "sizes": [16, 32, 64, 128], "replicates": 6}


def tiny(name="bert"):
    model = tiny_model(name)
    tokenizer = decoder_tokenizer() if model.family.decoder else encoder_tokenizer()
    return wrap_model(model.model, tokenizer, name=name)


def run(*arguments: str):
    return CliRunner().invoke(main, ["probe", *arguments])


@pytest.mark.parametrize("mode", ["pooled", "context"])
@pytest.mark.parametrize("name", ["bert", "llama", "gemma2"])
def test_results_have_everything(name, mode, tmp_path):
    # the second layer of the tiny Gemma is the one without a window
    layers = [1] if name == "gemma2" else [0, 2]
    options = (SMALL if mode == "pooled" else SEQUENCES) | {"layers": layers}
    found = probe(tiny(name), [words(2000)], mode=mode, out=tmp_path / "run", **options)
    assert isinstance(found, Probe)
    assert found.complete
    assert [(h["layer"], h["head"]) for h in found.heads] == [
        (layer, head) for layer in layers for head in range(4)
    ]
    json.dumps(found.to_dict(), allow_nan=False)
    for head in found.heads:
        assert {"horizon", "frobenius", "khat", "predicted", "ess", "sinks", "tokens_for",
                "flags", "fit", "psi", "tau", "spectrum"} <= set(head)  # fmt: skip
        for metric in ("mean", "cov", "map"):
            assert {"exponent", "interval", "law", "trusted", "predicted", "paper_reference",
                    "paper_bound"} <= set(head["fit"][metric])  # fmt: skip
        assert set(head["tokens_for_interval"]) == set(head["tokens_for"])
        for tolerance, value in head["tokens_for"].items():
            low, high = head["tokens_for_interval"][tolerance]
            assert value is None or low is not None
            if None not in (low, value, high):
                assert low <= value <= high
        assert head["reference"]["share"]["mean"] == 0  # all tokens are queries
    assert list(found.to_frame()["reference_share"]) == [0] * len(found.heads)
    assert len(found.results["layers"]) == len(layers)
    for layer in found.results["layers"]:
        together = layer["heads_together"]
        assert np.shape(together["correlation"]) == (4, 4)
        assert 1 <= together["effective_heads"]["value"] <= 4
        assert 0 <= together["amplification"]["value"] <= 4
        assert len(together["by_size"]) == len(options["sizes"])
        assert together["fit_projected"]["exponent"] == together["exponents"]["projected"]
    assert list(found.layers_frame()["layer"]) == layers
    frame = found.to_frame()
    assert len(frame) == 4 * len(layers)
    assert f"of {len(frame)} heads converge like" in found.headline
    assert repr(found).splitlines()[0] == found.headline
    assert len(repr(found).splitlines()) == 2 + len(frame)
    assert found._repr_html_().count("<tr") == 1 + len(frame)
    assert load_probe(tmp_path / "run").to_dict() == found.to_dict()


@pytest.mark.parametrize("mode", ["pooled", "context"])
def test_a_killed_probe_resumes_to_the_same(mode, tmp_path):
    options = SMALL if mode == "pooled" else SEQUENCES
    loaded, text = tiny("llama"), [words(2000)]
    whole = probe(loaded, text, mode=mode, **options)
    with stopped_at("-1"):
        probe(loaded, text, mode=mode, out=tmp_path / "run", **options)
    partial = load_probe(tmp_path / "run")
    assert not partial.complete
    again = probe(loaded, text, mode=mode, out=tmp_path / "run", **options)
    assert again.complete
    assert again.results["heads"] == whole.results["heads"]
    assert not list((tmp_path / "run").glob("cloud*"))


def test_another_configuration_is_refused(tmp_path):
    loaded, text, out = tiny(), [words(1000)], tmp_path / "run"
    probe(loaded, text, out=out, layers=[0], **SMALL)
    with pytest.raises(InputError, match="seed: stored 0, now 1"):
        probe(loaded, text, out=out, layers=[0], seed=1, **SMALL)


def test_a_run_of_another_layout_is_refused(tmp_path):
    loaded, text, out = tiny(), [words(1000)], tmp_path / "run"
    probe(loaded, text, out=out, layers=[0], heads=[1], **SMALL)
    assert load_probe(out).results["layers"][0]["heads_together"] is None
    config = json.loads((out / "config.json").read_text())
    del config["configuration"]["layout"]
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="layout 1"):
        load_probe(out)
    with pytest.raises(InputError, match="layout: stored null, now 2"):
        probe(loaded, text, out=out, layers=[0], heads=[1], **SMALL)


def test_a_damaged_part_is_named(tmp_path):
    loaded, text, out = tiny(), [words(1000)], tmp_path / "run"
    probe(loaded, text, out=out, layers=[0], **SMALL)
    part = out / "parts" / "layer-0.parquet"
    part.write_bytes(part.read_bytes()[:-7])
    with pytest.raises(InputError, match="layer-0"):
        load_probe(out)


def test_samples_without_replacement_are_corrected():
    """Errors shrink to 0 as n reaches N; divided by the factor, they stay those of the law."""
    loaded, text = tiny(), [words(1000)]
    options = SMALL | {"sizes": [32, 290], "replicates": 40, "layers": [1]}
    with_, without = (
        probe(loaded, text, sampling=kind, **options).results["layers"][0]["curve"]["mean"]
        for kind in ("with", "without")
    )
    ratio = np.array(without["mean"]) / with_["mean"]
    noise = np.hypot(
        np.array(without["standard_error"]) / without["mean"],
        np.array(with_["standard_error"]) / with_["mean"],
    )
    # queries are the sample's own tokens, so that the factor holds to first order only
    assert np.all(np.abs(ratio - 1) < 4 * noise + 0.25)


def test_average():
    assert average([{"a": 1, "b": [1.0, 2.0]}, {"a": 3, "b": [3.0, 4.0]}]) == {
        "a": 2.0,
        "b": [2.0, 3.0],
    }
    assert average([None, 1.0]) is None
    assert average([True, False, True]) is True
    assert average(["x", "y"]) == "x"


BAD = [
    ({"mode": "deep"}, "mode is 'deep'"),
    ({"sampling": "some"}, "sampling is 'some'"),
    ({"context": 500}, "reads at most"),
    ({"tokens": 5000}, "5000"),
    ({"tokens": 39, "sizes": None}, "at least 40 for a curve"),
    ({"layers": [7]}, "layers"),
    ({"heads": [9]}, "heads"),
    ({"seed": -1}, "seed is -1"),
    ({"replicates": 0}, "replicates"),
    ({"sampling": "without", "sizes": [10, 300]}, "without replacement"),
]


@pytest.mark.parametrize(("change", "words_"), BAD)
def test_bad_input_is_refused(change, words_, tmp_path):
    with pytest.raises(InputError, match=words_):
        probe(tiny(), [words(1000)], out=tmp_path / "run", **(SMALL | change))
    assert not (tmp_path / "run").exists()


def test_command_on_a_folder(tmp_path: Path):
    save(tmp_path / "model")
    (tmp_path / "text.txt").write_text(words(1000))
    options = ["--text", str(tmp_path / "text.txt"), "--tokens", "300", "--context", "32",
               "--sizes", "16:128:4", "--replicates", "5", "--layers", "0-1"]  # fmt: skip
    figure, out = tmp_path / "heads.png", tmp_path / "run"
    layers = tmp_path / "layers.png"
    result = run(str(tmp_path / "model"), *options, "--out", str(out), "--figure", str(figure),
                 "--figure-layers", str(layers))  # fmt: skip
    assert result.exit_code == 0, result.output
    assert layers.stat().st_size > 10_000
    assert "Heads together" in result.output
    assert figure.stat().st_size > 10_000
    as_json = json.loads(run(str(tmp_path / "model"), *options, "--out", str(out), "--json").stdout)
    assert len(as_json["heads"]) == 8
    assert load_probe(out).headline in result.output
    shown = CliRunner().invoke(main, ["show", str(out), "--json"])
    assert json.loads(shown.stdout) == as_json
    assert "k-hat" in CliRunner().invoke(main, ["show", str(out)]).output
    listed = json.loads(CliRunner().invoke(main, ["ls", str(tmp_path), "--json"]).stdout)["runs"]
    assert [(r["run"], r["kind"], r["state"]) for r in listed] == [("run", "probe", "complete")]


@pytest.mark.parametrize(
    ("arguments", "words_"),
    [
        (("{empty}",), "not a model"),
        (("demo:nothing",), "demo:nothing"),
        (("{model}", "--text", "{empty}/none.txt"), "none.txt"),
        (("{model}", "--layers", "x"), "--layers is 'x'"),
        (("{model}", "--layers", "3-1"), "runs backwards"),
        (("{model}", "--figure", "a.gif"), "must end in"),
        (("{model}", "--figure-layers", "a.gif"), "--figure-layers a.gif: the name must end in"),
        (("{model}", "--figure-layers", "a.png", "--heads", "1"), "at least 2 heads"),
        (("{model}", "--figure-layers", "a.png", "--replicates", "3"), "and 4 replicates"),
    ],
)
def test_bad_commands(arguments, words_, tmp_path):
    save(tmp_path / "model")
    (tmp_path / "empty").mkdir()
    places = {"empty": str(tmp_path / "empty"), "model": str(tmp_path / "model")}
    result = run(*(a.format(**places) for a in arguments))
    assert result.exit_code == 2
    assert words_ in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


def test_the_real_encoder():
    """One layer of MiniLM on Python's documentation: exponents near 1/2, map predicted exactly."""
    found = probe(demo_model("demo:minilm"), "demo:docs", tokens=2048, layers=[4],
                  sizes=[64, 128, 256, 512], replicates=16)  # fmt: skip
    table = found.to_frame()
    assert len(table) == 12
    assert np.median(np.abs(table["mean"] - 0.5)) < 0.08
    # exact up to the queries' own keys, noise of 16 samples and 24 queries
    assert (table["predicted_map"] - table["map"]).abs().median() < 0.05
    assert table["delimiters"].between(0, 1).all()
