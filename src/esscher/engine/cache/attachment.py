"""A model that knows reduced caches: they compute attention on what they hold, themselves.

A model asks its configuration for the name of an attention function. While its backbone is called
with a reduced cache, that name is a private one, whose function passes keys back to the cache that
handed them out. Called with any other cache, or none, the model is what it was: its forward looks
at one argument and does nothing else.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from esscher.core.errors import InputError
from esscher.engine.cache.call import Call
from esscher.engine.cache.holding import no_gradients
from esscher.engine.cache.repeating import (
    ARGUMENT,
    check_repeatable,
    repeat_read,
    tokens_before,
)
from esscher.engine.models.families import HookFamily, family_of
from esscher.engine.models.interface import (
    PREFIX,
    READABLE,
    attention_configs,
    attention_on,
    check_readable,
)
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.models.transformers_library import transformers_module

#: Attribute of a backbone that has one.
SWITCH = "_esscher_switch"


def attach(loaded: LoadedModel) -> None:
    """Let a model compute attention with reduced caches; done once per model.

    Raises
    ------
    InputError
        For a model that has no cache, or attention that cannot be replaced.
    """
    family = loaded.family
    if not loaded.causal or not family.decoder or isinstance(family, HookFamily):
        raise InputError(
            f"{loaded.name!r} is an encoder and has no key cache; use plan.apply(model), which "
            "reduces what each of its heads attends to"
        )
    backbone = loaded.backbone
    modules = [family.attention(block) for block in family.blocks(loaded.model)]
    configs = attention_configs(backbone, modules)
    check_readable(str(configs[0]._attn_implementation))
    if hasattr(backbone, SWITCH):
        return
    _register()
    switch = Switch(backbone, configs)
    setattr(backbone, SWITCH, switch)
    backbone.forward = switch.forward


class Switch:
    """The forward of a backbone: called with a reduced cache, attention goes to the cache.

    Two hooks would not do: PyTorch leaves out the second when a call is interrupted. Calls with
    reduced caches take turns, because threads share the configurations.
    """

    def __init__(self, module: nn.Module, configs: list[Any]) -> None:
        own = vars(module).get("forward")  # of others who took its place
        self.__setstate__((module, configs, own))

    def __getstate__(self) -> Any:
        return self._module(), self._configs, self._own

    def __setstate__(self, state: Any) -> None:
        module, self._configs, self._own = state
        self._module = weakref.ref(module)  # a model is freed when it is let go
        self._turn = threading.RLock()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the backbone."""
        module = self._module()
        assert module is not None
        forward = partial(type(module).forward, module) if self._own is None else self._own
        named = _by_name(module, args, kwargs)
        cache = _own_cache(named.get(ARGUMENT))
        if cache is None:
            return forward(*args, **kwargs)
        return self._call(module, forward, cache, named)

    # graphs of torch.compile hold no cache: its arrays are passed to the kernel by their addresses
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _call(self, module: nn.Module, forward: Any, cache: Any, kwargs: dict[str, Any]) -> Any:
        """Read a long prompt up to its last piece, then the rest."""
        call = cache.call
        with self._turn:
            if call.reading or call.repeating is not None:
                return self._read(module, forward, cache, kwargs)
            call.check_finished()
            _check_autocast(kwargs)
            _check_gradients(module, kwargs)
            check_repeatable(cache, kwargs)
            with cache.changing():
                kwargs = _read_first(module, cache, kwargs)
                output = self._read(module, forward, cache, kwargs)
                if call.reading:
                    cache.stop_reading()
            return output

    def _read(self, module: nn.Module, forward: Any, cache: Any, kwargs: dict[str, Any]) -> Any:
        """Read tokens with the attention of the cache, and let the model repeat them."""
        call, names = cache.call, [str(config._attn_implementation) for config in self._configs]
        first = call.repeating is None
        if first:
            ids = kwargs.get("input_ids")
            call.repeats = ids is not None and cache.repeats(ids.shape[1])
        try:
            # an attention_override block passes keys of a cache back by itself
            if not names[0].startswith(PREFIX):
                check_readable(names[0])
                for config, name in zip(self._configs, names, strict=True):
                    config._attn_implementation_internal = _private(name)
            output = forward(**kwargs)
        finally:
            for config, name in zip(self._configs, names, strict=True):
                config._attn_implementation_internal = name
        call.check_returned()
        call.forget_mask()
        if first and call.repeats:
            repeat_read(module, cache, kwargs)
        return output


def _check_autocast(kwargs: dict[str, Any]) -> None:
    ids = kwargs.get("input_ids")
    given = kwargs.get("inputs_embeds") if ids is None else ids
    if given is not None and torch.is_autocast_enabled(given.device.type):
        raise InputError(
            "a reduced cache holds keys in the type of the model, and torch.autocast would change "
            "it on the way; call the model outside of torch.autocast (load it in bfloat16 if that "
            "is what you want)"
        )


def _check_gradients(module: nn.Module, kwargs: dict[str, Any]) -> None:
    """Refuse weights and inputs that expect gradients before any layer has taken tokens."""
    if not torch.is_grad_enabled():
        return
    given = (*module.parameters(), kwargs.get("inputs_embeds"))
    if any(x is not None and x.requires_grad for x in given):
        raise no_gradients()


def _private(name: str) -> str:
    return f"{PREFIX}cache_{name}"


def _register() -> None:
    """Make the private names known to transformers; done once."""
    modeling = transformers_module("transformers.modeling_utils")
    masking = transformers_module("transformers.masking_utils")
    for name in READABLE:
        modeling.AttentionInterface.register(_private(name), partial(_attention, name))
        make_mask = masking.ALL_MASK_ATTENTION_FUNCTIONS[name]
        masking.AttentionMaskInterface.register(_private(name), make_mask)


def _attention(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of a module by the cache of its keys, or by the model itself."""
    config: Any = module.config
    family = family_of(config.model_type, config.model_type)
    attend = attention_on(family, module, key, implementation)
    return attend(module, query, key, value, attention_mask, **options)


@contextlib.contextmanager
def cache_by_default(loaded: LoadedModel, cache: Any) -> Iterator[None]:
    """Let a model use a cache where it was given an empty one, or none, within a block."""

    def replace(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        kwargs = _by_name(module, args, kwargs)
        given, wanted = kwargs.get(ARGUMENT), kwargs.get("use_cache")
        if given is None and not (module.config.use_cache if wanted is None else wanted):
            return None
        # a cache that was filled before the block is left alone
        if given is not None and (given is cache or given.get_seq_length() > 0):
            return None
        cache.reset()
        return (), kwargs | {ARGUMENT: cache}

    handle = loaded.backbone.register_forward_pre_hook(replace, prepend=True, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _by_name(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a call by their names."""
    if not args:
        return kwargs
    _, *names = signature(type(module).forward).parameters
    return dict(zip(names, args, strict=False)) | kwargs


def _read_first(module: nn.Module, cache: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Read all of a long prompt but its last piece; return the arguments of the last."""
    name = "inputs_embeds" if kwargs.get("inputs_embeds") is not None else "input_ids"
    inputs = kwargs.get(name)
    if inputs is None or not cache.splits(inputs.shape[1]):
        return kwargs
    tokens, seen, chunk = inputs.shape[1], cache.get_seq_length(), cache.chunk
    assert chunk is not None
    # pieces of equal length, as far as they can be
    pieces = -(-tokens // chunk)
    ends = [tokens * (i + 1) // pieces for i in range(pieces)]
    cache.call.reading, start = True, 0
    for end in ends[:-1]:
        module(**_piece(kwargs, name, start, end, seen))
        start = end
        cache.call.earlier = tokens_before(kwargs, start)
    return _piece(kwargs, name, start, tokens, seen)


def _piece(kwargs: dict[str, Any], name: str, start: int, end: int, seen: int) -> dict[str, Any]:
    """Arguments that read some of the tokens of a call."""
    out = kwargs | {name: kwargs[name][:, start:end]}
    mask, places = kwargs.get("attention_mask"), kwargs.get("position_ids")
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            raise InputError(
                "a prompt can be read in pieces with an attention mask [batch, tokens], and this "
                "model was handed another; leave chunk out (a model that also reads images makes "
                "its masks itself: load its text model)"
            )
        out["attention_mask"] = mask[:, : seen + end]
    if places is not None:
        out["position_ids"] = places[..., start:end]
    return out


def _own_cache(argument: Any) -> Any:
    """The argument if it is a cache that computes attention itself, else None."""
    return argument if isinstance(getattr(argument, "call", None), Call) else None
