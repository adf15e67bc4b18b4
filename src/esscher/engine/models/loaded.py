"""A model ready to be measured: weights, tokenizer, and the layout of its attention."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.engine.models.families import family_of
from esscher.engine.models.outline import ModelRecord, Outline, described

#: Roles of tokens that delimit texts; they often act as sinks.
DELIMITER_ROLES = ("cls_token", "sep_token", "bos_token", "eos_token", "pad_token")
#: Weights of which a sample consists.
SAMPLED = 64

T = TypeVar("T")


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
    """

    model: Any
    tokenizer: Any
    delimiter_ids: frozenset[int]

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


def wrap_model(model: Any, tokenizer: Any = None, *, name: str | None = None) -> LoadedModel:
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


def tensor_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bits of tensors."""
    digest = hashlib.sha256()
    for key, tensor in sorted(tensors.items()):
        digest.update(f"{key}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        # Viewed as bytes, since numpy does not know every type of torch.
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def weight_sample(model: Any) -> str:
    """Some weights as 32-bit numbers, in hexadecimal digits: which ones depends on names alone.

    By it, the same weights are known again in another type.
    """
    tensors = {
        key: tensor
        for key, tensor in sorted(model.state_dict().items())
        if tensor.is_floating_point() and tensor.numel()
    }
    names = list(tensors)
    chosen = []
    for i in range(SAMPLED):
        key = names[i * len(names) // SAMPLED]
        flat = tensors[key].detach().reshape(-1)
        at = int.from_bytes(hashlib.sha256(f"{key}:{i}".encode()).digest()[:8], "little")
        chosen.append(flat[at % flat.numel()].to("cpu", torch.float32))
    return torch.stack(chosen).numpy().astype("<f4").tobytes().hex()


# Weights that were looked at before: hashed and checked once, not for every cache of a plan.
#
# A model in memory is known again by where its weights lie and how often they were written to, and
# by a sample of them. What writes around PyTorch's count of writes (``weight.data``) is noticed by
# the sample alone.

#: What changes when weights do, and what was computed from them, by model.
_computed: WeakKeyDictionary[Any, tuple[tuple[Any, ...], dict[str, Any]]] = WeakKeyDictionary()


def computed_once(model: Any, key: str, compute: Callable[[Any], T]) -> T:
    """Return what a function computes from a model's weights; again only if they changed.

    Parameters
    ----------
    model
        The model.
    key
        Name of the result.
    compute
        Takes the model.
    """
    tensors = list(model.state_dict(keep_vars=True).values())
    if any(tensor.is_inference() or tensor.is_meta for tensor in tensors):
        return compute(model)  # their writes are not counted
    state = (*((tensor.data_ptr(), tensor._version) for tensor in tensors), weight_sample(model))
    if model not in _computed or _computed[model][0] != state:
        _computed[model] = state, {}
    results = _computed[model][1]
    if key not in results:
        results[key] = compute(model)
    result: T = results[key]
    return result
