"""Settings in a model's folder that would load code or other files, in whatever form."""

from __future__ import annotations

import json

import pytest

from esscher.core.errors import InputError
from esscher.engine.models.load import load_model
from tests.engine.models.folders import save

KERNEL = "somebody/kernel"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    save(folder)
    return folder


@pytest.fixture
def edit(saved):
    """Change a settings file of the folder, which is put back afterwards."""
    sound = {path: path.read_bytes() for path in saved.iterdir()}

    def change(file, **fields):
        path = saved / file
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | fields))

    yield change
    for path in saved.iterdir():
        if path in sound:
            path.write_bytes(sound[path])
        else:
            path.unlink()


CODE = [
    ({"_attn_implementation": KERNEL}, "_attn_implementation is 'somebody/kernel'"),
    ({"_attn_implementation": {"": KERNEL}}, "_attn_implementation. is 'somebody/kernel'"),
    ({"attn_implementation": [KERNEL]}, "is 'somebody/kernel'"),
    ({"text_config": {"_attn_implementation": {"": KERNEL}}}, "is 'somebody/kernel'"),
    ({"attn_implementation": "flash_attention_2"}, "would load code"),
    ({"experts_implementation": {"": "sonicmoe"}}, "would load code"),
    ({"use_kernels": True}, "use_kernels is True, which would load code"),
    ({"kernel_config": {"kernel_mapping": {"RMSNorm": f"{KERNEL}:Norm"}}}, "would load code"),
    ({"custom_generate": KERNEL}, "would load code"),
    ({"auto_map": {"AutoModel": "evil.M"}}, "names code that comes with the model"),
    ({"text_config": {"auto_map": {"AutoConfig": "evil.C"}}}, "names code"),
    ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "the weights are packed"),
]


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(("fields", "message"), CODE)
def test_code_is_refused_in_any_form(file, fields, message, edit, saved):
    edit(file, **fields)
    with pytest.raises(InputError, match=message) as caught:
        load_model(str(saved))
    assert str(saved / file) in str(caught.value)
    assert "remove the field" in str(caught.value) or "GGUF file" in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"_attn_implementation": "sdpa"},
        {"attn_implementation": {"": "eager"}},
        {"attn_implementation": None, "use_kernels": False, "quantization_config": None},
        {"transformers_weights": "model.safetensors"},
    ],
)
def test_what_is_no_code_is_read(fields, edit, saved):
    edit("config.json", **fields)
    assert load_model(str(saved)).shape.layers == 3


@pytest.mark.parametrize(
    "name", ["../other/model.safetensors", "adapter_model.bin", "sub/model.safetensors", 3]
)
def test_weights_elsewhere(name, edit, saved):
    edit("config.json", transformers_weights=name)
    with pytest.raises(InputError, match=r"weights are \.safetensors files beside it"):
        load_model(str(saved))


def test_settings_beside_a_gguf_file(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="holds an adapter"):
        load_model(str(tmp_path / "model.gguf"))
    (tmp_path / "adapter_config.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["e.T", 0]}}')
    with pytest.raises(InputError, match="names code"):
        load_model(str(tmp_path / "model.gguf"))
