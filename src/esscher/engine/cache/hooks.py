"""Attention of a model goes to its reduced cache, and what all layers of a call share.

A model asks its configuration for the name of an attention function. While its backbone is called
with a reduced cache, that name is a private one, whose function passes keys back to the cache
that handed them out. Called with any other cache, or none, the model is what it was: its forward
looks at one argument and does nothing else.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from esscher.core.errors import InputError
from esscher.engine.cache.repeating import (
    ARGUMENT,
    check_repeatable,
    repeat_read,
)
from esscher.engine.models.capture import (
    PREFIX,
    READABLE,
    attention_configs,
    attention_on,
    check_readable,
)
from esscher.engine.models.families import family_of
from esscher.engine.models.inputs import read_mask
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.models.transformers_library import transformers_module

#: Attribute of a backbone that has a :class:`Switch`.
SWITCH = "_esscher_switch"
#: A mask as far as it concerns the tail: which keys every query sees, [batch, n_q, tail] (None: all
#: up to its own), and new tokens that are padding, [batch, n_q] (None: there are none).
TailMask: TypeAlias = tuple[Tensor | None, Tensor | None]


@dataclass
class Call:
    """What the layers of a cache know about the call that goes on.

    Attributes
    ----------
    reading
        Whether a prompt is being read in pieces.
    handed
        Number of the layer whose keys were handed to the model and not yet come back.
    repeats
        Whether the model will repeat what it reads in this call.
    repeating
        From where to where the queries of each text repeat it, while the model does so.
    unfinished
        Whether a call goes on, or did not come to its end.
    mask
        The mask of the call, and what was read from it: it is the same for all layers.
    """

    reading: bool = False
    handed: int | None = None
    repeats: bool = False
    repeating: list[tuple[int, int]] | None = None
    unfinished: bool = False
    mask: tuple[Tensor, TailMask] | None = field(default=None, repr=False)

    def check_returned(self) -> None:
        """Refuse to go on from keys that were handed to the model and did not come back.

        Raises
        ------
        InputError
            If the model computed attention on them by itself: they are a part of the keys.
        """
        if self.handed is not None:
            raise InputError(
                f"attention of layer {self.handed} was not computed by the reduced cache: the "
                "cache was made for another model, or the model's attention was replaced while it "
                "ran. Start again with a new cache (plan.cache(model)), or cache.reset()"
            )

    def check_finished(self) -> None:
        """Refuse to go on from a call of which some layers know and others do not.

        Raises
        ------
        InputError
            If it was interrupted, or failed.
        """
        if self.unfinished:
            raise InputError(
                "the cache is unfinished: a call with it was interrupted, or failed, and its "
                "layers hold different tokens. Start again with a new cache (plan.cache(model)), "
                "or cache.reset()"
            )

    def finish(self) -> None:
        """Forget the call, but not whether it came to its end."""
        self.reading, self.handed, self.repeats, self.repeating = False, None, False, None
        self.mask = None

    def tail_mask(
        self, mask: Tensor | None, queries: int, tail: int, padding: Tensor | None
    ) -> TailMask:
        """Read the mask of a call.

        Parameters
        ----------
        mask
            As the model made it, [batch, 1, queries, tokens seen], of bool or of numbers to be
            added; None if position alone decides.
        queries
            New tokens.
        tail
            Tokens of the tail, the new ones included.
        padding
            True at tokens before the tail that are padding, [batch, tokens]; None if there are
            none.

        Raises
        ------
        InputError
            If it is more than a mask, or does not show the tokens that were seen before the tail,
            or shows their padding: what is kept of them stands for all of them.
        """
        if mask is None:
            return None, None
        if self.mask is not None and self.mask[0] is mask:
            return self.mask[1]
        if mask.shape[1] != 1:
            raise InputError(
                f"the attention mask differs between {mask.shape[1]} heads; with a reduced cache "
                "it must be the same for all heads"
            )
        every, _, bias = read_mask(mask, mask.shape[-1])
        if bias is not None:
            raise InputError(
                "the attention mask adds numbers to the logits; with a reduced cache it can only "
                "hide tokens"
            )
        assert every is not None
        first = mask.shape[-1] - tail
        shown, visible = every[:, 0, :, :first], every[:, 0, :, first:]
        wrong = ~shown if padding is None else shown == padding.to(shown.device)[:, None]
        if bool(wrong.any()):
            text, query, token = torch.nonzero(wrong)[0].tolist()
            does = "shows padding at" if bool(shown[text, query, token]) else "hides"
            raise InputError(
                "the attention mask does not show the tokens that the cache was filled with: it "
                f"{does} token {token} of text {text}. What is kept of them stands for all of "
                "them; hand in a mask with the same padding as before, or read the text again with "
                "a new cache (plan.cache(model)), or cache.reset()"
            )
        hidden = ~visible[..., tail - queries :].any(1)
        causal = torch.ones(queries, tail, dtype=torch.bool, device=visible.device)
        plain = bool((visible == causal.tril(tail - queries)).all())
        result = None if plain else visible, hidden if bool(hidden.any()) else None
        self.mask = mask, result
        return result


def attach(loaded: LoadedModel) -> None:
    """Let a model compute attention with reduced caches; done once per model.

    Raises
    ------
    InputError
        For a model that has no cache, or attention that cannot be replaced.
    """
    family = loaded.family
    if not loaded.causal or not family.decoder:
        raise InputError(
            f"{loaded.name!r} is an encoder and has no key cache; plans are for decoders"
        )
    backbone = loaded.backbone
    modules = [family.attention(block) for block in family.blocks(loaded.model)]
    configs = attention_configs(backbone, modules)
    check_readable(str(configs[0]._attn_implementation))
    if hasattr(backbone, SWITCH):
        return
    modeling = transformers_module("transformers.modeling_utils")
    masking = transformers_module("transformers.masking_utils")
    for name in READABLE:
        modeling.AttentionInterface.register(_private(name), partial(_attention, name))
        make_mask = masking.ALL_MASK_ATTENTION_FUNCTIONS[name]
        masking.AttentionMaskInterface.register(_private(name), make_mask)
    switch = Switch(backbone, configs)
    setattr(backbone, SWITCH, switch)
    backbone.forward = switch.forward


class Switch:
    """The forward of a backbone: called with a reduced cache, attention goes to the cache.

    Two hooks would not do: PyTorch leaves out the second when a call is interrupted. Calls with
    reduced caches take turns, because threads share the configurations.
    """

    def __init__(self, module: nn.Module, configs: list[Any]) -> None:
        replaced = vars(module).get("forward")  # by others
        self.__setstate__((module, configs, replaced))

    def __getstate__(self) -> Any:
        return self._module(), self._configs, self._replaced

    def __setstate__(self, state: Any) -> None:
        module, self._configs, self._replaced = state
        self._module = weakref.ref(module)  # a model is freed when it is let go
        self._turn = threading.RLock()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the backbone."""
        module = self._module()
        assert module is not None
        forward = self._replaced or partial(type(module).forward, module)
        named = _by_name(module, args, kwargs)
        cache = named.get(ARGUMENT)
        if not isinstance(getattr(cache, "call", None), Call):
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
            # refused before tokens are taken
            ids, embeds = kwargs.get("input_ids"), kwargs.get("inputs_embeds")
            given = embeds if ids is None else ids
            if given is not None and torch.is_autocast_enabled(given.device.type):
                raise InputError(
                    "a reduced cache holds keys in the type of the model, and torch.autocast would "
                    "change it on the way; call the model outside of torch.autocast (load it in "
                    "bfloat16 if that is what you want)"
                )
            expecting = (*module.parameters(), embeds) if torch.is_grad_enabled() else ()
            if any(x is not None and x.requires_grad for x in expecting):
                raise no_gradients()
            check_repeatable(cache, kwargs)
            with cache.changing():
                kwargs = _read_first(module, cache, kwargs)
                output = self._read(module, forward, cache, kwargs)
                if call.reading and cache.decode == "keep":
                    for layer in cache.reduced:
                        layer.recent = layer.running = None
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
        call.mask = None
        if first and call.repeats:
            repeat_read(module, cache, kwargs)
        return output


def no_gradients() -> InputError:
    """Queries, keys or values expect gradients: they would get none, and nobody would know."""
    return InputError(
        "no gradients flow through a reduced cache, and the model's weights or inputs expect some; "
        "call the model within torch.no_grad(), or after model.requires_grad_(False)"
    )


def _private(name: str) -> str:
    return f"{PREFIX}cache_{name}"


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
    mask, places = kwargs.get("attention_mask"), kwargs.get("position_ids")
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 2):
        raise InputError(
            "a prompt can be read in pieces with an attention mask [batch, tokens], and this "
            "model was handed another; leave chunk out (a model that also reads images makes "
            "its masks itself: load its text model)"
        )
    tokens, seen = inputs.shape[1], cache.get_seq_length()
    # pieces of equal length, as far as they can be
    count = -(-tokens // cache.chunk)
    ends = [tokens * i // count for i in range(count + 1)]
    cache.call.reading = True
    for start, end in pairwise(ends):
        piece = kwargs | {name: inputs[:, start:end]}
        if mask is not None:
            piece["attention_mask"] = mask[:, : seen + end]
        if places is not None:
            piece["position_ids"] = places[..., start:end]
        if end < tokens:
            module(**piece)
    return piece
