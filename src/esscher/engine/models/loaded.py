"""A model ready to be measured: weights, tokenizer, and what is known about its attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from esscher.core.errors import InputError
from esscher.engine.models.families import family_of
from esscher.engine.models.outline import Outline, described
from esscher.engine.models.record import ModelRecord, computed_once, tensor_hash, weight_sample

#: Roles of tokens that stand at the ends of texts and mean nothing; they often act as sinks.
DELIMITER_ROLES = ("cls_token", "sep_token", "bos_token", "eos_token", "pad_token")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LoadedModel(Outline):
    """A transformers model in evaluation mode.

    Attributes
    ----------
    model
        The model itself.
    tokenizer
        Its tokenizer; None only for a model that was handed in without one.
    delimiter_ids
        Token ids of delimiters: beginning and end of text, separators, padding.
    provenance
        Where it came from: source, revision, commit.
    """

    model: Any
    tokenizer: Any
    delimiter_ids: frozenset[int]
    provenance: Mapping[str, Any]

    # two models with the same outline are two models
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def outline(self) -> Outline:
        """The model as far as requests are checked against it, without its weights."""
        return Outline(**{f.name: getattr(self, f.name) for f in fields(Outline)})

    @property
    def backbone(self) -> Any:
        """The model without the head on top: enough for everything that attention does."""
        return self.family.backbone(self.model)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return torch.device(next(self.model.parameters()).device)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return dtype

    @cached_property
    def weight_hash(self) -> str:
        """SHA-256 over all weights, tensor by tensor; computed when first asked for."""
        return computed_once(self.model, "hash", lambda model: tensor_hash(model.state_dict()))

    @cached_property
    def record(self) -> ModelRecord:
        """The model as stored runs name it; folders by their last part alone."""
        return ModelRecord(
            name=Path(self.name).name,
            family=self.family.name,
            architecture=self.family.config(self.model).model_type,
            layers=self.shape.layers,
            heads=self.shape.heads,
            key_heads=self.shape.key_heads,
            head_dim=self.shape.head_dim,
            hidden=self.shape.hidden,
            causal=self.causal,
            max_positions=self.max_positions,
            dtype=self.weights,
            note=self.family.note,
            weight_hash=self.weight_hash,
            weight_sample=weight_sample(self.model),
        )

    def __repr__(self) -> str:
        shape = self.shape
        keys = "" if shape.key_heads == shape.heads else f" ({shape.key_heads} key heads)"
        return (
            f"LoadedModel({self.name!r}, {self.family.name}, {shape.layers} layers x "
            f"{shape.heads} heads{keys}, d_k={shape.head_dim}, "
            f"{'causal' if self.causal else 'bidirectional'}, {self.max_positions} positions)"
        )


def wrap_model(
    model: Any,
    tokenizer: Any = None,
    *,
    name: str | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> LoadedModel:
    """Look at a transformers model that is in memory already; it is put into evaluation mode.

    Raises
    ------
    InputError
        For an unsupported architecture, a model without attention layers, or weights that are not
        finite.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "model_type"):
        raise InputError(f"model is {type(model).__name__}; it must be a transformers model")
    title = name or getattr(config, "name_or_path", "") or type(model).__name__
    family = family_of(config.model_type, title)
    model.eval()
    inner, blocks = family.config(model), family.blocks(model)
    outline = described(title, inner.to_dict(), len(blocks))
    causal = outline.causal
    if not family.hooked:
        causal = any(bool(family.attention(block).is_causal) for block in blocks)
    computed_once(model, "finite", lambda model: _check_finite(model, title))
    delimiters: set[int] = set()
    for role in DELIMITER_ROLES:
        value = getattr(inner if tokenizer is None else tokenizer, f"{role}_id", None)
        if value is not None:
            delimiters.update(value if isinstance(value, (list, tuple)) else [value])
    return LoadedModel(
        name=title,
        family=family,
        shape=outline.shape,
        causal=causal,
        max_positions=outline.max_positions,
        window=outline.window,
        weights=str(next(model.parameters()).dtype).removeprefix("torch."),
        model=model,
        tokenizer=tokenizer,
        delimiter_ids=frozenset(delimiters),
        provenance={"name": title, **(provenance or {})},
    )


def _check_finite(model: Any, name: str) -> None:
    """Check that all weights are finite.

    Raises
    ------
    InputError
        Naming the first tensor with a weight that is not.
    """
    for key, tensor in model.named_parameters():
        finite = torch.isfinite(tensor.detach())
        if not bool(finite.all()):
            bad = int(finite.numel() - finite.sum())
            raise InputError(
                f"the model {name!r} has weights that are not finite: {bad} of {finite.numel()} "
                f"in {key!r}; its file is damaged, or was converted to a type too small for it"
            )
