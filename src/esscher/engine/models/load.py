"""Load a model by name, safely and quietly, and check that its files hold all its weights.

transformers takes memory for every weight that a configuration names, and draws those at random
that the files lack. So sizes are compared before a model is built, on PyTorch's meta device, where
tensors have a shape and no memory; and once it is loaded, nothing that a measurement uses may have
been made up.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from esscher.core.errors import InputError
from esscher.core.untrusted import first_line
from esscher.engine.models.families import Family
from esscher.engine.models.loaded import LoadedModel, wrap_model
from esscher.engine.models.outline import check_dtype, described
from esscher.engine.models.sources import (
    ModelSource,
    check_fields,
    check_weight_file,
    find_model,
    gguf_read_once,
    read_config,
    read_gguf_metadata,
)
from esscher.engine.models.transformers_library import quiet, transformers_module

#: A model may have so many numbers more than its files hold: parts that files leave out, such as a
#: pooler, and tables that are computed.
MORE = 2**24
#: Weights that a message names.
NAMED = 3

Shapes = Mapping[str, tuple[int, ...]]


def load_model(
    name: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
) -> LoadedModel:
    """Load a model with its tokenizer.

    Parameters
    ----------
    name
        ``demo:minilm``, ``demo:smollm2``, a folder, a ``.gguf`` file, or a name on the hub. With
        HF_HUB_OFFLINE set, a hub name must be in the local cache.
    device
        Where to put the weights.
    dtype
        Type of the weights; attention is measured in what the model computes in.
    revision
        Branch, tag or commit of a model on the hub.

    Raises
    ------
    InputError
        When the model does not exist, is damaged or not supported, with the remedy.
    """
    check_dtype(dtype)
    place = as_device(device)
    source = find_model(name, revision=revision)
    most = _most_numbers(source)
    transformers = transformers_module()
    reading = contextlib.nullcontext() if source.gguf is None else gguf_read_once()
    with reading, quiet():
        config = load_config(source)
        family = described(source.name, config.to_dict()).family
        auto = transformers.AutoModelForCausalLM if family.decoder else transformers.AutoModel
        with _blaming("weights", source), torch.device("meta"):
            shapes = _shapes(auto.from_config(copy.deepcopy(config)))
        total = sum(map(math.prod, shapes.values()))
        if most is not None and total > most + MORE:
            largest = max(shapes, key=lambda key: math.prod(shapes[key]))
            sizes = " x ".join(f"{n:,}" for n in shapes[largest])
            raise InputError(
                f"the configuration of {name!r} asks for {total:,} numbers ({largest!r} alone is "
                f"{sizes}), and its weights have at most {most:,}; the files do not match, or are "
                "incomplete"
            )
        options = _options(source) | {
            "config": config,
            "dtype": getattr(torch, dtype),
            # a weight of another shape is reported, not raised: transformers does not name it
            "ignore_mismatched_sizes": True,
            "output_loading_info": True,
        }
        if source.gguf is None:
            options["use_safetensors"] = True
        if getattr(config, "attn_logit_softcapping", None) is not None:
            options["attn_implementation"] = "eager"  # the fast kernels have no soft cap
        tokenizer = load_tokenizer(source)
        with _blaming("weights", source):
            model, info = auto.from_pretrained(source.location, **options)
        check_complete(model, family, info, shapes, source.name)
        quantizer = getattr(model, "hf_quantizer", None)
        if source.gguf is not None and quantizer is not None:
            # the weights of a GGUF file were unpacked, and can be saved and changed
            quantizer.remove_quantization_config(model)
        try:
            model.requires_grad_(False).to(place)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"cannot put {name!r} on {device!r}: {_reason(error)}") from error
    return wrap_model(model, tokenizer, name=source.name)


def load_config(source: ModelSource) -> Any:
    """The configuration of a model, by transformers; its weights are not read."""
    if source.gguf is not None:
        read_gguf_metadata(Path(source.location) / source.gguf)
        for package in ("gguf", "accelerate"):
            transformers_module(package)
    factory = transformers_module().AutoConfig
    with quiet(), _blaming("configuration", source):
        config = factory.from_pretrained(source.location, **_options(source))
    if (file := source.cached_config()) is not None:
        check_fields(file)
    return config


def load_tokenizer(source: ModelSource) -> Any:
    """The tokenizer of a model."""
    options = _options(source)
    with quiet(), _blaming("tokenizer", source):
        tokenizer = transformers_module().AutoTokenizer.from_pretrained(source.location, **options)
    # without its files, transformers makes an empty one
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)) + 1:
        raise InputError(
            f"the tokenizer of {source.name!r} has no vocabulary; copy the tokenizer's files "
            "(tokenizer.json or vocab.txt) next to the weights"
        )
    return tokenizer


def check_complete(
    model: Any, family: Family, info: Mapping[str, Any], shapes: Shapes, name: str
) -> None:
    """Check that the files held every weight that a measurement uses, in the right shape.

    Others, such as an encoder's pooler, may be missing; they are set to zero, so that the hash of
    the weights is the same each time.

    Parameters
    ----------
    model, family, name
        The model as transformers loaded it, its family, and its name for messages.
    info
        What transformers reports about missing and mismatched weights.
    shapes
        Shapes that the configuration asks for.

    Raises
    ------
    InputError
        Naming the weights that do not fit, or that transformers had to draw at random.
    """
    wrong = [(key, tuple(stored)) for key, stored, _ in info.get("mismatched_keys", ())]
    # of a GGUF file, transformers takes tensors of any shape
    wrong += [
        (key, shape) for key, shape in _shapes(model).items() if shapes.get(key, shape) != shape
    ]
    if wrong:
        key, shape = min(wrong)
        raise InputError(
            f"the weights of {name!r} do not fit: {key!r} has the shape {shape}, where its "
            f"configuration asks for {shapes.get(key, 'another')}; the files do not match"
        )
    # a measurement uses the backbone without its pooler, and the next-token head
    backbone = family.backbone(model)
    head = model.get_output_embeddings() if family.decoder else None
    used, pooler = (
        {
            id(tensor)
            for module in modules
            if module is not None
            for tensor in module.state_dict(keep_vars=True).values()
        }
        for modules in ((backbone, head), (getattr(backbone, "pooler", None),))
    )
    unused = {
        key: tensor
        for key, tensor in model.state_dict(keep_vars=True).items()
        if id(tensor) not in used - pooler
    }
    missing = set(info.get("missing_keys", ()))
    lacking = sorted(missing - unused.keys())
    if lacking:
        more = f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
        raise InputError(
            f"the weights of {name!r} lack {', '.join(map(repr, lacking[:NAMED]))}{more}; the file "
            "does not belong to this configuration, or is incomplete: copy or download the model "
            "again"
        )
    with torch.no_grad():
        for key in missing & unused.keys():
            unused[key].zero_()


def as_device(device: str) -> torch.device:
    """The device of a name.

    Raises
    ------
    InputError
        If this machine has none of that name.
    """
    try:
        place = torch.device(device)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InputError(f"device {device!r} cannot be used: {_reason(error)}") from error
    return place


def _most_numbers(source: ModelSource) -> int | None:
    """Numbers that the weight files can hold; None for a model on the hub, not here yet.

    Checks that a folder's weights are safetensors.
    """
    folder = Path(source.location)
    if source.kind == "hub":
        return None
    if source.gguf is not None:  # a number takes more than a bit, however it is packed
        return 8 * (folder / source.gguf).stat().st_size
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted((*folder.glob("*.bin"), *folder.glob("*.pt")))
        if pickles:
            raise InputError(
                f"the weights of {source.name!r} are pickles ({pickles[0].name}), which can run "
                "any code when they are read; convert them to safetensors, or load the model with "
                "transformers and hand it in: esscher.wrap_model(model, tokenizer)"
            )
        raise InputError(f"the folder {source.name!r} has no weights (no .safetensors file)")
    for index in sorted(folder.glob("*.safetensors.index.json")):
        names = read_config(index).get("weight_map")
        if not isinstance(names, dict):
            raise InputError(f"{index} has no weight_map; copy the model again")
        for file in set(map(str, names.values())):
            check_weight_file(file, str(index))
    return sum(path.stat().st_size for path in files)


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of all that a model has, tied weights once."""
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    return {key: tuple(tensor.shape) for key, tensor in tensors}


def _options(source: ModelSource) -> dict[str, Any]:
    """Arguments of every ``from_pretrained`` of a model."""
    options: dict[str, Any] = {
        "trust_remote_code": False,
        "local_files_only": source.kind != "hub" or _offline(),
    }
    if source.revision is not None:
        options["revision"] = source.revision
    if source.gguf is not None:
        options["gguf_file"] = source.gguf
    return options


def _offline() -> bool:
    """Whether the user forbade the network; asked anew each time, unlike in the hub's library."""
    return any(
        os.environ.get(name, "").strip().upper() in {"1", "ON", "YES", "TRUE"}
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


@contextlib.contextmanager
def _blaming(part: str, source: ModelSource) -> Iterator[None]:
    """Within the block, whatever goes wrong in transformers is an error of the model's files."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        # a panic in the native code of tokenizers is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if isinstance(error, MemoryError):
            remedy = "it needs more memory than there is"
        elif "trust_remote_code" in str(error) or "safetensors" in str(error):
            remedy = (
                "only safetensors are read, and no code of a model is run; load it with "
                "transformers and hand it in: esscher.wrap_model(model, tokenizer)"
            )
        elif source.kind == "hub":
            offline = "HF_HUB_OFFLINE is set, so it must be in the local cache; unset it, "
            remedy = (offline if _offline() else "") + "check name, revision and network"
        else:
            remedy = "its files are damaged or incomplete; copy or install the model again"
        raise InputError(
            f"the {part} of {source.name!r} cannot be loaded: {_reason(error)} ({remedy})"
        ) from error


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
