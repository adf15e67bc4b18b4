"""Commands of studies of a model: tables, figures, JSON, stored runs, and how they are stopped."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.printed import before_next, run
from tests.engine.models.folders import WORDS, decoder_tokenizer, save

#: Commands that are quick, and words of their tables.
COMMANDS = {
    "probe encoder --text a.txt --tokens 300 --context 32 --sizes 16:64:3 --replicates 4": "",
    "deep encoder --text a.txt --context 40 --passages 2 --sizes 4:24:3": "Exponent of the damage",
    "tails encoder --text a.txt --tokens 1200 --context 48 --layers 0-1 --heads 0,2": "kappa",
    "sparse encoder --text a.txt --layers 0 --context 64 --passages 2 --patterns window": "random",
    "domains encoder --text plain=a.txt --text ../few=b.txt --blocks 6 --block-tokens 60 "
    "--context 64 --layers 0 --heads 1,2": "../few",
    "context decoder --text a.txt --context 48 --passages 2": "",
    "plan decoder --text a.txt --check b.txt --budget 0.5 --prefix 40 --passages 2 "
    "--check-passages 3 --against streaming --save plan.json": "streaming",
}
PROBE = "probe encoder --text a.txt --tokens 300 --context 32 --sizes 16:64:3 --replicates 2"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder, a decoder and two texts."""
    folder = tmp_path_factory.mktemp("place")
    save(folder / "encoder")
    save(folder / "decoder", "llama")
    decoder_tokenizer().save_pretrained(folder / "decoder")
    for seed, name in enumerate(("a.txt", "b.txt")):
        rng = np.random.default_rng(seed)
        (folder / name).write_text(" ".join(rng.choice(WORDS[: 9 + 90 * (1 - seed)], size=1500)))
    return folder


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_tables_json_and_stored_runs_agree(command: str, here: Path, tmp_path: Path) -> None:
    kind, out, figure = command.split()[0], tmp_path / "run", tmp_path / "new" / "figure.png"
    result = run(*command.split(), "--out", out, "--figure", figure)
    assert result.exit_code == 0, result.output
    assert COMMANDS[command] in result.output
    assert "…" not in result.output
    assert figure.stat().st_size > 10_000
    again = json.loads(run(*command.split(), "--out", out, "--json").stdout)
    assert again == json.loads(run("show", out, "--json").stdout)
    assert again["kind"] == kind
    assert again["headline"] in " ".join(result.output.split())
    shown = run("show", out)
    assert shown.exit_code == 0
    assert before_next(shown.output) in result.output
    listed = json.loads(run("ls", tmp_path, "--json").stdout)["runs"]
    assert [(row["run"], row["kind"], row["state"]) for row in listed] == [
        ("run", kind, "complete")
    ]
    if kind == "plan":
        assert json.loads((here / "plan.json").read_text())["kind"] == "plan"
    other = run(*command.split(), "--out", out, "--seed", "1")
    assert other.exit_code == 2
    assert "seed: stored 0, now 1" in other.output


@pytest.mark.parametrize("fault", ["short text", "damaged weights"])
def test_nothing_is_stored_for_models_and_texts_that_cannot_be_used(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "encoder")
    (tmp_path / "a.txt").write_text(" ".join(WORDS[:40] if fault == "short text" else WORDS * 20))
    weights, message = tmp_path / "encoder" / "model.safetensors", "300"
    if fault == "damaged weights":
        weights.write_bytes(weights.read_bytes()[:-100])
        message = "its files are damaged or incomplete"
    result = run(*PROBE.split(), "--out", "run")
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "run").exists()
