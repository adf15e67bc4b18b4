"""``esscher tails`` as a user meets it: tables, JSON, figures, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from esscher.cli.program import main
from tests.engine.models.folders import random_words, save


def run(*arguments: str):
    return CliRunner().invoke(main, ["tails", *arguments])


def test_command_on_a_folder(tmp_path: Path):
    save(tmp_path / "model")
    (tmp_path / "text.txt").write_text(random_words())
    options = ["--text", str(tmp_path / "text.txt"), "--tokens", "1200", "--context", "48",
               "--layers", "0-1", "--heads", "0,2", "--out", str(tmp_path / "run")]  # fmt: skip
    figure = tmp_path / "new" / "tails.png"
    result = run(str(tmp_path / "model"), *options, "--figure", str(figure))
    assert result.exit_code == 0, result.output
    for words in ("sub-Gaussian", "proxy", "kappa", "hidden states", "not judged"):
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
    (tmp_path / "text.txt").write_text(random_words(1000))
    places = {"text": str(tmp_path / "text.txt"), "model": str(tmp_path / "model")}
    out = tmp_path / "run"
    result = run(*(a.format(**places) for a in arguments), "--out", str(out))
    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ")
    assert "Traceback" not in result.output
    assert not out.exists()
