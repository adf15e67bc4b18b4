"""Guides for people with a model of their own: their commands in turn, on a tiny Llama."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from esscher.cli.program import main
from tests.docs.pages import ROOT, blocks, command_lines
from tests.engine.models.folders import decoder_tokenizer, random_words, save

#: What makes a command small; the last value of an option counts.
SMALLER = {
    "probe": "--context 64 --sizes 8,16,32 --replicates 4",
    "plan": "--prefix 120 --passages 3 --check-passages 2",
    "context": "--context 128 --passages 2",
    "generate": "--max-new-tokens 6",
    "theory": "--sizes 1e3:1e4 --replicates 20",
}
#: Tasks are made of words and numbers that the tiny model's tokenizer does not know.
LEFT_OUT = ("--tasks", "needle,quote")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    save(tmp_path / "my-llama", "llama", max_position_embeddings=256)
    decoder_tokenizer().save_pretrained(tmp_path / "my-llama")
    for number, name in enumerate(("a.txt", "b.txt", "other.txt")):
        (tmp_path / name).write_text(random_words(2500, seed=number))
    (tmp_path / "prompt.txt").write_text(random_words(150))
    (tmp_path / "long.txt").write_text(random_words(2500, seed=9))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def smaller(words: list[str], place: Path) -> list[str]:
    """Return a command of a guide as the tiny model can bear it."""
    words = [word for word in words if word not in LEFT_OUT]
    if words[0] == "generate":  # the prompt of a guide is longer than what the model reads
        words = ["prompt.txt" if word == "long.txt" else word for word in words]
    if words[0] == "theory" and "--regimes" in words:
        return words
    return words + SMALLER.get(words[0], "").split()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("guide", ["my-model", "long-contexts"])
def test_the_commands_of_a_guide_run(guide: str, here: Path) -> None:
    text = (ROOT / "docs" / "guides" / f"{guide}.md").read_text(encoding="utf-8")
    commands = [words for _, words in command_lines(text)]
    assert len(commands) >= 6
    if guide == "long-contexts":  # the probe that it places was made in the other guide
        commands.insert(0, ["probe", "./my-llama", "--text", "a.txt", "--out", "runs/probe"])
    for words in commands:
        done = CliRunner().invoke(main, smaller(words, here))
        assert done.exit_code == 0, (words, done.output, done.exception)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_python_of_the_guide_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/guides/my-model.md").read_text(encoding="utf-8")
    plan = ["plan", "./my-llama", "--text", "a.txt", "--budget", "0.5", "--save", "plan.json"]
    assert CliRunner().invoke(main, smaller(plan, here)).exit_code == 0
    (code,) = (block.text for block in blocks(text) if block.language == "python")
    exec(compile(code, "my-model.md", "exec"), {})
    assert "bytes instead of" in capsys.readouterr().out
