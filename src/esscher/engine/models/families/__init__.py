"""Kinds of models whose attention Esscher can read: encoders and decoders, a class each."""

from __future__ import annotations

from esscher.core.errors import InputError
from esscher.engine.models.families.decoders import Gemma, Gpt2, Llama
from esscher.engine.models.families.encoders import Bert, BigBird, DistilBert, MPNet, Roberta
from esscher.engine.models.families.family import Family, HookFamily, LinearMaps, ModelShape

__all__ = ["FAMILIES", "Family", "HookFamily", "LinearMaps", "ModelShape", "family_of"]

#: Every family, in the order of messages.
FAMILIES: tuple[Family, ...] = (
    Bert(),
    Roberta(),
    DistilBert(),
    MPNet(),
    Gpt2(),
    Llama(),
    Gemma(),
    BigBird(),
)


def family_of(model_type: str, name: str) -> Family:
    """The family of an architecture; ``name`` is the model's, for the message.

    Raises
    ------
    InputError
        For an architecture that no family knows.
    """
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    known = ", ".join(kind for family in FAMILIES for kind in family.model_types)
    raise InputError(
        f"the model {name!r} has the architecture {model_type!r}, which is not supported; "
        f"supported architectures: {known}"
    )
