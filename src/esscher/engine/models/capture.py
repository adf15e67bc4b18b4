"""Attention replaced through transformers' own attention interface, and put back afterwards.

A model asks its configuration for the name of an attention function and looks that name up in a
registry, once per layer and call. For the time of a ``with`` block a private name takes the place
of the model's, and is taken out of the registry at its end. Models that share the configuration
object keep their own attention: the function passes on what is not one of the chosen layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from esscher.core.errors import InputError
from esscher.core.validation import as_indices
from esscher.engine.models.families import Family
from esscher.engine.models.inputs import LayerInputs, Replacement, read_mask
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
def _through_interface(
    family: Family, model: Any, layers: Mapping[int, nn.Module], replacement: Replacement
) -> Iterator[None]:
    """Let ``replacement`` compute the attention of the given modules, within the block."""
    modeling = transformers_module("transformers.modeling_utils")
    masking = transformers_module("transformers.masking_utils")
    configs = attention_configs(model, layers.values())
    names = [config._attn_implementation for config in configs]
    original = names[0]
    check_readable(original)
    numbers = {id(module): layer for layer, module in layers.items()}
    # hidden states that entered each attention module, and the length of its cache
    entered: dict[int, tuple[Tensor | None, int]] = {}

    def enter(layer: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        past = kwargs.get("past_key_values")
        hidden = args[0] if args else kwargs.get("hidden_states")
        entered[layer] = (hidden, 0 if past is None else int(past.get_seq_length(layer)))

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        function = attention_on(family, module, key, original)
        # the model's own attention is computed when it is first asked for, and not again
        compute = cache(lambda: function(module, query, key, value, attention_mask, **options))
        layer = numbers.get(id(module))
        if layer is None:
            return compute()
        hidden, past = entered.pop(layer, (None, 0))
        flag = options.get("is_causal")
        causal = bool(getattr(module, "is_causal", True) if flag is None else flag)
        inputs = layer_inputs(
            layer,
            query,
            key,
            value,
            attention_mask,
            options,
            # without a mask "eager" ignores the flag
            causal=causal and not (attention_mask is None and original == "eager"),
            past=past,
            hidden=hidden,
            original=lambda: compute()[0].transpose(1, 2),
        )
        output = replacement(inputs)
        if output is None:
            return compute()
        return output.to(query).transpose(1, 2).contiguous(), None

    private = f"{PREFIX}{next(_numbers)}"
    handles = [
        module.register_forward_pre_hook(partial(enter, layer), with_kwargs=True)
        for layer, module in layers.items()
    ]
    try:
        modeling.AttentionInterface.register(private, attention)
        masking.AttentionMaskInterface.register(
            private, masking.ALL_MASK_ATTENTION_FUNCTIONS[original]
        )
        for config in configs:
            # Not the public setter: it would also change the parts of a model that are not text.
            config._attn_implementation_internal = private
        yield
    finally:
        for config, name in zip(configs, names, strict=True):
            config._attn_implementation_internal = name
        modeling.AttentionInterface._global_mapping.pop(private, None)
        masking.AttentionMaskInterface._global_mapping.pop(private, None)
        for handle in handles:
            handle.remove()


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
    """Configurations that attention modules, or the masks made for them, read."""
    configs = {id(holder.config): holder.config for holder in (*modules, model)}
    return list(configs.values())


def owned(keys: Tensor, owner: Any) -> Tensor:
    """Return keys that lead to the cache layer that computes attention on them."""
    setattr(keys, OWNER, owner)
    return keys


def attention_on(
    family: Family, module: nn.Module, key: Tensor, implementation: str
) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return what computes attention on keys: the cache that handed them out, or the model."""
    function = family.model_attention(module, implementation)
    owner = getattr(key, OWNER, None)
    return function if owner is None else partial(owner.attend, function)


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
    original: Callable[[], Tensor],
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
    original
        Computes the model's own attention, [batch, heads, n_q, d_v].
    hidden
        What the projections were applied to, if it is known.
    """
    n_q, n_k = query.shape[2], key.shape[2]
    visible, valid, added = read_mask(attention_mask, n_k)
    bias = options.get("position_bias")
    if bias is None:
        bias = added
    elif added is not None:
        bias = bias + added
    return LayerInputs(
        layer=layer,
        q=query.detach(),
        k=key.detach(),
        v=value.detach(),
        scaling=scaling_of(options, query),
        softcap=options.get("softcap"),
        window=options.get("sliding_window"),
        bias=None if bias is None else bias.detach(),
        causal=causal,
        valid=None if valid is None else valid.expand(len(query), -1),
        visible_mask=visible,
        # A cache of fixed size has room behind the queries; a sliding one has lost its start.
        offset=past if past + n_q <= n_k else n_k - n_q,
        hidden=None if hidden is None else hidden.detach(),
        original=original,
    )


def scaling_of(options: Mapping[str, Any], query: Tensor) -> float:
    """Return the factor of the logits among the arguments of an attention function."""
    scaling = options.get("scaling")
    return query.shape[-1] ** -0.5 if scaling is None else float(scaling)


@contextlib.contextmanager
def _through_hooks(
    family: Family,
    blocks: Mapping[int, Any],
    replacement: Replacement,
    head_dim: int,
    *,
    causal: bool,
) -> Iterator[None]:
    """Let ``replacement`` compute the attention of the given layers, within the block.

    For models without an attention interface. A hook on each of the query, key and value
    projections sees q, k and v; a hook before the output projection sees the attention output, and
    what it returns takes that output's place. The model's own attention is computed in any case.
    """
    handles: list[Any] = []

    def attach(layer: int, block: Any) -> None:
        attention = family.attention(block)
        *projections, output_projection = family.projection_modules(block)
        call: dict[str, Any] = {}
        projected: dict[str, Tensor] = {}

        def by_head(merged: Tensor) -> Tensor:
            """[batch, n, heads * d] as [batch, heads, n, d]."""
            batch, n, _ = merged.shape
            return merged.detach().view(batch, n, -1, head_dim).transpose(1, 2)

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if kwargs.get("past_key_values") is not None:
                raise InputError(
                    f"attention of {family.name} models cannot be captured with a key cache; "
                    "call the model with use_cache=False"
                )
            call.update(dict(zip(family.hooked, args, strict=False)) | kwargs)
            projected.clear()

        def project(name: str, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            projected[name] = by_head(output)

        def leave(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            merged, *rest = args
            attended, bias = by_head(merged), call.get("position_bias")
            inputs = layer_inputs(
                layer,
                projected["q"],
                projected["k"],
                projected["v"],
                call.get("attention_mask"),
                # the model repeats the same bias for every text of a batch
                {"position_bias": None if bias is None else bias[0]},
                causal=causal,
                past=0,
                hidden=call["hidden_states"],
                original=lambda: attended,
            )
            call.clear()
            projected.clear()
            output = replacement(inputs)
            if output is None:
                return None
            return (output.to(merged).transpose(1, 2).reshape(merged.shape), *rest)

        handles.append(attention.register_forward_pre_hook(enter, with_kwargs=True))
        for name, module in zip("qkv", projections, strict=True):
            handles.append(module.register_forward_hook(partial(project, name)))
        handles.append(output_projection.register_forward_pre_hook(leave))

    try:
        for layer, block in blocks.items():
            attach(layer, block)
        yield
    finally:
        for handle in handles:
            handle.remove()


# Watch or replace the attention of a model: within a ``with`` block, or while it reads tokens.


@contextlib.contextmanager
def attention_override(
    loaded: LoadedModel, replacement: Replacement, *, layers: Sequence[int] | None = None
) -> Iterator[None]:
    """Replace the attention of some layers by a function, within a block.

    The rest of the model is untouched, and so is everything after the block, also when it ends
    with an exception. Blocks can be nested: the inner replacement's ``inputs.original()`` is then
    what the outer one computes. Works with ``generate``; not with several threads that use the same
    model.

    Parameters
    ----------
    loaded
        The model.
    replacement
        Takes :class:`LayerInputs`, returns the attention output [batch, heads, n_q, d_v] before
        the output projection, or None for the model's own. ``inputs.original()`` computes the
        model's own, ``inputs.attend()`` the same by the definition.
    layers
        Numbers of the layers; all of them if left out.
    """
    family, model = loaded.family, loaded.model
    # graphs of torch.compile hold no replacement: it may pass arrays on by their addresses
    replacement = torch.compiler.disable(replacement)  # type: ignore[no-untyped-call]
    with family.prepared(model):
        blocks = family.blocks(model)
        chosen = {i: blocks[i] for i in as_indices(layers, len(blocks), "layers")}
        if family.hooked:
            dim = loaded.shape.head_dim
            replacing = _through_hooks(family, chosen, replacement, dim, causal=loaded.causal)
        else:
            modules = {i: family.attention(block) for i, block in chosen.items()}
            replacing = _through_interface(family, model, modules, replacement)
        with replacing:
            yield


class _Enough(Exception):
    """Raised behind the last layer that is wanted, so that the rest need not be computed."""


def run_captured(
    loaded: LoadedModel,
    input_ids: Tensor,
    sink: Callable[[LayerInputs], object],
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
        Takes :class:`LayerInputs`, layer after layer; nothing else keeps what it is handed.
    layers
        Numbers of the layers; all of them if left out.
    """
    chosen = as_indices(layers, loaded.shape.layers, "layers")

    def watch(capture: LayerInputs) -> None:
        sink(capture)
        if capture.layer == chosen[-1]:
            raise _Enough

    ids = input_ids.to(loaded.device)
    options = {"use_cache": False} if loaded.family.decoder else {}
    override = attention_override(loaded, watch, layers=chosen)
    with torch.no_grad(), override, contextlib.suppress(_Enough):
        loaded.backbone(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
