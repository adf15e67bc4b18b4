"""Caches on disk: what goes on from them, and files that are not what they should be."""

from __future__ import annotations

import contextlib
import json
import os

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from esscher import load_cache
from esscher.core.errors import InputError
from esscher.engine.cache.cache import planned_cache
from esscher.engine.cache.saved import ENTRY, SavedCache, checksum
from tests.engine.cache.plans import budgets_for, padded, prompts, room_for
from tests.engine.models.tiny import tiny_model

FOLLOWING = torch.tensor([[7, 8, 9], [9, 8, 7]])


def read(name="llama", selection="sample", bits=None, **options):
    """A model and a cache that has read two texts, one with padding, and some tokens after them."""
    loaded = tiny_model(name, **room_for(name))
    cache = planned_cache(
        loaded, budgets_for(loaded, 0.4, selection=selection, bits=bits), **options
    )
    with torch.no_grad():
        loaded.model(**padded(prompts((60, 45))), past_key_values=cache)
        follow(loaded, cache)
    return loaded, cache


def follow(loaded, cache):
    mask = torch.ones(2, cache.get_seq_length() + 3, dtype=torch.long)
    mask[1, :15] = 0
    with torch.no_grad():
        return loaded.model(input_ids=FOLLOWING, attention_mask=mask, past_key_values=cache).logits


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"selection": "fitted", "bits": (8, 4)},
        {"decode": "budget", "length": 60, "chunk": 25},
        {"decode": "budget", "length": 60, "chunk": 25, "bits": (4, 4)},
    ],
)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text"])
def test_a_saved_cache_goes_on_as_it_would_have(name, options, tmp_path):
    loaded, cache = read(name, **options)
    cache.save(tmp_path / "deep" / "context.safetensors")
    again = load_cache(tmp_path / "deep" / "context.safetensors", loaded.model)
    assert again.kept.tolist() == cache.kept.tolist()
    assert (again.decode, again.chunk) == (cache.decode, cache.chunk)
    for _ in range(44 if "chunk" in options else 3):  # long enough to be selected again
        assert torch.equal(follow(loaded, again), follow(loaded, cache))
    assert again.kept.tolist() == cache.kept.tolist()
    assert os.listdir(tmp_path / "deep") == ["context.safetensors"]


def test_an_empty_cache_is_not_saved(tmp_path):
    loaded = tiny_model("llama")
    with pytest.raises(InputError, match="the cache is empty"):
        planned_cache(loaded, budgets_for(loaded)).save(tmp_path / "c")
    assert not list(tmp_path.iterdir())


def test_another_model_is_refused(tmp_path):
    _, cache = read()
    cache.save(tmp_path / "c")
    other = tiny_model("llama", **room_for("llama"))
    with torch.no_grad():
        next(other.model.parameters()).add_(0.1)
    with pytest.raises(InputError, match=r"was made with 'llama' with weights .* read the context"):
        load_cache(tmp_path / "c", other)
    assert "forward" not in vars(other.backbone)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "c"
    loaded, cache = read(decode="budget", bits=(8, 4))
    cache.save(path)
    with safe_open(path, framework="pt") as file:
        header_fields = json.loads(file.metadata()[ENTRY])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return loaded, path, header_fields, arrays


def changed(name, change):
    def apply(header_fields, arrays):
        arrays[name] = change(arrays[name])

    return apply


def fields(**fields):
    return lambda header_fields, arrays: header_fields.update(fields)


def negative(x):
    x[-1] = -1
    return x


def swapped(x):
    return x.flip(0)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (fields(version=7), "has version 7; this version of Esscher reads 6"),
        (fields(weight_hash="00"), "was made with 'llama' with weights 00"),
        (fields(seed=-1), "seed is -1"),
        (fields(lengths=[60]), "layer 0 has 'start' as"),
        (fields(seen=20), "layer 0 holds more tokens than were seen"),
        (fields(decode="none"), "decode is 'none'"),
        (fields(extra=1), "has 'extra', which is not known"),
        (lambda header_fields, arrays: header_fields.pop("turns"), "it has no 'turns'"),
        (lambda header_fields, arrays: arrays.pop("1.keys"), "layer 1 has no array 'keys'"),
        (lambda header_fields, arrays: arrays.pop("2.queries"), "layer 2 has no array 'queries'"),
        (lambda header_fields, arrays: arrays.update(x=torch.zeros(1)), "an array 'x' too many"),
        (changed("0.keys", lambda x: x[:, :4].clone()), "layer 0 has 'keys' as"),
        (changed("0.values", lambda x: x.to(torch.float16)), "layer 0 has 'values' as"),
        (changed("1.start", swapped), "layer 1 has lists that do not fit together"),
        (changed("1.stop", lambda x: x + 10**12), "layer 1 has lists that do not fit together"),
        (changed("1.stop", negative), "layer 1 has lists that do not fit together"),
        (changed("0.coded", swapped), "layer 0 has lists of codes that do not fit together"),
        (changed("0.coded", negative), "layer 0 has lists of codes that do not fit together"),
        (changed("0.codes", lambda x: x[:-1].clone()), "0 has lists of codes that do not fit"),
        (changed("2.tail_keys", lambda x: x[:1].clone()), "layer 2 has 'tail_keys' as"),
        (lambda header_fields, arrays: arrays.pop("1.scores"), "layer 1 has no array 'scores'"),
        (changed("1.scores", lambda x: x[1:].clone()), "layer 1 has 'scores' as"),
    ],
)
def test_files_that_do_not_fit_are_refused(stored, damage, message, tmp_path):
    loaded, _, header_fields, arrays = stored
    header_fields, arrays = (
        json.loads(json.dumps(header_fields)),
        {k: v.clone() for k, v in arrays.items()},
    )
    damage(header_fields, arrays)
    # the checksum fits: the arrays do not
    with contextlib.suppress(msgspec.ValidationError):
        header_fields["checksum"] = checksum(msgspec.convert(header_fields, SavedCache), arrays)
    (tmp_path / "c").write_bytes(safetensors.torch.save(arrays, {ENTRY: json.dumps(header_fields)}))
    with pytest.raises(InputError, match=message):
        load_cache(tmp_path / "c", loaded)


@pytest.mark.parametrize("part", ["header", "arrays"])
def test_damaged_files_are_refused(stored, part, tmp_path):
    """Cut off, or with wrong bytes: an error in words, never another one, and never accepted."""
    loaded, path, _, _ = stored
    data, target = path.read_bytes(), tmp_path / "c"
    header = 8 + int.from_bytes(data[:8], "little")
    rng = np.random.default_rng(1)
    damaged = [b"", data[:7], data[: header // 2], data[:header], data[:-1], data + b"x"]
    low, high = (0, header) if part == "header" else (header, len(data))
    for _ in range(150):
        copy = bytearray(data)
        for place in rng.integers(low, high, size=rng.integers(1, 4)):
            copy[place] ^= 1 << rng.integers(8)
        damaged.append(bytes(copy))
    for content in damaged:
        target.write_bytes(content)
        with pytest.raises(InputError):
            load_cache(target, loaded)


def test_what_is_no_cache_is_refused(stored, tmp_path):
    loaded = stored[0]
    with pytest.raises(InputError, match="there is no file"):
        load_cache(tmp_path / "none", loaded)
    with pytest.raises(InputError, match="is a directory"):
        load_cache(tmp_path, loaded)
    (tmp_path / "weights").write_bytes(safetensors.torch.save({"w": torch.zeros(3)}))
    with pytest.raises(InputError, match="is no cache that Esscher saved"):
        load_cache(tmp_path / "weights", loaded)
