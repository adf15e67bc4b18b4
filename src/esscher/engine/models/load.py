"""Check that a model's files hold the weights that its configuration asks for.

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
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from esscher.core.errors import InputError
from esscher.core.untrusted import bounded
from esscher.engine.models.families import Family, family_of
from esscher.engine.models.gguf import gguf_read_once
from esscher.engine.models.loaded import LoadedModel, wrap_model
from esscher.engine.models.outline import cached_config, check_dtype, checked_source
from esscher.engine.models.sources import (
    ModelSource,
    check_fields,
    check_gguf_header,
    check_index,
    check_layers,
    check_safetensors_header,
)
from esscher.engine.models.transformers_library import INSTALL, quiet, transformers_module

#: A model may have so many times the numbers that its files hold, and some more: parts that files
#: leave out, such as a pooler, and tables that are computed.
TIMES, MORE = 2, 2**24
#: Weights that a message names.
NAMED = 3

Shapes = Mapping[str, tuple[int, ...]]


def numbers_in(shapes: Shapes) -> int:
    """Count the numbers in tensors of these shapes."""
    return sum(map(math.prod, shapes.values()))


def asked_shapes(auto: Any, config: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of everything that a model has, tied weights once; takes no memory for any of it.

    Parameters
    ----------
    auto
        The class of transformers that makes the model.
    config
        Its configuration.
    """
    with torch.device("meta"):
        return _shapes(auto.from_config(copy.deepcopy(config)))


def check_size(asked: Shapes, held: int, name: str) -> None:
    """Refuse a configuration that asks for far more numbers than the ``held`` in the files.

    Raises
    ------
    InputError
        Naming the largest tensor.
    """
    total = numbers_in(asked)
    if total > TIMES * held + MORE:
        largest = max(asked, key=lambda key: math.prod(asked[key]))
        shape = " x ".join(f"{n:,}" for n in asked[largest])
        raise InputError(
            f"the configuration of {name!r} asks for {total:,} numbers ({largest!r} alone is "
            f"{shape}), but the weights hold {held:,}; the files do not match, or are "
            "incomplete"
        )


def check_complete(
    model: Any, family: Family, info: Mapping[str, Any], asked: Shapes, name: str
) -> None:
    """Check that the files held every weight that a measurement uses, in the right shape.

    Others, such as an encoder's pooler, may be missing; they are set to zero, so that the hash of
    the weights is the same each time.

    Raises
    ------
    InputError
        Naming the weights that do not fit, or that transformers had to draw at random.
    """
    wrong = [(key, tuple(stored)) for key, stored, _ in info.get("mismatched_keys", ())]
    # of a GGUF file, transformers takes tensors of any shape
    wrong += [
        (key, shape) for key, shape in _shapes(model).items() if asked.get(key, shape) != shape
    ]
    if wrong:
        key, shape = min(wrong)
        raise InputError(
            f"the weights of {name!r} do not fit: {key!r} has the shape {shape}, where its "
            f"configuration asks for {asked.get(key, 'another')}; the files do not match"
        )
    unused = _unused(model, family)
    missing = set(info.get("missing_keys", ()))
    lacking = sorted(missing - unused.keys())
    if lacking:
        raise InputError(
            f"the weights of {name!r} lack {_listed(lacking)}; the file does not belong to this "
            "configuration, or is incomplete: copy or download the model again"
        )
    with torch.no_grad():
        for key in missing & unused.keys():
            unused[key].zero_()


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    return {key: tuple(tensor.shape) for key, tensor in tensors}


def _unused(model: Any, family: Family) -> dict[str, Any]:
    """Weights that no measurement uses: all but those of the backbone and the next-token head."""
    backbone = family.backbone(model)
    head = model.get_output_embeddings() if family.decoder else None
    used = _tensors([backbone, head]) - _tensors([getattr(backbone, "pooler", None)])
    return {
        key: tensor
        for key, tensor in model.state_dict(keep_vars=True).items()
        if id(tensor) not in used
    }


def _tensors(modules: Iterable[Any]) -> set[int]:
    return {
        id(tensor)
        for module in modules
        if module is not None
        for tensor in module.state_dict(keep_vars=True).values()
    }


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(repr, names[:NAMED])) + more


# Load a model by name, safely and quietly.

#: What a tokenizer is tried on.
TRIAL = "The quick brown fox (born in 1879) can't jump:\n\tover 3.14 lazy dogs, \u00e9t\u00e9!"


def load_model(
    name: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    allow_pickle: bool = False,
    allow_remote_code: bool = False,
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
    allow_pickle
        Also accept weights stored as pickles, which can run any code when they are read.
    allow_remote_code
        Also run code that comes with the model.

    Raises
    ------
    InputError
        When the model does not exist, is damaged or not supported, with the remedy.
    """
    check_dtype(dtype)
    place = as_device(device)
    source = checked_source(name, revision=revision, allow_remote_code=allow_remote_code)
    held = _held(source, allow_pickle=allow_pickle)
    options = _options(source, revision, allow_remote_code)
    transformers = transformers_module()
    with _reading(source), quiet():
        config = load_config(source, revision=revision, allow_remote_code=allow_remote_code)
        family = family_of(config.model_type, source.name)
        auto = transformers.AutoModelForCausalLM if family.decoder else transformers.AutoModel
        asked = _attempt(auto, source, options, lambda: asked_shapes(auto, config))
        if held is not None:
            check_size(asked, held, source.name)
        # a weight of another shape is reported, not raised: transformers does not say which it is
        weights: dict[str, Any] = {
            "config": config,
            "dtype": getattr(torch, dtype),
            "ignore_mismatched_sizes": True,
        }
        if source.gguf is None:
            weights["use_safetensors"] = None if allow_pickle else True
        if getattr(config, "attn_logit_softcapping", None) is not None:
            weights["attn_implementation"] = "eager"  # the fast kernels have no soft cap
        tokenizer = load_tokenizer(source, options)
        model, info = _load(auto, source, options | weights | {"output_loading_info": True})
        check_complete(model, family, info, asked, source.name)
        if source.gguf is not None:
            _forget_gguf(model)
        _attempt(type(tokenizer), source, options, lambda: _check_frame(tokenizer, model, source))
        try:
            model.requires_grad_(False).to(place)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"cannot put {name!r} on {device!r}: {_first_line(error)}") from error
    return wrap_model(
        model,
        tokenizer,
        name=source.name,
        provenance={
            "source": source.kind,
            "location": source.location if source.kind == "hub" else Path(source.location).name,
            "file": source.gguf,
            "revision": revision,
            "commit": _commit(source, revision),
            "dtype": dtype,
            "device": str(place),
        },
    )


def load_config(source: ModelSource, *, revision: str | None, allow_remote_code: bool) -> Any:
    """The configuration of a model, by transformers; its weights are not read."""
    if source.gguf is not None:
        check_gguf_header(Path(source.location) / source.gguf)
        _check_gguf()
    factory = transformers_module().AutoConfig
    with quiet():
        config = _load(factory, source, _options(source, revision, allow_remote_code))
    if (file := cached_config(source, revision)) is not None:
        check_fields(file, allow_remote_code=allow_remote_code)
    return config


def load_tokenizer(source: ModelSource, options: dict[str, Any] | None = None) -> Any:
    """The tokenizer of a model."""
    options = _options(source, None, False) if options is None else options
    _try_tokenizer(source, options)
    with quiet():
        tokenizer = _load(transformers_module().AutoTokenizer, source, options)
    _check_tokenizer(tokenizer, source)
    return tokenizer


def _try_tokenizer(source: ModelSource, options: dict[str, Any]) -> None:
    """Refuse rules that make gigabytes of a sentence, or do not end: they work at loading, too.

    A model on the hub is tried like a folder. A GGUF file has words and no rules: those are
    transformers' own.
    """
    asked = {name: options[name] for name in ("revision", "local_files_only") if name in options}
    try:
        find = transformers_module("transformers.utils").cached_file
        with quiet():
            file = find(source.location, "tokenizer.json", **asked)
    except (OSError, ValueError):
        return  # there is none, or loading it says what is wrong
    tokenizers = transformers_module("tokenizers")

    def call() -> str:
        tokenizers.Tokenizer.from_file(str(file)).encode(TRIAL)
        return ""

    try:
        bounded(call, f"the tokenizer of {source.name!r}")
    except InputError as error:
        raise InputError(
            f"{error}; its files are damaged, or made to do harm: copy or install the model again"
        ) from error


def _options(source: ModelSource, revision: str | None, allow_remote_code: bool) -> dict[str, Any]:
    """Arguments of every ``from_pretrained`` of a model."""
    options: dict[str, Any] = {
        "trust_remote_code": allow_remote_code,
        "local_files_only": source.kind != "hub" or _offline(),
    }
    if revision is not None:
        options["revision"] = revision
    if source.gguf is not None:
        options["gguf_file"] = source.gguf
    return options


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
        raise InputError(f"device {device!r} cannot be used: {_first_line(error)}") from error
    return place


def _offline() -> bool:
    """Whether the user forbade the network; asked anew each time, unlike in the hub's library."""
    return any(
        os.environ.get(name, "").strip().upper() in {"1", "ON", "YES", "TRUE"}
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def _commit(source: ModelSource, revision: str | None) -> str | None:
    """Commit of a model from the hub: the folder of the cache that its files are in."""
    path = cached_config(source, revision)
    return None if path is None else path.parent.name


def _load(factory: Any, source: ModelSource, options: dict[str, Any]) -> Any:
    """Call ``from_pretrained``."""
    return _attempt(
        factory, source, options, lambda: factory.from_pretrained(source.location, **options)
    )


def _attempt(
    factory: Any, source: ModelSource, options: dict[str, Any], call: Callable[[], Any]
) -> Any:
    """Call transformers; blame whatever goes wrong there on the files."""
    try:
        return call()
    except InputError:
        raise
    except BaseException as error:
        # a panic in the native code of tokenizers is no Exception
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise _explained(factory, source, options, error) from error
        raise


def _explained(
    factory: Any, source: ModelSource, options: dict[str, Any], error: BaseException
) -> InputError:
    what = {"AutoConfig": "configuration", "AutoTokenizer": "tokenizer"}.get(
        factory.__name__, "weights"
    )
    message = _first_line(error)
    if isinstance(error, MemoryError):
        remedy = "it needs more memory than there is"
    elif "trust_remote_code" in str(error):
        remedy = (
            "it comes with its own code; in Python allow_remote_code=True, if you trust its authors"
        )
    elif options.get("use_safetensors") and "safetensors" in str(error):
        remedy = "only safetensors are read, unless allow_pickle=True in Python"
    elif source.kind == "hub" and _offline():
        remedy = (
            "HF_HUB_OFFLINE is set, so it must be in the local cache; unset it once to download "
            "the model, or give a folder"
        )
    elif source.kind == "hub":
        remedy = "check the name, the revision and the network, or give a folder"
    else:
        remedy = "its files are damaged or incomplete; copy or install the model again"
    return InputError(f"the {what} of {source.name!r} cannot be loaded: {message} ({remedy})")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _reading(source: ModelSource) -> contextlib.AbstractContextManager[None]:
    """What holds while the files of a model are read."""
    if source.gguf is None:
        return contextlib.nullcontext()
    _check_gguf()
    return gguf_read_once()


def _forget_gguf(model: Any) -> None:
    """Drop the marks of a GGUF file: its weights were unpacked, and can be saved and changed."""
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None:
        quantizer.remove_quantization_config(model)


def _check_gguf() -> None:
    for package in ("gguf", "accelerate"):
        try:
            transformers_module(package)
        except InputError as error:
            raise InputError(
                f"reading a GGUF file needs the package {package}; install it with: {INSTALL}"
            ) from error


def _held(source: ModelSource, *, allow_pickle: bool) -> int | None:
    """Numbers that the weight files hold; None for a model on the hub, whose files are not here.

    Checks that a folder's weights are safetensors, and that their headers can be read.
    """
    if source.kind == "hub":
        return None
    folder = Path(source.location)
    if source.gguf is not None:
        return numbers_in(check_gguf_header(folder / source.gguf).tensors)
    files = sorted(folder.glob("*.safetensors"))
    pickles = sorted((*folder.glob("*.bin"), *folder.glob("*.pt")))
    if allow_pickle and not files:
        return sum(path.stat().st_size for path in pickles)  # a number takes a byte or more
    if not files:
        if pickles:
            raise InputError(
                f"the weights of {source.name!r} are pickles ({pickles[0].name}), which can run "
                "any code when they are read; in Python allow_pickle=True, if you trust their "
                "source, or convert them to safetensors"
            )
        raise InputError(f"the folder {source.name!r} has no weights (no .safetensors file)")
    check_index(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    for path in files:
        shapes |= _stored_shapes(path)
    check_layers(folder, len(shapes))
    return numbers_in(shapes)


def _stored_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of a safetensors file, from its header."""
    check_safetensors_header(path)
    safetensors = transformers_module("safetensors")
    try:
        with safetensors.safe_open(str(path), framework="pt") as opened:
            names = opened.keys()
            return {key: tuple(opened.get_slice(key).get_shape()) for key in names}
    except Exception as error:
        raise InputError(
            f"{path} is damaged: {_first_line(error)}; copy or download it again"
        ) from error


def _check_tokenizer(tokenizer: Any, source: ModelSource) -> None:
    """Check that the tokenizer knows words: without its files, transformers makes an empty one."""
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)) + 1:
        raise InputError(
            f"the tokenizer of {source.name!r} has no vocabulary; copy the tokenizer's files "
            "(tokenizer.json or vocab.txt) next to the weights"
        )


def _check_frame(tokenizer: Any, model: Any, source: ModelSource) -> None:
    """Check that the tokens put around a text are among those that the model knows."""
    known = len(model.get_input_embeddings().weight)
    largest = max(tokenizer("", verbose=False)["input_ids"], default=0)
    if not 0 <= largest < known:
        raise InputError(
            f"the tokenizer of {source.name!r} frames texts with token {largest}, but the model "
            f"knows only {known}; they do not match"
        )
