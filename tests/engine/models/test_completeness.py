"""Weights that a folder lacks: refused by name when a measurement uses them, and never made up."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from esscher.core.errors import InputError
from esscher.engine.models.load import load_model
from tests.engine.models.folders import configure, save
from tests.engine.models.gguf_files import (
    FLOAT32,
    LIST,
    STRING,
    UINT32,
    entry,
    gguf_bytes,
    strings,
)
from tests.engine.models.tiny import VISION, final_output, tiny_batch, tiny_model

#: One of each way in which models store their weights.
STORED = ("bert", "distilbert", "mpnet", "gpt2", "llama", "gemma3")


def change(folder, edit):
    """Rewrite a folder's weights."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("name", STORED)
def test_every_weight_that_is_used_must_be_there(name, tmp_path):
    """Weights outside the layers and of the first one are left out one by one."""
    save(tmp_path, name)
    sound = (tmp_path / "model.safetensors").read_bytes()
    for key in load_file(tmp_path / "model.safetensors"):
        if ".1." in key or ".2." in key:
            continue
        (tmp_path / "model.safetensors").write_bytes(sound)
        change(tmp_path, lambda tensors, key=key: tensors.pop(key))
        if "pooler" in key or "vision_tower" in key or "multi_modal_projector" in key:
            load_model(str(tmp_path))
            continue
        with pytest.raises(InputError, match=r"the weights of .* lack") as caught:
            load_model(str(tmp_path))
        assert ".".join(key.split(".")[-2:]) in str(caught.value), (key, str(caught.value))


@pytest.mark.parametrize("name", ["bert", "big_bird"])
def test_a_model_without_pooler_is_the_same_each_time(name, tmp_path):
    """transformers draws the pooler at random; nothing uses it, but the hash saw it."""
    saved = save(tmp_path, name)
    change(tmp_path, lambda tensors: [tensors.pop(key) for key in [*tensors] if "pooler" in key])
    first, second = load_model(str(tmp_path)), load_model(str(tmp_path))
    assert first.weight_hash == second.weight_hash
    batch = tiny_batch(saved)
    assert torch.equal(final_output(first, batch), final_output(saved, batch))


@pytest.mark.parametrize("kept", ["lm_head.weight", "model.embed_tokens.weight"])
def test_tied_weights_are_stored_once(kept, tmp_path):
    saved = save(tmp_path, "llama", tie_word_embeddings=True)
    table = saved.model.lm_head.weight.detach().clone()

    def edit(tensors):
        tensors.pop("lm_head.weight", None)
        tensors.pop("model.embed_tokens.weight", None)
        tensors[kept] = table

    change(tmp_path, edit)
    assert load_model(str(tmp_path)).weight_hash == saved.weight_hash
    change(tmp_path, lambda tensors: tensors.pop(kept))
    with pytest.raises(InputError, match=r"lack 'lm_head.weight', 'model.embed_tokens.weight'"):
        load_model(str(tmp_path))


def test_an_encoder_inside_a_larger_model(tmp_path):
    """Files of a masked language model have a prefix, a head on top and no pooler."""
    saved = save(tmp_path, "bert")

    def edit(tensors):
        for key in [*tensors]:
            tensor = tensors.pop(key)
            if "pooler" not in key:
                tensors[f"bert.{key}"] = tensor
        tensors["cls.predictions.bias"] = torch.zeros(60)

    change(tmp_path, edit)
    batch = tiny_batch(saved)
    assert torch.equal(final_output(load_model(str(tmp_path)), batch), final_output(saved, batch))
    change(tmp_path, lambda tensors: tensors.pop("bert.embeddings.word_embeddings.weight"))
    with pytest.raises(InputError, match=r"lack 'embeddings.word_embeddings.weight'"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("bert", "embeddings.word_embeddings.weight"),
        ("llama", "lm_head.weight"),
        ("gpt2", "transformer.h.0.attn.c_attn.bias"),
        ("bert", "pooler.dense.bias"),
    ],
)
def test_weights_of_another_shape(name, key, tmp_path):
    save(tmp_path, name)

    def edit(tensors):
        (name,) = (stored for stored in tensors if key.endswith(stored))
        tensors[name] = tensors[name][:-2].clone()

    change(tmp_path, edit)
    with pytest.raises(InputError, match=f"do not fit: '{key}' has the shape") as caught:
        load_model(str(tmp_path))
    assert "\n" not in str(caught.value)


HUGE = [
    ("llama", {"vocab_size": 60_000_000}, "embed_tokens.weight"),
    ("bert", {"max_position_embeddings": 2**30}, "position_embeddings.weight"),
    ("gemma3", {"vision_config": VISION | {"image_size": 400_000}}, "position_embedding"),
]


@pytest.mark.parametrize(("name", "fields", "named"), HUGE)
def test_sizes_that_the_files_do_not_hold(name, fields, named, tmp_path):
    """Refused before memory is taken for them: nothing of the configuration is built."""
    save(tmp_path, name)
    configure(tmp_path, **fields)
    with pytest.raises(InputError, match=r"asks for .* numbers") as caught:
        load_model(str(tmp_path))
    assert named in str(caught.value)
    assert "and its weights have at most" in str(caught.value)


def llama_gguf(path, *, without=(), vocabulary=60, **shapes):
    """A GGUF file of the tiny Llama model with one layer, as llama.cpp's converter writes it."""
    model = tiny_model("llama", num_hidden_layers=1).model
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    tensors = {}
    for key, weight in model.state_dict().items():
        stem = key.removeprefix("model.layers.0.").removesuffix(".weight")
        block = "blk.0." if "layers" in key else ""
        name = f"{block}{names[stem]}.weight"
        if name not in without:
            tensors[name] = shapes.get(names[stem], weight.numpy())
    words = ["t", "h", "th", *(f"w{i}" for i in range(3, 60))]
    entries = [
        entry("general.architecture", STRING, "llama"),
        entry("general.name", STRING, "tiny"),
        *(
            entry(f"llama.{name}", UINT32, value)
            for name, value in {
                "block_count": 1,
                "context_length": 80,
                "embedding_length": 32,
                "feed_forward_length": 24,
                "attention.head_count": 4,
                "attention.head_count_kv": 2,
                "rope.dimension_count": 8,
                "attention.key_length": 8,
                "vocab_size": vocabulary,
            }.items()
        ),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-6),
        entry("tokenizer.ggml.model", STRING, "gpt2"),
        entry("tokenizer.ggml.tokens", LIST, strings(words)),
        entry("tokenizer.ggml.merges", LIST, strings(["t h"])),
        entry("tokenizer.ggml.bos_token_id", UINT32, 1),
        entry("tokenizer.ggml.eos_token_id", UINT32, 2),
    ]
    path.write_bytes(gguf_bytes(entries, tensors))
    return path


def test_gguf_files_that_lack_tensors(tmp_path):
    path = tmp_path / "model.gguf"
    loaded = load_model(str(llama_gguf(path)))
    assert loaded.shape.layers == 1
    for missing, named in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
    ):
        with pytest.raises(InputError, match=f"lack '{named}'"):
            load_model(str(llama_gguf(path, without=(missing,))))
    with pytest.raises(InputError, match=r"do not fit: 'model.norm.weight' has the shape"):
        load_model(str(llama_gguf(path, output_norm=np.ones(30))))
    with pytest.raises(InputError, match=r"asks for .* numbers"):
        load_model(str(llama_gguf(path, vocabulary=60_000_000)))
