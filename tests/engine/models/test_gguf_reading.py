"""A GGUF file is read once while a model is loaded, and as the package itself reads it."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.engine.models.gguf import gguf_read_once
from tests.engine.models.gguf_files import LIST, STRING, UINT32, entry, gguf_bytes, strings

gguf = pytest.importorskip("gguf")


@pytest.fixture
def path(tmp_path):
    entries = [
        entry("general.architecture", STRING, "llama"),
        entry("llama.block_count", UINT32, 2),
        entry("tokenizer.ggml.tokens", LIST, strings(["a", "b", "cde"])),
    ]
    file = tmp_path / "some.gguf"
    file.write_bytes(gguf_bytes(entries, {"token_embd.weight": np.eye(3)}))
    return str(file)


def test_the_same_is_read(path):
    own = gguf.GGUFReader(path)
    with gguf_read_once():
        other = gguf.GGUFReader(path)
    assert list(other.fields) == list(own.fields)
    for name, field in own.fields.items():
        assert other.fields[name].contents() == field.contents()
    for mine, theirs in zip(other.tensors, own.tensors, strict=True):
        assert mine.name == theirs.name
        np.testing.assert_array_equal(mine.data, theirs.data)


def test_once(path):
    with gguf_read_once():
        assert gguf.GGUFReader(path) is gguf.GGUFReader(path)
        arch = gguf.MODEL_ARCH.LLAMA
        assert gguf.get_tensor_name_map(arch, 2) is gguf.get_tensor_name_map(arch, 2)


def fail_while_reading():
    with gguf_read_once():
        raise ValueError("on purpose")


def test_the_package_is_left_as_it_was():
    own = gguf.GGUFReader, gguf.get_tensor_name_map
    with gguf_read_once():
        assert gguf.GGUFReader is not own[0]
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == own
    with pytest.raises(ValueError, match="on purpose"):
        fail_while_reading()
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == own
