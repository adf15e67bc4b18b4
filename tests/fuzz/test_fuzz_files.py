"""Every other parser: bytes and text of any kind give a value or an ``InputError``."""

from __future__ import annotations

import contextlib
import json
import os
import string
import warnings

import numpy as np
import pytest
from hypothesis import strategies as st

from esscher.core.errors import EsscherError, InputError
from esscher.core.options import geometric_sizes, listed, numbers, options_of
from esscher.core.untrusted import LARGE, parse_json, read_json
from esscher.engine.models.load import load_model
from esscher.engine.models.sources import read_gguf_metadata
from esscher.engine.patterns import as_patterns
from esscher.engine.text.documents import read_text
from esscher.show.content import as_points
from esscher.studies.tails import TailsStudy
from tests.engine.models.folders import save
from tests.engine.models.gguf_files import STRING, UINT32, entry, gguf_bytes
from tests.fuzz.damage import as_text, changed_bytes, changed_tree, effort, fuzz, randoms

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def reads(function, *arguments) -> bool:
    """Whether a parser took its input; anything but an ``InputError`` fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*arguments)
        except InputError:
            return False
    return True


@effort(40, 3000)
def test_json_of_any_bytes(examples):
    def property(data):
        reads(parse_json, data, "file")

    fuzz(examples, st.binary() | st.text().map(str.encode) | JSON.map(as_text))(property)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000 + "]" * 100_000, "inside each other"),
        ("[" * 40 + "]" * 40, "inside each other"),
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        ("[NaN]", "NaN is not a number"),
        ("[-Infinity]", "-Infinity is not a number"),
        ("[1e999]", "too large"),
        ("9" * 1_000_000, "neither a size nor a count"),
        ("[" + "9" * 400 + "]", "neither a size nor a count"),
        ("\ud800", "cannot be read as JSON"),
        ("", "cannot be read as JSON"),
    ],
)
def test_json_that_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_json(text, "a file")


def test_large_files_are_not_read(tmp_path):
    """A sparse file of a terabyte takes no room on the disk, and must take none in memory."""
    path = tmp_path / "plan.json"
    path.touch()
    os.truncate(path, 2**40)
    with pytest.raises(InputError, match="at most 268,435,456 are read"):
        read_json(path, LARGE)


@effort(8, 400)
def test_text_files(examples, tmp_path):
    sound = "One line.\nAnd another, with an umlaut: ä.\n".encode() * 40
    path = tmp_path / "text.txt"

    def property(random, data):
        path.write_bytes(changed_bytes(sound, random) if random.random() < 0.6 else data)
        reads(lambda: list(read_text(path)))

    fuzz(examples, randoms(), st.binary() | st.text().map(str.encode))(property)


OPTIONS = st.text(alphabet=string.digits + ":,-.+eEinfa x_\u0663\u00b2", max_size=24) | st.text()


@effort(150, 5000)
def test_values_of_options(examples):
    layers = next(o for o in options_of(TailsStudy) if o.name == "layers")

    def property(text):
        reads(geometric_sizes, text)
        reads(listed, layers, text, "--layers")
        reads(numbers, text, "--alpha")
        reads(as_points, text)
        reads(as_patterns, text)

    fuzz(examples, OPTIONS)(property)


@effort(2, 100)
def test_model_folders(examples, tmp_path):
    folder = tmp_path / "model"
    save(folder)
    names = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    sound = {name: (folder / name).read_bytes() for name in names}

    def property(random):
        for name, data in sound.items():
            (folder / name).write_bytes(data)
        name = random.choice(names)
        wrong = changed_bytes(sound[name], random)
        if name.endswith(".json") and random.random() < 0.8:
            wrong = as_text(changed_tree(json.loads(sound[name]), random))
        (folder / name).write_bytes(wrong)
        with contextlib.suppress(EsscherError):
            reads(load_model, str(folder))

    fuzz(examples, randoms())(property)


@effort(40, 3000)
def test_gguf_headers(examples, tmp_path):
    """A header that is accepted says what the package of llama.cpp reads in it."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    sound = gguf_bytes(
        [entry("general.architecture", STRING, "llama"), entry("llama.block_count", UINT32, 1)],
        {"token_embd.weight": np.zeros((3, 8)), "output_norm.weight": np.ones(8)},
    )

    def property(random):
        path.write_bytes(changed_bytes(sound, random))
        if random.random() < 0.1:
            reads(load_model, str(path))
        if not reads(read_gguf_metadata, path):
            return
        header = read_gguf_metadata(path)
        try:
            theirs = gguf.GGUFReader(path)
            shapes = {t.name: tuple(t.shape.tolist())[::-1] for t in theirs.tensors}
            values = {name: theirs.fields[name].contents() for name in header.metadata}
        except Exception:  # data of tensors, for example, which the header says nothing about
            return
        assert header.tensors == shapes
        assert header.metadata == values

    fuzz(examples, randoms())(property)
