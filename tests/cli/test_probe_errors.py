"""``esscher probe`` with things that are wrong: one line, exit code 2, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from esscher.cli.program import main
from tests.engine.models.folders import encoder_tokenizer, save, words
from tests.engine.models.tiny import tiny_model, transformers

SMALL = ("--tokens", "300", "--context", "32", "--sizes", "16:64:3", "--replicates", "2")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(words(2000))
    return path


def refused(model: Path, text: Path, *said: str) -> None:
    """The command ends with code 2, says what is wrong, and leaves no directory behind."""
    out = model.parent / "run"
    result: Result = CliRunner().invoke(
        main, ["probe", str(model), "--text", str(text), *SMALL, "--out", str(out)]
    )
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    for words_ in said:
        assert words_ in result.output.replace("\n", " ")
    assert not out.exists()


def test_empty_text(model: Path, text: Path) -> None:
    text.write_text("")
    refused(model, text, "text.txt")


def test_text_that_is_too_short(model: Path, text: Path) -> None:
    text.write_text(words(100))
    refused(model, text, "100", "300")


def test_no_text(model: Path, tmp_path: Path) -> None:
    refused(model, tmp_path / "nowhere.txt", "nowhere.txt")


def test_no_attention_layers(model: Path, text: Path) -> None:
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=0, num_attention_heads=4)
    transformers.BertModel(config).save_pretrained(model)
    refused(model, text, "has no attention layers")


def test_damaged_weights(model: Path, text: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused(model, text, "model.safetensors is damaged")


def test_a_folder_that_is_no_model(tmp_path: Path, text: Path) -> None:
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", text, "folder")


def test_weights_that_are_not_numbers(tmp_path: Path, text: Path) -> None:
    loaded = tiny_model("bert")
    with torch.no_grad():
        loaded.model.encoder.layer[1].attention.self.query.weight[0, 3] = torch.nan
    loaded.model.save_pretrained(tmp_path / "model")
    encoder_tokenizer().save_pretrained(tmp_path / "model")
    refused(tmp_path / "model", text, "not finite")


def test_a_context_beyond_the_model(model: Path, text: Path) -> None:
    result = CliRunner().invoke(
        main, ["probe", str(model), "--text", str(text), "--context", "100000"]
    )
    assert result.exit_code == 2
    assert "reads at most" in result.output
