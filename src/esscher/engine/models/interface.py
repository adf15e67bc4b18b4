"""Attention replaced through transformers' own attention interface, and put back afterwards.

A model asks its configuration for the name of an attention function and looks that name up in a
registry, once per layer and call. For the time of a ``with`` block a private name takes the place
of the model's, and is taken out of the registry at its end. Models that share the configuration
object keep their own attention: the function passes on what is not one of the chosen layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import count
from typing import Any

from torch import Tensor, nn

from esscher.core.errors import InputError
from esscher.engine.models.families import Family
from esscher.engine.models.inputs import LayerInputs, Replacement, checked, read_mask
from esscher.engine.models.transformers_library import transformers_module

#: Attention functions whose masks can be read; others hand their kernels no mask at all.
READABLE = ("eager", "sdpa")
#: How private names start; they are numbered so that blocks can be nested.
PREFIX = "esscher_"
#: Attribute of keys that a cache handed out and on which the cache itself computes attention.
OWNER = "_esscher_owner"

_numbers = count()


@contextlib.contextmanager
def through_interface(
    family: Family, model: Any, layers: Mapping[int, nn.Module], replacement: Replacement
) -> Iterator[None]:
    """Let ``replacement`` compute the attention of the given modules, within the block."""
    modeling = transformers_module("transformers.modeling_utils")
    masking = transformers_module("transformers.masking_utils")
    configs = attention_configs(model, layers.values())
    names = [config._attn_implementation for config in configs]
    original = names[0]
    check_readable(original)
    private = f"{PREFIX}{next(_numbers)}"
    seen = _Seen(layers)
    function = _attention_function(family, layers, replacement, original, seen)
    make_mask = masking.ALL_MASK_ATTENTION_FUNCTIONS[original]
    try:
        modeling.AttentionInterface.register(private, function)
        masking.AttentionMaskInterface.register(private, make_mask)
        for config in configs:
            # Not the public setter: it would also change the parts of a model that are not text.
            config._attn_implementation_internal = private
        yield
    finally:
        for config, name in zip(configs, names, strict=True):
            config._attn_implementation_internal = name
        modeling.AttentionInterface._global_mapping.pop(private, None)
        masking.AttentionMaskInterface._global_mapping.pop(private, None)
        seen.close()


def check_readable(implementation: str) -> None:
    """Refuse an attention function whose masks cannot be read.

    Raises
    ------
    InputError
        Naming those that can.
    """
    if implementation not in READABLE and not implementation.startswith(PREFIX):
        raise InputError(
            f"the model computes attention with {implementation!r}, whose masks cannot be read; "
            f"load it with attn_implementation set to one of {', '.join(READABLE)}"
        )


def attention_configs(model: Any, modules: Iterable[nn.Module]) -> list[Any]:
    """Every configuration that attention modules, or the masks made for them, look at."""
    found: dict[int, Any] = {}
    for holder in (*modules, model):
        found.setdefault(id(holder.config), holder.config)
    return list(found.values())


def owned(keys: Tensor, owner: Any) -> Tensor:
    """Return keys that lead to the cache layer that computes attention on them."""
    setattr(keys, OWNER, owner)
    return keys


def attention_on(
    family: Family, module: nn.Module, key: Tensor, implementation: str
) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return what computes attention on keys: the cache that handed them out, or the model."""
    function = family.own_attention(module, implementation)
    owner = getattr(key, OWNER, None)
    return function if owner is None else partial(owner.attend, function)


class _Once:
    """The model's own attention, computed when it is first asked for and not again."""

    def __init__(self, compute: Callable[[], tuple[Tensor, Tensor | None]]) -> None:
        self._compute = compute

    @cached_property
    def result(self) -> tuple[Tensor, Tensor | None]:
        """Output in the model's own layout, [batch, n_q, heads, d_v], and weights if it has any."""
        return self._compute()


class _Seen:
    """Notes of what enters each attention module: hidden states and the length of its cache."""

    def __init__(self, layers: Mapping[int, nn.Module]) -> None:
        self._notes: dict[int, tuple[Tensor | None, int]] = {}
        self._handles = [
            module.register_forward_pre_hook(self._hook(layer), with_kwargs=True)
            for layer, module in layers.items()
        ]

    def _hook(self, layer: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = args[0] if args else kwargs.get("hidden_states")
            cache = kwargs.get("past_key_values")
            length = 0 if cache is None else int(cache.get_seq_length(layer))
            self._notes[layer] = (hidden, length)

        return note

    def take(self, layer: int) -> tuple[Tensor | None, int]:
        return self._notes.pop(layer, (None, 0))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._notes.clear()


def _attention_function(
    family: Family,
    layers: Mapping[int, nn.Module],
    replacement: Replacement,
    original: str,
    seen: _Seen,
) -> Callable[..., tuple[Tensor, Tensor | None]]:
    numbers = {id(module): layer for layer, module in layers.items()}

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        function = attention_on(family, module, key, original)
        once = _Once(lambda: function(module, query, key, value, attention_mask, **options))
        layer = numbers.get(id(module))
        if layer is None:
            return once.result
        hidden, past = seen.take(layer)
        inputs = layer_inputs(
            layer,
            query,
            key,
            value,
            attention_mask,
            options,
            causal=_is_causal(module, options, attention_mask, original),
            past=past,
            hidden=hidden,
            own=lambda: once.result[0].transpose(1, 2),
        )
        output = checked(replacement(inputs), inputs)
        if output is None:
            return once.result
        return output.transpose(1, 2).contiguous(), None

    return attention


def layer_inputs(
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    options: Mapping[str, Any],
    *,
    causal: bool,
    past: int,
    own: Callable[[], Tensor],
    hidden: Tensor | None = None,
) -> LayerInputs:
    """Read the arguments of an attention function.

    Parameters
    ----------
    layer
        Number of the layer.
    query, key, value, attention_mask, options
        As the model hands them to its attention function.
    causal
        Whether queries see only earlier keys.
    past
        Tokens in the cache before this call.
    own
        Computes the model's own attention, [batch, heads, n_q, d_v].
    hidden
        What the projections were applied to, if it is known.
    """
    n_q, n_k = query.shape[2], key.shape[2]
    mask = read_mask(attention_mask, n_k)
    bias = options.get("position_bias")
    if bias is not None and mask.bias is not None:
        bias = bias + mask.bias
    return LayerInputs(
        layer=layer,
        q=query.detach(),
        k=key.detach(),
        v=value.detach(),
        scaling=scaling_of(options, query),
        softcap=options.get("softcap"),
        window=options.get("sliding_window"),
        bias=mask.bias if bias is None else bias.detach(),
        causal=causal,
        valid=None if mask.valid is None else mask.valid.expand(len(query), -1),
        visible_mask=mask.visible,
        # A cache of fixed size has room behind the queries; a sliding one has lost its start.
        offset=past if past + n_q <= n_k else n_k - n_q,
        hidden=None if hidden is None else hidden.detach(),
        own=own,
    )


def scaling_of(options: Mapping[str, Any], query: Tensor) -> float:
    """Return the factor of the logits among the arguments of an attention function."""
    scaling = options.get("scaling")
    return query.shape[-1] ** -0.5 if scaling is None else float(scaling)


def _is_causal(
    module: nn.Module, options: Mapping[str, Any], mask: Tensor | None, original: str
) -> bool:
    """Tell whether attention is causal; without a mask "eager" ignores the flag."""
    flag = options.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if flag is None else flag)
    return causal and not (mask is None and original == "eager")
