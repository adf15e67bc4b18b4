"""Real models: loading them, and seeing or replacing what their attention computes."""

from __future__ import annotations

from esscher.models.capture import attention_override, capturing
from esscher.models.families import FAMILIES, Family, ModelShape
from esscher.models.inputs import LayerCapture, LayerInputs
from esscher.models.load import as_loaded, load_model
from esscher.models.loaded import LoadedModel, wrap_model
from esscher.models.reference import (
    AnyModel,
    ModelReference,
    load_for_tasks,
    model_for,
    opened_model,
)
from esscher.models.weights import HeadWeights, head_weights

__all__ = [
    "FAMILIES",
    "AnyModel",
    "Family",
    "HeadWeights",
    "LayerCapture",
    "LayerInputs",
    "LoadedModel",
    "ModelReference",
    "ModelShape",
    "as_loaded",
    "attention_override",
    "capturing",
    "head_weights",
    "load_for_tasks",
    "load_model",
    "model_for",
    "opened_model",
    "wrap_model",
]
