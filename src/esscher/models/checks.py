"""A model's folder may come from anybody: looked over before transformers opens anything in it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from esscher.errors import InputError
from esscher.models.gguf_header import read_gguf_metadata
from esscher.untrusted import limits, read_json, shortened

#: Largest whole number in a configuration: vocabularies and positions stay far below.
LARGEST = 2**31
#: Most labels of a classifier; transformers makes a dictionary of them.
LABELS = 100_000
#: Fields that give the number of layers; each layer has at least one tensor.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
#: Fields that choose how attention is computed; a name with a slash is code on the hub.
KERNELS = ("_attn_implementation", "attn_implementation", "_attn_implementation_internal")
#: Files that name classes in files of their own.
CLASSES = ("config.json", "tokenizer_config.json", "processor_config.json")


def read_config(path: Path) -> dict[str, Any]:
    """A JSON file of a model's folder that holds an object.

    Raises
    ------
    InputError
        If it is none, or is beyond the limits on files from elsewhere.
    """
    try:
        found = read_json(path)
    except (OSError, InputError) as error:
        raise InputError(f"{path} cannot be read: {error}; copy the model again") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no object; copy the model again")
    return found


def check_model_folder(folder: Path, name: str, *, allow_remote_code: bool) -> None:
    """Refuse a folder that would run code, load something else, wait, or take all memory.

    Parameters
    ----------
    folder
        The folder.
    name
        What the user called it.
    allow_remote_code
        Whether code that comes with the model may run.

    Raises
    ------
    InputError
        Naming the file and the field.
    """
    for path in sorted(folder.iterdir()):
        _check_file(path)
    if (folder / "adapter_config.json").exists():
        raise InputError(
            f"the folder {name!r} holds an adapter (adapter_config.json), which would load another "
            "model in its place; merge it into its model and save that"
        )
    for file in CLASSES:
        if allow_remote_code or not (folder / file).exists():
            continue
        if read_config(folder / file).get("auto_map"):
            raise InputError(
                f"{folder / file} names code that comes with the model (auto_map); allow remote "
                "code (--allow-remote-code) if you trust its authors, or remove the field if "
                "transformers knows the architecture itself"
            )
    for place, value in _values(read_config(folder / "config.json")):
        field = place.rpartition(".")[2]
        if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
            raise InputError(
                f"{folder / 'config.json'}: {place} is {shortened(value)}; no model has that"
            )
        if field == "num_labels" and isinstance(value, int) and value > LABELS:
            raise InputError(
                f"{folder / 'config.json'}: {place} is {value}; at most {LABELS} are read"
            )
        if field in KERNELS and isinstance(value, str) and not value.replace("_", "").isalnum():
            raise InputError(
                f"{folder / 'config.json'}: {place} is {shortened(value)}, which would load code; "
                "remove the field"
            )


def check_layers(folder: Path, tensors: int) -> None:
    """Refuse a configuration with more layers than the files have tensors.

    transformers builds all of them before it looks at the weights.
    """
    for path, value in _values(read_config(folder / "config.json")):
        if path.rpartition(".")[2] in LAYERS and isinstance(value, int) and value > tensors:
            raise InputError(
                f"{folder / 'config.json'}: {path} is {value}, but the weights have {tensors} "
                "tensors; the files do not belong together"
            )


def check_index(folder: Path) -> None:
    """Refuse lists of weight files that name files elsewhere, or of another kind."""
    for index in sorted(folder.glob("*.safetensors.index.json")):
        names = read_config(index).get("weight_map")
        if not isinstance(names, dict):
            raise InputError(f"{index} has no weight_map; copy the model again")
        for file in set(map(str, names.values())):
            if Path(file).name != file or not file.endswith(".safetensors"):
                raise InputError(
                    f"{index} names {shortened(file)}; weights are .safetensors files beside it"
                )


def check_gguf_header(path: Path) -> None:
    """Refuse a GGUF file whose header promises more than the file can hold.

    Raises
    ------
    InputError
        If it is no GGUF file, its header lies, or it has more layers than tensors.
    """
    header = read_gguf_metadata(path)
    layers = header.number("block_count")
    if layers is not None and layers > len(header.tensors):
        raise InputError(
            f"{path} cannot be loaded: {header.architecture}.block_count is {layers:,}, but it has "
            f"{len(header.tensors):,} tensors; it is damaged: download it again"
        )


def _check_file(path: Path) -> None:
    try:
        about = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
        raise InputError(f"{path} is a pipe, socket or device; remove it from the model's folder")
    if path.suffix in (".json", ".txt", ".jinja", ".model") and about.st_size > limits.RESULTS:
        raise InputError(f"{path} has {about.st_size:,} bytes; at most {limits.RESULTS:,} are read")


def _values(found: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Fields of a configuration with their paths; its depth is bounded already."""
    if isinstance(found, dict):
        for name, value in found.items():
            yield from _values(value, f"{place}.{name}".lstrip("."))
    elif isinstance(found, list):
        for value in found:
            yield from _values(value, place)
    else:
        yield place, found
