"""Real models: loading them, and seeing or replacing what their attention computes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from esscher.engine.models.choice import (
    AnyModel,
    ModelChoice,
    ModelLike,
    opened_model,
)
from esscher.engine.models.families import FAMILIES, Family, ModelShape
from esscher.engine.models.outline import Outline, outline_of

if TYPE_CHECKING:
    from esscher.engine.models.capture import attention_override, capturing
    from esscher.engine.models.inputs import LayerInputs
    from esscher.engine.models.load import load_model
    from esscher.engine.models.loaded import LoadedModel, wrap_model
    from esscher.engine.models.weights import HeadWeights, head_weights

__all__ = [
    "FAMILIES",
    "AnyModel",
    "Family",
    "HeadWeights",
    "LayerInputs",
    "LoadedModel",
    "ModelChoice",
    "ModelLike",
    "ModelShape",
    "Outline",
    "attention_override",
    "capturing",
    "head_weights",
    "load_model",
    "opened_model",
    "outline_of",
    "wrap_model",
]

#: Names that bring torch with them, by module: imported when first asked for, so that requests are
#: checked before.
_LATER = {
    "capture": ("attention_override", "capturing"),
    "inputs": ("LayerInputs",),
    "load": ("load_model",),
    "loaded": ("LoadedModel", "wrap_model"),
    "weights": ("HeadWeights", "head_weights"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
