"""Check that a model's files hold the weights that its configuration asks for.

transformers takes memory for every weight that a configuration names, and draws those at random
that the files lack. So sizes are compared before a model is built, on PyTorch's meta device, where
tensors have a shape and no memory; and once it is loaded, nothing that a measurement uses may have
been made up.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from esscher.core.errors import InputError
from esscher.engine.models.families import Family

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
