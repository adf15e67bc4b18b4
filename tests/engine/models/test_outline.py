"""A model's outline, from its configuration alone, is that of the model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from esscher.core.errors import InputError
from esscher.engine.models.choice import ModelChoice
from esscher.engine.models.outline import outline_of
from tests.engine.models.folders import configure, save
from tests.engine.models.tiny import MODELS, tiny_model


@pytest.mark.parametrize("name", MODELS)
def test_it_is_read_from_a_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = save(tmp_path, name)
    monkeypatch.setattr("esscher.engine.models.load.load_config", None)  # not by transformers
    outline = outline_of(str(tmp_path))
    if name == "gemma3_text bidirectional":  # transformers halves the window when it loads it
        outline = replace(outline, window=loaded.outline.window)
    assert outline == replace(loaded.outline, name=str(tmp_path))


@pytest.mark.parametrize(
    ("name", "field", "attribute", "value"),
    [
        ("bert", "max_position_embeddings", "max_positions", 512),
        ("roberta", "pad_token_id", "max_positions", 78),
        ("gemma", "head_dim", "head_dim", 256),
        ("mistral", "num_key_value_heads", "key_heads", 8),
        ("gpt2", "n_head", "heads", 12),
    ],
)
def test_what_is_left_out_transformers_knows(name, field, attribute, value, tmp_path: Path) -> None:
    save(tmp_path, name)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config[field]
    path.write_text(json.dumps(config))
    outline = outline_of(str(tmp_path))
    assert getattr(outline if hasattr(outline, attribute) else outline.shape, attribute) == value


def test_no_layers(tmp_path: Path) -> None:
    save(tmp_path, "bert")
    configure(tmp_path, num_hidden_layers=0)
    with pytest.raises(InputError, match="has 0 attention layers; models of 1 to 2000"):
        outline_of(str(tmp_path))


def test_a_bad_type_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="dtype is 'int3'; it must be one of float32"):
        ModelChoice("nowhere", dtype="int3")


def test_lengths_of_passages() -> None:
    outline = tiny_model("bert").outline
    assert (outline.context(None, 512), outline.context(None, 30)) == (80, 30)
    assert outline.context(40, 512) == 40
    with pytest.raises(InputError, match="context is 81, but bert reads at most 80 tokens"):
        outline.context(81, 512)
    outline.check_supported()
    with pytest.raises(InputError, match="is a causal BigBird model"):
        tiny_model("big_bird", is_decoder=True).outline.check_supported()
