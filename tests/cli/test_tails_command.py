"""``esscher tails`` as a user meets it: tables, JSON, figures, resuming, errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import esscher
import esscher.studies.tails.work as working
from esscher.cli.program import main
from esscher.core.errors import InputError
from esscher.engine.models import wrap_model
from esscher.math.tails import VERDICTS
from tests.engine.models.folders import WORDS, decoder_tokenizer, encoder_tokenizer, save
from tests.engine.models.tiny import tiny_model

SMALL = {"tokens": 1200, "context": 48}


def run(*arguments: str):
    return CliRunner().invoke(main, ["tails", *arguments])


def text(count=2500, seed=0):
    """Words in random order: tokens of a real text do not repeat with a period."""
    return " ".join(np.random.default_rng(seed).choice(WORDS, size=count))


def tiny(name="bert"):
    model = tiny_model(name)
    tokenizer = decoder_tokenizer() if model.family.decoder else encoder_tokenizer()
    return wrap_model(model.model, tokenizer, name=name)


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2"])
def test_results_have_everything(name, tmp_path):
    found = esscher.tails(tiny(name), [text()], layers=[0, 1], out=tmp_path / "run", **SMALL)
    assert isinstance(found, esscher.results.Tails)
    assert found.complete
    assert [(h.layer, h.head) for h in found.heads] == [
        (layer, head) for layer in (0, 1) for head in range(4)
    ]
    for head in found.heads:
        assert head.verdict in VERDICTS
        assert head.key_head == (head.head if name == "bert" else head.head // 2)
        assert head.with_delimiters.tokens > head.tokens
    if name == "llama":  # grouped keys: the same keys, other logits
        one, two = found.head(0, 0), found.head(0, 1)
        assert one.tail == two.tail
        assert one.logits != two.logits
    json.dumps(found.to_dict(), allow_nan=False)
    assert len(found.table()) == 8
    assert len(found.layers_table()) == 2
    assert "heads" in repr(found)
    assert "<table" in found._repr_html_()
    assert esscher.load(tmp_path / "run").to_dict() == found.to_dict()


def test_a_stopped_run_resumes_to_the_same(tmp_path, monkeypatch):
    loaded, source = tiny(), [text()]
    whole = esscher.tails(loaded, source, heads=[1], **SMALL)
    measured = working.measure_layer

    def fails(layer, *arguments):
        if layer == 1:
            raise KeyboardInterrupt
        return measured(layer, *arguments)

    monkeypatch.setattr(working, "measure_layer", fails)
    with pytest.raises(KeyboardInterrupt):
        esscher.tails(loaded, source, heads=[1], out=tmp_path / "run", **SMALL)
    monkeypatch.undo()
    assert not esscher.load(tmp_path / "run").complete
    again = esscher.tails(loaded, source, heads=[1], out=tmp_path / "run", **SMALL)
    assert again.complete
    assert again.heads == whole.heads
    with pytest.raises(InputError, match="seed: stored 0, now 1"):
        esscher.tails(loaded, source, heads=[1], seed=1, out=tmp_path / "run", **SMALL)


def test_layers_in_groups_give_the_same(monkeypatch):
    """Few bytes at a time: one pass over the text per layer, and the same numbers."""
    from esscher.studies.tails import collect

    options = SMALL | {"layers": [0, 2], "heads": [2]}
    together = esscher.tails(tiny(), [text()], **options)
    monkeypatch.setattr(collect, "HELD", 1)
    assert esscher.tails(tiny(), [text()], **options).heads == together.heads


def test_command_on_a_folder(tmp_path: Path):
    save(tmp_path / "model")
    (tmp_path / "text.txt").write_text(text())
    options = ["--text", str(tmp_path / "text.txt"), "--tokens", "1200", "--context", "48",
               "--layers", "0-1", "--heads", "0,2", "--out", str(tmp_path / "run")]  # fmt: skip
    figure = tmp_path / "new" / "tails.png"
    result = run(str(tmp_path / "model"), *options, "--figure", str(figure))
    assert result.exit_code == 0, result.output
    for words in ("sub-Gaussian", "proxy", "what it means", "hidden states"):
        assert words in result.output.replace("\n", " ")
    assert figure.stat().st_size > 10_000
    as_json = json.loads(run(str(tmp_path / "model"), *options, "--json").stdout)
    assert len(as_json["heads"]) == 4
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "run"), "--json"])
    assert json.loads(shown.stdout) == as_json
    listed = json.loads(CliRunner().invoke(main, ["ls", str(tmp_path), "--json"]).stdout)["runs"]
    assert [(r["run"], r["kind"], r["state"]) for r in listed] == [("run", "tails", "complete")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("demo:nothing",), "demo:nothing"),
        (("{model}", "--text", "none.txt"), "none.txt"),
        (("{model}", "--text", "{text}", "--tokens", "300"), "tokens is 300"),
        (("{model}", "--text", "{text}", "--tokens", "9000"), "9000"),
        (("{model}", "--text", "{text}", "--tokens", "600", "--context", "500"), "at most"),
        (("{model}", "--text", "{text}", "--layers", "x"), "--layers is 'x'"),
        (("{model}", "--text", "{text}", "--heads", "9"), "heads contains 9"),
        (("{model}", "--text", "{text}", "--seed", "-1"), "seed is -1"),
        (("{model}", "--text", "{text}", "--figure", "a.gif"), "must end in"),
    ],
)
def test_bad_commands(arguments, words, tmp_path):
    save(tmp_path / "model")
    (tmp_path / "text.txt").write_text(text(1000))
    places = {"text": str(tmp_path / "text.txt"), "model": str(tmp_path / "model")}
    out = tmp_path / "run"
    result = run(*(a.format(**places) for a in arguments), "--out", str(out))
    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ")
    assert "Traceback" not in result.output
    assert not out.exists()
