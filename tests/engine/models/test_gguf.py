"""GGUF files: what their headers say and may not say, and that they are read once."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.engine.models.sources import LISTED, gguf_read_once, read_gguf_metadata
from tests.engine.models.gguf_files import (
    BOOL,
    FLOAT32,
    LIST,
    STRING,
    UINT32,
    entry,
    gguf_bytes,
    numbers,
    strings,
)

ARCHITECTURE = entry("general.architecture", STRING, "llama")
TENSORS = {"token_embd.weight": np.zeros((5, 8)), "output_norm.weight": np.ones(8)}


def test_what_a_header_says(tmp_path):
    path = tmp_path / "model.gguf"
    entries = [
        ARCHITECTURE,
        entry("llama.block_count", UINT32, 3),
        entry("llama.rope.freq_base", FLOAT32, 0.5),
        entry("tokenizer.ggml.add_bos_token", BOOL, True),
        entry("tokenizer.ggml.tokens", LIST, strings(["a", "bc", "ä"])),
        entry("tokenizer.ggml.scores", LIST, numbers([0, 1, 2])),
        entry("tokenizer.chat_template", STRING, "x" * 5000),
    ]
    path.write_bytes(gguf_bytes(entries, TENSORS))
    header = read_gguf_metadata(path)
    assert header.metadata == {
        "general.architecture": "llama",
        "llama.block_count": 3,
        "llama.rope.freq_base": 0.5,
        "tokenizer.ggml.add_bos_token": True,
    }
    assert header.tensors == {"token_embd.weight": (5, 8), "output_norm.weight": (8,)}
    assert header.architecture == "llama"
    assert header.number("block_count") == 3
    assert header.number("context_length") is None


@pytest.mark.parametrize(
    ("entries", "tensors", "message"),
    [
        ([entry("x", LIST, (UINT32, 60_000_000, b""))], None, "60,000,000 values"),
        ([entry("x", LIST, (STRING, LISTED, b""))], None, "has no end"),
        ([entry("x", LIST, (LIST, 1, b""))], None, "x is of type 9"),
        ([entry("x", UINT32, 1)] * 2, None, "it has x twice"),
        ([entry("x" * 2000, UINT32, 1)], None, "a name of 2,000 bytes"),
        ([entry("\x1b[2J", UINT32, 1)], None, r"the name '\\x1b\[2J'"),
        ([], {"a": np.zeros((1,) * 5)}, "a has 5 dimensions"),
    ],
)
def test_headers_that_are_refused(entries, tensors, message, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(entries, tensors))
    with pytest.raises(InputError, match=message) as caught:
        read_gguf_metadata(path)
    assert str(path) in str(caught.value)


def test_tensors_that_the_file_cannot_hold(tmp_path):
    path = tmp_path / "model.gguf"
    sound = gguf_bytes([], {"a": np.zeros((3, 5))})
    path.write_bytes(sound.replace(struct.pack("<QQ", 5, 3), struct.pack("<QQ", 2**40, 3)))
    with pytest.raises(InputError, match="its tensors have 3,298,534,883,328 numbers"):
        read_gguf_metadata(path)


def test_every_cut_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    sound = gguf_bytes([ARCHITECTURE, entry("x", LIST, strings(["a", "b"]))], {"a": np.zeros(8)})
    for length in range(len(sound) - 64):
        path.write_bytes(sound[:length])
        with pytest.raises(InputError, match="cannot be loaded"):
            read_gguf_metadata(path)


def test_a_file_is_read_once_and_the_package_is_left_as_it_was(tmp_path):
    gguf = pytest.importorskip("gguf")
    path, before = tmp_path / "some.gguf", (gguf.GGUFReader, gguf.get_tensor_name_map)
    path.write_bytes(gguf_bytes([ARCHITECTURE], {"token_embd.weight": np.eye(3)}))
    with contextlib.suppress(ZeroDivisionError), gguf_read_once():
        shared = gguf.GGUFReader(str(path))
        assert gguf.GGUFReader(str(path)) is shared
        arch = gguf.MODEL_ARCH.LLAMA
        assert gguf.get_tensor_name_map(arch, 2) is gguf.get_tensor_name_map(arch, 2)
        np.testing.assert_array_equal(shared.tensors[0].data, np.eye(3))
        _ = 1 / 0
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == before
