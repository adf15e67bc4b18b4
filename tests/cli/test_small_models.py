"""Models that read few tokens: commands work with their defaults, or their advice does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from esscher.cli.program import main
from esscher.core.errors import InputError
from esscher.engine.models.outline import Outline, described
from esscher.studies.sparse import SparseStudy
from tests.engine.models.folders import WORDS, decoder_tokenizer, save
from tests.engine.models.tiny import tiny_model

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


def refusal(model: Outline, **options: object) -> str:
    """What sparse says against a request; nothing if it is taken."""
    try:
        SparseStudy(model="tiny", **options).resolve(model)  # type: ignore[arg-type]
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("length", [24, 40, 64, 256])
@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize("budgets", [None, (8, 20)])
def test_advice_can_be_followed(budgets: object, kind: str, length: int) -> None:
    """A length that is asked for is the shortest that works; where none is, none works."""
    fields = tiny_model(kind).model.config.to_dict() | {"max_position_embeddings": length}
    model = described("tiny", fields)
    for context in (5, 17):
        said = refusal(model, context=context, budgets=budgets)
        advice = re.search(r"context of at least (\d+)", said)
        if advice is None:
            assert "budgets" in said
            assert refusal(model, context=model.max_positions, budgets=budgets)
        else:
            needed = int(advice[1])
            assert not refusal(model, context=needed, budgets=budgets)
            assert refusal(model, context=needed - 1, budgets=budgets)
