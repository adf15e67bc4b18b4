"""Attention captured and replaced with forward hooks, for models without an attention interface.

A hook on each of the query, key and value projections sees q, k and v; a hook before the output
projection sees the attention output, and what it returns takes that output's place. The model's
own attention is computed in any case.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from esscher.core.errors import InputError
from esscher.engine.models.families import HookFamily
from esscher.engine.models.families.family import HookedArguments, Projections
from esscher.engine.models.inputs import LayerInputs, Replacement, checked, read_mask


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
