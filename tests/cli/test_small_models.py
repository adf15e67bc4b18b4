"""Models that read few tokens: commands work with their defaults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from esscher.cli.program import main
from tests.engine.models.folders import WORDS, decoder_tokenizer, save

#: Few layers, heads, passages and replicates; lengths, sizes and budgets are left to the command.
HEADS = ("--layers", "0", "--heads", "0-1", "--replicates", "4")
COMMANDS = {
    "probe": ("--mode", "pooled", *HEADS, "--tokens", "1000"),
    "probe context": ("--mode", "context", *HEADS),
    "sparse": ("--layers", "0", "--passages", "2"),
    "deep": ("--passages", "2"),
    "plan": ("--budget", "0.25", "--passages", "2"),
    "context": ("--passages", "2"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Encoders and decoders that read few tokens, and a text."""
    folder = tmp_path_factory.mktemp("small")
    for length in (64, 256):
        for kind in ("bert", "llama"):
            target = folder / f"{kind}-{length}"
            save(target, kind, max_position_embeddings=length)
            if kind == "llama":
                decoder_tokenizer().save_pretrained(target)
    words = np.random.default_rng(0).choice(WORDS, size=12_000)
    (folder / "text.txt").write_text(" ".join(words))
    return folder


@pytest.mark.parametrize("length", [64, 256])
@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize("command", COMMANDS)
def test_defaults_work(command: str, kind: str, length: int, place: Path) -> None:
    if command in ("context", "plan") and kind == "bert":
        pytest.skip("plans and context lengths are for decoders")
    name = command.split()[0]
    model, text = str(place / f"{kind}-{length}"), str(place / "text.txt")
    result = CliRunner().invoke(main, [name, model, "--text", text, *COMMANDS[command]])
    assert result.exit_code == 0, result.output
