"""Attention replaced through transformers' own attention interface, and put back afterwards.

A model asks its configuration for the name of an attention function and looks that name up in a
registry, once per layer and call. For the time of a ``with`` block a private name takes the place
of the model's, and is taken out of the registry at its end. Models that share the configuration
object keep their own attention: the function passes on what is not one of the chosen layers.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from esscher.core.errors import InputError
from esscher.core.validation import as_indices
from esscher.engine.models.families import Family, HookedArguments, HookFamily, Projections
from esscher.engine.models.inputs import LayerCapture, LayerInputs, Replacement, checked, read_mask
from esscher.engine.models.loaded import LoadedModel
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


# Attention captured and replaced with forward hooks, for models without an attention interface.
#
# A hook on each of the query, key and value projections sees q, k and v; a hook before the output
# projection sees the attention output, and what it returns takes that output's place. The model's
# own attention is computed in any case.


@contextlib.contextmanager
def through_hooks(
    family: HookFamily, blocks: Mapping[int, Any], replacement: Replacement, *, causal: bool
) -> Iterator[None]:
    """Let ``replacement`` compute the attention of the given layers, within the block."""
    hooks = [_LayerHooks(family, i, block, replacement, causal) for i, block in blocks.items()]
    handles: list[Any] = []
    try:
        for layer in hooks:
            handles += layer.attach()
        yield
    finally:
        for handle in handles:
            handle.remove()


class _LayerHooks:
    """The hooks of one layer, and what they have seen since the layer was entered."""

    def __init__(
        self, family: HookFamily, layer: int, block: Any, replacement: Replacement, causal: bool
    ) -> None:
        self._family, self._layer, self._replacement = family, layer, replacement
        self._module = family.attention(block)
        self._parts: Projections = family.projections(block)
        self._causal = causal
        self._call: HookedArguments | None = None
        self._projected: dict[str, Tensor] = {}

    def attach(self) -> list[Any]:
        """Hang the hooks on the modules; return what removes them."""
        parts = self._parts
        return [
            self._module.register_forward_pre_hook(self._enter, with_kwargs=True),
            parts.query.register_forward_hook(self._project("q")),
            parts.key.register_forward_hook(self._project("k")),
            parts.value.register_forward_hook(self._project("v")),
            parts.output.register_forward_pre_hook(self._leave),
        ]

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs.get("past_key_values") is not None:
            raise InputError(
                f"attention of {self._family.name} models cannot be captured with a key cache; "
                "call the model with use_cache=False"
            )
        self._call = self._family.arguments(args, kwargs)
        self._projected.clear()

    def _project(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def note(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            self._projected[name] = self._by_head(output)

        return note

    def _leave(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        merged, *rest = args
        inputs = self._inputs(self._by_head(merged))
        self._call = None
        self._projected.clear()
        output = checked(self._replacement(inputs), inputs)
        if output is None:
            return None
        return (output.transpose(1, 2).reshape(merged.shape), *rest)

    def _by_head(self, merged: Tensor) -> Tensor:
        """[batch, n, heads * d] as [batch, heads, n, d]."""
        batch, n, _ = merged.shape
        return merged.detach().view(batch, n, -1, self._parts.head_dim).transpose(1, 2)

    def _inputs(self, own: Tensor) -> LayerInputs:
        assert self._call is not None
        q, k, v = (self._projected[name] for name in "qkv")
        mask = read_mask(self._call.mask, k.shape[2])
        biases = [bias for bias in (self._call.bias, mask.bias) if bias is not None]
        return LayerInputs(
            layer=self._layer,
            q=q,
            k=k,
            v=v,
            scaling=self._parts.head_dim**-0.5,
            softcap=None,
            window=None,
            bias=torch.as_tensor(sum(biases)).detach() if biases else None,
            causal=self._causal,
            valid=None if mask.valid is None else mask.valid.expand(len(q), -1),
            visible_mask=mask.visible,
            offset=0,
            hidden=self._call.hidden.detach(),
            own=lambda: own,
        )


# Watch or replace the attention of a model: within a ``with`` block, or while it reads tokens.


@contextlib.contextmanager
def attention_override(
    loaded: LoadedModel, replacement: Replacement, *, layers: Sequence[int] | None = None
) -> Iterator[None]:
    """Replace the attention of some layers by a function, within a block.

    The rest of the model is untouched, and so is everything after the block, also when it ends
    with an exception. Blocks can be nested: the inner replacement's ``inputs.own()`` is then what
    the outer one computes. Works with ``generate``; not with several threads that use the same
    model.

    Parameters
    ----------
    loaded
        The model.
    replacement
        Takes :class:`LayerInputs`, returns the attention output [batch, heads, n_q, d_v] before
        the output projection, or None for the model's own. ``inputs.own()`` computes the model's
        own, ``inputs.attend()`` the same by the definition.
    layers
        Numbers of the layers; all of them if left out.
    """
    family, model = loaded.family, loaded.model
    # graphs of torch.compile hold no replacement: it may pass arrays on by their addresses
    replacement = torch.compiler.disable(replacement)  # type: ignore[no-untyped-call]
    with family.prepared(model):
        blocks = family.blocks(model)
        chosen = {i: blocks[i] for i in as_indices(layers, len(blocks), "layers")}
        if isinstance(family, HookFamily):
            with through_hooks(family, chosen, replacement, causal=loaded.causal):
                yield
        else:
            modules = {i: family.attention(block) for i, block in chosen.items()}
            with through_interface(family, model, modules, replacement):
                yield


@contextlib.contextmanager
def capturing(
    loaded: LoadedModel,
    sink: Callable[[LayerCapture], object],
    *,
    layers: Sequence[int] | None = None,
) -> Iterator[None]:
    """Hand the queries, keys, values and output of some layers to ``sink``, within a block.

    Used like this::

        with capturing(loaded, lambda seen: print(seen.layer, seen.q.shape)):
            loaded.model(**batch)

    The sink is called once per layer and call of the model, while the model runs. Nothing is kept
    but what the sink keeps. The output is bit for bit that of the model.

    Parameters
    ----------
    loaded
        The model.
    sink
        Takes :class:`LayerCapture`; what it returns is ignored.
    layers
        Numbers of the layers; all of them if left out.
    """

    def watch(inputs: LayerInputs) -> Tensor | None:
        fields = {f.name: getattr(inputs, f.name) for f in dataclasses.fields(LayerInputs)}
        sink(LayerCapture(**fields, output=inputs.own().detach()))
        return None

    with attention_override(loaded, watch, layers=layers):
        yield


class _Enough(Exception):
    """Raised behind the last layer that is wanted, so that the rest need not be computed."""


def run_captured(
    loaded: LoadedModel,
    input_ids: Tensor,
    sink: Callable[[LayerCapture], object],
    *,
    layers: Sequence[int] | None = None,
) -> None:
    """Run the model up to the last chosen layer and hand every chosen layer to ``sink``.

    Parameters
    ----------
    loaded
        The model.
    input_ids
        Token ids [batch, n], without padding.
    sink
        Takes :class:`LayerCapture`, layer after layer; nothing else keeps what it is handed.
    layers
        Numbers of the layers; all of them if left out.
    """
    chosen = as_indices(layers, loaded.shape.layers, "layers")

    def watch(capture: LayerCapture) -> None:
        sink(capture)
        if capture.layer == chosen[-1]:
            raise _Enough

    ids = input_ids.to(loaded.device)
    options = {"use_cache": False} if loaded.family.decoder else {}
    with torch.no_grad(), capturing(loaded, watch, layers=chosen), contextlib.suppress(_Enough):
        loaded.backbone(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
